"""Runs or folders of runs side by side: how much each figure differs, and whether by more than chance and sensors.

Rows match by phase and setting, and compare joules and seconds of a batch; where the batches differ in size, those of a
sample, and the energy-delay product of a sample first. Of more than two sides each is compared with the first. A
difference has three sources of uncertainty:

- chance, from repeats: runs where there are several, else the iterations of the single runs, which are correlated
  (`mean_of_series` knows that);
- the sensors: what both sides share (the same sensor's gain, zero and timing) cancels, what each side has of its own
  does not;
- many rows at once: p values are corrected by Holm's method over all rows.

The test is Welch's t. Degrees of freedom are Welch's and Satterthwaite's; those of the sensors are infinite (GUM G.4).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import hypot, inf, sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from powerd_analytics.energy.devices import Part, load_parts
from powerd_analytics.energy.magnified import energies_with_magnified
from powerd_analytics.energy.reasons import usable
from powerd_analytics.frame.figure import Figure, Record, figure_of, number_of
from powerd_analytics.frame.figures import (
    ATTRIBUTE,
    COLUMNS,
    Frame,
    check_run,
    check_runs,
    column,
    dimension,
    factors_in,
    frame_from,
    frame_of_records,
    keep_records,
    known_records,
    of_kind,
    records_of,
    rows_of,
    shared_notes,
)
from powerd_analytics.frame.machines import merge_machines
from powerd_analytics.frame.means import mean_of_repeats
from powerd_analytics.frame.repeats import CAP_STEP_W
from powerd_analytics.frame.trainings import part_of
from powerd_analytics.output.export import Column, Table, cell_text, make_table
from powerd_analytics.output.text import Cell, first_of, is_number_cell, with_u95
from powerd_analytics.run_tables.table import BY_REPETITIONS, PhaseRow, TotalRow, kept_table, labels_of
from powerd_analytics.runs.kept import keep, key_of_file, key_of_run, recall
from powerd_analytics.runs.ranks import ranks_of
from powerd_analytics.runs.run import Progress, Run, no_progress, read_run
from powerd_client.signals.signal import RunLine, Signal
from powerd_core.errors import AnalysisError
from powerd_core.marks import ITERATION

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


def mean_of_series(values: Values) -> Figure:
    """The mean of values [n >= 2] in the order of time, which may be correlated. Values that are all equal are taken as
    exact.

    They count for n over their integrated autocorrelation time: the longer one of that of a first-order process, with
    what their own mean hides of the first correlation (Kendall, 1954), and of the sum of correlations up to the first
    that does not stand out (Wolff, 2004, equation 49). Where few are left, Student's factor makes the interval wide.
    Those that make up for each other count as independent ones: a slow drift behind them no correlation would show.
    """
    n, away = len(values), values - np.mean(values)
    square, time = float(away @ away), 1.0
    if not square > 0:
        return Figure(float(values.mean()), 0.0)
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
    return _by_chance(float(values.mean()), u, max(n / time - 1, 2.0) if n > 3 else n - 1)


def _by_chance(value: float, u: float, degrees_of_freedom: float = inf) -> Figure:
    """A mean of which only chance is looked at."""
    return Figure(value, u, degrees_of_freedom=degrees_of_freedom)


def difference(a: Figure, b: Figure, u_systematic: float = 0.0) -> tuple[float | None, float]:
    """Two-sided p of ``b - a`` being 0, and the half-width of its 95 % interval, by what is statistical in both.

    Welch's t with a further uncertainty of the difference that no repeat shows, and Student's factor for the same
    degrees of freedom (GUM G.6.4). p is None where there is no uncertainty at all to compare with.
    """
    chance = [(m.u_statistical or 0.0, m.degrees_of_freedom) for m in (a, b)]
    variance = sum(u**2 for u, _ in chance) + u_systematic**2
    spread = sum(u**4 / freedom for u, freedom in chance if u > 0)
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
    """What one line contributes to a row's joules, and the errors that it brings into every one of them."""

    identity: str
    """Equal for the same line of the same board with the same calibration: its gain and zero are then the same."""
    joules: float
    seconds: float
    u_gain: float
    u_offset_w: float
    timing_j: Values
    """[c] of the row by `powerd_analytics.energy.model.Posterior.common`: signed, as two runs may be off alike."""

    @property
    def u_shared_j(self) -> float:
        """Standard uncertainty by gain, zero and timing."""
        return hypot(self.u_gain * self.joules, self.u_offset_w * self.seconds, *self.timing_j)


_OF_SAMPLES = ("phase", "total")
PER_BATCH, PER_SAMPLE = ("j_per_batch", "s_per_batch"), ("j_per_sample", "s_per_sample")
EDP = "edp_per_sample_js"


