"""A figure: a value with the parts of its standard uncertainty; figures of the rows of a frame, and their sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot, inf, sqrt

import numpy as np

from powerd_analytics.energy.uncertainty import NORMAL, expanded_uncertainty, one_rectangle
from powerd_analytics.output.text import Cell, is_number_cell
from powerd_core.errors import AnalysisError

Record = dict[str, Cell]
"""One row of a frame, to read: None where there is no value."""


def number_of(record: Mapping[str, Cell], name: str) -> float | None:
    """A cell that is a number, else None."""
    value = record.get(name)
    return float(value) if is_number_cell(value) else None


_BY_TIME = ("s_per_batch", "samples_per_s", "s_per_sample", "s_per_training", "time_s")
VALUES = (*_BY_TIME, "power_w", "energy_j", "edp_js", "j_per_batch", "j_per_sample", "j_per_token",
          "edp_per_sample_js", "j_per_training", "gflops_per_w")  # fmt: skip
"""Columns that are figures: a cell of a pivot can hold them."""


NODES = ("node", "wall")
"""Devices that are whole machines, of which GPUs take a share."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A value with the two parts of its standard uncertainty, in its own unit; None where a part is not known."""

    value: float
    u_statistical: float | None = None
    u_systematic: float | None = None
    rectangle: float = 0.0
    """The one rectangle that the limits within ``u_systematic`` amount to."""
    degrees_of_freedom: float = inf
    """Of ``u_statistical``: n - 1 for the mean of n repeats."""
    is_lower_bound: bool = False
    """Known from one side: joules and what grows with them at least, figures per joule at most."""

    @property
    def u95(self) -> float | None:
        """Expanded uncertainty; None where nothing is known of it or the value is a bound."""
        if self.is_lower_bound or (self.u_statistical is None and self.u_systematic is None):
            return None
        return float(
            expanded_uncertainty(
                self.u_statistical or 0.0, self.u_systematic or 0.0, self.rectangle, self.degrees_of_freedom
            )
        )

    def scaled(self, by: float) -> Figure:
        """Times a factor that is known exactly."""
        u = [None if u is None else abs(by) * u for u in (self.u_statistical, self.u_systematic)]
        return replace(
            self, value=by * self.value, u_statistical=u[0], u_systematic=u[1], rectangle=abs(by) * self.rectangle
        )

    def shifted(self, by: float) -> Figure:
        """With a number added that is known exactly."""
        return replace(self, value=by + self.value)

    def inverse(self) -> Figure:
        """One over it, to first order."""
        return replace(self.scaled(1 / self.value**2), value=1 / self.value)


def figure_of(record: Mapping[str, Cell], name: str) -> Figure | None:
    """The figure ``name`` of a row, None where it has no value. Raises `AnalysisError` for what is no figure.

    Energy and what is proportional to it take the joules' relative uncertainty.
    """
    if name not in VALUES:
        raise AnalysisError(f"{name!r} is no figure of a table: choose one of {', '.join(VALUES)}")
    value = number_of(record, name)
    if value is None:
        return None
    freedom = number_of(record, "degrees_of_freedom_s" if name in _BY_TIME else "degrees_of_freedom")
    freedom = inf if freedom is None else freedom

    def share(u_name: str, of: str) -> float | None:
        u, whole = number_of(record, u_name), number_of(record, of)
        return u / abs(whole) * abs(value) if u is not None and whole else None

    if name in _BY_TIME:
        of = "s_per_batch" if number_of(record, "s_per_batch") is not None else "time_s"
        return Figure(value, share("u_s_per_batch", of), degrees_of_freedom=freedom)
    is_bound = record.get("is_lower_bound") is True
    if name == "gflops_per_w":
        parts = (number_of(record, "u_statistical_gflops_per_w"), number_of(record, "u_systematic_gflops_per_w"))
        share_of_limits = (share("rectangle_j", "u_systematic_j") or 0.0) / abs(value)
        return Figure(value, *parts, (parts[1] or 0.0) * share_of_limits, freedom, is_bound)
    joules = joules_column(record)
    parts = (share("u_statistical_j", joules), share("u_systematic_j", joules))
    return Figure(value, *parts, share("rectangle_j", joules) or 0.0, freedom, is_bound)


