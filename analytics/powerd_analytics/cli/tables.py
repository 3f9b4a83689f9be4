"""`joules tables`, `compare`, `uncertainty`, `index` and `query`: what was recorded, as tables.

Their columns, with units, stand in `powerd_analytics.table` (one run) and `powerd_analytics.records` (several).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from powerd_analytics.cli import shared
from powerd_analytics.terminal import LateProgress
from powerd_core.errors import AnalysisError, ConfigError
from powerd_core.text import printable

if TYPE_CHECKING:
    from powerd_analytics.campaign_tables import Choice

TableFormat = Literal["text", "csv", "json", "markdown", "latex", "html", "parquet"]
Which = Literal["time", "energy", "totals", "efficiency", "gain", "jobs", "ranks", "records", "iterations"]
_OF_ONE_RUN = ("text", "csv", "json", "markdown")
_FOR_PROGRAMS = ("csv", "json", "parquet")


def tables(
    *runs: Annotated[Path, Parameter(help="Run files, and directories and indexes of them.")],
    format: Annotated[TableFormat, Parameter(help="How to print it.")] = "text",
    output: shared.Output = None,
    device: shared.Device = None,
    wide: Annotated[bool, Parameter(negative="", help="All columns, wider than most terminals; one run.")] = False,
    notes: Annotated[bool, Parameter(negative="", help="All notes, not the first few; one run.")] = False,
    calibration: shared.Calibration = None,
    above_idle: Annotated[
        bool, Parameter(negative="", help="Show the energy above idle beside the whole; one run, with a baseline.")
    ] = False,
    table: Annotated[
        list[Which] | None,
        Parameter(negative="", help="Only these. For programs: `records`, a row a figure; `iterations`, a row each."),
    ] = None,
    where: Annotated[
        list[str] | None, Parameter(negative="", help="COLUMN=VALUE: only rows that have it. May be repeated.")
    ] = None,
    pivot: Annotated[
        str | None, Parameter(help="ROWS:COLUMNS:VALUE, each one or more of the records' columns.")
    ] = None,
    rows: Annotated[str | None, Parameter(help="The same in words: what lies along the rows, ...")] = None,
    columns: Annotated[str | None, Parameter(help="... along the columns, ...")] = None,
    value: Annotated[str | None, Parameter(help="... and the figure in the cells.")] = None,
    averages: Annotated[bool, Parameter(negative="", help="Averages at the sides of a pivot.")] = False,
    gain: Annotated[str | None, Parameter(help="A,B: figures of product B over those of A; of two by itself.")] = None,
    job: Annotated[
        bool, Parameter(negative="", help="The runs are one training over several machines, though they do not say so.")
    ] = False,
    training: shared.Training = shared.UNSTATED,
    costs: shared.Costs = shared.FREE,
    into: Annotated[
        Path | None, Parameter(help="Also put the tables into /tables of this run file or file of tables (.h5).")
    ] = None,
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

      joules tables runs/ --format latex -o tables.tex

      joules tables run.h5 --table iterations --format csv -o iterations.csv

      joules tables run.h5 --calibration calibration.toml
    """
    if not runs:
        raise ConfigError("no run to make tables of: give run files, or directories of them")
    if table and "iterations" in table:
        others = (where, pivot, rows, columns, value, averages, gain, job, into, wide, notes, above_idle)
        _refuse(
            "--table iterations takes one run file, and of the options --device, --calibration, --format and --output",
            len(runs) > 1 or len(table) > 1 or any(others) or training != shared.UNSTATED or costs != shared.FREE,
        )
        _print_iterations(runs[0], format, output, device, calibration, overwrite=overwrite)
        return
    asked = any((table, where, pivot, rows, columns, value, averages, gain, job, into))
    asked = asked or training != shared.UNSTATED or costs != shared.FREE or format not in _OF_ONE_RUN
    if asked or len(runs) > 1 or runs[0].is_dir() or runs[0].suffix == ".parquet":
        from powerd_analytics.campaign_tables import Choice, pair_of, request_of

        alone = {"--above-idle": above_idle, "--wide": wide, "--notes": notes}
        for name, is_given in alone.items():
            _refuse(f"{name} is for the table of one run: leave the other options out", is_given)
        request, of_training = request_of(pivot, rows, columns, value), training.length()
        factors, names = costs.factors(), tuple(table or ())
        choice = Choice(names, tuple(where or ()), request, averages, of_training, pair_of(gain), factors)
        _print_campaign(runs, choice, format, output, device, calibration, into, is_one_job=job, overwrite=overwrite)
        return
    from powerd_analytics import table as listing
    from powerd_analytics.phase_tree import print_tree

    shared.refuse_existing(output, overwrite, runs)
    with LateProgress() as progress:
        of_run = shared.table_of(runs[0], device, calibration, progress, above_idle=above_idle)
    if format == "text" and not wide:
        name, is_chosen = runs[0].name, device is not None
        text = shared.printed(
            lambda console: print_tree(of_run, console, name, is_chosen=is_chosen, all_notes=notes), output, 80
        )
    else:
        text = shared.listing_text(listing, of_run, format, output)
    shared.put_out(text, output, overwrite)


