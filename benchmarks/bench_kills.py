"""`kill -9` of the trainer, the recorder and powerd at random moments: is the run still there?

Each time a training with back-to-back iterations is recorded from a simulated board over a socket, one process is
killed, or with ``--pairs`` two, one after the other, the recorder's guardian among them, and the run file is opened. It
must hold everything up to the end of the training or of powerd but one second (of pairs where powerd lives:
100 ms), must declare what is missing, and `joules tables` must give the phases that ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise, permutations
from pathlib import Path

import numpy as np
from common import machine, options, powerd, progress, wait_until

from powerd_client import open_run
from powerd_client.host.hostclock import now_ns
from powerd_client.journals.journal import journal_path

TARGETS = ("trainer", "recorder", "powerd")
PAIRS = tuple(permutations((*TARGETS, "guardian"), 2))
PERIOD_NS = 4_000_000
PAIRS_MS, POWERD_MS = 100, 1000
"""What may be missing behind two kills. A powerd that is killed takes with it what no recorder had received yet."""
SOURCE = '[[source]]\nkind = "sim"\nname = "rails"\nrate_hz = 250.0\n'
TRAINER = """
import sys, time
from powerd_client import Meter
from powerd_client.host.hostclock import now_ns
meter = Meter(sys.argv[1], sys.argv[2])
end = None
with meter.phase("training", batch_size=4):
    print(meter._recording.pid, meter._recording.guardian_pid, flush=True)
    while not (end and time.monotonic() > end):
        with meter.phase("iteration"):
            with meter.phase("forward"):
                time.sleep(0.012)
            with meter.phase("backward"):
                time.sleep(0.024)
        if end is None and __import__("select").select([0], [], [], 0)[0]:
            end = time.monotonic() + 0.5
