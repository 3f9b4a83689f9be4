"""Ranks and jobs of a campaign as tables: what each rank took, and machine by machine beside the whole training."""

from __future__ import annotations

from collections.abc import Sequence

from powerd_analytics.exports.sheet import Sheet, sheet_column
from powerd_analytics.records.columns import Record

_JOBS = ("run", "machine", "host", "device", "provenance", "ranks", "energy_j", "devices_j", "residual_j",
         "is_lower_bound", "note")  # fmt: skip
_RANKS = ("run", "machine", "rank", "device", "provenance", "sharing", "time_s", "energy_j", "phases_j", "rest_j",
          "residual_j", "is_lower_bound", "note")  # fmt: skip
_HEADINGS = {"rest_j": "rest J", "residual_j": "residual J", "devices_j": "devices J", "phases_j": "phases J"}


def job_tables(records: Sequence[Record]) -> list[Sheet]:
    """The tables ``jobs`` and ``ranks``; none where no run has ranks."""
    jobs = [r for r in records if r["kind"] == "job"]
    ranks = [r for r in records if r["kind"] == "rank"]
    several = any(r["machine"] is not None for r in jobs)
    headings = _HEADINGS | {"energy_j": "ranks J"}
    sheets = [_sheet("jobs", "Jobs: ranks = devices" + (", machine by machine" if several else ""), _JOBS,
                     _ordered(jobs), headings)]  # fmt: skip
    sheets.append(_sheet("ranks", "Ranks", _RANKS, ranks, _HEADINGS | {"time_s": "busy s"}))
    return [sheet for sheet in sheets if sheet.rows]


def are_over_machines(records: Sequence[Record]) -> bool:
    """Whether any training was over several machines."""
    return any(r["kind"] == "job" and r["machines"] is not None for r in records)


def _ordered(jobs: Sequence[Record]) -> list[Record]:
    """Trainings in their order, the whole of each behind its machines."""
    wholes = [r for r in jobs if r["machines"] is not None]
    number = {run_id: i for i, r in enumerate(wholes) for run_id in str(r["run_id"]).split("; ")}

    def place(r: Record) -> tuple[float, bool]:
        first = str(r["run_id"]).split("; ", maxsplit=1)[0]
        return number.get(first, -1), r["machines"] is not None

    return sorted(jobs, key=place)


def _sheet(name: str, title: str, names: Sequence[str], records: Sequence[Record], headings: dict[str, str]) -> Sheet:
    columns = tuple(sheet_column(n, heading=headings.get(n, "")) for n in names)
    bounds = frozenset(
        (i, k) for i, r in enumerate(records) if r["is_lower_bound"] is True for k, c in enumerate(columns) if c.sign
    )
    return Sheet(name, title, columns, tuple(tuple(r[n] for n in names) for r in records), (), bounds)
