"""The report as one HTML file: everything in it comes from the run files, and everything it needs is in it."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd

from powerd_analytics.campaign import (
    Length,
    averaged,
    innermost,
    of_configurations,
    part_of,
    without_gflops,
    without_summands,
)
from powerd_analytics.campaign_tables import are_over_machines, field_tables, job_tables, prepared
from powerd_analytics.compare import Sample, samples_of, summed_samples
from powerd_analytics.costs import Factors
from powerd_analytics.energy.devices import load_parts
from powerd_analytics.index import run_files
from powerd_analytics.jobs import merge_jobs
from powerd_analytics.records import Record, check_campaign, check_run, records_of
from powerd_analytics.report import sheets
from powerd_analytics.report.figures import phase_bars
from powerd_analytics.report.findings import findings
from powerd_analytics.report.sheets import Names, shown_sheet
from powerd_analytics.report.traces import Columns, Document, box_of, phases_of, trace_of
from powerd_analytics.runs.run import Progress, Run, no_progress, read_run, recalibrate
from powerd_analytics.signals.signal import Signal, load_bounded
from powerd_analytics.table import table_of
from powerd_analytics.uncertainty_table import BudgetRow, budget_rows
from powerd_core.errors import ConfigError
from powerd_core.text import printable

LEAST_POINTS = 10_000
PHASE_COLOURS = 8
AROUND = 6
"""Colour of phases that have none of their own."""


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
    samples: list[Sample]
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
    samples = samples_of(run, loaded, records)
    budget = budget_rows(run, options.device, progress=lambda s, text: progress(0.5 + 0.2 * s, text))
    # Lines to compare with stand at a device's first part only.
    compared = {p.device: [load_bounded(run, name) for name in run.compared(p.device)] for p in loaded}
    lines = [(run, s, "feeds it") for p in loaded for s in p.signals]
    lines += [(run, s, "compared") for signals in compared.values() for s in signals]
    traces = [
        trace_of(run, part, compared.pop(part.device, []), most_points // len(loaded), columns)
        for part in (loaded if most_points else ())
    ]
    progress(0.9, f"checksum of {path.name}")
    phases = phases_of(run, columns) if most_points and len(run.phases) else None
    return _RunPart(run, records, samples, budget, lines, traces, phases, sheets.sha256(path))


def _render(parts: Sequence[_RunPart], options: ReportOptions, columns: Columns) -> str:
    """The page's text."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    template, style, library, script = (
        files("powerd_analytics.report").joinpath(name).read_text(encoding="utf-8")
        for name in ("template.html", "report.css", "trace.js", "report.js")
    )
    script = f"{library}\n{script}"
    runs = [p.run for p in parts]
    names = sheets.run_names([r.path for r in runs])
    records = sheets.named(prepared(merge_jobs([r for p in parts for r in p.records]), options.length), names)
    colours = _colours(records)
    boxes, documents = _boxes(parts, names, colours)
    samples = [s for p in parts for s in p.samples]
    words = findings(records, [*samples, *summed_samples(samples)], options.factors)
    commands = sheets.commands(runs, names, options.device, options.calibration, options.length, options.factors)
    kinds = sorted({str(r["provenance"]) for r in records})
    others = " and ".join(k for k in kinds if k != "measured")
    inner = of_configurations(innermost(averaged(without_gflops(r) for r in without_summands(records))))
    untraced = max(len(parts) - options.max_traces, 0)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=False)
    return environment.from_string(template).render(
        title=printable(options.title or sheets.title(runs)),
        subtitle=printable(sheets.subtitle(runs)),
        provenances=kinds,
        findings=list(map(printable, words)),
        table_note=f"Power here is {' and '.join(kinds)}: {others} joules are no measurement." if others else "",
        figures=[(Markup(svg), caption) for svg, caption in phase_bars(inner, colours)],
        tables=[shown_sheet(s) for s in _tables(records, options.factors)],
        traces_note=f"Traces of the first {options.max_traces} runs; {untraced} more have none here (joules plot draws "
        "them)."
        if untraced
        else "",
        runs=boxes,
        budget=[
            shown_sheet(sheets.budget_sheet(names[p.run.path], p.budget), f"budget-{i}")
            for i, p in enumerate(parts)
            if p.budget
        ],
        quality=[shown_sheet(s) for s in _quality(parts, runs, names) if len(s)],
        quality_notes=sheets.quality_notes(runs, names),
        environment=[shown_sheet(sheets.environment_sheet(runs, names))],
        citation=printable(sheets.citation(runs)),
        files=[shown_sheet(sheets.files_sheet(runs, [p.checksum for p in parts], names))],
        commands=list(map(printable, commands)),
        made_by=f"Made with {sheets.version_text()}.",
        blocks=columns.texts,
        traces_json=Markup(_json(documents)),
        style=Markup(style),
        style_hash=_hash(style),
        script=Markup(script),
        script_hash=_hash(script),
    )


def _boxes(parts: Sequence[_RunPart], names: Names, colours: dict[str, int]) -> tuple[list[Document], list[Document]]:
    """What the template shows of each run's traces, and what the script draws them from."""
    boxes, documents = [], []
    for i, p in enumerate(parts):
        ids = [f"trace-{i}-{k}" for k in range(len(p.traces))]
        shown = [{"id": n, **box_of(names[p.run.path], t, p.phases)} for n, t in zip(ids, p.traces, strict=True)]
        traces = [{"box": n, **t} for n, t in zip(ids, p.traces, strict=True)]
        phases, legend = None, []
        if p.phases is not None and p.traces:
            of_classes = [colours.get(c.name, AROUND) for c in p.run.phases.classes]
            phases = {**p.phases, "colours": of_classes}
            unique = list(dict(zip(p.phases["names"], of_classes, strict=True)).items())
            legend = [{"name": name, "colour": colour} for name, colour in unique[:24]]
        boxes.append({"traces": shown, "legend": legend})
        documents.append({"traces": traces, "phases": phases})
    return boxes, documents


def _tables(records: Sequence[Record], factors: Factors) -> list[pd.DataFrame]:
    of_jobs = job_tables(records) if are_over_machines(records) else []
    tables = [s for s in field_tables(records, factors=factors) if s.attrs["name"] != "records"]
    return [*tables, *of_jobs, sheets.recordings_sheet(records)]


def _quality(parts: Sequence[_RunPart], runs: Sequence[Run], names: Names) -> list[pd.DataFrame]:
    lines = sheets.lines_sheet([line for p in parts for line in p.lines], names)
    return [lines, *(make(runs, names) for make in (sheets.clocks_sheet, sheets.gaps_sheet, sheets.messages_sheet))]


def _colours(records: Sequence[Record]) -> dict[str, int]:
    """Innermost phases first, so that they have colours of their own; the last two of eight are for what is around."""
    inner = list(dict.fromkeys(str(r["phase"]) for r in innermost(records)))
    colours = {name: i % (PHASE_COLOURS - 2) for i, name in enumerate(inner)}
    for r in records:
        if r["kind"] == "phase":
            colours.setdefault(str(r["phase"]), PHASE_COLOURS - 2 + (len(str(r["phase_path"]).split("/")) % 2))
    return colours


def _json(document: Any) -> str:
    """JSON that no HTML parser takes for the end of its element."""
    text = json.dumps(document, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
