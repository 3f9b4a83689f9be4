"""`joules tables`: the table of a run, and the field's tables of many."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from rich.console import Console

from powerd_analytics.cli.common import (
    Calibration,
    Co2,
    Currency,
    Device,
    OfFactor,
    Price,
    open_run,
    put_out,
    refuse_existing,
    stderr,
    write,
)
from powerd_core.errors import ConfigError

if TYPE_CHECKING:
    from powerd_analytics.campaigns.chosentables import Choice
    from powerd_analytics.energy.devices import Progress
    from powerd_analytics.exports.sheet import Sheet
    from powerd_analytics.tables.rows import PhaseTable

Format = Literal["table", "csv", "json", "markdown", "latex", "html", "parquet"]
Which = Literal["time", "energy", "totals", "efficiency", "gain", "jobs", "ranks", "records"]
_OF_ONE_RUN = ("table", "csv", "json", "markdown")
_FOR_PROGRAMS = ("csv", "json", "parquet")
_ONE_TABLE = ("csv", "parquet")


def tables(
    *runs: Annotated[Path, Parameter(help="Run files, and directories and indexes of them.")],
    format: Annotated[Format, Parameter(help="How to print it.")] = "table",
    output: Annotated[Path | None, Parameter(alias="-o", help="Write to this file instead of the terminal.")] = None,
    device: Device = None,
    calibration: Calibration = None,
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
    iterations: Annotated[float | None, Parameter(help="Iterations of the whole training.")] = None,
    epochs: Annotated[float | None, Parameter(help="Epochs of the whole training, with --dataset-size.")] = None,
    dataset_size: Annotated[float | None, Parameter(help="Samples of one epoch.")] = None,
    co2_g_per_kwh: Co2 = None,
    u_co2_g_per_kwh: OfFactor = None,
    price_per_kwh: Price = None,
    u_price_per_kwh: OfFactor = None,
    currency: Currency = None,
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
    from powerd_analytics.campaigns.chosentables import Choice, chosen_tables, pair_of, request_of
    from powerd_analytics.campaigns.factors import Factors
    from powerd_analytics.campaigns.trainings import Length
    from powerd_analytics.exports import write_tables
    from powerd_analytics.indexes.index import is_index
    from powerd_analytics.progress import LateProgress

    if not runs:
        raise ConfigError("no run to make tables of: give run files, or directories of them")
    request, length = request_of(pivot, rows, columns, value), Length(iterations, epochs, dataset_size)
    factors = Factors(co2_g_per_kwh, u_co2_g_per_kwh, price_per_kwh, u_price_per_kwh, currency)
    choice = Choice(tuple(table or ()), tuple(where or ()), request, averages, length, pair_of(gain), factors)
    is_many = len(runs) > 1 or runs[0].is_dir() or is_index(runs[0])
    is_campaign = is_many or bool(choice) or into is not None or format not in _OF_ONE_RUN or job
    _check(choice, format, output, above_idle=above_idle and is_campaign)
    refuse_existing(output, overwrite, runs)
    refuse_existing(into, True, is_hdf5=True)  # tables are added to a file that exists
    with LateProgress(stderr()) as progress:
        if is_campaign:
            from powerd_analytics.campaigns.campaign import read_campaign

            records = read_campaign(runs, device, calibration, is_one_job=job, progress=progress)
            sheets = chosen_tables(records, choice)
        else:
            text = _of_one(runs[0], format, device, calibration, above_idle, output is None, progress)
    if is_campaign and into is not None:
        write_tables(into, sheets, overwrite=overwrite)
        print(f"{into}: /tables/{{{','.join(sheet.name for sheet in sheets)}}}")
        if output is None and format == "table":
            return
    if is_campaign:
        shown = _suited(sheets, choice, format)
        if format == "parquet":
            from powerd_analytics.exports import write_parquet

            write(_given(output), lambda partial: write_parquet(shown[0], partial), overwrite)
            return
        text = text_of(shown, format, output is None)
    put_out(text, output, overwrite)


def _check(choice: Choice, format: Format, output: Path | None, *, above_idle: bool) -> None:
    """Whatever is wrong with the options, before anything is read."""
    if above_idle:
        raise ConfigError("--above-idle is for the table of one run: leave the other options out")
    if format == "parquet" and output is None:
        raise ConfigError("Parquet is no text: say where to write it with -o FILE.parquet")
    several = len(choice.names) > 1 or (choice.pivot is not None and choice.gain is not None)
    if format in _ONE_TABLE and several:
        raise ConfigError(f"--format {format} holds one table: choose one")
    if choice.pivot is not None and choice.names:
        raise ConfigError("--pivot is a table of its own: leave --table out")
    if choice.pivot is not None and choice.factors:
        raise ConfigError("CO2 and money are columns of totals, not of a pivot: leave --pivot or their factors out")
    if choice.averages and choice.pivot is None:
        raise ConfigError("--averages belongs to a pivot: add --pivot ROWS:COLUMNS:VALUE")


def _given(output: Path | None) -> Path:
    if output is None:
        raise ConfigError("say where to write it with -o")
    return output


def _suited(sheets: list[Sheet], choice: Choice, format: Format) -> list[Sheet]:
    """The tables to print: those asked for, else all for people, or the records for programs."""
    if choice.names or choice.pivot is not None:
        return sheets
    is_for_programs = format in _FOR_PROGRAMS
    return [sheet for sheet in sheets if (sheet.name == "records") == is_for_programs]


def text_of(sheets: list[Sheet], format: str, is_terminal: bool) -> str:
    """Sheets in a format of text; CSV takes the first."""
    from powerd_analytics import exports

    if format == "table":
        return _printed(lambda console: exports.print_sheets(sheets, console), is_terminal)
    if format == "csv":
        return exports.to_csv(sheets[0])
    makers: dict[str, Callable[[list[Sheet]], str]] = {
        "json": exports.to_json,
        "markdown": exports.to_markdown,
        "latex": exports.to_latex,
        "html": exports.to_html,
    }
    return makers[format](sheets)


def _of_one(
    run: Path,
    format: Format,
    device: str | None,
    calibration: Path | None,
    above_idle: bool,
    is_terminal: bool,
    progress: Progress,
) -> str:
    """The table of one run as it was recorded."""
    from powerd_analytics.records.checks import check_run
    from powerd_analytics.records.flat import records_of
    from powerd_analytics.records.groups import check_models
    from powerd_analytics.tables import render
    from powerd_analytics.tables.table import phase_table

    opened = open_run(run, calibration, progress)
    check_models(opened)
    if above_idle:
        from powerd_analytics.tables.baseline import table_above_idle

        table = table_above_idle(opened, device, progress=progress)
    else:
        table = phase_table(opened, device, progress=progress)
    check_run(run, records_of(opened, table))
    if format == "table":
        return _printed(lambda console: render.print_table(table, console), is_terminal)
    makers: dict[str, Callable[[PhaseTable], str]] = {
        "csv": render.to_csv,
        "json": render.to_json,
        "markdown": render.to_markdown,
    }
    return makers[format](table)


def _printed(show: Callable[[Console], None], is_terminal: bool) -> str:
    """What a console prints, as wide as the terminal and with its styles where it goes there."""
    on_terminal = is_terminal and sys.stdout is not None and sys.stdout.isatty()
    width = Console().width if on_terminal else 200
    text = io.StringIO()
    show(Console(file=text, width=width, force_terminal=on_terminal or None))
    return text.getvalue()
