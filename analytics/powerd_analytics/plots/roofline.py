"""The energy roofline: operations per joule against operations per byte, of layers, phases and models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from powerd_analytics.layers import BOTH, LayerEnergy, roof_of, roofline
from powerd_analytics.operations.counts import EXECUTED, PAPER
from powerd_analytics.plots.style import PALETTE, finish, panels, shown, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {"forward": PALETTE[0], "backward": PALETTE[5], BOTH: PALETTE[2]}
MARKERS = {"layer": "o", "phase": "s", "model": "D"}
TITLES = {
    PAPER: "paper: a multiply-add is one operation; 4 bytes a value",
    EXECUTED: "executed: a multiply-accumulate is two; each kernel's tensors once",
}
MOST_NAMED = 6
"""So many layers are named: those that take most joules."""


@styled
def draw_roofline(rows: Sequence[LayerEnergy], name: str) -> Figure:
    """A panel for each convention of counting. Raises `AnalysisError` when no row has joules and operations."""
    from matplotlib.lines import Line2D

    conventions = {c: points for c in (PAPER, EXECUTED) if (points := roofline(rows, c))}
    if not conventions:
        roof_of((), PAPER)  # raises, and says what is missing
    figure, axes = panels(len(conventions), (6.8, 5.0))
    for (ax,), (convention, points) in zip(axes, conventions.items(), strict=True):
        _panel(ax, convention, points)
    every = [p for points in conventions.values() for p in points]
    handles = [
        Line2D([], [], color=c, marker="o", ls="none", label=n)
        for n, c in COLOURS.items() if n in {p.passes for p in every}
    ] + [
        Line2D([], [], color="#444444", marker=marker, ls="none", mfc="none", label=level)
        for level, marker in MARKERS.items() if level in {p.level for p in every}
    ]  # fmt: skip
    handles.append(Line2D([], [], color="#777777", ls="--", label="best of this run"))
    figure.legend(handles=handles, fontsize=8, frameon=False, loc="outside right upper")
    hollow = "" if all(p.provenance == "measured" for p in every) else "; hollow: not measured"
    note = f"error bars: 95 % interval{hollow}"
    return finish(figure, f"{name}: energy roofline", (p.provenance for p in every), note)


def _panel(ax: Axes, convention: str, points: Sequence[LayerEnergy]) -> None:
    roof = roof_of(points, convention)
    intensities = [p.by(convention).operations_per_byte or 0.0 for p in points]
    x = np.geomspace(min(intensities) / 2, max(intensities) * 2, 200)
    ax.plot(x, [roof.at(float(v)) for v in x], color="#777777", lw=1, ls="--", zorder=1)
    by_layer = [p for p in points if p.level == "layer" and p.passes == BOTH]
    layers = sorted(by_layer, key=lambda p: p.j_per_batch or 0.0, reverse=True)
    named = {id(p) for p in layers[:MOST_NAMED]}
    for p in points:
        figure, colour = p.by(convention), COLOURS.get(p.passes, "#000000")
        at = (figure.operations_per_byte or 0.0, figure.gflops_per_w or 0.0)
        ax.errorbar(
            *at, yerr=figure.u95_gflops_per_w, fmt=MARKERS[p.level], color=colour, capsize=2, lw=0.8,
            mfc=colour if p.provenance == "measured" else "none", ms=8 if p.level == "model" else 5,
        )  # fmt: skip
        if p.is_lower_bound:
            ax.annotate("≤", at, xytext=(-9, -3), textcoords="offset points")
        if id(p) in named:
            text = shown(p.layer, 24)
            ax.annotate(text, at, xytext=(6, 4), textcoords="offset points", fontsize=7, color="#333333")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel(f"operations per byte ({convention})")
    ax.set_ylabel(f"GFLOPS/W: 10⁹ operations per joule ({convention})")
    ax.set_title(TITLES[convention], fontsize=8)
