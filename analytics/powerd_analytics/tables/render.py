"""A run's table for the terminal and as CSV, JSON or Markdown: one list of columns serves all."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from powerd_analytics.celltext import csv_cell, markdown_cell, to_json_text
from powerd_analytics.energy.reasons import digits
from powerd_analytics.tables.above_idle import ABOVE_IDLE_HEADER, above_idle_cells, above_idle_lines
from powerd_analytics.tables.groups import quoted
from powerd_analytics.tables.ranktable import JOB_HEADER, RANK_HEADER, job_lines, rank_lines, rank_records
from powerd_analytics.tables.rows import PhaseRow, PhaseTable, RunRow, TotalRow
from powerd_analytics.unbroken import print_unbroken
from powerd_core.text import printable

Row = PhaseRow | TotalRow | RunRow

CSV_COLUMNS = (
    "table", "model", "batch_size", "phase", "path", "device", "provenance", "timing", "iterations", "s_per_batch",
    "j_per_batch", "u95_j", "u_statistical_j", "u_systematic_j", "power_w", "samples_per_s", "time_s", "energy_j",
    "edp_js", "gflops_per_w_paper", "gflops_basis", "phases_j", "rest_j", "residual_j", "missing_s", "off_by_j",
    "is_lower_bound", "method", "note",
)  # fmt: skip
"""Columns of every CSV and JSON row, in this order; further attributes of the phases follow as ``attribute_NAME``.
``table`` is ``phase``, ``total`` or ``run``. A cell without a value is empty (CSV) or null (JSON)."""


def records(table: PhaseTable) -> list[dict[str, Any]]:
    """All rows as flat dicts with the same keys."""
    rows: list[Row] = [*table.phases, *table.totals, *table.runs]
    extra: dict[str, None] = {}
    for row in rows:
        extra |= dict.fromkeys(f"attribute_{k}" for k in _group(row) if k not in ("model", "batch_size"))
    found = [_record(row, (*CSV_COLUMNS, *extra)) for row in rows]
    found = [cells | above_idle_cells(row, table.idle) for row, cells in zip(rows, found, strict=True)]
    found += rank_records(table)
    names = dict.fromkeys(name for cells in found for name in cells)
    return [dict.fromkeys(names) | cells for cells in found]


def _group(row: Row) -> Mapping[str, Any]:
    return {} if isinstance(row, RunRow) else row.group


def _record(row: Row, columns: Iterable[str]) -> dict[str, Any]:
    values = {f.name: getattr(row, f.name) for f in fields(row) if f.name != "group"}
    group = _group(row)
    values |= {k if k in ("model", "batch_size") else f"attribute_{k}": v for k, v in group.items()}
    values["table"] = {PhaseRow: "phase", TotalRow: "total", RunRow: "run"}[type(row)]
    return {name: values.get(name) for name in columns}


def to_csv(table: PhaseTable) -> str:
    """RFC 4180 with a header; numbers in full precision, a dot as decimal mark."""
    rows = records(table)
    out = io.StringIO()
    names = list(rows[0]) if rows else list(CSV_COLUMNS)
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(csv_cell, names))
    writer.writerows([csv_cell(row[name]) for name in names] for row in rows)
    return out.getvalue()


def to_json(table: PhaseTable) -> str:
    """A JSON list of the same rows."""
    return to_json_text(records(table)) + "\n"


def to_markdown(table: PhaseTable) -> str:
    """One Markdown table each for the phases, the totals and the run, rounded for people, with footnotes."""
    out = []
    for view in _views(table):
        out.append(f"**{view.title}**\n")
        out.append("| " + " | ".join(map(markdown_cell, view.header)) + " |")
        out.append("|" + "|".join(" --- " if h in _TEXT else " ---: " for h in view.header) + "|")
        out += ["| " + " | ".join(map(markdown_cell, line)) + " |" for line in view.lines]
        out.append("")
        out += [f"{i}. {markdown_cell(note)}" for i, note in enumerate(view.notes, 1)]
        out += [""] if view.notes else []
    if out:
        out += [f"*{markdown_cell(_meaning(table))}*", ""]
    return "\n".join(out) or "No phases and no devices in this run.\n"


def print_table(table: PhaseTable, console: Console) -> None:
    """The same for a terminal."""
    if not table.phases:
        console.print("This run has no phases: mark them with `meter.phase(...)`.", markup=False)
    for view in _views(table):
        shown = Table(title=view.title, title_justify="left", title_style="bold", header_style="bold", box=SIMPLE_HEAD)
        for name in view.header:
            shown.add_column(_shown(name), justify="left" if name in _TEXT else "right", overflow="fold")
        for line in view.lines:
            shown.add_row(*map(_shown, line))
        print_unbroken(shown, console)
        for i, note in enumerate(view.notes, 1):
            console.print(f" {i}  {printable(note)}", markup=False, highlight=False)
        console.print()
    if table.runs:
        console.print(_meaning(table), markup=False, highlight=False)


def _meaning(table: PhaseTable) -> str:
    """What the headings leave open."""
    said = "± U95: half of the 95 % interval, in joules"
    if any(row.gflops_per_w_paper is not None for row in table.totals):
        said += "; GFLOPS/W (paper): forward and backward count the model's operations once each"
    return f"{said}."


@dataclass(frozen=True, slots=True)
class _View:
    title: str
    header: list[str]
    lines: list[list[str]]
    notes: list[str]
    """Footnotes, numbered from 1 in the column ``note``."""


_TEXT = frozenset({"model", "phase", "device", "note"})


def _shown(text: str) -> Text:
    # Not a string: rich would take brackets in it for its own, and passes control characters on.
    return Text(printable(text))


def _views(table: PhaseTable) -> list[_View]:
    """The parts that have rows; columns that are empty throughout are left out."""
    names = list(dict.fromkeys(k for group in _groups(table) for k in group))
    names.sort(key=lambda n: (n != "model", n != "batch_size", n))
    views = []
    if table.phases:
        header = [*names, "phase", "device", "n", "s/batch", "J/batch", "± U95", "W", "samples/s", "note"]
        lines = [
            ([*(_plain(n, r.group.get(n)) for n in names), r.phase, _device(r), str(r.iterations),
              digits(r.s_per_batch), _least(r, r.j_per_batch) if r.is_resolvable else "n.r.", digits(r.u95_j, 2),
              _least(r, r.power_w), digits(r.samples_per_s)], _phase_notes(r))
            for r in table.phases
        ]  # fmt: skip
        views.append(_view("Phases", header, lines))
    if table.totals:
        header = [*names, "device", "n", "s", "J", "± U95", "W", "EDP (J s)", "samples/s", "GFLOPS/W (paper)",
                  "rest J", "residual J", "note"]  # fmt: skip
        lines = [
            ([*(_plain(n, r.group.get(n)) for n in names), _device(r), str(r.iterations), digits(r.time_s),
             _least(r, r.energy_j) if r.energy_j is not None else "n.r.", digits(r.u95_j, 2), _least(r, r.power_w),
             _least(r, r.edp_js), digits(r.samples_per_s), _least(r, r.gflops_per_w_paper, "≤"), _least(r, r.rest_j),
             digits(r.residual_j, 2)], _total_notes(r))
            for r in table.totals
        ]  # fmt: skip
        views.append(_view("Totals", header, lines))
    if table.runs:
        header = ["device", "s", "J", "± U95", "W", "phases J", "rest J", "residual J", "residual %", "note"]
        lines = [
            ([_device(r), digits(r.time_s), _least(r, r.energy_j) if r.energy_j is not None else "n.r.",
              digits(r.u95_j, 2), _least(r, r.power_w),
             _least(r, r.phases_j), _least(r, r.rest_j), digits(r.residual_j, 2), _percent(r)], [r.note])
            for r in table.runs
        ]  # fmt: skip
        views.append(_view("Run: phases + rest + residual = whole", header, lines))
    if table.ranks:
        views.append(_view("Ranks", [*RANK_HEADER, "note"], rank_lines(table.ranks)))
        views.append(_view("Job: all ranks = devices", [*JOB_HEADER, "note"], job_lines(table.jobs)))
    if table.idle:
        lines = [(cells, [note]) for cells, note in above_idle_lines(table, names)]
        views.append(_view("Above idle, beside the whole", [*names, *ABOVE_IDLE_HEADER, "note"], lines))
    return views


def _view(title: str, header: list[str], lines: list[tuple[list[str], list[str]]]) -> _View:
    """From cells and texts of each row: the texts become numbered footnotes, equal ones once."""
    numbers: dict[str, int] = {}
    numbered = []
    for cells, texts in lines:
        marks = [numbers.setdefault(text, len(numbers) + 1) for text in texts if text]
        numbered.append([*cells, " ".join(map(str, sorted(marks)))])
    keep = [i for i in range(len(header)) if any(line[i] not in ("", "–") for line in numbered)]
    return _View(title, [header[i] for i in keep], [[line[i] for i in keep] for line in numbered], list(numbers))


def _least(row: Row, value: float | None, sign: str = "≥") -> str:
    """A figure of a row, which may be known only from one side."""
    return f"{sign} {digits(value)}" if row.is_lower_bound and value is not None else digits(value)


def _device(row: Row) -> str:
    return f"{row.device} ({row.provenance})"


def _phase_notes(row: PhaseRow) -> list[str]:
    return [row.note, "" if row.timing in ("", "host") else f"timed {row.timing}"]


def _total_notes(row: TotalRow) -> list[str]:
    return [f"GFLOPS/W over the joules of {row.gflops_basis}" if row.gflops_basis else "", row.note]


def _groups(table: PhaseTable) -> list[Mapping[str, Any]]:
    return [*(row.group for row in table.phases), *(row.group for row in table.totals)]


def _percent(row: RunRow) -> str:
    if row.residual_j is None or not row.energy_j:
        return "–"
    return f"{100 * row.residual_j / row.energy_j:.2g}"


def _plain(name: str, value: Any) -> str:
    return "" if value is None else str(value) if name == "model" else quoted(value)