def figure_of_u95(value: float, u95: float | None) -> Figure:
    """A figure of which the 95 % interval alone is known."""
    return Figure(value, None if u95 is None else u95 / NORMAL)


def joules_column(record: Mapping[str, Cell]) -> str:
    """The column whose uncertainties a row has."""
    return "j_per_batch" if record["kind"] == "phase" else "energy_j"


def mean_of_cells(figures: Sequence[Figure]) -> Figure:
    """The mean of figures of different things, such as the columns of a pivot. That they differ is no uncertainty;
    where nothing is known of one's, nothing is of the mean's. What is systematic is taken as shared."""
    if len(figures) == 1:
        return figures[0]
    n, mean = len(figures), float(np.mean([f.value for f in figures]))
    is_bound = any(f.is_lower_bound for f in figures)
    if any(f.u95 is None for f in figures):
        return Figure(mean, is_lower_bound=is_bound)
    statistical = [f.u_statistical or 0.0 for f in figures]
    systematic = [f.u_systematic or 0.0 for f in figures]
    return Figure(
        mean,
        hypot(*statistical) / n,
        float(np.mean(systematic)),
        float(np.mean([f.rectangle for f in figures])),
        freedom_of_sum(figures),
        is_bound,
    )


def sum_of_figures(figures: Sequence[Figure], devices: Sequence[object]) -> Figure:
    """The sum of figures of one kind: different ``devices`` are different sensors, off independently of each other;
    what is of one device is off together."""
    by_device: dict[object, list[Figure]] = {}
    for figure, device in zip(figures, devices, strict=True):
        by_device.setdefault(device, []).append(figure)
    sums = []
    for same in by_device.values():
        u = [[getattr(f, name) for f in same] for name in ("u_statistical", "u_systematic")]
        parts = [None if None in of else float(sum(of)) for of in u]
        sums.append(replace(same[0], value=sum(f.value for f in same), u_statistical=parts[0], u_systematic=parts[1],
                            rectangle=sum(f.rectangle for f in same)))  # fmt: skip
    unsure = [[getattr(f, name) for f in sums] for name in ("u_statistical", "u_systematic")]
    parts = [None if None in of else hypot(*of) for of in unsure]
    rectangle = float(one_rectangle(*(f.rectangle for f in sums)))
    is_bound = any(f.is_lower_bound for f in figures)
    return Figure(sum(f.value for f in sums), parts[0], parts[1], rectangle, freedom_of_sum(sums), is_bound)


def of_all_cards(measured: Sequence[Figure], counts: Sequence[int], spread: float) -> Figure:
    """What all cards of a machine took, of which one of each kind was measured, all by one instrument.

    ``counts`` says how many there are of each kind, ``spread`` the relative standard deviation of cards of one kind.
    The measured card's own deviation counts n - 1 times, those of the others once each.
    """
    scaled = [figure.scaled(n) for figure, n in zip(measured, counts, strict=True)]
    statistical = [f.u_statistical for f in scaled]
    systematic = [f.u_systematic for f in scaled if f.u_systematic is not None]
    unlike = [spread * f.value * sqrt(n * (n - 1)) for f, n in zip(measured, counts, strict=True)]
    is_sure = not systematic and not any(unlike)
    return Figure(
        sum(f.value for f in scaled),
        None if None in statistical else hypot(*(u or 0.0 for u in statistical)),
        None if is_sure else hypot(sum(systematic), *unlike),
        sum(f.rectangle for f in scaled),
        freedom_of_sum(scaled),
        any(f.is_lower_bound for f in scaled),
    )


def freedom_of_sum(figures: Sequence[Figure]) -> float:
    """Degrees of freedom of the statistical uncertainty of a sum of independent figures (Welch and Satterthwaite)."""
    u = [f.u_statistical or 0.0 for f in figures]
    spread = sum(x**4 / f.degrees_of_freedom for x, f in zip(u, figures, strict=True) if x > 0)
    return hypot(*u) ** 4 / spread if spread > 0 else inf
