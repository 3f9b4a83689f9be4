"""Two runs or campaigns side by side: how much each figure differs, and whether by more than chance and sensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from powerd_analytics.comparison.samples import Sample, Values
from powerd_analytics.comparison.sharedsensors import same_sensors, u_difference_j, u_systematic_j
from powerd_analytics.comparison.significance import (
    LEVEL,
    Mean,
    difference_p,
    difference_u95,
    holm,
    mean_of_repeats,
    mean_of_series,
)
from powerd_analytics.records.columns import Cell, Record, number_of
from powerd_analytics.records.frame import attributes_of
from powerd_core.errors import AnalysisError

FIGURES = ("j_per_batch", "s_per_batch")
MARK_S = 1e-9
"""Marks are whole nanoseconds: no difference is known better, however alike the repeats."""
_ALWAYS = ("kind", "phase", "phase_path", "timing", "provenance")
_SETTINGS = ("model", "batch_size", "gpus", "device", "device_name", "power_cap_w", "clock_hz", "host")
_ATTRIBUTE = "attribute "

RUNS, SPREAD_OF_ONE, PHASES, FOLDED, NOTHING = (
    "runs", "runs of one side, the other has one", "blocks of iterations of one run", "iterations folded",
    "no repeats",
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


def compare(a: Sequence[Sample], b: Sequence[Sample]) -> Comparison:
    """Compare the phases and totals of two campaigns.

    Rows match by phase and by every setting that varies within A or within B; a setting that is one in all of A and
    another in all of B is what is compared. Measured, modelled and simulated joules are never compared with each other.
    Raises `AnalysisError` when nothing matches.
    """
    names, settings = _settings([s.record for s in a], [s.record for s in b])
    of_a, of_b = _by_key(a, names), _by_key(b, names)
    both = [key for key in of_a if key in of_b]
    if not both:
        raise AnalysisError("the two have nothing in common: no phase of the same name, settings and provenance")
    found = [
        d for key in both for figure in FIGURES if (d := _difference(key, figure, of_a[key], of_b[key])) is not None
    ]
    if not found:
        raise AnalysisError("no row of the two has joules or seconds on both sides")
    corrected = holm([d.p for d in found])
    rows = tuple(replace(d, p=p) for d, p in zip(found, corrected, strict=True))
    return Comparison(names, rows, settings, len(of_a) - len(both), len(of_b) - len(both))


def _settings(a: Sequence[Record], b: Sequence[Record]) -> tuple[tuple[str, ...], tuple[tuple[str, Cell, Cell], ...]]:
    """The columns by which rows match, and those in which all of A differs from all of B."""
    attributes = dict.fromkeys(_ATTRIBUTE + k for r in [*a, *b] for k in attributes_of(r))
    names, different = [*_ALWAYS], []
    for name in (*_SETTINGS, *attributes):
        in_a, in_b = (list(dict.fromkeys(_value(r, name) for r in side)) for side in (a, b))
        if name == "clock_hz" and not any(r["clock_set"] is True for r in [*a, *b]):
            continue  # observed, not chosen: it varies by itself
        if len(in_a) > 1 or len(in_b) > 1:
            names.append(name)
        elif in_a != in_b:
            different.append((name.removeprefix(_ATTRIBUTE), in_a[0] if in_a else None, in_b[0] if in_b else None))
    return tuple(names), tuple(different)


def _value(record: Record, name: str) -> Cell:
    if name.startswith(_ATTRIBUTE):
        return attributes_of(record).get(name.removeprefix(_ATTRIBUTE))
    cap = number_of(record, name) if name == "power_cap_w" else None
    return record[name] if cap is None else float(round(cap))


def _by_key(samples: Iterable[Sample], names: Sequence[str]) -> dict[Key, list[Sample]]:
    found: dict[Key, list[Sample]] = {}
    for sample in samples:
        found.setdefault(tuple(_value(sample.record, n) for n in names), []).append(sample)
    return found


def _difference(key: Key, figure: str, a: Sequence[Sample], b: Sequence[Sample]) -> Difference | None:
    a, b = ([s for s in side if number_of(s.record, figure) is not None] for side in (a, b))
    if not a or not b:
        return None
    mean_a, mean_b, repeats = _means(figure, a, b)
    is_joules = figure == "j_per_batch"
    same = is_joules and same_sensors(a, b)
    systematic = u_difference_j(a, b, same=same) if is_joules else MARK_S
    bound = is_joules and any(s.record["is_lower_bound"] is True for s in [*a, *b])
    value_a, value_b = (float(np.mean([number_of(s.record, figure) or 0.0 for s in side])) for side in (a, b))
    p = u95 = None
    if mean_a is not None and mean_b is not None and not bound:
        # The records' means also hold the phases that are too short for single figures.
        at_a, at_b = Mean(value_a, mean_a.u, mean_a.dof), Mean(value_b, mean_b.u, mean_b.dof)
        p = difference_p(at_a, at_b, systematic)
        u95 = difference_u95(at_a, at_b, systematic)
    side_a, side_b = (
        Side(
            value=value,
            u_statistical=mean.u if mean else None,
            u_systematic=u_systematic_j(side) if is_joules else MARK_S,
            runs=len(side),
            is_lower_bound=is_joules and any(s.record["is_lower_bound"] is True for s in side),
        )
        for value, mean, side in ((value_a, mean_a, a), (value_b, mean_b, b))
    )
    return Difference(key, figure, side_a, side_b, value_b - value_a, u95, p, repeats, same)


def _means(figure: str, a: Sequence[Sample], b: Sequence[Sample]) -> tuple[Mean | None, Mean | None, str]:
    """Both means with what repeats say of them: runs where there are several, else blocks within the single runs."""
    values = [np.array([number_of(s.record, figure) or 0.0 for s in side]) for side in (a, b)]
    several = [v for v in values if len(v) > 1]
    if len(several) == 2:
        return mean_of_repeats(values[0]), mean_of_repeats(values[1]), RUNS
    if several:
        # One run has no spread of its own: that of the other side's runs stands for it, with its freedom.
        of_one = float(np.std(several[0], ddof=1))
        freedom = len(several[0]) - 1
        both = [mean_of_repeats(v) if len(v) > 1 else Mean(float(v[0]), 0.0, freedom) for v in values]
        wide = sqrt(1 + 1 / len(several[0])) * of_one
        at = 0 if len(values[0]) > 1 else 1
        both[at] = Mean(both[at].value, wide, freedom)
        return both[0], both[1], SPREAD_OF_ONE
    first, second = (_mean_of_blocks(side[0], figure) for side in (a, b))
    if first is not None and second is not None:
        return first, second, PHASES
    first, second = (first or _mean_of_fold(a[0], figure), second or _mean_of_fold(b[0], figure))
    return (first, second, FOLDED) if first is not None and second is not None else (None, None, NOTHING)


def _mean_of_blocks(sample: Sample, figure: str) -> Mean | None:
    series = _phases(sample, figure)
    if len(series) < 2:
        return None
    mean = mean_of_series(series)
    # Phases that happen to agree are still known no better than their readings let them be.
    of_singles = number_of(sample.record, "u_statistical_j") if figure == "j_per_batch" else None
    return Mean(mean.value, max(mean.u, of_singles or 0.0), mean.dof)


def _mean_of_fold(sample: Sample, figure: str) -> Mean | None:
    """Of phases that have joules only together: what the mean is said to be unsure of by chance."""
    n, u = number_of(sample.record, "iterations"), number_of(sample.record, "u_statistical_j")
    value = number_of(sample.record, figure)
    if sample.record["machines"] is not None:
        return None  # of a training over several machines there are no single phases, folded or not
    if sample.record["kind"] != "phase" or figure != "j_per_batch" or not n or n < 2 or not u or value is None:
        return None
    return Mean(value, u, n - 1)


def _phases(sample: Sample, figure: str) -> Values:
    return sample.joules if figure == "j_per_batch" else sample.seconds
