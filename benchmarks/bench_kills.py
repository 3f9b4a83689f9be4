"""`kill -9` of the trainer, the recorder and powerd at random moments: is the run still there?

Each time a training with back-to-back iterations is recorded from a simulated board over a socket, one process is
killed, and the run file is opened. It must hold everything older than one second before the kill, and `joules tables`
must give the phases that ended.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from common import machine, powerd, progress, wait_until

from powerd_client import open_run
from powerd_client.hostclock import now_ns
from powerd_client.journal import journal_path

TARGETS = ("trainer", "recorder", "powerd")
SOURCE = '[[source]]\nkind = "sim"\nname = "rails"\nrate_hz = 250.0\n'
TRAINER = """
import sys, time
from powerd_client import Meter
meter = Meter(sys.argv[1], sys.argv[2])
end = None
with meter.phase("training", batch_size=4):
    print(meter._recording.pid, flush=True)
    while not (end and time.monotonic() > end):
        with meter.phase("iteration"):
            with meter.phase("forward"):
                time.sleep(0.012)
            with meter.phase("backward"):
                time.sleep(0.024)
        if end is None and __import__("select").select([0], [], [], 0)[0]:
            end = time.monotonic() + 0.5
meter.close()
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was left of one run."""

    readings: int
    phases: int
    recorded_s: float
    """Until the kill."""
    lost_ms: float
    """How long before the kill the last reading of the worst line was taken (negative: after it)."""
    problems: tuple[str, ...]


def one(target: str, delay_s: float, directory: Path) -> Outcome:
    """Record, kill ``target`` after ``delay_s``, and look at what is there."""
    out = directory / "run.h5"
    with powerd(SOURCE) as (url, powerd_pid):
        trainer = subprocess.Popen(
            [sys.executable, "-c", TRAINER, url, str(out)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert trainer.stdout is not None
        recorder_pid = int(trainer.stdout.readline())
        begun_ns = now_ns()
        time.sleep(delay_s)
        os.kill({"trainer": trainer.pid, "recorder": recorder_pid, "powerd": powerd_pid}[target], signal.SIGKILL)
        killed_ns = now_ns()
        if target != "trainer":
            time.sleep(0.3)
            assert trainer.stdin is not None
            trainer.stdin.write(b"\n")
            trainer.stdin.flush()
        _, stderr = trainer.communicate(timeout=60)
        wait_until(lambda: out.exists() and not journal_path(out).exists())
    problems = []
    if target != "trainer" and trainer.returncode:
        problems.append(f"the training ended with status {trainer.returncode}: {stderr.decode()[-200:]}")
    return _look(out, begun_ns, killed_ns, problems)


def _look(out: Path, begun_ns: int, killed_ns: int, problems: list[str]) -> Outcome:
    with open_run(out) as file:
        lasts, readings = [], 0
        for name, line in file["lines"].items():
            t = line["t_ns"][:]
            readings += len(t)
            before = t[t < killed_ns]
            lasts.append(int(before[-1]) if len(before) else 0)
            kept = before[before > begun_ns]
            if len(kept) and np.diff(kept).max() > 100_000_000:
                problems.append(f"{name} has a hole of {np.diff(kept).max() * 1e-6:.0f} ms")
        kinds = [json.loads(k)["name"] for k in file["phases/kinds"].asstr()]
        names = np.array(kinds, dtype=object)[file["phases/kind"][:]]
        begins, cut = file["phases/begin_ns"][:], file["phases/cut"][:]
        iterations = begins[(names == "iteration") & (begins < killed_ns)]
        if len(iterations) < 2 or np.diff(iterations).max() > 200_000_000:
            problems.append("iterations are missing")
        elif killed_ns - iterations[-1] > 1_000_000_000:
            problems.append(f"the last {(killed_ns - iterations[-1]) * 1e-9:.1f} s have no phases")
        ended = int((cut == 0).sum())
        completed = int(((names == "forward") & (cut == 0)).sum())
    lost_ms = (killed_ns - min(lasts)) * 1e-6
    if lost_ms > 1000:
        problems.append(f"the last {lost_ms:.0f} ms before the kill have no readings")
    tables = subprocess.run(
        [sys.executable, "-m", "powerd_analytics", "tables", str(out), "--format", "json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if tables.returncode:
        problems.append(f"joules tables: {tables.stderr.strip()}")
    elif not any(row["phase"] == "forward" and row["iterations"] == completed for row in json.loads(tables.stdout)):
        problems.append(f"joules tables does not give the {completed} forward phases that ended")
    return Outcome(readings, ended, (killed_ns - begun_ns) * 1e-9, lost_ms, tuple(problems))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=20, help="kills of each process (default: 20)")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng, failed = random.Random(args.seed), 0
    print(f"kill -9 at random moments, {args.times} times each ({machine()})")
    for target in TARGETS:
        outcomes = []
        for k in range(args.times):
            progress(f"{target}: {k + 1} of {args.times}")
            with tempfile.TemporaryDirectory() as directory:
                outcomes.append(one(target, rng.uniform(1.2, 3.0), Path(directory)))
        progress("")
        bad = [o for o in outcomes if o.problems]
        failed += len(bad)
        worst = max(o.lost_ms for o in outcomes)
        whole = f"{len(outcomes) - len(bad)} of {len(outcomes)} whole"
        print(f"  {target:9} {whole}; readings missing before the kill: at most {worst:.0f} ms")
        for outcome in bad:
            print(f"    {'; '.join(outcome.problems)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
