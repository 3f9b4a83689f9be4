"""The whole fault matrix in random order, for as long as asked, under load: is all that was lost declared lost?

Each cell has its own powerd with 8 lines at 1 kHz, its own training that is recorded, and three further clients;
several cells are at work at a time. A cell lasts up to 40 s (a stop is one of 30 s), so ten minutes reach a part of
the matrix. The report goes to standard output, progress to standard error. Ctrl-C ends with the report so far.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from common import machine

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from faults.cell import Outcome, run_cell
from faults.rows import KINDS, VICTIMS, Cell, cells
from faults.stage import FULL, end_all


@dataclass(slots=True)
class Report:
    """What came of all cells so far."""

    began_s: float = field(default_factory=time.monotonic)
    outcomes: list[Outcome] = field(default_factory=list)

    def lines(self, seed: int, lanes: int) -> Iterator[str]:
        outcomes = self.outcomes
        elapsed_s = time.monotonic() - self.began_s
        runs = Counter(o.name for o in outcomes)
        everything = list(cells())
        held = sum(1 for o in outcomes if not o.problems)
        yield f"soak: {elapsed_s / 60:.1f} min, seed {seed}, {lanes} cells at a time ({machine()})"
        yield (
            f"  load        in each cell {FULL.lines} lines at {FULL.rate_hz:g} Hz, a training, {FULL.clients} further "
            "clients"
        )
        yield (
            f"  cells       {len(outcomes)} run, {len(runs)} of the {len(everything)} different ones; "
            f"{held} as they should be"
        )
        yield f"  training    {sum(o.steps for o in outcomes)} steps made; the longest took {self._longest_s():.2f} s"
        seen = sum(o.evidence > 0 for o in outcomes)
        yield f"  evidence    of {seen} faults, counted by the proxy, the disk, the bus, a parent or the kernel"
        yield f"  others      {sum(o.clients_frames for o in outcomes)} blocks received by further clients"
        yield ""
        yield "  faults survived (of those made)"
        yield f"    {'':24}" + "".join(f"{kind:>9}" for kind in KINDS)
        for victim in VICTIMS:
            yield f"    {victim:24}" + "".join(f"{self._score(victim, kind):>9}" for kind in KINDS)
        for victim, kind in sorted({(o.cell.victim, o.cell.kind) for o in outcomes if not o.cell.fits}):
            yield f"    {victim + ': ' + kind:40}{self._score(victim, kind)}"
        yield ""
        due, sent, received, lost, declared = (
            sum(getattr(o.account, name) for o in outcomes) for name in ("due", "sent", "received", "lost", "declared")
        )
        yield f"  readings due           {due} by the clock and the period"
        yield f"  readings counted out   {sent} by ledgers that the sources write and nobody else knows of"
        yield f"  readings received      {received} by the codes that the run files hold, which number their scans"
        yield f"  blocks replayed        {sum(o.account.replayed for o in outcomes)}"
        yield f"  readings lost          {lost} that were due and are in no file"
        yield f"  readings declared lost {declared} by the times of gaps and by flags"
        for outcome in outcomes:
            for problem in outcome.problems:
                yield f"  {outcome.name}: {problem}"
        yield "  lost and declared lost are " + ("equal" if self.is_equal else "NOT equal")
        if held < len(outcomes):
            yield f"  {len(outcomes) - held} cells were not as they should be"

    def _longest_s(self) -> float:
        return max((o.longest_step_s for o in self.outcomes if o.cell.victim != "trainer"), default=0.0)

    def _score(self, victim: str, kind: str) -> str:
        made = [o for o in self.outcomes if (o.cell.victim, o.cell.kind) == (victim, kind)]
        return f"{sum(not o.problems for o in made)}/{len(made)}" if made else "-"

    @property
    def is_equal(self) -> bool:
        """Whether lost and declared lost are equal, in each cell and with that in all."""
        return all(o.account.lost == o.account.declared for o in self.outcomes)

    @property
    def is_good(self) -> bool:
        """Whether that is so, and each cell was as it should be."""
        return self.is_equal and not any(o.problems for o in self.outcomes)


def deck(seed: int, minutes: float) -> Iterator[tuple[Cell, str]]:
    """All cells in random order, again and again, until the time is over."""
    order, end_s = random.Random(seed), time.monotonic() + minutes * 60
    while time.monotonic() < end_s:
        everything = list(cells())
        order.shuffle(everything)
        for cell, moment in everything:
            if cell.full_length_s < end_s - time.monotonic():
                yield cell, moment


def _work(dealt: Iterator[tuple[Cell, str]], lock: threading.Lock, ended: threading.Event, report: Report) -> None:
    while not ended.is_set():
        with lock:
            cell = next(dealt, None)
        if cell is None:
            return
        outcome = run_cell(*cell, FULL)
        if ended.is_set():
            return
        report.outcomes.append(outcome)
        a = outcome.account
        mark = "" if not outcome.problems else f"  FAILED: {outcome.problems[0][:200]}"
        elapsed_s = time.monotonic() - report.began_s
        row = f"{outcome.name:40} counted out {a.sent:7} lost {a.lost:6} declared {a.declared:6}{mark}"
        print(f"{elapsed_s:6.0f} s  {row}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="no cell begins after that (default: 10)")
    parser.add_argument("--seed", type=int, default=1, help="of the order (default: 1)")
    parser.add_argument("--lanes", type=int, default=2 * (os.cpu_count() or 1), help="cells at a time")
    arguments = parser.parse_args()
    if arguments.minutes <= 0 or arguments.lanes < 1:
        parser.error("--minutes must be above 0, and --lanes at least 1")
    report, ended = Report(), threading.Event()
    work = deck(arguments.seed, arguments.minutes), threading.Lock(), ended, report
    lanes = [threading.Thread(target=_work, args=work, daemon=True) for _ in range(arguments.lanes)]
    for lane in lanes:
        lane.start()
    try:
        for lane in lanes:
            while lane.is_alive():
                lane.join(0.2)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        ended.set()
        print("\nending; cells that are not over do not count", file=sys.stderr)
        end_all()
    for line in report.lines(arguments.seed, arguments.lanes):
        print(line)
    return 0 if report.is_good and report.outcomes else 1


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    # Lanes that were interrupted wait for processes that are gone.
    os._exit(status)
