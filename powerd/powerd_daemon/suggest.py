"""The words that finish an error about a name that does not exist."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``: did you mean 'x'?`` for a near miss, else the list of what there is."""
    names = sorted(known)
    if near := get_close_matches(name, names, n=1):
        return f": did you mean {near[0]!r}?"
    if not names:
        return ": there are none"
    return f" (there are: {', '.join(names)})"
