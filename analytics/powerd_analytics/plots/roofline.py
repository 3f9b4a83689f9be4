"""The energy roofline: operations per joule against operations per byte."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from powerd_analytics.operations.counts import EXECUTED, PAPER
from powerd_analytics.output.colours import PALETTE, phase_colour
from powerd_analytics.plots.style import brief, finish, legend_above, panels, with_style
from powerd_analytics.run_tables.layers import BOTH, LayerEnergy, roof_of, roofline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PASSES = {"forward": phase_colour("forward"), "backward": phase_colour("backward"), BOTH: PALETTE[0]}
_MARKERS = {"layer": "o", "phase": "s", "model": "D"}
_TITLES = {
    PAPER: "paper: a multiply-add is one operation; 4 bytes a value",
    EXECUTED: "executed: a multiply-accumulate is two; each kernel's tensors once",
}
_MOST_NAMED = 6
"""So many layers are named: those that take most joules."""


@with_style
def draw_roofline(rows: Sequence[LayerEnergy], name: str) -> Figure:
    """A panel for each convention of counting. Raises `AnalysisError` when no row has joules and operations."""
    from matplotlib.lines import Line2D

    conventions = {c: points for c in (PAPER, EXECUTED) if (points := roofline(rows, c))}
    if not conventions:
        roof_of((), PAPER)  # raises, and says what is missing
    figure, axes = panels(len(conventions), (6.8, 5.0))
    for (ax,), (convention, points) in zip(axes, conventions.items(), strict=True):
        _roof(ax, convention, points)
    every = [p for points in conventions.values() for p in points]
    signs = [("o", c, c, n) for n, c in _PASSES.items() if n in {p.passes for p in every}]
    signs += [(m, "#444444", "none", n) for n, m in _MARKERS.items() if n in {p.level for p in every}]
    handles = [Line2D([], [], marker=m, color=c, mfc=inner, ls="none", label=n) for m, c, inner, n in signs]
    legend_above(figure, [*handles, Line2D([], [], color="#777777", ls="--", label="best of this run")])
    hollow = "" if all(p.provenance == "measured" for p in every) else "; hollow: not measured"
    kinds = (p.provenance for p in every)
    return finish(figure, f"{name}: energy roofline", kinds, f"error bars: 95 % interval{hollow}")


def _roof(ax: Axes, convention: str, points: Sequence[LayerEnergy]) -> None:
    roof = roof_of(points, convention)
    intensities = [p.by(convention).operations_per_byte or 0.0 for p in points]
    x = np.geomspace(min(intensities) / 2, max(intensities) * 2, 200)
    ax.plot(x, [roof.at(float(v)) for v in x], color="#777777", lw=1, ls="--", zorder=1)
    layers = [i for i, p in enumerate(points) if p.level == "layer" and p.passes == BOTH]
    named = sorted(layers, key=lambda i: -(points[i].j_per_batch or 0.0))[:_MOST_NAMED]
    for i, p in enumerate(points):
        figure, colour = p.by(convention), _PASSES.get(p.passes, "#000000")
        at = (figure.operations_per_byte or 0.0, figure.gflops_per_w or 0.0)
        ax.errorbar(
            *at, yerr=figure.u95_gflops_per_w, fmt=_MARKERS[p.level], color=colour, capsize=2, lw=0.8,
            mfc=colour if p.provenance == "measured" else "none", ms=8 if p.level == "model" else 5,
        )  # fmt: skip
        if p.is_lower_bound:
            ax.annotate("≤", at, xytext=(-9, -3), textcoords="offset points")
        if i in named:
            ax.annotate(brief(p.layer, 24), at, xytext=(6, 4), textcoords="offset points", fontsize=7, color="#333")
    ax.set(xscale="log", yscale="log", xlabel=f"operations per byte ({convention})")
    ax.set_ylabel(f"GFLOPS/W: 10⁹ operations per joule ({convention})")
    ax.set_title(_TITLES[convention], fontsize=8)
