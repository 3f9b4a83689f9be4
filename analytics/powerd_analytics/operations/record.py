"""What ran in stretches of a model by kernel, and what would run in a longer one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from powerd_analytics.operations.did import Did

Kind = tuple[str, bool, str]
"""Of a kernel: its name, whether it counts as work of its module, and what it is called where nobody knows its work."""


@dataclass(slots=True)
class Record:
    """Sums by kernel: times that it ran, operations, element-wise values, bytes."""

    sums: dict[Kind, list[int]] = field(default_factory=dict)

    def add(self, did: Did) -> None:
        """One kernel has run."""
        found = self.sums.setdefault((did.name, did.is_shown, did.unknown), [0, 0, 0, 0])
        found[0] += 1
        found[1] += did.operations
        found[2] += did.elementwise
        found[3] += did.moved_bytes

    def take(self, other: Record) -> None:
        """Add another record to it, which is empty then."""
        for kind, sums in other.sums.items():
            found = self.sums.setdefault(kind, [0, 0, 0, 0])
            for i, value in enumerate(sums):
                found[i] += value
        other.sums.clear()


def extended(records: Sequence[Record], features: Sequence[Sequence[int]], wanted: Sequence[int]) -> Record | None:
    """What would run in a stretch of features ``wanted``, from what ran in those of others.

    As many stretches as are needed say how every sum of every kernel follows from the features; all further ones, of
    which there must be one, have to agree. None where they do not.
    """
    if any(r.sums.keys() != records[0].sums.keys() for r in records):
        return None
    basis: list[int] = []
    checks: list[tuple[int, list[Fraction]]] = []
    for i, given in enumerate(features):
        weights = combination([features[b] for b in basis], given)
        if weights is None:
            basis.append(i)
        else:
            checks.append((i, weights))
    weights = combination([features[b] for b in basis], wanted)
    if weights is None or not checks:
        return None
    made = Record()
    for kind in records[0].sums:
        known = [records[b].sums[kind] for b in basis]
        if any(_weighed(known, w) != records[i].sums[kind] for i, w in checks):
            return None
        sums = _weighed(known, weights)
        if any(value.denominator != 1 or value < 0 for value in sums):
            return None
        made.sums[kind] = [int(value) for value in sums]
    return made


def _weighed(known: Sequence[Sequence[int]], weights: Sequence[Fraction]) -> list[Fraction]:
    return [
        sum((w * v for w, v in zip(weights, values, strict=False)), Fraction()) for values in zip(*known, strict=True)
    ]


def combination(basis: Sequence[Sequence[int]], wanted: Sequence[int]) -> list[Fraction] | None:
    """Weights with which independent vectors add up to ``wanted``; None where there are none (Gauss and Jordan)."""
    n = len(basis)
    rows = [[Fraction(v[i]) for v in basis] + [Fraction(wanted[i])] for i in range(len(wanted))]
    for column in range(n):
        at = next(i for i in range(column, len(rows)) if rows[i][column])
        rows[column], rows[at] = rows[at], rows[column]
        head = rows[column][column]
        rows[column] = [x / head for x in rows[column]]
        for i, row in enumerate(rows):
            if i != column and row[column]:
                factor = row[column]
                rows[i] = [x - factor * y for x, y in zip(row, rows[column], strict=True)]
    return [row[n] for row in rows[:n]] if not any(row[n] for row in rows[n:]) else None
