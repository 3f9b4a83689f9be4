"""Power over time with the phases as shades behind it, and joules of each phase below: `joules plot run.h5`.

A trace has far more readings than pixels. It is drawn as the envelope of the least and the greatest reading of each
column, so that no peak is lost, and the readings come piece by piece, so that a run may be larger than the memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.devices import Part, load_parts
from powerd_analytics.plots.style import (
    HATCHES,
    PALETTE,
    Bar,
    bar_handles,
    draw_bars,
    legend_beside,
    scale_of,
    shown,
    styled,
)
from powerd_analytics.records import check_run, records_of
from powerd_analytics.runs.phases import Phases
from powerd_analytics.runs.run import Progress, Run, no_progress
from powerd_analytics.signals.signal import Signal, load_bounded
from powerd_analytics.signals.streams import (
    Points,
    View,
    count_points,
    envelope_of,
    fastest_of,
    joined,
    points_of,
    summed_of,
)
from powerd_analytics.table import LAYER, PhaseRow, PhaseTable, group_text, table_of
from powerd_core.errors import AnalysisError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Ints = NDArray[np.int64]
Values = NDArray[np.float64]
PIXELS = 1600
"""Columns of a trace: more readings than this are drawn as the envelope of their least and greatest."""
MOST_NAMES = 24
"""Phases that a legend of bars names."""
_OTHER = "#777777"
_BOX = {"boxstyle": "round,pad=0.2", "fc": "white", "ec": "none", "alpha": 0.8}


def draw_run(
    run: Run, device: str | None = None, *, with_bars: bool = True, progress: Progress = no_progress
) -> Figure:
    """The picture of a run. Without bars, it is power over time alone, and no energy is computed.

    Raises `AnalysisError` for a run without lines, and for one without readings.
    """
    parts = load_parts(run, device, lambda share, text: progress(0.5 * share, text))
    if not parts:
        raise AnalysisError(f"{run.path}: this run is empty: no line feeds any of its devices")
    check_readings(run, [signal for part in parts for signal in part.signals])
    table = PhaseTable((), (), ())
    if with_bars:
        table = table_of(run, parts, progress=lambda share, text: progress(0.5 + 0.3 * share, text))
        if len(run.phases):
            check_run(run.path, records_of(run, table))
    compared = {p.device: [load_bounded(run, name) for name in run.compared(p.device)] for p in parts}
    progress(0.8, "drawing")
    return draw_power(run, table, parts, compared)


@styled
def draw_power(run: Run, table: PhaseTable, parts: Sequence[Part], compared: Mapping[str, Sequence[Signal]]) -> Figure:
    """For each part a trace of the whole run and one of a few iterations; below them the bars of the table."""
    from matplotlib.figure import Figure

    colours, zoom = phase_colours(run), zoom_window(run)
    with_bars = any(r.is_resolvable or r.note for r in table.phases)
    heights = [3.0] * len(parts) + [3.4] * with_bars
    figure = Figure(figsize=(13, max(3.6, sum(heights) + 0.8)), layout="constrained")
    grid = figure.add_gridspec(len(heights), 2, height_ratios=heights, width_ratios=[3, 2.2])
    for i, part in enumerate(parts):
        whole, near = figure.add_subplot(grid[i, 0]), figure.add_subplot(grid[i, 1])
        others = compared.get(part.device, ())
        _draw_trace(whole, run, part, others, _Window(run.begin_ns, run.end_ns, run.begin_ns), colours)
        _draw_trace(near, run, part, others, _Window(*zoom, zoom[0]), colours)
        length_s = (zoom[1] - zoom[0]) * 1e-9
        span = f"{length_s:.3g} s" if length_s >= 1 else f"{length_s * 1e3:.3g} ms"
        whole.set_title(f"{shown(part.device)}: power of each line ({part.provenance})", weight="bold")
        near.set_title(f"the same, {span} from {(zoom[0] - run.begin_ns) * 1e-9:.2f} s on", weight="bold")
        _legend(near, colours)
    if with_bars:
        _draw_table(figure.add_subplot(grid[len(parts), :]), table, colours)
    kinds = " and ".join(sorted({line.provenance.value for line in run.lines.values()}))
    when = str(run.attributes.get("created_utc", ""))[:19].replace("T", " ")
    title = f"{run.path.name} · {when} UTC · {kinds} power" if when else run.path.name
    figure.suptitle(shown(title, 150), fontsize=11, x=0.01, ha="left")
    return figure


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


# ---- phases ------------------------------------------------------------------------------------------------------


def is_innermost(phases: Phases) -> NDArray[np.bool_]:
    """[n] whether a phase has none inside, nor overlaps others. Layers are parts of passes, not phases of their own."""
    apart = [i for i, c in enumerate(phases.classes) if c.overlaps or LAYER in c.attributes]
    innermost: NDArray[np.bool_] = ~np.isin(phases.label, apart)
    parents = phases.parent[innermost]
    innermost[parents[parents >= 0]] = False
    return innermost


def phase_colours(run: Run) -> dict[str, str]:
    """A colour for each name of a phase without phases inside, in the order of their first occurrence.

    Where phases belong to groups (a batch size, a model), those that belong to none (a warm-up) get no colour and no
    bar: one of a kind, they would dwarf what is compared.
    """
    p = run.phases
    innermost = is_innermost(p)
    grouped = np.isin(p.label, [i for i, c in enumerate(p.classes) if c.group])
    coloured = innermost & grouped if np.any(innermost & grouped) else innermost
    labels, first = np.unique(p.label[coloured], return_index=True)
    names = dict.fromkeys(p.classes[i].name for i in labels[np.argsort(first)])
    return {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(names)}


def zoom_window(run: Run, iterations: int = 3) -> tuple[int, int]:
    """A stretch of a few iterations from the middle of the run, or a tenth of a run without phases."""
    p, length = run.phases, run.end_ns - run.begin_ns
    names = np.array([c.name for c in p.classes], dtype=object)
    for wanted in ("iteration", "forward"):
        at = np.flatnonzero(np.isin(p.label, np.flatnonzero(names == wanted)) & ~p.cut)
        middle = len(at) // 2
        if len(at) <= iterations + 1:
            continue
        begin = int(p.begin_ns[at[middle]])
        if wanted == "iteration":
            later = at[middle + iterations - 1 :]
            same = later[p.label[later] == p.label[at[middle]]]
            end = int(p.end_ns[same[0] if len(same) else at[middle]])
        else:
            end = int(p.begin_ns[at[min(len(at) - 1, middle + iterations)]])
        if end <= begin or end - begin > 0.5 * length:
            end = int(p.end_ns[at[middle]])
        if end > begin:
            margin = (end - begin) // 12
            return begin - margin, end + margin
    return run.begin_ns + length * 45 // 100, run.begin_ns + length * 55 // 100


# ---- traces ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Window:
    """A stretch of time, and the moment that its axis calls 0: the run's begin, or its own in a zoom."""

    begin_ns: int
    end_ns: int
    origin_ns: int

    @property
    def unit(self) -> tuple[float, str]:
        return (1e-6, "ms") if self.end_ns - self.begin_ns < 2_000_000_000 else (1e-9, "s")

    def x(self, t_ns: Any) -> Any:
        return (t_ns - self.origin_ns) * self.unit[0]


