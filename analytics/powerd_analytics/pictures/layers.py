"""Energy of layers as a list of bars, largest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from powerd_analytics.energy.reasons import digits
from powerd_analytics.layers.rows import BOTH, LayerEnergy
from powerd_analytics.pictures.bar import HATCHES
from powerd_analytics.pictures.limits import numbers_to_draw
from powerd_analytics.pictures.style import colours, finish, heading, middle, panels, shown, styled
from powerd_analytics.published.tablefile import TableFile
from powerd_analytics.tables.groups import group_line
from powerd_core.errors import AnalysisError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_LAYERS = 40
"""In one list; the rest are one bar."""
MOST_PANELS = 4


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of one configuration. ``parts`` are (pass, joules) of what is known; their sum is ``energy_j``, and
    ``unknown`` the passes that are not in it: their joules are not resolvable."""

    panel: str
    name: str
    kind: str
    provenance: str
    parts: tuple[tuple[str, float], ...]
    u95_j: float | None
    is_lower_bound: bool = False
    unknown: tuple[str, ...] = ()

    @property
    def energy_j(self) -> float:
        return sum(j for _, j in self.parts)


def layers_of_rows(rows: Sequence[LayerEnergy]) -> list[Layer]:
    """The layers of `joules layers`."""
    cells = [
        (
            ", ".join(filter(None, [group_line(r.group), r.device])), r.layer, r.kind, r.provenance,
            r.passes, r.j_per_batch, r.u95_j, r.is_lower_bound,
        )
        for r in rows if r.level == "layer"
    ]  # fmt: skip
    return _joined(cells)


def layers_of_table(table: TableFile) -> list[Layer]:
    """The same from a table as `joules layers --format csv` writes it; needs the columns layer and j_per_batch."""
    table.require("layer", "j_per_batch")
    names = table.texts("layer") if "level" not in table.columns else table.cells["layer"]
    joules, u95 = numbers_to_draw(table, "j_per_batch", signed=True), numbers_to_draw(table, "u95_j")

    def text(column: str, row: int) -> str:
        return table.cells[column][row] if column in table.columns else ""

    cells = []
    for i in range(len(table)):
        if text("level", i) in ("", "layer"):
            batch = text("batch_size", i)
            panel = ", ".join(t for t in (text("model", i), f"batch {batch}" if batch else "", text("device", i)) if t)
            bound = text("is_lower_bound", i).lower() == "true"
            cells.append(
                (panel, names[i], text("kind", i), text("provenance", i), text("pass", i), joules[i], u95[i], bound)
            )
    return _joined(cells)


_Cell = tuple[str, str, str, str, str, float | None, float | None, bool]


def _joined(cells: Sequence[_Cell]) -> list[Layer]:
    """Passes of a layer together. Raises `AnalysisError` where no layer has joules."""
    groups: dict[tuple[str, str, str], list[_Cell]] = {}
    for cell in cells:
        groups.setdefault((cell[0], cell[1], cell[3]), []).append(cell)
    found = []
    for (panel, name, provenance), same in groups.items():
        singles = [(c[4], c[5]) for c in same if c[4] != BOTH and c[5] is not None]
        both = next((c for c in same if c[4] == BOTH), None)
        if not singles and both is not None and both[5] is not None:
            singles = [(BOTH, both[5])]
        u = [c[6] for c in same if c[4] != BOTH and c[5] is not None]
        # Without a figure for both, what the passes' errors share is not known: they may add up.
        u95 = both[6] if both is not None else None if None in u else sum(v for v in u if v is not None)
        parts = tuple((p, float(j)) for p, j in singles if j is not None)
        is_bound = any(c[7] for c in same)
        # What is known from one side only has no interval.
        known = u95 if parts and not is_bound else None
        unknown = tuple(c[4] for c in same if c[4] != BOTH and c[5] is None) if parts and parts[0][0] != BOTH else ()
        found.append(Layer(panel, name, same[0][2], provenance, parts, known, is_bound, unknown))
    if not any(layer.parts for layer in found):
        raise AnalysisError(
            f"none of {len(found)} layers is resolvable: there are no joules to draw; `joules layers` says why of each"
            if found
            else "there are no layers: mark them with meter.watch(model, layers=True)"
        )
    return found


