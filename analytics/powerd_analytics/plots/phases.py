"""Energies by phase: bars by batch size as in figures 5 to 8 of Castro et al., and the budget of their uncertainty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from powerd_analytics.plots.configurations import Configuration, grouped, label
from powerd_analytics.plots.style import (
    HATCHES,
    Bar,
    Height,
    bar_handles,
    colours,
    draw_bars,
    finish,
    heading,
    interval_note,
    legend_above,
    panels,
    shown,
    styled,
)
from powerd_analytics.table_rows import group_line
from powerd_analytics.text import digits
from powerd_analytics.uncertainty_table import BudgetRow
from powerd_core.errors import AnalysisError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANEL = ("model", "gpus", "device", "provenance", "power_cap_w", "others")
_ROWS = {"energy": "energy a batch (J)", "time": "time a batch (s)"}


@styled
def draw_phases(configurations: Sequence[Configuration], name: str) -> Figure:
    """Bars in groups of one batch size, one bar a phase, energy above time; a panel for each model, device and number
    of GPUs, those of a model side by side. Without any time, energy alone.

    Raises `AnalysisError` where there are no phases.
    """
    kept = [c for c in configurations if not c.is_whole]
    if all(c.energy_j is None and not c.provenance for c in kept):
        raise AnalysisError("no phases to draw: a table needs the columns phase and j_per_batch")
    for same in grouped(kept, (*_PANEL, "batch", "phase")):
        if len(same) > 1:
            raise AnalysisError(f"two rows for one bar of the picture: {label(same[0], kept)}: leave one of them out")
    models = list(dict.fromkeys(c.model for c in kept))
    groups = sorted(grouped(kept, _PANEL), key=lambda same: models.index(same[0].model))
    of_phases = colours(c.phase for c in kept)
    rows = [row for row in _ROWS if row == "energy" or any(c.time_s is not None for c in kept)]
    figure, axes = panels(len(groups), (5.2, 2.7), rows=len(rows))
    unknown = "n.r." if any(c.provenance for c in kept) else "–"
    for column, same in zip(axes, groups, strict=True):
        # One scale for a model and kind of power: panels side by side are there to be compared.
        alike = [c for c in kept if (c.model, c.provenance) == (same[0].model, same[0].provenance)]
        for ax, row in zip(column, rows, strict=True):
            _panel(ax, same, of_phases, row, [_height(c, row) for c in alike], unknown)
        heading(column[0], label(same[0], kept, ("batch",)) or same[0].model or same[0].device)
        column[-1].set_xlabel("batch size")
    why = f"{unknown}: {'not resolvable' if unknown == 'n.r.' else 'no figure'}"
    why = why if any(c.energy_j is None for c in kept) else ""
    kinds, has_bounds = [c.provenance for c in kept], any(c.is_lower_bound for c in kept)
    legend_above(figure, bar_handles(of_phases, kinds, why, has_bounds=has_bounds))
    of_model = f" of {models[0]}" if len(models) == 1 and models[0] else ""
    note = interval_note(u for c in kept for u in (c.u95_j, c.u95_s))
    return finish(figure, f"{name}: {' and '.join(rows)} by phase{of_model}", kinds, note)


def _height(c: Configuration, row: str) -> Height:
    return (c.energy_j, c.u95_j) if row == "energy" else (c.time_s, c.u95_s)


def _panel(
    ax: Axes, same: Sequence[Configuration], of_phases: dict[str, str], row: str, among: Sequence[Height], unknown: str
) -> None:
    batches = sorted({c.batch for c in same}, key=lambda b: (b is None, b or 0.0))
    names = [n for n in of_phases if any(c.phase == n for c in same)]
    width = 0.84 / len(names)
    is_energy = row == "energy"
    bars = [
        Bar(
            batches.index(c.batch) + (names.index(c.phase) - (len(names) - 1) / 2) * width, width, _height(c, row),
            of_phases[c.phase],
            # Time is the host's own, however the power came about.
            HATCHES.get(c.provenance, "") if is_energy else "",
            c.is_lower_bound and is_energy,
        )
        for c in same
    ]  # fmt: skip
    draw_bars(ax, bars, among, 4.5, unknown=unknown)
    ticks = ["all" if b is None else f"{b:g}" for b in batches]
    ax.set_xticks(range(len(batches)), ticks, fontsize=9 if len(batches) <= 8 else 7)
    ax.set_xlim(-0.6, len(batches) - 0.4)
    ax.set_ylabel(_ROWS[row] + (", logarithmic" if ax.get_yscale() == "log" else ""))


# ---- the uncertainty budget --------------------------------------------------------------------------------------

_PARTS = {
    "repeats": "#0072B2", "sampling": "#56B4E9", "gain": "#D55E00", "offset": "#E69F00", "quantisation": "#F0E442",
    "edges": "#009E73", "left over": "#44AA99", "clock": "#CC79A7", "device clock": "#882255", "missing": "#000000",
    "place": "#332288", "lag": "#117733", "folding": "#999999",
}  # fmt: skip
"""After Okabe and Ito, and Tol, told apart by colour-blind readers too; any other part is light grey."""


@styled
def draw_budget(rows: Sequence[BudgetRow]) -> Figure:
    """A bar for each row that has parts: shares of the variance, and ± U95 beside it."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    rows = [r for r in rows if r.parts]
    figure = Figure(figsize=(9, 1.6 + 0.42 * max(len(rows), 1)), layout="constrained")
    ax = figure.add_subplot()
    handles = {}
    for y, row in enumerate(rows):
        left = 0.0
        for part in row.parts:
            colour, share = _PARTS.get(part.part, "#DDDDDD"), 100 * part.share
            ax.barh(y, share, left=left, color=colour, edgecolor="white", lw=0.5, hatch=HATCHES[row.provenance])
            handles[part.part] = Patch(facecolor=colour, label=part.part)
            left += share
        ax.text(101, y, f"{digits(row.energy_j)} J ± {digits(row.u95_j, 2)}", va="center", fontsize=8)
    words = [(group_line(r.group), r.phase or f"({r.table})", r.device, r.provenance) for r in rows]
    ax.set_yticks(range(len(rows)), [shown(" ".join(filter(None, w)), 100) for w in words], fontsize=8)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_xlim(0, 100)
    ax.set_xlabel("share of the variance (%); beside it: energy ± 95 % half-width")
    if handles:
        legend = list(handles.values())
        figure.legend(handles=legend, loc="outside upper left", ncols=min(len(legend), 6), fontsize=8)
    return figure