def envelope(
    t_ns: Ints, watts: Values, begin_ns: int, end_ns: int, columns: int = PIXELS
) -> tuple[Ints, Values, Values]:
    """Times, least and greatest power of each column of a trace; all readings where they are few."""
    inside = View(begin_ns, end_ns).cut(t_ns)
    return envelope_of_many([(t_ns[inside], watts[inside])], inside.stop - inside.start, columns)


def envelope_of_many(points: Iterable[Points], n: int, columns: int = PIXELS) -> tuple[Ints, Values, Values]:
    """The same of ``n`` points that come piece by piece."""
    if n <= 2 * columns:
        t, p = joined(points)
        return t, p, p
    return envelope_of(points, np.unique(np.linspace(0, n, columns, endpoint=False).astype(np.int64)))


def _draw_trace(
    axes: Axes, run: Run, part: Part, compared: Sequence[Signal], window: _Window, colours: Mapping[str, str]
) -> None:
    """Power of every line of a part, their sum and what they are compared with, in one window of time."""
    from matplotlib import colormaps

    is_whole = window.begin_ns == run.begin_ns
    _shade(axes, run, window, colours, most=60 if is_whole else 400)
    view = View(window.begin_ns, window.end_ns)
    reach = [0.0, 1.0]

    def curve(points: Iterable[Points], n: int, label: str, **style: Any) -> None:
        at, low, high = envelope_of_many(points, n)
        if low is high:
            marker = "." if len(at) < 80 else None
            axes.plot(window.x(at), low, label=shown(label), marker=marker, ms=3, **style)
        else:
            axes.fill_between(
                window.x(at), low, high, color=style["color"], lw=0.3, label=shown(label), step="post", rasterized=True
            )
        reach.extend((float(np.min(low, initial=0.0)), float(np.max(high, initial=0.0))))

    shades = colormaps["viridis"](np.linspace(0, 0.9, max(len(part.signals), 1)))
    good = [s for s in part.signals if len(s) > 1]
    for signal, colour in zip(part.signals, shades, strict=True):
        if len(signal) > 1:
            curve(points_of(signal, view), count_points(signal, view), signal.line.name, color=colour, lw=1.0)
    if len(part.signals) > 1 and good:
        # The device's power: all lines interpolated at the readings of the one that is read most often.
        fastest = fastest_of(good)
        points = summed_of(good, fastest, view)
        curve(points, count_points(fastest, view), f"{part.device}, sum of lines", color="black", lw=1.3)
    for signal in (s for s in compared if len(s) > 1):
        label = f"{signal.line.name} (compared)"
        curve(points_of(signal, view), count_points(signal, view), label, color="#888888", lw=0.9, ls=":")
    if silent := [signal.line.name for signal in part.signals if is_silent(run, signal)]:
        axes.annotate(f"no readings of {shown(', '.join(silent), 80)}", (0.5, 0.5), xycoords="axes fraction",
                      ha="center", va="center", fontsize=9, bbox=_BOX)  # fmt: skip
    axes.set_xlim(window.x(window.begin_ns), window.x(window.end_ns))
    axes.set_ylim(1.05 * min(reach), max(reach) * (1.28 if is_whole else 1.06))
    axes.set_xlabel(f"time ({window.unit[1]})")
    axes.set_ylabel("power (W)")


