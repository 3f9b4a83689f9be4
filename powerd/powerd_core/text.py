"""Text from outside on its way to a terminal or a log: what could move a cursor or hide a name is spelled out.

The one place for it: whatever prints a name, a cause or an error that another machine or a file said goes through here.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from difflib import get_close_matches


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

_INSTEAD = str.maketrans("−–—µ×·•≈─│├└", "---ux--~-|||") | str.maketrans(
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
