"""The fault matrix as a table: who is struck, how, when; what may be lost, and what must be said about it."""

from __future__ import annotations

from collections.abc import Iterator

from faults.kinds import MOMENTS, Cell
from faults.rows import CELLS


def cells(moments: str = "all") -> Iterator[tuple[Cell, str]]:
    """Each cell that makes sense at each moment; ``quick`` only those of `make test`."""
    for cell in CELLS:
        if cell.makes_sense:
            for moment in cell.quick if moments == "quick" else MOMENTS:
                yield cell, moment


def to_markdown() -> str:
    """The table as docs/reliability.md shows it."""
    rows = [
        "| struck | how | how it is made | what may be lost (at the end of a run) | in `make test` |",
        "| --- | --- | --- | --- | --- |",
    ]
    for cell in CELLS:
        if not cell.makes_sense:
            rows.append(f"| {cell.victim} | {cell.kind} | makes no sense: {cell.made} | | |")
            continue
        loses = str(cell.loses)
        if cell.loses_at_end is not None and cell.loses_at_end != cell.loses:
            loses += f" ({cell.loses_at_end})"
        rows.append(f"| {cell.victim} | {cell.kind} | {cell.made} | {loses} | {', '.join(cell.quick)} |")
    return "\n".join(rows) + "\n"
