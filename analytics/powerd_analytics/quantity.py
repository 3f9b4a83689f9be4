"""A value with what it is unsure of, and arithmetic that knows what two values have in common.

First-order propagation (GUM 5.1 and 5.2): each value keeps its share of every error that it was made from, with the
sign. Where a joule stands twice in an equation, or two values share a sensor's gain, the shares add up or cancel by
themselves; no covariance has to be given. First order is right while relative uncertainties are small.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from powerd_analytics.energy.uncertainty import COVERAGE_FACTOR, Estimate
from powerd_core.errors import AnalysisError

Errors = Mapping[Hashable, float]
"""Signed standard uncertainty in the value's unit, by the error that it comes from."""
_NONE: Errors = MappingProxyType({})


def _none() -> Errors:
    return _NONE


class _Own:
    """An error that nothing else shares."""


@dataclass(frozen=True, slots=True, eq=False)
class Quantity:
    """A value in some unit, with statistical errors (they average out) and systematic ones (repeats share them)."""

    value: float
    statistical: Errors = field(default_factory=_none, repr=False)
    systematic: Errors = field(default_factory=_none, repr=False)

    __array_ufunc__ = None  # numpy's numbers leave the arithmetic to us

    @classmethod
    def measured(
        cls, value: float, u_statistical: float = 0.0, u_systematic: float | Mapping[Hashable, float] = 0.0
    ) -> Quantity:
        """A new measurement. Uncertainties are standard ones, in the value's unit.

        ``u_systematic`` as a number is this measurement's own; by name (``{"gain of gpu0.ext12v": 0.4}``), all values
        that are given the same name share that error: they are off to the same side where the signs agree. Raises
        `AnalysisError` for what is no finite number, and for a negative uncertainty that has no name.
        """
        named = u_systematic if isinstance(u_systematic, Mapping) else {_Own(): u_systematic}
        if not all(map(math.isfinite, (value, u_statistical, *named.values()))):
            raise AnalysisError(f"{value} ± {u_statistical} ± {u_systematic}: a quantity needs finite numbers")
        if u_statistical < 0 or (not isinstance(u_systematic, Mapping) and u_systematic < 0):
            raise AnalysisError(f"{value} ± {u_statistical} ± {u_systematic}: an uncertainty is not negative")
        return cls(
            float(value), {_Own(): u_statistical} if u_statistical else _NONE, {k: u for k, u in named.items() if u}
        )

    @classmethod
    def of(cls, estimate: Estimate) -> Quantity:
        """Joules of a table, with a systematic part of their own."""
        return cls.measured(estimate.energy_j, estimate.u_statistical_j, estimate.u_systematic_j)

    @property
    def u_statistical(self) -> float:
        """Standard uncertainty by what averages out."""
        return math.hypot(*self.statistical.values())

    @property
    def u_systematic(self) -> float:
        """Standard uncertainty by what repeats share."""
        return math.hypot(*self.systematic.values())

    @property
    def u(self) -> float:
        """Combined standard uncertainty."""
        return math.hypot(self.u_statistical, self.u_systematic)

    @property
    def u95(self) -> float:
        """Expanded uncertainty: the value lies within ± this with about 95 % confidence."""
        return COVERAGE_FACTOR * self.u

    def correlation(self, other: Quantity) -> float:
        """Coefficient of correlation with another, 0 where either is exact."""
        shared = sum(u * other.statistical.get(key, 0.0) for key, u in self.statistical.items())
        shared += sum(u * other.systematic.get(key, 0.0) for key, u in self.systematic.items())
        return shared / (self.u * other.u) if self.u and other.u else 0.0

    def __str__(self) -> str:
        return f"{self.value:.6g} ± {self.u95:.2g} (k = {COVERAGE_FACTOR:g})"

    def __add__(self, other: Quantity | float) -> Quantity:
        if isinstance(other, Quantity):
            return _combined(self.value + other.value, (self, 1.0), (other, 1.0))
        return _combined(self.value + other, (self, 1.0))

    def __radd__(self, other: float) -> Quantity:
        return self + other

    def __neg__(self) -> Quantity:
        return _combined(-self.value, (self, -1.0))

    def __sub__(self, other: Quantity | float) -> Quantity:
        return self + -other

    def __rsub__(self, other: float) -> Quantity:
        return -self + other

    def __mul__(self, other: Quantity | float) -> Quantity:
        if isinstance(other, Quantity):
            return _combined(self.value * other.value, (self, other.value), (other, self.value))
        return _combined(self.value * other, (self, other))

    def __rmul__(self, other: float) -> Quantity:
        return self * other

    def __truediv__(self, other: Quantity | float) -> Quantity:
        if isinstance(other, Quantity):
            ratio = self.value / other.value
            return _combined(ratio, (self, 1 / other.value), (other, -ratio / other.value))
        return _combined(self.value / other, (self, 1 / other))

    def __rtruediv__(self, other: float) -> Quantity:
        ratio = other / self.value
        return _combined(ratio, (self, -ratio / self.value))

    def __pow__(self, power: int) -> Quantity:
        return _combined(float(self.value**power), (self, float(power * self.value ** (power - 1))))


def _combined(value: float, *parts: tuple[Quantity, float]) -> Quantity:
    """A value made of others, each with its derivative."""
    return Quantity(
        value,
        _summed((q.statistical, derivative) for q, derivative in parts),
        _summed((q.systematic, derivative) for q, derivative in parts),
    )


def _summed(parts: Iterable[tuple[Errors, float]]) -> Errors:
    total: dict[Hashable, float] = {}
    for errors, derivative in parts:
        for key, u in errors.items():
            total[key] = total.get(key, 0.0) + derivative * u
    return total
