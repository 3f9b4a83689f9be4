"""Pictures of one run: power over time with the joules of its phases, data quality, clocks.

A trace has far more readings than pixels. It is drawn as the envelope of the least and the greatest reading of each
column, so that no peak is lost, and the readings come piece by piece, so that a run may be larger than the memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.devices import Part, load_parts
from powerd_analytics.frame.figures import frame_of
from powerd_analytics.frame.trainings import Length, with_sums
from powerd_analytics.output.colours import PALETTE, REST, phase_colour
from powerd_analytics.output.text import device_text, digits, first_of, seconds, with_u95
from powerd_analytics.plots.style import (
    HATCHES,
    brief,
    engineering_ticks,
    finish,
    heading,
    is_narrow,
    legend_beside,
    panel_inches,
    panels,
    width_asked,
    with_style,
)
from powerd_analytics.run_tables.table import PhaseTable, Row, check_table, group_text, kept_table
from powerd_analytics.runs.clock_report import ClockTrace
from powerd_analytics.runs.phases import LAYER, Phases
from powerd_analytics.runs.run import Progress, Run, RunDevice, no_progress
from powerd_analytics.runs.signals import (
    FAR_NS,
    Points,
    View,
    count_points,
    envelope_of,
    fastest_of,
    holes_of,
    join_points,
    load_bounded,
    missing_of,
    parts_between,
    points_of,
    summed_of,
)
from powerd_analytics.views.breakdown import KINDS, Breakdown, breakdowns
from powerd_client.signals.signal import Signal
from powerd_core.errors import AnalysisError
from powerd_core.text import lost_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Ints = NDArray[np.int64]
Values = NDArray[np.float64]
COLUMNS = 240
"""Of more than twice as many readings, a trace has the least, the mean and the greatest of each of so many columns."""
_MOST_BARS = 24
"""Configurations of a device that a picture has bars for."""
_ITERATIONS = 3
_BOX = {"boxstyle": "round,pad=0.2", "fc": "white", "ec": "none", "alpha": 0.8}


def _in_order(table: PhaseTable) -> PhaseTable:
    """What was measured first."""

    def place(row: Row) -> int:
        return KINDS.index(row.provenance)

    phases, totals, runs = (
        sorted(table.phases, key=place),
        sorted(table.totals, key=place),
        sorted(table.runs, key=place),
    )
    return PhaseTable(tuple(phases), tuple(totals), tuple(runs))


@with_style
def draw_run(
    run: Run, device: str | None = None, *, with_bars: bool = True, progress: Progress = no_progress
) -> Figure:
    """The picture of a run: for each device a trace of the whole run and one of a few iterations, and below them what
    an iteration's joules consist of, every device on axes of its own. Without bars, no energy is computed.

    Raises `AnalysisError` for a run without lines, and for one without readings.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    loaded = load_parts(run, device, lambda share, text: progress(0.5 * share, text))
    check_readings(run, [signal for part in loaded for signal in part.signals])
    parts = sorted(loaded, key=lambda part: KINDS.index(part.provenance))
    bars: list[list[Breakdown]] = []
    if with_bars and len(run.phases):
        table = kept_table(run, device, loaded, progress=lambda share, text: progress(0.5 + 0.3 * share, text))
        check_table(run.path, table)
        frame = frame_of(run, _in_order(table))
        bars = [own[:_MOST_BARS] for own in breakdowns(with_sums(frame, Length()))]
    progress(0.8, "drawing")
    compared = {p.device: [load_bounded(run, name) for name in run.compared(p.device)] for p in parts}
    of_phases, zoom = phase_colours(run), zoom_window(run)
    asked = width_asked()
    each_bar = 0.55 if is_narrow() else 0.36
    heights = [3.0 if asked is None else max(1.6, 0.33 * asked)] * len(parts)
    heights += [0.75 + each_bar * len(own) for own in bars]
    figure = Figure(figsize=(asked or 13, max(3.0, sum(heights) + 0.8)), layout="constrained")
    grid = figure.add_gridspec(len(heights), 2, height_ratios=heights, width_ratios=[3, 2.2])
    for i, part in enumerate(parts):
        others = compared.pop(part.device, ())
        near = figure.add_subplot(grid[i, 1] if asked is None else grid[i, :])
        _draw_trace(near, run, part, others, zoom, zoom[0], of_phases)
        name = f"{brief(device_text(part.device, part.provenance))}: power"
        span, since_s = seconds((zoom[1] - zoom[0]) * 1e-9), (zoom[0] - run.begin_ns) * 1e-9
        named = [Patch(facecolor=c, label=brief(phase)) for phase, c in list(of_phases.items())[:10]]
        if asked is not None:
            columns = max(1, min(len(named), int(asked)))
            rows = -(-len(named) // columns)
            heading(near, f"{name}, {span}", weight="bold", pad=6 + 12 * rows)
            near.legend(handles=named, fontsize=8, frameon=False, ncols=columns, loc="lower left",
                        bbox_to_anchor=(-0.01, 0.98), columnspacing=1.2, handlelength=1.2)  # fmt: skip
            continue
        whole = figure.add_subplot(grid[i, 0])
        _draw_trace(whole, run, part, others, (run.begin_ns, run.end_ns), run.begin_ns, of_phases)
        whole.set_title(name, weight="bold")
        near.set_title(f"the same, {span} from {since_s:.2f} s on", weight="bold")
        if handles := [*_handles(whole, near), *named]:
            legend_beside(near, handles)
    for i, own in enumerate(bars, len(parts)):
        reach_j = max(b.reach_j for figures in bars for b in figures if b.panel == own[0].panel)
        _draw_breakdowns(figure.add_subplot(grid[i, :]), own, reach_j)
    kinds = " and ".join(sorted({line.provenance.value for line in run.lines.values()}))
    when = str(run.attributes.get("created_utc", ""))[:19].replace("T", " ")
    title = f"{run.path.name} · {f'{when} UTC · ' if when else ''}{kinds} power"
    if asked is None:  # a paper has a caption
        figure.suptitle(brief(title, 150), fontsize=11, x=0.01, ha="left")
    return figure


def _handles(*axes: Axes) -> list[Any]:
    """What curves and bands of some axes stand for, each name once."""
    pairs = [pair for ax in axes for pair in zip(*ax.get_legend_handles_labels(), strict=True)]
    return list({label: handle for handle, label in pairs}.values())


def is_silent(run: Run, signal: Signal) -> bool:
    """Whether a line has no two good readings that say anything of the time of the run."""
    return len(signal) < 2 or min(run.end_ns, int(signal.t_ns[-1])) <= max(run.begin_ns, int(signal.t_ns[0]))


def check_readings(run: Run, signals: Sequence[Signal]) -> None:
    """Raises `AnalysisError` for a run of which all lines are silent: axes without anything would pass for 0 W."""
    if all(is_silent(run, signal) for signal in signals):
        raise AnalysisError(f"{run.path}: no line has two good readings while it ran: there is nothing to draw")


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
    grouped = innermost & np.isin(p.label, [i for i, c in enumerate(p.classes) if c.group])
    labels, first = np.unique(p.label[grouped if grouped.any() else innermost], return_index=True)
    return {name: phase_colour(name) for name in (p.classes[i].name for i in labels[np.argsort(first)])}


def zoom_window(run: Run) -> tuple[int, int]:
    """A stretch of a few iterations from the middle of the run, or a tenth of a run without phases."""
    p, length = run.phases, run.end_ns - run.begin_ns
    for wanted in ("iteration", "forward"):
        own = np.isin(p.label, [i for i, c in enumerate(p.classes) if c.name == wanted])
        at = np.flatnonzero(own & ~p.cut)
        first = min(len(at) // 2, len(at) - _ITERATIONS - 1)
        if first < 0:
            continue
        begin, end = int(p.begin_ns[at[first]]), int(p.begin_ns[at[first + _ITERATIONS]])
        if begin < end < begin + length // 2:
            margin = (end - begin) // 12
            return begin - margin, end + margin
    return run.begin_ns + length * 45 // 100, run.begin_ns + length * 55 // 100


# ---- traces ------------------------------------------------------------------------------------------------------


def envelope_of_many(points: Iterable[Points], n: int, columns: int = COLUMNS) -> tuple[Ints, Values, Values, Values]:
    """Times, least and greatest power of each column of a trace of ``n`` points that come piece by piece; all of them
    where they are few."""
    if n <= 2 * columns:
        t, p = join_points(points)
        return t, p, p, p
    return envelope_of(points, np.unique(np.linspace(0, n, columns, endpoint=False).astype(np.int64)))


def _draw_trace(
    axes: Axes, run: Run, part: Part, compared: Sequence[Signal], window: tuple[int, int], origin_ns: int,
    of_phases: Mapping[str, str],
) -> None:  # fmt: skip
    """Power of a part in one window of time, whose axis counts from ``origin_ns`` on: least, mean and greatest of each
    column of pixels, its lines stacked, and what they are compared with."""
    from matplotlib.colors import to_rgba

    begin_ns, end_ns = window
    scale, unit = (1e-6, "ms") if end_ns - begin_ns < 2_000_000_000 else (1e-9, "s")
    is_whole = begin_ns == run.begin_ns

    def x(t_ns: Any) -> Any:
        return (t_ns - origin_ns) * scale

    _shade(axes, run, window, x, of_phases, most=60 if is_whole else 400)
    view, reach = View(begin_ns, end_ns), [0.0, 1.0]

    def of_line(signal: Signal) -> tuple[Ints, Values, Values, Values]:
        return envelope_of_many(points_of(signal, view), count_points(signal, view))

    good = [s for s in part.signals if len(s) > 1]
    if good:
        fastest = fastest_of(good, view)
        # All lines interpolated at the readings of the one that is read most often.
        points = summed_of(good, fastest, view) if len(good) > 1 else points_of(fastest, view)
        t_ns, low, mean, high = envelope_of_many(points, count_points(fastest, view))
        is_stacked = is_whole and len(good) > 1
        if is_stacked:
            means = [np.interp(t_ns, at, own) for at, _, own, _ in map(of_line, good)]
            names = [brief(s.line.name) for s in good]
            colours = [to_rgba(PALETTE[k % len(PALETTE)], 0.55) for k in range(len(good))]
            axes.stackplot(x(t_ns), means, labels=names, colors=colours, ec="white", lw=0.3, rasterized=True)
        # Over stacked lines, what lies between the least and the greatest would hide which is which.
        if low is not high and not is_stacked:
            axes.fill_between(
                x(t_ns), low, high, color="#4477AA", alpha=0.45, lw=0, label="least to greatest", rasterized=True
            )
        name = f"{part.device}, sum of lines" if len(good) > 1 else good[0].line.name
        marker = "." if len(t_ns) < 80 else None
        axes.plot(x(t_ns), mean, color="black", lw=1.1, label=brief(name), marker=marker, ms=3)
        reach += [float(np.min(low, initial=0.0)), float(np.max(high, initial=0.0))]
    holes = np.concatenate([np.zeros((0, 2), np.int64), *(holes_of(s, view) for s in good)])
    if len(longest := _longest_holes(holes)):
        spans = list(zip(x(longest[:, 0]), (longest[:, 1] - longest[:, 0]) * scale, strict=True))
        axes.broken_barh(spans, (0, 0.95), facecolor="#EAD6D6", lw=0, transform=axes.get_xaxis_transform(), zorder=2.5,
                         label="readings missing")  # fmt: skip
    for signal, dashes in zip((s for s in compared if len(s) > 1), cycle((":", "--", "-."))):
        at, _, mean, high = of_line(signal)
        axes.plot(x(at), mean, label=f"{brief(signal.line.name)} (compared)", color="#777777", lw=0.9, ls=dashes)
        reach.append(float(np.max(high, initial=0.0)))
    if silent := [signal.line.name for signal in part.signals if is_silent(run, signal)]:
        axes.annotate(f"no readings of {brief(', '.join(silent), 80)}", (0.5, 0.5), xycoords="axes fraction",
                      ha="center", va="center", fontsize=9, bbox=_BOX)  # fmt: skip
    axes.set_xlim(x(begin_ns), x(end_ns))
    axes.set_ylim(1.05 * min(reach), max(reach) * (1.28 if is_whole else 1.12))
    axes.set_xlabel(f"time ({unit})")
    axes.set_ylabel("power (W)")


def _longest_holes(holes: Ints) -> Ints:
    """Of very many intervals [h, 2], the longest."""
    return holes[np.argsort(holes[:, 0] - holes[:, 1], kind="stable")][:_MOST_HOLES]


def _shade(axes: Axes, run: Run, window: tuple[int, int], x: Any, of_phases: Mapping[str, str], most: int) -> None:
    """Background in the colour of the innermost phases; where they are more than ``most``, names of the outermost."""
    p = run.phases
    in_window = (p.end_ns > window[0]) & (p.begin_ns < window[1])
    innermost = in_window & is_innermost(p)
    if innermost.sum() <= most:
        for name, colour in of_phases.items():
            own = np.isin(p.label, [i for i, c in enumerate(p.classes) if c.name == name]) & innermost
            begin, end = x(p.begin_ns[own]), x(p.end_ns[own])
            spans = list(zip(begin, end - begin, strict=True))
            across = axes.get_xaxis_transform()
            axes.broken_barh(spans, (0, 1), facecolor=colour, alpha=0.25, lw=0, transform=across)
            axes.broken_barh(spans, (0.95, 0.05), facecolor=colour, lw=0, transform=across, zorder=3)
        return
    for n, (begin_ns, end_ns, name) in enumerate(_outer_spans(p, in_window)[:_MOST_SPANS]):
        begin, end = x(begin_ns), x(end_ns)
        axes.axvspan(begin, end, 0.95, 1, color="#000000", alpha=0.15 + 0.12 * (n % 2), lw=0)
        if end_ns - begin_ns >= 0.06 * (window[1] - window[0]):  # else too narrow for its name
            axes.annotate(brief(name), ((begin + end) / 2, 0.93), xycoords=("data", "axes fraction"), ha="center",
                          va="top", fontsize=7.5, color="#333333", bbox=_BOX)  # fmt: skip


_MOST_SPANS = 40


def _outer_spans(p: Phases, in_window: NDArray[np.bool_]) -> list[tuple[int, int, str]]:
    """Begin, end and name of the outermost phases; those of one group that follow each other, such as the iterations
    of a model that is watched, are one."""
    spans: list[tuple[int, int, str]] = []
    for i in np.flatnonzero(in_window & (p.depth == 0)).tolist():
        kind = p.classes[int(p.label[i])]
        name = group_text(dict(kind.group), kind.name)
        begin_ns, end_ns = int(p.begin_ns[i]), int(p.end_ns[i])
        is_next = spans and spans[-1][2] == name and kind.group and begin_ns >= spans[-1][1]
        spans[-1:] = [(spans[-1][0], end_ns, name)] if is_next else [*spans[-1:], (begin_ns, end_ns, name)]
    return spans


# ---- joules ------------------------------------------------------------------------------------------------------


def _draw_breakdowns(ax: Axes, own: Sequence[Breakdown], reach_j: float) -> None:
    """A bar for each configuration of a device: its phases and the rest one behind the other, ± 95 % at the end."""
    parts = [b.place.split(", ") for b in own]
    common = set.intersection(*map(set, parts)) if len(own) > 1 else set()
    places = [", ".join(part for part in place if part not in common) for place in parts]
    # Behind the longest bar there is room for its number.
    inches, widest_j = (
        panel_inches(ax) - _SIDES_IN,
        max(sum(p.energy_j or 0.0 for p in b.pieces) + b.rest_j for b in own),
    )
    reach = max(widest_j / (1 - _NUMBER_IN / inches), 1.02 * reach_j) or 1.0
    for y, b in enumerate(own):
        left, unknown = 0.0, [p.phase for p in b.pieces if p.energy_j is None]
        known = [(phase_colour(p.phase), p.energy_j, p.phase) for p in b.pieces if p.energy_j]
        for colour, joules, name in [*known, (REST, b.rest_j, b.rest_name)]:
            ax.barh(y, joules, left=left, height=0.7, color=colour, hatch=HATCHES[b.provenance], ec="white", lw=0)
            text = f"{brief(name)} {digits(joules, 3)}"
            if joules / reach * inches > _LETTER_IN * len(text):
                ax.text(left + joules / 2, y, text, ha="center", va="center", fontsize=7.5)
            left += joules
        text = "" if left else "n.r."
        if b.energy_j is not None:
            text = with_u95(b.energy_j, b.u95_j, "J", is_lower_bound=b.is_lower_bound)
            ax.errorbar(b.energy_j, y + 0.43, xerr=b.u95_j, color="black", capsize=2.5, lw=1, ls="none")
        text += f"; n.r.: {brief(', '.join(unknown), 60)}" if unknown and not is_narrow() else ""
        ax.annotate(text, (left, y), xytext=(5, 0), textcoords="offset points", va="center", fontsize=8)
        if is_narrow():  # beside the bars names would take their room
            ax.text(0, y - 0.4, brief(places[y], 40), fontsize=8, va="bottom")
    ax.set_yticks(
        [] if is_narrow() else range(len(own)), [] if is_narrow() else [brief(p, 50) for p in places], fontsize=8
    )
    ax.set(xlim=(0, reach), ylim=(len(own) - 0.4, -0.9 if is_narrow() else -0.5))
    ax.set_xlabel("energy a batch (J); line: 95 % interval")
    device = device_text(own[0].device, own[0].provenance)
    of = f" of {', '.join(part for part in parts[0] if part in common)}" if common else ""
    heading(ax, f"{device}: joules of an iteration{of}", weight="bold")


_SIDES_IN, _NUMBER_IN = 1.2, 1.1
"""Beside the axes, and of the number behind a bar."""
_LETTER_IN = 0.066
"""Of a letter of a bar's names."""


# ---- data quality: the clocks, the rate, the age of the newest reading, what is missing ------------------------------

_MOST_BINS, _LEAST_IN_BIN = 400, 20
_MOST_LINES = 16
_MOST_HOLES = 2000
_SKEW_NS = 2_000_000_000
"""Rates of clocks are taken over this time: over less, they show only how the estimate was rounded."""


@with_style
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
                   marker="." if at.sum() < 60 else None, label=brief(c.board or name, 30))  # fmt: skip
    # With few readings in a bin, their number would go up and down by chance.
    bins = int(np.clip(min(run.lines[n].count for n in names) // _LEAST_IN_BIN, 20, _MOST_BINS))
    edges = np.linspace(run.begin_ns, max(run.end_ns, run.begin_ns + 1), bins + 1)
    for i, signal in enumerate(signals):
        _draw_line(run, signal, (rate, age, lost), edges, i)
    for k, gap in enumerate(run.gaps):
        for ax in axes[0]:
            ax.axvspan(_s(run, gap.begin_ns), _s(run, gap.end_ns), color=PALETTE[5], alpha=0.25, lw=0,
                       label="scans lost" if k == 0 and ax is rate else None)  # fmt: skip
    if not lost.collections and not run.gaps:
        lost.text(0.5, 0.5, "no holes between readings", transform=lost.transAxes, ha="center", color="#666666")
    clock.set(ylabel="clock bound (± µs)", ylim=(0, None))
    rate.set(ylabel="good readings (1/s)", ylim=(0, 1.08 * max(rate.get_ylim()[1], 1e-9)))
    age.set(ylabel="age of the newest\nreading, at most (s)", yscale="log")
    engineering_ticks(age.yaxis, "s")
    lost.set_yticks(range(len(names)), [brief(n, 30) for n in names], fontsize=7.5)
    lost.set(ylim=(len(names) - 0.4, -0.6), ylabel="missing", xlabel="time (s)")
    for ax in axes[0]:
        ax.set_xlim(0, _s(run, run.end_ns) or 1e-9)
    for ax in (clock, rate):
        if ax.lines:
            legend_beside(ax)
    more = f"; {len(every) - len(names)} more lines are not drawn" if len(every) > len(names) else ""
    loaded = dict(zip(names, signals, strict=True))
    missing = [f"{d.name} {_missing(run, d, loaded)} without readings" for d in devices if d.feeds]
    lost_scans = [gap.lost for gap in run.gaps if gap.lost >= 0]
    losses = lost_text(len(run.gaps), sum(lost_scans), len(run.gaps) - len(lost_scans))
    note = f"{first_of(missing, ', ')}; {losses}; bound: guaranteed, ± half-width{more}"
    kinds = {run.lines[n].provenance.value for n in names}
    return finish(figure, f"{run.path.name}: clock and data quality", kinds, note)


def _missing(run: Run, device: RunDevice, loaded: Mapping[str, Signal]) -> str:
    """Seconds without readings of a device, as its table has them: of its feeds, the one that misses most."""
    signals = (loaded.get(name) or load_bounded(run, name) for name in device.feeds)
    missing_s = max(missing_of(signal, run.begin_ns, run.end_ns)[0] for signal in signals)
    return seconds(missing_s) if missing_s else "0 s"


def _s(run: Run, t_ns: Any) -> Any:
    """Seconds since the run began."""
    return (t_ns - run.begin_ns) * 1e-9


def _draw_line(run: Run, signal: Signal, axes: tuple[Axes, Axes, Axes], edges: Values, i: int) -> None:
    """Readings a second and the longest wait between two, by bin; what is missing as bars in row ``i``."""
    rate, age, lost = axes
    bins = len(edges) - 1
    count, longest_s = np.zeros(bins), np.full(bins, np.nan)
    last = -FAR_NS
    for piece in parts_between(signal, -FAR_NS, FAR_NS):
        t = piece.t_ns
        new = t > last  # pieces overlap
        if not new.any():
            continue
        last = int(t[-1])
        count += np.histogram(t[new].astype(np.float64), edges)[0]
        at = np.clip(np.searchsorted(edges, t[1:].astype(np.float64), "right") - 1, 0, bins - 1)
        np.fmax.at(longest_s, at[new[1:]], (np.diff(t) * 1e-9)[new[1:]])
    since_s, width_s = (edges[:-1] - run.begin_ns) * 1e-9, (edges[1] - edges[0]) * 1e-9
    colour, dashes = PALETTE[i % len(PALETTE)], ("-", "--")[i // len(PALETTE) % 2]
    label = brief(signal.line.name, 30)
    rate.step(since_s, count / width_s, where="post", color=colour, ls=dashes, lw=1, label=label)
    age.step(since_s, longest_s, where="post", color=colour, ls=dashes, lw=1)
    longest = _longest_holes(holes_of(signal))
    spans = list(zip(_s(run, longest[:, 0]), (longest[:, 1] - longest[:, 0]) * 1e-9, strict=True))
    if spans:
        lost.broken_barh(spans, (i - 0.35, 0.7), facecolor=colour)


# ---- clocks ------------------------------------------------------------------------------------------------------


@with_style
def draw_clocks(run: Run, traces: Sequence[ClockTrace]) -> Figure:
    """The picture of `joules info --check`: offset, skew, delay and bound over the time of the run; steps are gaps."""
    figure, ((offset, skew, delay, bound),) = panels(1, (11.0, 2.1), rows=4)

    def curve(ax: Axes, t_ns: Ints, values: NDArray[Any], colour: str, label: str | None = None) -> None:
        ax.plot(_s(run, t_ns), values, color=colour, lw=1, marker="." if len(t_ns) < 60 else "", ms=3, label=label)

    for i, trace in enumerate(traces):
        colour = PALETTE[i % len(PALETTE)]
        from_line_ns, label = trace.offset_ns - trace.trend_ns(), brief(f"{trace.board} ({trace.epoch})")
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
    title = f"{brief(run.path.name, 100)}: clocks of the boards against the host's"
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return figure
