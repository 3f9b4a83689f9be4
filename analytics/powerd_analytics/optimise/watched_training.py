"""A training carried out for real: recorded, watched epoch by epoch, held at a power limit, and stopped.

A training says after every epoch how good it is (`Meter.result`). Each of these events is an observation for the
policy, which may stop the training or set another limit. Limits are profiled over whole epochs, one after the other,
each from the first end of an epoch on at which the device follows it; their joules are worked out by the estimator of
all tables, in a thread of its own. What a training took in the end is what its run file says.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from powerd_analytics.optimise.policy import (
    Change,
    Decision,
    Ending,
    EpochCost,
    Go,
    Job,
    Observation,
    Outcome,
    Stop,
    TrainingSettings,
    Trial,
)
from powerd_analytics.run_tables.closing_lines import run_totals
from powerd_analytics.runs.run import read_run
from powerd_client.energies.live_energy import LiveRun
from powerd_client.energies.phase import RESULT
from powerd_client.host.hostclock import now_ns
from powerd_client.host.log import tell
from powerd_client.journals.journal import run_of
from powerd_client.journals.marks import MarkWriter
from powerd_client.knobs.control import SETTLE_S, Hold
from powerd_client.knobs.power_choice import POWER_CHOICE
from powerd_client.record.recording import end_command, record_command
from powerd_core.errors import AnalysisError, ConfigError, ControlError
from powerd_core.text import did_you_mean

_LOOK_S = 0.02
_READINGS_S = 5.0
"""How long to wait for the last readings of an epoch."""
_AT_ONCE = 0.02
"""A change that has settled within this share of an epoch counts for the whole epoch."""

Decide = Callable[[Trial, Observation], Decision]


@dataclass(frozen=True, slots=True)
class Command:
    """A training, and how it is recorded."""

    words: Sequence[str]
    """``{batch_size}`` in them is replaced."""
    metric: str
    """Its name in the events of the training."""
    device: str | None = None
    """Whose joules count; those of the GPUs, else of all devices, without it."""
    url: Sequence[str] = ()
    window_s: float = 2.0
    """The least length of what profiles a limit."""
    settle_s: float = SETTLE_S

    def counts(self, devices: Sequence[str]) -> list[str]:
        """The devices among these whose joules count."""
        own = [device for device in devices if self.device is None or device == self.device]
        return [device for device in own if device.startswith("gpu")] or own


def why_no_limits(caps_w: Sequence[float]) -> str:
    """Why the limits cannot be set here; empty where they can. Raises `ConfigError` for a limit that the device has
    not."""
    hold = Hold({"power_cap_w": max(caps_w)}, name="joules optimise")
    try:
        hold.acquire().set(power_cap_w=min(caps_w))
    except ControlError as error:
        return str(error)
    finally:
        hold.release()
    return ""


def train(
    trial: Trial, job: Job, command: Command, decide: Decide, out: Path
) -> tuple[int, Outcome, list[Observation]]:
    """Record one training: the status of its command, how it ended, and what the policy was not asked about, since the
    training had ended. Raises what `record_command` raises, and `AnalysisError` where no joules are known."""
    watch = _Watch(trial, job, command, decide)
    if isinstance(watch.first(), Stop):
        return 0, Outcome("stopped", 0, 0.0, 0.0, trial.settings), []
    words = [word.replace("{batch_size}", str(trial.settings.batch_size)) for word in command.words]
    status = record_command(
        words, url=list(command.url) or None, out=out, overwrite=False, quiet=True, hold=watch.hold, supervise=watch
    )
    observations = watch.whole(out)
    outcome = outcome_of(observations, job, watch.settings, ended=watch.ended, broke=status != 0)
    return status, outcome, [o for o in observations if o.epoch > watch.epoch]


def outcome_of(
    observations: Sequence[Observation],
    job: Job,
    settings: TrainingSettings,
    *,
    ended: Ending | None = None,
    broke: bool,
) -> Outcome:
    """How a training ended, by what was seen of it; ``ended`` is why it was ended from here, ``broke`` that its command
    failed."""
    if not observations or observations[-1].epoch < 1:
        return Outcome("lost", 0, 0.0, 0.0, settings)
    last = observations[-1]
    is_met = any(o.metric is not None and job.target.is_met(o.metric) for o in observations)
    ending: Ending = "reached" if is_met else ended or ("lost" if broke else "failed")
    return Outcome(ending, last.epoch, last.energy_j or 0.0, last.time_s, last.settings)


@dataclass(frozen=True, slots=True)
class _Window:
    """Whole epochs under one limit."""

    cap_w: float
    epochs: int
    time_s: float
    energy_j: Future[float | None]


@dataclass(slots=True)
class _Profiling:
    """Limits that are still to be measured, the first one being in force, and what was measured."""

    caps_w: list[float]
    begin_ns: int = 0
    """Of the window; 0 until it has begun."""
    begin_epoch: int = 0
    asked_w: list[float] = field(default_factory=list)
    windows: list[_Window] = field(default_factory=list)
    is_told: bool = False

    def is_over(self) -> bool:
        """Whether all limits were measured, and their joules are known."""
        return not self.caps_w and all(window.energy_j.done() for window in self.windows)

    def costs(self) -> dict[float, EpochCost]:
        """Of the limits whose joules are known."""
        return {
            w.cap_w: EpochCost(joules / w.epochs, w.time_s / w.epochs)
            for w in self.windows
            if w.energy_j.done() and (joules := w.energy_j.result()) is not None
        }


class _Watch:
    """Follows one training, asks the policy, and does what it decides."""

    def __init__(self, trial: Trial, job: Job, command: Command, decide: Decide) -> None:
        self.trial, self._job, self._command, self._decide = trial, job, command, decide
        self.hold: Hold | None = None
        self.ended: Ending | None = None
        self.settings = TrainingSettings(trial.settings.batch_size)
        """In force."""
        self.epoch = 0
        """The last one that the policy was asked about."""
        self._profiling = _Profiling([])
        self._ask_at = 1
        self._best: float | None = None
        self._seen = 0
        self._begin_ns = self._last_ns = self._settled_ns = 0
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="joules-optimise")
        self._live: LiveRun | None = None
        self._journal: Path | None = None
        self._events: MarkWriter | None = None
        if job.power_caps_w:
            self._profiling = _Profiling(list(trial.profile_caps_w))
            wanted_w = trial.profile_caps_w[0] if trial.profile_caps_w else trial.settings.power_cap_w
            if wanted_w is not None:
                self.settings = TrainingSettings(trial.settings.batch_size, wanted_w)
                self.hold = Hold({"power_cap_w": wanted_w}, name="joules optimise", settle_s=command.settle_s)

    def first(self) -> Decision:
        """What the policy says before the training begins, where nothing is to be profiled before."""
        if self._profiling.caps_w:
            return Go()
        decision = self._asked(Observation(0, 0.0, 0.0, self.settings))
        if isinstance(decision, Change) and self.hold is not None and decision.settings.power_cap_w is not None:
            self.settings = decision.settings
            cap_w = decision.settings.power_cap_w
            self.hold = Hold({"power_cap_w": cap_w}, name="joules optimise", settle_s=self._command.settle_s)
            decision = self._asked(Observation(0, 0.0, 0.0, self.settings))
        return decision

    def watch(self, process: subprocess.Popen[bytes], journal: Path) -> int:
        """Until the training has ended; its status."""
        self._live, self._begin_ns = LiveRun(journal, run_of(journal), 0), now_ns()
        self._last_ns, self._journal = self._begin_ns, journal
        while (status := process.poll()) is None:
            for t_ns, epoch, value in self._new_epochs():
                self._take(t_ns, epoch, value)
                if self.ended is not None:
                    return end_command(process)
            time.sleep(_LOOK_S)
        return status

    def conclude(self) -> None:
        """Wait for the joules of the profile."""
        self._worker.shutdown()
        if self._events is not None:
            self._events.close()
        p = self._profiling
        if p.caps_w and not p.windows:
            tell(
                f"no window of a limit was long enough: each takes {self._command.window_s:g} s of whole epochs, and "
                f"{self._seen} epochs came; make epochs or --max-epochs larger, or --window smaller"
            )
        self._tell_other_metrics()

    def _tell_other_metrics(self) -> None:
        """Say which results came where none had the awaited name."""
        if self._seen or self._live is None:
            return
        names = sorted({name for _, values in self._live.events(RESULT) for name in values} - {"epoch"})
        if names:
            awaited = self._command.metric
            near = did_you_mean(awaited, names)
            tell(
                f"the training says {', '.join(names)}, and {awaited!r} was awaited with an epoch: give --metric{near}"
            )

    def whole(self, out: Path) -> list[Observation]:
        """All epochs of the recorded training. Joules and seconds until each are those of the whole run by its share of
        the time. Raises `AnalysisError` where no joules are known."""
        run = read_run(out)
        rows = run_totals(run)
        counted = self._command.counts([row.device for row in rows])
        joules = [row.energy_j for row in rows if row.device in counted]
        if not joules or None in joules:
            what = self._command.device or "its devices"
            raise AnalysisError(f"{out}: no joules are known of {what}: nothing was learnt from it")
        energy_j, time_s = sum(j for j in joules if j is not None), rows[0].time_s
        epochs = _epochs([(event.t_ns, event.values) for event in run.results], self._command.metric)
        best, observations = None, []
        for t_ns, epoch, value in epochs:
            best = self._better(best, value)
            share = (t_ns - run.begin_ns) / (run.end_ns - run.begin_ns) if t_ns != epochs[-1][0] else 1.0
            observations.append(
                Observation(epoch, share * energy_j, share * time_s, self.settings, best, *self._profile_to_tell())
            )
        return observations

    def _better(self, best: float | None, value: float) -> float:
        if best is None:
            return value
        return min(best, value) if self._job.target.is_lower_better else max(best, value)

    def _new_epochs(self) -> list[tuple[int, int, float]]:
        assert self._live is not None
        every = _epochs(self._live.events(RESULT), self._command.metric)
        new, self._seen = every[self._seen :], len(every)
        return new

    def _take(self, t_ns: int, epoch: int, value: float) -> None:
        """One epoch has ended."""
        self._best = self._better(self._best, value)
        if self._job.target.is_met(self._best):
            return  # it ends by itself
        self._profile(t_ns, epoch)
        self._last_ns = t_ns
        if epoch >= self._job.max_epochs:
            self.ended = "failed"
            return
        is_news = self._profiling.is_over() and not self._profiling.is_told
        if epoch < self._ask_at and not is_news:
            return
        profile = self._profile_to_tell() if is_news else ({}, ())
        self._profiling.is_told = self._profiling.is_over()
        time_s = (t_ns - self._begin_ns) / 1e9
        decision = self._asked(Observation(epoch, None, time_s, self._in_force(), self._best, *profile))
        if isinstance(decision, Change) and not self._profiling.caps_w and self._set(decision.settings):
            decision = self._asked(Observation(epoch, None, time_s, self._in_force(), self._best, *profile))
        self._emit(decision, epoch)
        self.epoch = epoch
        self._ask_at = epoch + 1
        if isinstance(decision, Stop):
            self.ended = "stopped"
        elif isinstance(decision, Go) and decision.until is not None:
            self._ask_at = decision.until

    def _emit(self, decision: Decision, epoch: int) -> None:
        """Put a decision into the run, as the chooser inside a training does."""
        if self._events is None and self._journal is not None:
            with contextlib.suppress(OSError):
                self._events = MarkWriter(self._journal)
        if self._events is not None and not isinstance(decision, Go):
            values = {
                "epoch": epoch,
                "decision": type(decision).__name__.lower(),
                "power_cap_w": self.settings.power_cap_w,
            }
            self._events.event(POWER_CHOICE, values)

    def _asked(self, observation: Observation) -> Decision:
        """What the policy decides; to go on where it cannot be asked."""
        try:
            return self._decide(self.trial, observation)
        except ConfigError as error:
            tell(f"the training goes on without its policy: {error}")
            return Go()

    def _in_force(self) -> TrainingSettings:
        if self.hold is not None and self.hold.problem:
            self.settings = TrainingSettings(self.settings.batch_size)
        return self.settings

    def _set(self, settings: TrainingSettings) -> bool:
        if self.hold is None or settings.power_cap_w is None or not self.hold.set(power_cap_w=settings.power_cap_w):
            return False
        self.settings = settings
        self._settled_ns = now_ns() + round(self._command.settle_s * 1e9)
        return True

    # -- the profile ---------------------------------------------------------------------------------------------------

    def _profile(self, t_ns: int, epoch: int) -> None:
        """Begin or end the window of a limit at the end of an epoch."""
        p = self._profiling
        if not p.caps_w or self.hold is None:
            return
        if p.begin_ns:
            if t_ns - p.begin_ns < self._command.window_s * 1e9:
                return
            is_violated = self.hold.verdict.is_violated
            begin_ns, cap_w = p.begin_ns, p.caps_w.pop(0)
            p.asked_w.append(cap_w)
            if not is_violated:
                joules = self._worker.submit(self._measured_j, begin_ns, t_ns)
                p.windows.append(_Window(cap_w, epoch - p.begin_epoch, (t_ns - begin_ns) / 1e9, joules))
            p.begin_ns = 0
            while p.caps_w and not self._set(TrainingSettings(self.settings.batch_size, p.caps_w[0])):
                p.asked_w.append(p.caps_w.pop(0))
        if p.caps_w and self._settled_ns - t_ns <= _AT_ONCE * (t_ns - self._last_ns):
            p.begin_ns, p.begin_epoch = t_ns, epoch

    def _profile_to_tell(self) -> tuple[dict[float, EpochCost], tuple[float, ...]]:
        """What was measured, unless the policy has it already, and the limits that were asked for."""
        p = self._profiling
        costs = {} if p.is_told else p.costs()
        return costs, tuple(p.asked_w) if costs else ()

    def _measured_j(self, begin_ns: int, end_ns: int) -> float | None:
        """Joules of what counts between two moments; None where they are not known."""
        assert self._live is not None
        every = {e.device: e for e in self._live.between(begin_ns, end_ns, _READINGS_S)}
        energies = [every[device] for device in self._command.counts(list(every))]
        if not energies or any(e.energy_j is None or e.is_lower_bound or e.is_so_far for e in energies):
            return None
        return sum(e.energy_j or 0.0 for e in energies)


def _epochs(events: Sequence[tuple[int, Mapping[str, Any]]], metric: str) -> list[tuple[int, int, float]]:
    """Moment, epoch and metric of each event that has them, epochs rising."""
    found: list[tuple[int, int, float]] = []
    for t_ns, values in events:
        with contextlib.suppress(KeyError, TypeError, ValueError):
            epoch, value = int(values["epoch"]), float(values[metric])
            if epoch > (found[-1][1] if found else 0):
                found.append((t_ns, epoch, value))
    return found
