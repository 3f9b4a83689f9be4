"""The report as one HTML file: everything in it comes from the run files, and everything it needs is in it."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from math import ceil, floor, log10
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from powerd_analytics.campaign import (
    Length,
    averaged,
    innermost,
    of_configurations,
    part_of,
    parts_of_machines,
    without_gflops,
    without_summands,
)
from powerd_analytics.campaign_tables import are_over_machines, field_tables, job_tables, prepared
from powerd_analytics.costs import Factors
from powerd_analytics.energy.devices import Part, load_parts
from powerd_analytics.energy.rest import merged
from powerd_analytics.export import Cell
from powerd_analytics.index import run_files
from powerd_analytics.jobs import merge_jobs
from powerd_analytics.records import Record, check_campaign, check_run, number_of, records_of
from powerd_analytics.report import sheets
from powerd_analytics.report.findings import configuration, figure_text, findings, kind_order
from powerd_analytics.report.sheets import shown_sheet
from powerd_analytics.runs.run import Progress, Run, no_progress, read_run, recalibrate
from powerd_analytics.signals.signal import LATE_FACTOR, Signal, load_bounded
from powerd_analytics.signals.streams import (
    Points,
    count_points,
    envelope_of,
    fastest_of,
    holes_of,
    points_of,
    summed_of,
)
from powerd_analytics.table import group_line, table_of
from powerd_analytics.text import digits, seconds
from powerd_analytics.uncertainty_table import BudgetRow, budget_rows
from powerd_core.errors import ConfigError
from powerd_core.text import printable

LEAST_POINTS = 10_000
AROUND = 6
"""The first of the two colours of phases that have others inside; those of innermost ones are before it."""


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """What a report shows. ``max_points`` is for all traces together, ``max_traces`` how many runs have one."""

    device: str | None = None
    calibration: Path | None = None
    max_points: int = 5_000_000
    max_traces: int = 24
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
    records: list[Record]
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
        most = options.max_points // min(len(run_paths), options.max_traces) if i < options.max_traces else 0
        parts.append(_read(path, options, most, columns, part_of(progress, i, len(run_paths) + 1, path.name)))
    check_campaign([r for p in parts for r in p.records])
    progress(len(run_paths) / (len(run_paths) + 1), "writing the page")
    out.write_text(_render(parts, options, columns), encoding="utf-8")


def _read(path: Path, options: ReportOptions, most_points: int, columns: Columns, progress: Progress) -> _RunPart:
    run = read_run(path, progress=lambda share, text: progress(0.1 * share, text))
    if options.calibration is not None:
        run, _ = recalibrate(run, options.calibration)
    loaded = load_parts(run, options.device, lambda s, text: progress(0.1 + 0.2 * s, text))
    table = table_of(run, loaded, progress=lambda s, text: progress(0.3 + 0.2 * s, text))
    records = records_of(run, table)
    check_run(path, records)
    budget = budget_rows(run, options.device, progress=lambda s, text: progress(0.5 + 0.2 * s, text))
    # Lines to compare with stand at a device's first part only.
    compared = {p.device: [load_bounded(run, name) for name in run.compared(p.device)] for p in loaded}
    lines = [(run, s, "feeds it") for p in loaded for s in p.signals]
    lines += [(run, s, "compared") for signals in compared.values() for s in signals]
    traces = [
        trace_of(run, part, compared.pop(part.device, []), most_points // len(loaded), columns)
        for part in (loaded if most_points else ())
    ]
    phases = phases_of(run, columns) if traces and len(run.phases) else None
    progress(0.9, f"checksum of {path.name}")
    return _RunPart(run, records, budget, lines, traces, phases, sheets.sha256(path))


def _render(parts: Sequence[_RunPart], options: ReportOptions, columns: Columns) -> str:
    """The page's text."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    template, style, trace_script, page_script = (
        files("powerd_analytics.report").joinpath(name).read_text(encoding="utf-8")
        for name in ("template.html", "report.css", "trace.js", "report.js")
    )
    script = f"{trace_script}\n{page_script}"
    runs, device, factors = [p.run for p in parts], options.device, options.factors
    names = sheets.run_names([r.path for r in runs])
    records = sheets.named(prepared(merge_jobs([r for p in parts for r in p.records]), options.length), names)
    colours = _colours(records)
    boxes, documents = _boxes(parts, names, colours)
    kinds = sorted({str(r["provenance"]) for r in records})
    others = " and ".join(k for k in kinds if k != "measured")
    inner = of_configurations(innermost(averaged(without_gflops(r) for r in without_summands(records))))
    quality = [
        sheets.lines_sheet([line for p in parts for line in p.lines], names),
        *(sheet(runs, names) for sheet in (sheets.clocks_sheet, sheets.gaps_sheet, sheets.messages_sheet)),
    ]
    budgets = [(f"budget-{i}", sheets.budget_sheet(names[p.run.path], p.budget)) for i, p in enumerate(parts)]
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=False)
    return environment.from_string(template).render(
        title=printable(options.title or f"Energy of {runs[0].path.name if len(runs) == 1 else f'{len(runs)} runs'}"),
        subtitle=printable(sheets.subtitle(runs)),
        provenances=kinds,
        findings=list(map(printable, findings(records, factors))),
        table_note=f"Power here is {' and '.join(kinds)}: {others} joules are no measurement." if others else "",
        figures=[(Markup(svg), caption) for svg, caption in phase_bars(inner, colours)],
        tables=list(map(shown_sheet, _tables(records, factors))),
        traces_left_out=max(len(parts) - options.max_traces, 0),
        runs=boxes,
        budget=[shown_sheet(sheet, name) for name, sheet in budgets if len(sheet)],
        quality=[shown_sheet(s) for s in quality if len(s)],
        quality_notes=sheets.quality_notes(runs, names),
        environment=[shown_sheet(sheets.environment_sheet(runs, names))],
        citation=printable(sheets.citation(runs)),
        files=[shown_sheet(sheets.files_sheet(runs, [p.checksum for p in parts], names))],
        commands=list(map(printable, sheets.commands(names, device, options.calibration, options.length, factors))),
        blocks=columns.texts,
        traces_json=Markup(_json(documents)),
        style=Markup(style),
        style_hash=_hash(style),
        script=Markup(script),
        script_hash=_hash(script),
    )


