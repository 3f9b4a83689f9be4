"""The picture of `joules clock`: offset, skew, delay and bound over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.clocks.clock import ClockTrace
from powerd_analytics.pictures.style import PALETTE, RC, shown, without_glyphs
from powerd_analytics.pictures.traces import envelope
from powerd_analytics.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SKEW_NS = 2_000_000_000
"""Rates are taken over this time: over less, they show only how the estimate was rounded."""


def plot_clocks(run: Run, traces: Sequence[ClockTrace], out: Path, *, dpi: int = 130) -> None:
    """Write the picture to ``out``; the ending says the format (png, pdf, svg)."""
    import matplotlib as mpl

    mpl.use("Agg")
    with mpl.rc_context(RC), without_glyphs():
        draw_clocks(run, traces).savefig(out, dpi=dpi)


def draw_clocks(run: Run, traces: Sequence[ClockTrace]) -> Figure:
    """Four rows over the time of the run, each clock in its colour; steps are gaps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 9), layout="constrained")
    offset, skew, delay, bound = figure.subplots(4, 1, sharex=True)
    for i, trace in enumerate(traces):
        colour = PALETTE[i % len(PALETTE)]
        rest, label = trace.offset_ns - trace.trend_ns(), shown(f"{trace.board} ({trace.epoch})")
        for k, part in enumerate(trace.pieces()):
            t = trace.t_host_ns[part].astype(np.int64)
            _draw(offset, run, t, rest[part] * 1e-3, colour, label if k == 0 else None)
            _draw(skew, run, *_rates(t, trace.offset_ns[part]), colour)
            _draw(bound, run, t, trace.half_ns[part] * 1e-3, colour)
        order = np.argsort(trace.delay_t_host_ns, kind="stable")
        _draw(delay, run, trace.delay_t_host_ns[order], trace.delay_ns[order].astype(np.float64) * 1e-3, colour)
    offset.set_ylabel("offset less its line (µs)")
    skew.set_ylabel("skew (ppm)")
    delay.set_ylabel("delay (µs)")
    delay.set_yscale("symlog", linthresh=10)
    bound.set_ylabel("guaranteed bound (± µs)")
    bound.set_ylim(bottom=0)
    bound.set_xlabel("time (s)")
    if traces:
        offset.legend(fontsize=8, frameon=False)
    figure.suptitle(
        f"{shown(run.path.name, 100)}: clocks of the boards against the host's", x=0.01, ha="left", fontsize=11
    )
    return figure


def _rates(t: NDArray[np.int64], offset_ns: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Growth of the offset in ppm over stretches of `SKEW_NS`, and their middles."""
    if len(t) < 2:
        return t[:0], offset_ns[:0]
    at = np.unique(np.searchsorted(t, np.arange(t[0], t[-1] + SKEW_NS, SKEW_NS)).clip(max=len(t) - 1))
    spans = np.diff(t[at])
    good = spans > 0
    rates = np.diff(offset_ns[at])[good] / spans[good] * 1e6
    return ((t[at][:-1] + t[at][1:]) // 2)[good], rates


def _draw(
    axes: Axes, run: Run, t: NDArray[np.int64], values: NDArray[np.float64], colour: str, label: str | None = None
) -> None:
    if not len(t):
        return
    at, low, high = envelope(t, values, int(t[0]), int(t[-1]))
    since_s = (at - run.begin_ns) * 1e-9
    if low is not high:
        axes.fill_between(since_s, low, high, color=colour, alpha=0.3, lw=0)
    axes.plot(since_s, (low + high) / 2, color=colour, lw=1.0, label=label, marker="." if len(at) < 3 else "")