@dataclass(frozen=True, slots=True)
class PhaseSample:
    """A phase or a total with its single phases in the order of time: the joules of those that have a figure, the
    seconds of all that ended. Empty for totals."""

    record: Record
    joules: Values
    seconds: Values
    sensors: tuple[Sensor, ...]

    def work(self, figure: str) -> float:
        """Of how many batches or samples, whichever the figure is of one of, the record's uncertainties and sensors
        are."""
        batches = number_of(self.record, "iterations") if self.record["kind"] == "total" else None
        work = (batches or 1.0) * self.size(figure)
        # A product is off by what its joules are off by, times its seconds.
        return work / (number_of(self.record, "s_per_sample") or 1.0) if figure == EDP else work

    def size(self, figure: str) -> float:
        """Samples of a batch, where the figure is of one; else 1."""
        return (self.batch or 1.0) if figure in (*PER_SAMPLE, EDP) else 1.0

    @property
    def batch(self) -> float | None:
        """How many samples a batch has, those of all ranks that are added up; None where it is not known."""
        s_per_batch, s_per_sample = (number_of(self.record, name) for name in ("s_per_batch", "s_per_sample"))
        return round(s_per_batch / s_per_sample, 6) if s_per_batch and s_per_sample else None


def read_samples(
    paths: Sequence[Path], device: str | None = None, *, progress: Progress = no_progress
) -> list[PhaseSample]:
    """The phases and totals of some run files, those of parts of one training replaced by the training's.

    Run files are read also where an index has their frames: what tells chance from a difference are the single phases
    and whose sensors measured them. Errors as `powerd_analytics.frame.trainings.read_runs`.
    """
    samples: list[PhaseSample] = []
    records: list[Mapping[str, Any]] = []
    for i, path in enumerate(paths):
        own, rows = run_samples(path, device, progress=part_of(progress, i, len(paths), path.name))
        check_run(path, rows)
        samples += own
        records += rows
    every = frame_of_records(records)
    check_runs(every)
    return merge_samples(samples, every)


def run_samples(
    path: Path, device: str | None = None, *, progress: Progress = no_progress
) -> tuple[list[PhaseSample], list[dict[str, Any]]]:
    """The phases and totals of a run file with what is behind them, in the order of its frame; and the frame's rows.
    They are kept in the user's cache as these are.

    Errors as `powerd_analytics.frame.figures.run_frame`.
    """
    known = known_records(path) if device is None else None
    samples: list[PhaseSample] | None = recall(key_of_file(path), f"samples {path.name}", (PhaseSample, Sensor))
    if known is not None and samples is not None:
        return [replace(sample, record=sample.record | {"path": str(path)}) for sample in samples], known
    run = read_run(path, progress=lambda share, text: progress(0.1 * share, text))
    parts = load_parts(run, device, lambda share, text: progress(0.1 + 0.4 * share, text))
    table = kept_table(run, device, parts, progress=lambda share, text: progress(0.5 + 0.5 * share, text))
    records = records_of(run, table)
    rows: list[PhaseRow | TotalRow] = [*table.phases, *table.totals]
    of_rows = rows_of(frame_of_records(records).iloc[: len(rows)])
    samples_of: dict[int, PhaseSample] = {}
    for part in parts:
        own = [i for i, row in enumerate(rows) if (row.device, row.provenance) == (part.device, part.provenance)]
        of_part = _samples_of_part(run, part, [(rows[i], of_rows[i]) for i in own])
        samples_of |= zip(own, of_part, strict=True)
    samples = [samples_of[i] for i in range(len(rows))]
    if device is None:
        keep_records(run, records)
        keep(key_of_run(run), f"samples {path.name}", samples)
    return samples, records


def _samples_of_part(whole: Run, part: Part, rows: Sequence[tuple[PhaseRow | TotalRow, Record]]) -> list[PhaseSample]:
    run, sharing = ranks_of(whole).on(whole, part.device)
    # Before all columns of the device are in memory: of a line one is kept. A device's only line is the device.
    several = part.signals if len(part.signals) > 1 else ()
    lines = [(s, energies_with_magnified(run, replace(part, signals=(s,))).energy_j) for s in several]
    columns = energies_with_magnified(run, part)
    lines = lines or [(s, columns.energy_j) for s in part.signals]
    ended, good = ~run.phases.cut, usable(columns) & ~run.phases.cut
    samples = []
    for row, record in rows:
        if isinstance(row, TotalRow):
            samples.append(PhaseSample(record, _NONE, _NONE, _sensors(run, part, lines, record, slice(None), 1)))
            continue
        of_row = run.phases.of(labels_of(run, row))
        which, count = np.flatnonzero(of_row & good), np.count_nonzero(of_row & ended)
        # Without a mean there is nothing to be the spread of; one that was folded is not the mean of the few long ones.
        which = which if row.j_per_batch is not None and len(which) >= 0.5 * count else which[:0]
        sensors = _sensors(run, part, lines, record, which, sharing)
        seconds = columns.duration_s[of_row & ended]
        samples.append(PhaseSample(record, columns.energy_j[which] / sharing, seconds, sensors))
    return samples


