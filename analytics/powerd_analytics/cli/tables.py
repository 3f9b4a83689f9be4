"""`joules tables`, `compare`, `uncertainty`, `index`, `query`, `operations`, `layers`, `totals` and `pick`: all tables.

Their columns, with units, stand in `powerd_analytics.frame.figures`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from powerd_analytics.cli import shared
from powerd_analytics.output.terminal import LateProgress
from powerd_analytics.output.text import parsed
from powerd_core.errors import AnalysisError, ConfigError
from powerd_core.text import printable

if TYPE_CHECKING:
    from powerd_analytics.output.export import Table
    from powerd_analytics.run_tables.layers import CountOf
    from powerd_analytics.views.layouts import TableChoice

TableFormat = Literal["text", "csv", "json", "markdown", "latex", "parquet"]
Form = TableFormat | Literal["paper"]
Which = Literal[
    "time", "energy", "totals", "accuracy", "efficiency", "gain", "ranks", "cards", "wall", "records", "iterations"
]  # fmt: skip
_FOR_PROGRAMS = ("csv", "json", "parquet")
_NO_PARQUET = "Parquet is no text: say where to write it with -o FILE.parquet"


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Printing:
    """How to print the tables of runs, and of what of them."""

    format: Annotated[TableFormat, Parameter(help="How to print it.")] = "text"
    paper: Annotated[
        bool,
        Parameter(
            negative="", help="LaTeX for a paper: common settings in the caption, figures with their U95, notes once."
        ),
    ] = False
    output: shared.Output = None
    device: shared.Device = None
    wide: Annotated[bool, Parameter(negative="", help="All columns, wider than most terminals; one run.")] = False
    notes: Annotated[bool, Parameter(negative="", help="All notes, not the first few; one run.")] = False
    calibration: shared.Calibration = None
    above_idle: Annotated[
        bool, Parameter(negative="", help="Show the energy above idle beside the whole; one run, with a baseline.")
    ] = False


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which tables to make of several runs, of which of their rows."""

    table: Annotated[
        list[Which] | None,
        Parameter(negative="", help="Only these. For programs: `records`, a row a figure; `iterations`, a row each."),
    ] = None
    where: Annotated[
        list[str] | None, Parameter(negative="", help="COLUMN=VALUE: only rows that have it. May be repeated.")
    ] = None
    pivot: Annotated[
        str | None, Parameter(help="ROWS:COLUMNS:VALUE, each one or more columns; COLUMNS may be empty.")
    ] = None
    averages: Annotated[bool, Parameter(negative="", help="Averages at the sides of a pivot.")] = False
    ignore: Annotated[
        list[str] | None,
        Parameter(negative="", help="A setting or attribute that does not part repeats. May be repeated."),
    ] = None
    gain: Annotated[str | None, Parameter(help="A,B: figures of product B over those of A; of two by itself.")] = None
    to: Annotated[
        str | None, Parameter(help="NAME=VALUE, as in top1=0.98: seconds and joules up to the first result as good.")
    ] = None
    weights: Annotated[
        str | None, Parameter(help="NAME=WEIGHT,...: adds a weighted average of results to the table `accuracy`.")
    ] = None
    card_spread: Annotated[
        float | None,
        Parameter(help="Relative standard deviation between equal cards, as in 0.03, for the table `cards`."),
    ] = None
    mix: Annotated[
        list[str] | None,
        Parameter(negative="", help="For `cards`: what that many GPUs in all are, as in pascal=2,maxwell=2."),
    ] = None
    job: Annotated[
        bool, Parameter(negative="", help="The runs are one training over several machines, though they do not say so.")
    ] = False
    training: shared.WholeTraining = shared.UNSTATED
    costs: shared.Costs = shared.FREE
    co2_by_hour: Annotated[
        Path | None, Parameter(help="CO2 of each hour by this CSV file: a time in UTC first, and g_per_kwh.")
    ] = None
    into: Annotated[
        Path | None, Parameter(help="Also put the tables into /tables of this run file or file of tables (.h5).")
    ] = None

    def choice(self) -> TableChoice:
        """What to make of the frame of the runs. Raises `ConfigError`."""
        from powerd_analytics.frame.accuracy_target import parse_weights
        from powerd_analytics.frame.published import parse_mixes
        from powerd_analytics.runs.accuracy import ResultTarget
        from powerd_analytics.views.cards import Cards
        from powerd_analytics.views.layouts import TableChoice, pair_of
        from powerd_analytics.views.pivots import PivotRequest

        return TableChoice(
            names=tuple(self.table or ()),
            conditions=tuple(self.where or ()),
            pivot=None if self.pivot is None else PivotRequest.parse(self.pivot),
            averages=self.averages,
            length=self.training.length(),
            gain=pair_of(self.gain),
            factors=self.costs.factors(),
            ignore=tuple(self.ignore or ()),
            target=None if self.to is None else ResultTarget.parse(self.to),
            weights=None if self.weights is None else parse_weights(self.weights),
            cards=Cards(self.card_spread, parse_mixes(self.mix or [])),
        )


