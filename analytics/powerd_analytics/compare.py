"""Two runs or campaigns side by side: how much each figure differs, and whether by more than chance and sensors.

Rows match by phase and setting. A difference has three sources of uncertainty:

- chance, from repeats: runs where there are several, else the iterations of the single runs, which are correlated
  (`mean_of_series` knows that);
- the sensors: what both sides share (the same sensor's gain, zero and timing) cancels, what each side has of its own
  does not;
- many rows at once: p values are corrected by Holm's method over all rows.

The test is Welch's t. Degrees of freedom are Welch's and Satterthwaite's; those of the sensors are infinite (GUM G.4).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import hypot, inf, sqrt
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from powerd_analytics.energy.devices import Part, load_parts
from powerd_analytics.energy.magnified import energies_with_magnified
from powerd_analytics.energy.reasons import usable
from powerd_analytics.export import Cell, Column, cell_text, table_frame
from powerd_analytics.jobs import merge_jobs
from powerd_analytics.records import (
    COLUMNS,
    Record,
    attributes_of,
    column,
    dimension,
    is_of_class,
    number_of,
    records_of,
)
from powerd_analytics.runs.phases import is_number_cell
from powerd_analytics.runs.ranks import ranks_of
from powerd_analytics.runs.run import Progress, Run, RunLine, no_progress, read_run
from powerd_analytics.signals.signal import Signal
from powerd_analytics.table import BY_REPETITIONS, table_of
from powerd_analytics.text import first_of, with_u95
from powerd_core.errors import AnalysisError

if TYPE_CHECKING:
    import pandas as pd

Values = NDArray[np.float64]
_NONE = np.zeros(0)

LEVEL = 0.05
"""Of the family of all rows of a comparison, after Holm's correction."""
MARK_S = 1e-9
"""Marks are whole nanoseconds: no difference is known better, however alike the repeats."""
NEED_REPEATS, MOST_LAGS = 16, 256
"""Repeats that it takes to look for correlations among them, and lags up to which that is done."""
STANDS_OUT = 1.645
"""Standard deviations of a correlation of independent repeats that 5 % of them exceed."""
LEAST_LEFT = 0.3
"""Of the variance of repeats that hang together, after their own mean has been taken from them."""
_ROUNDING = 1e-12
"""Joules are sums of many numbers: differences below this share of them are the arithmetic's."""

# -- means that differ by more than chance -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean with the standard uncertainty of chance and the degrees of freedom behind it."""

    value: float
    u: float
    dof: float


def mean_of_repeats(values: Values) -> Mean:
    """Of independent repeats [n >= 2]."""
    n = len(values)
    return Mean(float(values.mean()), float(np.std(values, ddof=1) / sqrt(n)), n - 1)