def _sensors(
    run: Run,
    part: Part,
    lines: list[tuple[Signal, Values]],
    record: Record,
    which: NDArray[np.int64] | slice,
    sharing: int,
) -> tuple[Sensor, ...]:
    """Each line's part in a row's joules; of totals in proportion to their phases' parts."""
    is_phase = record["kind"] == "phase"
    total, time = record["j_per_batch" if is_phase else "energy_j"], record["s_per_batch" if is_phase else "time_s"]
    if not isinstance(total, float) or not isinstance(time, float):
        return ()
    sums = [float(np.nansum(joules[which])) for _, joules in lines]
    sensors = []
    for (signal, _), joules in zip(lines, sums, strict=True):
        timing_j = np.zeros(1)  # as many as any other has
        if is_phase and record["method"] not in BY_REPETITIONS and len(signal) > 1 and len(run.phases.begin_ns[which]):
            timing_j = part.posterior(signal).common_j(run.phases.begin_ns[which], run.phases.end_ns[which]) / sharing
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


def merge_samples(samples: Sequence[PhaseSample], frame: Frame) -> list[PhaseSample]:
    """The samples of many runs, those of parts of one training replaced by the training's.

    ``frame`` is that of its runs, whose phases and totals the samples are, in its order. A training has no series of
    single phases: the machines' are not on one clock. Several trainings are each other's repeats. Raises as
    `merge_machines`.
    """
    is_sample = frame["kind"].isin(_OF_SAMPLES)
    # Of machines put together the first one's number stays.
    numbered = frame.assign(sample=is_sample.cumsum().where(is_sample) - 1.0)
    merged = []
    for record in rows_of(of_kind(merge_machines(numbered), *_OF_SAMPLES)):
        number = number_of(record, "sample")
        del record["sample"]
        of_one = samples[int(number)] if number is not None and record["machines"] is None else None
        merged.append(replace(of_one, record=record) if of_one else PhaseSample(record, _NONE, _NONE, ()))
    return merged


# -- what the sensors leave open ---------------------------------------------------------------------------------------


def same_sensors(a: Sequence[PhaseSample], b: Sequence[PhaseSample]) -> bool:
    """Whether all of both sides comes from the same lines with the same calibration."""
    every = [sorted(sensor.identity for sensor in s.sensors) for s in [*a, *b]]
    return bool(every[0]) and all(identities == every[0] for identities in every)


def u_systematic(side: Sequence[PhaseSample], figure: str) -> float:
    """Systematic standard uncertainty of one side's mean."""
    if figure.startswith("s_"):
        return float(np.mean([MARK_S / s.size(figure) for s in side]))
    return float(np.mean([(number_of(s.record, "u_systematic_j") or 0.0) / s.work(figure) for s in side]))


def u_difference_j(a: Sequence[PhaseSample], b: Sequence[PhaseSample], figure: str, *, same: bool) -> float:
    """Systematic standard uncertainty of ``b - a`` of a figure of joules.

    Different sensors are off independently. The same sensor is off by the same gain and zero on both sides, sees power
    as late, and the same device is as late behind its marks, so that only the difference of what these do counts. What
    else is systematic (the model, clocks, quantisation) comes from each side's own signal and is taken as independent.
    """
    u_a, u_b = u_systematic(a, figure), u_systematic(b, figure)
    rounding = _ROUNDING * max(number_of(s.record, figure) or 0.0 for s in [*a, *b])
    if not same:
        return hypot(u_a, u_b, rounding)
    of_a, of_b = _mean_sensors(a, figure), _mean_sensors(b, figure)
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


def _mean_sensors(side: Sequence[PhaseSample], figure: str) -> dict[str, Sensor]:
    """Mean part of each line in the joules of one batch or sample of one side."""
    parts: dict[str, list[tuple[float, Sensor]]] = {}
    for sample in side:
        for s in sample.sensors:
            parts.setdefault(s.identity, []).append((sample.work(figure), s))
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