def by_panel(layers: Sequence[Layer]) -> list[list[Layer]]:
    """The layers of each configuration, largest first; the first `MOST_PANELS` configurations."""
    panels_: dict[tuple[str, str], list[Layer]] = {}
    for layer in layers:
        panels_.setdefault((layer.panel, layer.provenance), []).append(layer)
    return [sorted(same, key=lambda x: -x.energy_j) for same in list(panels_.values())[:MOST_PANELS]]


def left_out(layers: Sequence[Layer]) -> str:
    """What the foot of a picture says of configurations that have no panel in it."""
    more = len({(layer.panel, layer.provenance) for layer in layers}) - MOST_PANELS
    return f"; {more} more configurations are not drawn" if more > 0 else ""


@styled
def draw_layers(layers: Sequence[Layer], name: str) -> Figure:
    """A list for each configuration: a bar a layer, its passes one behind the other, ± 95 % at its end."""
    lists = by_panel(layers)
    rows = max(min(len(same), MOST_LAYERS + 1) for same in lists)
    figure, axes = panels(len(lists), (6.4, 1.2 + 0.22 * rows), most_columns=2)
    chosen = colours(p for same in lists for x in same for p, _ in x.parts)
    for (ax,), same in zip(axes, lists, strict=True):
        _list(ax, same, chosen)
    _legend(figure, chosen)
    said = "bars: 95 % interval of the layer; ≥: lower bound; n.r.: not resolvable" + left_out(layers)
    return finish(figure, f"{name}: energy of layers", (x.provenance for x in layers), said)


def _list(ax: Axes, same: Sequence[Layer], chosen: dict[str, str]) -> None:
    named, rest = same[:MOST_LAYERS], same[MOST_LAYERS:]
    for y, layer in enumerate(named):
        left = 0.0
        for part, j in layer.parts:
            ax.barh(
                y,
                j,
                left=left,
                color=chosen[part],
                height=0.78,
                hatch=HATCHES.get(layer.provenance, ""),
                edgecolor="white",
                lw=0,
            )
            left += j
        if layer.u95_j is not None:
            ax.errorbar(left, y, xerr=layer.u95_j, color="black", capsize=2.5, lw=1, ls="none")
        said = ("≥ " if layer.is_lower_bound else "") + digits(left, 3) if layer.parts else "n.r."
        said += "".join(f" + {shown(p, 20)} n.r." for p in layer.unknown)
        ax.annotate(
            said, (left + (layer.u95_j or 0.0), y), xytext=(4, 0), textcoords="offset points", va="center", fontsize=7
        )
    labels = [shown(middle(x.name, 34)) for x in named]
    if rest:
        energy_j, none = sum(x.energy_j for x in rest), sum(not x.parts for x in rest)
        ax.barh(len(named), energy_j, color="#999999", height=0.78)
        said = "; ".join([digits(energy_j, 3)] * (none < len(rest)) + [f"{none} of them n.r."] * (none > 0))
        ax.annotate(said, (energy_j, len(named)), xytext=(4, 0), textcoords="offset points", va="center", fontsize=7)
        labels.append(f"{len(rest)} more layers")
    ax.set_yticks(range(len(labels)), labels, fontsize=7.5)
    ax.set_ylim(len(labels) - 0.4, -0.6)
    ax.set_xlim(0, 1.18 * max(*(x.energy_j + (x.u95_j or 0.0) for x in named), sum(x.energy_j for x in rest)))
    ax.set_xlabel("energy a batch (J)")
    heading(ax, same[0].panel)


def _legend(figure: Figure, chosen: Mapping[str, str]) -> None:
    """Beside the panels: within one, it would hide the values of the short bars."""
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=c, label=shown(p or "all")) for p, c in chosen.items()]
    figure.legend(handles=handles, fontsize=7.5, frameon=False, loc="outside right upper")
