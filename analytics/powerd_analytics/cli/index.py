"""`joules index` and `joules query`: campaigns of thousands of runs without opening their files each time."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from powerd_analytics.cli.common import put_out, refuse_existing, stderr
from powerd_core.text import printable

if TYPE_CHECKING:
    from powerd_analytics.exports.sheet import Sheet
    from powerd_analytics.indexes.indexing import IndexReport

Format = Literal["table", "csv", "json", "markdown"]
_MOST_LINES = 40


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
    from powerd_analytics.indexes.indexing import index_runs
    from powerd_analytics.progress import LateProgress

    with LateProgress(stderr()) as progress:
        report = index_runs(folder, out, jobs=jobs, scheduler=scheduler, again=again, progress=progress)
    _say(report.failed)
    _say([f"{name} has vanished: taken out of the index" for name in report.vanished])
    _say([f"{n} is not in the index: it is being recorded, or `joules info {n}` builds it" for n in report.unbuilt])
    if not report.runs:
        sys.stderr.write(f"joules: none of {len(report.failed)} run files can be read: no index written\n")
        return 1
    print(printable(_summary(report)))
    return 0


def _summary(report: IndexReport) -> str:
    said = [f"{report.runs} runs", f"{report.read} read now" + (f" ({report.afresh})" if report.afresh else "")]
    said += [f"{len(report.failed)} failed"] if report.failed else []
    said += [f"{len(report.vanished)} vanished"] if report.vanished else []
    return f"{report.path}: {', '.join(said)}"


def _say(lines: Sequence[str]) -> None:
    for line in lines[:_MOST_LINES]:
        sys.stderr.write(f"joules: {printable(' '.join(line.split()))}\n")
    if len(lines) > _MOST_LINES:
        sys.stderr.write(f"joules: and {len(lines) - _MOST_LINES} more such files\n")


def query(
    index: Annotated[Path, Parameter(help="An index, or the directory that has one.")],
    sql: Annotated[str, Parameter(help="A SELECT over the views runs, phases, totals, ranks, jobs and files.")],
    *,
    format: Annotated[Format, Parameter(help="How to print it.")] = "table",
    output: Annotated[Path | None, Parameter(alias="-o", help="Write to this file instead of the terminal.")] = None,
    overwrite: Annotated[bool, Parameter(negative="", help="Replace a file that exists.")] = False,
) -> None:
    """Ask an index in SQL (DuckDB's), without opening a run file. `describe phases` says what there is to ask for.

    For example:

      joules query runs "select model, batch_size, min(j_per_batch) from totals group by all order by all"

      joules query runs "select path from totals where edp_js > 1e5" --format csv

      joules query runs "pivot phases on phase using avg(j_per_batch) group by device_name" --format markdown
    """
    from powerd_analytics.indexes.query import query as ask
    from powerd_analytics.progress import LateProgress

    refuse_existing(output, overwrite, [index])
    with LateProgress(stderr()) as progress:
        sheet = ask(index, sql, progress=progress)
    text = _text_of(sheet, format, output is None)
    put_out(text, output, overwrite)


def _text_of(sheet: Sheet, format: Format, is_terminal: bool) -> str:
    from powerd_analytics.cli.tables import text_of

    if format == "json":
        names = [column.name for column in sheet.columns]
        return json.dumps([dict(zip(names, row, strict=True)) for row in sheet.rows], indent=1, allow_nan=False) + "\n"
    if format == "csv":
        return text_of([sheet], format, is_terminal)
    title, _, text = text_of([_with_nulls(sheet)], format, is_terminal).partition("\n")
    return text.lstrip("\n") if not title.strip(" *") else f"{title}\n{text}"


def _with_nulls(sheet: Sheet) -> Sheet:
    """For people, where a column without any value would be left out: what was asked for is shown."""
    empty = [all(row[i] is None for row in sheet.rows) for i in range(len(sheet.columns))]
    rows = (tuple("NULL" if none else v for v, none in zip(row, empty, strict=True)) for row in sheet.rows)
    return replace(sheet, rows=tuple(rows))