def _shade(axes: Axes, run: Run, window: _Window, colours: Mapping[str, str], most: int) -> None:
    """Background in the colour of the innermost phases; where they are more than ``most``, of the outermost."""
    from matplotlib.collections import PolyCollection

    p = run.phases
    in_window = (p.end_ns > window.begin_ns) & (p.begin_ns < window.end_ns)
    innermost = in_window & is_innermost(p)
    if innermost.sum() > most:
        outer = np.flatnonzero(in_window & (p.depth == 0))
        for n, i in enumerate(outer if len(outer) <= 40 else ()):
            begin, end = window.x(p.begin_ns[i]), window.x(p.end_ns[i])
            axes.axvspan(begin, end, color="#000000", alpha=0.05 + 0.05 * (n % 2), lw=0)
            if p.end_ns[i] - p.begin_ns[i] >= 0.06 * (window.end_ns - window.begin_ns):  # else too narrow for its name
                kind = p.classes[p.label[i]]
                name = shown(group_text(dict(kind.group)) if kind.group else kind.name)
                axes.annotate(name, ((begin + end) / 2, 0.98), xycoords=("data", "axes fraction"), ha="center",
                              va="top", fontsize=7.5, color="#333333", bbox=_BOX)  # fmt: skip
        return
    for name, colour in colours.items():
        of_name = np.isin(p.label, [i for i, c in enumerate(p.classes) if c.name == name]) & innermost
        b, e = window.x(p.begin_ns[of_name]), window.x(p.end_ns[of_name])
        corners = np.stack([np.stack([b, b, e, e], 1), np.tile([0.0, 1.0, 1.0, 0.0], (len(b), 1))], 2)
        shade = PolyCollection(list(corners), facecolor=colour, alpha=0.28, lw=0, transform=axes.get_xaxis_transform())
        axes.add_collection(shade, autolim=False)


