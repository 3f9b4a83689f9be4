"""Flat records looked into: columns by name, conditions, and all of them as a pandas frame."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import isclose
from typing import TYPE_CHECKING

from powerd_analytics.records.columns import COLUMNS, Cell, Record
from powerd_analytics.runs.names import pick
from powerd_core.errors import AnalysisError

if TYPE_CHECKING:
    import pandas as pd

ALIASES = {
    "batch": "batch_size", "cap": "power_cap_w", "clock": "clock_hz", "generation": "device_name",
    "product": "device_name", "path": "phase_path",
}  # fmt: skip


def attributes_of(record: Record) -> dict[str, Cell]:
    """The phases' attributes that have no column of their own."""
    found = json.loads(str(record["attributes"] or "{}"))
    return {str(k): v if isinstance(v, str | int | float | bool | None) else json.dumps(v) for k, v in found.items()}


def dimension(name: str, records: Sequence[Record]) -> str:
    """The column that is meant by a name on the command line: an alias, with dashes, or an attribute of the phases.

    Raises `AnalysisError` with a suggestion for an unknown one.
    """
    meant = name.strip().replace("-", "_")
    meant = ALIASES.get(meant, meant)
    if meant in COLUMNS:
        return meant
    known = list(dict.fromkeys(k for r in records for k in attributes_of(r)))
    if name.strip() in known:
        return name.strip()
    return pick(meant, [*COLUMNS, *known], "column")


def value_in(record: Record, name: str) -> Cell:
    """A column of a record, or an attribute of its phases."""
    return record[name] if name in record else attributes_of(record).get(name)


def where(records: Sequence[Record], conditions: Sequence[str]) -> list[Record]:
    """The records for which every ``COLUMN=VALUE`` holds. Raises `AnalysisError` for one that none fulfils."""
    left = list(records)
    for condition in conditions:
        column, is_given, wanted = condition.partition("=")
        if not is_given:
            raise AnalysisError(f"--where {condition}: write it as COLUMN=VALUE, as in batch_size=64")
        name = dimension(column, records)
        kept = [r for r in left if _equals(value_in(r, name), wanted)]
        if not kept:
            there = ", ".join(dict.fromkeys(str(v) for r in left if (v := value_in(r, name)) is not None)) or "no value"
            raise AnalysisError(f"--where {condition}: no row has it; {name} is {there}")
        left = kept
    return left


def _equals(value: Cell, wanted: str) -> bool:
    if value is None:
        return wanted == ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return isclose(float(wanted), value, rel_tol=1e-9)
        except ValueError:
            return False
    return str(value) == wanted


def to_frame(records: Sequence[Record]) -> pd.DataFrame:
    """The records as a pandas frame: one type a column, missing numbers as NaN and missing integers as <NA>."""
    import pandas as pd

    names = list(dict.fromkeys([*COLUMNS, *(k for r in records for k in r)]))
    frame = pd.DataFrame([[r.get(n) for n in names] for r in records], columns=names, dtype=object)
    types = {"text": "string", "integer": "Int64", "number": "float64", "flag": "boolean"}
    for name in names:
        kind = COLUMNS[name].kind if name in COLUMNS else "integer"
        frame[name] = frame[name].astype(types[kind])
    return frame
