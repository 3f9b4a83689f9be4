"""Gaps of a damaged run file, and the count of what was received and lost."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import h5py
import numpy as np

from powerd_client import recover_rows, verify_tables
from powerd_client.datasets import write_documents
from powerd_client.fileshape import FARTHEST_NS, read_json
from powerd_client.recover_lines import LineRecovery
from powerd_client.recover_rows import BROKEN, members
from powerd_client.tables import GAP_NUMBERS, GAP_TEXTS


def recover_gaps(group: h5py.Group | None, lines: h5py.Group, lost: list[str]) -> tuple[list[dict[str, Any]], bool]:
    """The gaps that are left, of what is left of the ``lines``; False with them when some are lost, or never counted
    numbers."""
    inside = members(group, lost)
    old = ("begin_ns", "end_ns", "lost")
    numbers = tuple(name for name, _ in GAP_NUMBERS if name in inside or name in old)
    texts = (*(name for name in GAP_TEXTS if name in inside or name != "clock"), "lines")
    rows, good, claimed = recover_rows.table(inside, (*numbers, *texts))
    found: list[dict[str, Any]] = []
    for row in np.flatnonzero(good).tolist():
        with suppress(ValueError, TypeError):
            gap: dict[str, Any] = {name: int(rows[name][row]) for name in numbers}
            gap |= {name: recover_rows.text_of(rows[name][row]) for name in texts}
            gap["lines"] = [str(n) for n in read_json(gap["lines"]) if str(n) in lines]
            if abs(gap["begin_ns"]) < FARTHEST_NS and gap["begin_ns"] <= gap["end_ns"] < FARTHEST_NS:
                found.append({"numbers": 0, "clock": "", **gap})
    if len(found) < claimed or not inside:
        lost.append(f"{claimed - len(found)} of {claimed} gaps: what they told is not told any more")
    return found, len(found) == claimed and len(numbers) == len(GAP_NUMBERS)


def recover_parts(table: h5py.Dataset | None, file: h5py.File, lines: list[LineRecovery], lost: list[str]) -> None:
    """Write what was received into ``file``. The numbers of blocks go on, with the readings that the damage took from
    each line."""
    found, claimed = recover_rows.objects(table)
    if not found or len(found) < claimed:
        lost.append("the count of what was received")
        return
    taken = {line.name: line.by_clock for line in lines}
    for part in found.values():
        names = [str(name) for name in part.get("lines", [])]
        clock = str(part.get("clock"))
        part["damaged"] = {n: taken[n][clock] for n in names if clock in taken.get(n, {})}
    write_documents(file, "parts", list(found.values()))


def agrees(file: h5py.File) -> bool:
    """Whether what was received and lost is what is in the lines and gaps."""
    try:
        return next(verify_tables.counts(file), None) is None
    except BROKEN:
        return False
