"""Peak memory of every `joules` command that opens a run file, by size: `bench_integration.py --commands`."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
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
"""How the phases lie in the file that stands for a word in capitals. TWIN is RUN by another name, FOLDER holds it."""
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


def peak_of(words: list[str], stand_ins: Path, until_s: float, said: str) -> Peak:
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
        progress(f"{said}: {time.perf_counter() - begin:.0f} s")
        time.sleep(0.02)
    progress("")
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


def compare_sizes(sizes: Sequence[int], readings_a_phase: int, minutes: float, only: Sequence[str]) -> None:
    """A row a command at each size, as they end, and by how many bytes a phase they grew since the first size.

    What is not done after ``minutes`` is named, and what the disk has no room for.
    """
    commands = {name: COMMANDS[name] for name in only or COMMANDS}
    until_s, before = time.perf_counter() + 60 * minutes, dict[str, Peak]()
    if is_stood_in := not any(importlib.util.find_spec(p) for p in ("tensorboard", "tensorboardX")):
        print("TensorBoard is not installed: `tag` writes to a stand-in")
    for n in sizes:
        m = n // readings_a_phase
        print(f"\n{n:.0e} readings, {m:.0e} phases, {n // 10:.0e} readings of a clock beside them")
        print(f"{'':20s} {'own MiB':>8s} {'resident':>9s} {'wall s':>7s} {'CPU s':>7s} {'B/phase more':>13s}  exit")
        with tempfile.TemporaryDirectory(prefix="bench-commands-") as directory:
            folder = Path(directory)
            stand_ins = folder / "packages"
            stand_ins.mkdir()
            if is_stood_in:
                (stand_ins / "tensorboardX.py").write_text(_NO_TENSORBOARD)
            for name, words in commands.items():
                if time.perf_counter() > until_s:
                    print(f"{name:20s} not run: {minutes:g} minutes are over (--minutes)", flush=True)
                    continue
                need, free = _need_bytes(n, m), shutil.disk_usage(folder).free
                if need > free:
                    gigabytes = f"needs {need / 1e9:.1f} GB of disk, {free / 1e9:.1f} are free"
                    print(f"{name:20s} not run: {gigabytes}", flush=True)
                    continue
                filled = [_place(word, folder, n, m) for word in words]
                found = peak_of(filled, stand_ins, until_s, f"{name}, {n:.0e} readings")
                _say(name, found, before.get(name), (n - sizes[0]) // readings_a_phase)
                before.setdefault(name, found)
                for made in folder.glob("out*"):
                    shutil.rmtree(made) if made.is_dir() else made.unlink()


def _need_bytes(n: int, m: int) -> int:
    """Disk for a file and for what a command makes of it: `recover` a file like it, `trace` some text a phase."""
    return 2 * 10 * n + 400 * m


def _place(word: str, folder: Path, n: int, m: int) -> str:
    """A word of a command with files in the places of those in capitals; these are made when first needed. Files of
    other phases are removed then: of a billion readings there is room for one."""
    run, twin, campaign = folder / "run.h5", folder / "twin.h5", folder / "runs"
    shape = SHAPES.get(word) or (SHAPES["RUN"] if word in ("TWIN", "FOLDER") else None)
    if shape is not None and not (made := folder / f"{shape}.made").exists():
        for old in (run, twin, campaign / "run.h5", *folder.glob("*.made")):
            old.unlink(missing_ok=True)
        make_file(run, n, m, shape)
        made.touch()
        twin.hardlink_to(run)
        campaign.mkdir(exist_ok=True)
        (campaign / "run.h5").hardlink_to(run)
    known = {**dict.fromkeys(SHAPES, run), "TWIN": twin, "FOLDER": campaign}
    return str(known[word]) if word in known else word.replace("OUT", str(folder / "out"))


def _say(name: str, found: Peak, before: Peak | None, phases: int) -> None:
    growth = f"{(found.own_mib - before.own_mib) * 2**20 / phases:13.0f}" if before and phases else f"{'':13s}"
    status = "ended: out of time" if found.status is None else str(found.status)
    verdict = f"  ABOVE {LIMIT_MIB} MiB" if found.own_mib > LIMIT_MIB else ""
    numbers = f"{found.own_mib:8.0f} {found.resident_mib:9.0f} {found.wall_s:7.1f} {found.cpu_s:7.1f}"
    print(f"{name:20s} {numbers} {growth}  {status}{verdict}", flush=True)
