"""The report as one HTML file: everything in it comes from the run files, and everything it needs is in it."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from importlib.resources import files
from math import floor, log10
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.devices import Part, load_parts
from powerd_analytics.frame.costs import Factors
from powerd_analytics.frame.figures import Frame, check_runs, concat_frames, frame_of
from powerd_analytics.frame.index import run_files
from powerd_analytics.frame.machines import merge_machines
from powerd_analytics.frame.trainings import Length, part_of, with_sums
from powerd_analytics.output.colours import REST, phase_colour
from powerd_analytics.output.export import Table
from powerd_analytics.output.text import MADE_BY, digits, seconds, with_u95
from powerd_analytics.report import sheets
from powerd_analytics.report.highlights import MOST_SENTENCES, findings, tiles
from powerd_analytics.report.sheets import shown_sheet
from powerd_analytics.run_tables.table import PhaseTable, check_table, group_line, kept_table
from powerd_analytics.run_tables.uncertainty_table import BudgetRow, budget_tables, kept_budget
from powerd_analytics.runs.phases import merge_intervals
from powerd_analytics.runs.run import Progress, Run, no_progress, read_run, recalibrate
from powerd_analytics.runs.signals import (
    Points,
    count_points,
    envelope_of,
    fastest_of,
    holes_of,
    load_bounded,
    points_of,
    summed_of,
)
from powerd_analytics.views.breakdown import KINDS, Breakdown, breakdowns
from powerd_analytics.views.layouts import field_tables, rank_tables
from powerd_client.host.ownership import whole_text
from powerd_client.signals.signal import LATE_FACTOR, Signal
from powerd_core.errors import ConfigError
from powerd_core.text import printable

LEAST_POINTS = 10_000
MOST_TRACES = 24
"""Runs whose power is drawn."""
MOST_TILES = 4
"""Devices whose joules the page opens with."""


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """What a report shows. ``max_points`` is for all traces together."""

    device: str | None = None
    calibration: Path | None = None
    max_points: int = 5_000_000
    title: str | None = None
    length: Length = field(default_factory=Length)
    factors: Factors = field(default_factory=Factors)

    def __post_init__(self) -> None:
        if self.max_points < LEAST_POINTS:
            raise ConfigError(f"--max-points {self.max_points}: a report has at least {LEAST_POINTS}")


@dataclass(frozen=True, slots=True)
class _RunPart:
    """What the page needs of one run, its readings left behind."""

    run: Run
    frame: Frame
    budget: list[BudgetRow]
    lines: list[tuple[Run, Signal, str]]
    traces: list[Document]
    phases: Document | None
    checksum: str


def write_report(
    paths: Sequence[Path], out: Path, options: ReportOptions | None = None, *, progress: Progress = no_progress
) -> None:
    """Write the report of run files (and directories of them) to ``out``.

    Raises `RunFileError` and `AnalysisError` for runs that no table can be made of, naming the file.
    """
    options = options or ReportOptions()
    run_paths = run_files(paths)
    parts, columns = [], Columns()
    for i, path in enumerate(run_paths):
        most = options.max_points // min(len(run_paths), MOST_TRACES) if i < MOST_TRACES else 0
        parts.append(_read(path, options, most, columns, part_of(progress, i, len(run_paths) + 1, path.name)))
    frame = concat_frames([p.frame for p in parts])
    check_runs(frame)
    progress(len(run_paths) / (len(run_paths) + 1), "writing the page")
    whole_text(out, _render(parts, frame, options, columns))


def _read(path: Path, options: ReportOptions, most_points: int, columns: Columns, progress: Progress) -> _RunPart:
    run = read_run(path, progress=lambda share, text: progress(0.1 * share, text))
    if options.calibration is not None:
        run, _ = recalibrate(run, options.calibration)
    loaded = load_parts(run, options.device, lambda s, text: progress(0.1 + 0.2 * s, text))
    table = kept_table(run, options.device, loaded, progress=lambda s, text: progress(0.3 + 0.2 * s, text))
    check_table(path, table)
    budget = kept_budget(run, options.device, None, loaded, progress=lambda s, text: progress(0.5 + 0.2 * s, text))
    # Lines to compare with stand at a device's first part only.
    compared = {p.device: [load_bounded(run, name) for name in run.compared(p.device)] for p in loaded}
    lines = [(run, s, "feeds it") for p in loaded for s in p.signals]
    lines += [(run, s, "compared") for signals in compared.values() for s in signals]
    traces = [
        trace_of(run, part, compared.pop(part.device, []), most_points // len(loaded), columns, _percent(part, table))
        for part in sorted(loaded if most_points else (), key=lambda part: KINDS.index(part.provenance))
    ]
    phases = phases_of(run, columns) if traces and len(run.phases) else None
    progress(0.9, f"checksum of {path.name}")
    return _RunPart(run, frame_of(run, table), budget, lines, traces, phases, sheets.sha256(path))


def _percent(part: Part, table: PhaseTable) -> float | None:
    """U95 of a part's joules over the run, two digits."""
    whole = next((r for r in table.runs if (r.device, r.provenance) == (part.device, part.provenance)), None)
    if whole is None or not whole.energy_j or whole.u95_j is None:
        return None
    return float(f"{100 * whole.u95_j / abs(whole.energy_j):.2g}")


