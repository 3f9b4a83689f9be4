"""Names that a user gives, checked against those that exist."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from powerd_core.errors import AnalysisError


def pick(name: str, known: Iterable[str], what: str) -> str:
    """``name`` if it is known, else an `AnalysisError` that offers the nearest or all names there are."""
    names = list(known)
    if name in names:
        return name
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"this run has {', '.join(map(repr, names)) or 'none'}"
    raise AnalysisError(f"no {what} {name!r}: {hint}")