def _boxes(
    parts: Sequence[_RunPart], names: sheets.Names, colours: dict[str, int]
) -> tuple[list[Document], list[Document]]:
    """What the template shows of each run's traces, and what the script draws them from."""
    boxes, documents = [], []
    for i, p in enumerate(parts):
        phases, legend = None, {}
        if p.phases is not None:
            of_classes = [colours.get(c.name, AROUND) for c in p.run.phases.classes]
            phases = {**p.phases, "colours": of_classes}
            legend = dict(list(zip(p.phases["names"], of_classes, strict=True))[:24])
        traces = [{"box": f"trace-{i}-{k}", **trace} for k, trace in enumerate(p.traces)]
        shown = [{"id": t["box"], **box_of(names[p.run.path], t, p.phases)} for t in traces]
        boxes.append({"traces": shown, "legend": legend})
        documents.append({"traces": traces, "phases": phases})
    return boxes, documents


def _tables(records: Sequence[Record], factors: Factors) -> list[pd.DataFrame]:
    of_jobs = job_tables(records) if are_over_machines(records) else []
    tables = [s for s in field_tables(records, factors=factors) if s.attrs["name"] != "records"]
    return [*tables, *of_jobs, sheets.recordings_sheet(records)]


def _colours(records: Sequence[Record]) -> dict[str, int]:
    """Innermost phases first, so that they have colours of their own; the last two of eight are for what is around."""
    inner = dict.fromkeys(str(r["phase"]) for r in innermost(records))
    colours = {name: i % AROUND for i, name in enumerate(inner)}
    for r in records:
        if r["kind"] == "phase":
            colours.setdefault(str(r["phase"]), AROUND + len(str(r["phase_path"]).split("/")) % 2)
    return colours


