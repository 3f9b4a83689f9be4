"""Figures as people read them."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10


def digits(value: float | None, places: int = 4) -> str:
    """Rounded to significant digits without an exponent for everyday sizes."""
    if value is None:
        return "–"
    if value == 0:
        return "0"
    if not 1e-6 < abs(value) < 1e9:
        return f"{value:.{places - 1}e}"
    decimals = places - 1 - floor(log10(abs(value)))
    return f"{round(value, decimals):.{max(decimals, 0)}f}"


def seconds(value_s: float) -> str:
    """A duration, three digits."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        rounded = float(f"{value_s / scale:.3g}")
        if rounded >= 1:
            return f"{rounded:g} {unit}"
    return f"{value_s * 1e9:.0f} ns"


def first_of(texts: Sequence[str], between: str, most: int = 8) -> str:
    """The first of some texts, and how many more there are."""
    return between.join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")
