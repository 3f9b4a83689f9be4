"""How good a run's data are over its time: the clocks, the rate, the age of the newest reading, what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.clocks import ClockTrace
from powerd_analytics.plots.power import check_readings
from powerd_analytics.plots.style import PALETTE, engineering_ticks, finish, legend_beside, panels, shown, styled
from powerd_analytics.runs.run import Progress, Run, no_progress
from powerd_analytics.signals.signal import FAR_NS, Signal, load_bounded, parts_between

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Ints = NDArray[np.int64]
Values = NDArray[np.float64]
_MOST_BINS, _LEAST_IN_BIN = 400, 20
_MOST_LINES = 16
_MOST_HOLES = 2000
_SKEW_NS = 2_000_000_000
"""Rates of clocks are taken over this time: over less, they show only how the estimate was rounded."""


@styled
def draw_quality(run: Run, device: str | None = None, *, progress: Progress = no_progress) -> Figure:
    """Four rows over the run's time. Raises `AnalysisError` for an unknown device, and where there are no readings."""
    devices = [run.device(device)] if device is not None else list(run.devices.values())
    every = list(dict.fromkeys(n for d in devices for n in (*d.feeds, *run.compared(d.name))))
    names = every[:_MOST_LINES]
    signals = []
    for i, name in enumerate(names):
        progress(i / len(names), f"reading {name}")
        signals.append(load_bounded(run, name))
    check_readings(run, signals)
    figure, axes = panels(1, (11.0, 1.9), rows=4)
    clock, rate, age, lost = axes[0]
    for i, (name, c) in enumerate(run.clocks.items()):
        at = (c.t_ns >= run.begin_ns) & (c.t_ns <= run.end_ns)
        clock.plot(_s(run, c.t_ns[at]), c.half_width_ns[at] * 1e-3, color=PALETTE[i % len(PALETTE)], lw=1,
                   marker="." if at.sum() < 60 else None, label=shown(c.board or name, 30))  # fmt: skip
    # With few readings in a bin, their number would go up and down by chance.
    bins = int(np.clip(min(run.lines[n].count for n in names) // _LEAST_IN_BIN, 20, _MOST_BINS))
    edges = np.linspace(run.begin_ns, max(run.end_ns, run.begin_ns + 1), bins + 1)
    for i, signal in enumerate(signals):
        _draw_line(run, signal, (rate, age, lost), edges, i)
    for k, gap in enumerate(run.gaps):
        for ax in axes[0]:
            ax.axvspan(_s(run, gap.begin_ns), _s(run, gap.end_ns), color=PALETTE[5], alpha=0.25, lw=0,
                       label="recorded gap" if k == 0 and ax is rate else None)  # fmt: skip
    if not lost.collections and not run.gaps:
        lost.text(0.5, 0.5, "no readings are missing", transform=lost.transAxes, ha="center", color="#666666")
    clock.set(ylabel="clock bound (± µs)", ylim=(0, None))
    rate.set(ylabel="good readings (1/s)", ylim=(0, 1.08 * max(rate.get_ylim()[1], 1e-9)))
    age.set(ylabel="age of the newest\nreading, at most (s)", yscale="log")
    engineering_ticks(age.yaxis, "s")
    lost.set_yticks(range(len(names)), [shown(n, 30) for n in names], fontsize=7.5)
    lost.set(ylim=(len(names) - 0.4, -0.6), ylabel="missing", xlabel="time (s)")
    for ax in axes[0]:
        ax.set_xlim(0, _s(run, run.end_ns) or 1e-9)
    for ax in (clock, rate):
        if ax.lines:
            legend_beside(ax)
    more = f"; {len(every) - len(names)} more lines are not drawn" if len(every) > len(names) else ""
    note = f"{len(run.gaps)} recorded gaps; bound: guaranteed, ± half-width{more}"
    kinds = {run.lines[n].provenance.value for n in names}
    return finish(figure, f"{run.path.name}: clock and data quality", kinds, note)


def _s(run: Run, t_ns: Any) -> Any:
    """Seconds since the run began."""
    return (t_ns - run.begin_ns) * 1e-9


def _draw_line(run: Run, signal: Signal, axes: tuple[Axes, Axes, Axes], edges: Values, i: int) -> None:
    """Readings a second and the longest wait between two, by bin; what is missing as bars in row ``i``."""
    rate, age, lost = axes
    bins = len(edges) - 1
    count, longest_s = np.zeros(bins), np.full(bins, np.nan)
    holes: list[tuple[float, float]] = []
    last = -FAR_NS
    for piece in parts_between(signal, -FAR_NS, FAR_NS):
        t = piece.t_ns
        new = t > last  # pieces overlap
        if not new.any():
            continue
        last = int(t[-1])
        count += np.histogram(t[new].astype(np.float64), edges)[0]
        waits_s, missing = np.diff(t) * 1e-9, (piece.missing_ns() > 0) & new[1:]
        at = np.clip(np.searchsorted(edges, t[1:].astype(np.float64), "right") - 1, 0, bins - 1)
        np.fmax.at(longest_s, at[new[1:]], waits_s[new[1:]])
        holes += np.stack([_s(run, t[:-1][missing]), waits_s[missing]], 1).tolist()
    since_s, width_s = (edges[:-1] - run.begin_ns) * 1e-9, (edges[1] - edges[0]) * 1e-9
    colour, dashes = PALETTE[i % len(PALETTE)], ("-", "--")[i // len(PALETTE) % 2]
    label = shown(signal.line.name, 30)
    rate.step(since_s, count / width_s, where="post", color=colour, ls=dashes, lw=1, label=label)
    age.step(since_s, longest_s, where="post", color=colour, ls=dashes, lw=1)
    if holes:
        longest = sorted(holes, key=lambda hole: -hole[1])[:_MOST_HOLES]
        lost.broken_barh(longest, (i - 0.35, 0.7), facecolor=colour)


# ---- clocks ------------------------------------------------------------------------------------------------------


@styled
def draw_clocks(run: Run, traces: Sequence[ClockTrace]) -> Figure:
    """The picture of `joules clock`: offset, skew, delay and bound over the time of the run; steps are gaps."""
    figure, ((offset, skew, delay, bound),) = panels(1, (11.0, 2.1), rows=4)

    def curve(ax: Axes, t_ns: Ints, values: NDArray[Any], colour: str, label: str | None = None) -> None:
        ax.plot(_s(run, t_ns), values, color=colour, lw=1, marker="." if len(t_ns) < 60 else "", ms=3, label=label)

    for i, trace in enumerate(traces):
        colour = PALETTE[i % len(PALETTE)]
        from_line_ns, label = trace.offset_ns - trace.trend_ns(), shown(f"{trace.board} ({trace.epoch})")
        for k, piece in enumerate(trace.pieces()):
            t = trace.t_host_ns[piece].astype(np.int64)
            curve(offset, t, from_line_ns[piece] * 1e-3, colour, label if k == 0 else None)
            curve(bound, t, trace.half_ns[piece] * 1e-3, colour)
            at = np.unique(np.searchsorted(t, np.arange(t[0], t[-1], _SKEW_NS)).clip(max=len(t) - 1))
            spans_ns = np.diff(t[at])
            skew_ppm = np.diff(trace.offset_ns[piece][at]) / spans_ns * 1e6
            curve(skew, t[at][:-1] + spans_ns // 2, skew_ppm, colour)
        order = np.argsort(trace.delay_t_host_ns, kind="stable")
        curve(delay, trace.delay_t_host_ns[order], trace.delay_ns[order] * 1e-3, colour)
    offset.set_ylabel("offset less its line (µs)")
    skew.set_ylabel("skew (ppm)")
    delay.set_ylabel("delay (µs)")
    delay.set_yscale("symlog", linthresh=10)
    bound.set(ylabel="guaranteed bound (± µs)", ylim=(0, None), xlabel="time (s)")
    for ax in (offset, skew, delay, bound):
        ax.set_xlim(0, _s(run, run.end_ns) or 1e-9)
    if traces:
        offset.legend(fontsize=8, frameon=False)
    title = f"{shown(run.path.name, 100)}: clocks of the boards against the host's"
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return figure