def _json(document: Any) -> str:
    """JSON that no HTML parser takes for the end of its element."""
    text = json.dumps(document, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


# ---- bars of joules, as SVG within the page; their colours are the style sheet's, light and dark ------------------

LEFT, TOP, HEIGHT = 62, 14, 210
MOST_BARS = 90


def phase_bars(records: Sequence[Record], colours: Mapping[str, int]) -> list[tuple[str, str]]:
    """A figure for each device, provenance and model, of averaged innermost phases, measured ones first: markup that is
    safe to stand in the page as it is (none where there is too much to draw), and what it shows in words.

    ``colours`` are 0 to 7 by name.
    """
    groups: dict[tuple[Cell, ...], list[Record]] = {}
    for r in records:
        groups.setdefault((r["device"], r["provenance"], r["model"]), []).append(r)
    several = len({model for _, _, model in groups}) > 1
    parts = parts_of_machines(records)

    def scale(r: Record) -> tuple[Cell, ...]:
        """Figures of one model and part of the machine have one scale: they are there to be compared."""
        return r["model"], r["provenance"], parts[str(r["device"])]

    highest: dict[tuple[Cell, ...], float] = {}
    for r in records:
        top = (number_of(r, "j_per_batch") or 0.0) + (number_of(r, "u95_j") or 0.0)
        highest[scale(r)] = max(highest.get(scale(r), 0.0), top)

    def order(key: tuple[Cell, ...]) -> tuple[int, float]:
        return kind_order(key[1]), -sum(number_of(r, "j_per_batch") or 0.0 for r in groups[key])

    figures = []
    for key in sorted(groups, key=order):
        (device, provenance, model), same = key, groups[key]
        places = [configuration(r, same, without_model=several) for r in same]
        count = Counter((place, r["phase"]) for place, r in zip(places, same, strict=True))
        bars = {  # two that no name tells apart have their runs' names too
            (place if count[place, r["phase"]] == 1 else f"{place}, {r['run']}", str(r["phase"])): r
            for place, r in zip(places, same, strict=True)
        }
        what = f"Joules a batch{f' of {model}' if several and model is not None else ''} on {device} ({provenance})"
        svg, caption = "", f"{what}: too many bars to be drawn here (joules plot --kind phases)."
        if len(bars) <= MOST_BARS:
            svg = _svg(bars, colours, highest[scale(same[0])] or 1.0, is_measured=provenance == "measured")
            caption = f"{what}: whiskers are 95 % intervals, an arrow a lower bound, n.r. what cannot be resolved."
        figures.append((svg, printable(caption)))
    return figures


def _svg(
    bars: Mapping[tuple[str, str], Record], colours: Mapping[str, int], highest: float, *, is_measured: bool
) -> str:
    places, names = (list(dict.fromkeys(key[i] for key in bars)) for i in (0, 1))
    bar = max(min(46.0, 900 / (len(places) * (len(names) + 0.8))), 6.0)
    cluster = bar * (len(names) + 0.8)
    width = LEFT + cluster * len(places) + 10
    full = max(width, LEFT + sum(34 + 6.2 * min(len(n), 24) for n in names))
    foot = TOP + HEIGHT + 16 + 13 * max(len(place.split(", ")) for place in places)
    size = 10.0 ** floor(log10(highest / 5))
    step = next(m * size for m in (1, 2, 2.5, 5, 10) if m * size >= highest / 5)
    top = step * ceil(highest * 1.05 / step)

    def y(joules: float) -> float:
        return TOP + HEIGHT * (1 - max(joules, 0.0) / top)

    def text(x: float, y: float, words: str, anchor: str = "middle") -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(printable(words))}</text>'

    values = {k: figure_text(r) if number_of(r, "j_per_batch") is not None else "not resolvable"
              for k, r in bars.items()}  # fmt: skip
    words = "; ".join(f"{place}, {name}: {values[place, name]}" for place, name in bars)
    box = f'width="{full:.0f}" height="{foot + 14}" viewBox="0 0 {full:.0f} {foot + 14}"'
    out = [f'<svg role="img" aria-label="{escape(printable(f"Bars of joules a batch. {words}"))}" {box}>{_HATCH}']
    for i in range(round(top / step) + 1):
        at = y(i * step)
        out.append(f'<line class="grid" x1="{LEFT}" x2="{width:.1f}" y1="{at:.1f}" y2="{at:.1f}"/>')
        out.append(text(LEFT - 6, at + 4, f"{i * step:.10g}", "end"))
    out.append(f'<text transform="translate(12 {TOP + HEIGHT / 2}) rotate(-90)" text-anchor="middle">J a batch</text>')
    for (place, name), r in bars.items():
        x = LEFT + places.index(place) * cluster + (names.index(name) + 0.4) * bar
        middle, j, u = x + 0.45 * bar, number_of(r, "j_per_batch"), number_of(r, "u95_j")
        out.append(f"<g><title>{escape(printable(f'{name}: {values[place, name]}'))}</title>")
        if j is None:
            out.append(text(middle, y(0) - 4, "n.r."))
        else:
            box = f'x="{x:.1f}" y="{y(j):.1f}" width="{0.9 * bar:.1f}" height="{max(y(0) - y(j), 0.5):.1f}"'
            out.append(f'<rect class="c{colours.get(name, AROUND)}" {box}/>')
            out.append("" if is_measured else f'<rect class="unmeasured" {box}/>')
        if j is not None and r["is_lower_bound"] is True:
            out.append(f'<path class="whisker" d="M{middle:.1f} {y(j):.1f}v-10m-3 4l3 -4l3 4"/>')
        elif j is not None and u is not None:
            high, low = y(j + u), y(j - u)
            out.append(
                f'<path class="whisker" d="M{middle:.1f} {high:.1f}V{low:.1f}m-3 0h6M{middle - 3:.1f} {high:.1f}h6"/>'
            )
        out.append("</g>")
    for i, place in enumerate(places):
        for k, part in enumerate(place.split(", ")):
            cut = part[: max(int(cluster / 6), 4)]
            out.append(text(LEFT + (i + 0.5) * cluster, TOP + HEIGHT + 16 + 13 * k, cut))
    x = float(LEFT)
    for name in names:
        out.append(f'<rect class="c{colours.get(name, AROUND)}" x="{x:.1f}" y="{foot - 3}" width="10" height="10"/>')
        out.append(text(x + 14, foot + 6, name[:24], "start"))
        x += 34 + 6.2 * min(len(name), 24)
    return "".join([*out, "</svg>"])


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