def _render(parts: Sequence[_RunPart], frame: Frame, options: ReportOptions, columns: Columns) -> str:
    """The page's text; ``frame`` has the rows of all runs."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    template, style, trace_script, page_script = map(own_text, ("template.html", "report.css", "trace.js", "report.js"))
    script = f"{trace_script}\n{page_script}"
    runs, device, factors = [p.run for p in parts], options.device, options.factors
    names = sheets.run_names([r.path for r in runs])
    frame = sheets.with_run_names(with_sums(merge_machines(frame), options.length), names)
    boxes, documents = _boxes(parts, names)
    own_tiles, sentences = tiles(frame, factors), list(map(printable, findings(frame)))
    kinds = sorted(frame["provenance"].dropna().unique())
    others = " and ".join(k for k in kinds if k != "measured")
    quality = [
        sheets.lines_sheet([line for p in parts for line in p.lines], names),
        *(sheet(runs, names) for sheet in (sheets.clocks_sheet, sheets.gaps_sheet, sheets.messages_sheet)),
    ]
    budgets = [
        replace(table, title=f"{names[p.run.path]}: {table.title}") for p in parts for table in budget_tables(p.budget)
    ]
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=False)
    return environment.from_string(own_text("sheet.html") + template).render(
        made_by=MADE_BY,
        title=printable(options.title or f"Energy of {runs[0].path.name if len(runs) == 1 else f'{len(runs)} runs'}"),
        subtitle=printable(sheets.subtitle(runs)),
        provenances=kinds,
        tiles=own_tiles[:MOST_TILES],
        tiles_left_out=len(own_tiles[MOST_TILES:]),
        findings=sentences[:MOST_SENTENCES],
        more_findings=sentences[MOST_SENTENCES:],
        table_note=f"Power here is {' and '.join(kinds)}: {others} joules are no measurement." if others else "",
        figures=[{**f, "svg": Markup(f["svg"])} for f in phase_figures(breakdowns(frame))],
        tables=list(map(shown_sheet, _tables(frame, factors))),
        traces_left_out=max(len(parts) - MOST_TRACES, 0),
        runs=boxes,
        budget=[shown_sheet(table, f"budget-{i}") for i, table in enumerate(budgets)],
        quality=[shown_sheet(s) for s in quality if len(s)],
        quality_notes=sheets.quality_notes(runs, frame, names),
        environment=[shown_sheet(sheets.environment_sheet(runs, names))],
        citation=printable(sheets.citation(runs)),
        files=[shown_sheet(sheets.files_sheet(runs, [p.checksum for p in parts], names))],
        commands=list(map(printable, sheets.commands(names, device, options.calibration, options.length, factors))),
        blocks=columns.texts,
        traces_json=Markup(_json(documents)),
        style=Markup(style),
        style_hash=script_hash(style),
        script=Markup(script),
        script_hash=script_hash(script),
    )


def own_text(name: str) -> str:
    """A file of this package: a template, the style, a script."""
    return files("powerd_analytics.report").joinpath(name).read_text(encoding="utf-8")


def _boxes(parts: Sequence[_RunPart], names: sheets.Names) -> tuple[list[Document], list[Document]]:
    """What the template shows of each run's traces, and what the script draws them from."""
    boxes, documents = [], []
    for i, p in enumerate(parts):
        phases, legend = None, {}
        if p.phases is not None:
            of_classes = [phase_colour(c.name) for c in p.run.phases.classes]
            phases = {**p.phases, "colours": of_classes}
            legend = dict(list(zip(p.phases["names"], of_classes, strict=True))[:24])
        traces = [{"box": f"trace-{i}-{k}", **trace} for k, trace in enumerate(p.traces)]
        shown = [{"id": t["box"], **box_of(names[p.run.path], t, p.phases)} for t in traces]
        boxes.append({"traces": shown, "legend": legend})
        documents.append({"traces": traces, "phases": phases})
    return boxes, documents