_ALWAYS = ("kind", "phase", "phase_path", "timing", "provenance")
_OF_A_BATCH = ("iteration", "forward", "backward", "update")
_SETTINGS = (
    "model",
    "batch_size",
    "gpus",
    "device",
    "device_name",
    "power_cap_w",
    "clock_hz",
    "memory_clock_hz",
    "host",
)

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
    """The side that is compared with the first one: B where there are two."""
    change: float
    """``b - a``."""
    u95: float | None
    p: float | None
    repeats: str
    """What stood for repeats: `RUNS`, `SPREAD_OF_ONE`, `PHASES`, `FOLDED` or `NOTHING`."""
    is_same_sensor: bool
    other: int = 1
    """Which side ``b`` is: 1 is B, 2 is C."""
    is_of_batch: bool = True
    """Whether its phases are batches or parts of one. A program that is recorded as a whole has none."""

    @property
    def heading(self) -> str:
        """The figure for people."""
        text = "EDP/sample" if self.figure == EDP else column(self.figure).heading
        return text if self.is_of_batch else text.removesuffix("/batch")

    @property
    def is_joules(self) -> bool:
        return is_joules(self.figure)

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
    """All differences between A and the other sides; ``names`` says what each key is made of."""

    names: tuple[str, ...]
    rows: tuple[Difference, ...]
    settings: tuple[tuple[str, *tuple[Cell, ...]], ...]
    """What is one in all of each side and not the same in all sides, such as the power cap: its name, and by side."""
    only_a: int
    only_b: int
    """Rows of A, and of all other sides, without a counterpart."""
    unequal: int
    """Rows that match and are of batches of which the size is not known of all: such work does not compare."""
    ignored: tuple[str, ...] = ()
    """Settings by which rows need not match: those that differ in them alone are repeats."""
    sides: int = 2
    shared: tuple[str, ...] = ()
    """Of the runs in which another program was on the device, a sentence each."""


def compare(
    a: Sequence[PhaseSample], b: Sequence[PhaseSample], ignore: Sequence[str] = (), *others: Sequence[PhaseSample]
) -> Comparison:
    """Compare the phases and totals of two folders of runs, or of ``others`` too, each with A.

    Rows match by phase and by every setting that varies within a side, but for those to ``ignore`` and for
    attributes that name a run (`powerd_analytics.frame.figures.NO_FACTOR`); a setting that is one in all of A and
    another in all of B is what is compared. Batches of different size are compared by the sample, totals first.
    Measured, modelled and simulated joules are never compared with each other. Raises `AnalysisError` when nothing
    matches, which says what differs, and where one model's name stands for two models.
    """
    frame, sides = _of_one_frame((a, b, *others))
    check_runs(frame)
    names, settings = _settings(sides, factors_in(frame.columns))
    names, settings = _without_unstated(sides, names, settings)
    ignored = tuple(dict.fromkeys(_ignorable(name, frame) for name in ignore))
    names = tuple(name for name in names if name not in ignored)
    of_a, *of_others = (_by_key(side, names) for side in sides)
    for other, side in zip(of_others, sides[1:], strict=True):
        if not of_a.keys() & other.keys():
            raise AnalysisError(_nothing_in_common(sides[0], side, names))
    counterparts = set[Key]().union(*of_others)
    shared = [key for key in of_a if key in counterparts]
    rows, unequal = _differences(shared, (of_a, *of_others), names)
    if not rows:
        raise AnalysisError(_NO_SIZES if unequal else _NO_FIGURES)
    rows = _without_iterations(rows, names)
    rows = [replace(d, p=p) for d, p in zip(rows, holm([d.p for d in rows]), strict=True)]
    only_b = sum(len(other.keys() - of_a.keys()) for other in of_others)
    return Comparison(
        names, tuple(rows), settings, len(of_a) - len(shared), only_b, unequal, ignored, len(sides), shared_notes(frame)
    )


_NO_SIZES = (
    "the two have batches of different size, or of one that is not known: what differs is compared by the sample, for "
    "which phases need the attribute batch_size"
)
_NO_FIGURES = "the two have nothing in common: no phase of the same name has joules or seconds in both"


def _of_one_frame(given: Sequence[Sequence[PhaseSample]]) -> tuple[Frame, list[list[PhaseSample]]]:
    """A frame of all samples, and the sides with its rows as their records: one type a column."""
    frame = frame_from(s.record for side in given for s in side)
    records = iter(rows_of(frame))
    return frame, [[replace(s, record=next(records)) for s in side] for side in given]


def _differences(
    shared: Sequence[Key], sides: Sequence[Mapping[Key, Sequence[PhaseSample]]], names: Sequence[str]
) -> tuple[list[Difference], int]:
    """The figures that A and another side have in rows of one key, and how many of the keys have none, since some
    batches have no known size. Of one key all sides have the same figures, so that they are read in one line."""
    of_a, *of_others = sides
    figures = {key: _figures_of([s for side in sides for s in side.get(key, ())], names, key) for key in shared}
    if any(EDP in own for own in figures.values()):
        shared = sorted(shared, key=lambda key: key[names.index("kind")] != "total")
    differences = (
        _difference(key, figure, of_a[key], other[key], k)
        for key in shared
        for figure in figures[key]
        for k, other in enumerate(of_others, 1)
        if key in other
    )
    return [d for d in differences if d is not None], sum(not own for own in figures.values())


def _without_iterations(rows: Sequence[Difference], names: Sequence[str]) -> list[Difference]:
    """The rows without those of iterations that say what a total says: to test one number twice costs power."""
    of_phases = [k for k, name in enumerate(names) if name in ("kind", "phase", "phase_path", "timing")]

    def place(d: Difference) -> tuple[object, ...]:
        apart = tuple(value for k, value in enumerate(d.key) if k not in of_phases)
        return (*apart, d.figure, d.other, f"{d.a.value:.6g}", f"{d.b.value:.6g}")

    kind, phase = names.index("kind"), names.index("phase") if "phase" in names else names.index("phase_path")
    totals = {place(d) for d in rows if d.key[kind] == "total"}
    return [d for d in rows if not (str(d.key[phase]).rpartition("/")[2] == ITERATION and place(d) in totals)]


