"""GFLOPS/W by model and batch size against device and number of GPUs, with averages at the sides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from powerd_analytics.campaigns.figures import Figure as Value
from powerd_analytics.campaigns.figures import mean_of_cells
from powerd_analytics.energy.reasons import digits
from powerd_analytics.energy.uncertainty import COVERAGE_FACTOR
from powerd_analytics.pictures.configurations import Configuration, label
from powerd_analytics.pictures.style import finish, only_model, panels, shown
from powerd_core.errors import AnalysisError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROW, _COLUMN = ("model", "batch", "others"), ("device", "gpus", "power_cap_w", "provenance")


def draw_matrix(found: Sequence[Configuration], name: str) -> Figure:
    """A heat map with numbers. Averages, with their uncertainty, are left out where a cell is missing or
    provenances differ.

    Raises `AnalysisError` where no configuration has GFLOPS/W, or two stand in one cell.
    """
    kept = [c for c in found if c.gflops_per_w is not None and c.phase in ("", "all", "total")]
    if not kept:
        raise AnalysisError(
            "no GFLOPS/W: runs need phases with the attributes batch_size and operations_per_sample, a table the "
            "column gflops_per_w"
        )
    rows, columns = (
        list(dict.fromkeys(tuple(getattr(c, n) for n in names) for c in kept)) for names in (_ROW, _COLUMN)
    )
    cells: dict[tuple[int, int], Configuration] = {}
    for c in kept:
        at = tuple(g.index(tuple(getattr(c, n) for n in names)) for g, names in ((rows, _ROW), (columns, _COLUMN)))
        if cells.setdefault((at[0], at[1]), c) is not c:
            raise AnalysisError(f"two configurations stand in one cell of the matrix: {label(c, kept) or c.model}")
    figures = {at: _figure(c) for at, c in cells.items()} | _means(cells, (len(rows), len(columns)))
    values = np.full((len(rows) + 1, len(columns) + 1), np.nan)
    for at, figure_ in figures.items():
        values[at] = figure_.value
    figure, axes = panels(1, (max(2.6 + 1.35 * (len(columns) + 1), 6.4), 1.2 + 0.42 * (len(rows) + 1)))
    ax = axes[0][0]
    image = ax.imshow(np.ma.masked_invalid(values[:-1, :-1]), cmap="cividis", aspect="auto",
                      extent=(-0.5, len(columns) - 0.5, len(rows) - 0.5, -0.5), vmin=0)  # fmt: skip
    for (i, k), value in np.ndenumerate(values):
        colour = "white" if (i, k) in cells and value <= 0.55 * float(np.nanmax(values)) else "black"
        _number(ax, (i, k), figures.get((i, k)), colour)
    ax.set_xlim(-0.5, len(columns) + 0.5)
    ax.set_ylim(len(rows) + 0.5, -0.5)
    named = {"columns": [next(c for c in kept if _is(c, _COLUMN, key)) for key in columns]}
    named["rows"] = [next(c for c in kept if _is(c, _ROW, key)) for key in rows]
    labels = [label(c, kept, _ROW).replace(", ", "\n") or c.device or "all" for c in named["columns"]]
    ax.set_xticks(range(len(columns) + 1), [*(shown(t, 40) for t in labels), "mean"], fontsize=8)
    labels = [label(c, kept, _COLUMN) or c.model or "all" for c in named["rows"]]
    ax.set_yticks(range(len(rows) + 1), [*(shown(t, 40) for t in labels), "mean"], fontsize=8)
    ax.tick_params(length=0)
    for side in ax.spines.values():
        side.set_visible(False)
    figure.colorbar(image, ax=ax, label="GFLOPS/W", shrink=0.8)
    conventions = sorted({c.cells.get("gflops_convention", "") for c in kept} - {""})
    counted = f"operations: {', '.join(shown(name) for name in conventions) or 'convention not stated'}"
    said = f"{counted}; small: ± 95 %, means share systematic parts"
    if all(c.u95_gflops_per_w is None for c in kept):
        said = f"{counted}; no uncertainties are given"
    said += "; ≤: upper bound" if any(c.is_lower_bound for c in kept) else ""
    return finish(figure, f"{name}: GFLOPS/W{only_model(c.model for c in kept)}", (c.provenance for c in kept), said)


def _is(c: Configuration, names: Sequence[str], key: tuple[object, ...]) -> bool:
    return tuple(getattr(c, n) for n in names) == key


Cells = Mapping[tuple[int, int], Configuration]


def _figure(c: Configuration) -> Value:
    """What is not known apart may all be shared."""
    u95 = c.u95_gflops_per_w
    statistical, systematic = c.u_gflops_per_w or (None, None if u95 is None else u95 / COVERAGE_FACTOR)
    return Value(float(c.gflops_per_w or 0.0), statistical, systematic, c.is_lower_bound, interval=u95)


def _means(cells: Cells, shape: tuple[int, int]) -> dict[tuple[int, int], Value]:
    """Means of rows, of columns and of all, behind the last of each; none over a missing cell.

    A mean over what was run by chance compares with no other, nor does one over several provenances.
    """
    lines = {(i, shape[1]): [(i, k) for k in range(shape[1])] for i in range(shape[0])}
    lines |= {(shape[0], k): [(i, k) for i in range(shape[0])] for k in range(shape[1])}
    lines[shape] = list(product(range(shape[0]), range(shape[1])))
    return {
        at: mean_of_cells([_figure(cells[place]) for place in line])
        for at, line in lines.items()
        if all(place in cells for place in line) and len({cells[place].provenance for place in line}) == 1
    }


def _number(ax: Axes, at: tuple[int, int], figure: Value | None, colour: str) -> None:
    """Averages stand on the paper, cells on their colour."""
    if figure is None:
        ax.text(at[1], at[0], "–", ha="center", va="center", fontsize=8, color="#666666")
        return
    text = ("≤ " if figure.is_lower_bound else "") + digits(figure.value, 3)
    u95 = figure.u95
    ax.text(at[1], at[0], text, ha="center", va="center" if u95 is None else "bottom", fontsize=8.5, color=colour)
    if u95 is not None:
        small = f"± {digits(u95, 2)}"
        ax.text(at[1], at[0] + 0.05, small, ha="center", va="top", fontsize=6.5, color=colour)
