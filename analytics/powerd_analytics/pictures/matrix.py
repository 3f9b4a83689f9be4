"""GFLOPS/W by model and batch size against device and number of GPUs, with averages at the sides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from powerd_analytics.energy.reasons import digits
from powerd_analytics.pictures.configurations import Configuration, label
from powerd_analytics.pictures.style import finish, panels, shown
from powerd_core.errors import AnalysisError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ROW, _COLUMN = ("model", "batch"), ("device", "gpus", "power_cap_w", "provenance")


def draw_matrix(found: Sequence[Configuration], name: str) -> Figure:
    """A heat map with numbers. Averages are left out where a cell is missing or provenances differ.

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
    values = np.full((len(rows) + 1, len(columns) + 1), np.nan)
    for (i, k), c in cells.items():
        values[i, k] = c.gflops_per_w
    # A mean over what was run by chance compares with no other.
    if len({c.provenance for c in kept}) == 1:
        values[:-1, -1] = values[:-1, :-1].mean(axis=1)
    values[-1, :-1] = values[:-1, :-1].mean(axis=0)
    values[-1, -1] = values[:-1, -1].mean()
    figure, axes = panels(1, (max(2.6 + 1.35 * (len(columns) + 1), 6.4), 1.2 + 0.42 * (len(rows) + 1)))
    ax = axes[0][0]
    image = ax.imshow(np.ma.masked_invalid(values[:-1, :-1]), cmap="cividis", aspect="auto",
                      extent=(-0.5, len(columns) - 0.5, len(rows) - 0.5, -0.5), vmin=0)  # fmt: skip
    for (i, k), value in np.ndenumerate(values):
        _number(ax, (i, k), float(value), cells.get((i, k)), float(np.nanmax(values)))
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
    said = f"{counted}; small: ± 95 % interval; ≤: upper bound"
    return finish(figure, f"{name}: GFLOPS/W", (c.provenance for c in kept), said)


def _is(c: Configuration, names: Sequence[str], key: tuple[object, ...]) -> bool:
    return tuple(getattr(c, n) for n in names) == key


def _number(ax: object, at: tuple[int, int], value: float, cell: Configuration | None, highest: float) -> None:
    if np.isnan(value):
        ax.text(at[1], at[0], "–", ha="center", va="center", fontsize=8, color="#666666")  # type: ignore[attr-defined]
        return
    # Averages stand on the paper, cells on their colour.
    colour = "black" if cell is None or value > 0.55 * highest else "white"
    text = ("≤ " if cell is not None and cell.is_lower_bound else "") + digits(value, 3)
    has_u = cell is not None and cell.u95_gflops_per_w is not None
    ax.text(at[1], at[0], text, ha="center", va="bottom" if has_u else "center", fontsize=8.5, color=colour)  # type: ignore[attr-defined]
    if cell is not None and cell.u95_gflops_per_w is not None:
        small = f"± {digits(cell.u95_gflops_per_w, 2)}"
        ax.text(at[1], at[0] + 0.05, small, ha="center", va="top", fontsize=6.5, color=colour)  # type: ignore[attr-defined]