AS_IT_IS, ALL = Printing(), Asked()


def tables(
    *runs: Annotated[Path, Parameter(help="Run files, and directories and indexes of them.")],
    printing: Printing = AS_IT_IS,
    asked: Asked = ALL,
    overwrite: Annotated[bool, Parameter(negative="", help="Replace a file, or tables in it, that exist.")] = False,
) -> None:
    """Print joules, seconds and watts by phase.

    Of one run as it was, of many as the tables of a paper.

    For example:

      joules tables run.h5

      joules tables run.h5 --format csv --output table.csv

      joules tables runs/ --epochs 90 --dataset-size 1281167

      joules tables run.h5 --epochs 90 --dataset-size 1281167 --co2-g-per-kwh 380 --price-per-kwh 0.30 --currency EUR

      joules tables run.h5 run.node1.h5

      joules tables runs/ --pivot model,batch:gpus:j_per_batch

      joules tables runs/ --to top1=0.98

      joules tables runs/ --paper -o tables.tex

      joules tables run.h5 --table iterations --format csv -o iterations.csv

      joules tables run.h5 --calibration calibration.toml
    """
    if not runs:
        raise ConfigError("no run to make tables of: give run files, or directories of them")
    form, is_paper = printing.format, printing.paper
    if asked.table and "iterations" in asked.table:
        _print_iterations(runs, printing, asked, overwrite=overwrite)
        return
    if asked.co2_by_hour is not None:
        _print_hours(runs, printing, asked, asked.co2_by_hour, overwrite=overwrite)
        return
    _refuse(f"--paper is a form of LaTeX: leave --format {form} out", is_paper and form not in ("text", "latex"))
    _refuse(
        "--card-spread and --mix are for --table cards: choose that",
        bool((asked.card_spread is not None or asked.mix) and "cards" not in (asked.table or ())),
    )
    is_of_several = asked != ALL or is_paper or form in ("latex", "parquet")
    if is_of_several or len(runs) > 1 or runs[0].is_dir() or runs[0].suffix == ".parquet":
        _print_runs(runs, printing, asked, overwrite=overwrite)
    else:
        _print_run(runs[0], printing, overwrite=overwrite)


def _print_run(path: Path, printing: Printing, *, overwrite: bool) -> None:
    """The tables of one run as it was."""
    format, output = printing.format, printing.output
    shared.refuse_existing(output, overwrite, (path,))
    with LateProgress() as progress:
        run, of_run = shared.table_of(
            path, printing.device, printing.calibration, progress, above_idle=printing.above_idle
        )
    if format == "text" and not printing.wide:
        from powerd_analytics.run_tables.terminal_table import print_tree

        name, is_chosen, notes = path.name, printing.device is not None, printing.notes
        text = shared.printed(
            lambda console: print_tree(of_run, console, name, is_chosen=is_chosen, all_notes=notes), output, 80
        )
    else:
        from powerd_analytics.frame.figures import frame_of
        from powerd_analytics.views.layouts import records_table, run_tables

        frame = frame_of(run, of_run)
        of_frame = [records_table(frame)] if format in _FOR_PROGRAMS else run_tables(frame)
        text = shared.tables_text(of_frame, format, output)
    shared.put_out(text, output, overwrite)


