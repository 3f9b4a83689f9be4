"""What all pictures share: colours, headings, the line at the foot, how they are written."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from powerd_core.text import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
"""Okabe and Ito's eight colours, told apart by people with any colour vision."""
NOT_STATED = "provenance not stated"
LEGEND_IN = 1.7
"""Room in inches that a legend beside the panels takes from the heading."""
_PREFIXES = {-9: "n", -6: "µ", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T"}
_P = ParamSpec("_P")
_T = TypeVar("_T")
RC: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9.5,
    "hatch.linewidth": 0.6,
}


def styled(draw: Callable[_P, _T]) -> Callable[_P, _T]:
    """A function that draws, under `RC`: matplotlib asks for most of it when a text or a tick is made."""

    @wraps(draw)
    def inside(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        from matplotlib import rc_context

        with rc_context(RC):
            return draw(*args, **kwargs)

    return inside


def panels(
    count: int, size: tuple[float, float], *, rows: int = 1, most_columns: int = 3
) -> tuple[Figure, list[list[Axes]]]:
    """A figure for ``count`` things of ``rows`` panels each, ``size`` inches a panel: axes [count][rows].

    As many columns as leave fewest places empty, at most ``most_columns``.
    """
    from matplotlib.figure import Figure

    columns = min(range(min(count, most_columns), 1, -1), key=lambda n: -count % n) if count > most_columns else count
    blocks = -(-count // columns)
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
    beside = LEGEND_IN if figure.legends else 0.0
    figure.suptitle(_filled(shown(title, 150), figure.get_figwidth() - beside, 11), x=0.01, ha="left", fontsize=11)
    foot = " · ".join(part for part in (power, said) if part)
    figure.supxlabel(_filled(foot, figure.get_figwidth(), 8), x=0.01, ha="left", fontsize=8, color="#444444")
    return figure


def heading(ax: Axes, text: str) -> None:
    """The title of a panel, in lines that are no longer than the panel is wide."""
    figure, place = ax.figure, ax.get_subplotspec()
    columns = place.get_gridspec().ncols if place else 1
    ax.set_title(_filled(shown(text, 150), 0.85 * figure.bbox.width / figure.dpi / columns, 9.5))


def _filled(text: str, inches: float, points: float) -> str:
    """Text in lines of at most about so many inches: what is longer would be cut off, or cover its neighbour."""
    return fill(text, max(int(128 * inches / points), 20))


def prefixed(values: Iterable[float]) -> tuple[float, str]:
    """By what to multiply values of one axis, and the SI prefix of their unit then: the largest has 1 to 3 digits."""
    largest = max((abs(v) for v in values), default=0.0)
    power = max((p for p in _PREFIXES if 10.0**p <= largest), default=0 if largest == 0 else min(_PREFIXES))
    return 10.0**-power, _PREFIXES[power]


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


def middle(text: str, most: int) -> str:
    """A name of at most ``most`` characters: what tells names apart is at their ends."""
    if len(text) <= most:
        return text
    head = (most - 1) // 2
    return f"{text[:head]}…{text[len(text) - (most - 1 - head) :]}"


def shown(text: str, most: int = 60) -> str:
    """A name from a file: printable line by line, not too long, and no formula to matplotlib."""
    return "\n".join(printable(line, limit=most).replace("$", "\\$") for line in text.split("\n"))
