"""Peak memory of every `joules` command that opens a run file, by size: `bench_integration.py --commands`."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from common import progress
from integration_file import Shape, make_file

LIMIT_MIB = 2048
COMMANDS = {
    "info": ["info", "RUN"],
    "clock": ["clock", "RUN"],
    "verify": ["verify", "RUN"],  # exit status 1: the file has no board times, which would double its size
    "recover": ["recover", "RUN", "-o", "OUT.h5", "--overwrite"],
    "tables": ["tables", "RUN"],
    "uncertainty": ["uncertainty", "RUN"],
    "index": ["index", "FOLDER", "--out", "OUT.parquet", "--jobs", "1"],
    "tag": ["tag", "RUN", "--tensorboard", "OUT.log"],
    "plot": ["plot", "RUN", "-o", "OUT.png", "--overwrite"],
    "plot --kind power": ["plot", "RUN", "--kind", "power", "-o", "OUT.png", "--overwrite"],
    "plot --kind phases": ["plot", "RUN", "--kind", "phases", "-o", "OUT.png", "--overwrite"],
    "plot --kind quality": ["plot", "RUN", "--kind", "quality", "-o", "OUT.png", "--overwrite"],
    "trace": ["trace", "RUN", "-o", "OUT.json", "--overwrite"],
    "compare": ["compare", "RUN", "TWIN"],
    "report": ["report", "RUN", "-o", "OUT.html", "--overwrite"],
    "layers": ["layers", "LAYERS"],
    "tables, gaps": ["tables", "GAPS"],
    "uncertainty, gaps": ["uncertainty", "GAPS"],
    "verify, gaps": ["verify", "GAPS"],
    "trace, gaps": ["trace", "GAPS", "-o", "OUT.json", "--overwrite"],
    "report, gaps": ["report", "GAPS", "-o", "OUT.html", "--overwrite"],
}
SHAPES: dict[str, Shape] = {"RUN": "training", "LAYERS": "layers", "GAPS": "gaps"}
"""How the phases lie in the file that stands for a word in capitals. TWIN is the file by another name, and in FOLDER it
is alone."""
_JOULES = "import sys; from powerd_analytics.cli.app import main; main(sys.argv[1:])"
_NO_TENSORBOARD = '''
class SummaryWriter:
    """Stands in for TensorBoard's where that is not installed: a line of text for each value."""

    def __init__(self, directory):
        self.file = open(directory + ".txt", "w")

    def add_scalar(self, tag, value, step):
        self.file.write(f"{tag} {value}\\n")

    def close(self):
        self.file.close()
