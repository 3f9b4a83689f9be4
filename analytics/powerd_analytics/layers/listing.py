"""Energies of layers for people and spreadsheets: one list of columns serves all forms."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from powerd_analytics.celltext import csv_cell, markdown_cell
from powerd_analytics.energy.reasons import digits
from powerd_analytics.layers.rows import LayerEnergy
from powerd_analytics.operations.counts import CONVENTIONS
from powerd_analytics.unbroken import print_unbroken
from powerd_core.text import printable

COLUMNS = (
    "level", "model", "batch_size", "layer", "kind", "pass", "device", "provenance", "calls", "s_per_batch",
    "j_per_batch", "u95_j", "u_statistical_j", "u_systematic_j", "operations_paper", "bytes_paper",
    "gflops_per_w_paper", "u95_gflops_per_w_paper", "operations_executed", "bytes_executed",
    "gflops_per_w_executed", "u95_gflops_per_w_executed", "is_lower_bound", "note",
)  # fmt: skip
"""Of every CSV and JSON row; further attributes of the phases follow as ``attribute_NAME``."""


def records(rows: Sequence[LayerEnergy]) -> list[dict[str, Any]]:
    """All rows as flat dicts with the same keys."""
    extra = dict.fromkeys(f"attribute_{k}" for r in rows for k in r.group if k not in ("model", "batch_size"))
    found = []
    for r in rows:
        cells: dict[str, Any] = dict.fromkeys((*COLUMNS, *extra))
        cells |= {k if k in ("model", "batch_size") else f"attribute_{k}": v for k, v in r.group.items()}
        cells |= {"level": r.level, "layer": r.layer, "kind": r.kind, "pass": r.passes, "device": r.device}
        cells |= {"provenance": r.provenance, "calls": r.calls, "s_per_batch": r.s_per_batch}
        cells |= {"j_per_batch": r.j_per_batch, "u95_j": r.u95_j}
        cells |= {"u_statistical_j": r.energy.u_statistical_j if r.energy else None}
        cells |= {"u_systematic_j": r.energy.u_systematic_j if r.energy else None}
        for name, figure in (("paper", r.paper), ("executed", r.executed)):
            cells |= {f"operations_{name}": figure.operations, f"bytes_{name}": figure.moved_bytes}
            cells |= {f"gflops_per_w_{name}": figure.gflops_per_w}
            cells |= {f"u95_gflops_per_w_{name}": figure.u95_gflops_per_w}
        cells |= {"is_lower_bound": r.is_lower_bound, "note": r.note}
        found.append(cells)
    return found


def to_csv(rows: Sequence[LayerEnergy]) -> str:
    """RFC 4180 with a header; numbers in full precision. An empty cell has no value, and the note says why."""
    cells = records(rows)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(cells[0]) if cells else list(COLUMNS), lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: csv_cell(v) for k, v in row.items()} for row in cells)
    return out.getvalue()


def to_json(rows: Sequence[LayerEnergy]) -> str:
    """The same rows, and what the conventions mean."""
    document = {"conventions": CONVENTIONS, "rows": records(rows)}
    return json.dumps(document, indent=1, allow_nan=False, default=str) + "\n"


def to_markdown(rows: Sequence[LayerEnergy]) -> str:
    """A table rounded for people."""
    header, lines, notes = _view(rows)
    out = ["| " + " | ".join(map(markdown_cell, header)) + " |"]
    out.append("|" + "|".join(" --- " if h in _TEXT else " ---: " for h in header) + "|")
    out += ["| " + " | ".join(map(markdown_cell, line)) + " |" for line in lines]
    out += ["", *(f"{i}. {markdown_cell(note)}" for i, note in enumerate(notes, 1))]
    return "\n".join(out) + "\n"


def print_table(rows: Sequence[LayerEnergy], console: Console) -> None:
    """The same for a terminal."""
    header, lines, notes = _view(rows)
    shown = Table(header_style="bold", box=SIMPLE_HEAD)
    for name in header:
        shown.add_column(Text(printable(name)), justify="left" if name in _TEXT else "right", overflow="fold")
    for line in lines:
        shown.add_row(*(Text(printable(cell)) for cell in line))
    print_unbroken(shown, console)
    for i, note in enumerate(notes, 1):
        console.print(f" {i}  {printable(note)}", markup=False, highlight=False)


MAKERS: dict[str, Callable[[Sequence[LayerEnergy]], str]] = {"csv": to_csv, "json": to_json, "markdown": to_markdown}
_TEXT = frozenset({"layer", "kind", "pass", "device", "note"})


def _view(rows: Sequence[LayerEnergy]) -> tuple[list[str], list[list[str]], list[str]]:
    names = list(dict.fromkeys(k for r in rows for k in r.group))
    header = [*names, "layer", "kind", "pass", "device", "s/batch", "J/batch", "± U95", "GFLOPS/W (paper)", "± U95",
              "GFLOPS/W (executed)", "± U95", "note"]  # fmt: skip
    notes: dict[str, int] = {}
    lines = []
    for r in rows:
        least, most = ("≥ ", "≤ ") if r.is_lower_bound else ("", "")
        cells = [*("" if (v := r.group.get(n)) is None else str(v) for n in names)]
        cells += [r.layer if r.level == "layer" else f"({r.level})", r.kind, r.passes, f"{r.device} ({r.provenance})"]
        cells += [digits(r.s_per_batch), least + digits(r.j_per_batch) if r.energy else "n.r.", digits(r.u95_j, 2)]
        for figure in (r.paper, r.executed):
            most_ = most if figure.gflops_per_w is not None else ""
            cells += [most_ + digits(figure.gflops_per_w), digits(figure.u95_gflops_per_w, 2)]
        numbers = {notes.setdefault(part, len(notes) + 1) for part in r.note.split("; ") if part}
        cells.append(" ".join(map(str, sorted(numbers))))
        lines.append(cells)
    keep = [i for i in range(len(header)) if any(line[i] not in ("", "–") for line in lines)]
    return [header[i] for i in keep], [[line[i] for i in keep] for line in lines], list(notes)
