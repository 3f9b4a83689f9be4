"""What a recurring training could save: by knob, as bars; and by settings, as energy against time to the target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import hypot, inf
from typing import TYPE_CHECKING

from powerd_analytics.optimise.advice import Alternative, alternatives, front
from powerd_analytics.optimise.simulate import Savings, potential_savings
from powerd_analytics.optimise.traces import JobTrace
from powerd_analytics.output.colours import PALETTE
from powerd_analytics.plots.style import (
    Bar,
    bar_handles,
    brief,
    draw_bars,
    finish,
    heading,
    interval_note,
    legend_above,
    panels,
    quantity_axis,
    with_style,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_KNOBS: dict[str, Callable[[Savings], float]] = {
    "power limit alone": lambda savings: savings.power_cap_pct,
    "batch size alone": lambda savings: savings.batch_size_pct,
    "both": lambda savings: savings.both_pct,
}
_WIDTH = 0.27
_ALL, _FRONT, _DEFAULT = "#999999", PALETTE[0], PALETTE[5]
_ZOOM_MARGIN = 0.1
"""Of the range of the front, what is shown beyond it on each side."""


# ---- by knob -------------------------------------------------------------------------------------------------------


@with_style
def draw_savings(traces: Sequence[JobTrace], name: str, provenance: str = "") -> Figure:
    """Three bars for each job, in per cent of the energy with its default settings."""
    inches = max(4.5, 1.3 * len(traces) + 1.2)
    figure, (((ax,),)) = panels(1, (inches, 3.0))
    savings: list[Savings] = [potential_savings(trace) for trace in traces]
    colours = dict(zip(_KNOBS, PALETTE, strict=False))
    bars = [
        Bar(place + (k - 1) * _WIDTH, _WIDTH, (share(of_job), None), colours[knob])
        for place, of_job in enumerate(savings)
        for k, (knob, share) in enumerate(_KNOBS.items())
    ]
    draw_bars(ax, bars, [bar.height for bar in bars], inches, unknown="")
    ax.set_xticks(range(len(traces)), [f"{brief(t.job.name, 20)}\n{t.job.default.batch_size}" for t in traces])
    ax.set_xlabel("job, and its default batch size")
    ax.set_ylabel("energy saved in %")
    legend_above(figure, bar_handles(colours, ()))
    return finish(figure, f"Potential savings: {name}", [provenance], "of the mean energy to the target, from traces")


# ---- by settings -----------------------------------------------------------------------------------------------------


@with_style
def draw_front(traces: Sequence[JobTrace], name: str, provenance: str = "") -> Figure:
    """Two panels for each job, as in the figures of Zeus: all settings with which the target is reached, energy over
    time to the target, and the same near those that no others beat."""
    figure, axes = panels(2 * len(traces), (3.9, 3.1), most_columns=4)
    pairs = zip(axes[::2], axes[1::2], strict=True)
    fronts = [front(trace) for trace in traces]
    for ((whole,), (near,)), trace, best in zip(pairs, traces, fronts, strict=True):
        for ax in (whole, near):
            _settings(ax, trace)
            _front(ax, best)
        known = alternatives(trace)
        quantity_axis(whole.xaxis, "time to the target", "s", [a.time_s for a in known])
        quantity_axis(whole.yaxis, "energy to the target", "J", [a.energy_j for a in known])
        _zoom(near, best)
        heading(whole, trace.job.name)
        heading(near, f"{brief(trace.job.name, 20)}: front")
    legend_above(figure, axes[0][0].get_legend_handles_labels()[0])
    note = f"{interval_note(a.u95_share for best in fronts for a in best)}; at points: batch size and limit"
    return finish(figure, f"All settings, and those that no others beat: {name}", [provenance], note)


def _settings(ax: Axes, trace: JobTrace) -> None:
    """All settings, a line for each batch size over its limits, and the default ones."""
    known = alternatives(trace)
    for batch_size in trace.job.batch_sizes:
        of_size = [a for a in known if a.settings.batch_size == batch_size]
        (line,) = ax.plot(*_places(of_size), color=_ALL, marker="o", ms=3, lw=0.7, zorder=1)
    line.set_label("one batch size under its limits")
    default = [a for a in known if a.settings == trace.job.default]
    ax.plot(*_places(default), color=_DEFAULT, marker="D", ms=7, ls="none", zorder=3, label="default settings")


def _front(ax: Axes, best: Sequence[Alternative]) -> None:
    times, energies = _places(best)
    shares = [a.u95_share or 0.0 for a in best]
    ax.errorbar(
        times, energies, xerr=[u * t for u, t in zip(shares, times, strict=True)],
        yerr=[u * e for u, e in zip(shares, energies, strict=True)], color=_FRONT, marker="o", ms=4, lw=1.2,
        elinewidth=0.6, capsize=2, drawstyle="steps-post", zorder=2, label="no others beat these",
    )  # fmt: skip


def _zoom(ax: Axes, best: Sequence[Alternative]) -> None:
    """What the intervals of the front reach and a margin, with the settings of its points."""
    share = max(a.u95_share or 0.0 for a in best)
    for axis, of, unit, values in zip((ax.xaxis, ax.yaxis), ("time", "energy"), "sJ", _places(best), strict=True):
        low, high = min(values) * (1 - share), max(values) * (1 + share)
        margin = _ZOOM_MARGIN * (high - low or high)
        quantity_axis(axis, f"{of} to the target", unit, (low, high))
        axis.set_view_interval(low - margin, high + margin, ignore=True)
    _name(ax, best)


def _name(ax: Axes, best: Sequence[Alternative]) -> None:
    """Settings beside their points. A front falls to the right: there is room above and below it. Of two points that
    are near each other, the higher one has its words above, the lower one below."""
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    gaps = [
        hypot((b.time_s - a.time_s) / (right - left), (b.energy_j - a.energy_j) / (top - bottom))
        for a, b in pairwise(best)
    ]
    for a, before, behind in zip(best, [inf, *gaps], [*gaps, inf], strict=True):
        offset, across, along = ((-4, -3), "right", "top") if before < behind else ((4, 3), "left", "bottom")
        text = f"{a.settings.batch_size}, {a.settings.power_cap_w:g} W"
        ax.annotate(text, (a.time_s, a.energy_j), xytext=offset, textcoords="offset points", fontsize=7,
                    ha=across, va=along)  # fmt: skip


def _places(those: Sequence[Alternative]) -> tuple[list[float], list[float]]:
    """Times and energies."""
    return [a.time_s for a in those], [a.energy_j for a in those]
