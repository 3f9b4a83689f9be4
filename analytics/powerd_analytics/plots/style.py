"""What all plots share: colours, headings, the line at the foot, bars with intervals, and how a figure is written.

Every plot says how its power came about, and a joule that was not measured never looks like one that was: its bars are
hatched, its points hollow. What is not known is an empty box with words, never a 0; a lower bound has an arrow upwards
in the place of an interval.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from math import floor, log10
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from powerd_analytics.output.text import MADE_BY, digits
from powerd_client.host.ownership import whole_output
from powerd_core.text import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

HATCHES = {"measured": "", "simulated": "//", "modelled": ".."}
LEGEND_IN = 1.7
"""Room in inches that a legend beside the panels takes from the heading."""
BARS_LOG_FROM = 300.0
"""Heights of which the largest is so many times the least stand on a logarithmic axis: on another, a bar would have
less than a pixel."""
AXIS_LOG_FROM = 5.0
"""An axis of points whose largest value is so many times its least is logarithmic: else most lie in one corner."""
_DECADES_FROM = 200.0
"""From the same quotient on it has numbers at its decades alone: with those at 2 and 5 they would overlap."""
_NUMBER_PT = 6.5
_UNKNOWN, _ARROW = 0.035, 0.05
"""Height of the box of what is not known, and length of the arrow of a bound, as shares of the axis."""
_P = ParamSpec("_P")
_T = TypeVar("_T")
_RC: dict[Any, Any] = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.titlelocation": "left",
    "axes.titlesize": 9.5, "hatch.linewidth": 0.6,
    "pdf.fonttype": 42,  # TrueType, as publishers ask for; an SVG has its letters as outlines
}  # fmt: skip
WIDTHS_IN = {"column": 3.5, "page": 7.0}
"""Of a column and of both columns of a journal, in inches: 89 and 178 mm."""
_NARROW_IN = 5.0
_width_in: ContextVar[float | None] = ContextVar("width_in", default=None)
Height = tuple[float | None, float | None]
"""Of a bar, with its 95 % half-width; None where either is not known."""


def with_style(draw: Callable[_P, _T]) -> Callable[_P, _T]:
    """A function that draws, in our style: matplotlib asks for most of it when a text or a tick is made."""

    @wraps(draw)
    def inside(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        from matplotlib import rc_context

        with rc_context(_RC):
            return draw(*args, **kwargs)

    return inside


@contextmanager
def printed_at(width: str | None) -> Iterator[None]:
    """What is drawn meanwhile is as wide as one of `WIDTHS_IN`, with letters to be read at that size; else as wide as
    it needs."""
    token = _width_in.set(WIDTHS_IN[width] if width else None)
    try:
        yield
    finally:
        _width_in.reset(token)


def width_asked() -> float | None:
    """In inches, where `printed_at` asks for one."""
    return _width_in.get()


def is_narrow() -> bool:
    """Whether what is drawn is as wide as one column."""
    return (width_asked() or 99.0) < _NARROW_IN


@with_style
def save(figure: Figure, out: Path) -> None:
    """Write a figure; the ending of ``out`` says the format (png, pdf, svg)."""
    with warnings.catch_warnings():
        # Characters that the font does not have become boxes, without a word on the error stream about each.
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from", UserWarning)
        metadata = {"Software" if out.suffix.lower() == ".png" else "Creator": MADE_BY}
        with whole_output(out) as partial:
            figure.savefig(partial, dpi=140, metadata=metadata)


# ---- figures and words -------------------------------------------------------------------------------------------


_LEAST_OF_PANEL = 0.65
"""To what share of its own size a panel is made smaller before fewer stand side by side."""


def panels(
    count: int, size: tuple[float, float], *, rows: int = 1, most_columns: int = 3
) -> tuple[Figure, list[list[Axes]]]:
    """A figure for ``count`` things of ``rows`` panels each, ``size`` inches a panel: axes [count][rows]."""
    from matplotlib.figure import Figure

    columns, width, height = min(count, most_columns), size[0], size[1]
    if (asked := width_asked()) is not None:
        columns = max(1, min(columns, int(asked / (_LEAST_OF_PANEL * width))))
        width, height = asked / columns, height * max(_LEAST_OF_PANEL, min(1.0, asked / columns / width))
    blocks = -(-count // columns)
    figure = Figure(figsize=(width * columns, height * rows * blocks + 0.7), layout="constrained")
    grid = figure.subplots(blocks * rows, columns, squeeze=False)
    axes = [[grid[(i // columns) * rows + k][i % columns] for k in range(rows)] for i in range(blocks * columns)]
    for ax in (ax for empty in axes[count:] for ax in empty):
        ax.set_axis_off()
    return figure, axes[:count]


def finish(figure: Figure, title: str, provenances: Iterable[str], note: str = "error bars: 95 % interval") -> Figure:
    """Heading, and at the foot how the power came about and what the bars are."""
    kinds = [f"{brief(kind)} power" if kind else "provenance not stated" for kind in sorted(set(provenances))]
    width = figure.get_figwidth()
    above = _filled(brief(title, 150), width - (LEGEND_IN if figure.legends else 0.0), 11)
    if width_asked() is None:  # a paper has a caption
        figure.suptitle(above, x=0.01, ha="left", fontsize=11)
    figure.supxlabel(_filled(f"{' and '.join(kinds)} · {note}", width, 8), x=0.01, ha="left", fontsize=8, color="#444")
    return figure


def panel_inches(ax: Axes) -> float:
    """About the width of a panel."""
    place, width = ax.get_subplotspec(), float(ax.figure.bbox.width / ax.figure.dpi)
    if place is None:
        return width
    return width * len(place.colspan) / place.get_gridspec().ncols


def heading(ax: Axes, text: str, **style: Any) -> None:
    """The title of a panel, in lines that are no longer than the panel is wide."""
    ax.set_title(_filled(brief(text, 150), 0.85 * panel_inches(ax), 9.5), **style)


def _filled(text: str, inches: float, points: float) -> str:
    """Text in lines of at most about so many inches: what is longer would be cut off, or cover its neighbour."""
    return fill(text, max(int(128 * inches / points), 20))


def legend_beside(ax: Axes, handles: Sequence[Any] | None = None) -> None:
    """A legend to the right of the panel: within, it would hide curves, points or their numbers."""
    ax.legend(handles=handles, fontsize=7.5, frameon=False, loc="upper left", bbox_to_anchor=(1.005, 1.02))


def legend_above(figure: Figure, handles: Sequence[Any]) -> None:
    """A legend that all panels share, at the right of the heading."""
    if is_narrow():
        figure.legend(handles=handles, fontsize=7.5, frameon=False, loc="outside upper center", ncols=2)
    else:
        figure.legend(handles=handles, fontsize=7.5, frameon=False, loc="outside right upper")


def engineering_ticks(axis: Axis, unit: str, of_decade: Sequence[float] = (1.0, 2.0, 5.0)) -> None:
    """Numbers with SI prefixes (2 kJ); on a logarithmic axis at these places of each decade."""
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    if axis.get_scale() == "log":
        axis.set_major_locator(LogLocator(subs=of_decade))
        axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(EngFormatter(unit))


def quantity_axis(axis: Axis, text: str, unit: str, values: Sequence[float]) -> None:
    """The axis of a quantity that points have: its words, its numbers, and the scale that suits ``values``."""
    low, high = min(values), max(values)
    is_log = low > 0 and high > AXIS_LOG_FROM * low
    axis.axes.set(**{f"{axis.axis_name}scale": "log" if is_log else "linear"})  # type: ignore[attr-defined]
    axis.set_label_text(f"{text} ({unit})" + (", logarithmic" if is_log else ""))
    engineering_ticks(axis, unit, (1.0, 2.0, 5.0) if high < _DECADES_FROM * low else (1.0,))


def interval_note(known: Iterable[float | None]) -> str:
    """What the foot says of error bars: a table may come without any."""
    return "error bars: 95 % interval" if any(known) else "no uncertainties are given"


def brief(text: str, most: int = 60) -> str:
    """A name from a file: printable line by line, no formula to matplotlib, and of at most ``most`` characters a line:
    what tells names apart is at their ends."""
    lines = [printable(line) for line in text.split("\n")]
    cut = [f"{x[: (most - 1) // 2]}…{x[-(most // 2) :]}" if len(x) > most else x for x in lines]
    return "\n".join(cut).replace("$", "\\$")


# ---- bars --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar at ``x``."""

    x: float
    width: float
    height: Height
    colour: str
    hatch: str = ""
    is_lower_bound: bool = False


