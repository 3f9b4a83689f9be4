"""The uncertainty budget as a picture: what each energy's uncertainty comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from powerd_analytics.plots.style import HATCHES, shown, styled
from powerd_analytics.table import group_line
from powerd_analytics.text import digits
from powerd_analytics.uncertainty_table import BudgetRow

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = {
    "repeats": "#0072B2", "sampling": "#56B4E9", "gain": "#D55E00", "offset": "#E69F00", "quantisation": "#F0E442",
    "edges": "#009E73", "left over": "#44AA99", "clock": "#CC79A7", "device clock": "#882255", "missing": "#000000",
    "place": "#332288", "lag": "#117733", "folding": "#999999",
}  # fmt: skip
"""After Okabe and Ito, and Tol, told apart by colour-blind readers too."""
_OTHER = "#DDDDDD"


@styled
def draw_budget(rows: Sequence[BudgetRow]) -> Figure:
    """A bar for each row that has parts: shares of the variance, and ± U95 beside it."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    rows = [r for r in rows if r.parts]
    figure = Figure(figsize=(9, 1.6 + 0.42 * max(len(rows), 1)), layout="constrained")
    ax = figure.add_subplot()
    for y, row in enumerate(rows):
        left = 0.0
        for part in row.parts:
            colour, hatch = COLOURS.get(part.part, _OTHER), HATCHES[row.provenance]
            ax.barh(y, 100 * part.share, left=left, color=colour, edgecolor="white", lw=0.5, hatch=hatch)
            left += 100 * part.share
        ax.text(101, y, f"{digits(row.energy_j)} J ± {digits(row.u95_j, 2)}", va="center", fontsize=8)
    labels = [
        " ".join(filter(None, (group_line(r.group), r.phase or f"({r.table})", r.device, r.provenance))) for r in rows
    ]
    ax.set_yticks(range(len(rows)), [shown(t, 100) for t in labels], fontsize=8)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_xlim(0, 100)
    ax.set_xlabel("share of the variance (%); beside it: energy ± 95 % half-width")
    parts = {s.part for r in rows for s in r.parts}
    handles = [Patch(facecolor=COLOURS[n], label=n) for n in COLOURS if n in parts]
    handles += [Patch(facecolor=_OTHER, label=n) for n in sorted(parts - set(COLOURS))]
    if handles:
        figure.legend(handles=handles, loc="outside upper left", ncols=min(len(handles), 6), fontsize=8)
    return figure
