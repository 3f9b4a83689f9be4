"""Peak memory of every `joules` command that opens a run file, at two sizes: `bench_integration.py --commands`."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from common import progress

LIMIT_MIB = 2048
COMMANDS = {
    "info": ["info", "RUN"],
    "clock": ["clock", "RUN"],
    "verify": ["verify", "RUN"],  # exit status 1: the file has no board times, which would double its size
    "recover": ["recover", "RUN", "-o", "OUT.h5", "--overwrite"],
    "tables": ["tables", "RUN"],
    "uncertainty": ["uncertainty", "RUN"],
    "layers": ["layers", "LAYERS"],
    "index": ["index", "FOLDER", "--out", "OUT.parquet", "--jobs", "1"],
    "tag": ["tag", "RUN", "--tensorboard", "OUT.log"],
    "plot": ["plot", "RUN", "-o", "OUT.png", "--overwrite"],
    "plot --kind power": ["plot", "RUN", "--kind", "power", "-o", "OUT.png", "--overwrite"],
    "plot --kind phases": ["plot", "RUN", "--kind", "phases", "-o", "OUT.png", "--overwrite"],
    "plot --kind quality": ["plot", "RUN", "--kind", "quality", "-o", "OUT.png", "--overwrite"],
    "trace": ["trace", "RUN", "-o", "OUT.json", "--overwrite"],
    "compare": ["compare", "RUN", "TWIN"],
    "report": ["report", "RUN", "-o", "OUT.html", "--overwrite"],
}
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


def compare_sizes(
    make_file: Callable[..., None], sizes: tuple[int, int], readings_a_phase: int, minutes: float, only: list[str]
) -> None:
    """A row a command at each size, as they end, and by how many bytes a phase they grew.

    ``make_file(path, readings, phases, layers=...)`` makes a run file. What is not done after ``minutes`` is named.
    """
    commands = {name: words for name, words in COMMANDS.items() if not only or name in only}
    until_s, before = time.perf_counter() + 60 * minutes, dict[str, Peak]()
    if is_stood_in := not any(importlib.util.find_spec(p) for p in ("tensorboard", "tensorboardX")):
        print("TensorBoard is not installed: `tag` writes to a stand-in")
    for n in sizes:
        print(f"\n{n:.0e} readings, {n // readings_a_phase:.0e} phases, {n // 10:.0e} readings of a clock beside them")
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
                filled = [_place(word, folder, make_file, n, n // readings_a_phase) for word in words]
                found = peak_of(filled, stand_ins, until_s, f"{name}, {n:.0e} readings")
                _say(name, found, before.get(name), (n - sizes[0]) // readings_a_phase)
                before.setdefault(name, found)


def _place(word: str, folder: Path, make_file: Callable[..., None], n: int, m: int) -> str:
    """A word of a command with files in the places of those in capitals; these are made when first needed."""
    run, layers, twin, campaign = (folder / name for name in ("run.h5", "layers.h5", "twin.h5", "runs"))
    if word in ("RUN", "TWIN", "FOLDER") and not run.exists():
        make_file(run, n, m)
        twin.hardlink_to(run)
        campaign.mkdir()
        (campaign / "run.h5").hardlink_to(run)
    if word == "LAYERS":
        make_file(layers, n, m, layers=True)
    known = {"RUN": run, "TWIN": twin, "FOLDER": campaign, "LAYERS": layers}
    return str(known[word]) if word in known else word.replace("OUT", str(folder / "out"))


def _say(name: str, found: Peak, before: Peak | None, phases: int) -> None:
    growth = f"{(found.own_mib - before.own_mib) * 2**20 / phases:13.0f}" if before and phases else f"{'':13s}"
    status = "ended: out of time" if found.status is None else str(found.status)
    verdict = f"  ABOVE {LIMIT_MIB} MiB" if found.own_mib > LIMIT_MIB else ""
    numbers = f"{found.own_mib:8.0f} {found.resident_mib:9.0f} {found.wall_s:7.1f} {found.cpu_s:7.1f}"
    print(f"{name:20s} {numbers} {growth}  {status}{verdict}", flush=True)
