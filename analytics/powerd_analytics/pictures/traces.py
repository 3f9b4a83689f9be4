"""Power over time: envelopes of millions of readings, and the phases as shades behind them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.devices import Part
from powerd_analytics.layers.rows import LAYER
from powerd_analytics.pictures.style import shown
from powerd_analytics.runs.phases import Phases
from powerd_analytics.runs.run import Run
from powerd_analytics.signals.envelopes import envelope_of, joined
from powerd_analytics.signals.signal import Signal
from powerd_analytics.signals.slices import SlicedSignal
from powerd_analytics.signals.streams import Points, View, count_points, fastest_of, points_of, summed_of
from powerd_analytics.tables.groups import group_text
from powerd_core.errors import AnalysisError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PIXELS = 1600
"""Columns of a trace: more readings than this are drawn as the envelope of their least and greatest."""


def is_silent(run: Run, signal: Signal) -> bool:
    """Whether a line has no two good readings that say anything of the time of the run."""
    return len(signal) < 2 or min(run.end_ns, int(signal.t_ns[-1])) <= max(run.begin_ns, int(signal.t_ns[0]))


def check_readings(run: Run, signals: Sequence[Signal]) -> None:
    """Raises `AnalysisError` for a run of which all lines are silent: axes without anything would pass for 0 W."""
    if all(is_silent(run, signal) for signal in signals):
        raise AnalysisError(
            f"{run.path}: its lines have fewer than two good readings while it ran: there is nothing to draw "
            "(`joules info` and `joules clock` say what was read, and when)"
        )


def envelope(
    t_ns: NDArray[np.int64], watts: NDArray[np.float64], begin_ns: int, end_ns: int, columns: int = PIXELS
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Times, least and greatest power of each column of a trace; all readings where they are few."""
    inside = View(begin_ns, end_ns).cut(t_ns)
    return envelope_of_many([(t_ns[inside], watts[inside])], inside.stop - inside.start, columns)


