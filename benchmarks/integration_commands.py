"""Peak memory of every `joules` command that opens a run file, at two sizes: `bench_integration.py --commands`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

LIMIT_MIB = 1024
COMMANDS = {
    "info": ["info", "RUN"],
    "clock": ["clock", "RUN"],
    "verify": ["verify", "RUN"],
    "recover": ["recover", "RUN", "-o", "OUT.h5", "--overwrite"],
    "tables": ["tables", "RUN"],
    "uncertainty": ["uncertainty", "RUN"],
    "plot": ["plot", "RUN", "-o", "OUT.png", "--overwrite"],
    "plot --kind power": ["plot", "RUN", "--kind", "power", "-o", "OUT.png", "--overwrite"],
    "plot --kind phases": ["plot", "RUN", "--kind", "phases", "-o", "OUT.png", "--overwrite"],
    "plot --kind quality": ["plot", "RUN", "--kind", "quality", "-o", "OUT.png", "--overwrite"],
    "trace": ["trace", "RUN", "-o", "OUT.json", "--overwrite"],
    "report": ["report", "RUN", "-o", "OUT.html", "--overwrite"],
    "compare": ["compare", "RUN", "TWIN"],
}
_JOULES = "import sys; from powerd_analytics.cli.app import main; main(sys.argv[1:])"


def peaks(words: list[str]) -> tuple[float, float, float, int]:
    """Peak of a command's own memory and of all that was resident (MiB), its seconds, and its exit status.

    What is resident counts pages of mapped files, which the kernel takes back when it needs them: a run file is looked
    through once when it is opened.
    """
    begin = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, "-c", _JOULES, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    own_kib = 0
    while True:
        pid, status, usage = os.wait4(child.pid, os.WNOHANG)
        if pid:
            break
        try:
            _, _, rest = Path(f"/proc/{child.pid}/status").read_text().partition("RssAnon:")
            own_kib = max(own_kib, int(rest.split()[0]) if rest else 0)
        except OSError:
            pass  # it ended in between
        time.sleep(0.01)
    child.returncode = os.waitstatus_to_exitcode(status)
    return own_kib / 1024, usage.ru_maxrss / 1024, time.perf_counter() - begin, child.returncode


def compare_sizes(make_file: Callable[[Path, int, int], None], sizes: tuple[int, int], readings_a_phase: int) -> None:
    """A row a command: peaks at both sizes, and by how many bytes a reading they grew. ``make_file`` makes a run file
    of so many readings and phases."""
    found: dict[str, list[tuple[float, float, float, int]]] = {name: [] for name in COMMANDS}
    for n in sizes:
        with tempfile.TemporaryDirectory(prefix="bench-commands-") as directory:
            run, twin, out = (Path(directory) / name for name in ("run.h5", "twin.h5", "out"))
            make_file(run, n, n // readings_a_phase)
            twin.hardlink_to(run)
            for name, words in COMMANDS.items():
                places = {"RUN": str(run), "TWIN": str(twin)}
                filled = [places.get(w, w.replace("OUT", str(out))) for w in words]
                found[name].append(peaks(filled))
    small, large = sizes
    print(f"\npeak memory of commands, {small:.0e} and {large:.0e} readings, a phase for every {readings_a_phase}")
    print(f"{'':20s} {'own MiB':>16s} {'resident MiB':>16s} {'s':>14s} {'B/reading more':>15s}  exit")
    for name, (a, b) in found.items():
        more = (b[0] - a[0]) * 2**20 / (large - small)
        numbers = f"{a[0]:7.0f} {b[0]:8.0f} {a[1]:7.0f} {b[1]:8.0f} {a[2]:6.1f} {b[2]:7.1f} {more:15.2f}"
        verdict = "" if b[0] <= LIMIT_MIB else f"  ABOVE {LIMIT_MIB} MiB"
        print(f"{name:20s} {numbers}  {b[3]}{verdict}", flush=True)