def _figures_of(same: Sequence[PhaseSample], names: Sequence[str], key: Key) -> tuple[str, ...]:
    """The figures that rows of one key are compared by; none where the size of some batches is not known."""
    sizes = {s.batch for s in same if s.record["s_per_batch"] is not None}
    if len(sizes) <= 1:
        return PER_BATCH
    if None in sizes:
        return ()
    return (PER_SAMPLE[0], EDP, PER_SAMPLE[1]) if key[names.index("kind")] == "total" else PER_SAMPLE


_KEPT = ("kind", "phase", "provenance")
"""By which rows always match: another phase is another thing, and so is a joule that nobody measured."""


def _ignorable(name: str, frame: Frame) -> str:
    """The column to match by that is meant by a name on the command line. Raises `AnalysisError` for one that stays."""
    meant, settings = dimension(name, frame), ("phase_path", "timing", *_SETTINGS)
    if meant in COLUMNS and meant not in settings:
        raise AnalysisError(
            f"--ignore {name}: it takes a setting ({', '.join(settings)}) or an attribute of the phases"
        )
    return meant


def _nothing_in_common(a: Sequence[PhaseSample], b: Sequence[PhaseSample], names: Sequence[str]) -> str:
    """What differs between the two, and which settings to ignore so that something is left to compare."""

    def values(side: Sequence[PhaseSample], name: str) -> str:
        every = dict.fromkeys(_value(s.record, name) for s in side)
        return first_of([_plain(name, v) for v in every if v is not None], ", ", 4) or "none"

    differ = {n: (values(a, n), values(b, n)) for n in names if n not in ("kind", "phase_path")}
    told = [
        f"{n.removeprefix(ATTRIBUTE)} {of_a} in A, {of_b} in B" for n, (of_a, of_b) in differ.items() if of_a != of_b
    ]
    free = [n for n in names if n not in _KEPT]
    remedy = "nothing that can be ignored would change that"
    for some in (some for count in range(1, len(free) + 1) for some in combinations(free, count)):
        left = tuple(n for n in names if n not in some)
        if _by_key(a, left).keys() & _by_key(b, left).keys():
            options = " ".join(f"--ignore {n.removeprefix(ATTRIBUTE)}" for n in some)
            remedy = f"{options} compares them nonetheless"
            break
    what = "; ".join(told) or "the same names and settings, in other combinations"
    return f"the two have nothing in common: {what}: {remedy}"


def _settings(
    sides: Sequence[Sequence[PhaseSample]], factors: Sequence[str]
) -> tuple[tuple[str, ...], tuple[tuple[str, *tuple[Cell, ...]], ...]]:
    """The columns by which rows match, and those in which all of one side differs from all of another."""
    names, different = [*_ALWAYS], list[tuple[str, *tuple[Cell, ...]]]()
    for name in (*_SETTINGS, *factors):
        by_side = [list(dict.fromkeys(_value(s.record, name) for s in side)) or [None] for side in sides]
        if any(len(values) > 1 for values in by_side):
            names.append(name)
        elif any(values != by_side[0] for values in by_side):
            different.append((name, *(values[0] for values in by_side)))
    return tuple(names), tuple(different)


def _without_unstated(
    sides: Sequence[Sequence[PhaseSample]], names: tuple[str, ...], settings: tuple[tuple[str, *tuple[Cell, ...]], ...]
) -> tuple[tuple[str, ...], tuple[tuple[str, *tuple[Cell, ...]], ...]]:
    """Settings that all of one side has at one level, and all of another at another, are what is compared also where
    some rows, as those of a warm-up, do not state them; as long as other columns keep these rows apart."""
    for name in names:
        stated = [list(dict.fromkeys(v for s in side if (v := _value(s.record, name)) is not None)) for side in sides]
        if any(len(values) != 1 for values in stated) or all(values == stated[0] for values in stated):
            continue
        rest = tuple(other for other in names if other != name)
        if all(len(_by_key(side, rest)) == len(_by_key(side, names)) for side in sides):
            names, settings = rest, (*settings, (name, *(values[0] for values in stated)))
    return names, settings


def _value(record: Record, name: str) -> Cell:
    cap = number_of(record, name) if name == "power_cap_w" else None
    return record[name] if cap is None else round(cap / CAP_STEP_W) * CAP_STEP_W


def _by_key(samples: Iterable[PhaseSample], names: Sequence[str]) -> dict[Key, list[PhaseSample]]:
    by_key: dict[Key, list[PhaseSample]] = {}
    for sample in samples:
        by_key.setdefault(tuple(_value(sample.record, n) for n in names), []).append(sample)
    return by_key


