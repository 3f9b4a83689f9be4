"""One cell of the matrix, run with real processes: what came of it, and what of that should not be."""

from __future__ import annotations

import re
import time
import traceback
from dataclasses import dataclass, field, replace

from faults.account import Account, take_account
from faults.acts import ACTS, PROCESSES, Act
from faults.rows import Cell
from faults.stage import FULL, QUICK, Scale, Stage, hold, staged
from faults.witness import WITNESSES, Evidence
from powerd_analytics.run_tables.verification import verify_run
from powerd_client.host.hostclock import now_ns
from powerd_client.runs.recover import recover

BRIEF_S = 0.3
LONGEST_STEP_S = 1.5
"""A step of the training takes 10 ms; on a busy machine it may wait for its turn, but never for the recorder."""
CUT_S = 0.2
STRUCK_TRAINER = ("kill", "restart")


@dataclass(slots=True)
class Outcome:
    """What came of one run of one cell."""

    cell: Cell
    moment: str
    account: Account = field(default_factory=Account)
    fault_s: float = 0.0
    t_fault_ns: int = 0
    """When the fault began, on the host's clock."""
    evidence: float = 0.0
    """What the fault's witness counted, see `faults.witness`."""
    steps: int = 0
    longest_step_s: float = 0.0
    clients_missing: int = 0
    clients_frames: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.cell.name}-{self.moment}"


def run_cell(cell: Cell, moment: str, scale: Scale = QUICK, act: Act | None = None) -> Outcome:
    """Record a training, strike, and look at what is there. Never raises for what the run did wrong.

    ``act`` takes the place of the cell's own.
    """
    if cell.full_length_s and scale.length_s == FULL.length_s:
        scale = replace(scale, length_s=cell.full_length_s)
    outcome = Outcome(cell, moment)
    stage = Stage(scale, **dict(cell.stage))  # type: ignore[arg-type]
    try:
        with staged(stage):
            _play(stage, outcome, scale, act or ACTS[cell.victim, cell.kind])
            _look(stage, outcome)
    except Exception as error:
        # One cell that breaks must not end a suite of hours.
        outcome.problems.append(f"{type(error).__name__}: {error} ({traceback.format_exc().splitlines()[-2].strip()})")
    outcome.problems += stage.problems
    return outcome


def evidence(cell: Cell, stage: Stage) -> Evidence:
    """The witness of a cell's fault on a stage that is open and has a training."""
    stands = WITNESSES[cell.victim, cell.kind].stands
    return Evidence(cell, stage, PROCESSES[stands] if stands else None)


def _play(stage: Stage, outcome: Outcome, scale: Scale, act: Act) -> None:
    cell, moment = outcome.cell, outcome.moment
    trainer = stage.train()
    if moment != "start":
        stage.await_steps(scale.before_steps)
    began, outcome.t_fault_ns = time.monotonic(), now_ns()
    length_s = BRIEF_S if cell.is_brief else scale.length_s
    with evidence(cell, stage) as found, act(stage):
        found.look()
        if moment == "end" and stage.trainer is not None:
            stage.trainer.tell("finish")
        hold(length_s)
        found.look()
    outcome.fault_s = time.monotonic() - began
    is_struck = cell.victim == "trainer" and cell.kind in STRUCK_TRAINER
    if moment != "end" and not is_struck:
        stage.await_flow()
        stage.await_steps(scale.after_steps)
    status = stage.finish_training() if trainer.is_alive else trainer.ended()
    if is_struck:
        stage.await_file()
    elif status:
        outcome.problems.append(f"the training ended with status {status}: {trainer.said[-500:]}")
    if stage.disk.exists():
        stage.disk.unlink()
    found.look()
    outcome.evidence = found.amount
    outcome.problems += found.problems(length_s)


def _look(stage: Stage, outcome: Outcome) -> None:
    cell, problems = outcome.cell, outcome.problems
    if stage.has_journal() and not recover(stage.out).readings:
        problems.append("there is no reading in what is recovered")
    account = outcome.account = take_account(stage.out, stage.ledger)
    problems += account.problems
    # Where powerd's processes are not what is struck, a source that sleeps is the fault of a busy machine. Garbage
    # reaches the server alone, and the sources have processes of their own.
    is_struck = cell.victim.startswith("powerd") and cell.kind != "garbage"
    bound_s = _bound_s(outcome) + (0.0 if is_struck else account.slept_s)
    if account.lost_s > bound_s:
        problems.append(f"{account.lost_s:.2f} s are lost, at most {bound_s:.2f} s may be")
    if account.lost != account.declared:
        problems.append(f"{account.lost} readings are lost, {account.declared} declared lost")
    _check_training(stage, outcome)
    problems += [
        f"joules info --check: {f.check}: {f.text[-600:]}" for f in verify_run(stage.out) if f.state == "wrong"
    ]
    further = stage.further_clients()
    outcome.clients_frames, outcome.clients_missing = sum(further["frames"]), sum(further["missing"])
    # A client beside the recorder must not notice what happens to it or to its way.
    if outcome.clients_missing and cell.victim in ("recorder", "trainer", "network", "disk"):
        causes = ", ".join(sorted({c for of_client in further["causes"] for c in of_client})) or "no cause is told"
        problems.append(f"other clients miss {outcome.clients_missing} numbers ({causes})")
    if stage.scale.clients and not outcome.clients_frames:
        problems.append("other clients received nothing")
    said = stage.said()
    if "Traceback" in said:
        problems.append(f"a traceback: {said[said.index('Traceback') :][-1500:]}")
    text = "\n".join([*account.said, said])
    is_silent = cell.is_silent_at_end and outcome.moment == "end" and not account.lost
    if cell.says and not is_silent and not re.search(cell.says, text):
        problems.append(f"nobody said anything like {cell.says!r}: {text[-1500:]}")


def _bound_s(outcome: Outcome) -> float:
    rest_s = max(outcome.account.t_stop_ns - outcome.t_fault_ns, 0) / 1e9
    return outcome.cell.bound(outcome.moment).seconds(outcome.fault_s, rest_s)


def _check_training(stage: Stage, outcome: Outcome) -> None:
    cell, problems, account = outcome.cell, outcome.problems, outcome.account
    assert stage.trainer is not None
    closing = stage.trainer.told("closing")
    if not closing:
        outcome.steps = stage.steps
        if cell.victim != "trainer":
            problems.append("the training did not come to its end")
        elif account.steps < stage.steps:
            problems.append(f"{stage.steps} steps were made, {account.steps} are in the file")
        return
    outcome.steps, outcome.longest_step_s = int(closing[-1]["steps"]), float(closing[-1]["longest_s"])
    cut_s = (int(closing[-1]["t_ns"]) - account.t_stop_ns) / 1e9
    if cut_s > _bound_s(outcome) + CUT_S:
        problems.append(f"the file ends {cut_s:.2f} s before the training did")
    if cell.victim != "trainer" and outcome.longest_step_s > LONGEST_STEP_S:
        problems.append(f"a step of the training took {outcome.longest_step_s:.2f} s")
    keeps_marks = (cell.victim, cell.kind) not in {("trainer", "full"), ("trainer", "garbage")}
    if keeps_marks and account.steps != outcome.steps:
        problems.append(f"{outcome.steps} steps were made, {account.steps} are in the file")
