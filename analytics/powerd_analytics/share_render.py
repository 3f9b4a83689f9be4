"""The uncertainty budget as a table for the terminal, CSV, JSON, Markdown, and as a bar picture."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from powerd_analytics.bars import HATCHES, group_text
from powerd_analytics.reasons import digits
from powerd_analytics.shares import BudgetRow, Share
from powerd_core.text import printable

COLUMNS = (
    "table", "group", "phase", "device", "provenance", "n", "energy_j", "u_j", "u95_j", "part", "part_u_j", "share",
    "distribution", "shared_by_phases", "shared_by_lines", "words",
)  # fmt: skip
"""One row for each part of each row of the run's table; a row without parts has one with these cells empty."""
COLOURS = {
    "repeats": "#0072B2", "sampling": "#56B4E9", "gain": "#D55E00", "offset": "#E69F00", "quantisation": "#F0E442",
    "edges": "#009E73", "clock": "#CC79A7", "device clock": "#882255", "missing": "#000000", "folding": "#999999",
}  # fmt: skip
"""After Okabe and Ito, told apart by colour-blind readers too."""


def records(rows: Sequence[BudgetRow]) -> list[dict[str, Any]]:
    found = []
    for row in rows:
        parts: tuple[Share | None, ...] = row.parts or (None,)
        for part in parts:
            cells = {name: getattr(row, name) for name in COLUMNS if hasattr(row, name)}
            cells |= {"group": _group(row)}
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
            {k: "" if v is None else str(v).lower() if isinstance(v, bool) else v for k, v in cells.items()}
        )
    return out.getvalue()


def to_json(rows: Sequence[BudgetRow]) -> str:
    documents = [
        {name: getattr(r, name) for name in BudgetRow.__dataclass_fields__ if name != "parts"}
        | {"group": dict(r.group), "parts": [{n: getattr(s, n) for n in Share.__dataclass_fields__} for s in r.parts]}
        for r in rows
    ]
    return json.dumps({"rows": documents}, indent=1, default=str) + "\n"


def _lines(rows: Sequence[BudgetRow]) -> list[tuple[str, ...]]:
    return [
        (
            _group(r), r.phase or f"({r.table})", _device(r), str(r.n), digits(r.energy_j), digits(r.u95_j, 2),
            ", ".join(f"{s.part} {_percent(s.share)} ({digits(s.u_j, 2)} J)" for s in r.parts) or "–", r.words,
        )
        for r in rows
    ]  # fmt: skip


HEADER = ("group", "phase", "device", "n", "J", "± U95 J", "share of the variance (standard uncertainty)", "in words")


def to_markdown(rows: Sequence[BudgetRow]) -> str:
    lines = ["| " + " | ".join(HEADER) + " |", "|" + " --- |" * len(HEADER)]
    lines += ["| " + " | ".join(printable(c).replace("|", "\\|") for c in cells) + " |" for cells in _lines(rows)]
    return "\n".join(lines) + "\n"


def print_budget(rows: Sequence[BudgetRow], console: Console) -> None:
    table = Table(box=SIMPLE_HEAD, title="Uncertainty budget", title_justify="left")
    for i, name in enumerate(HEADER):
        table.add_column(name, justify="right" if 2 < i < 6 else "left", overflow="fold")
    for cells in _lines(rows):
        table.add_row(*(Text(printable(c)) for c in cells))
    console.print(table)


def plot_budget(rows: Sequence[BudgetRow], path: Path) -> None:
    """A bar for each row that has parts: shares of the variance, and ± U95 beside it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    shown = [r for r in rows if r.parts]
    figure = Figure(figsize=(9, 1.6 + 0.42 * max(len(shown), 1)), layout="constrained")
    FigureCanvasAgg(figure)
    ax = figure.add_subplot()
    for y, row in enumerate(shown):
        left = 0.0
        for s in row.parts:
            hatch = HATCHES[row.provenance]
            ax.barh(y, 100 * s.share, left=left, color=COLOURS[s.part], edgecolor="white", lw=0.5, hatch=hatch)
            left += 100 * s.share
        ax.text(101, y, f"{digits(row.energy_j)} J ± {digits(row.u95_j, 2)}", va="center", fontsize=8)
    labels = [" ".join(x for x in (_group(r), r.phase or f"({r.table})", r.device, r.provenance) if x) for r in shown]
    ax.set_yticks(range(len(shown)), [printable(t) for t in labels], fontsize=8)
    ax.set_ylim(len(shown) - 0.4, -0.6)
    ax.set_xlim(0, 100)
    ax.set_xlabel("share of the variance (%); beside it: energy ± 95 % half-width")
    names = [n for n in COLOURS if any(s.part == n for r in shown for s in r.parts)]
    if names:
        handles = [Patch(facecolor=COLOURS[n], label=n) for n in names]
        figure.legend(handles=handles, loc="outside upper left", ncols=min(len(names), 6), fontsize=8)
    figure.savefig(path, dpi=150)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.01 else "< 1 %"


def _group(row: BudgetRow) -> str:
    return group_text(row.group, "").replace("\n", ", ")


def _device(row: BudgetRow) -> str:
    return row.device if row.provenance == "measured" else f"{row.device} ({row.provenance})"