def _print_runs(runs: Sequence[Path], printing: Printing, asked: Asked, *, overwrite: bool) -> None:
    """The tables of several runs, as papers print them."""
    from powerd_analytics.frame.trainings import read_runs
    from powerd_analytics.output.export import write_parquet, write_tables
    from powerd_analytics.views.layouts import chosen_tables

    alone = {"--above-idle": printing.above_idle, "--wide": printing.wide, "--notes": printing.notes}
    for name, is_given in alone.items():
        _refuse(f"{name} is for the table of one run: leave the other options out", is_given)
    choice, output, into = asked.choice(), printing.output, asked.into
    form: Form = "paper" if printing.paper else printing.format
    _refuse_combinations(choice, form, output, is_one_job=asked.job)
    shared.refuse_existing(output, overwrite, runs)
    shared.refuse_existing(into, True, is_hdf5=True)  # tables are added to a file that exists
    with LateProgress() as progress:
        frame = read_runs(
            runs, printing.device, printing.calibration, is_one_job=asked.job, target=choice.target, progress=progress
        )
        tables = chosen_tables(frame, choice)
    if into is not None:
        write_tables(into, tables, overwrite=overwrite)
        print(f"{into}: /tables/{{{','.join(table.name for table in tables)}}}")
        if output is None and form == "text":
            return
    if not (choice.names or choice.pivot or choice.target):  # all for people, or every row for programs
        tables = [t for t in tables if (t.name == "records") == (form in _FOR_PROGRAMS)]
    if form == "parquet" and output is not None:
        shared.write(output, lambda partial: write_parquet(tables[0], partial), overwrite)
    else:
        shared.put_out(shared.tables_text(tables, form, output), output, overwrite)


def _refuse_combinations(choice: TableChoice, form: Form, output: Path | None, *, is_one_job: bool) -> None:
    pivot, several = choice.pivot is not None, len(choice.names) > 1 or (choice.pivot and choice.gain)
    _refuse(_NO_PARQUET, form == "parquet" and output is None)
    _refuse(f"--format {form} holds one table: choose one", form in _FOR_PROGRAMS and bool(several))
    _refuse(
        "a pivot has neither --table nor CO2 and money: leave these out", pivot and bool(choice.names or choice.factors)
    )
    _refuse("--averages belongs to a pivot: add --pivot ROWS:COLUMNS:VALUE", choice.averages and not pivot)
    is_one_stretch = pivot or is_one_job or bool(choice.length) or any(name != "accuracy" for name in choice.names)
    _refuse(
        "--to is for the table `accuracy` of what was recorded: leave the others out",
        choice.target is not None and is_one_stretch,
    )


def _print_iterations(runs: Sequence[Path], printing: Printing, asked: Asked, *, overwrite: bool) -> None:
    """Every iteration of one run, for programs."""
    from powerd_analytics.output.export import write_rows
    from powerd_analytics.run_tables.iterations import COLUMNS, iteration_rows

    _refuse(
        "--table iterations takes one run file, and of the options --device, --calibration, --format and --output",
        len(runs) > 1
        or asked != Asked(table=["iterations"])
        or any((printing.paper, printing.wide, printing.notes, printing.above_idle)),
    )
    format, output = printing.format, printing.output
    if format not in ("csv", "json", "parquet"):
        raise ConfigError("iterations are rows for programs: choose --format csv, json or parquet")
    _refuse(_NO_PARQUET, format == "parquet" and output is None)
    shared.refuse_existing(output, overwrite, runs)
    with LateProgress() as progress:
        opened = shared.open_run(runs[0], printing.calibration, progress, is_checked=True)
        rows = iteration_rows(opened, printing.device, progress=progress)
        if output is None:
            write_rows(COLUMNS, rows, format, shared.harmless_output())
        else:
            shared.write(output, lambda path: write_rows(COLUMNS, rows, format, path), overwrite)


