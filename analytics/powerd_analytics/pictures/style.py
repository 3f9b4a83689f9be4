"""What all pictures share: colours, hatches for what was not measured, the line at the foot, how they are written."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from powerd_core.text import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
"""Okabe and Ito's eight colours, told apart by people with any colour vision."""
NOT_STATED = "provenance not stated"
RC: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9.5,
    "hatch.linewidth": 0.6,
}


def panels(
    count: int, size: tuple[float, float], *, rows: int = 1, most_columns: int = 3
) -> tuple[Figure, list[list[Axes]]]:
    """A figure for ``count`` things of ``rows`` panels each, ``size`` inches a panel: axes [count][rows]."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    columns = min(count, most_columns)
    blocks = -(-count // columns)
    with rc_context(RC):
        figure = Figure(figsize=(size[0] * columns, size[1] * rows * blocks + 0.7), layout="constrained")
        axes = figure.subplots(blocks * rows, columns, squeeze=False)
    made = [[axes[(i // columns) * rows + k][i % columns] for k in range(rows)] for i in range(count)]
    for i in range(count, blocks * columns):
        for k in range(rows):
            axes[(i // columns) * rows + k][i % columns].set_axis_off()
    return figure, made


def finish(figure: Figure, title: str, provenances: Iterable[str], said: str = "error bars: 95 % interval") -> Figure:
    """Heading, and at the foot how the power came about and what the bars are."""
    kinds = sorted(set(provenances))
    power = " and ".join(NOT_STATED if not kind else f"{shown(kind)} power" for kind in kinds)
    figure.suptitle(shown(title, 150), x=0.01, ha="left", fontsize=11)
    foot = " · ".join(part for part in (power, said) if part)
    # Eight points: some 16 characters an inch; what is longer would be cut off at the edge.
    foot = fill(foot, max(int(16 * figure.get_figwidth()), 40))
    figure.supxlabel(foot, x=0.01, ha="left", fontsize=8, color="#444444")
    return figure


def bars_said(known: Iterable[float | None]) -> str:
    """What the foot says of error bars: a table may come without any."""
    return "error bars: 95 % interval" if any(known) else "no uncertainties are given"


def only_model(models: Iterable[str]) -> str:
    """The name of the one model for a heading; nothing where there are several, which panels or rows name."""
    names = set(models)
    return f" of {names.pop()}" if len(names) == 1 and "" not in names else ""


def save(figure: Figure, out: Path, *, dpi: int = 150) -> None:
    """Write a figure; the ending of ``out`` says the format (png, pdf, svg)."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    with rc_context(RC), without_glyphs():
        figure.savefig(out, dpi=dpi)


@contextmanager
def without_glyphs() -> Iterator[None]:
    """Characters that the font does not have become boxes, without a word on the error stream about each."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from", UserWarning)
        yield


def colours(names: Iterable[str]) -> dict[str, str]:
    """A colour for each name, in the order of their first occurrence."""
    return {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(dict.fromkeys(names))}


def shown(text: str, most: int = 60) -> str:
    """A name from a file: printable line by line, not too long, and no formula to matplotlib."""
    return "\n".join(printable(line, limit=most).replace("$", "\\$") for line in text.split("\n"))


def bars_of(values: Sequence[float | None]) -> list[float]:
    """Half-widths for error bars: nothing where none is known."""
    return [0.0 if v is None else v for v in values]
