"""Energy of layers as a list of bars, largest first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from powerd_analytics.layers import BOTH, LayerEnergy
from powerd_analytics.plots.configurations import numbers_to_draw
from powerd_analytics.plots.style import HATCHES, colours, finish, heading, panels, shown, styled
from powerd_analytics.published import TableFile
from powerd_analytics.table import group_line
from powerd_analytics.text import digits
from powerd_core.errors import AnalysisError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_LAYERS, MOST_PANELS = 40, 4
"""In one list, of which the rest are one bar; and lists in one picture."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One row of a table of layers: one pass of a layer of one configuration (``panel``)."""

    panel: str
    layer: str
    provenance: str
    name: str
    j_per_batch: float | None
    u95_j: float | None
    is_lower_bound: bool


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
    """The layers of `joules layers`."""
    return _joined(
        Pass(
            ", ".join(filter(None, [group_line(r.group), r.device])),
            r.layer, r.provenance, r.passes, r.j_per_batch, r.u95_j, r.is_lower_bound,
        )
        for r in rows if r.level == "layer"
    )  # fmt: skip


def layers_of_table(table: TableFile) -> list[Layer]:
    """The same from a table as `joules layers --format csv` writes it; needs the columns layer and j_per_batch."""
    table.require("layer", "j_per_batch")
    names = table.texts("layer") if "level" not in table.columns else table.cells["layer"]
    joules, u95 = numbers_to_draw(table, "j_per_batch", signed=True), numbers_to_draw(table, "u95_j")

    def text(column: str, row: int) -> str:
        return table.cells[column][row] if column in table.columns else ""

    def panel(row: int) -> str:
        batch = text("batch_size", row)
        return ", ".join(filter(None, (text("model", row), f"batch {batch}" if batch else "", text("device", row))))

    return _joined(
        Pass(
            panel(i), names[i], text("provenance", i), text("pass", i), joules[i], u95[i],
            text("is_lower_bound", i).lower() == "true",
        )
        for i in range(len(table)) if text("level", i) in ("", "layer")
    )  # fmt: skip


def _joined(passes: Iterable[Pass]) -> list[Layer]:
    """Passes of a layer together. Raises `AnalysisError` where no layer has joules."""
    groups: dict[tuple[str, str, str], list[Pass]] = {}
    for one in passes:
        groups.setdefault((one.panel, one.layer, one.provenance), []).append(one)
    layers = []
    for (panel, name, provenance), same in groups.items():
        both = next((p for p in same if p.name == BOTH), None)
        known = [p for p in same if p.name != BOTH and p.j_per_batch is not None]
        parts = [(p.name, p.j_per_batch) for p in known or ([both] if both else []) if p.j_per_batch is not None]
        # Without a figure for both, what the passes' errors share is not known: they may add up.
        each = [p.u95_j for p in known if p.u95_j is not None]
        u95 = both.u95_j if both else sum(each) if len(each) == len(known) else None
        unknown = [p.name for p in same if p.name != BOTH and p.j_per_batch is None] if known or not both else []
        is_bound = any(p.is_lower_bound for p in same)
        # What is known from one side only has no interval.
        interval = u95 if parts and not is_bound else None
        layers.append(Layer(panel, name, provenance, tuple(parts), interval, is_bound, tuple(unknown if parts else ())))
    if not any(layer.parts for layer in layers):
        raise AnalysisError(
            f"none of {len(layers)} layers is resolvable: there are no joules to draw; `joules layers` says why of each"
            if layers
            else "there are no layers: mark them with meter.watch(model, layers=True)"
        )
    return layers


@styled
def draw_layers(layers: Sequence[Layer], name: str) -> Figure:
    """A list for each configuration: a bar a layer, its passes one behind the other, ± 95 % at its end."""
    from matplotlib.patches import Patch

    groups: dict[tuple[str, str], list[Layer]] = {}
    for layer in layers:
        groups.setdefault((layer.panel, layer.provenance), []).append(layer)
    lists = [sorted(same, key=lambda x: -x.energy_j) for same in list(groups.values())[:MOST_PANELS]]
    rows = max(min(len(same), MOST_LAYERS + 1) for same in lists)
    figure, axes = panels(len(lists), (6.4, 1.2 + 0.22 * rows), most_columns=2)
    passes = colours(p for same in lists for x in same for p, _ in x.parts)
    for (ax,), same in zip(axes, lists, strict=True):
        _list(ax, same, passes)
    handles = [Patch(facecolor=c, label=shown(p or "all")) for p, c in passes.items()]
    figure.legend(handles=handles, fontsize=7.5, frameon=False, loc="outside right upper")
    note = "bars: 95 % interval of the layer; ≥: lower bound; n.r.: not resolvable"
    if len(groups) > MOST_PANELS:
        note += f"; {len(groups) - MOST_PANELS} more configurations are not drawn"
    return finish(figure, f"{name}: energy of layers", (x.provenance for x in layers), note)


def _list(ax: Axes, same: Sequence[Layer], passes: dict[str, str]) -> None:
    named, rest = same[:MOST_LAYERS], same[MOST_LAYERS:]

    def number(text: str, x: float, y: int) -> None:
        ax.annotate(text, (x, y), xytext=(4, 0), textcoords="offset points", va="center", fontsize=7)

    for y, layer in enumerate(named):
        left = 0.0
        for part, j in layer.parts:
            hatch = HATCHES.get(layer.provenance, "")
            ax.barh(y, j, left=left, color=passes[part], height=0.78, hatch=hatch, edgecolor="white", lw=0)
            left += j
        if layer.u95_j is not None:
            ax.errorbar(left, y, xerr=layer.u95_j, color="black", capsize=2.5, lw=1, ls="none")
        number(layer.text, left + (layer.u95_j or 0.0), y)
    labels = [shown(x.name, 34) for x in named]
    if rest:
        energy_j, unknown = sum(x.energy_j for x in rest), sum(not x.parts for x in rest)
        ax.barh(len(named), energy_j, color="#999999", height=0.78)
        texts = [digits(energy_j, 3)] * (unknown < len(rest)) + [f"{unknown} of them n.r."] * (unknown > 0)
        number("; ".join(texts), energy_j, len(named))
        labels.append(f"{len(rest)} more layers")
    ax.set_yticks(range(len(labels)), labels, fontsize=7.5)
    ax.set_ylim(len(labels) - 0.4, -0.6)
    ax.set_xlim(0, 1.18 * max(*(x.energy_j + (x.u95_j or 0.0) for x in named), sum(x.energy_j for x in rest)))
    ax.set_xlabel("energy a batch (J)")
    heading(ax, same[0].panel)
