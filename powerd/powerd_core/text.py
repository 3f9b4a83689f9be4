"""Text from outside on its way to a terminal or a log: what could move a cursor or hide a name is spelled out.

The one place for it: whatever prints a name, a cause or an error that another machine or a file said goes through here.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from difflib import get_close_matches
from math import floor, isfinite, log10


def printable(text: str, *, limit: int | None = None) -> str:
    r"""``text`` with control, format and surrogate characters as escapes (``\x1b``), cut off behind ``limit``.

    What is left has no line breaks: one message stays one line.
    """
    if limit is not None and len(text) > limit:
        text = text[:limit] + "…"
    if text.isprintable():
        return text
    # str.isprintable also refuses spaces other than U+0020; those harm nobody.
    is_harmless = (str.isprintable(c) or c in "\u00a0\u202f" for c in text)
    return "".join(c if ok else c.encode("unicode_escape").decode() for c, ok in zip(text, is_harmless, strict=True))


# Output in an encoding that lacks a sign, such as ASCII: what stands for the sign instead of an error.


LEGIBLE = "powerd-legible"
"""What `sys.stdout.reconfigure(errors=...)` takes, after `register_legible`."""

_INSTEAD = str.maketrans("−–—µ×·•≈─│├└▏▎▍▌▋▊▉█▁▂▃▄▅▆▇", "---ux--~-|||" + 8 * "#" + "_.-~=+*") | str.maketrans(
    {"±": "+-", "≥": ">=", "≤": "<=", "…": "...", "²": "^2", "→": "->", "←": "<-", "°": " deg "}
)


def register_legible() -> None:
    codecs.register_error(LEGIBLE, legible)


def legible(error: UnicodeError) -> tuple[str, int]:
    """An error handler of `codecs`: signs of ours in ASCII, and of all other characters the number, as in ``\\xfc``."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    refused = error.object[error.start : error.end]
    return refused.translate(_INSTEAD).encode("ascii", "backslashreplace").decode("ascii"), error.end


# The words that finish an error about a name that does not exist.


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``: did you mean 'x'?`` for a near miss, else the list of what there is."""
    names = sorted(known)
    if near := get_close_matches(name, names, n=1):
        return f": did you mean {near[0]!r}?"
    if not names:
        return ": there are none"
    return f" (there are: {', '.join(names)})"


# A figure with its uncertainty, wherever a person reads one: tables, the line that ends a recording, pictures.


def figure_and_u95(value: float, u95: float | None) -> tuple[str, str]:
    """A value and the half of its 95 % interval, rounded alike, as in ``("4.19", "0.23")``.

    The uncertainty has two digits where it begins with 1.0 to 3.5 and else one, as the Particle Data Group rounds, and
    the value has as many decimals; from 10 on the uncertainty has two digits, and the value ends where it does. Without
    an uncertainty (None, 0 or no number) the value has four digits, and the second text is empty.
    """
    if u95 is None or not isfinite(u95) or u95 <= 0 or not isfinite(value):
        return significant(value), ""
    exponent = floor(log10(u95))
    decimals = max(0, -exponent + (u95 / 10.0**exponent < 3.55))
    if exponent < -8:  # long rows of zeros tell less than an exponent
        return f"{value:.3e}", f"{u95:.1e}"
    text = f"{round(value, 1 - exponent) if exponent > 1 else value:.{decimals}f}"
    if not float(text):  # of a value below its uncertainty one digit stays
        text = significant(value, 1) if abs(value) > 0.01 * u95 else f"{0:.{decimals}f}"
    return text, significant(u95, 2) if exponent > 0 else f"{u95:.{decimals}f}"


def with_u95(value: float, u95: float | None, unit: str = "", *, is_lower_bound: bool = False) -> str:
    """``4.19 ± 0.23 J``; of a lower bound ``≥ 4.190 J``, and without an uncertainty ``4.190 J``."""
    figure, reach = figure_and_u95(value, None if is_lower_bound else u95)
    parts = ("≥" if is_lower_bound else "", figure, f"± {reach}" if reach else "", unit)
    return " ".join(part for part in parts if part)


def significant(value: float, places: int = 4) -> str:
    """A number rounded to significant digits, without an exponent for everyday sizes."""
    if value == 0 or not isfinite(value):
        return f"{value:.0f}"
    if not 1e-6 < abs(value) < 1e9:
        return f"{value:.{places - 1}e}"
    decimals = places - 1 - floor(log10(abs(value)))
    return f"{round(value, decimals):.{max(decimals, 0)}f}"


# Scans that were declared lost, wherever a person reads of them: another thing than seconds without readings.


def lost_text(losses: int, scans: int = 0, unknown: int = 0) -> str:
    """``no scan lost``, or how often scans were lost and how many, as in ``scans lost 3 times: 120, once nobody knows
    how many``. ``scans`` are those of the losses that are not ``unknown``."""
    if not losses:
        return "no scan lost"
    text = f"scans lost {times(losses)}"
    if unknown == losses:
        return f"{text}, nobody knows how many"
    return f"{text}: {scans}" + (f", {times(unknown)} nobody knows how many" if unknown else "")


def times(count: int) -> str:
    """``once``, ``2 times``."""
    return "once" if count == 1 else f"{count} times"


def needs_extra(part: str) -> str:
    """How to get what is missing. No command: the name powerd on the index is not ours."""
    return f"install powerd with its extra [{part}]"