def trace_of(run: Run, part: Part, compared: Sequence[Signal], most_points: int, columns: Columns) -> Document:
    """The trace of one device with at most about ``most_points`` points in all curves together.

    Each line says how many readings it has and how many a point stands for (``block``, of which the least and the
    greatest power are kept). Points farther apart than ``gap_us`` are not joined; ``gaps`` are stretches without
    readings [us].
    """
    feeds = [s for s in part.signals if len(s) > 1]
    others = [s for s in compared if len(s) > 1]
    has_sum = len(feeds) > 1
    each = max(most_points // max(len(feeds) + len(others) + has_sum, 1), 1000)
    lines = []

    def add(name: str, role: str, points: Iterator[Points], n: int, spacing_ns: float) -> None:
        block = 1 if n <= each else int(np.ceil(2 * n / each))
        t_ns, low, high = envelope_of(points, np.arange(0, n, block))
        lines.append({
            "name": printable(name), "role": role, "readings": n, "block": block,
            # What a block spans is known only to the next one's begin.
            "gap_us": LATE_FACTOR * spacing_ns / 1000 * (1 if block == 1 else block + 1),
            "time": columns.add(_microseconds(run, t_ns)),
            "watts": columns.add_values(low) if block == 1 else columns.add_values(low, high),
        })  # fmt: skip

    if has_sum:
        fastest, spacing_ns = fastest_of(feeds), max(s.spacing_ns for s in feeds)
        add(f"{part.device}, sum of lines", "sum", summed_of(feeds, fastest), count_points(fastest), spacing_ns)
    for role, signals in (("feed", feeds), ("compared", others)):
        for s in signals:
            add(s.line.name, role, _finite(s), count_points(s), s.spacing_ns)
    length_us = (run.end_ns - run.begin_ns) // 1000
    about = {"device": printable(part.device), "provenance": part.provenance}
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
    gaps = np.stack(merged(holes[:, 0], holes[:, 1]), 1)
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