def is_joules(figure: str) -> bool:
    """Whether a figure has joules in it, and so a sensor's errors."""
    return not figure.startswith("s_")


def _is_of_batch(record: Record) -> bool:
    """Whether a row is of batches: their size is stated, or it is an iteration or inside one."""
    is_inside = "/" in str(record["phase_path"] or "") or record["is_iteration"] is True
    is_once = number_of(record, "iterations") == 1
    return record["batch_size"] is not None or is_inside or record["phase"] in _OF_A_BATCH or not is_once


def _difference(
    key: Key, figure: str, a: Sequence[PhaseSample], b: Sequence[PhaseSample], other: int = 1
) -> Difference | None:
    a, b = ([s for s in side if number_of(s.record, figure) is not None] for side in (a, b))
    if not a or not b:
        return None
    has_joules = is_joules(figure)
    *means, repeats = _means(figure, a, b)
    same = has_joules and same_sensors(a, b)
    sides = []
    for mean, side in zip(means, (a, b), strict=True):
        # The rows' means also hold the phases that are too short for single figures.
        value = float(np.mean([number_of(s.record, figure) or 0.0 for s in side]))
        is_bound = has_joules and any(s.record["is_lower_bound"] is True for s in side)
        by_chance = mean.u_statistical if mean else None
        sides.append(Side(value, by_chance, u_systematic(side, figure), len(side), is_bound))
    first, second = sides
    p = u95 = None
    if means[0] and means[1] and not (first.is_lower_bound or second.is_lower_bound):
        at_a, at_b = replace(means[0], value=first.value), replace(means[1], value=second.value)
        of_marks = max(first.u_systematic, second.u_systematic)
        p, u95 = difference(at_a, at_b, u_difference_j(a, b, figure, same=same) if has_joules else of_marks)
    is_of_batch = any(_is_of_batch(s.record) for s in (*a, *b))
    change = second.value - first.value
    return Difference(key, figure, first, second, change, u95, p, repeats, same, other, is_of_batch)


def _means(figure: str, a: Sequence[PhaseSample], b: Sequence[PhaseSample]) -> tuple[Figure | None, Figure | None, str]:
    """Both means with what repeats say of them: runs where there are several, else iterations of the single runs."""
    figures = [[f for s in side if (f := figure_of(s.record, figure)) is not None] for side in (a, b)]
    several = [own for own in figures if len(own) > 1]
    if len(several) == 2:
        return mean_of_repeats(figures[0]), mean_of_repeats(figures[1]), RUNS
    if several:
        # One run has no spread of its own: that of the other side's runs stands for it, with its freedom.
        (repeats,) = several
        mean, n = mean_of_repeats(repeats), len(repeats)
        wide = sqrt(n + 1) * (mean.u_statistical or 0.0)
        means = [
            _by_chance(float(np.mean([f.value for f in own])), wide if len(own) > 1 else 0.0, mean.degrees_of_freedom)
            for own in figures
        ]
        return means[0], means[1], SPREAD_OF_ONE
    first, second = (_mean_of_phases(side[0], figure) for side in (a, b))
    if first is not None and second is not None:
        return first, second, PHASES
    first, second = (first or _mean_of_fold(a[0], figure), second or _mean_of_fold(b[0], figure))
    return (first, second, FOLDED) if first is not None and second is not None else (None, None, NOTHING)


def _mean_of_phases(sample: PhaseSample, figure: str) -> Figure | None:
    has_joules = is_joules(figure)
    series = (sample.joules if has_joules else sample.seconds) / sample.size(figure)
    if len(series) < 2:
        return None
    mean = mean_of_series(series)
    measured = (number_of(sample.record, "u_statistical_j") or 0.0) / sample.work(figure) if has_joules else 0.0
    # Phases that happen to agree are still known no better than their readings let them be.
    return replace(mean, u_statistical=max(mean.u_statistical or 0.0, measured))


def _mean_of_fold(sample: PhaseSample, figure: str) -> Figure | None:
    """Of phases that have joules only together: what the mean is said to be unsure of by chance. A training over
    several machines has no single phases, folded or not."""
    record = sample.record
    n, u, value = (number_of(record, name) for name in ("iterations", "u_statistical_j", figure))
    is_folded = record["machines"] is None and record["kind"] == "phase" and is_joules(figure)
    if not is_folded or value is None or not n or n < 2 or not u:
        return None
    return _by_chance(value, u / sample.work(figure), n - 1)


# -- as a table, and in words ------------------------------------------------------------------------------------------


def verdict(d: Difference) -> str:
    """What a reader may take from a row."""
    if d.a.is_lower_bound or d.b.is_lower_bound:
        return "not comparable: a lower bound"
    if d.p is None:
        why = "no repeats to tell" if d.repeats == NOTHING else "no uncertainty to compare with"
        return "equal" if d.change == 0 else why
    if not d.is_distinguishable:
        return "not told apart"
    return f"{LETTERS[d.other]} {'more' if d.change > 0 else 'less'}"


