"""Traces: trainings that were carried out once, as an environment in which any policy can be tried.

A trace has, for each batch size, how many epochs each of several trainings took to the target, and for each batch size
and power limit what one epoch takes. A training in a trace is one of those, drawn at random.

`read_zeus` reads the public traces of Zeus (You, Chung and Chowdhury, NSDI'23). Its jobs, targets and default batch
sizes are those of the published evaluation. `read_runs` reads a table with one row for each training: what
`joules query` exports of a campaign, or anybody's own.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from powerd_analytics.frame.means import mean_of_numbers
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
    Target,
    Training,
    TrainingSettings,
    Trial,
)
from powerd_core.errors import AnalysisError
from powerd_core.text import printable

NEVER = math.inf


@dataclass(frozen=True, slots=True)
class LearningCurve:
    """One traced training."""

    epochs: float
    """To the target; `NEVER` where it was not reached."""
    passed: tuple[tuple[float, float], ...] = ()
    """Epoch and metric of each easier target on the way, by epoch."""


@dataclass(frozen=True, slots=True)
class JobTrace:
    """All that is known of one job on one device."""

    job: Job
    curves: Mapping[int, tuple[LearningCurve, ...]]
    """By batch size."""
    costs: Mapping[int, Mapping[float, EpochCost]]
    """By batch size and power limit."""
    u95_shares: Mapping[TrainingSettings, float | None] | None = None
    """Of trainings that are alike but for noise, as the runs of a campaign: U95 of the mean energy, a share of it; None
    from a single run. Without it the epochs' spread tells."""

    def with_eta(self, eta: float) -> JobTrace:
        return replace(self, job=replace(self.job, eta=eta))

    @property
    def settings(self) -> list[TrainingSettings]:
        """All that were traced, by batch size and then by limit."""
        return [TrainingSettings(b, cap) for b in self.job.batch_sizes for cap in sorted(self.costs[b])]

    def expected_epochs(self, batch_size: int) -> float:
        """Mean epochs that reaching the target takes. Trainings that fail count with all epochs that they may take;
        `NEVER` where all of them do."""
        drawn = [curve.epochs for curve in self.curves[batch_size]]
        reached = [epochs for epochs in drawn if epochs <= self.job.max_epochs]
        if not reached:
            return NEVER
        return (sum(reached) + self.job.max_epochs * (len(drawn) - len(reached))) / len(reached)

    def expected(self, settings: TrainingSettings) -> EpochCost:
        """Mean energy and time to the target; infinite where it is never reached."""
        epochs = self.expected_epochs(settings.batch_size)
        caps = self.costs[settings.batch_size]
        cap_w = max(caps) if settings.power_cap_w is None else settings.power_cap_w
        cost = caps[cap_w]
        return EpochCost(epochs * cost.energy_j, epochs * cost.time_s)

    def expected_cost_j(self, settings: TrainingSettings) -> float:
        expected = self.expected(settings)
        if expected.time_s == NEVER:
            return NEVER  # where eta leaves out energy or time, the sum would be no number
        return self.job.cost_j(expected.energy_j, expected.time_s)


# ---- the environment -----------------------------------------------------------------------------------------------


class TraceEnvironment:
    """Trainings drawn from a trace; ``at`` gives the job as it is at each recurrence, where it changes."""

    def __init__(self, trace: JobTrace, seed: int, at: Callable[[int], JobTrace] | None = None) -> None:
        self.trace = trace
        self._at = at
        self._rng = np.random.default_rng(seed)

    def start(self, trial: Trial) -> Training:
        trace = self.trace if self._at is None else self._at(trial.recurrence)
        batch_size = trial.settings.batch_size
        if batch_size not in trace.curves:
            raise AnalysisError(f"{trace.job.name}: batch size {batch_size} is not in the trace")
        curves = trace.curves[batch_size]
        # As pandas draws a row, so that a seed means the same here as in the simulator of Zeus.
        curve = curves[int(self._rng.choice(len(curves), size=1, replace=False)[0])]
        return TraceTraining(trace, trial, curve)


