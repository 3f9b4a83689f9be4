"""Every fault of the simulated GPU and the verdict that its run gets: none is reported as honoured but what was.

Each row is a training of some seconds on a simulated GPU of its own, with a lease by a real helper, recorded by a real
powerd; what truly happened is told by the simulated GPU.

    python benchmarks/bench_verdicts.py
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from common import machine, options, progress

REFUSED, NO_TABLE = "refused", "no table"
"""The lease was refused; the run has too few readings for a table."""
EXAMPLE = Path(__file__).parents[1] / "examples/sim_training.py"


@dataclass(frozen=True)
class Row:
    """A fault, what is held meanwhile, and the verdicts that are right."""

    fault: str
    held: tuple[str, ...]
    right: tuple[str, ...]


CAP, CLOCK = ("--power-cap", "150"), ("--sm-clock", "1200")
ROWS = (
    Row("", CAP, ("honoured, binding",)),
    Row("", ("--power-cap", "max"), ("honoured, slack",)),
    Row("", CLOCK, ("honoured, binding",)),
    Row("ignore", CAP, (REFUSED,)),
    Row("clamp", CAP, (REFUSED,)),
    Row("no-permission", CAP, (REFUSED,)),
    Row("not-supported", CLOCK, (REFUSED,)),
    Row("override", CAP, ("overridden",)),
    Row("other-client", CAP, ("overridden",)),
    Row("driver-reload", CAP, ("overridden",)),
    Row("lost", CAP, ("overridden", REFUSED, NO_TABLE)),
    Row("thermal", CAP, ("confounded",)),
    Row("brake", CAP, ("confounded",)),
    Row("clock-ignored", CLOCK, ("clock missed", "unknown")),
    Row("slow", CAP, ("honoured, binding",)),
)


def verdict_of(row: Row, folder: Path, iterations: int) -> str:
    """The verdict of one recorded training, or that it was refused."""
    out = folder / "run.h5"
    out.unlink(missing_ok=True)
    fault = ["--fault", row.fault] if row.fault else []
    command = [sys.executable, "-m", "powerd_daemon", "sim-gpu", "--control", *fault, "--"]
    command += [sys.executable, "-m", "powerd_analytics", "record", "--quiet", *row.held, "-o", str(out), "--"]
    command += [sys.executable, str(EXAMPLE), "--network", "vgg19", "--iterations", str(iterations)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not out.exists():
        return REFUSED if done.returncode else f"no run: {done.stderr[-300:]}"
    tables = [sys.executable, "-m", "powerd_analytics", "tables", str(out), "--format", "json"]
    printed = subprocess.run(tables, capture_output=True, text=True, check=False)
    if printed.returncode:
        return NO_TABLE
    verdicts = {r["verdict"] for r in json.loads(printed.stdout) if r["kind"] == "total" and r["is_held"]}
    return " / ".join(sorted(map(str, verdicts))) or "nothing held"


def main() -> int:
    arguments = options(__doc__, iterations=40)
    print(machine())
    print(f"{'fault':<16}{'held':<20}{'verdict':<44}right")
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for i, row in enumerate(ROWS):
            progress(f"{i + 1} of {len(ROWS)}")
            found = verdict_of(row, Path(folder), arguments.iterations)
            is_right = set(found.split(" / ")) <= set(row.right)
            wrong += not is_right
            print(f"{row.fault or 'none':<16}{' '.join(row.held):<20}{found:<44}{'yes' if is_right else 'NO'}")
    print(f"{len(ROWS) - wrong} of {len(ROWS)} right")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
