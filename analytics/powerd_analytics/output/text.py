"""Figures as people read them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import inf, isfinite
from typing import TypeGuard

from powerd_core.text import figure_and_u95, significant, with_u95

__all__ = [
    "MADE_BY",
    "Cell",
    "bar",
    "device_text",
    "digits",
    "figure_and_u95",
    "first_of",
    "is_number_cell",
    "join_texts",
    "parse_number",
    "seconds",
    "shorten",
    "with_u95",
]

Cell = str | int | float | bool | None
"""Of a table or a frame; None where there is no value."""


def is_number_cell(value: object) -> TypeGuard[int | float]:
    """Whether a cell or an attribute is a number; True and False are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


MADE_BY = "Made by powerd, which may replace this file by a new one"
"""Stands in the metadata of pages and pictures."""

# float() also takes "1_000", "infinity" and digits of other scripts: nothing that a table should hold.
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def parse_number(text: str) -> float | None:
    """A finite decimal number, as a table or a command line has it; None for any other text."""
    value = float(text) if _NUMBER.fullmatch(text) else inf
    return value if isfinite(value) else None


def digits(value: float | None, places: int = 4) -> str:
    """Rounded to significant digits; a dash for what has no value."""
    return "–" if value is None else significant(value, places)


def bar(share: float, width: int) -> str:
    """A share of so many characters, to an eighth of one."""
    eighths = round(8 * width * min(max(share, 0.0), 1.0))
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def seconds(value_s: float) -> str:
    """A duration, three digits."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        rounded = float(f"{value_s / scale:.3g}")
        if rounded >= 1:
            return f"{rounded:g} {unit}"
    return f"{value_s * 1e9:.0f} ns"


def shorten(name: str, longest: int) -> str:
    """A name of at most so many characters: of a longer one the begin and the end."""
    return name if len(name) <= longest else f"{name[: longest // 2 - 1]}…{name[-(longest // 2) :]}"


def first_of(texts: Sequence[str], between: str, most: int = 8) -> str:
    """The first of some texts, and how many more there are."""
    return between.join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")


def join_texts(*texts: object) -> str:
    """Notes or names of several as one text, each once, without what is empty."""
    return "; ".join(dict.fromkeys(str(text) for text in texts if text))


def device_text(device: str, provenance: str) -> str:
    """A device with how its power came about, in capitals where it was not measured: ``gpu0 SIMULATED``."""
    return f"{device} (measured)" if provenance == "measured" else f"{device} {provenance.upper()}"
