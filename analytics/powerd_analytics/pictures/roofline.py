"""The energy roofline as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from powerd_analytics.layers.roofline import RooflinePoint, roof_of, roofline
from powerd_analytics.layers.rows import BOTH, LayerEnergy
from powerd_analytics.operations.counts import EXECUTED, PAPER
from powerd_analytics.pictures.nametags import NamedPoint, put_names
from powerd_analytics.pictures.style import RC, middle, shown, without_glyphs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {"forward": "#0072B2", "backward": "#D55E00", BOTH: "#009E73"}
"""Of Okabe and Ito's colours, told apart by people with any colour vision."""
MARKERS = {"layer": "o", "phase": "s", "model": "D"}
TITLES = {
    PAPER: "paper: a multiply-add is one operation; 4 bytes a value",
    EXECUTED: "executed: a multiply-accumulate is two; each kernel's tensors once",
}
NAMED = 6
"""So many layers are named: those that take most joules."""


def plot_roofline(rows: Sequence[LayerEnergy], out: Path, *, title: str = "", dpi: int = 130) -> None:
    """Write a picture with a panel for each convention; the ending of ``out`` says the format (png, pdf, svg).

    Raises `AnalysisError` when no row has joules and operations.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    panels = {c: points for c in (PAPER, EXECUTED) if (points := roofline(rows, c))}
    if not panels:
        roof_of(())
    with mpl.rc_context(RC), without_glyphs():
        figure = Figure(figsize=(6.8 * len(panels), 5.2), layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for ax, (convention, points) in zip(axes, panels.items(), strict=True):
            _draw(ax, convention, points)
        _legend(figure, panels)
        provenances = ", ".join(sorted({p.provenance for points in panels.values() for p in points}))
        hollow = "" if provenances == "measured" else " (hollow: not measured)"
        said = f"energy roofline, {provenances} joules{hollow}; bars: 95 %"
        figure.suptitle(f"{shown(title, 100)}: {said}" if title else said, x=0.01, ha="left", fontsize=10)
        figure.savefig(out, dpi=dpi)


def _draw(ax: Axes, convention: str, points: Sequence[RooflinePoint]) -> None:
    roof = roof_of(points)
    intensities = [p.operations_per_byte for p in points]
    x = np.geomspace(min(intensities) / 2, max(intensities) * 2, 200)
    ax.plot(x, [roof.at(float(v)) for v in x], color="#777777", lw=1, ls="--", zorder=1)
    for p in points:
        colour = COLOURS.get(p.passes, "#000000")
        ax.errorbar(
            p.operations_per_byte,
            p.gflops_per_w,
            yerr=p.u95_gflops_per_w,
            fmt=MARKERS[p.level],
            color=colour,
            mfc=colour if p.provenance == "measured" else "none",
            ms=8 if p.level == "model" else 5,
            capsize=2,
            lw=0.8,
        )
        if p.is_upper_bound:
            ax.annotate("≤", (p.operations_per_byte, p.gflops_per_w), xytext=(-9, -3), textcoords="offset points")
    ax.set_xscale("log")
    ax.set_yscale("log")
    layers = sorted((p for p in points if p.level == "layer" and p.passes == BOTH), key=lambda p: -p.energy_j)
    named = {id(p) for p in layers[:NAMED]}
    put_names(ax, [
        NamedPoint(p.operations_per_byte, p.gflops_per_w, shown(middle(p.name, 40)) if id(p) in named else "")
        for p in (*layers, *(p for p in points if p not in layers))
    ])  # fmt: skip
    ax.set_xlabel(f"operations per byte ({convention})")
    ax.set_ylabel(f"GFLOPS/W: 10⁹ operations per joule ({convention})")
    ax.set_title(TITLES[convention], fontsize=8, loc="left")


def _legend(figure: Figure, panels: Mapping[str, Sequence[RooflinePoint]]) -> None:
    from matplotlib.lines import Line2D

    points = [p for of_panel in panels.values() for p in of_panel]
    passes, levels = {p.passes for p in points}, {p.level for p in points}
    handles = [Line2D([], [], color=c, marker="o", ls="none", label=n) for n, c in COLOURS.items() if n in passes]
    for name, marker in MARKERS.items():
        if name in levels:
            handles.append(Line2D([], [], color="#444444", marker=marker, ls="none", mfc="none", label=name))
    handles.append(Line2D([], [], color="#777777", ls="--", label="best of this run"))
    # Beside the panels: within one, it would hide points.
    figure.legend(handles=handles, fontsize=8, frameon=False, loc="outside right upper")
