"""Sheets as one HTML page that needs no other file."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from powerd_analytics.exports.sheet import Sheet
from powerd_core.text import printable

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; padding: 0 1rem; max-width: 75rem; }
div.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: 0 0 .5rem; }
caption { text-align: left; font-weight: 600; padding: 1.5rem 0 .4rem; }
th, td { padding: .15rem .7rem; text-align: left; white-space: nowrap; }
th { border-bottom: 1.5px solid; }
.n { text-align: right; font-variant-numeric: tabular-nums; }
ol, p { font-size: .9em; margin: .2rem 0; }
"""


def to_html(sheets: Sequence[Sheet], title: str = "Tables") -> str:
    """A page with one table a sheet, rounded for people; ``data-value`` of each number is in full precision."""
    body = "\n".join(_table(sheet) for sheet in sheets)
    head = f'<meta charset="utf-8">\n<title>{_text(title)}</title>\n<style>{_STYLE}</style>'
    return f'<!DOCTYPE html>\n<html lang="en">\n<head>\n{head}\n</head>\n<body>\n{body}\n</body>\n</html>\n'


def _table(sheet: Sheet) -> str:
    columns, lines, notes = sheet.shown()
    places = [next(i for i, c in enumerate(sheet.columns) if c is column) for column in columns]
    numeric = [c.kind in ("number", "integer") for c in columns]
    head = "".join(
        f'<th scope="col"{_unit(c.units)}{_class(n)}>{_text(c.heading)}</th>'
        for c, n in zip(columns, numeric, strict=True)
    )
    rows = []
    for row, line in zip(sheet.rows, lines, strict=True):
        cells = []
        for at, is_number, text in zip(places, numeric, line, strict=True):
            value = row[at]
            exact = f' data-value="{value!r}"' if is_number and isinstance(value, int | float) else ""
            cells.append(f"<td{_class(is_number)}{exact}>{_text(text)}</td>")
        rows.append(f"<tr>{''.join(cells)}</tr>")
    body = "\n".join(rows)
    made = (
        f"<table>\n<caption>{_text(sheet.title)}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>"
    )
    listed = "".join(f"<li>{_text(note)}</li>" for note in notes)
    said = "".join(f"<p>{_text(note)}</p>" for note in sheet.notes)
    return f'<div class="wide">{made}\n</table></div>\n{f"<ol>{listed}</ol>" if listed else ""}{said}'


def _text(text: str) -> str:
    return escape(printable(text))


def _class(is_number: bool) -> str:
    return ' class="n"' if is_number else ""


def _unit(units: str) -> str:
    return f' title="{escape(units)}"' if units and units != "1" else ""