def _print_campaign(
    runs: Sequence[Path], choice: Choice, format: TableFormat, output: Path | None, device: str | None,
    calibration: Path | None, into: Path | None, *, is_one_job: bool, overwrite: bool,
) -> None:  # fmt: skip
    from powerd_analytics.campaign import read_campaign
    from powerd_analytics.campaign_tables import chosen_tables
    from powerd_analytics.export import write_parquet, write_tables

    pivot, several = choice.pivot is not None, len(choice.names) > 1 or (choice.pivot and choice.gain)
    _refuse("Parquet is no text: say where to write it with -o FILE.parquet", format == "parquet" and output is None)
    _refuse(f"--format {format} holds one table: choose one", format in ("csv", "parquet") and bool(several))
    _refuse(
        "a pivot has neither --table nor CO2 and money: leave these out", pivot and bool(choice.names or choice.factors)
    )
    _refuse("--averages belongs to a pivot: add --pivot ROWS:COLUMNS:VALUE", choice.averages and not pivot)
    shared.refuse_existing(output, overwrite, runs)
    shared.refuse_existing(into, True, is_hdf5=True)  # tables are added to a file that exists
    with LateProgress() as progress:
        frames = chosen_tables(
            read_campaign(runs, device, calibration, is_one_job=is_one_job, progress=progress), choice
        )
    if into is not None:
        write_tables(into, frames, overwrite=overwrite)
        print(f"{into}: /tables/{{{','.join(frame.attrs['name'] for frame in frames)}}}")
        if output is None and format == "text":
            return
    if not choice.names and not pivot:  # all for people, or the records for programs
        frames = [f for f in frames if (f.attrs["name"] == "records") == (format in _FOR_PROGRAMS)]
    if format == "parquet" and output is not None:
        shared.write(output, lambda partial: write_parquet(frames[0], partial), overwrite)
    else:
        shared.put_out(shared.frames_text(frames, format, output), output, overwrite)


def _print_iterations(
    path: Path, format: TableFormat, output: Path | None, device: str | None, calibration: Path | None, *,
    overwrite: bool,
) -> None:  # fmt: skip
    from powerd_analytics.export import write_rows
    from powerd_analytics.iterations import COLUMNS, iteration_rows

    if format not in ("csv", "json", "parquet"):
        raise ConfigError("iterations are rows for programs: choose --format csv, json or parquet")
    _refuse("Parquet is no text: say where to write it with -o FILE.parquet", format == "parquet" and output is None)
    shared.refuse_existing(output, overwrite, (path,))
    with LateProgress() as progress:
        rows = iteration_rows(shared.open_run(path, calibration, progress, is_checked=True), device, progress=progress)
        if output is None:
            write_rows(COLUMNS, rows, format, sys.stdout)
            return

        def make(partial: Path) -> None:
            if format == "parquet":
                write_rows(COLUMNS, rows, format, partial)
                return
            with partial.open("w", encoding="utf-8", newline="") as file:
                write_rows(COLUMNS, rows, format, file)

        shared.write(output, make, overwrite)


def _refuse(text: str, is_wrong: bool) -> None:
    if is_wrong:
        raise ConfigError(text)