def _print_hours(runs: Sequence[Path], printing: Printing, asked: Asked, hours: Path, *, overwrite: bool) -> None:
    """Joules and CO2 of each hour of the wall clock."""
    from powerd_analytics.frame.index import run_files
    from powerd_analytics.output.export import write_parquet
    from powerd_analytics.run_tables.carbon_hours import hours_table
    from powerd_client.energies.carbon import read_hourly_intensity

    form, output = printing.format, printing.output
    _refuse(
        "--co2-by-hour goes with the options --device, --calibration, --format and --output alone",
        asked != Asked(co2_by_hour=hours) or any((printing.paper, printing.wide, printing.notes, printing.above_idle)),
    )
    _refuse(_NO_PARQUET, form == "parquet" and output is None)
    shared.refuse_existing(output, overwrite, [*runs, hours])
    intensity = read_hourly_intensity(hours)
    with LateProgress() as progress:
        opened = [shared.open_run(path, printing.calibration, progress) for path in run_files(runs)]
        table = hours_table(opened, intensity, printing.device, progress=progress)
    if form == "parquet" and output is not None:
        shared.write(output, lambda partial: write_parquet(table, partial), overwrite)
    else:
        shared.put_out(shared.tables_text([table], form, output), output, overwrite)


def _refuse(text: str, is_wrong: bool) -> None:
    if is_wrong:
        raise ConfigError(text)


def compare(
    a: Annotated[Path, Parameter(help="A run file, or a directory or an index of them.")],
    b: Annotated[Path, Parameter(help="What to compare it with: the same.")],
    *others: Annotated[Path, Parameter(help="More of them; each is compared with the first.")],
    format: Annotated[Literal["text", "csv", "json", "markdown", "latex"], Parameter(help="How to print it.")] = "text",
    output: shared.Output = None,
    device: shared.Device = None,
    ignore: Annotated[
        list[str] | None,
        Parameter(negative="", help="A setting or attribute in which rows need not agree. May be repeated."),
    ] = None,
    fail_above: Annotated[
        str, Parameter(help="End with status 1 where joules rose by more than that, as 3%, and by more than U95.")
    ] = "",
    overwrite: shared.Overwrite = False,
) -> int:
    """Say what differs between runs by more than chance.

    That is joules and seconds a batch, of two runs or two campaigns of them; of a
    sample, with the energy-delay product, where batches differ in size. Of more
    than two, each is compared with the first.

    Run files are opened also where an index names them: what tells chance from a
    difference are the single phases and whose sensors measured them, and an index
    holds neither.

    For example:

      joules compare before.h5 after.h5

      joules compare runs/260W runs/140W --format markdown -o caps.md

      joules compare runs/32 runs/64 runs/128

      joules compare runs/sgd runs/adam --ignore batch_size

      joules compare main/ change/ --fail-above 3%
    """
    from powerd_analytics.frame.index import run_files
    from powerd_analytics.views import compare as comparing

    percent = _per_cent(fail_above)
    sides = (a, b, *others)
    if len(sides) > len(comparing.LETTERS):
        raise ConfigError(f"{len(sides)} sides: at most {len(comparing.LETTERS)} can be compared")
    shared.refuse_existing(output, overwrite, sides)
    files = [run_files([side]) for side in sides]
    side_of: dict[Path, Path] = {}
    for side, of_side in zip(sides, files, strict=True):
        for path in {path.resolve() for path in of_side}:
            if path in side_of:
                raise AnalysisError(f"{path} is on both sides: a run cannot be compared with itself")
            side_of[path] = side
    with LateProgress() as progress:
        samples = [
            comparing.read_samples(paths, device, progress=progress.part(k / len(sides), (k + 1) / len(sides)))
            for k, paths in enumerate(files)
        ]
        comparison = comparing.compare(samples[0], samples[1], ignore or (), *samples[2:])
        table = comparing.comparison_table(comparison, *map(str, sides))
    shared.put_out(shared.tables_text([table], format, output), output, overwrite)
    risen = comparing.risen(comparison, percent) if percent is not None else []
    for text in risen:
        print(printable(f"joules compare: {text}"), file=sys.stderr)
    return 1 if risen else 0


def _per_cent(text: str) -> float | None:
    """Of ``3%``; None without one. Raises `ConfigError`."""
    if not text:
        return None
    number = parsed(text.strip().removesuffix("%"))
    if number is None or not 0 <= number < MOST_PER_CENT:
        raise ConfigError(f"--fail-above {printable(text, limit=40)}: write per cent, as in 3%")
    return number


