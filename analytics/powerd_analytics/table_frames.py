"""The table of one run as data frames: for people one for each set of rows, for programs all rows in one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from functools import partial
from operator import attrgetter
from typing import Any

import pandas as pd
from rich.console import Console

from powerd_analytics import export
from powerd_analytics.export import Cell, Column, table_frame
from powerd_analytics.idle import above_idle, idle_columns, idle_of_row, joules_and_seconds
from powerd_analytics.table_rows import PhaseRow, PhaseTable, RunRow, TotalRow, quoted

Row = PhaseRow | TotalRow | RunRow

CSV_COLUMNS = (
    "table", "model", "batch_size", "phase", "path", "device", "provenance", "timing", "iterations", "s_per_batch",
    "j_per_batch", "u95_j", "u_statistical_j", "u_systematic_j", "power_w", "samples_per_s", "time_s", "energy_j",
    "edp_js", "gflops_per_w_paper", "gflops_basis", "phases_j", "rest_j", "residual_j", "missing_s", "off_by_j",
    "is_lower_bound", "method", "note",
)  # fmt: skip
"""Columns of every CSV and JSON row, in this order; further attributes of the phases follow as ``attribute_NAME``, then
those of ranks, jobs and idle power. ``table`` is ``phase``, ``total``, ``run``, ``rank`` or ``job``. A cell without a
value is empty (CSV) or null (JSON)."""


def rows_frame(table: PhaseTable) -> pd.DataFrame:
    """All rows of a run's table with the same columns, in full precision."""
    records: list[dict[str, Any]] = [dict.fromkeys(CSV_COLUMNS)]
    rows: list[Row] = [*table.phases, *table.totals, *table.runs]
    for row in rows:
        cells = {f.name: getattr(row, f.name) for f in fields(row) if f.name in CSV_COLUMNS}
        cells["table"] = {PhaseRow: "phase", TotalRow: "total", RunRow: "run"}[type(row)]
        group = _group(row)
        cells |= {k if k in ("model", "batch_size") else f"attribute_{k}": v for k, v in group.items()}
        records.append(cells)
    # The attributes' columns stand before those of idle power.
    names = list(dict.fromkeys(name for cells in records for name in cells))
    if table.idle:
        records = [records[0], *(c | idle_columns(r, table.idle) for c, r in zip(records[1:], rows, strict=True))]
    records += [{"table": "rank", **asdict(row)} for row in table.ranks]
    records += [{"table": "job", **asdict(row), "devices": " ".join(row.devices)} for row in table.jobs]
    names = list(dict.fromkeys([*names, *(name for cells in records for name in cells)]))
    lines = [[cells.get(name) for name in names] for cells in records[1:]]
    return table_frame("rows", "Rows", [Column(name) for name in names], lines, bounds=())


def _group(row: Row) -> Mapping[str, Any]:
    return {} if isinstance(row, RunRow) else row.group


Cells = Sequence[tuple[Column, Callable[[Any], Cell]]]
"""Columns of one part of the table, each with what gives a row's cell."""


def _figure(field: str, heading: str, units: str, **look: Any) -> tuple[Column, Callable[[Any], Cell]]:
    """A figure of the rows under the name that people see."""
    return Column(heading, "number", units, **look), attrgetter(field)


_UNRESOLVED = {"sign": "≥", "missing": "n.r."}
_DEVICE = (Column("device"), lambda row: f"{row.device} ({row.provenance})")
_N = (Column("iterations", "integer", "1", heading="n"), attrgetter("iterations"))
_TIME = _figure("time_s", "s", "s")
_ENERGY = _figure("energy_j", "J", "J", **_UNRESOLVED)
_U95 = _figure("u95_j", "± U95", "J", is_uncertainty=True)
_POWER = _figure("power_w", "W", "W", sign="≥")
_RATE = _figure("samples_per_s", "samples/s", "1/s")
_REST = _figure("rest_j", "rest J", "J", sign="≥")
_RESIDUAL = _figure("residual_j", "residual J", "J", is_uncertainty=True)
_BOUND = (Column("is_lower_bound", "flag", is_hidden=True), attrgetter("is_lower_bound"))
_NOTE = (Column("note"), attrgetter("note"))

