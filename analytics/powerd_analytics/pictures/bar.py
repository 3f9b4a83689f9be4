"""Bars with 95 % intervals and their numbers; what is not known is said, not drawn as 0.

A lower bound has no interval: an arrow upwards instead, and a >= sign.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import floor, log10
from typing import TYPE_CHECKING

from powerd_analytics.energy.reasons import digits

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HATCHES = {"measured": "", "simulated": "//", "modelled": ".."}
"""A joule that was not measured never looks like one that was."""
LOG_FROM = 300.0
"""Heights of which the largest is so many times the least stand on a logarithmic axis: on another, a bar would have
less than a pixel."""
NUMBER_PT = 6.5
_UNKNOWN = 0.035
"""Height of the box of what is not known, as a share of the axis."""
_ARROW = 0.05


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

    def limits(self, room: float) -> tuple[float, float]:
        """Ends of the axis with a share ``room`` of it free at the top, and below where bars hang down."""
        if self.is_log:
            return self.low, self.low * (self.high / self.low) ** (1 / (1 - room))
        span = (self.high - self.low) / (1 - room * (1 + (self.low < 0)))
        return self.low - (room * span if self.low < 0 else 0.0), self.high + room * span


def scale_of(heights: Iterable[tuple[float | None, float | None]]) -> Scale:
    """The axis for heights with their intervals: from 0, or logarithmic (`LOG_FROM`)."""
    found = [(h, u or 0.0) for h, u in heights if h is not None]
    high = max((h + u for h, u in found), default=1.0)
    low = min((h - u for h, u in found if h < 0), default=0.0)
    least = min((h for h, _ in found), default=0.0)
    if least > 0 and max(h for h, _ in found) > LOG_FROM * least:
        return Scale(10.0 ** floor(log10(least / 2)), high, is_log=True)
    return Scale(low, max(high, 0.0) if max(high, 0.0) > low else 1.0)


def put_bars(
    ax: Axes, bars: Sequence[Bar], scale: Scale, inches: tuple[float, float], span: float, *, unknown: str
) -> None:
    """Bars with their numbers, upright where they are wide enough, else turned, or none.

    ``inches``: about the size of the axes, across which ``span`` units of `Bar.x` lie; ``unknown``: what is said of a
    height that is not known.
    """
    said = [("≥ " if b.is_lower_bound else "") + digits(b.height, 3) if b.height is not None else "" for b in bars]
    pitch = 72 * inches[0] / span * min((b.width for b in bars), default=1.0)
    longest = 0.62 * NUMBER_PT * max(map(len, said), default=0)
    is_turned = longest > pitch
    has_numbers = not is_turned or pitch > 1.05 * NUMBER_PT
    room = 0.08 if not has_numbers else min((longest if is_turned else NUMBER_PT) / 72 / inches[1] + 0.06, 0.45)
    if scale.is_log:
        ax.set_yscale("log")
    low, high = scale.limits(room)
    ax.set_ylim(low, high)
    for bar, text in zip(bars, said, strict=True):
        if bar.height is None:
            _put_unknown(ax, bar, unknown)
            continue
        ax.bar(bar.x, bar.height, 0.92 * bar.width, color=bar.colour, hatch=bar.hatch, edgecolor="white", lw=0)
        top = _put_interval(ax, bar, high - low)
        if has_numbers:
            is_below = bar.height < 0
            ax.annotate(text, (bar.x, top), xytext=(0, -2 if is_below else 2), textcoords="offset points", ha="center",
                        va="top" if is_below else "bottom", fontsize=NUMBER_PT, rotation=90 if is_turned else 0,
                        annotation_clip=False)  # fmt: skip


def _put_interval(ax: Axes, bar: Bar, length: float) -> float:
    """The interval of a bar, or the arrow of a bound; where it ends, seen from 0."""
    height = bar.height or 0.0
    if bar.is_lower_bound:
        # On a logarithmic axis a share of the axis is a factor.
        reach = height * (10 ** (_ARROW * 3) - 1) if ax.get_yscale() == "log" else _ARROW * length
    else:
        reach = bar.u95 or 0.0
    if reach:
        ax.errorbar(bar.x, height, yerr=reach, lolims=bar.is_lower_bound, color="black", capsize=2.5, lw=1, ls="none")
    return height - reach if height < 0 and not bar.is_lower_bound else height + reach


def _put_unknown(ax: Axes, bar: Bar, said: str) -> None:
    """An empty box as high as the axis says, whatever its values."""
    across = ax.get_xaxis_transform()
    ax.bar(bar.x, _UNKNOWN, 0.92 * bar.width, facecolor="none", edgecolor=bar.colour, hatch="xxxx", lw=0.8,
           transform=across)  # fmt: skip
    ax.annotate(said, (bar.x, _UNKNOWN), xycoords=across, xytext=(0, 1.5), textcoords="offset points", ha="center",
                va="bottom", fontsize=NUMBER_PT, color="#444444")  # fmt: skip
