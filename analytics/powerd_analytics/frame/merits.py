"""Figures of merit: what of several settings is to be lowest, or highest. One table, one spelling.

``e``, ``time``, ``edp`` and ``ed2p`` are products of powers of energy and time; ``eds:K`` is the energy-delay sum of
Krzywaniak et al., and ``sml`` the saving of energy minus the loss of time. These need energy and time alone, also as
ratios to a reference. ``cost``, ``money``, ``gflops_per_w`` and ``j_per_sample`` need more, see `Given`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy import metrics
from powerd_analytics.output.text import parse_number
from powerd_core.errors import AnalysisError
from powerd_core.text import printable

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Given:
    """What merits need of settings [n] that are compared, beside their energy and time."""

    reference: tuple[float, float] = (1.0, 1.0)
    """Joules and seconds of the reference."""
    joules: Values | None = None
    gflops_per_w: Values | None = None
    samples: Values | None = None
    """How many samples the joules are of: 1 where these are of one."""
    eta: float = 0.5
    max_power_w: float = 0.0
    price_per_kwh: float = 0.0


@dataclass(frozen=True, slots=True)
class Merit:
    """A figure of merit."""

    name: str
    heading: str
    column: str
    """Of its value in a table."""
    per_sample: str
    """The same where unequal work is compared by the sample."""
    unit: str = ""
    exponents: tuple[float, float] | None = None
    """Of energy and time, where it is a product."""
    k: float | None = None
    """Of an energy-delay sum."""
    of: Callable[[Values, Values, Given], Values] | None = None
    """Any other function of joules and seconds."""
    is_highest: bool = False

    @property
    def ratio_column(self) -> str:
        """Of its ratio to the reference, block by block, in the cells of a campaign; ``u95_`` before it is its U95."""
        return f"{self.name.replace(':', '_')}_ratio"

    @property
    def within_column(self) -> str:
        """Of the per cent by which a cell of a campaign may be worse than the best one: 0 at the best, empty where it
        is not as good. Whoever shows the best of these cells reads it from there."""
        return f"{self.name.replace(':', '_')}_within_pct"

    @property
    def is_relative(self) -> bool:
        """Whether energy and time as ratios to a reference say it."""
        return self.of is None

    def value(self, energy: Values, time: Values, given: Given) -> Values:
        """Of joules and seconds [n]."""
        if self.of is not None:
            return np.asarray(self.of(energy, time, given), np.float64)
        if self.exponents is not None:
            return np.asarray(energy ** self.exponents[0] * time ** self.exponents[1], np.float64)
        if self.is_highest:
            return np.asarray(metrics.saving_minus_loss_pct(energy, time, *given.reference), np.float64)
        return np.asarray(metrics.eds(energy, time, *given.reference, self.k or 2.0), np.float64)

    def ratio(self, energy: float, time: float) -> float:
        """Of energy and time relative to a reference: 1 there, and to be lowest, also for what is to be highest."""
        if self.exponents is not None:
            return float(energy ** self.exponents[0] * time ** self.exponents[1])
        return float(metrics.eds(energy, time, 1.0, 1.0, self.k or 2.0))

    def logarithm(self, log_e: Values, log_t: Values) -> Values:
        """ln of `ratio` [...] by ln energy and ln time."""
        if self.exponents is not None:
            return self.exponents[0] * log_e + self.exponents[1] * log_t
        return np.asarray(np.log(metrics.eds(np.exp(log_e), np.exp(log_t), 1.0, 1.0, self.k or 2.0)), np.float64)

    def slopes(self, log_e: Values, log_t: Values) -> tuple[Values, Values]:
        """Derivatives of `logarithm` by ln E and by ln t."""
        if self.exponents is not None:
            return np.full_like(log_e, self.exponents[0]), np.full_like(log_t, self.exponents[1])
        k = self.k or 2.0
        of_e, of_t = (k - 1) / k * np.exp(log_e), 1 / k * np.exp(log_t)
        return of_e / (of_e + of_t), of_t / (of_e + of_t)

    def printed(self, ratio: Values) -> Values:
        """A `ratio` as people read it: of the saving minus the loss points of per cent."""
        return 200 * (1 - ratio) if self.is_highest else ratio


def _product(name: str, column: str, per_sample: str, unit: str, e: float, t: float) -> Merit:
    return Merit(name, name if name == "time" else name.upper(), column, per_sample, unit, (e, t))


def _times(values: Values | None, by: Values) -> Values:
    return np.asarray(values if values is not None else np.nan) * by


_ALL = (
    _product("e", "energy_j", "j_per_sample", "J", 1, 0),
    _product("time", "time_s", "s_per_sample", "s", 0, 1),
    _product("edp", "edp_js", "edp_per_sample_js", "J s", 1, 1),
    _product("ed2p", "ed2p_js2", "ed2p_per_sample_js2", "J s²", 1, 2),
    Merit("eds", "EDS k=2", "eds", "eds", k=2.0),
    Merit("cost", "cost", "cost_j", "cost_per_sample_j", "J",
          of=lambda e, t, given: metrics.zeus_cost_j(e, t, given.max_power_w, given.eta)),
    Merit("sml", "SML", "saving_minus_loss_pct", "saving_minus_loss_pct", "%", k=2.0, is_highest=True),
    Merit("gflops_per_w", "GFLOPS/W", "gflops_per_w", "gflops_per_w", is_highest=True,
          of=lambda e, t, given: _times(given.gflops_per_w, _times(given.joules, 1 / e))),
    Merit("j_per_sample", "J/sample", "j_per_sample", "j_per_sample", "J",
          of=lambda e, t, given: e / np.asarray(given.samples if given.samples is not None else np.nan)),
    Merit("money", "money", "money", "money_per_sample", of=lambda e, t, given: metrics.money(e, given.price_per_kwh)),
)  # fmt: skip
MERITS: Mapping[str, Merit] = {merit.name: merit for merit in _ALL}
OTHER_NAMES = {"t": "time", "saving_minus_loss": "sml", "energy_j": "e", "time_s": "time", "edp_js": "edp"}
"""Spellings that older files and commands have."""
OF_A_SWEEP = ("e", "time", "edp", "ed2p", "eds:2", "eds:1.5")
"""What a campaign compares its cells by."""


def merit_of(name: str, k: float = 2.0) -> Merit:
    """``eds:1.5``; ``k`` is that of an ``eds`` that states none. Raises `AnalysisError` for a name that is none, and
    for a k below 1."""
    kind, colon, number = name.strip().lower().partition(":")
    kind = OTHER_NAMES.get(kind, kind)
    if kind not in MERITS or (colon and kind != "eds"):
        known = ", ".join(MERITS).replace("eds", "eds or eds:K")
        raise AnalysisError(f"{printable(repr(name), limit=60)} is none of {known}")
    if kind != "eds":
        return MERITS[kind]
    own_k = parse_number(number) if colon else k
    if own_k is None or not (math.isfinite(own_k) and own_k >= 1):
        raise AnalysisError(f"{printable(repr(name), limit=60)}: k must be 1 or more")
    return replace(MERITS["eds"], name=f"eds:{own_k:g}", heading=f"EDS k={own_k:g}", k=own_k)