MOST_PER_CENT = 1000.0


def uncertainty(
    run: shared.RunFile,
    *,
    device: shared.Device = None,
    phase: Annotated[str | None, Parameter(help="Only phases of this name; totals and run are left out.")] = None,
    format: shared.Format = "text",
    output: shared.Output = None,
    overwrite: shared.Overwrite = False,
) -> None:
    """Say what the uncertainty of each energy comes from.

    As shares of the variance, largest first, and what shrinks it.

    For example:

      joules uncertainty run.h5

      joules uncertainty run.h5 --phase forward
    """
    from powerd_analytics.run_tables import uncertainty_table
    from powerd_analytics.runs.ranks import notes_of_run

    shared.refuse_existing(output, overwrite)
    with LateProgress() as progress:
        opened = shared.open_run(run, None, progress, is_checked=True)
        rows = uncertainty_table.kept_budget(opened, device, phase, progress=progress)
        beside = notes_of_run(opened, device)
    if not any(row.table == "phase" for row in rows):
        what = (
            "has no phases: mark them with `meter.phase(...)`" if rows else "is empty: no line feeds any of its devices"
        )
        raise AnalysisError(f"{run}: this run {what}")
    if phase is None and not any(row.energy_j for row in rows if row.table != "run"):
        raise AnalysisError(f"{run}: there is no energy whose uncertainty could be told: {rows[0].words}")
    if format == "json":
        text = uncertainty_table.to_json(rows)
        shared.warn(beside)
    else:
        of_rows = [uncertainty_table.parts_table(rows)] if format == "csv" else uncertainty_table.budget_tables(rows)
        text = shared.tables_text(_with_notes(of_rows, beside, format), format, output)
    shared.put_out(text, output, overwrite)


def index(
    folder: Annotated[Path, Parameter(help="A directory of run files, searched with all below it.")],
    *,
    output: Annotated[Path | None, Parameter(alias="-o", help="Index to write; DIR/index.parquet without it.")] = None,
    jobs: Annotated[int | None, Parameter(help="Processes that read run files; one a core without it.")] = None,
    scheduler: Annotated[
        str | None,
        Parameter(help="Let a Dask cluster read them, which sees them under the same names: tcp://host:8786."),
    ] = None,
    again: Annotated[bool, Parameter(negative="", help="Read files that have not changed as well.")] = False,
) -> int:
    """Write a Parquet index of a campaign of runs.

    It has a row a run file, and the rows of its table. Brings an index that is
    there up to date: only new and changed files are read. What cannot be read is
    listed; the exit status is 1 when nothing can.

    For example:

      joules index runs/

      joules index /data/runs -o campaign.parquet --jobs 8

      joules index /data/runs --scheduler tcp://head:8786
    """
    from powerd_analytics.frame.index import index_runs

    shared.refuse_existing(output, overwrite=True)  # what is there is brought up to date
    with LateProgress() as progress:
        report = index_runs(folder, output, jobs=jobs, scheduler=scheduler, again=again, progress=progress)
    unbuilt = [f"{n} is not in the index: it is being recorded, or `joules info {n}` builds it" for n in report.unbuilt]
    vanished = [f"{name} has vanished: taken out of the index" for name in report.vanished]
    shared.warn([*report.failed, *vanished, *unbuilt], "files")
    if not report.runs:
        sys.stderr.write(f"joules: none of {len(report.failed)} run files can be read: no index written\n")
        return 1
    counts = [f"{report.runs} runs", f"{report.read} read now" + (f" ({report.afresh})" if report.afresh else "")]
    counts += [f"{len(report.failed)} failed"] if report.failed else []
    counts += [f"{len(report.vanished)} vanished"] if report.vanished else []
    print(printable(f"{report.path}: {', '.join(counts)}"))
    return 0