class TraceTraining:
    """One training of a trace. A limit that was not traced counts as the nearest that was, as a driver clamps it."""

    def __init__(self, trace: JobTrace, trial: Trial, curve: LearningCurve) -> None:
        self._job, self._curve = trace.job, curve
        self._costs = trace.costs[trial.settings.batch_size]
        self._epoch = 0
        self._profile: dict[float, EpochCost] = {}
        self._asked_w = trial.profile_caps_w
        self._set(trial.settings)
        for cap in trial.profile_caps_w:
            nearest = self._nearest(cap)
            self._profile[nearest] = self._costs[nearest]
        self._base, self._base_epoch = EpochCost(0.0, 0.0), 0
        if self._profile:
            # The first epoch is divided evenly among the limits.
            profiled = self._profile.values()
            self._base = EpochCost(fmean(c.energy_j for c in profiled), fmean(c.time_s for c in profiled))
            self._base_epoch = 1

    def begin(self) -> Observation:
        return self._observation()

    def obey(self, decision: Decision) -> Observation | Outcome:
        if isinstance(decision, Stop):
            return self._outcome("stopped")
        if isinstance(decision, Change):
            if self._epoch > self._base_epoch:
                self._base, self._base_epoch = self._spent(), self._epoch
            self._set(decision.settings)
            return self._observation()
        return self._go(decision)

    def _go(self, decision: Go) -> Observation | Outcome:
        until = decision.until if decision.until is not None else self._epoch + 1
        if until <= self._epoch:
            raise AnalysisError(f"a policy wants to be asked again at epoch {until}, which has passed")
        until = min(until, self._job.max_epochs)
        if self._curve.epochs <= until:
            self._epoch = int(self._curve.epochs)
            return self._outcome("reached")
        self._epoch = until
        return self._observation() if until < self._job.max_epochs else self._outcome("failed")

    def _set(self, settings: TrainingSettings) -> None:
        cap = self._nearest(settings.power_cap_w if settings.power_cap_w is not None else self._job.max_power_w)
        self._settings = replace(settings, power_cap_w=cap)
        self._cost = self._costs[cap]

    def _nearest(self, cap_w: float) -> float:
        return cap_w if cap_w in self._costs else min(self._costs, key=lambda cap: abs(cap - cap_w))

    def _spent(self) -> EpochCost:
        if self._epoch == 0:
            return EpochCost(0.0, 0.0)
        since = self._epoch - self._base_epoch
        base, cost = self._base, self._cost
        return EpochCost(base.energy_j + cost.energy_j * since, base.time_s + cost.time_s * since)

    def _observation(self) -> Observation:
        spent = self._spent()
        metric = next((m for epoch, m in reversed(self._curve.passed) if epoch <= self._epoch), None)
        return Observation(
            self._epoch, spent.energy_j, spent.time_s, self._settings, metric, self._profile, self._asked_w
        )

    def _outcome(self, ending: Ending) -> Outcome:
        spent = self._spent()
        return Outcome(ending, self._epoch, spent.energy_j, spent.time_s, self._settings)


# ---- the public traces of Zeus -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Published:
    """A job of the published evaluation. ``default``: its batch size, or the greatest that fits the device."""

    optimizer: str
    target: Target
    max_epochs: int
    default: int


_ZEUS_JOBS = {
    "cifar100": _Published("adadelta", Target(0.6), 100, 1024),
    "imagenet": _Published("adadelta", Target(0.65), 100, 256),
    "squad": _Published("adamw", Target(84.0), 6, 32),
    "librispeech": _Published("adamw", Target(40.0, is_lower_better=True), 16, 256),
    "movielens-1m": _Published("adam", Target(0.41), 100, 1024),
    "sentiment140": _Published("adamw", Target(0.84), 10, 128),
}


def zeus_gpus(folder: Path) -> list[str]:
    """The devices that a folder of Zeus' traces has."""
    return sorted(path.stem.removeprefix("summary_power_") for path in folder.glob("summary_power_*.csv"))


def read_zeus(folder: Path, gpu: str, eta: float = 0.5) -> list[JobTrace]:
    """All jobs of one device. Raises `AnalysisError` where there are none."""
    if gpu not in zeus_gpus(folder):
        there = ", ".join(zeus_gpus(folder)) or "none"
        raise AnalysisError(f"{folder}: no traces of {gpu!r} (summary_power_{gpu}.csv); there are: {there}")
    train, power = folder / "summary_train.csv", folder / f"summary_power_{gpu}.csv"
    trainings = _rows(train, ("dataset", "optimizer", "batch_size", "learning_rate", "run", "target_epoch",
                              "target_metric"))  # fmt: skip
    powers = _rows(power, ("dataset", "optimizer", "batch_size", "power_limit", "time_per_epoch", "average_power"))
    for number, row in enumerate(powers, 1):
        for name in ("batch_size", "power_limit", "time_per_epoch", "average_power"):
            _number(row, name, power, number)
    for number, row in enumerate(trainings, 1):
        _number(row, "batch_size", train, number)
        if row["target_epoch"].lower() not in ("", "nan"):
            _number(row, "target_epoch", train, number)
        _number(row, "target_metric", train, number, is_positive=False)
    # Zeus takes the greatest limit of the whole trace, whatever a job was traced with.
    max_power_w = max(float(row["power_limit"]) for row in powers)
    traces = []
    for name, published in _ZEUS_JOBS.items():
        own = [r for r in trainings if (r["dataset"], r["optimizer"]) == (name, published.optimizer)]
        costs: dict[int, dict[float, EpochCost]] = {}
        for row in powers:
            if (row["dataset"], row["optimizer"]) == (name, published.optimizer):
                time_s = float(row["time_per_epoch"])
                cost = EpochCost(time_s * float(row["average_power"]), time_s)
                costs.setdefault(int(float(row["batch_size"])), {})[float(row["power_limit"])] = cost
        curves = _zeus_curves(own, published.target)
        both = tuple(sorted(set(costs) & set(curves)))
        if not both:
            continue
        caps = tuple(sorted({cap for batch_size in both for cap in costs[batch_size]}))
        default = TrainingSettings(min(published.default, both[-1]), max(caps))
        job = Job(name, both, caps, default, published.target, published.max_epochs, max_power_w, eta)
        traces.append(JobTrace(job, {b: curves[b] for b in both}, {b: costs[b] for b in both}))
    if not traces:
        raise AnalysisError(f"{folder}: none of Zeus' jobs is in these traces")
    return traces


