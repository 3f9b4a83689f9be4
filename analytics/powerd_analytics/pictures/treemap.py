"""Energy of layers as a treemap: areas in proportion to joules, as square as they can be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from powerd_analytics.energy.reasons import digits
from powerd_analytics.pictures.bar import HATCHES
from powerd_analytics.pictures.layers import Layer, by_panel, left_out
from powerd_analytics.pictures.style import colours, finish, heading, middle, panels, shown, styled
from powerd_core.errors import AnalysisError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Box = tuple[float, float, float, float]
"""Left, bottom, width, height."""


def squarify(sizes: Sequence[float], width: float = 1.0, height: float = 1.0) -> list[Box]:
    """Boxes [n] that fill ``width`` x ``height``, areas in proportion to ``sizes`` [n], all above 0, largest first.

    Rows along the shorter side of what is free, each as long as its worst ratio of sides gets better (Bruls, Huizing
    and van Wijk, "Squarified treemaps", 2000). Raises `ValueError` for sizes that are not above 0.
    """
    if any(not s > 0 for s in sizes):
        raise ValueError("areas are above 0")
    scale = width * height / sum(sizes) if sizes else 0.0
    areas = [s * scale for s in sizes]
    boxes: list[Box] = []
    x, y, w, h = 0.0, 0.0, width, height
    while areas:
        side = min(w, h)
        count = 1
        while count < len(areas) and _worst(areas[: count + 1], side) <= _worst(areas[:count], side):
            count += 1
        row, areas = areas[:count], areas[count:]
        depth = sum(row) / side
        at = 0.0
        for area in row:
            length = area / depth
            boxes.append((x, y + at, depth, length) if w >= h else (x + at, y, length, depth))
            at += length
        if w >= h:
            x, w = x + depth, w - depth
        else:
            y, h = y + depth, h - depth
    return boxes


def _worst(row: Sequence[float], side: float) -> float:
    """The largest ratio of sides in a row of these areas along ``side``."""
    total = sum(row)
    return max(side * side * max(row) / total**2, total**2 / (side * side * min(row)))


@styled
def draw_treemap(layers: Sequence[Layer], name: str) -> Figure:
    """A map for each configuration; colours by kind of layer where it is known, else by the block it belongs to.

    Raises `AnalysisError` where no layer has joules above 0.
    """
    maps = by_panel([x for x in layers if x.energy_j > 0])
    if not maps:
        raise AnalysisError("no layer took more than 0 J: there is no area to draw; --kind layers has bars")
    figure, axes = panels(len(maps), (7.2, 5.0), most_columns=2)
    chosen = colours(_kind(x) for same in maps for x in same)
    for (ax,), same in zip(axes, maps, strict=True):
        _map(ax, same, chosen)
    said = "area: joules a batch, forward and backward as far as known"
    said += "; ±: 95 % interval" if any(x.u95_j is not None for x in layers) else "; no uncertainties are given"
    said += "; hatched: not measured" if any(HATCHES.get(x.provenance) for x in layers) else ""
    if absent := sum(not x.parts for x in layers):
        said += f"; {absent} not resolvable, not drawn"
    if below := sum(bool(x.parts) and x.energy_j <= 0 for x in layers):
        said += f"; {below} without joules above 0, not drawn"
    said += left_out(layers)
    return finish(figure, f"{name}: energy of layers", (x.provenance for x in layers), said)


def _kind(layer: Layer) -> str:
    return layer.kind or layer.name.split(".")[0]


def _map(ax: Axes, same: Sequence[Layer], chosen: dict[str, str]) -> None:
    from matplotlib.patches import Patch, Rectangle

    total, aspect = sum(x.energy_j for x in same), 1.6
    for layer, (x, y, w, h) in zip(same, squarify([v.energy_j for v in same], aspect, 1.0), strict=True):
        colour = chosen[_kind(layer)]
        ax.add_patch(Rectangle((x, y), w, h, facecolor=colour, alpha=0.55, edgecolor="white", lw=1.2,
                               hatch=HATCHES.get(layer.provenance, "")))  # fmt: skip
        least = "≥ " if layer.is_lower_bound else ""
        u = f" ± {digits(layer.u95_j, 2)}" if layer.u95_j is not None else ""
        lines = [shown(middle(layer.name, max(int(w * 62), 3))), f"{least}{digits(layer.energy_j, 3)}{u} J",
                 f"{100 * layer.energy_j / total:.2g} %"]  # fmt: skip
        lines += [f"+ {shown(p, 20)} n.r." for p in layer.unknown]
        fits = min(int(h / 0.042), len(lines)) if w > 0.11 else 0
        if fits:
            said = "\n".join(lines[:fits] if w > 0.2 else lines[:1])
            ax.text(x + w / 2, y + h / 2, said, ha="center", va="center", fontsize=7,
                    bbox={"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none", "alpha": 0.75})  # fmt: skip
    ax.set_xlim(0, aspect)
    ax.set_ylim(0, 1)
    ax.set_axis_off()
    least = "≥ " if any(x.is_lower_bound for x in same) else ""
    heading(ax, f"{same[0].panel}: {least}{digits(total)} J a batch in {len(same)} layers")
    kinds = dict.fromkeys(_kind(x) for x in same)
    handles = [Patch(facecolor=chosen[k], alpha=0.55, label=shown(k, 30)) for k in list(kinds)[:12]]
    ax.legend(
        handles=handles,
        fontsize=7.5,
        ncols=min(len(handles), 4),
        loc="upper center",
        bbox_to_anchor=(0.5, -0.01),
        frameon=False,
    )