def query(
    index: Annotated[Path, Parameter(help="An index, or the directory that has one.")],
    sql: Annotated[str, Parameter(help="A SELECT over the views runs, phases, totals, ranks and files.")],
    *,
    format: shared.Format = "text",
    output: shared.Output = None,
    overwrite: shared.Overwrite = False,
) -> None:
    """Ask an index in SQL, without opening a run file.

    The SQL is DuckDB's; `describe phases` says what there is to ask for.

    For example:

      joules query runs "select model, batch_size, min(j_per_batch) from totals group by all order by all"

      joules query runs "select path from totals where edp_js > 1e5" --format csv

      joules query runs "pivot phases on phase using avg(j_per_batch) group by device_name" --format markdown
    """
    from powerd_analytics.frame.index import query as ask
    from powerd_analytics.output.export import Column, make_table

    shared.refuse_existing(output, overwrite, [index])
    with LateProgress() as progress:
        table = ask(index, sql, progress=progress)
    if format in ("text", "markdown"):
        # A column without any value would be left out: what was asked for is shown.
        empty = [name for k, name in enumerate(table.names) if all(row[k] is None for row in table.rows)]
        columns = [Column(c.name) if c.name in empty else replace(c, is_setting=False) for c in table.columns]
        table = make_table("query", "", columns, [row | dict.fromkeys(empty, "NULL") for row in table.records()])
    text = shared.tables_text([table], format, output)
    if format == "text":  # its first line is for a title
        text = type(text)(text.partition("\n")[2])
    shared.put_out(text, output, overwrite)


# ---- models and their layers ---------------------------------------------------------------------------------------

WIDE = 240
"""Characters a line where no terminal says how many it has."""
Inputs = Annotated[
    tuple[str, ...],
    Parameter(help="Shape of one sample (3x224x224, 128:int64); again for each further argument.", negative=""),
]


def operations(
    model: Annotated[str, Parameter(help="A model of ours (resnet50, caffenet, ...), or FILE.py:FUNCTION.")],
    /,
    *,
    input: Inputs = (),
    batch: Annotated[int, Parameter(help="Samples a batch.")] = 1,
    forward_only: Annotated[bool, Parameter(negative="", help="Leave backward out.")] = False,
    format: shared.Format = "text",
    output: shared.Output = None,
    overwrite: shared.Overwrite = False,
) -> None:
    """Count a model's operations by layer.

    They are counted by the paper's equations, and as torch executes them.

    For example:

      joules operations caffenet

      joules operations train.py:make_model --input 3x224x224 --batch 256 --format json -o operations.json
    """
    from powerd_analytics.operations.counts import operation_table, to_document
    from powerd_analytics.operations.torch_model import count_named
    from powerd_analytics.output.export import to_json_text

    shared.refuse_existing(output, overwrite)
    count = count_named(model, input, batch, backward=not forward_only)
    if format == "json":
        text = to_json_text(to_document(count)) + "\n"
    else:
        text = shared.tables_text([operation_table(count, with_notes=format == "csv")], format, output, WIDE)
    shared.put_out(text, output, overwrite)


def layers(
    run: Annotated[Path, Parameter(help="A run file whose layers were marked: meter.watch(model, layers=True).")],
    *,
    operations: Annotated[
        str | None,
        Parameter(help="What they compute: MODEL as `joules operations` takes it, or the OPS.json that it wrote."),
    ] = None,
    input: Inputs = (),
    batch: Annotated[int | None, Parameter(help="Samples a batch, where the run's phases do not say.")] = None,
    model: Annotated[str | None, Parameter(help="Only phases of this model; all of them without it.")] = None,
    device: shared.Device = None,
    plot: Annotated[Path | None, Parameter(help="Draw the roofline as well (.png, .pdf, .svg).")] = None,
    format: shared.Format = "text",
    output: shared.Output = None,
    overwrite: shared.Overwrite = False,
) -> None:
    """Print joules, and GFLOPS/W, of every layer.

    GFLOPS/W of layers, phases and models need --operations.

    For example:

      joules layers run.h5

      joules layers run.h5 --operations resnet50 --plot roofline.png
    """
    from powerd_analytics.operations.counts import CONVENTIONS, read_count
    from powerd_analytics.operations.torch_model import count_named
    from powerd_analytics.output.export import to_json_text
    from powerd_analytics.run_tables.layers import described_layers, layer_energies, layer_table
    from powerd_analytics.run_tables.table import kept_table
    from powerd_analytics.runs.ranks import notes_of_run
    from powerd_analytics.runs.run import read_run

    if plot is not None:
        if operations is None:
            raise ConfigError("--plot draws operations per byte against operations per joule: give --operations too")
        shared.refuse_picture(plot, overwrite)
    shared.refuse_existing(output, overwrite)
    count_of: CountOf | None = None
    if operations is not None and operations.endswith(".json"):
        count = read_count(Path(operations))
        count_of = lambda _batch: count  # noqa: E731
    elif operations is not None:
        count_of = partial(count_named, operations, input)
    with LateProgress() as progress:
        opened = read_run(run, progress=progress.part(0.0, 0.3))
        with shared.naming(run):
            of_run = kept_table(opened, device, progress=progress.part(0.3, 0.9))
            known = described_layers(opened.events)
            rows = layer_energies(of_run, count_of, batch_size=batch, model=model, described=known)
        if plot is not None:
            from powerd_analytics.plots import draw_roofline, save

            progress(0.9, "drawing")
            figure = draw_roofline(rows, run.name)
            shared.write(plot, lambda path: save(figure, path), overwrite)
    table = layer_table(rows)
    if format == "json":
        text = to_json_text({"conventions": CONVENTIONS, "rows": table.records()}) + "\n"
        shared.warn(notes_of_run(opened, device))
    else:
        text = shared.tables_text(_with_notes([table], notes_of_run(opened, device), format), format, output, WIDE)
    shared.put_out(text, output, overwrite)


