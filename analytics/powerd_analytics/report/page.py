"""The report as one HTML file: everything in it comes from the run files, and everything it needs is in it."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from powerd_analytics.campaigns.campaign import part_of
from powerd_analytics.campaigns.components import without_gflops, without_summands
from powerd_analytics.campaigns.factors import Factors
from powerd_analytics.campaigns.fieldtables import field_tables, prepared
from powerd_analytics.campaigns.innermost import innermost, of_configurations
from powerd_analytics.campaigns.jobtables import are_over_machines, job_tables
from powerd_analytics.campaigns.repeats import averaged
from powerd_analytics.campaigns.trainings import Length
from powerd_analytics.comparison.samples import Sample, samples_of
from powerd_analytics.comparison.summed import summed_samples
from powerd_analytics.energy.devices import Part, Progress, load_parts, no_progress
from powerd_analytics.exports.sheet import Sheet
from powerd_analytics.indexes.files import run_files
from powerd_analytics.records.checks import check_campaign, check_run
from powerd_analytics.records.columns import Record
from powerd_analytics.records.flat import records_of
from powerd_analytics.records.jobsums import merge_jobs
from powerd_analytics.report import provenance, quality, words
from powerd_analytics.report.figures import phase_bars
from powerd_analytics.report.findings import findings
from powerd_analytics.report.names import Names, named, run_names
from powerd_analytics.report.recordings import recordings_sheet
from powerd_analytics.report.sheets import shown_sheet
from powerd_analytics.report.tracebox import Blocks, run_document
from powerd_analytics.report.traces import Trace, TracePhases, phases_of, trace_of
from powerd_analytics.runs.recalibration import recalibrate
from powerd_analytics.runs.run import Run, read_run
from powerd_analytics.signals.signal import Signal
from powerd_analytics.signals.slices import IN_MEMORY, load_bounded
from powerd_analytics.tables.shares import BudgetRow, budget_rows
from powerd_analytics.tables.table import table_of
from powerd_core.errors import ConfigError
from powerd_core.text import printable

SCRIPTS = ("unpack.js", "trace.js", "around.js", "report.js")
LEAST_POINTS = 10_000
PHASE_COLOURS = 8


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
    traces: list[Trace]
    phases: TracePhases | None
    checksum: str


def write_report(
    paths: Sequence[Path], out: Path, options: ReportOptions | None = None, *, progress: Progress = no_progress
) -> None:
    """Write the report of run files (and directories of them) to ``out``.

    Raises `RunFileError` and `AnalysisError` for runs that no table can be made of, naming the file.
    """
    options = options or ReportOptions()
    found = run_files(paths)
    parts = []
    for i, path in enumerate(found):
        most = options.max_points // min(len(found), options.max_traces) if i < options.max_traces else 0
        parts.append(_read(path, options, most, part_of(progress, i, len(found) + 1, path.name)))
    check_campaign([r for p in parts for r in p.records])
    progress(len(found) / (len(found) + 1), "writing the page")
    out.write_text(render(parts, options), encoding="utf-8")


def _read(path: Path, options: ReportOptions, most_points: int, progress: Progress) -> _RunPart:
    run = read_run(path, progress=lambda share, text: progress(0.1 * share, text))
    if options.calibration is not None:
        run, _ = recalibrate(run, options.calibration)
    loaded = load_parts(run, options.device, lambda s, text: progress(0.1 + 0.2 * s, text), in_memory=IN_MEMORY)
    table = table_of(run, loaded, progress=lambda s, text: progress(0.3 + 0.2 * s, text))
    records = records_of(run, table)
    check_run(path, records)
    samples = samples_of(run, loaded, records)
    budget = budget_rows(run, options.device, progress=lambda s, text: progress(0.5 + 0.2 * s, text))
    compared = {p.device: [load_bounded(run, name) for name in run.compared(p.device)] for p in loaded}
    lines = [(run, s, "feeds it") for p in loaded for s in p.signals]
    lines += [(run, s, "compared") for found in compared.values() for s in found]
    traces = [
        trace_of(run, part, _once(loaded, part, compared), most_points // len(loaded)) for part in loaded if most_points
    ]
    progress(0.9, f"checksum of {path.name}")
    phases = phases_of(run) if most_points and len(run.phases) else None
    return _RunPart(run, records, samples, budget, lines, traces, phases, provenance.sha256(path))


def _once(parts: Sequence[Part], part: Part, compared: dict[str, list[Signal]]) -> list[Signal]:
    """Lines to compare with stand at a device's first part only."""
    first = next(p for p in parts if p.device == part.device)
    return compared[part.device] if part is first else []


