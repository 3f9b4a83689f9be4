"""Grouped bars of joules per phase by batch size with 95 % intervals; not resolvable is said, not drawn as 0.

A lower bound has no interval: an arrow upwards instead, and a >= sign.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from powerd_analytics.energy.reasons import digits
from powerd_analytics.pictures.style import shown
from powerd_analytics.tables.groups import group_text
from powerd_analytics.tables.rows import PhaseRow, PhaseTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HATCHES = {"measured": "", "simulated": "//", "modelled": ".."}
"""A joule that was not measured never looks like one that was."""
MOST_NAMES = 24
"""Phases that a legend names."""


def draw_bars(axes: Sequence[Axes], table: PhaseTable, colours: Mapping[str, str]) -> None:
    """Into ``axes[0]``: a cluster for each device and group, a bar for each innermost phase and for the iteration."""
    ax = axes[0]
    rows = [r for r in table.phases if r.phase in colours or r.phase == "iteration"]
    names = list(dict.fromkeys(r.phase for r in rows))
    names.sort(key=lambda n: (n == "iteration", list(colours).index(n) if n in colours else 0))
    places = list(dict.fromkeys((r.device, r.provenance, tuple(r.group.items())) for r in rows))
    if not places:
        ax.set_axis_off()
        return
    at = {(r.device, r.provenance, tuple(r.group.items()), r.phase): r for r in rows}
    width = 0.84 / len(names)
    highest = max((r.j_per_batch or 0) + (r.u95_j or 0) for r in rows) or 1.0
    is_labelled = len(places) * len(names) <= 40
    for k, name in enumerate(names):
        for i, place in enumerate(places):
            row = at.get((*place, name))
            if row is not None:
                x = i + (k - (len(names) - 1) / 2) * width
                _bar(ax, x, width * 0.92, row, colours.get(name, "#777777"), highest, is_labelled=is_labelled)
    several = len({p[:2] for p in places}) > 1
    outer = {(r.device, r.provenance, tuple(r.group.items())): r.path.split("/")[0] for r in rows}
    labels = [group_text(dict(p[2]), outer[p]) + (f"\n{p[0]}" if several else "") for p in places]
    ax.set_xticks(range(len(places)), [shown(t) for t in labels], fontsize=8)
    ax.set_xlim(-0.6, len(places) - 0.4)
    ax.set_ylim(0, highest * 1.18)
    ax.set_ylabel("energy per phase (J)")
    devices = ", ".join(dict.fromkeys(f"{d} ({p})" for d, p, _ in places))
    ax.set_title(f"Joules per phase and batch, {shown(devices, 120)}; error bars: 95 % interval")
    _legend(ax, names, colours, rows)


def _bar(ax: Axes, x: float, width: float, row: PhaseRow, colour: str, highest: float, *, is_labelled: bool) -> None:
    if row.j_per_batch is None:
        ax.bar(x, highest * 0.035, width, facecolor="none", edgecolor=colour, hatch="xxxx", lw=0.8)
        ax.annotate("n.r.", (x, highest * 0.045), ha="center", va="bottom", fontsize=7, color="#444444")
        return
    ax.bar(x, row.j_per_batch, width, color=colour, alpha=0.85, hatch=HATCHES[row.provenance], edgecolor="white", lw=0)
    u = row.u95_j or 0.0
    if row.is_lower_bound:
        u = highest * 0.05
        ax.errorbar(x, row.j_per_batch, yerr=u, lolims=True, color="black", capsize=2.5, lw=1, ls="none")
    else:
        ax.errorbar(x, row.j_per_batch, yerr=u, color="black", capsize=2.5, lw=1, ls="none")
    if is_labelled:
        text = ("≥ " if row.is_lower_bound else "") + digits(row.j_per_batch, 3)
        ax.annotate(text, (x, row.j_per_batch + u), xytext=(0, 2), textcoords="offset points", ha="center",
                    va="bottom", fontsize=7)  # fmt: skip


def _legend(ax: Axes, names: Sequence[str], colours: Mapping[str, str], rows: Sequence[PhaseRow]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=colours.get(n, "#777777"), alpha=0.85, label=shown(n)) for n in names[:MOST_NAMES]]
    if more := len(names) - len(handles):
        handles.append(Patch(facecolor="none", label=f"and {more} more"))
    for provenance in sorted({r.provenance for r in rows}):
        hatch = HATCHES[provenance] * 2
        handles.append(Patch(facecolor="#bbbbbb", hatch=hatch, edgecolor="white", label=provenance))
    if not all(r.is_resolvable for r in rows):
        handles.append(Patch(facecolor="none", edgecolor="#444444", hatch="xxxx", label="n.r.: not resolvable"))
    if any(r.is_lower_bound for r in rows):
        handles.append(Patch(facecolor="none", label="↑ ≥: lower bound, clipped readings"))
    columns = int(np.clip(len(handles), 1, 8))
    ax.legend(handles=handles, fontsize=8, ncols=columns, loc="upper left", framealpha=0.85)