def gate_failures(comparison: Comparison, percent: float) -> list[str]:
    """What a gate refuses, a sentence each: joules that rose by more than so many per cent, where that is told from
    chance and is more than its U95."""
    return [
        f"{_named(comparison.names, d)} rose by {d.change_percent:.3g} ± {d.u95_percent:.2g} %, more than {percent:g} %"
        for d in comparison.rows
        if d.is_joules
        and d.is_distinguishable
        and d.change_percent is not None
        and d.u95_percent is not None
        and d.change_percent > max(percent, d.u95_percent)
    ]


def _named(names: Sequence[str], d: Difference) -> str:
    parts = [str(value) for name, value in zip(names, d.key, strict=True) if value is not None and name != "kind"]
    return f"{d.heading} of {', '.join(parts)}"


LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""The sides."""


_OF_A_ROW = (
    Column("figure"),
    Column("a", "number", heading="A", sign="≥"),
    Column("b", "number", heading="B", sign="≥"),
    Column("change", "number", is_hidden=True),
    Column("u95_change", "number", is_uncertainty=True, is_hidden=True),
    Column("change_percent", "number", "%", heading="B - A %"),
    Column("u95_change_percent", "number", "%", heading="± U95", is_uncertainty=True),
    Column("p", "number", "1", heading="p (Holm)", is_uncertainty=True),
    Column("verdict"),
    Column("runs_a", "integer", "1", heading="runs A"),
    Column("runs_b", "integer", "1", heading="runs B"),
    Column("repeats"),
    Column("same_sensor", "flag", heading="same sensor"),
)
"""Columns of a comparison, behind those by which its rows match."""


def comparison_table(comparison: Comparison, *labels: str) -> Table:
    """One row for each figure, with its difference and what that means; of more than two sides, one for each side."""
    title = ", ".join(f"{LETTERS[k]} = {label}" for k, label in enumerate(labels))
    if comparison.sides > 2:
        return _table_of_many(comparison, title)
    rows = comparison.rows
    cells = [(*_key_cells(comparison.names, d), *_cells(d)) for d in rows]
    keys, common = _told_once(_key_columns(comparison), cells)
    columns = [*keys, *_columns(rows)]
    at = [c.name for c in columns].index("a")
    bounds = [(i, at + k) for i, d in enumerate(rows) for k, side in enumerate((d.a, d.b)) if side.is_lower_bound]
    return make_table("compare", title, columns, cells, _notes(comparison, common), bounds)


def _notes(comparison: Comparison, common: Sequence[str]) -> list[str]:
    finding, *others = comparison_sentences(comparison)
    return [finding, *([f"All rows: {', '.join(common)}."] if common else []), *others]


_OF_A_SIDE = (
    Column("figure"),
    Column("side"),
    Column("value", "number", sign="≥"),
    Column("change", "number", is_hidden=True),
    Column("u95_change", "number", is_uncertainty=True, is_hidden=True),
    Column("change_percent", "number", "%", heading="- A %", missing=""),
    Column("u95_change_percent", "number", "%", heading="± U95", is_uncertainty=True, missing=""),
    Column("p", "number", "1", heading="p (Holm)", is_uncertainty=True, missing=""),
    Column("verdict"),
    Column("runs", "integer", "1", is_hidden=True),
    Column("repeats", is_hidden=True),
    Column("same_sensor", "flag", is_hidden=True),
)
"""Columns where more than two sides are compared, behind those by which rows match."""


def _table_of_many(comparison: Comparison, title: str) -> Table:
    """A row for each figure and side: the first has the value that the others are compared with."""
    cells: list[tuple[Cell, ...]] = []
    bounds = []
    at = len(comparison.names) + [c.name for c in _OF_A_SIDE].index("value")
    first: tuple[Key, str] | None = None
    for d in comparison.rows:
        key = (*_key_cells(comparison.names, d), d.heading)
        if first != (d.key, d.figure):
            first = (d.key, d.figure)
            bounds += [(len(cells), at)] if d.a.is_lower_bound else []
            cells.append((*key, "A", d.a.value, *(None,) * 5, "", d.a.runs, None, None))
        bounds += [(len(cells), at)] if d.b.is_lower_bound else []
        change = (d.change, d.u95, d.change_percent, d.u95_percent, d.p)
        cells.append((*key, LETTERS[d.other], d.b.value, *change, verdict(d), d.b.runs, d.repeats, d.is_same_sensor))
    keys, common = _told_once(_key_columns(comparison), cells)
    return make_table("compare", title, [*keys, *_OF_A_SIDE], cells, _notes(comparison, common), bounds)


def _told_once(keys: Sequence[Column], cells: Sequence[Sequence[Cell]]) -> tuple[list[Column], list[str]]:
    """The first columns of a table, without those for people that are the same in all rows; and what these say."""
    columns, common = [], []
    for k, c in enumerate(keys):
        values = {row[k] for row in cells}
        if len(values) > 1 or c.is_hidden or c.name in ("phase", "phase_path"):
            columns.append(c)
            continue
        columns.append(replace(c, is_hidden=True))
        (value,) = values
        if value is not None:
            is_plain = c.name in COLUMNS and c.kind == "text"
            common.append(_plain(c.name, value) if is_plain else f"{c.heading} {_plain(c.name, value)}")
    return columns, common


def _key_columns(comparison: Comparison) -> list[Column]:
    """The columns by which rows match; phases by their path only where the name alone would not tell."""
    names, hidden = comparison.names, {"kind", "timing"}
    if "phase_path" in names:
        places = {tuple(d.key[names.index(n)] for n in ("phase", "phase_path")) for d in comparison.rows}
        hidden.add("phase_path" if len({phase for phase, _ in places}) == len(places) else "phase")
    return [replace(column(n), sign="", is_hidden=n in hidden) for n in names]


def _key_cells(names: Sequence[str], d: Difference) -> list[Cell]:
    return ["all" if n.startswith("phase") and v is None else v for n, v in zip(names, d.key, strict=True)]


def _cells(d: Difference) -> tuple[Cell, ...]:
    figures = (d.a.value, d.b.value, d.change, d.u95, d.change_percent, d.u95_percent, d.p)
    about = (verdict(d), d.a.runs, d.b.runs, d.repeats, d.is_same_sensor)
    return d.heading, *figures, *about


def _columns(rows: Sequence[Difference]) -> list[Column]:
    """Those of `_OF_A_ROW`, without those for people that say the same of all rows. Rows that nothing repeats say so in
    their verdict, and seconds have no sensor."""
    each_runs = {(d.a.runs, d.b.runs) for d in rows}  # both are shown, or neither
    values: dict[str, Collection[object]] = {
        "figure": {d.figure for d in rows},
        "runs_a": each_runs,
        "runs_b": each_runs,
        "repeats": {d.repeats for d in rows if d.repeats != NOTHING},
        "same_sensor": {d.is_same_sensor for d in rows if d.is_joules},
    }
    told_once = [name for name, own in values.items() if len(own) <= 1]
    return [replace(c, is_hidden=c.is_hidden or c.name in told_once) for c in _OF_A_ROW]


def comparison_sentences(comparison: Comparison) -> list[str]:
    """The comparison in sentences: the main finding first, then what it rests on."""
    tested = [d for d in comparison.rows if d.p is not None]
    joules = [d.is_same_sensor for d in comparison.rows if d.is_joules]
    ignored = ", ".join(column(n).heading if n.startswith(ATTRIBUTE) else n for n in comparison.ignored)
    each = "; ".join(f"{column(name).heading} {_by_side(name, values)}" for name, *values in comparison.settings)
    others = "B" if comparison.sides == 2 else "the others"
    sentences = {
        _summary(tested, comparison): True,
        f"Settings that differ: {each}.": each,
        "Batches differ in size: joules, seconds and EDP (J s) are of one sample.": any(
            d.figure in PER_SAMPLE for d in comparison.rows
        ),
        f"Not compared: {comparison.unequal} rows of batches of which some have no known size.": comparison.unequal,
        _runs_text(comparison): True,
        "± U95 is of a row by itself; p counts that so many rows were looked at.": bool(tested),
        "p is of the difference from A.": comparison.sides > 2 and bool(tested),
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
        **dict.fromkeys((f"{text}." for text in comparison.shared), True),
        f"Ignored: {ignored}; rows that differ in nothing else are taken for repeats.": ignored,
        f"Without a counterpart: {comparison.only_a} rows of A, {comparison.only_b} of {others}.": (
            comparison.only_a or comparison.only_b
        ),
    }
    return [sentence for sentence, is_so in sentences.items() if sentence and is_so]


def _runs_text(comparison: Comparison) -> str:
    """How many runs each side has, where that is so in all rows."""
    counts = {(d.a.runs, d.b.runs) for d in comparison.rows}
    if comparison.sides > 2 or len(counts) > 1:
        return ""
    ((a, b),) = counts
    return f"{a} runs of A, {b} of B."


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
    change = f"{largest.heading} {sign}{with_u95(largest.change_percent or 0.0, largest.u95_percent, '%')}"
    change += f" ({LETTERS[largest.other]})" if comparison.sides > 2 else ""
    return f"{len(clear)} of {len(tested)} differences are distinguishable ({level}); the largest: {place}, {change}."


def _by_side(name: str, values: Sequence[Cell]) -> str:
    return ", ".join(f"{_plain(name, value)} in {LETTERS[k]}" for k, value in enumerate(values))


def _plain(name: str, value: Cell) -> str:
    if value is None:
        return "not known"
    return cell_text(name, value) if is_number_cell(value) else str(value)
