"""`joules plot`: power over time with the phases shaded, and joules per phase, in one picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from powerd_analytics.energy.devices import Part, Progress, load_parts, no_progress
from powerd_analytics.pictures.bars import draw_bars
from powerd_analytics.pictures.style import PALETTE, RC, shown, without_glyphs
from powerd_analytics.pictures.traces import check_readings, draw_legend, draw_trace, is_innermost
from powerd_analytics.records.checks import check_run
from powerd_analytics.records.flat import records_of
from powerd_analytics.runs.run import Run
from powerd_analytics.signals.signal import Signal
from powerd_analytics.signals.slices import IN_MEMORY, load_bounded
from powerd_analytics.tables.rows import PhaseTable
from powerd_analytics.tables.table import table_of
from powerd_core.errors import AnalysisError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_run(
    run: Run,
    out: Path,
    device: str | None = None,
    *,
    with_bars: bool = True,
    dpi: int = 130,
    progress: Progress = no_progress,
) -> None:
    """Write a picture of a run to ``out``; the ending says the format (png, pdf, svg).

    Without bars, it is power over time alone, and no energy is computed.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    parts = load_parts(run, device, lambda share, text: progress(0.5 * share, text), in_memory=IN_MEMORY)
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
    with mpl.rc_context(RC | {"axes.titlesize": 10, "axes.titleweight": "bold"}), without_glyphs():
        figure = draw(run, table, parts, compared)
        figure.savefig(out, dpi=dpi)


def draw(run: Run, table: PhaseTable, parts: Sequence[Part], compared: Mapping[str, Sequence[Signal]]) -> Figure:
    """The figure: for each part a trace of the whole run and one of a few iterations; below them the bars."""
    from matplotlib.figure import Figure

    colours = phase_colours(run)
    rows = len(parts)
    with_bars = any(r.is_resolvable or r.note for r in table.phases)
    heights = [3.0] * rows + ([3.4] if with_bars else [])
    figure = Figure(figsize=(13, max(3.6, sum(heights) + 0.8)), layout="constrained")
    grid = figure.add_gridspec(len(heights), 2, height_ratios=heights, width_ratios=[3, 2.2])
    zoom = zoom_window(run)
    for i, part in enumerate(parts):
        whole, near = figure.add_subplot(grid[i, 0]), figure.add_subplot(grid[i, 1])
        others = compared.get(part.device, ())
        draw_trace(whole, run, part, others, (run.begin_ns, run.end_ns), colours, is_zoom=False)
        draw_trace(near, run, part, others, zoom, colours, is_zoom=True)
        whole.set_title(f"{shown(part.device)}: power of each line ({part.provenance})")
        near.set_title(f"the same, {_span_text(zoom)} from {_at(run, zoom[0])}")
        draw_legend(near, colours)
    if with_bars:
        draw_bars(figure.add_subplot(grid[rows, :]), table, colours, (10.5, 2.6))
    figure.suptitle(shown(_title(run), 150), fontsize=11, x=0.01, ha="left")
    return figure


def phase_colours(run: Run) -> dict[str, str]:
    """A colour for each name of a phase without phases inside, in the order of their first occurrence.

    Where phases belong to groups (a batch size, a model), those that belong to none (a warm-up) get no colour and no
    bar: one of a kind, they would dwarf what is compared.
    """
    p = run.phases
    innermost = is_innermost(p)
    grouped = np.isin(p.label, [i for i, c in enumerate(p.classes) if c.group])
    drawn = innermost & grouped if np.any(innermost & grouped) else innermost
    labels, first = np.unique(p.label[drawn], return_index=True)
    names = dict.fromkeys(p.classes[i].name for i in labels[np.argsort(first)])
    return {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(names)}


def zoom_window(run: Run, iterations: int = 3) -> tuple[int, int]:
    """A stretch of a few iterations from the middle of the run, or a tenth of a run without phases."""
    p = run.phases
    names = np.array([c.name for c in p.classes], dtype=object)
    for wanted in ("iteration", "forward"):
        at = np.flatnonzero(np.isin(p.label, np.flatnonzero(names == wanted)) & ~p.cut)
        if len(at) > iterations + 1:
            i = at[len(at) // 2]
            near = at[len(at) // 2 + iterations - 1 :]
            same = near[p.label[near] == p.label[i]]
            last = same[0] if len(same) else i
            end = (
                p.end_ns[last] if wanted == "iteration" else p.begin_ns[at[min(len(at) - 1, len(at) // 2 + iterations)]]
            )
            if end <= p.begin_ns[i] or end - p.begin_ns[i] > 0.5 * (run.end_ns - run.begin_ns):
                end = p.end_ns[i]
            if end <= p.begin_ns[i]:
                continue  # phases without any length
            margin = int(end - p.begin_ns[i]) // 12
            return int(p.begin_ns[i]) - margin, int(end) + margin
    length = run.end_ns - run.begin_ns
    return run.begin_ns + length * 45 // 100, run.begin_ns + length * 55 // 100


def _span_text(window: tuple[int, int]) -> str:
    length = window[1] - window[0]
    return f"{length * 1e-9:.3g} s" if length >= 10**9 else f"{length * 1e-6:.3g} ms"


def _at(run: Run, t_ns: int) -> str:
    return f"{(t_ns - run.begin_ns) * 1e-9:.2f} s on"


def _title(run: Run) -> str:
    kinds = sorted({line.provenance.value for line in run.lines.values()})
    when = str(run.attributes.get("created_utc", ""))[:19].replace("T", " ")
    return f"{run.path.name} · {when} UTC · {' and '.join(kinds)} power" if when else run.path.name