def render(parts: Sequence[_RunPart], options: ReportOptions) -> str:
    """The page's text."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    here = files("powerd_analytics.report")
    style = here.joinpath("report.css").read_text(encoding="utf-8")
    script = "\n".join(here.joinpath(name).read_text(encoding="utf-8") for name in SCRIPTS)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=False)
    runs = [p.run for p in parts]
    names = run_names([r.path for r in runs])
    records = named(prepared(merge_jobs([r for p in parts for r in p.records]), options.length), names)
    whole = without_summands(records)
    colours = _colours(records)
    blocks = Blocks()
    boxes, documents = _boxes(parts, names, colours, blocks)
    samples = [s for p in parts for s in p.samples]
    said = findings(records, [*samples, *summed_samples(samples)], options.factors)
    said_again = provenance.commands(runs, names, options.device, options.calibration, options.length, options.factors)
    kinds = sorted({str(r["provenance"]) for r in records})
    inner = of_configurations(innermost(averaged(without_gflops(r) for r in whole)))
    figures = [(Markup(f.svg), f.caption) for f in phase_bars(inner, colours)]
    return environment.from_string(here.joinpath("template.html").read_text(encoding="utf-8")).render(
        title=printable(options.title or words.title(runs)),
        subtitle=printable(words.subtitle(runs)),
        provenances=kinds,
        findings={"main": printable(said.main), "lines": [printable(line) for line in said.lines]},
        table_note=words.table_note(kinds),
        figures=[{"svg": svg, "caption": caption} for svg, caption in figures],
        tables=[shown_sheet(s) for s in _tables(records, options.factors)],
        traces_note=words.traces_note(len(parts), options.max_traces),
        runs=boxes,
        budget=[
            shown_sheet(quality.budget_sheet(names[p.run.path], p.budget), f"budget-{i}")
            for i, p in enumerate(parts)
            if p.budget
        ],
        quality=[shown_sheet(s) for s in _quality(parts, names) if s.rows],
        quality_notes=words.quality_notes(runs, names),
        environment=[shown_sheet(quality.environment_sheet(runs, names))],
        citation=printable(provenance.citation(runs)),
        files=[shown_sheet(provenance.files_sheet(runs, [p.checksum for p in parts], names))],
        commands=[printable(line) for line in said_again],
        made_by=f"Made with {provenance.version_text()}.",
        blocks=blocks.made,
        traces_json=Markup(_json(documents)),
        style=Markup(style),
        style_hash=_hash(style),
        script=Markup(script),
        script_hash=_hash(script),
    )


def _boxes(
    parts: Sequence[_RunPart], names: Names, colours: dict[str, int], blocks: Blocks
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What the template shows of each run's traces, and what the script needs of them."""
    boxes, documents = [], []
    for i, p in enumerate(parts):
        made, document = run_document(f"{i}", names[p.run.path], p.traces, p.phases, colours, blocks)
        of_phases = dict.fromkeys(p.phases.names if p.phases else ())
        legend = [{"name": printable(n), "colour": colours.get(n, PHASE_COLOURS - 2)} for n in of_phases]
        boxes.append({"traces": [asdict(box) for box in made], "legend": legend[:24]})
        documents.append(document)
    return boxes, documents


def _tables(records: Sequence[Record], factors: Factors) -> list[Sheet]:
    of_jobs = job_tables(records) if are_over_machines(records) else []
    return (
        [s for s in field_tables(records, factors=factors) if s.name != "records"]
        + of_jobs
        + [recordings_sheet(records)]
    )


def _quality(parts: Sequence[_RunPart], names: Names) -> list[Sheet]:
    runs = [p.run for p in parts]
    lines = quality.lines_sheet([line for p in parts for line in p.lines], names)
    return [lines, *(make(runs, names) for make in (quality.clocks_sheet, quality.gaps_sheet, quality.messages_sheet))]


def _colours(records: Sequence[Record]) -> dict[str, int]:
    """Innermost phases first, so that they have colours of their own; the last two of eight are for what is around."""
    inner = list(dict.fromkeys(str(r["phase"]) for r in innermost(records)))
    found = {name: i % (PHASE_COLOURS - 2) for i, name in enumerate(inner)}
    for r in records:
        if r["kind"] == "phase":
            found.setdefault(str(r["phase"]), PHASE_COLOURS - 2 + (len(str(r["phase_path"]).split("/")) % 2))
    return found


def _json(document: Any) -> str:
    """JSON that no HTML parser takes for the end of its element."""
    text = json.dumps(document, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