'''


@dataclass(frozen=True, slots=True)
class Peak:
    """What a command needed."""

    own_mib: float
    """Its own memory and that of the processes that it started."""
    resident_mib: float
    """The same with pages of mapped files, which the kernel takes back when it needs them: a run file is looked through
    once when it is opened."""
    wall_s: float
    cpu_s: float
    status: int | None
    """Exit status; None where time ran out."""


def peak_of(words: list[str], stand_ins: Path, until_s: float) -> Peak:
    """Run a command; ``stand_ins`` is a folder of packages that are not installed. It is ended at ``until_s``."""
    begin = time.perf_counter()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(stand_ins), os.environ.get("PYTHONPATH", "")])}
    child = subprocess.Popen(
        [sys.executable, "-c", _JOULES, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )
    own_kib, is_late = 0, False
    while True:
        pid, status, usage = os.wait4(child.pid, os.WNOHANG)
        if pid:
            break
        own_kib = max(own_kib, _own_kib(child.pid))
        if not is_late and time.perf_counter() > until_s:
            is_late = True
            child.kill()
        time.sleep(0.02)
    child.returncode = os.waitstatus_to_exitcode(status)
    spent = time.perf_counter() - begin
    cpu_s = usage.ru_utime + usage.ru_stime
    return Peak(own_kib / 1024, usage.ru_maxrss / 1024, spent, cpu_s, None if is_late else child.returncode)


def _own_kib(pid: int) -> int:
    """Memory of a process and of all below it that is no page of a file."""
    try:
        _, _, rest = Path(f"/proc/{pid}/status").read_text().partition("RssAnon:")
        below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0  # it ended in between
    return (int(rest.split()[0]) if rest else 0) + sum(_own_kib(int(child)) for child in below)


def compare_sizes(sizes: Sequence[int], readings_a_phase: int, minutes: float, only: Sequence[str], jobs: int) -> None:
    """A row a command at each size, as they end, and by how many bytes a phase they grew since the first size.

    ``jobs`` commands run side by side; what they need of memory is their own. What is not done after ``minutes`` is
    named, and what the disk has no room for.
    """
    until_s, before = time.perf_counter() + 60 * minutes, dict[str, Peak]()
    if is_stood_in := not any(importlib.util.find_spec(p) for p in ("tensorboard", "tensorboardX")):
        print("TensorBoard is not installed: `tag` writes to a stand-in")
    for n in sizes:
        m = n // readings_a_phase
        print(f"\n{n:.0e} readings, {m:.0e} phases, {n // 10:.0e} readings of a clock beside them")
        print(f"{'':20s} {'own MiB':>8s} {'resident':>9s} {'wall s':>7s} {'CPU s':>7s} {'B/phase more':>13s}  exit")
        for shape in SHAPES.values():
            names = [name for name in only or COMMANDS if _shape(name) == shape]
            if not names:
                continue
            # One folder a shape: of files of a billion readings there is room for one.
            with tempfile.TemporaryDirectory(prefix="bench-commands-") as directory:
                folder = Path(directory)
                need, free = _need_bytes(n, m, jobs), shutil.disk_usage(folder).free
                if need > free:
                    said = f"not run: needs {need / 1e9:.1f} GB of disk, {free / 1e9:.1f} are free"
                    print("\n".join(f"{name:20s} {said}" for name in names), flush=True)
                    continue
                if is_stood_in:
                    (folder / "packages").mkdir()
                    (folder / "packages" / "tensorboardX.py").write_text(_NO_TENSORBOARD)
                _make_files(folder, n, m, shape)
                for name, found in _peaks(names, folder, until_s, jobs):
                    if found is None:
                        print(f"{name:20s} not run: {minutes:g} minutes are over (--minutes)", flush=True)
                        continue
                    _say(name, found, before.get(name), (n - sizes[0]) // readings_a_phase)
                    before.setdefault(name, found)


def _peaks(names: Sequence[str], folder: Path, until_s: float, jobs: int) -> Iterator[tuple[str, Peak | None]]:
    """What each command needed, as they end; None where time was over before it began."""

    def one(name: str) -> tuple[str, Peak | None]:
        if time.perf_counter() > until_s:
            return name, None
        out = folder / f"out {name}"
        out.mkdir()
        found = peak_of([_place(word, folder, out) for word in COMMANDS[name]], folder / "packages", until_s)
        shutil.rmtree(out)
        return name, found

    begin = time.perf_counter()
    with ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(one, name) for name in names}
        while running:
            done, running = wait(running, timeout=1.0, return_when=FIRST_COMPLETED)
            progress(f"{len(names) - len(running)} of {len(names)} commands, {time.perf_counter() - begin:.0f} s")
            for each in done:
                progress("")
                yield each.result()


def _shape(name: str) -> Shape:
    """How the phases of a command's file lie."""
    return next((SHAPES[word] for word in COMMANDS[name] if word in SHAPES), SHAPES["RUN"])


def _need_bytes(n: int, m: int, jobs: int) -> int:
    """Disk for a file and for what commands make of it: `recover` a file like it, `trace` some text a phase."""
    return 2 * 10 * n + 400 * m * min(jobs, 2)


def _make_files(folder: Path, n: int, m: int, shape: Shape) -> None:
    """The run file, by another name too, and alone in a folder."""
    made = folder / "run.h5"
    make_file(made, n, m, shape)
    (folder / "runs").mkdir()
    (folder / "runs" / "run.h5").hardlink_to(made)
    (folder / "twin.h5").hardlink_to(made)


def _place(word: str, folder: Path, out: Path) -> str:
    """A word of a command with files in the places of those in capitals."""
    known = {**dict.fromkeys(SHAPES, "run.h5"), "TWIN": "twin.h5", "FOLDER": "runs"}
    return str(folder / known[word]) if word in known else word.replace("OUT", str(out / "out"))


def _say(name: str, found: Peak, before: Peak | None, phases: int) -> None:
    growth = f"{(found.own_mib - before.own_mib) * 2**20 / phases:13.0f}" if before and phases else f"{'':13s}"
    status = "ended: out of time" if found.status is None else str(found.status)
    verdict = f"  ABOVE {LIMIT_MIB} MiB" if found.own_mib > LIMIT_MIB else ""
    numbers = f"{found.own_mib:8.0f} {found.resident_mib:9.0f} {found.wall_s:7.1f} {found.cpu_s:7.1f}"
    print(f"{name:20s} {numbers} {growth}  {status}{verdict}", flush=True)
