"""Sheets as CSV, JSON and Markdown."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from powerd_analytics.exports.sheet import Sheet
from powerd_analytics.tables.celltext import encodable, to_json_text
from powerd_core.text import printable


def to_csv(sheet: Sheet) -> str:
    """RFC 4180 with the columns' names as header; numbers in full precision, nothing for what has no value."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([encodable(column.name) for column in sheet.columns])
    writer.writerows([encodable(cell) for cell in row] for row in sheet.rows)
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
        out += [f"**{_cell(sheet.title)}**", ""]
        out.append("| " + " | ".join(_cell(c.heading) for c in columns) + " |")
        out.append("|" + "|".join(" --- " if c.kind in ("text", "flag") else " ---: " for c in columns) + "|")
        out += ["| " + " | ".join(map(_cell, line)) + " |" for line in lines]
        out.append("")
        out += [f"{i}. {_cell(note)}" for i, note in enumerate(notes, 1)]
        out += [""] * bool(notes)
        for note in sheet.notes:
            out += [f"*{_cell(note)}*", ""]
    return "\n".join(out)


def _cell(text: str) -> str:
    """Names from files may hold what Markdown, or the HTML it becomes, takes for its own."""
    made = printable(text).replace("\\", "\\\\").replace("<", "&lt;")
    for character in "|*`[":
        made = made.replace(character, f"\\{character}")
    return made
