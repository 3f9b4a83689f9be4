"""How good a run's data are over its time: the clock's bound, rate, age of the newest reading, gaps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.devices import Progress, no_progress
from powerd_analytics.pictures.style import PALETTE, finish, panels, shown, styled
from powerd_analytics.pictures.traces import check_readings
from powerd_analytics.runs.run import Run
from powerd_analytics.signals.signal import Signal
from powerd_analytics.signals.slices import FAR_NS, load_bounded, parts_between
from powerd_core.errors import AnalysisError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_BINS, LEAST_IN_BIN = 400, 20
MOST_LINES = 16


@styled
def draw_quality(run: Run, device: str | None = None, *, progress: Progress = no_progress) -> Figure:
    """Four rows over the run's time. Raises `AnalysisError` for an unknown device, and where there are no readings."""
    devices = [run.device(device)] if device is not None else list(run.devices.values())
    names = [n for d in devices for n in (*d.feeds, *run.compared(d.name))]
    every = list(dict.fromkeys(names))
    names = every[:MOST_LINES]
    if not names:
        raise AnalysisError(f"{run.path}: this run is empty: no line feeds any of its devices")
    signals = {}
    for i, name in enumerate(names):
        progress(i / len(names), f"reading {name}")
        signals[name] = load_bounded(run, name)
    check_readings(run, list(signals.values()))
    figure, axes = panels(1, (11.0, 1.9), rows=4)
    clock, rate, age, lost = axes[0]
    _clocks(clock, run)
    # With few readings in a bin, their number would go up and down by chance.
    bins = int(np.clip(min((run.lines[n].count for n in names), default=0) // LEAST_IN_BIN, 20, MOST_BINS))
    edges = np.linspace(run.begin_ns, max(run.end_ns, run.begin_ns + 1), bins + 1)
    for i, name in enumerate(names):
        _line(run, signals[name], (rate, age, lost), edges, i)
    for k, gap in enumerate(run.gaps):
        for ax in axes[0]:
            ax.axvspan(_s(run, gap.begin_ns), _s(run, gap.end_ns), color="#D55E00", alpha=0.25, lw=0,
                       label="recorded gap" if k == 0 and ax is lost else None)  # fmt: skip
    rate.set_ylim(0, 1.08 * max(rate.get_ylim()[1], 1e-9))
    if not lost.collections and not run.gaps:
        lost.text(0.5, 0.5, "no readings are missing", transform=lost.transAxes, ha="center", color="#666666")
    rate.set_ylabel("good readings (1/s)")
    age.set_ylabel("age of the newest\nreading, at most (ms)")
    age.set_yscale("log")
    _plain_ticks(age)
    lost.set_yticks(range(len(names)), [shown(n, 30) for n in names], fontsize=7.5)
    lost.set_ylim(len(names) - 0.4, -0.6)
    lost.set_ylabel("missing")
    lost.set_xlabel("time (s)")
    # Beside the panels: within, it would hide curves.
    rate.legend(fontsize=7.5, frameon=False, loc="upper left", bbox_to_anchor=(1.005, 1.0))
    for ax in axes[0]:
        ax.set_xlim(0, _s(run, run.end_ns) or 1e-9)
    kinds = {run.lines[n].provenance.value for n in names}
    said = f"{len(run.gaps)} recorded gaps; bound: guaranteed, ± half-width"
    if more := len(every) - len(names):
        said += f"; {more} more line{'s are' if more > 1 else ' is'} not drawn"
    return finish(figure, f"{run.path.name}: clock and data quality", kinds, said)


def _plain_ticks(ax: Axes) -> None:
    """Numbers that are read at a glance, of few decades more than one each."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = ax.get_ylim()
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 1e3 * low else (1.0,)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.10g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())


def _s(run: Run, t_ns: float) -> float:
    return (t_ns - run.begin_ns) * 1e-9


def _clocks(ax: Axes, run: Run) -> None:
    for i, (name, c) in enumerate(run.clocks.items()):
        inside = (c.t_ns >= run.begin_ns) & (c.t_ns <= run.end_ns)
        if inside.any():
            since_s, bound_us = (c.t_ns[inside] - run.begin_ns) * 1e-9, c.half_width_ns[inside] * 1e-3
            ax.plot(since_s, bound_us, color=PALETTE[i % len(PALETTE)], lw=1, marker="." if inside.sum() < 60 else None,
                    label=shown(c.board or name, 30))  # fmt: skip
    ax.set_ylabel("clock bound (± µs)")
    ax.set_ylim(bottom=0)
    if run.clocks:
        ax.legend(fontsize=7.5, frameon=False, loc="upper left", bbox_to_anchor=(1.005, 1.0))


def _line(run: Run, signal: Signal, axes: tuple[Axes, Axes, Axes], edges: NDArray[np.float64], i: int) -> None:
    """Readings a second and the longest wait between two, by bin; what is missing as bars in row ``i``."""
    rate, age, lost = axes
    bins = len(edges) - 1
    count, longest = np.zeros(bins), np.full(bins, np.nan)
    spans: list[tuple[float, float]] = []
    last = -FAR_NS
    for piece in parts_between(signal, -FAR_NS, FAR_NS):
        t = piece.t_ns
        new = t > last
        if not new.any():
            continue
        last = int(t[-1])
        count += np.histogram(t[new].astype(np.float64), edges)[0]
        waits, missing = np.diff(t).astype(np.float64) * 1e-9, piece.missing_ns() > 0
        at = np.clip(np.searchsorted(edges, t[1:].astype(np.float64), "right") - 1, 0, bins - 1)
        np.fmax.at(longest, at[new[1:]], waits[new[1:]])
        spans += [
            (_s(run, b), (e - b) * 1e-9)
            for b, e in zip(t[:-1][missing & new[1:]], t[1:][missing & new[1:]], strict=True)
        ]
    middles, width = (edges[:-1] - run.begin_ns) * 1e-9, (edges[1] - edges[0]) * 1e-9
    colour, dashes = PALETTE[i % len(PALETTE)], ("-", "--")[i // len(PALETTE) % 2]
    name = shown(signal.line.name, 30)
    rate.step(middles, count / width, where="post", color=colour, ls=dashes, lw=1, label=name)
    age.step(middles, longest * 1e3, where="post", color=colour, ls=dashes, lw=1)
    spans = sorted(spans, key=lambda s: -s[1])[:2000]
    if spans:
        lost.broken_barh(spans, (i - 0.35, 0.7), facecolor=colour)
