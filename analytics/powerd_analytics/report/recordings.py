"""The whole recordings as a table of the report: joules from begin to end, and what phases and rest make of them."""

from __future__ import annotations

from collections.abc import Sequence

from powerd_analytics.energy.negligible import ROUNDING
from powerd_analytics.exports.sheet import Sheet, sheet_column
from powerd_analytics.records.columns import Record, number_of

_COLUMNS = ("run", "device", "provenance", "time_s", "energy_j", "u95_j", "power_w", "phases_j", "rest_j", "residual_j",
            "missing_s", "is_lower_bound", "note")  # fmt: skip
_HEADINGS = {"phases_j": "phases J", "rest_j": "rest J", "residual_j": "residual J", "missing_s": "missing s"}


def recordings_sheet(records: Sequence[Record]) -> Sheet:
    """One row for each recording and device."""
    runs = [r for r in records if r["kind"] == "run"]
    columns = tuple(sheet_column(name, heading=_HEADINGS.get(name, "")) for name in _COLUMNS)
    bounds = frozenset(
        (i, k) for i, r in enumerate(runs) if r["is_lower_bound"] for k, c in enumerate(columns) if c.sign
    )
    rows = tuple(tuple(_residual(r) if name == "residual_j" else r[name] for name in _COLUMNS) for r in runs)
    note = (
        "phases + rest + residual = the whole; the residual is what straight lines across the phases' edges get wrong"
    )
    return Sheet("recordings", "Whole recordings", columns, rows, (note,), bounds)


def _residual(run: Record) -> float | None:
    """What phases and rest leave of the whole; 0 where it is the rounding of sums."""
    residual, whole = number_of(run, "residual_j"), number_of(run, "energy_j")
    return 0.0 if residual and whole and abs(residual) <= ROUNDING * abs(whole) else residual
