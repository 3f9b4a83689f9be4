"""Output in an encoding that lacks a sign, such as ASCII: what stands for the sign instead of an error."""

from __future__ import annotations

import codecs

LEGIBLE = "powerd-legible"
"""What `sys.stdout.reconfigure(errors=...)` takes, after `register_legible`."""

_INSTEAD = {
    "±": "+-",
    "−": "-",
    "–": "-",
    "—": "-",
    "µ": "u",
    "≥": ">=",
    "≤": "<=",
    "≈": "~",
    "×": "x",
    "·": "-",
    "•": "-",
    "…": "...",
    "²": "^2",
    "→": "->",
    "←": "<-",
    "°": " deg ",
    "─": "-",
    "│": "|",
    "├": "|",
    "└": "|",
}


def register_legible() -> None:
    codecs.register_error(LEGIBLE, legible)


def legible(error: UnicodeError) -> tuple[str, int]:
    """An error handler of `codecs`: signs of ours in ASCII, and of all other characters the number, as in ``\\xfc``."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    refused = error.object[error.start : error.end]
    return "".join(_INSTEAD.get(c) or c.encode("ascii", "backslashreplace").decode("ascii") for c in refused), error.end