def _tables(frame: Frame, factors: Factors) -> list[Table]:
    tables = {table.name: table for table in field_tables(frame, factors=factors) if table.name != "records"}
    phases = sheets.phases_sheet(tables.pop("time"), tables.pop("energy"))
    return [phases, *tables.values(), *rank_tables(frame), sheets.recordings_sheet(frame)]


def _json(document: Any) -> str:
    """JSON that no HTML parser takes for the end of its element."""
    text = json.dumps(document, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def script_hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


# ---- bars of joules: SVG whose lengths are percent, so that it is as wide as the page without a scroll bar --------

MOST_BARS = 40
_ROOM_FROM = 60
"""Per cent of the width from which on a bar leaves no room for its number beside it, on a telephone."""
ROW, BAR, BELOW = 50, 22, 22
"""Heights [px] of a configuration, of its bar, and of the axis."""


def phase_figures(figures: Sequence[Sequence[Breakdown]]) -> list[Document]:
    """For each device and model the phases of an iteration, stacked: markup that is safe to stand in the page as it is
    (none where there is too much to draw), and what stands around it."""
    most: dict[tuple[str, str, str], float] = {}
    for b in (b for own in figures for b in own):
        most[b.panel] = max(most.get(b.panel, 0.0), b.reach_j)
    several = len({own[0].model for own in figures}) > 1
    shown = []
    for own in figures:
        first = own[0]
        of_model = f" of {first.model}" if several and first.model else ""
        svg = _svg(own, most[first.panel] or 1.0) if len(own) <= MOST_BARS else ""
        names = {p.phase: p.phase for b in own for p in b.pieces}
        unknown = names.keys() - {p.phase for b in own for p in b.pieces if p.energy_j is not None}
        names |= {name: f"{name} (not resolvable)" for name in unknown}
        legend = [(printable(text), phase_colour(name)) for name, text in names.items()]
        caption = (
            "A bar: one iteration, its phases and the rest. The line below its end: the 95 % interval of the whole."
        )
        shown.append({
            "heading": printable(f"Joules a batch{of_model} on {first.device}"),
            "provenance": first.provenance,
            "svg": svg,
            "caption": caption if svg else f"{len(own)} configurations are too many bars for this page (joules plot).",
            "legend": [*legend, ("rest", REST)] if svg else [],
        })  # fmt: skip
    return shown


def _svg(own: Sequence[Breakdown], highest: float) -> str:
    size = 10.0 ** floor(log10(highest / 4))
    step = next(m * size for m in (1, 2, 2.5, 5, 10) if m * size >= highest / 4)
    scale = 98 / highest
    foot = ROW * len(own)

    def text(x: str, y: float, words: str, anchor: str = "start") -> str:
        return f'<text x="{x}" y="{y:.0f}" text-anchor="{anchor}">{escape(printable(words))}</text>'

    words = "; ".join(f"{b.place}: {', '.join(text for _, _, text, _ in _pieces(b))}" for b in own)
    out = [f'<svg role="img" aria-label="{escape(printable(f"Bars of joules a batch. {words}"))}" '
           f'width="100%" height="{foot + BELOW}">{_HATCH}']  # fmt: skip
    for i in range(int(highest / step) + 1):
        at = f"{i * step * scale:.3f}%"
        out.append(f'<line class="grid" x1="{at}" x2="{at}" y1="0" y2="{foot + 4}"/>')
        out.append(text(at, foot + 16, f"{i * step:.10g}{' J' if i == 0 else ''}", "middle" if i else "start"))
    for i, b in enumerate(own):
        top, x, whole = ROW * i + 16, 0.0, b.known_j if b.energy_j is None else b.energy_j
        place = b.place if len(b.place) <= 38 else f"{b.place[:18]}…{b.place[-19:]}"
        out.append(text("0", top - 4, place))
        has_joules = b.energy_j is not None or b.known_j > 0
        number = with_u95(whole, b.u95_j, "J", is_lower_bound=b.is_lower_bound) if has_joules else "not resolvable"
        for name, colour, about, joules in _pieces(b):
            if joules <= 0:
                continue
            box = f'x="{x:.3f}%" y="{top}" width="{joules * scale:.3f}%" height="{BAR}"'
            hatch = "" if b.provenance == "measured" else f'<rect class="unmeasured" {box}/>'
            out.append(f'<g data-text="{escape(printable(f"{b.place}: {about}"))}"><title>{escape(printable(about))}'
                       f'</title><rect fill="{colour}" {box}/>{hatch}<svg {box}>'
                       f'<text class="name" x="4" y="15">{escape(printable(name))}</text></svg></g>')  # fmt: skip
            x += joules * scale
        # Beside its bar, where there is room for it.
        beside = f'<g transform="translate(8)">{text(f"{x:.3f}%", top + 15, number)}</g>'
        out.append(beside if x < _ROOM_FROM else text("100%", top - 4, number, "end"))
        if b.energy_j is not None and b.u95_j is not None:
            ends = [f"{max(b.energy_j + sign * b.u95_j, 0.0) * scale:.3f}%" for sign in (-1, 1)]
            for left, right, half in ((ends[0], ends[1], 0), (ends[0], ends[0], 3), (ends[1], ends[1], 3)):
                y1, y2 = top + BAR + 4 - half, top + BAR + 4 + half
                out.append(f'<line class="whisker" x1="{left}" x2="{right}" y1="{y1}" y2="{y2}"/>')
    return "".join([*out, "</svg>"])


def _pieces(b: Breakdown) -> list[tuple[str, str, str, float]]:
    """Name, colour, words and joules of each piece of a bar, the rest last; what is not resolvable has 0 J."""
    pieces = []
    for p in b.pieces:
        text = f"{p.phase} not resolvable"
        if p.energy_j is not None:
            share = f", {100 * p.energy_j / b.energy_j:.0f} %" if b.energy_j else ""
            text = f"{p.phase} {with_u95(p.energy_j, p.u95_j, 'J', is_lower_bound=p.is_lower_bound)}{share}"
        pieces.append((p.phase, phase_colour(p.phase), text, p.energy_j or 0.0))
    if b.energy_j and b.rest_j > 0:
        text = f"{b.rest_name} {digits(b.rest_j, 3)} J, {100 * b.rest_j / b.energy_j:.0f} %"
        pieces.append((b.rest_name, REST, text, b.rest_j))
    return pieces


_HATCH = (
    '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<line class="hatching" x1="0" x2="0" y1="0" y2="6"/></pattern></defs>'
)


# ---- traces: readings, or least and greatest where there are too many; phases; gaps ----------------------------------

STEPS = (1 << 16) - 1
"""Watts are rounded to this many steps between the least and the greatest of their line."""
MOST_PHASES = 400_000
"""Phases of one run in a page; of more, the innermost are left out."""
MOST_GAPS = 2000
FARTHEST_NS = 1 << 55
"""A year: what is farther from the run's begin than this is no part of it, and would not fit into a column."""

Ints = NDArray[np.int64]
Values = NDArray[np.float64]
Document = dict[str, Any]
"""What the script gets as JSON."""


@dataclass(slots=True)
class Columns:
    """All columns of a page, each a text under an id, which `trace.js` takes apart.

    Whole numbers travel as their first differences (the first from 0), each folded to be positive (0, -1, 1, -2 to 0,
    1, 2, 3); then all lowest bytes, all second bytes and so on; zlib, base64. Times are whole microseconds since the
    run began, watts whole steps between their line's least and greatest.
    """

    texts: dict[str, str] = field(default_factory=dict)

    def add(self, values: NDArray[np.integer[Any]]) -> Document:
        """What the script needs to find and unpack a column of whole numbers, whose differences have up to 47 bits."""
        d = np.diff(values.astype(np.int64), prepend=np.int64(0))
        folded = np.where(d < 0, -2 * d - 1, 2 * d).astype("<u8")
        planes = max(1, -(-int(folded.max(initial=0)).bit_length() // 8))
        raw = folded.view(np.uint8).reshape(-1, 8)[:, :planes]
        name = f"data-{len(self.texts)}"
        self.texts[name] = base64.b64encode(zlib.compress(raw.T.tobytes(), 6)).decode("ascii")
        return {"id": name, "n": len(values), "planes": planes}

    def add_values(self, *columns: Values) -> Document:
        """Finite numbers ``low + step * q`` on one scale, each rounded by at most half a step; the columns hold q."""
        low = min((float(c.min()) for c in columns if len(c)), default=0.0)
        high = max((float(c.max()) for c in columns if len(c)), default=0.0)
        step = (high - low) / STEPS or 1.0
        packed = [self.add(np.rint((c - low) / step).astype(np.int64)) for c in columns]
        return {"low": low, "step": step, "columns": packed}


def trace_of(
    run: Run,
    part: Part,
    compared: Sequence[Signal],
    most_points: int,
    columns: Columns,
    u95_percent: float | None = None,
) -> Document:
    """The trace of one device with at most about ``most_points`` points in all curves together.

    Each line says how many readings it has and how many a point stands for (``block``, of which the least, the greatest
    and the mean power are kept). Points farther apart than ``gap_us`` are not joined; ``gaps`` are stretches without
    readings [us]. ``u95_percent`` is what the joules of the whole run are unsure of.
    """
    feeds = [s for s in part.signals if len(s) > 1]
    others = [s for s in compared if len(s) > 1]
    has_sum = len(feeds) > 1
    each = max(most_points // max(len(feeds) + len(others) + has_sum, 1), 1000)
    lines = []

    def add(name: str, role: str, points: Iterator[Points], n: int, spacing_ns: float) -> None:
        block = 1 if n <= each else int(np.ceil(2 * n / each))
        t_ns, low, mean, high = envelope_of(points, np.arange(0, n, block))
        lines.append({
            "name": printable(name), "role": role, "readings": n, "block": block,
            # What a block spans is known only to the next one's begin.
            "gap_us": LATE_FACTOR * spacing_ns / 1000 * (1 if block == 1 else block + 1),
            "time": columns.add(_microseconds(run, t_ns)),
            "watts": columns.add_values(*((low,) if block == 1 else (low, high, mean))),
        })  # fmt: skip

    if has_sum:
        fastest, spacing_ns = fastest_of(feeds), max(s.spacing_ns for s in feeds)
        add(f"{part.device}, sum of lines", "sum", summed_of(feeds, fastest), count_points(fastest), spacing_ns)
    for role, signals in (("feed", feeds), ("compared", others)):
        for s in signals:
            add(s.line.name, role, _finite(s), count_points(s), s.spacing_ns)
    length_us = (run.end_ns - run.begin_ns) // 1000
    about = {"device": printable(part.device), "provenance": part.provenance, "u95_percent": u95_percent}
    return {**about, "length_us": length_us, "gaps": _gaps(run, feeds), "lines": lines}


def phases_of(run: Run, columns: Columns, most: int = MOST_PHASES) -> Document:
    """The phases of a run, outermost first where not all fit: names and groups of their classes, and the columns begin,
    duration (both microseconds), class, and row in the picture, where processes lie one below the other, each with its
    depths."""
    p = run.phases
    deepest = max(int(np.searchsorted(np.cumsum(np.bincount(p.depth)), most, "right")), 1)
    kept = np.flatnonzero(p.depth < deepest)[:most]
    overlaps = np.isin(p.label, [i for i, c in enumerate(p.classes) if c.overlaps])
    lanes = p.process.astype(np.int64) * 1000 + np.where(overlaps, 999, p.depth)
    used, rows = np.unique(lanes[kept], return_inverse=True)
    begin, end = _microseconds(run, p.begin_ns[kept]), _microseconds(run, p.end_ns[kept])
    order = np.lexsort((begin, rows))
    return {
        "names": [printable(c.name) for c in p.classes],
        "details": [printable(group_line(dict(c.group))) for c in p.classes],
        "columns": [columns.add(c[order]) for c in (begin, end - begin, p.label[kept], rows)],
        "rows": len(used),
        "left_out": len(p) - len(kept),
    }


def _microseconds(run: Run, t_ns: Ints) -> Ints:
    """Since the run began; times that are wildly wrong are brought to where a page can hold them."""
    since_ns: Ints = np.clip(t_ns, run.begin_ns - FARTHEST_NS, run.begin_ns + FARTHEST_NS) - run.begin_ns
    return since_ns // 1000


def _finite(signal: Signal) -> Iterator[Points]:
    for t, watts in points_of(signal):
        good = np.isfinite(watts)
        if good.any():
            yield t[good], watts[good]


def _gaps(run: Run, signals: Sequence[Signal]) -> list[list[int]]:
    """Stretches that miss readings of any line, those that overlap as one; of very many, the longest."""
    holes = np.concatenate([np.zeros((0, 2), np.int64), *(holes_of(s) for s in signals)])
    gaps = np.stack(merge_intervals(holes[:, 0], holes[:, 1]), 1)
    longest = np.argsort(gaps[:, 0] - gaps[:, 1], kind="stable")[:MOST_GAPS]
    us: list[list[int]] = ((gaps[np.sort(longest)] - run.begin_ns) // 1000).tolist()
    return us


def box_of(run_name: str, trace: Document, phases: Document | None) -> Document:
    """What the template shows around a trace."""
    lines, name = trace["lines"], printable(f"{run_name}: {trace['device']}")
    readings = sum(x["readings"] for x in lines if x["role"] != "sum")
    notes = []
    for x in lines:
        number = f"{x['readings']:,} readings".replace(",", " ")
        points = "interpolated at the readings of the fastest line" if x["role"] == "sum" else number
        thinned = f", thinned: least and greatest of every {x['block']}" if x["block"] > 1 else ""
        notes.append(f"{x['name']}: {points}{thinned}, power to within {digits(x['watts']['step'] / 2, 2)} W")
    note = "; ".join(notes) or "This device has fewer than two good readings: there is nothing to draw"
    if phases is not None and phases["left_out"]:
        note += f". {phases['left_out']} of the innermost phases are left out here, not in the tables"
    return {
        "heading": name,
        "provenance": trace["provenance"],
        "lines": [f"{x['name']} (compared)" if x["role"] == "compared" else x["name"] for x in lines],
        "has_sum": any(x["role"] == "sum" for x in lines),
        "with_phases": phases is not None,
        "text": f"Power over {seconds(trace['length_us'] * 1e-6)} of {name}, {len(lines)} curves of {readings} "
        "readings; arrow keys move, plus and minus zoom, the values at the cursor are read out below.",
        "note": f"{note}.",
    }