def _zeus_curves(rows: Iterable[Mapping[str, str]], target: Target) -> dict[int, tuple[LearningCurve, ...]]:
    """Curves by batch size, in the order of the file: a draw is a place in it."""
    trainings: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    for row in rows:
        key: tuple[str, ...] = (row["batch_size"], row["learning_rate"], row["run"])
        epoch = float(row["target_epoch"] or "nan")
        trainings.setdefault(key, []).append((NEVER if math.isnan(epoch) else epoch, float(row["target_metric"])))
    curves: dict[int, list[LearningCurve]] = {}
    for key, passed in trainings.items():
        at_target = [epoch for epoch, metric in passed if metric == target.metric]
        easier = sorted((e, m) for e, m in passed if e < NEVER and not target.is_met(m))
        for epochs in at_target:
            curves.setdefault(int(float(key[0])), []).append(LearningCurve(epochs, tuple(easier)))
    return {batch_size: tuple(of_size) for batch_size, of_size in curves.items()}


def _rows(path: Path, needed: Sequence[str]) -> list[dict[str, str]]:
    """The rows of a CSV, all cells of the columns that are ``needed`` among them. Raises `AnalysisError`."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file, restval=""))
    except OSError as error:
        raise AnalysisError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, csv.Error) as error:
        raise AnalysisError(f"{path} is no CSV: {printable(str(error), limit=200)}") from error
    missing = [name for name in needed if not rows or name not in rows[0]]
    if missing:
        raise AnalysisError(f"{path}: there are no columns {', '.join(missing)}")
    return rows


_MOST = 1e15
"""No number of a trace is larger, and none above 0 is smaller than its inverse."""


def _number(row: Mapping[str, str], name: str, path: Path, number: int, *, is_positive: bool = True) -> float:
    """A number of a row. Raises `AnalysisError`, which names the row."""
    try:
        value = float(row[name])
    except ValueError:
        value = math.nan
    if not abs(value) < _MOST or (is_positive and not value > 1 / _MOST):
        cell, above = printable(str(row[name]), limit=40), " above 0" if is_positive else ""
        hint = ": of a training without a cap, the card's default limit" if name == "power_cap_w" else ""
        raise AnalysisError(f"{path}, row {number}: {name} is {cell!r}: it must be a number{above}{hint}")
    return value


# ---- trainings of one's own ------------------------------------------------------------------------------------------

_REACHED = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_OF_RUNS = ("job", "batch_size", "power_cap_w", "epochs", "energy_j", "time_s")


def read_runs(path: Path, eta: float = 0.5) -> list[JobTrace]:
    """Traces of a table, CSV or Parquet, with a row for each training: job, batch_size, power_cap_w, epochs, energy_j,
    time_s, and ``reached`` (true or false) where some did not reach their target.

    The first row of a job has its default batch size. TrainingSettings that nobody tried are not in the trace. Raises
    `AnalysisError`.
    """
    rows = _parquet_rows(path) if path.suffix == ".parquet" else _rows(path, _OF_RUNS)
    trainings: dict[str, list[_Training]] = {}
    for number, row in enumerate(rows, 1):
        epochs, energy_j, time_s, cap_w, size = (
            _number(row, name, path, number) for name in ("epochs", "energy_j", "time_s", "power_cap_w", "batch_size")
        )
        reached = row.get("reached", "true").strip().lower()
        if reached not in _REACHED:
            cell = printable(reached, limit=40)
            raise AnalysisError(f"{path}, row {number}: reached is {cell!r}, neither true nor false")
        if size != int(size):
            raise AnalysisError(f"{path}, row {number}: batch_size is no whole number")
        training = _Training(int(size), cap_w, epochs, energy_j, time_s, _REACHED[reached])
        trainings.setdefault(row["job"], []).append(training)
    if not trainings:
        raise AnalysisError(f"{path}: there are no trainings in this table")
    return [_trace_of(name, own, eta) for name, own in trainings.items()]


def traces_of_runs(rows: Iterable[Mapping[str, Any]], where: str, eta: float = 0.5) -> list[JobTrace]:
    """Traces of whole trainings without epochs, as a campaign or an index has them: rows with ``energy_j``, ``time_s``,
    ``power_cap_w`` and, where there are any, ``batch_size`` (else 1) and ``model``. The default is the most frequent
    first row's batch size with the greatest cap. Raises `AnalysisError` for none with a cap."""
    found: dict[str, dict[tuple[int, float], list[tuple[float, float]]]] = {}
    for row in rows:
        energy_j, time_s, cap_w = (_float_of(row.get(name)) for name in ("energy_j", "time_s", "power_cap_w"))
        if energy_j > 0 and time_s > 0 and cap_w > 0:
            size = _float_of(row.get("batch_size"))
            place = int(size) if size >= 1 else 1, cap_w
            found.setdefault(str(row.get("model") or "training"), {}).setdefault(place, []).append((energy_j, time_s))
    if not found:
        raise AnalysisError(f"{where}: no run with joules, seconds and a power cap in force")
    return [_trace_of_runs(name, own, eta) for name, own in found.items()]