def _with_notes(tables: Sequence[Table], notes: Sequence[str], format: str) -> list[Table]:
    """The tables with notes under the last; for programs they go to the error stream."""
    if format == "csv" or not tables:
        shared.warn(notes)
        return list(tables)
    return [*tables[:-1], replace(tables[-1], notes=(*tables[-1].notes, *notes))]


# ---- tables that anybody published ---------------------------------------------------------------------------------


def totals(
    *phases: Annotated[Path, Parameter(help="Tables of phases, CSV or Parquet; several are joined.")],
    operations: Annotated[
        Path | None, Parameter(help="Table with model,operations (of one sample), for GFLOPS/W.")
    ] = None,
    mix: Annotated[
        list[str] | None,
        Parameter(
            negative="", help="What a configuration of that many GPUs in all is made of, as in pascal=2,maxwell=2."
        ),
    ] = None,
    output: shared.Output = None,
    overwrite: shared.Overwrite = False,
) -> None:
    """Sum published tables of phases into whole trainings.

    Prints iterations, seconds, joules, EDP and GFLOPS/W of each as CSV.

    A row is device,gpus,model,phase,batch with iterations,s_per_batch,j_per_batch
    or s_per_training,j_per_training; joules are of one GPU. What lacks a phase
    stays empty, and the error stream says why.

    For example:

      joules totals phases.csv

      joules totals time.csv energy.csv --operations operations.csv --mix pascal=2,maxwell=2 -o totals.csv
    """
    from powerd_analytics.frame.published import csv_text, parse_mixes, read_operations, read_phases, training_totals

    if not phases:
        raise ConfigError("nothing to sum: give a table of phases")
    mixes = parse_mixes(mix or [])
    shared.refuse_existing(output, overwrite, (*phases, *([operations] if operations else [])))
    with LateProgress() as progress:
        counts = read_operations(operations) if operations is not None else None
        table = read_phases(phases, progress)
        progress(0.8, "summing")
        trainings, notes = training_totals(table, counts, mixes)
    shared.warn(notes)
    shared.put_out(csv_text(trainings), output, overwrite)


