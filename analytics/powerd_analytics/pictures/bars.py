"""Grouped bars of joules per phase by batch size with 95 % intervals, below the traces of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from powerd_analytics.pictures.bar import HATCHES, Bar, put_bars, scale_of
from powerd_analytics.pictures.style import shown
from powerd_analytics.tables.groups import group_text
from powerd_analytics.tables.rows import PhaseRow, PhaseTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_NAMES = 24
"""Phases that a legend names."""
OTHER = "#777777"


def draw_bars(ax: Axes, table: PhaseTable, colours: Mapping[str, str], inches: tuple[float, float]) -> None:
    """A cluster for each device and group, a bar for each phase that has a colour and for the iteration.

    ``inches``: about the size of the axes.
    """
    rows = [r for r in table.phases if r.phase in colours or r.phase == "iteration"]
    names = list(dict.fromkeys(r.phase for r in rows))
    names.sort(key=lambda n: (n == "iteration", list(colours).index(n) if n in colours else 0))
    places = list(dict.fromkeys((r.device, r.provenance, tuple(r.group.items())) for r in rows))
    if not places:
        ax.set_axis_off()
        return
    at = {(r.device, r.provenance, tuple(r.group.items()), r.phase): r for r in rows}
    width = 0.84 / len(names)
    bars = [
        Bar(
            i + (k - (len(names) - 1) / 2) * width, width, row.j_per_batch, row.u95_j, colours.get(name, OTHER),
            HATCHES[row.provenance], row.is_lower_bound,
        )
        for k, name in enumerate(names) for i, place in enumerate(places)
        if (row := at.get((*place, name))) is not None
    ]  # fmt: skip
    put_bars(
        ax, bars, scale := scale_of((r.j_per_batch, r.u95_j) for r in rows), inches, len(places) + 0.2, unknown="n.r."
    )
    several = len({p[:2] for p in places}) > 1
    outer = {(r.device, r.provenance, tuple(r.group.items())): r.path.split("/")[0] for r in rows}
    labels = [group_text(dict(p[2]), outer[p]) + (f"\n{p[0]}" if several else "") for p in places]
    ax.set_xticks(range(len(places)), [shown(t) for t in labels], fontsize=8)
    ax.set_xlim(-0.6, len(places) - 0.4)
    ax.set_ylabel("energy per phase (J)" + (", logarithmic" if scale.is_log else ""))
    devices = ", ".join(dict.fromkeys(f"{d} ({p})" for d, p, _ in places))
    ax.set_title(f"Joules per phase and batch, {shown(devices, 120)}; error bars: 95 % interval")
    _legend(ax, names, colours, rows)


def _legend(ax: Axes, names: Sequence[str], colours: Mapping[str, str], rows: Sequence[PhaseRow]) -> None:
    """Beside the bars, below those of the traces: within, it would hide the highest bars."""
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=colours.get(n, OTHER), label=shown(n, 30)) for n in names[:MOST_NAMES]]
    if more := len(names) - len(handles):
        handles.append(Patch(facecolor="none", label=f"and {more} more"))
    for provenance in sorted({r.provenance for r in rows}):
        hatch = HATCHES[provenance] * 2
        handles.append(Patch(facecolor="#bbbbbb", hatch=hatch, edgecolor="white", label=provenance))
    if not all(r.is_resolvable for r in rows):
        handles.append(Patch(facecolor="none", edgecolor="#444444", hatch="xxxx", label="n.r.: not resolvable"))
    if any(r.is_lower_bound for r in rows):
        handles.append(Patch(facecolor="none", label="↑ ≥: lower bound, clipped readings"))
    ax.legend(handles=handles, fontsize=7.5, loc="upper left", bbox_to_anchor=(1.005, 1.02), frameon=False)
