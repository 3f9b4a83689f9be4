"""What all plots share: colours, headings, the line at the foot, bars with intervals, and how a figure is written.

Every plot says how its power came about, and a joule that was not measured never looks like one that was: its bars are
hatched, its points hollow. What is not known is an empty box with words, never a 0; a lower bound has an arrow upwards
in the place of an interval.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from math import floor, log10
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from powerd_analytics.text import digits
from powerd_core.text import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
"""Okabe and Ito's eight colours, told apart by people with any colour vision."""
HATCHES = {"measured": "", "simulated": "//", "modelled": ".."}
NOT_STATED = "provenance not stated"
LEGEND_IN = 1.7
"""Room in inches that a legend beside the panels takes from the heading."""
BARS_LOG_FROM = 300.0
"""Heights of which the largest is so many times the least stand on a logarithmic axis: on another, a bar would have
less than a pixel."""
NUMBER_PT = 6.5
_UNKNOWN, _ARROW = 0.035, 0.05
"""Height of the box of what is not known, and length of the arrow of a bound, as shares of the axis."""
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


@styled
def save(figure: Figure, out: Path, *, dpi: int = 140) -> None:
    """Write a figure; the ending of ``out`` says the format (png, pdf, svg)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    with warnings.catch_warnings():
        # Characters that the font does not have become boxes, without a word on the error stream about each.
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from", UserWarning)
        figure.savefig(out, dpi=dpi)


# ---- figures and words -------------------------------------------------------------------------------------------


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
    grid = figure.subplots(blocks * rows, columns, squeeze=False)
    axes = [[grid[(i // columns) * rows + k][i % columns] for k in range(rows)] for i in range(blocks * columns)]
    for empty in axes[count:]:
        for ax in empty:
            ax.set_axis_off()
    return figure, axes[:count]


def finish(figure: Figure, title: str, provenances: Iterable[str], note: str = "error bars: 95 % interval") -> Figure:
    """Heading, and at the foot how the power came about and what the bars are."""
    power = " and ".join(NOT_STATED if not kind else f"{shown(kind)} power" for kind in sorted(set(provenances)))
    beside = LEGEND_IN if figure.legends else 0.0
    figure.suptitle(_filled(shown(title, 150), figure.get_figwidth() - beside, 11), x=0.01, ha="left", fontsize=11)
    foot = " · ".join(part for part in (power, note) if part)
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


def legend_beside(ax: Axes, handles: Sequence[Any] | None = None) -> None:
    """A legend to the right of the panel: within, it would hide curves, points or their numbers."""
    ax.legend(handles=handles, fontsize=7.5, frameon=False, loc="upper left", bbox_to_anchor=(1.005, 1.02))


def engineering_ticks(axis: Axis, unit: str) -> None:
    """Numbers with SI prefixes (2 kJ); on a logarithmic axis at 1, 2 and 5 of each decade."""
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    if axis.get_scale() == "log":
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(EngFormatter(unit))


def interval_note(known: Iterable[float | None]) -> str:
    """What the foot says of error bars: a table may come without any."""
    return "error bars: 95 % interval" if any(known) else "no uncertainties are given"


def colours(names: Iterable[str]) -> dict[str, str]:
    """A colour for each name, in the order of their first occurrence."""
    return {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(dict.fromkeys(names))}


def shown(text: str, most: int = 60) -> str:
    """A name from a file: printable line by line, no formula to matplotlib, and of at most ``most`` characters a line:
    what tells names apart is at their ends."""
    lines = [printable(line) for line in text.split("\n")]
    cut = [f"{x[: (most - 1) // 2]}…{x[-(most // 2) :]}" if len(x) > most else x for x in lines]
    return "\n".join(cut).replace("$", "\\$")


# ---- bars --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar at ``x``. ``height`` is None where it is not known, ``u95`` where its interval is not."""

    x: float
    width: float
    height: float | None
    u95: float | None
    colour: str
    hatch: str = ""
    is_lower_bound: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """The axis of heights that panels share: its ends without room for numbers."""

    low: float
    high: float
    is_log: bool = False


