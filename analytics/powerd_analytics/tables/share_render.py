"""The uncertainty budget as a table for the terminal, CSV, JSON and Markdown."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from powerd_analytics.celltext import csv_cell, markdown_cell, to_json_text
from powerd_analytics.energy.reasons import digits
from powerd_analytics.tables.groups import group_line
from powerd_analytics.tables.shares import BudgetRow, Share
from powerd_analytics.unbroken import print_unbroken
from powerd_core.text import printable

COLUMNS = (
    "table", "group", "phase", "device", "provenance", "n", "energy_j", "u_j", "u95_j", "part", "part_u_j", "share",
    "distribution", "shared_by_phases", "shared_by_lines", "words",
)  # fmt: skip
"""One row for each part of each row of the run's table; a row without parts has one with these cells empty."""


def records(rows: Sequence[BudgetRow]) -> list[dict[str, Any]]:
    found = []
    for row in rows:
        parts: tuple[Share | None, ...] = row.parts or (None,)
        for part in parts:
            cells = {name: getattr(row, name) for name in COLUMNS if hasattr(row, name)}
            cells |= {"group": group_line(row.group)}
            cells |= {name: getattr(part, name, None) for name in COLUMNS[11:15]}
            found.append({name: cells.get(name) for name in COLUMNS} | {
                "part": part.part if part else None, "part_u_j": part.u_j if part else None,
            })  # fmt: skip
    return found


def to_csv(rows: Sequence[BudgetRow]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for cells in records(rows):
        writer.writerow(
            {k: "" if v is None else str(v).lower() if isinstance(v, bool) else csv_cell(v) for k, v in cells.items()}
        )
    return out.getvalue()


def to_json(rows: Sequence[BudgetRow]) -> str:
    documents = [
        {name: getattr(r, name) for name in BudgetRow.__dataclass_fields__ if name != "parts"}
        | {"group": dict(r.group), "parts": [{n: getattr(s, n) for n in Share.__dataclass_fields__} for s in r.parts]}
        for r in rows
    ]
    return to_json_text({"rows": documents}) + "\n"


def _lines(rows: Sequence[BudgetRow]) -> list[tuple[str, ...]]:
    return [
        (
            group_line(r.group), r.phase or f"({r.table})", _device(r), str(r.n),
            digits(r.energy_j), digits(r.u95_j, 2),
            ", ".join(f"{s.part} {_percent(s.share)} ({digits(s.u_j, 2)} J)" for s in r.parts) or "–", r.words,
        )
        for r in rows
    ]  # fmt: skip


HEADER = ("group", "phase", "device", "n", "J", "± U95 J", "share of the variance (standard uncertainty)", "in words")


def to_markdown(rows: Sequence[BudgetRow]) -> str:
    lines = ["| " + " | ".join(HEADER) + " |", "|" + " --- |" * len(HEADER)]
    lines += ["| " + " | ".join(map(markdown_cell, cells)) + " |" for cells in _lines(rows)]
    return "\n".join(lines) + "\n"


def print_budget(rows: Sequence[BudgetRow], console: Console) -> None:
    table = Table(box=SIMPLE_HEAD, title="Uncertainty budget", title_justify="left")
    for i, name in enumerate(HEADER):
        table.add_column(name, justify="right" if 2 < i < 6 else "left", overflow="fold")
    for cells in _lines(rows):
        table.add_row(*(Text(printable(c)) for c in cells))
    print_unbroken(table, console)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.01 else "< 1 %"


def _device(row: BudgetRow) -> str:
    return row.device if row.provenance == "measured" else f"{row.device} ({row.provenance})"