def mean_of_series(values: Values) -> Mean:
    """Of values [n >= 2] in the order of time, which may be correlated. Values that are all equal are taken as exact.

    They count for n over their integrated autocorrelation time: the longer one of that of a first-order process, with
    what their own mean hides of the first correlation (Kendall, 1954), and of the sum of correlations up to the first
    that does not stand out (Wolff, 2004, equation 49). Where few are left, Student's factor makes the interval wide.
    Those that make up for each other count as independent ones: a slow drift behind them no correlation would show.
    """
    n, away = len(values), values - np.mean(values)
    square, time = float(away @ away), 1.0
    if not square > 0:
        return Mean(float(values.mean()), 0.0, inf)
    if n >= NEED_REPEATS:
        first = min((n * float(away[1:] @ away[:-1]) / square + 1) / (n - 3), 1 - 2 / n)
        summed, window = 1.0, 0
        for lag in range(1, min(n // 2, MOST_LAGS)):
            if (rho := float(away[lag:] @ away[:-lag]) / square) < 1 / sqrt(n):
                break
            summed, window = summed + 2 * rho, lag
        of_first = (1 + first) / (1 - first) if first > STANDS_OUT / sqrt(n) else 1.0
        time = max(of_first, summed * (1 + (2 * window + 1) / n))
    # Their mean has taken a part of what they have in common out of the deviations, too.
    u = sqrt(square / (n - 1) / n * time / max(1 - (time - 1) / n, LEAST_LEFT))
    return Mean(float(values.mean()), u, max(n / time - 1, 2.0) if n > 3 else n - 1)


def difference(a: Mean, b: Mean, u_systematic: float = 0.0) -> tuple[float | None, float]:
    """Two-sided p of ``b - a`` being 0, and the half-width of its 95 % interval.

    Welch's t with a further uncertainty of the difference that no repeat shows, and Student's factor for the same
    degrees of freedom (GUM G.6.4). p is None where there is no uncertainty at all to compare with.
    """
    variance = a.u**2 + b.u**2 + u_systematic**2
    spread = sum(m.u**4 / m.dof for m in (a, b) if m.u > 0)
    u, dof = sqrt(variance), variance**2 / spread if spread > 0 else inf
    p = float(2 * stdtr(dof, -abs(b.value - a.value) / u)) if u > 0 else None
    return p, float(stdtrit(dof, 0.975)) * u


def holm(p: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down correction (1979): each p for the family of all; None stays None and counts for nothing."""
    known = sorted((value, i) for i, value in enumerate(p) if value is not None)
    corrected: list[float | None] = [None] * len(p)
    highest = 0.0
    for rank, (value, i) in enumerate(known):
        highest = max(highest, min(1.0, (len(known) - rank) * value))
        corrected[i] = highest
    return corrected


# -- what comparisons are made of --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sensor:
    """What one line contributes to a record's joules, and the errors that it brings into every one of them."""

    identity: str
    """Equal for the same line of the same board with the same calibration: its gain and zero are then the same."""
    joules: float
    seconds: float
    u_gain: float
    u_offset_w: float
    timing_j: Values
    """[c] of the record by `powerd_analytics.energy.model.LineModel.common`: signed, as two runs may be off alike."""

    @property
    def u_shared_j(self) -> float:
        """Standard uncertainty by gain, zero and timing."""
        return hypot(self.u_gain * self.joules, self.u_offset_w * self.seconds, *self.timing_j)


@dataclass(frozen=True, slots=True)
class Sample:
    """A record with its single phases in the order of time: the joules of those that have a figure, the seconds of all
    that ended. Empty for totals."""

    record: Record
    joules: Values
    seconds: Values
    sensors: tuple[Sensor, ...]

    @property
    def batches(self) -> float:
        """Of how many batches the record's uncertainties and sensors are."""
        return (number_of(self.record, "iterations") or 1.0) if self.record["kind"] == "total" else 1.0


def run_samples(
    path: Path, device: str | None = None, *, progress: Progress = no_progress
) -> tuple[list[Sample], list[Record]]:
    """The phases and totals of a run file with what is behind them, and its records of other kinds.

    Errors as `run_records`.
    """
    run = read_run(path, progress=lambda share, text: progress(0.1 * share, text))
    parts = load_parts(run, device, lambda share, text: progress(0.1 + 0.4 * share, text))
    records = records_of(run, table_of(run, parts, progress=lambda share, text: progress(0.5 + 0.5 * share, text)))
    samples: list[Sample] = []
    for part in parts:
        own = [r for r in records if (r["device"], r["provenance"]) == (part.device, part.provenance)]
        samples += _samples_of_part(run, part, [r for r in own if r["kind"] in ("phase", "total")])
    return samples, [r for r in records if r["kind"] not in ("phase", "total")]


def _samples_of_part(whole: Run, part: Part, records: list[Record]) -> list[Sample]:
    run, sharing = ranks_of(whole).on(whole, part.device)
    # Before all columns of the device are in memory: of a line one is kept. A device's only line is the device.
    several = part.signals if len(part.signals) > 1 else ()
    lines = [(s, energies_with_magnified(run, replace(part, signals=(s,))).energy_j) for s in several]
    columns = energies_with_magnified(run, part)
    lines = lines or [(s, columns.energy_j) for s in part.signals]
    ended, good = ~run.phases.cut, usable(columns) & ~run.phases.cut
    samples = []
    for record in records:
        if record["kind"] == "total":
            samples.append(Sample(record, _NONE, _NONE, _sensors(run, part, lines, record, slice(None), 1)))
            continue
        of_record = run.phases.of([i for i, kind in enumerate(run.phases.classes) if is_of_class(record, kind)])
        which, count = np.flatnonzero(of_record & good), np.count_nonzero(of_record & ended)
        # Without a mean there is nothing to be the spread of; one that was folded is not the mean of the few long ones.
        which = which if record["j_per_batch"] is not None and len(which) >= 0.5 * count else which[:0]
        sensors = _sensors(run, part, lines, record, which, sharing)
        seconds = columns.duration_s[of_record & ended]
        samples.append(Sample(record, columns.energy_j[which] / sharing, seconds, sensors))
    return samples


def _sensors(
    run: Run,
    part: Part,
    lines: list[tuple[Signal, Values]],
    record: Record,
    which: NDArray[np.int64] | slice,
    sharing: int,
) -> tuple[Sensor, ...]:
    """Each line's part in a record's joules; of totals in proportion to their phases' parts."""
    is_phase = record["kind"] == "phase"
    total, time = record["j_per_batch" if is_phase else "energy_j"], record["s_per_batch" if is_phase else "time_s"]
    if not isinstance(total, float) or not isinstance(time, float):
        return ()
    sums = [float(np.nansum(joules[which])) for _, joules in lines]
    sensors = []
    for (signal, _), joules in zip(lines, sums, strict=True):
        timing_j = np.zeros(1)  # as many as any other has
        if is_phase and record["method"] not in BY_REPETITIONS and len(signal) > 1 and len(run.phases.begin_ns[which]):
            timing_j = part.model(signal).common_j(run.phases.begin_ns[which], run.phases.end_ns[which]) / sharing
        share, accuracy = joules / sum(sums) if sum(sums) else 0.0, signal.line.accuracy
        sensors.append(
            Sensor(
                _identity(run, signal.line), total * share, time / sharing, accuracy.u_gain, accuracy.u_offset_w,
                timing_j,
            )
        )  # fmt: skip
    return tuple(sensors)


def _identity(run: Run, line: RunLine) -> str:
    """Host and board, line, conversion with its calibration, and the sensor's own number where it has one."""
    own = [line.detail.get(key) for key in ("uuid", "uid", "serial", "pci_bus_id")]
    host = run.environment.get("host")
    return repr((host, line.board, line.source, line.name, line.conversion, line.accuracy, own))


_PLACE = ("path", "run_id", "kind", "provenance", "model", "batch_size", "attributes", "power_cap_w",
          "power_cap_asked_w", "power_cap_in_run", "phase_path", "timing", "device")  # fmt: skip


def _place(record: Record, device: Cell = None) -> tuple[Cell, ...]:
    """What a record is of, among all of a campaign; of another ``device`` where that is given."""
    return tuple((device or record[name]) if name == "device" else record[name] for name in _PLACE)


def merge_samples(samples: Sequence[Sample], others: Sequence[Record]) -> list[Sample]:
    """The samples of a campaign, those of parts of one training replaced by the training's.

    ``others`` are the runs' records of other kinds. A training has no series of single phases: the machines' are not on
    one clock. Several trainings are each other's repeats. Raises as `merge_jobs`.
    """
    alone = {_place(s.record): s for s in samples}
    return [
        replace(alone[_place(r)], record=r) if r["machines"] is None else Sample(r, _NONE, _NONE, ())
        for r in merge_jobs([*(s.record for s in samples), *others])
        if r["kind"] in ("phase", "total")
    ]


# -- what the sensors leave open ---------------------------------------------------------------------------------------


def same_sensors(a: Sequence[Sample], b: Sequence[Sample]) -> bool:
    """Whether all of both sides comes from the same lines with the same calibration."""
    every = [sorted(sensor.identity for sensor in s.sensors) for s in [*a, *b]]
    return bool(every[0]) and all(identities == every[0] for identities in every)


def u_systematic_j(side: Sequence[Sample]) -> float:
    """Systematic standard uncertainty of one side's mean joules a batch."""
    return float(np.mean([(number_of(s.record, "u_systematic_j") or 0.0) / s.batches for s in side]))


def u_difference_j(a: Sequence[Sample], b: Sequence[Sample], *, same: bool) -> float:
    """Systematic standard uncertainty of ``b - a``.

    Different sensors are off independently. The same sensor is off by the same gain and zero on both sides, sees power
    as late, and the same device is as late behind its marks, so that only the difference of what these do counts. What
    else is systematic (the model, clocks, quantisation) comes from each side's own signal and is taken as independent.
    """
    u_a, u_b = u_systematic_j(a), u_systematic_j(b)
    rounding = _ROUNDING * max(number_of(s.record, "j_per_batch") or 0.0 for s in [*a, *b])
    if not same:
        return hypot(u_a, u_b, rounding)
    of_a, of_b = _mean_sensors(a), _mean_sensors(b)
    shared = [
        hypot(
            x.u_gain * (of_b[name].joules - x.joules),
            x.u_offset_w * (of_b[name].seconds - x.seconds),
            *(of_b[name].timing_j - x.timing_j),
        )
        for name, x in of_a.items()
    ]
    own = [max(0.0, u**2 - sum(s.u_shared_j**2 for s in lines.values())) for u, lines in ((u_a, of_a), (u_b, of_b))]
    return sqrt(sum(u**2 for u in shared) + sum(own) + rounding**2)


def _mean_sensors(side: Sequence[Sample]) -> dict[str, Sensor]:
    """Mean part of each line in the joules a batch of one side."""
    parts: dict[str, list[tuple[float, Sensor]]] = {}
    for sample in side:
        for s in sample.sensors:
            parts.setdefault(s.identity, []).append((sample.batches, s))
    return {
        name: replace(
            same[0][1],
            joules=float(np.mean([s.joules / n for n, s in same])),
            seconds=float(np.mean([s.seconds / n for n, s in same])),
            timing_j=np.asarray(sum(s.timing_j / n for n, s in same) / len(same)),
        )
        for name, same in parts.items()
    }


# -- differences -------------------------------------------------------------------------------------------------------

FIGURES = ("j_per_batch", "s_per_batch")
_ALWAYS = ("kind", "phase", "phase_path", "timing", "provenance")
_SETTINGS = ("model", "batch_size", "gpus", "device", "device_name", "power_cap_w", "clock_hz", "host")
_ATTRIBUTE = "attribute "

RUNS, SPREAD_OF_ONE, PHASES, FOLDED, NOTHING = (
    "runs", "runs of one side, the other has one", "iterations of one run", "iterations folded", "no repeats",
)  # fmt: skip

Key = tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Side:
    """One figure of one row on one side: its mean and how far chance and sensors reach."""

    value: float
    u_statistical: float | None
    u_systematic: float
    runs: int
    is_lower_bound: bool


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure of one row of a comparison; ``p`` is after Holm's correction, None where nothing tells it."""

    key: Key
    figure: str
    a: Side
    b: Side
    change: float
    """``b - a``."""
    u95: float | None
    p: float | None
    repeats: str
    """What stood for repeats: `RUNS`, `SPREAD_OF_ONE`, `PHASES`, `FOLDED` or `NOTHING`."""
    is_same_sensor: bool

    @property
    def change_percent(self) -> float | None:
        return 100 * self.change / self.a.value if self.a.value else None

    @property
    def u95_percent(self) -> float | None:
        return 100 * self.u95 / abs(self.a.value) if self.a.value and self.u95 is not None else None

    @property
    def is_distinguishable(self) -> bool:
        return self.p is not None and self.p < LEVEL


@dataclass(frozen=True, slots=True)
class Comparison:
    """All differences between A and B; ``names`` says what each key is made of."""

    names: tuple[str, ...]
    rows: tuple[Difference, ...]
    settings: tuple[tuple[str, Cell, Cell], ...]
    """What is different between all of A and all of B, such as the power cap."""
    only_a: int
    only_b: int
    """Rows without a counterpart."""
    ignored: tuple[str, ...] = ()
    """Settings by which rows need not match: those that differ in them alone are repeats."""


def compare(a: Sequence[Sample], b: Sequence[Sample], ignore: Sequence[str] = ()) -> Comparison:
    """Compare the phases and totals of two campaigns.

    Rows match by phase and by every setting that varies within A or within B, but for those to ``ignore``; a setting
    that is one in all of A and another in all of B is what is compared. Measured, modelled and simulated joules are
    never compared with each other. Raises `AnalysisError` when nothing matches, which says what differs.
    """
    every, settings = _settings([s.record for s in a], [s.record for s in b])
    ignored = [_ignorable(name, [s.record for s in (*a, *b)]) for name in ignore]
    names = tuple(name for name in every if name not in ignored)
    of_a, of_b = _by_key(a, names), _by_key(b, names)
    both = [key for key in of_a if key in of_b]
    differences = [_difference(key, figure, of_a[key], of_b[key]) for key in both for figure in FIGURES]
    rows = [d for d in differences if d is not None]
    if not both:
        raise AnalysisError(_nothing_in_common(a, b, names))
    if not rows:
        raise AnalysisError("the two have nothing in common: no phase of the same name has joules or seconds in both")
    rows = [replace(d, p=p) for d, p in zip(rows, holm([d.p for d in rows]), strict=True)]
    without = [name.removeprefix(_ATTRIBUTE) for name in ignored]
    return Comparison(
        names, tuple(rows), settings, len(of_a) - len(both), len(of_b) - len(both), tuple(dict.fromkeys(without))
    )


_KEPT = ("kind", "phase", "provenance")
"""By which rows always match: another phase is another thing, and so is a joule that nobody measured."""


def _ignorable(name: str, records: Sequence[Record]) -> str:
    """The name to match by that is meant by one on the command line. Raises `AnalysisError` for one that stays."""
    meant = dimension(name, records)
    settings = ("phase_path", "timing", *_SETTINGS)
    if meant in COLUMNS and meant not in settings:
        raise AnalysisError(
            f"--ignore {name}: it takes a setting ({', '.join(settings)}) or an attribute of the phases"
        )
    return meant if meant in COLUMNS else _ATTRIBUTE + meant


def _nothing_in_common(a: Sequence[Sample], b: Sequence[Sample], names: Sequence[str]) -> str:
    """What differs between the two, and which settings to ignore so that something is left to compare."""

    def values(side: Sequence[Sample], name: str) -> str:
        every = dict.fromkeys(_value(s.record, name) for s in side)
        return first_of([_plain(name, v) for v in every if v is not None], ", ", 4) or "none"

    differ = {n: (values(a, n), values(b, n)) for n in names if n not in ("kind", "phase_path")}
    told = [
        f"{n.removeprefix(_ATTRIBUTE)} {of_a} in A, {of_b} in B" for n, (of_a, of_b) in differ.items() if of_a != of_b
    ]
    free = [n for n in names if n not in _KEPT]
    remedy = "nothing that can be ignored would change that"
    for some in (some for count in range(1, len(free) + 1) for some in combinations(free, count)):
        left = tuple(n for n in names if n not in some)
        if _by_key(a, left).keys() & _by_key(b, left).keys():
            options = " ".join(f"--ignore {n.removeprefix(_ATTRIBUTE)}" for n in some)
            remedy = f"{options} compares them nonetheless"
            break
    what = "; ".join(told) or "the same names and settings, in other combinations"
    return f"the two have nothing in common: {what}: {remedy}"


def _settings(a: Sequence[Record], b: Sequence[Record]) -> tuple[tuple[str, ...], tuple[tuple[str, Cell, Cell], ...]]:
    """The columns by which rows match, and those in which all of A differs from all of B."""
    attributes = dict.fromkeys(_ATTRIBUTE + k for r in [*a, *b] for k in attributes_of(r))
    names, different = [*_ALWAYS], []
    for name in (*_SETTINGS, *attributes):
        in_a, in_b = (list(dict.fromkeys(_value(r, name) for r in side)) or [None] for side in (a, b))
        if name == "clock_hz" and not any(r["clock_set"] is True for r in [*a, *b]):
            continue  # observed, not chosen: it varies by itself
        if len(in_a) > 1 or len(in_b) > 1:
            names.append(name)
        elif in_a != in_b:
            different.append((name.removeprefix(_ATTRIBUTE), in_a[0], in_b[0]))
    return tuple(names), tuple(different)


def _value(record: Record, name: str) -> Cell:
    if name.startswith(_ATTRIBUTE):
        return attributes_of(record).get(name.removeprefix(_ATTRIBUTE))
    cap = number_of(record, name) if name == "power_cap_w" else None
    return record[name] if cap is None else float(round(cap))


def _by_key(samples: Iterable[Sample], names: Sequence[str]) -> dict[Key, list[Sample]]:
    by_key: dict[Key, list[Sample]] = {}
    for sample in samples:
        by_key.setdefault(tuple(_value(sample.record, n) for n in names), []).append(sample)
    return by_key


def _difference(key: Key, figure: str, a: Sequence[Sample], b: Sequence[Sample]) -> Difference | None:
    a, b = ([s for s in side if number_of(s.record, figure) is not None] for side in (a, b))
    if not a or not b:
        return None
    is_joules = figure == "j_per_batch"
    *means, repeats = _means(figure, a, b)
    same = is_joules and same_sensors(a, b)
    sides = []
    for mean, side in zip(means, (a, b), strict=True):
        # The records' means also hold the phases that are too short for single figures.
        value = float(np.mean([number_of(s.record, figure) or 0.0 for s in side]))
        is_bound = is_joules and any(s.record["is_lower_bound"] is True for s in side)
        u_systematic = u_systematic_j(side) if is_joules else MARK_S
        sides.append(Side(value, mean.u if mean else None, u_systematic, len(side), is_bound))
    first, second = sides
    p = u95 = None
    if means[0] and means[1] and not (first.is_lower_bound or second.is_lower_bound):
        at_a, at_b = replace(means[0], value=first.value), replace(means[1], value=second.value)
        p, u95 = difference(at_a, at_b, u_difference_j(a, b, same=same) if is_joules else MARK_S)
    return Difference(key, figure, first, second, second.value - first.value, u95, p, repeats, same)


def _means(figure: str, a: Sequence[Sample], b: Sequence[Sample]) -> tuple[Mean | None, Mean | None, str]:
    """Both means with what repeats say of them: runs where there are several, else iterations of the single runs."""
    values = [np.array([number_of(s.record, figure) or 0.0 for s in side]) for side in (a, b)]
    several = [v for v in values if len(v) > 1]
    if len(several) == 2:
        return mean_of_repeats(values[0]), mean_of_repeats(values[1]), RUNS
    if several:
        # One run has no spread of its own: that of the other side's runs stands for it, with its freedom.
        dof, spread = len(several[0]) - 1, float(np.std(several[0], ddof=1))
        wide = sqrt(1 + 1 / len(several[0])) * spread
        means = [Mean(float(v.mean()), wide if len(v) > 1 else 0.0, dof) for v in values]
        return means[0], means[1], SPREAD_OF_ONE
    first, second = (_mean_of_phases(side[0], figure) for side in (a, b))
    if first is not None and second is not None:
        return first, second, PHASES
    first, second = (first or _mean_of_fold(a[0], figure), second or _mean_of_fold(b[0], figure))
    return (first, second, FOLDED) if first is not None and second is not None else (None, None, NOTHING)


def _mean_of_phases(sample: Sample, figure: str) -> Mean | None:
    is_joules = figure == "j_per_batch"
    series = sample.joules if is_joules else sample.seconds
    if len(series) < 2:
        return None
    mean = mean_of_series(series)
    measured = (number_of(sample.record, "u_statistical_j") or 0.0) if is_joules else 0.0
    # Phases that happen to agree are still known no better than their readings let them be.
    return replace(mean, u=max(mean.u, measured))


def _mean_of_fold(sample: Sample, figure: str) -> Mean | None:
    """Of phases that have joules only together: what the mean is said to be unsure of by chance. A training over
    several machines has no single phases, folded or not."""
    record = sample.record
    n, u, value = (number_of(record, name) for name in ("iterations", "u_statistical_j", "j_per_batch"))
    is_folded = record["machines"] is None and record["kind"] == "phase" and figure == "j_per_batch"
    return Mean(value, u, n - 1) if is_folded and value is not None and n and n >= 2 and u else None


# -- as a table, and in words ------------------------------------------------------------------------------------------


def verdict(d: Difference) -> str:
    """What a reader may take from a row."""
    if d.a.is_lower_bound or d.b.is_lower_bound:
        return "not comparable: a lower bound"
    if d.p is None:
        why = "no repeats to tell" if d.repeats == NOTHING else "no uncertainty to compare with"
        return "equal" if d.change == 0 else why
    if not d.is_distinguishable:
        return "not distinguishable"
    return "B more" if d.change > 0 else "B less"


_FRAME = (
    Column("figure"),
    Column("a", "number", heading="A", sign="≥"),
    Column("b", "number", heading="B", sign="≥"),
    Column("change", "number", is_hidden=True),
    Column("u95_change", "number", is_uncertainty=True, is_hidden=True),
    Column("change_percent", "number", "%", heading="B - A %"),
    Column("u95_change_percent", "number", "%", heading="± U95", is_uncertainty=True),
    Column("p", "number", "1", heading="p (Holm)", is_uncertainty=True),
    Column("verdict", heading=" "),
    Column("runs_a", "integer", "1", heading="runs A"),
    Column("runs_b", "integer", "1", heading="runs B"),
    Column("repeats"),
    Column("same_sensor", "flag", heading="same sensor"),
)


def comparison_frame(comparison: Comparison, label_a: str, label_b: str) -> pd.DataFrame:
    """One row for each figure, with its difference and what that means."""
    names = comparison.names
    places = {
        tuple(d.key[names.index(n)] for n in ("phase", "phase_path")) for d in comparison.rows if "phase_path" in names
    }
    # The path only where the name alone would not tell.
    hidden = {"kind", "timing", "phase_path" if len({phase for phase, _ in places}) == len(places) else "phase"}
    hidden -= {"phase"} if "phase_path" not in names else set()
    columns = [column(n) if n in COLUMNS else Column(n.removeprefix(_ATTRIBUTE)) for n in names]
    columns = [*(replace(c, sign="", is_hidden=n in hidden) for n, c in zip(names, columns, strict=True)), *_FRAME]
    rows: list[tuple[Cell, ...]] = []
    bounds = []
    for i, d in enumerate(comparison.rows):
        key = ["all" if n.startswith("phase") and v is None else v for n, v in zip(names, d.key, strict=True)]
        figures = (d.a.value, d.b.value, d.change, d.u95, d.change_percent, d.u95_percent, d.p)
        about = (verdict(d), d.a.runs, d.b.runs, d.repeats, d.is_same_sensor)
        rows.append((*key, column(d.figure).heading, *figures, *about))
        bounds += [(i, len(key) + k) for k, side in enumerate((d.a, d.b), 1) if side.is_lower_bound]
    # What all rows have in common is said once, below them. Rows that nothing repeats say so in their verdict, and
    # seconds have no sensor.
    common, joules = [], [d.figure == "j_per_batch" for d in comparison.rows]
    about_rows = {"repeats": [d.repeats != NOTHING for d in comparison.rows], "same_sensor": joules}
    for k, c in enumerate(columns):
        counts = about_rows.get(c.name, [True] * len(rows))
        values = {row[k] for row, is_about in zip(rows, counts, strict=True) if is_about}
        is_told = c.name in ("phase", "phase_path", "verdict") or (c.kind == "number" and k >= len(names))
        if len(values) <= 1 and not is_told and not c.is_hidden:
            if k < len(names) and (value := next(iter(values), None)) is not None:
                common.append(str(value) if c.kind == "text" else f"{c.heading} {_plain(c.name, value)}")
            columns[k] = replace(c, is_hidden=True)
    finding, *others = words(comparison)
    notes = [finding, *([f"All rows: {', '.join(common)}."] if common else []), *others]
    return table_frame("compare", f"A = {label_a}, B = {label_b}", columns, rows, notes, bounds)


def words(comparison: Comparison) -> list[str]:
    """The comparison in sentences: the main finding first, then what it rests on."""
    tested = [d for d in comparison.rows if d.p is not None]
    joules = [d.is_same_sensor for d in comparison.rows if d.figure == "j_per_batch"]
    each = "; ".join(f"{column(n).heading} {_plain(n, a)} in A, {_plain(n, b)} in B" for n, a, b in comparison.settings)
    sentences = {
        _summary(tested, comparison): True,
        f"Settings that differ: {each}.": each,
        "One run on each side: repeats are its iterations. What differs from one run to the next (temperature, other "
        "load) is in no p value: record at least three runs of each to include it.": any(
            d.repeats in (PHASES, FOLDED) for d in tested
        ),
        "Where one side has a single run, the other side's scatter from run to run stands for it.": any(
            d.repeats == SPREAD_OF_ONE for d in tested
        ),
        "Same sensors on both sides: their gain, zero and timing count only for the difference.": joules
        and all(joules),
        "Different sensors: their gains and zeros are off independently, and that is in ± U95 and p.": (
            joules and not any(joules)
        ),
        f"Ignored: {', '.join(comparison.ignored)}; rows that differ in nothing else are taken for repeats.": (
            comparison.ignored
        ),
        f"Without a counterpart: {comparison.only_a} rows of A, {comparison.only_b} of B.": (
            comparison.only_a or comparison.only_b
        ),
    }
    return [sentence for sentence, is_so in sentences.items() if is_so]


def _summary(tested: Sequence[Difference], comparison: Comparison) -> str:
    if not tested:
        return "Nothing can be told: no figure has repeats, or all joules are lower bounds."
    level = f"{100 * LEVEL:g} %, Welch's t, Holm's correction over {len(tested)} tests"
    clear = [d for d in tested if d.is_distinguishable]
    if not clear:
        return f"No difference is distinguishable ({level})."
    largest = max(clear, key=lambda d: abs(d.change_percent or 0.0))
    at = zip(comparison.names, largest.key, strict=True)
    place = " ".join(str(v) for n, v in at if n in ("model", "phase") and v is not None) or "all phases"
    sign = "+" if largest.change > 0 else ""
    change = (
        f"{column(largest.figure).heading} {sign}{with_u95(largest.change_percent or 0.0, largest.u95_percent, '%')}"
    )
    return f"{len(clear)} of {len(tested)} differences are distinguishable ({level}); the largest: {place}, {change}."


def _plain(name: str, value: Cell) -> str:
    if value is None:
        return "not known"
    return cell_text(name, value) if is_number_cell(value) else str(value)
