"""Sheets as CSV, JSON and Markdown."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from powerd_analytics.celltext import csv_cell, markdown_cell, to_json_text
from powerd_analytics.exports.sheet import Sheet


def to_csv(sheet: Sheet) -> str:
    """RFC 4180 with the columns' names as header; numbers in full precision, nothing for what has no value."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([csv_cell(column.name) for column in sheet.columns])
    writer.writerows([csv_cell(cell) for cell in row] for row in sheet.rows)
    return out.getvalue()


def to_json(sheets: Sequence[Sheet]) -> str:
    """A JSON object by the sheets' names: columns with their units, rows as objects, notes."""
    made = {
        sheet.name: {
            "title": sheet.title,
            "units": {c.name: c.units for c in sheet.columns if c.units},
            "rows": [dict(zip((c.name for c in sheet.columns), row, strict=True)) for row in sheet.rows],
            "notes": list(sheet.notes),
        }
        for sheet in sheets
    }
    return to_json_text(made) + "\n"


def to_markdown(sheets: Sequence[Sheet]) -> str:
    """One Markdown table a sheet, rounded for people, with numbered footnotes."""
    out: list[str] = []
    for sheet in sheets:
        columns, lines, notes = sheet.shown()
        out += [f"**{markdown_cell(sheet.title)}**", ""]
        out.append("| " + " | ".join(markdown_cell(c.heading) for c in columns) + " |")
        out.append("|" + "|".join(" --- " if c.kind in ("text", "flag") else " ---: " for c in columns) + "|")
        out += ["| " + " | ".join(map(markdown_cell, line)) + " |" for line in lines]
        out.append("")
        out += [f"{i}. {markdown_cell(note)}" for i, note in enumerate(notes, 1)]
        out += [""] * bool(notes)
        for note in sheet.notes:
            out += [f"*{markdown_cell(note)}*", ""]
    return "\n".join(out)
