"""The uncertainty budget as a picture: what each energy's uncertainty comes from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from powerd_analytics.energy.reasons import digits
from powerd_analytics.pictures.bar import HATCHES
from powerd_analytics.pictures.style import shown, styled, without_glyphs
from powerd_analytics.tables.groups import group_line
from powerd_analytics.tables.shares import BudgetRow

COLOURS = {
    "repeats": "#0072B2", "sampling": "#56B4E9", "gain": "#D55E00", "offset": "#E69F00", "quantisation": "#F0E442",
    "edges": "#009E73", "left over": "#44AA99", "clock": "#CC79A7", "device clock": "#882255", "missing": "#000000",
    "place": "#332288", "lag": "#117733", "folding": "#999999",
}  # fmt: skip
"""After Okabe and Ito, and Tol, told apart by colour-blind readers too."""
OTHER = "#DDDDDD"


@styled
def plot_budget(rows: Sequence[BudgetRow], path: Path) -> None:
    """A bar for each row that has parts: shares of the variance, and ± U95 beside it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    drawn = [r for r in rows if r.parts]
    figure = Figure(figsize=(9, 1.6 + 0.42 * max(len(drawn), 1)), layout="constrained")
    FigureCanvasAgg(figure)
    ax = figure.add_subplot()
    for y, row in enumerate(drawn):
        left = 0.0
        for s in row.parts:
            hatch = HATCHES[row.provenance]
            ax.barh(
                y, 100 * s.share, left=left, color=COLOURS.get(s.part, OTHER), edgecolor="white", lw=0.5, hatch=hatch
            )
            left += 100 * s.share
        ax.text(101, y, f"{digits(row.energy_j)} J ± {digits(row.u95_j, 2)}", va="center", fontsize=8)
    labels = [
        " ".join(x for x in (group_line(r.group), r.phase or f"({r.table})", r.device, r.provenance) if x)
        for r in drawn
    ]
    ax.set_yticks(range(len(drawn)), [shown(t, 100) for t in labels], fontsize=8)
    ax.set_ylim(len(drawn) - 0.4, -0.6)
    ax.set_xlim(0, 100)
    ax.set_xlabel("share of the variance (%); beside it: energy ± 95 % half-width")
    parts = list(dict.fromkeys(s.part for r in drawn for s in r.parts))
    names = sorted(parts, key=lambda n: list(COLOURS).index(n) if n in COLOURS else len(COLOURS))
    if names:
        handles = [Patch(facecolor=COLOURS.get(n, OTHER), label=n) for n in names]
        figure.legend(handles=handles, loc="outside upper left", ncols=min(len(names), 6), fontsize=8)
    with without_glyphs():
        figure.savefig(path, dpi=150)