print(now_ns(), flush=True)
meter.close()
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was left of one run."""

    readings: int
    phases: int
    lost_ms: float
    """Readings that are missing of the worst line, up to the end of the training or of powerd."""
    problems: tuple[str, ...]


def one(
    targets: Sequence[str], delay_s: float, directory: Path, pause_s: float = 0.0, most_ms: float = 1000
) -> Outcome:
    """Record, kill the targets after ``delay_s``, with a pause between them, and look at what is there."""
    out = directory / "run.h5"
    with powerd(SOURCE) as (url, powerd_pid):
        trainer = subprocess.Popen(
            [sys.executable, "-c", TRAINER, url, str(out)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert trainer.stdout is not None
        recorder_pid, guardian_pid = map(int, trainer.stdout.readline().split())
        pids = {"trainer": trainer.pid, "recorder": recorder_pid, "guardian": guardian_pid, "powerd": powerd_pid}
        begun_ns = now_ns()
        time.sleep(delay_s)
        killed_ns = {}
        for target in targets:
            if killed_ns:
                time.sleep(pause_s)
            with contextlib.suppress(ProcessLookupError):  # a recorder that has done its work
                os.kill(pids[target], signal.SIGKILL)
            killed_ns[target] = now_ns()
        if "trainer" not in targets:
            time.sleep(0.3)
            assert trainer.stdin is not None
            trainer.stdin.write(b"\n")
            trainer.stdin.flush()
        said, stderr = trainer.communicate(timeout=60)
        wait_until(lambda: out.exists() and not journal_path(out).exists())
    problems = []
    ends_ns = [t for target, t in killed_ns.items() if target in ("trainer", "powerd")]
    if "trainer" not in targets:
        ends_ns += map(int, said.split())
        if trainer.returncode:
            problems.append(f"the training ended with status {trainer.returncode}: {stderr.decode()[-200:]}")
    return _look(out, begun_ns, min(ends_ns), most_ms, problems)


def _look(out: Path, begun_ns: int, end_ns: int, most_ms: float, problems: list[str]) -> Outcome:
    with open_run(out) as file:
        missing_ns, readings = [0], 0
        begins_ns, ends_ns = file["gaps/begin_ns"][:], file["gaps/end_ns"][:]
        for name, line in file["lines"].items():
            t = line["t_ns"][:]
            readings += len(t)
            inside = np.concatenate([[begun_ns], t[(t > begun_ns) & (t < end_ns)], [end_ns]])
            holes = [(a, b) for a, b in pairwise(inside) if b - a > 3 * PERIOD_NS]
            missing_ns.append(sum(b - a - PERIOD_NS for a, b in holes))
            for a, b in holes:
                if not np.any((begins_ns < b) & (ends_ns > a)) and file.attrs["t_stop_ns"] > a + 3 * PERIOD_NS:
                    problems.append(f"{name} has a hole of {(b - a) * 1e-6:.0f} ms that is not declared")
        kinds = [json.loads(k)["name"] for k in file["phases/kinds"].asstr()]
        names = np.array(kinds, dtype=object)[file["phases/kind"][:]]
        begins, cut = file["phases/begin_ns"][:], file["phases/cut"][:]
        iterations = begins[(names == "iteration") & (begins < end_ns)]
        if len(iterations) < 2 or np.diff(iterations).max() > 200_000_000:
            problems.append("iterations are missing")
        elif end_ns - iterations[-1] > 1_000_000_000:
            problems.append(f"the last {(end_ns - iterations[-1]) * 1e-9:.1f} s have no phases")
        ended = int((cut == 0).sum())
        completed = int(((names == "forward") & (cut == 0)).sum())
    lost_ms = max(missing_ns) * 1e-6
    if lost_ms > most_ms:
        problems.append(f"readings of {lost_ms:.0f} ms are missing")
    tables = subprocess.run(
        [sys.executable, "-m", "powerd_analytics", "tables", str(out), "--format", "json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if tables.returncode:
        problems.append(f"joules tables: {tables.stderr.strip()}")
    elif not any(row["phase"] == "forward" and row["iterations"] == completed for row in json.loads(tables.stdout)):
        problems.append(f"joules tables does not give the {completed} forward phases that ended")
    return Outcome(readings, ended, lost_ms, tuple(problems))


def pairs(count: int, lanes: int, rng: random.Random) -> int:
    """Kill two processes that many times, and print what came of it. How often something was not as it should be."""
    plans = [(*rng.choice(PAIRS), rng.uniform(1.2, 3.0), rng.choice((0.0, rng.uniform(0, 1)))) for _ in range(count)]

    def play(plan: tuple[str, str, float, float]) -> Outcome:
        with tempfile.TemporaryDirectory() as directory:
            try:
                most_ms = POWERD_MS if "powerd" in plan else PAIRS_MS
                return one(plan[:2], plan[2], Path(directory), plan[3], most_ms)
            except Exception as error:  # noqa: BLE001  (one run that breaks must not end the others)
                return Outcome(0, 0, 0, (f"{type(error).__name__}: {error}",))

    outcomes = []
    with ThreadPoolExecutor(lanes) as pool:
        for outcome in pool.map(play, plans):
            outcomes.append(outcome)
            progress(f"pairs: {len(outcomes)} of {count}")
    progress("")
    bad = [(plan, outcome) for plan, outcome in zip(plans, outcomes, strict=True) if outcome.problems]
    print(f"  pairs     {count - len(bad)} of {count} whole")
    for where, has_powerd in (("powerd lives", False), ("powerd is one of them", True)):
        lost_ms = [o.lost_ms for plan, o in zip(plans, outcomes, strict=True) if ("powerd" in plan) == has_powerd]
        print(f"    where {where} ({len(lost_ms)}): readings of at most {max(lost_ms, default=0):.0f} ms are missing")
    for (first, second, delay_s, pause_s), outcome in bad:
        print(f"    {first} after {delay_s:.2f} s, {second} {pause_s:.2f} s later: {'; '.join(outcome.problems)}")
    return len(bad)


def main() -> int:
    args = options(__doc__, times=20, pairs=0, lanes=1, seed=1)
    rng, failed = random.Random(args.seed), 0
    if args.pairs:
        print(f"kill -9 of two processes at random moments, seed {args.seed} ({machine()})")
        return 1 if pairs(args.pairs, args.lanes, rng) else 0
    print(f"kill -9 at random moments, {args.times} times each ({machine()})")
    for target in TARGETS:
        outcomes = []
        for k in range(args.times):
            progress(f"{target}: {k + 1} of {args.times}")
            with tempfile.TemporaryDirectory() as directory:
                outcomes.append(one((target,), rng.uniform(1.2, 3.0), Path(directory)))
        progress("")
        bad = [o for o in outcomes if o.problems]
        failed += len(bad)
        worst = max(o.lost_ms for o in outcomes)
        whole = f"{len(outcomes) - len(bad)} of {len(outcomes)} whole"
        print(f"  {target:9} {whole}; readings missing: at most {worst:.0f} ms")
        for outcome in bad:
            print(f"    {'; '.join(outcome.problems)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