def _legend(axes: Axes, colours: Mapping[str, str]) -> None:
    """Lines (the sum first) and phases in one legend."""
    from matplotlib.patches import Patch

    lines = sorted(axes.get_legend_handles_labels()[0], key=lambda line: "sum of lines" not in str(line.get_label()))
    phases = [Patch(facecolor=c, alpha=0.4, label=shown(name)) for name, c in list(colours.items())[:10]]
    if handles := [*lines, *phases]:
        legend_beside(axes, handles)


# ---- joules ------------------------------------------------------------------------------------------------------


def _draw_table(ax: Axes, table: PhaseTable, colours: Mapping[str, str]) -> None:
    """A cluster of bars for each device and group, a bar for each phase that has a colour and for the iteration."""
    rows = [r for r in table.phases if r.phase in colours or r.phase == "iteration"]
    names = sorted(
        {r.phase for r in rows}, key=lambda n: (n == "iteration", list(colours).index(n) if n in colours else 0)
    )
    clusters: dict[tuple[Any, ...], dict[str, PhaseRow]] = {}
    for r in rows:
        clusters.setdefault((r.device, r.provenance, *r.group.items()), {})[r.phase] = r
    if not clusters:
        ax.set_axis_off()
        return
    width = 0.84 / len(names)
    bars = [
        Bar(
            i + (k - (len(names) - 1) / 2) * width, width, row.j_per_batch, row.u95_j, colours.get(name, _OTHER),
            HATCHES[row.provenance], row.is_lower_bound,
        )
        for k, name in enumerate(names) for i, same in enumerate(clusters.values())
        if (row := same.get(name)) is not None
    ]  # fmt: skip
    scale = scale_of((r.j_per_batch, r.u95_j) for r in rows)
    draw_bars(ax, bars, scale, 10.5, unknown="n.r.")
    several = len({key[:2] for key in clusters}) > 1
    firsts = [next(iter(same.values())) for same in clusters.values()]
    labels = [group_text(r.group, r.path.split("/")[0]) + (f"\n{r.device}" if several else "") for r in firsts]
    ax.set_xticks(range(len(labels)), [shown(t) for t in labels], fontsize=8)
    ax.set_xlim(-0.6, len(labels) - 0.4)
    ax.set_ylabel("energy per phase (J)" + (", logarithmic" if scale.is_log else ""))
    devices = ", ".join(dict.fromkeys(f"{r.device} ({r.provenance})" for r in firsts))
    ax.set_title(f"Joules per phase and batch, {shown(devices, 120)}; error bars: 95 % interval", weight="bold")
    named = {name: colours.get(name, _OTHER) for name in names[:MOST_NAMES]}
    if len(names) > MOST_NAMES:
        named[f"and {len(names) - MOST_NAMES} more"] = "none"
    unknown = "" if all(r.is_resolvable for r in rows) else "n.r.: not resolvable"
    legend_beside(
        ax, bar_handles(named, (r.provenance for r in rows), unknown, has_bounds=any(r.is_lower_bound for r in rows))
    )
