"""`joules tables`, `compare`, `uncertainty`, `index` and `query`: what was recorded, as tables."""

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
    import pandas as pd

    from powerd_analytics.campaign_tables import Choice
    from powerd_analytics.compare import Sample
    from powerd_analytics.records import Record
    from powerd_analytics.runs.run import Progress
    from powerd_analytics.uncertainty_table import BudgetRow

TableFormat = Literal["table", "csv", "json", "markdown", "latex", "html", "parquet"]
Which = Literal["time", "energy", "totals", "efficiency", "gain", "jobs", "ranks", "records"]
_OF_ONE_RUN = ("table", "csv", "json", "markdown")
_FOR_PROGRAMS = ("csv", "json", "parquet")


def tables(
    *runs: Annotated[Path, Parameter(help="Run files, and directories and indexes of them.")],
    format: Annotated[TableFormat, Parameter(help="How to print it.")] = "table",
    output: shared.Output = None,
    device: shared.Device = None,
    calibration: shared.Calibration = None,
    above_idle: Annotated[
        bool, Parameter(negative="", help="Show the energy above idle beside the whole; one run, with a baseline.")
    ] = False,
    table: Annotated[
        list[Which] | None, Parameter(negative="", help="Only these; `records` is one row a figure, for programs.")
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
    """Print joules, seconds and watts by phase: of one run as it was, of many as the tables of a paper.

    For example:

      joules tables run.h5

      joules tables run.h5 --format csv --output table.csv

      joules tables runs/ --epochs 90 --dataset-size 1281167

      joules tables run.h5 --epochs 90 --dataset-size 1281167 --co2-g-per-kwh 380 --price-per-kwh 0.30 --currency EUR

      joules tables run.h5 run.node1.h5

      joules tables runs/ --pivot model,batch:gpus:j_per_batch

      joules tables runs/ --format latex -o tables.tex

      joules tables run.h5 --calibration calibration.toml
    """
    from powerd_analytics import table_frames
    from powerd_analytics.campaign import read_campaign
    from powerd_analytics.campaign_tables import Choice, chosen_tables, pair_of, request_of
    from powerd_analytics.export import write_parquet, write_tables
    from powerd_analytics.index import is_index

    if not runs:
        raise ConfigError("no run to make tables of: give run files, or directories of them")
    request, length = request_of(pivot, rows, columns, value), training.length()
    choice = Choice(tuple(table or ()), tuple(where or ()), request, averages, length, pair_of(gain), costs.factors())
    is_many = len(runs) > 1 or runs[0].is_dir() or is_index(runs[0])
    is_campaign = is_many or bool(choice) or into is not None or format not in _OF_ONE_RUN or job
    _check(choice, format, output, above_idle=above_idle and is_campaign)
    shared.refuse_existing(output, overwrite, runs)
    shared.refuse_existing(into, True, is_hdf5=True)  # tables are added to a file that exists
    with LateProgress() as progress:
        if not is_campaign:
            of_run = shared.table_of(runs[0], device, calibration, progress, above_idle=above_idle)
            text = shared.listing_text(table_frames, of_run, format, output)
        else:
            records = read_campaign(runs, device, calibration, is_one_job=job, progress=progress)
            frames = chosen_tables(records, choice)
    if is_campaign:
        if into is not None:
            write_tables(into, frames, overwrite=overwrite)
            names = ",".join(frame.attrs["name"] for frame in frames)
            print(f"{into}: /tables/{{{names}}}")
            if output is None and format == "table":
                return
        if not choice.names and choice.pivot is None:  # all for people, or the records for programs
            frames = [f for f in frames if (f.attrs["name"] == "records") == (format in _FOR_PROGRAMS)]
        if format == "parquet" and output is not None:
            shared.write(output, lambda partial: write_parquet(frames[0], partial), overwrite)
            return
        text = shared.frames_text(frames, format, output)
    shared.put_out(text, output, overwrite)


def _check(choice: Choice, format: TableFormat, output: Path | None, *, above_idle: bool) -> None:
    """Whatever is wrong with the options, before anything is read."""
    several = len(choice.names) > 1 or (choice.pivot is not None and choice.gain is not None)
    refusals = {
        "--above-idle is for the table of one run: leave the other options out": above_idle,
        "Parquet is no text: say where to write it with -o FILE.parquet": format == "parquet" and output is None,
        f"--format {format} holds one table: choose one": format in ("csv", "parquet") and several,
        "--pivot is a table of its own: leave --table out": choice.pivot is not None and bool(choice.names),
        "CO2 and money are columns of totals, not of a pivot: leave --pivot or their factors out": (
            choice.pivot is not None and bool(choice.factors)
        ),
        "--averages belongs to a pivot: add --pivot ROWS:COLUMNS:VALUE": choice.averages and choice.pivot is None,
    }
    for text, is_wrong in refusals.items():
        if is_wrong:
            raise ConfigError(text)


def compare(
    a: Annotated[Path, Parameter(help="A run file, or a directory or an index of them.")],
    b: Annotated[Path, Parameter(help="What to compare it with: the same.")],
    *,
    format: Annotated[
        Literal["table", "csv", "json", "markdown", "latex", "html"], Parameter(help="How to print it.")
    ] = "table",
    output: shared.Output = None,
    device: shared.Device = None,
    overwrite: shared.Overwrite = False,
) -> None:
    """Say which joules and seconds a batch differ between two runs or campaigns, and whether by more than chance.

    Run files are opened also where an index names them: what tells chance from a difference are the single phases and
    whose sensors measured them, and an index holds neither.

    For example:

      joules compare before.h5 after.h5

      joules compare runs/260W runs/140W --format markdown -o caps.md
    """
    from powerd_analytics.compare import compare as compare_samples
    from powerd_analytics.compare import comparison_frame
    from powerd_analytics.records import check_campaign

    shared.refuse_existing(output, overwrite, (a, b))
    with LateProgress() as progress:
        of_a, of_b = _samples(a, device, progress.part(0.0, 0.5)), _samples(b, device, progress.part(0.5, 1.0))
        check_campaign(s.record for s in [*of_a, *of_b])
        paths = [{Path(str(s.record["path"])).resolve() for s in samples} for samples in (of_a, of_b)]
        if both := paths[0] & paths[1]:
            raise AnalysisError(f"{min(both)} is on both sides: a run cannot be compared with itself")
        frame = comparison_frame(compare_samples(of_a, of_b), str(a), str(b))
    shared.put_out(shared.frames_text([frame], format, output), output, overwrite)


def _samples(path: Path, device: str | None, progress: Progress) -> list[Sample]:
    from powerd_analytics.campaign import part_of
    from powerd_analytics.compare import merge_samples, run_samples
    from powerd_analytics.index import run_files
    from powerd_analytics.records import check_run

    files = run_files([path])
    samples: list[Sample] = []
    others: list[Record] = []
    for i, file in enumerate(files):
        of_file, records = run_samples(file, device, progress=part_of(progress, i, len(files), file.name))
        check_run(file, [*(s.record for s in of_file), *records])
        samples += of_file
        others += records
    return merge_samples(samples, others)


def uncertainty(
    run: shared.RunFile,
    *,
    device: shared.Device = None,
    phase: Annotated[str | None, Parameter(help="Only phases of this name; totals and run are left out.")] = None,
    format: shared.Format = "table",
    output: shared.Output = None,
    plot: Annotated[Path | None, Parameter(help="Draw the shares as bars as well (.png, .pdf, .svg).")] = None,
    overwrite: shared.Overwrite = False,
) -> None:
    """Say what the uncertainty of each energy comes from: shares of the variance, largest first, and what shrinks it.

    For example:

      joules uncertainty run.h5

      joules uncertainty run.h5 --phase forward --plot budget.png
    """
    from powerd_analytics import uncertainty_table
    from powerd_analytics.records import check_durations

    if plot is not None:
        if output is not None and plot.absolute() == output.absolute():
            raise AnalysisError(f"{plot}: the picture and the table need two names")
        shared.refuse_picture(plot, overwrite)
    shared.refuse_existing(output, overwrite)
    with LateProgress() as progress:
        opened = shared.open_run(run, None, progress, is_checked=True)
        check_durations(opened)
        rows = uncertainty_table.budget_rows(opened, device, phase, progress=progress)
    if phase is None:
        _check_budget(run, rows)
    if plot is not None:
        from powerd_analytics.plots import draw_budget, save

        if not any(row.parts for row in rows):
            raise AnalysisError(f"{run}: nothing to draw: {rows[0].words}")
        figure = draw_budget(rows)
        shared.write(plot, lambda partial: save(figure, partial), overwrite)
    shared.put_out(shared.listing_text(uncertainty_table, rows, format, output), output, overwrite)
    if plot is not None:
        sys.stderr.write(f"{plot}\n")


def _check_budget(path: Path, rows: Sequence[BudgetRow]) -> None:
    """Raises `AnalysisError` for a run without lines, phases or energy."""
    if not rows:
        raise AnalysisError(f"{path}: this run is empty: no line feeds any of its devices")
    phases = [row for row in rows if row.table != "run"]
    if not phases:
        raise AnalysisError(
            f"{path}: this run has no phases: mark them with `meter.phase(...)` (`joules info` has its joules)"
        )
    if all(row.energy_j is None and "no readings" in row.words for row in phases):
        raise AnalysisError(
            f"{path}: none of its phases has joules, as readings are missing in all or most of them: clocks or times "
            "do not overlap, or few readings are good (`joules info` and `joules clock` say what was read, and when)"
        )


def index(
    folder: Annotated[Path, Parameter(help="A directory of run files, searched with all below it.")],
    *,
    out: Annotated[Path | None, Parameter(alias="-o", help="Index to write; DIR/index.parquet without it.")] = None,
    jobs: Annotated[int | None, Parameter(help="Processes that read run files; one a core without it.")] = None,
    scheduler: Annotated[
        str | None,
        Parameter(help="Let a Dask cluster read them, which sees them under the same names: tcp://host:8786."),
    ] = None,
    again: Annotated[bool, Parameter(negative="", help="Read files that have not changed as well.")] = False,
) -> int:
    """Write a Parquet index of a campaign: a row a run file and the records of its table.

    Brings an index that is there up to date: only new and changed files are read. What cannot be read is listed; the
    exit status is 1 when nothing can.

    For example:

      joules index runs/

      joules index /data/runs --out campaign.parquet --jobs 8

      joules index /data/runs --scheduler tcp://head:8786
    """
    from powerd_analytics.index import index_runs

    with LateProgress() as progress:
        report = index_runs(folder, out, jobs=jobs, scheduler=scheduler, again=again, progress=progress)
    shared.warn(report.failed, "files")
    shared.warn([f"{name} has vanished: taken out of the index" for name in report.vanished], "files")
    unbuilt = [f"{n} is not in the index: it is being recorded, or `joules info {n}` builds it" for n in report.unbuilt]
    shared.warn(unbuilt, "files")
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
    format: shared.Format = "table",
    output: shared.Output = None,
    overwrite: shared.Overwrite = False,
) -> None:
    """Ask an index in SQL (DuckDB's), without opening a run file. `describe phases` says what there is to ask for.

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
        title, _, rest = shared.frames_text([_with_nulls(frame)], format, output).partition("\n")
        text = rest.lstrip("\n") if not title.strip(" *") else f"{title}\n{rest}"
    shared.put_out(text, output, overwrite)


def _with_nulls(frame: pd.DataFrame) -> pd.DataFrame:
    """For people, where a column without any value would be left out: what was asked for is shown."""
    shown = frame.copy()
    for name in frame.columns:
        if frame[name].isna().all():
            shown[name] = "NULL"
    return shown
