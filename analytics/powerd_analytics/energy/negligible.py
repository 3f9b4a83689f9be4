"""When an uncertainty is nothing but the rounding of floating-point sums, and counts as 0."""

from __future__ import annotations

from dataclasses import replace

from powerd_analytics.energy.uncertainty import Estimate

ROUNDING = 1e-12
"""Of a value: sums of doubles are no more exact than this, and no sensor or clock is as good by far."""


def known(u: float, value: float) -> float:
    """An uncertainty of a value, or a part of an uncertainty; 0 where it is less than the rounding of the value.

    One that is not known (NaN) stays so.
    """
    return 0.0 if u <= ROUNDING * abs(value) else u


def without_rounding(estimate: Estimate) -> Estimate:
    """The same, with parts of its uncertainty that are rounding as 0."""
    parts = {n: known(getattr(estimate, n), estimate.energy_j) for n in ("u_statistical_j", "u_systematic_j")}
    rectangle_j = estimate.rectangle_j if parts["u_systematic_j"] else 0.0
    return replace(estimate, **parts, rectangle_j=rectangle_j)