def pick(
    table: Annotated[Path, Parameter(help="Configurations with energy_j and time_s, CSV or Parquet.")],
    /,
    *,
    reference: Annotated[str, Parameter(help="COLUMN=VALUE,... of the row that the others are compared with.")],
    metric: Annotated[
        str,
        Parameter(
            help="What is to be best, one or several: e, time, edp, ed2p, eds, eds:1.5, cost (of Zeus), sml (saving "
            "minus loss), gflops_per_w, j_per_sample, money."
        ),
    ],
    k: Annotated[float, Parameter(help="Of EDS: 2 weighs energy and time alike, less favours time.")] = 2.0,
    eta: Annotated[float, Parameter(help="Of the cost: 1 counts energy alone, 0 time alone.")] = 0.5,
    max_power: Annotated[
        float | None, Parameter(help="Of the cost: maximum power of the GPU in W; else the highest cap in the table.")
    ] = None,
    within: Annotated[
        float | None, Parameter(help="Only rows whose accuracy is so near the best one's, in its own unit.")
    ] = None,
    of: Annotated[str, Parameter(help="The accuracy that --within is of, as in top1.")] = "",
    where: Annotated[
        list[str] | None, Parameter(negative="", help="COLUMN=VALUE: only these rows. May be repeated.")
    ] = None,
    by: Annotated[
        list[str] | None, Parameter(negative="", help="COLUMN: one pick for each of its values. May be repeated.")
    ] = None,
    co2_g_per_kwh: shared.Co2 = None,
    price_per_kwh: shared.Price = None,
    currency: shared.Currency = None,
    country: shared.Country = None,
    format: Annotated[
        Literal["text", "csv"] | None, Parameter(help="How to print it; csv unless it goes to a terminal.")
    ] = None,
    output: shared.Output = None,
    overwrite: shared.Overwrite = False,
) -> None:
    """Print the best row of a table of configurations.

    With the metric, and what it saves and costs against a reference. Where the table
    says how sure its joules are, with U95 and with all rows that cannot be told from
    the best. Rows that did unequal work are compared by the sample, or refused.

    For example:

      joules pick caps.csv --reference power_cap_w=260 --metric edp

      joules pick caps.csv --reference target=default --metric e,edp,eds:1.5,eds:2 --by model

      joules pick runs.csv --reference power_cap_w=300,batch_size=64 --metric e,edp --within 0.5 --of top1

      joules pick totals.csv --reference gpus=1 --metric money --price-per-kwh 0.30 --currency EUR
    """
    from powerd_analytics.frame.costs import Factors
    from powerd_analytics.frame.figures import parse_condition
    from powerd_analytics.frame.published import csv_text, read_table
    from powerd_analytics.output.text import digits
    from powerd_analytics.views.choice import Request, choose, parse_metrics, parse_reference, pick_table, picked_rows

    _refuse(f"--eta {eta:g}: must lie between 0 and 1", not 0 <= eta <= 1)
    if max_power is not None and not (math.isfinite(max_power) and max_power > 0):
        raise ConfigError(f"--max-power {max_power:g}: must be above 0")
    if within is not None and not (math.isfinite(within) and within >= 0):
        raise ConfigError(f"--within {within:g}: must be 0 or more")
    _refuse("--within and --of belong together: give both, as in --within 0.5 --of top1", (within is None) == bool(of))
    request = Request(
        reference=parse_reference(reference),
        metrics=parse_metrics(metric, k),
        where=[parse_condition("--where", text) for text in where or []],
        by=by or [],
        eta=eta,
        max_power_w=max_power,
        within=within,
        of=of,
        factors=Factors(co2_g_per_kwh=co2_g_per_kwh, price_per_kwh=price_per_kwh, currency=currency, country=country),
    )
    is_money = any(asked.name == "money" for asked in request.metrics)
    _refuse("--metric money needs --price-per-kwh: give that too", is_money and price_per_kwh is None)
    shared.refuse_existing(output, overwrite, [table])
    with LateProgress() as progress:
        configurations = read_table(table, progress)
        choices, notes = choose(configurations, request)
    shared.warn(notes)
    is_text = format == "text" or (format is None and shared.goes_to_terminal(output))
    if is_text and len(request.metrics) > 1:
        text = shared.tables_text([pick_table(configurations, request, choices)], "text", output, 80)
    elif is_text:
        # One line for each column: tables of configurations are wide, and picks are few.
        picked = picked_rows(configurations, request, choices)
        width = max(map(len, picked))
        lines = []
        for name, values in picked.items():
            texts = [digits(v) if isinstance(v, float) else printable(v or "–", limit=200) for v in values]
            lines.append(f"{printable(str(name)):{width}}  {'  '.join(texts)}\n")
        text = "".join(lines)
    else:
        text = csv_text(picked_rows(configurations, request, choices))
    shared.put_out(text, output, overwrite)