def _float_of(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return 0.0
    return number if math.isfinite(number) else 0.0


def _trace_of_runs(name: str, runs: Mapping[tuple[int, float], list[tuple[float, float]]], eta: float) -> JobTrace:
    costs: dict[int, dict[float, EpochCost]] = {}
    shares: dict[TrainingSettings, float | None] = {}
    for (size, cap_w), own in runs.items():
        energy = mean_of_numbers([energy_j for energy_j, _ in own])
        costs.setdefault(size, {})[cap_w] = EpochCost(energy.value, fmean(time_s for _, time_s in own))
        shares[TrainingSettings(size, cap_w)] = (
            None if len(own) < 2 or energy.u95 is None else energy.u95 / energy.value
        )
    default = next(iter(runs))[0]
    caps = tuple(sorted({cap_w for _, cap_w in runs}))
    start = TrainingSettings(default, max(costs[default]))
    job = Job(name, tuple(sorted(costs)), caps, start, Target(1.0), 1, caps[-1], eta)
    return JobTrace(job, {size: (LearningCurve(1.0),) for size in costs}, costs, shares)


@dataclass(frozen=True, slots=True)
class _Training:
    batch_size: int
    power_cap_w: float
    epochs: float
    energy_j: float
    time_s: float
    is_reached: bool


def _trace_of(name: str, trainings: Sequence[_Training], eta: float) -> JobTrace:
    curves: dict[int, list[LearningCurve]] = {}
    epochs: dict[tuple[int, float], list[EpochCost]] = {}
    for t in trainings:
        curves.setdefault(t.batch_size, []).append(LearningCurve(t.epochs if t.is_reached else NEVER))
        cost = EpochCost(t.energy_j / t.epochs, t.time_s / t.epochs)
        epochs.setdefault((t.batch_size, t.power_cap_w), []).append(cost)
    costs: dict[int, dict[float, EpochCost]] = {}
    for (batch_size, cap_w), each in epochs.items():
        mean = EpochCost(fmean(c.energy_j for c in each), fmean(c.time_s for c in each))
        costs.setdefault(batch_size, {})[cap_w] = mean
    caps = tuple(sorted({cap_w for _, cap_w in epochs}))
    default = trainings[0].batch_size
    job = Job(
        name, tuple(sorted(costs)), caps, TrainingSettings(default, max(costs[default])), Target(1.0),
        math.ceil(max(t.epochs for t in trainings)), caps[-1], eta,
    )  # fmt: skip
    trace = JobTrace(job, {size: tuple(of_size) for size, of_size in curves.items()}, costs)
    if trace.expected_epochs(default) == NEVER:
        raise AnalysisError(
            f"{name}: no training at the default batch size {default} (of its first row) reached its target"
        )
    return trace


def _parquet_rows(path: Path) -> list[dict[str, str]]:
    import pandas as pd

    frame = pd.read_parquet(path)
    missing = [name for name in _OF_RUNS if name not in frame]
    if missing:
        raise AnalysisError(f"{path}: there are no columns {', '.join(missing)}")
    return [{str(name): str(value) for name, value in row.items()} for row in frame.to_dict("records")]