_PHASES: Cells = (
    (Column("phase"), attrgetter("phase")), _DEVICE, _N, _figure("s_per_batch", "s/batch", "s"),
    _figure("j_per_batch", "J/batch", "J", **_UNRESOLVED), _U95, _POWER, _RATE, _BOUND,
    (Column("note"), lambda r: _notes(r.note, "" if r.timing in ("", "host") else f"timed {r.timing}")),
)  # fmt: skip
_TOTALS: Cells = (
    _DEVICE, _N, _TIME, _ENERGY, _U95, _POWER, _figure("edp_js", "EDP (J s)", "J s", sign="≥"), _RATE,
    _figure("gflops_per_w_paper", "GFLOPS/W (paper)", "1e9/J", sign="≤"), _REST, _RESIDUAL, _BOUND,
    (Column("note"),
     lambda r: _notes(f"GFLOPS/W over the joules of {r.gflops_basis}" if r.gflops_basis else "", r.note)),
)  # fmt: skip
_RUNS: Cells = (
    _DEVICE, _TIME, _ENERGY, _U95, _POWER, _figure("phases_j", "phases J", "J", sign="≥"), _REST, _RESIDUAL,
    (Column("residual %", "number", "%", is_uncertainty=True),
     lambda r: 100 * r.residual_j / r.energy_j if r.residual_j is not None and r.energy_j else None),
    _BOUND, _NOTE,
)  # fmt: skip
_RANKS: Cells = (
    (Column("rank", "integer", "1"), attrgetter("rank")), _DEVICE, _figure("busy_s", "busy s", "s"), _ENERGY,
    _figure("phases_j", "phases J", "J", missing="n.r."), _figure("rest_j", "rest J", "J"), _RESIDUAL, _BOUND, _NOTE,
)  # fmt: skip
_JOBS: Cells = (
    (Column("device"), lambda r: f"{' + '.join(r.devices)} ({r.provenance})"),
    (Column("ranks", "integer", "1"), attrgetter("ranks")), _figure("energy_j", "ranks J", "J", **_UNRESOLVED),
    _figure("devices_j", "devices J", "J", **_UNRESOLVED), _RESIDUAL, _BOUND, _NOTE,
)  # fmt: skip


def table_frames(table: PhaseTable) -> list[pd.DataFrame]:
    """The parts of a run's table that have rows, for people; empty columns are left out when they are shown."""
    groups = [row.group for row in table.phases] + [row.group for row in table.totals]
    names = list(dict.fromkeys(k for group in groups for k in group))
    names.sort(key=lambda n: (n != "model", n != "batch_size", n))
    # Numbers among the attributes are settings, and shown as they were given.
    of_group: Cells = [
        (Column(n, "text" if n == "model" else "integer", missing=""), partial(_setting, name=n)) for n in names
    ]
    parts: list[tuple[str, str, Cells, Sequence[Any]]] = [
        ("phases", "Phases", (*of_group, *_PHASES), table.phases),
        ("totals", "Totals", (*of_group, *_TOTALS), table.totals),
        ("run", "Run: phases + rest + residual = whole", _RUNS, table.runs),
        ("ranks", "Ranks", _RANKS, table.ranks),
        ("job", "Job: all ranks = devices", _JOBS, table.jobs),
    ]
    frames = [
        table_frame(name, title, [column for column, _ in cells], [[cell(row) for _, cell in cells] for row in rows])
        for name, title, cells, rows in parts
    ]
    frames = [frame for frame in [*frames, _above_idle(table, of_group)] if len(frame)]
    for frame in frames:
        frame.attrs["separator"] = "\n"
    if frames:
        meaning = "± U95: half of the 95 % interval, in joules"
        if any(row.gflops_per_w_paper is not None for row in table.totals):
            meaning += "; GFLOPS/W (paper): forward and backward count the model's operations once each"
        frames[-1].attrs["notes"].append(f"{meaning}.")
    return frames


def _above_idle(table: PhaseTable, of_group: Cells) -> pd.DataFrame:
    columns = [*(column for column, _ in of_group), Column("phase"), Column("device")]
    columns += [Column("J", "number", "J", sign="≥"), Column("idle W", "number", "W"), Column("J idle", "number", "J")]
    columns += [Column("J above idle", "number", "J", sign="≥")]
    columns += [Column("± U95 above idle", "number", "J", is_uncertainty=True), _BOUND[0], _NOTE[0]]
    every: list[Row] = [*table.phases, *table.totals, *table.runs]
    lines: list[list[Cell]] = []
    for row in every:
        idle = idle_of_row(row, table.idle)
        joules, _ = joules_and_seconds(row)
        above_j, u95_j = above_idle(row, idle)
        if idle is None or above_j is None or joules is None:
            continue
        what = "run" if isinstance(row, RunRow) else "all of the group"
        what = f"{row.phase} (mean)" if isinstance(row, PhaseRow) else what
        figures = (joules, idle.idle_w, joules - above_j, above_j, u95_j)
        settings = [cell(row) for _, cell in of_group]
        lines.append([*settings, what, _DEVICE[1](row), *figures, row.is_lower_bound, idle.note])
    return table_frame("above_idle", "Above idle, beside the whole", columns, lines)


def _setting(row: Row, name: str) -> Cell:
    value = _group(row).get(name)
    return None if value is None else str(value) if name == "model" else quoted(value)


def _notes(*texts: str) -> str:
    return "\n".join(text for text in texts if text)


def records(table: PhaseTable) -> list[dict[str, Any]]:
    """All rows as dicts with the same keys."""
    return [dict(row) for row in rows_frame(table).to_dict("records")]


def to_csv(table: PhaseTable) -> str:
    """All rows as CSV."""
    return export.to_csv(rows_frame(table))


def to_json(table: PhaseTable) -> str:
    """All rows as a JSON list."""
    return export.rows_to_json(rows_frame(table))


def to_markdown(table: PhaseTable) -> str:
    """The table for people, in Markdown."""
    return export.to_markdown(table_frames(table))


def print_table(table: PhaseTable, console: Console) -> None:
    """The table for people, on a terminal."""
    export.print_tables(table_frames(table), console)