def scale_of(heights: Iterable[tuple[float | None, float | None]]) -> Scale:
    """The axis for heights with their intervals: from 0, or logarithmic (`BARS_LOG_FROM`)."""
    known = [(h, u or 0.0) for h, u in heights if h is not None]
    high = max((h + u for h, u in known), default=1.0)
    low = min((h - u for h, u in known if h < 0), default=0.0)
    least = min((h for h, _ in known), default=0.0)
    if least > 0 and max(h for h, _ in known) > BARS_LOG_FROM * least:
        return Scale(10.0 ** floor(log10(least / 2)), high, is_log=True)
    return Scale(low, max(high, 0.0) if max(high, 0.0) > low else 1.0)


def draw_bars(ax: Axes, bars: Sequence[Bar], scale: Scale, inches: float, *, unknown: str) -> None:
    """Bars with their numbers, upright where they are wide enough, else turned, or none.

    ``inches``: about the width of the axes; ``unknown``: the words for a height that is not known.
    """
    numbers = [("≥ " if b.is_lower_bound else "") + digits(b.height, 3) if b.height is not None else "" for b in bars]
    pitch = 72 * inches / max(len(bars), 1)
    is_turned = 0.62 * NUMBER_PT * max(map(len, numbers), default=0) > pitch
    has_numbers = pitch > 1.05 * NUMBER_PT
    room = 0.08 if not has_numbers else 0.35 if is_turned else 0.15
    span = scale.high - scale.low
    if scale.is_log:
        ax.set_yscale("log")
        ax.set_ylim(scale.low, scale.high * (scale.high / scale.low) ** room)
    else:
        ax.set_ylim(scale.low - (room * span if scale.low < 0 else 0.0), scale.high + room * span)
    for bar, number in zip(bars, numbers, strict=True):
        if bar.height is None:
            # An empty box as high as the axis says, whatever its values.
            across = ax.get_xaxis_transform()
            ax.bar(bar.x, _UNKNOWN, 0.92 * bar.width, facecolor="none", edgecolor=bar.colour, hatch="xxxx", lw=0.8,
                   transform=across)  # fmt: skip
            ax.annotate(unknown, (bar.x, _UNKNOWN), xycoords=across, xytext=(0, 1.5),
                        textcoords="offset points", ha="center", fontsize=NUMBER_PT, color="#444444")  # fmt: skip
            continue
        reach = bar.u95
        if bar.is_lower_bound:  # on a logarithmic axis a share of the axis is a factor
            reach = bar.height * (10 ** (_ARROW * 3) - 1) if scale.is_log else _ARROW * span
        drawn = ax.bar(
            bar.x, bar.height, 0.92 * bar.width, color=bar.colour, hatch=bar.hatch, edgecolor="white", lw=0,
            yerr=reach or None, error_kw={"lolims": bar.is_lower_bound, "capsize": 2.5, "lw": 1},
        )  # fmt: skip
        if has_numbers:
            ax.bar_label(drawn, [number], padding=2, fontsize=NUMBER_PT, rotation=90 if is_turned else 0)


def bar_handles(
    named: Mapping[str, str], provenances: Iterable[str], unknown: str = "", *, has_bounds: bool = False
) -> list[Any]:
    """Legend of bars: a colour for each name, the hatches of what was not measured, and the signs that occur."""
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=colour, label=shown(name, 30)) for name, colour in named.items()]
    kinds = sorted({p for p in provenances if HATCHES.get(p)})
    handles += [Patch(facecolor="#bbbbbb", hatch=2 * HATCHES[k], edgecolor="white", label=k) for k in kinds]
    if unknown:
        handles.append(Patch(facecolor="none", edgecolor="#444444", hatch="xxxx", label=unknown))
    if has_bounds:
        handles.append(Patch(facecolor="none", label="↑ ≥: lower bound, clipped readings"))
    return handles
