"""Layers as bars, largest first, and the energy roofline: operations per joule against operations per byte."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from powerd_analytics.colours import PALETTE, phase_colour
from powerd_analytics.layers import BOTH, LayerEnergy, roof_of, roofline
from powerd_analytics.operations.counts import EXECUTED, PAPER
from powerd_analytics.plots.style import HATCHES, finish, heading, legend_above, panels, shown, styled
from powerd_analytics.table import group_line
from powerd_analytics.text import digits
from powerd_core.errors import AnalysisError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_LAYERS, _MOST_PANELS = 40, 4
"""In one list, of which the rest are one bar; and lists in one picture."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of one configuration. ``parts`` are (pass, joules) of what is known; their sum is ``energy_j``, and
    ``unknown`` the passes that are not in it: their joules are not resolvable."""

    panel: str
    name: str
    provenance: str
    parts: tuple[tuple[str, float], ...]
    u95_j: float | None
    is_lower_bound: bool = False
    unknown: tuple[str, ...] = ()

    @property
    def energy_j(self) -> float:
        return sum(j for _, j in self.parts)

    @property
    def text(self) -> str:
        """Its number as it stands behind its bar."""
        number = ("≥ " if self.is_lower_bound else "") + digits(self.energy_j, 3) if self.parts else "n.r."
        return number + "".join(f" + {shown(name, 20)} n.r." for name in self.unknown)


def layers_of_rows(rows: Sequence[LayerEnergy]) -> list[Layer]:
    """The layers of `joules layers`, their passes together. Raises `AnalysisError` where no layer has joules."""
    groups: dict[tuple[str, str, str], list[LayerEnergy]] = {}
    for r in rows:
        if r.level == "layer":
            panel = ", ".join(filter(None, [group_line(r.group), r.device]))
            groups.setdefault((panel, r.layer, r.provenance), []).append(r)
    layers = []
    for key, same in groups.items():
        both = next((r for r in same if r.passes == BOTH), None)
        single = [r for r in same if r.passes != BOTH]
        known = [r for r in single if r.j_per_batch is not None] or ([both] if both else [])
        parts = tuple((r.passes, r.j_per_batch) for r in known if r.j_per_batch is not None)
        unknown = tuple(r.passes for r in single if r.j_per_batch is None) if parts else ()
        is_bound = any(r.is_lower_bound for r in same)
        u95 = both.u95_j if both else known[0].u95_j if len(known) == 1 else None
        # What is known from one side only has no interval.
        layers.append(Layer(*key, parts, u95 if parts and not is_bound else None, is_bound, unknown))
    if not any(layer.parts for layer in layers):
        raise AnalysisError(f"none of {len(layers)} layers has joules to draw; `joules layers` says why of each")
    return layers


@styled
def draw_layers(layers: Sequence[Layer], name: str) -> Figure:
    """A list for each configuration: a bar a layer, its passes one behind the other, ± 95 % at its end."""
    from matplotlib.patches import Patch

    groups: dict[tuple[str, str], list[Layer]] = {}
    for layer in layers:
        groups.setdefault((layer.panel, layer.provenance), []).append(layer)
    lists = [sorted(same, key=lambda x: -x.energy_j) for same in list(groups.values())[:_MOST_PANELS]]
    rows = max(min(len(same), _MOST_LAYERS + 1) for same in lists)
    figure, axes = panels(len(lists), (6.4, 1.2 + 0.22 * rows), most_columns=2)
    passes = {p: phase_colour(p) for same in lists for x in same for p, _ in x.parts}
    for (ax,), same in zip(axes, lists, strict=True):
        _list(ax, same, passes)
    legend_above(figure, [Patch(facecolor=c, label=shown(p or "all")) for p, c in passes.items()])
    note = "bars: 95 % interval of the layer; ≥: lower bound; n.r.: not resolvable"
    if len(groups) > _MOST_PANELS:
        note += f"; {len(groups) - _MOST_PANELS} more configurations are not drawn"
    return finish(figure, f"{name}: energy of layers", (x.provenance for x in layers), note)


def _list(ax: Axes, same: Sequence[Layer], passes: dict[str, str]) -> None:
    named, rest = same[:_MOST_LAYERS], same[_MOST_LAYERS:]
    labels = [shown(x.name, 34) for x in named]
    ends = [(x.energy_j + (x.u95_j or 0.0), x.text) for x in named]
    for y, layer in enumerate(named):
        left = 0.0
        for part, j in layer.parts:
            hatch = HATCHES.get(layer.provenance, "")
            ax.barh(y, j, left=left, color=passes[part], height=0.78, hatch=hatch, edgecolor="white", lw=0)
            left += j
        if layer.u95_j is not None:
            ax.errorbar(left, y, xerr=layer.u95_j, color="black", capsize=2.5, lw=1, ls="none")
    if rest:
        energy_j, unknown = sum(x.energy_j for x in rest), sum(not x.parts for x in rest)
        ax.barh(len(named), energy_j, color="#999999", height=0.78)
        texts = [digits(energy_j, 3)] * (unknown < len(rest)) + [f"{unknown} of them n.r."] * (unknown > 0)
        labels.append(f"{len(rest)} more layers")
        ends.append((energy_j, "; ".join(texts)))
    for y, (end, text) in enumerate(ends):
        ax.annotate(text, (end, y), xytext=(4, 0), textcoords="offset points", va="center", fontsize=7)
    ax.set_yticks(range(len(labels)), labels, fontsize=7.5)
    ax.set_ylim(len(labels) - 0.4, -0.6)
    ax.set_xlim(0, 1.18 * max(end for end, _ in ends))
    ax.set_xlabel("energy a batch (J)")
    heading(ax, same[0].panel)


# ---- the roofline ------------------------------------------------------------------------------------------------

_PASSES = {"forward": phase_colour("forward"), "backward": phase_colour("backward"), BOTH: PALETTE[0]}
_MARKERS = {"layer": "o", "phase": "s", "model": "D"}
_TITLES = {
    PAPER: "paper: a multiply-add is one operation; 4 bytes a value",
    EXECUTED: "executed: a multiply-accumulate is two; each kernel's tensors once",
}
_MOST_NAMED = 6
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
            ax.annotate(shown(p.layer, 24), at, xytext=(6, 4), textcoords="offset points", fontsize=7, color="#333")
    ax.set(xscale="log", yscale="log", xlabel=f"operations per byte ({convention})")
    ax.set_ylabel(f"GFLOPS/W: 10⁹ operations per joule ({convention})")
    ax.set_title(_TITLES[convention], fontsize=8)