def envelope_of_many(
    points: Iterable[Points], n: int, columns: int = PIXELS
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """The same of ``n`` points that come piece by piece."""
    if n <= 2 * columns:
        t, p = joined(points)
        return t, p, p
    return envelope_of(points, np.unique(np.linspace(0, n, columns, endpoint=False).astype(np.int64)))


def draw_trace(
    axes: Axes,
    run: Run,
    part: Part,
    compared: Sequence[Signal],
    window: tuple[int, int],
    colours: Mapping[str, str],
    *,
    is_zoom: bool,
) -> None:
    """Power of every line of a part, their sum and what they are compared with, in one window of time."""
    from matplotlib import colormaps

    scale, unit = (1e-6, "ms") if window[1] - window[0] < 2_000_000_000 else (1e-9, "s")
    origin = window[0] if is_zoom else run.begin_ns
    _shade(axes, run, window, origin, scale, colours, is_zoom=is_zoom)
    shades = colormaps["viridis"](np.linspace(0, 0.9, max(len(part.signals), 1)))
    highest, lowest = 1.0, 0.0
    for signal, colour in zip(part.signals, shades, strict=False):
        highest = max(highest, _draw_line(axes, signal, window, origin, scale, color=colour, lw=1.0))
        lowest = min(lowest, _lowest_w(signal))
    if len(part.signals) > 1:
        highest = max(highest, _draw_sum(axes, part, window, origin, scale))
    for signal in compared:
        label = f"{signal.line.name} (compared)"
        highest = max(
            highest, _draw_line(axes, signal, window, origin, scale, color="#888888", lw=0.9, ls=":", label=label)
        )
    if silent := [signal.line.name for signal in part.signals if is_silent(run, signal)]:
        box = {"boxstyle": "round,pad=0.2", "fc": "white", "ec": "none", "alpha": 0.8}
        axes.annotate(f"no readings of {shown(', '.join(silent), 80)}", (0.5, 0.5), xycoords="axes fraction",
                      ha="center", va="center", fontsize=9, bbox=box)  # fmt: skip
    axes.set_xlim((window[0] - origin) * scale, (window[1] - origin) * scale)
    axes.set_ylim(min(0.0, 1.05 * lowest), highest * (1.06 if is_zoom else 1.28))
    axes.set_xlabel(f"time ({unit})")
    axes.set_ylabel("power (W)")


def _draw_line(
    axes: Axes, signal: Signal, window: tuple[int, int], origin: int, scale: float, *, color: Any, lw: float,
    ls: str = "-", label: str | None = None,
) -> float:  # fmt: skip
    if len(signal) < 2:
        return 0.0
    view = View(*window)
    at, low, high = envelope_of_many(points_of(signal, view), count_points(signal, view))
    return _draw_envelope(axes, (at - origin) * scale, low, high, color, lw, ls, shown(label or signal.line.name))


def _draw_sum(axes: Axes, part: Part, window: tuple[int, int], origin: int, scale: float) -> float:
    """The device's power: all lines interpolated at the readings of the one that is read most often."""
    signals = [s for s in part.signals if len(s) > 1]
    if not signals:
        return 0.0
    fastest, view = fastest_of(signals), View(*window)
    at, low, high = envelope_of_many(summed_of(signals, fastest, view), count_points(fastest, view))
    label = shown(f"{part.device}, sum of lines")
    return _draw_envelope(axes, (at - origin) * scale, low, high, "black", 1.3, "-", label)


def is_innermost(phases: Phases) -> NDArray[np.bool_]:
    """[n] whether a phase has none inside, nor overlaps others. Layers are parts of passes, not phases of their own."""
    apart = [i for i, c in enumerate(phases.classes) if c.overlaps or LAYER in c.attributes]
    drawn: NDArray[np.bool_] = ~np.isin(phases.label, apart)
    parents = phases.parent[drawn]
    drawn[parents[parents >= 0]] = False
    return drawn


def _lowest_w(signal: Signal) -> float:
    if isinstance(signal, SlicedSignal):
        return signal.range_w[0] if signal.range_w is not None else 0.0
    return float(signal.power()[1].min(initial=0.0))


def _draw_envelope(
    axes: Axes, x: NDArray[Any], low: Any, high: Any, color: Any, lw: float, ls: str, label: str
) -> float:
    if low is high:
        axes.plot(x, low, color=color, lw=lw, ls=ls, label=label, marker="." if len(x) < 80 else None, ms=3)
    else:
        axes.fill_between(x, low, high, color=color, lw=0.3, label=label, step="post", rasterized=True)
    return float(np.max(high)) if len(x) else 0.0


def _shade(
    axes: Axes, run: Run, window: tuple[int, int], origin: int, scale: float, colours: Mapping[str, str], *,
    is_zoom: bool,
) -> None:  # fmt: skip
    """Background in the colour of the innermost phases; where they are too many to be seen, of the outermost."""
    p = run.phases
    in_window = (p.end_ns > window[0]) & (p.begin_ns < window[1])
    drawn = in_window & is_innermost(p)
    if drawn.sum() > 400 or (not is_zoom and drawn.sum() > 60):
        outer = np.flatnonzero(in_window & (p.depth == 0))
        if len(outer) <= 40:
            for n, i in enumerate(outer):
                begin, end = (p.begin_ns[i] - origin) * scale, (p.end_ns[i] - origin) * scale
                axes.axvspan(begin, end, color="#000000", alpha=0.05 + 0.05 * (n % 2), lw=0)
                if p.end_ns[i] - p.begin_ns[i] < 0.06 * (window[1] - window[0]):
                    continue  # too narrow for its name
                kind = p.classes[p.label[i]]
                text = group_text(dict(kind.group)) if kind.group else kind.name
                box = {"boxstyle": "round,pad=0.2", "fc": "white", "ec": "none", "alpha": 0.8}
                axes.annotate(shown(text), ((begin + end) / 2, 0.98), xycoords=("data", "axes fraction"), ha="center",
                              va="top", fontsize=7.5, color="#333333",
                              bbox=box)  # fmt: skip
        return
    from matplotlib.collections import PolyCollection

    for name, colour in colours.items():
        of_name = np.isin(p.label, [i for i, c in enumerate(p.classes) if c.name == name]) & drawn
        b, e = (p.begin_ns[of_name] - origin) * scale, (p.end_ns[of_name] - origin) * scale
        corners = np.stack([np.stack([b, b, e, e], 1), np.tile([0.0, 1.0, 1.0, 0.0], (len(b), 1))], 2)
        shade = PolyCollection(list(corners), facecolor=colour, alpha=0.28, lw=0, transform=axes.get_xaxis_transform())
        axes.add_collection(shade, autolim=False)


def draw_legend(axes: Axes, colours: Mapping[str, str]) -> None:
    """Lines (the sum first) and phases in one legend to the right of ``axes``, where it hides nothing."""
    from matplotlib.patches import Patch

    lines, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda i: "sum of lines" not in labels[i])
    patches = [Patch(facecolor=c, alpha=0.4, label=shown(name)) for name, c in list(colours.items())[:10]]
    handles = [*(lines[i] for i in order), *patches]
    names = [*(labels[i] for i in order), *(str(p.get_label()) for p in patches)]
    if handles:
        axes.legend(handles, names, loc="upper left", bbox_to_anchor=(1.01, 1.02), fontsize=7.5, frameon=False)
