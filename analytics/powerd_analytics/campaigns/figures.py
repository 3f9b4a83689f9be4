"""Figures of a record with both parts of their uncertainty: what cells of tables and comparisons are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from powerd_analytics.energy.negligible import known
from powerd_analytics.energy.uncertainty import COVERAGE_FACTOR
from powerd_analytics.records.columns import Record, number_of
from powerd_core.errors import AnalysisError

_BY_ENERGY = ("power_w", "energy_j", "edp_js", "j_per_batch")
_BY_TIME = ("s_per_batch", "samples_per_s", "time_s")
VALUES = (*_BY_TIME, *_BY_ENERGY, "gflops_per_w")
"""Columns of a record that a cell of a pivot can hold."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A value with the two parts of its standard uncertainty, in its own unit; None where a part is not known."""

    value: float
    u_statistical: float | None = None
    u_systematic: float | None = None
    is_lower_bound: bool = False
    """Known from one side: joules and what grows with them at least, figures per joule at most."""
    count: int = 1
    """Figures that it is the mean of."""
    interval: float | None = None
    """Half of the 95 % interval, where the shapes of its parts are known: that of a single record's joules."""

    @property
    def u95(self) -> float | None:
        """Expanded uncertainty; None where nothing is known of it or the value is a bound."""
        if self.interval is not None and not self.is_lower_bound:
            return self.interval
        known = [u for u in (self.u_statistical, self.u_systematic) if u is not None]
        if not known or self.is_lower_bound:
            return None
        return COVERAGE_FACTOR * float(np.sqrt(np.sum(np.square(known))))


def figure_of(record: Record, name: str) -> Figure | None:
    """The figure ``name`` of a record, None where it has no value. Raises `AnalysisError` for what is no figure.

    Energy and what is proportional to it take the joules' relative uncertainty, with the seconds' where both count.
    """
    if name not in VALUES:
        raise AnalysisError(f"{name!r} is no figure of a table: choose one of {', '.join(VALUES)}")
    value = number_of(record, name)
    if value is None:
        return None
    bound = record["is_lower_bound"] is True and name not in _BY_TIME
    if name == "gflops_per_w":
        parts = (number_of(record, "u_statistical_gflops_per_w"), number_of(record, "u_systematic_gflops_per_w"))
        return Figure(value, *parts, bound)
    relative_s = _relative(number_of(record, "u_s_per_batch"), number_of(record, "s_per_batch"))
    if name in _BY_TIME:
        return Figure(value, None if relative_s is None else value * relative_s)
    joules = number_of(record, "j_per_batch" if record["kind"] == "phase" else "energy_j")
    statistical = _relative(number_of(record, "u_statistical_j"), joules)
    systematic = _relative(number_of(record, "u_systematic_j"), joules)
    relative_u95 = _relative(number_of(record, "u95_j"), joules)
    if statistical is None and systematic is None and relative_u95 is not None:
        # Of a whole recording only the two together are known; nothing of it averages out.
        systematic = relative_u95 / COVERAGE_FACTOR
    parts = (_times(statistical, value), _times(systematic, value))
    return Figure(value, *parts, bound, interval=_times(relative_u95, value))


def mean_figure(figures: Sequence[Figure]) -> Figure:
    """The mean of repeats, or of cells: what is statistical averages out, what is systematic does not.

    As for phases of a kind (`mean_of`): the larger of the repeats' spread and of what each is known to be unsure of.
    """
    n = len(figures)
    if n == 1:
        return replace(figures[0], count=1)
    values = np.array([f.value for f in figures])
    statistical = [f.u_statistical for f in figures if f.u_statistical is not None]
    systematic = [f.u_systematic for f in figures if f.u_systematic is not None]
    of_singles = float(np.sqrt(np.sum(np.square(statistical))) / n) if statistical else 0.0
    of_spread = known(float(np.std(values, ddof=1) / np.sqrt(n)), float(values.mean()))
    return Figure(
        float(values.mean()),
        max(of_singles, of_spread),
        float(np.mean(systematic)) if systematic else None,
        any(f.is_lower_bound for f in figures),
        n,
    )


def mean_of_cells(figures: Sequence[Figure]) -> Figure:
    """The mean of cells of different configurations: their differences are no uncertainty.

    Systematic parts are taken as shared by all cells, so that the mean has their mean. Where nothing is known of one
    cell's uncertainty, nothing is of the mean's.
    """
    mean = mean_figure(figures)
    if len(figures) < 2:
        return mean
    if any(f.u95 is None for f in figures):
        return replace(mean, u_statistical=None, u_systematic=None)
    parts = [f.u_statistical for f in figures if f.u_statistical is not None]
    shared = sum(f.u_systematic or 0.0 for f in figures) / len(figures)
    known = float(np.sqrt(np.sum(np.square(parts))) / len(figures)) if parts else None
    return replace(mean, u_statistical=known, u_systematic=shared if mean.u_systematic is not None else None)


def _relative(u: float | None, value: float | None) -> float | None:
    return u / abs(value) if u is not None and value else None


def _times(relative: float | None, value: float) -> float | None:
    return None if relative is None else relative * abs(value)