def compare(
    a: Annotated[Path, Parameter(help="A run file, or a directory or an index of them.")],
    b: Annotated[Path, Parameter(help="What to compare it with: the same.")],
    *,
    format: Annotated[
        Literal["text", "csv", "json", "markdown", "latex", "html"], Parameter(help="How to print it.")
    ] = "text",
    output: shared.Output = None,
    device: shared.Device = None,
    ignore: Annotated[
        list[str] | None,
        Parameter(negative="", help="A setting or attribute in which rows need not agree. May be repeated."),
    ] = None,
    overwrite: shared.Overwrite = False,
) -> None:
    """Say what differs between two runs by more than chance.

    That is joules and seconds a batch, of two runs or two campaigns of them.

    Run files are opened also where an index names them: what tells chance from a
    difference are the single phases and whose sensors measured them, and an index
    holds neither.

    For example:

      joules compare before.h5 after.h5

      joules compare runs/260W runs/140W --format markdown -o caps.md

      joules compare monday.h5 tuesday.h5 --ignore seed
    """
    from powerd_analytics import compare as comparing
    from powerd_analytics.campaign import part_of
    from powerd_analytics.index import run_files
    from powerd_analytics.records import Record, check_campaign, check_run

    shared.refuse_existing(output, overwrite, (a, b))
    files = [run_files([side]) for side in (a, b)]
    paths = [{path.resolve() for path in of_side} for of_side in files]
    if both := paths[0] & paths[1]:
        raise AnalysisError(f"{min(both)} is on both sides: a run cannot be compared with itself")
    samples: list[list[comparing.Sample]] = []
    with LateProgress() as progress:
        for k, of_side in enumerate(files):
            single: list[comparing.Sample] = []
            others: list[Record] = []
            for i, file in enumerate(of_side):
                part = part_of(progress.part(k / 2, (k + 1) / 2), i, len(of_side), file.name)
                of_file, records = comparing.run_samples(file, device, progress=part)
                check_run(file, [*(s.record for s in of_file), *records])
                single += of_file
                others += records
            samples.append(comparing.merge_samples(single, others))
        check_campaign(s.record for side in samples for s in side)
        frame = comparing.comparison_frame(comparing.compare(samples[0], samples[1], ignore or ()), str(a), str(b))
    shared.put_out(shared.frames_text([frame], format, output), output, overwrite)


def uncertainty(
    run: shared.RunFile,
    *,
    device: shared.Device = None,
    phase: Annotated[str | None, Parameter(help="Only phases of this name; totals and run are left out.")] = None,
    format: shared.Format = "text",
    output: shared.Output = None,
    plot: Annotated[Path | None, Parameter(help="Draw the shares as bars as well (.png, .pdf, .svg).")] = None,
    overwrite: shared.Overwrite = False,
) -> None:
    """Say what the uncertainty of each energy comes from.

    As shares of the variance, largest first, and what shrinks it.

    For example:

      joules uncertainty run.h5

      joules uncertainty run.h5 --phase forward --plot budget.png
    """
    from powerd_analytics import uncertainty_table

    if plot is not None:
        if output is not None and plot.absolute() == output.absolute():
            raise AnalysisError(f"{plot}: the picture and the table need two names")
        shared.refuse_picture(plot, overwrite)
    shared.refuse_existing(output, overwrite)
    with LateProgress() as progress:
        opened = shared.open_run(run, None, progress, is_checked=True)
        rows = uncertainty_table.budget_rows(opened, device, phase, progress=progress)
    if not any(row.table == "phase" for row in rows):
        what = (
            "has no phases: mark them with `meter.phase(...)`" if rows else "is empty: no line feeds any of its devices"
        )
        raise AnalysisError(f"{run}: this run {what}")
    is_empty = phase is None and not any(row.energy_j for row in rows if row.table != "run")
    if is_empty or (plot is not None and not any(row.parts for row in rows)):
        raise AnalysisError(f"{run}: there is no energy whose uncertainty could be told: {rows[0].words}")
    if plot is not None:
        from powerd_analytics.plots import draw_budget, save

        figure = draw_budget(rows)
        shared.write(plot, lambda partial: save(figure, partial), overwrite)
    shared.put_out(shared.listing_text(uncertainty_table, rows, format, output), output, overwrite)
    if plot is not None:
        sys.stderr.write(f"{plot}\n")


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

    It has a row a run file, and the records of its table. Brings an index that is
    there up to date: only new and changed files are read. What cannot be read is
    listed; the exit status is 1 when nothing can.

    For example:

      joules index runs/

      joules index /data/runs -o campaign.parquet --jobs 8

      joules index /data/runs --scheduler tcp://head:8786
    """
    from powerd_analytics.index import index_runs

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
    sql: Annotated[str, Parameter(help="A SELECT over the views runs, phases, totals, ranks, jobs and files.")],
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
    from powerd_analytics.export import rows_to_json
    from powerd_analytics.index import query as ask

    shared.refuse_existing(output, overwrite, [index])
    with LateProgress() as progress:
        frame = ask(index, sql, progress=progress)
    if format == "json":
        text = rows_to_json(frame)
    elif format == "csv":
        text = shared.frames_text([frame], format, output)
    else:
        # A column without any value would be left out: what was asked for is shown.
        for name in [name for name in frame.columns if frame[name].isna().all()]:
            frame[name] = "NULL"
        whole = shared.frames_text([frame], format, output)
        title, _, rest = whole.partition("\n")
        text = type(whole)(rest.lstrip("\n")) if not title.strip(" *") else whole
    shared.put_out(text, output, overwrite)