def draw_bars(ax: Axes, bars: Sequence[Bar], among: Iterable[Height], inches: float, *, unknown: str) -> None:
    """Bars with their numbers, upright where they are wide enough, else turned, or none.

    ``among`` are all heights that share the scale, which is logarithmic from `BARS_LOG_FROM` on; ``inches`` is about
    the width of the axes, ``unknown`` the words for a height that is not known.
    """
    among = list(among)
    sign = "≥ " * any(b.is_lower_bound for b in bars)
    numbers = [sign + digits(h, 3) for h, _ in [*among, *(b.height for b in bars)] if h is not None]
    pitch = 72 * inches / max(len(bars), 1)
    is_turned = 0.62 * _NUMBER_PT * max(map(len, numbers), default=0) > pitch
    has_numbers = pitch > 1.05 * _NUMBER_PT
    room = 0.08 if not has_numbers else 0.35 if is_turned else 0.15
    known = [(h, u or 0.0) for h, u in among if h is not None]
    low = min((h - u for h, u in known if h < 0), default=0.0)
    high = max((h + u for h, u in known), default=0.0)
    high = high if high > low else 1.0
    least = min((h for h, _ in known), default=0.0)
    is_log = least > 0 and max(h for h, _ in known) > BARS_LOG_FROM * least
    if is_log:
        low = 10.0 ** floor(log10(least / 2))
        ax.set_yscale("log")
        ax.set_ylim(low, high * (high / low) ** room)
    else:
        ax.set_ylim(low - (room * (high - low) if low < 0 else 0.0), high + room * (high - low))
    for bar in bars:
        height, reach = bar.height
        if height is None:
            # An empty box as high as the axis says, whatever its values.
            across = ax.get_xaxis_transform()
            ax.bar(bar.x, _UNKNOWN, 0.92 * bar.width, facecolor="none", edgecolor=bar.colour, hatch="xxxx", lw=0.8,
                   transform=across)  # fmt: skip
            ax.annotate(unknown, (bar.x, _UNKNOWN), xycoords=across, xytext=(0, 1.5),
                        textcoords="offset points", ha="center", fontsize=_NUMBER_PT, color="#444444")  # fmt: skip
            continue
        if bar.is_lower_bound:  # on a logarithmic axis a share of the axis is a factor
            reach = height * (10 ** (_ARROW * 3) - 1) if is_log else _ARROW * (high - low)
        drawn = ax.bar(
            bar.x, height, 0.92 * bar.width, color=bar.colour, hatch=bar.hatch, edgecolor="white", lw=0,
            yerr=reach or None, error_kw={"lolims": bar.is_lower_bound, "capsize": 2.5, "lw": 1},
        )  # fmt: skip
        if has_numbers:
            text = ("≥ " if bar.is_lower_bound else "") + digits(height, 3)
            ax.bar_label(drawn, [text], padding=2, fontsize=_NUMBER_PT, rotation=90 if is_turned else 0)


def bar_handles(
    named: Mapping[str, str], provenances: Iterable[str], unknown: str = "", *, has_bounds: bool = False
) -> list[Any]:
    """Legend of bars: a colour for each name, the hatches of what was not measured, and the signs that occur."""
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=colour, label=brief(name, 30)) for name, colour in named.items()]
    kinds = sorted({p for p in provenances if HATCHES.get(p)})
    handles += [Patch(facecolor="#bbbbbb", hatch=2 * HATCHES[k], edgecolor="white", label=k) for k in kinds]
    if unknown:
        handles.append(Patch(facecolor="none", edgecolor="#444444", hatch="xxxx", label=unknown))
    if has_bounds:
        handles.append(Patch(facecolor="none", label="↑ ≥: lower bound, clipped readings"))
    return handles
