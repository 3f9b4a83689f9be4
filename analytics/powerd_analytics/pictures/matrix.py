"""GFLOPS/W by model and batch size against device and number of GPUs, with averages at the sides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from powerd_analytics.campaigns.figures import Figure as Value
from powerd_analytics.campaigns.figures import mean_of_cells
from powerd_analytics.energy.reasons import digits
from powerd_analytics.energy.uncertainty import COVERAGE_FACTOR
from powerd_analytics.pictures.configurations import Configuration, label
from powerd_analytics.pictures.style import finish, middle, only_model, panels, shown, styled
from powerd_core.errors import AnalysisError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Names = tuple[str, ...]
_SIDES: tuple[Names, Names] = ("model", "batch", "others"), ("device", "gpus", "power_cap_w", "provenance")
_OF_ONE_MACHINE: tuple[Names, Names] = ("model", "others", *_SIDES[1]), ("batch",)
"""With one device and number of GPUs there would be a single column: batch sizes take its place."""


@styled
def draw_matrix(found: Sequence[Configuration], name: str) -> Figure:
    """A heat map with numbers. Averages, with their uncertainty, are left out where a cell is missing or
    provenances differ, and where they would be over one cell.

    Raises `AnalysisError` where no configuration has GFLOPS/W, or two stand in one cell.
    """
    kept = [c for c in found if c.gflops_per_w is not None and c.phase in ("", "all", "total")]
    if not kept:
        raise AnalysisError(
            "no GFLOPS/W: runs need phases with the attributes batch_size and operations_per_sample, a table the "
            "column gflops_per_w"
        )
    is_one = len({tuple(getattr(c, n) for n in _SIDES[1]) for c in kept}) == 1
    sides = _OF_ONE_MACHINE if is_one and len({c.batch for c in kept}) > 1 else _SIDES
    rows, columns = (_Side.of(kept, names) for names in sides)
    cells: dict[tuple[int, int], Configuration] = {}
    for c in kept:
        if cells.setdefault((rows.place(c), columns.place(c)), c) is not c:
            raise AnalysisError(
                f"two configurations stand in one cell of the matrix: {label(c, kept) or c.model}{_bases(c, kept)}"
            )
    shape = len(rows.keys), len(columns.keys)
    # A mean over one cell is that cell.
    means = {at: v for at, v in _means(cells, shape).items() if _says_more(at, shape)}
    figures = {at: _figure(c) for at, c in cells.items()} | means
    ends = shape[0] + (shape[0] > 1), shape[1] + (shape[1] > 1)
    values = np.full(ends, np.nan)
    for at, figure_ in figures.items():
        values[at] = figure_.value
    figure, axes = panels(1, (max(2.6 + 1.35 * ends[1], 6.4), 1.2 + 0.42 * ends[0]))
    ax = axes[0][0]
    image = ax.imshow(np.ma.masked_invalid(values[: shape[0], : shape[1]]), cmap="cividis", aspect="auto",
                      extent=(-0.5, shape[1] - 0.5, shape[0] - 0.5, -0.5), vmin=0)  # fmt: skip
    for (i, k), value in np.ndenumerate(values):
        colour = "white" if (i, k) in cells and value <= 0.55 * float(np.nanmax(values)) else "black"
        _number(ax, (i, k), figures.get((i, k)), colour)
    ax.set_xlim(-0.5, ends[1] - 0.5)
    ax.set_ylim(ends[0] - 0.5, -0.5)
    ax.set_xticks(range(ends[1]), [*columns.labels(rows, kept, "\n"), "mean"][: ends[1]], fontsize=8)
    ax.set_yticks(range(ends[0]), [*rows.labels(columns, kept, ", "), "mean"][: ends[0]], fontsize=8)
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


@dataclass(frozen=True, slots=True)
class _Side:
    """Rows or columns: what they are told apart by, and the configuration that names each."""

    names: Names
    keys: list[tuple[object, ...]]
    first: list[Configuration]

    @classmethod
    def of(cls, kept: Sequence[Configuration], names: Names) -> _Side:
        found: dict[tuple[object, ...], Configuration] = {}
        for c in kept:
            found.setdefault(tuple(getattr(c, n) for n in names), c)
        return cls(names, list(found), list(found.values()))

    def place(self, c: Configuration) -> int:
        return self.keys.index(tuple(getattr(c, n) for n in self.names))

    def labels(self, other: _Side, kept: Sequence[Configuration], between: str) -> list[str]:
        """What tells the lines from each other. Of long names the middle goes, as the batch size stands at the end."""
        texts = [label(c, kept, other.names) or (c.device if "device" in self.names else c.model) for c in self.first]
        return [shown(middle(t or "all", 40).replace(", ", between)) for t in texts]


def _bases(c: Configuration, kept: Sequence[Configuration]) -> str:
    """Why repeats may not have been averaged."""
    same = [o for o in kept if (o.model, o.batch, o.device) == (c.model, c.batch, c.device)]
    bases = list(dict.fromkeys(o.cells.get("gflops_basis", "") for o in same))
    return f" (GFLOPS/W of {' and of '.join(shown(b) for b in bases)})" if len(bases) > 1 else ""


def _says_more(at: tuple[int, int], shape: tuple[int, int]) -> bool:
    """Whether a mean is over more than one cell, its place being in a line that is there."""
    return (at[0] < shape[0] or shape[0] > 1) and (at[1] < shape[1] or shape[1] > 1)


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
