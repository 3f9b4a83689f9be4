"""`joules query`: SQL over many runs, by an index that is made of them."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from powerd_analytics.cli import shared
from powerd_analytics.output.terminal import LateProgress
from powerd_core.errors import ConfigError, RunFileError
from powerd_core.text import printable

if TYPE_CHECKING:
    from powerd_analytics.frame.index import IndexReport


def query(
    runs: Annotated[Path, Parameter(help="A directory of run files, searched with all below it, or an index.")],
    sql: Annotated[
        str | None,
        Parameter(help="A SELECT over the views runs, phases, totals, ranks and files; the index alone without it."),
    ] = None,
    *,
    index: Annotated[Path | None, Parameter(help="The index of the directory: DIR/index.parquet without it.")] = None,
    jobs: Annotated[int | None, Parameter(help="Processes that read run files; one a core without it.")] = None,
    scheduler: Annotated[
        str | None,
        Parameter(help="Let a Dask cluster read them, which sees them under the same names: tcp://host:8786."),
    ] = None,
    again: Annotated[bool, Parameter(negative="", help="Read files that have not changed as well.")] = False,
    format: shared.Format = None,
    output: shared.Output = None,
    overwrite: shared.Overwrite = False,
) -> int:
    """Ask many runs in SQL, by an index that is made of them.

    The index is a Parquet file with a row a run file, and the rows of its table.
    It is made, or brought up to date, before it is asked: only new and changed
    files are read. An index that is named itself is asked as it is.

    The SQL is DuckDB's; `describe phases` says what there is to ask for.

    For example:

      joules query runs

      joules query runs "select model, batch_size, min(j_per_batch) from totals group by all order by all"

      joules query runs "select path from totals where edp_js > 1e5" --format csv

      joules query /data/runs --index runs.parquet --scheduler tcp://head:8786
    """
    form = shared.form_of(format, output)
    if not runs.exists():
        raise RunFileError(f"there is no directory of run files, and no index, {runs}")
    if runs.is_dir():
        found = _brought_up_to_date(runs, index, jobs, scheduler, again=again, is_asked=sql is not None)
        if found is None:
            return 1
    elif index is not None or jobs is not None or scheduler is not None or again:
        raise ConfigError(f"{runs} is no directory: --index, --jobs, --scheduler and --again are for one of run files")
    else:
        found = runs
    if sql is not None:
        _ask(found, sql, form, output, overwrite=overwrite)
    elif not runs.is_dir():
        raise ConfigError(f"give a SELECT, as in joules query {runs} 'select path, energy_j from totals'")
    return 0


def _brought_up_to_date(
    folder: Path, index: Path | None, jobs: int | None, scheduler: str | None, *, again: bool, is_asked: bool
) -> Path | None:
    """The index of a directory, made or renewed; None where no run file can be read. What was done is printed, or where
    it ``is_asked`` something, only what went wrong, and an index that cannot be renewed is taken as it is."""
    from powerd_analytics.frame.index import NAME, index_runs

    path = index or folder / NAME
    shared.refuse_existing(path, overwrite=True)
    try:
        with LateProgress() as progress:
            report = index_runs(folder, path, jobs=jobs, scheduler=scheduler, again=again, progress=progress)
    except RunFileError as error:
        if not (is_asked and path.is_file()):
            raise
        shared.warn([f"{path} is asked as it is: {error}"])
        return path
    _print_report(report, is_asked=is_asked)
    return report.path if report.runs else None


def _print_report(report: IndexReport, *, is_asked: bool) -> None:
    unbuilt = [f"{n} is not in the index: it is being recorded, or `joules info {n}` builds it" for n in report.unbuilt]
    vanished = [f"{name} has vanished: taken out of the index" for name in report.vanished]
    shared.warn([*report.failed, *vanished, *unbuilt], "files")
    if not report.runs:
        sys.stderr.write(f"joules: none of {len(report.failed)} run files can be read: no index written\n")
    elif not is_asked:
        counts = [f"{report.runs} runs", f"{report.read} read now" + (f" ({report.afresh})" if report.afresh else "")]
        counts += [f"{len(report.failed)} failed"] if report.failed else []
        counts += [f"{len(report.vanished)} vanished"] if report.vanished else []
        print(printable(f"{report.path}: {', '.join(counts)}"))


def _ask(index: Path, sql: str, form: shared.TableFormat, output: Path | None, *, overwrite: bool) -> None:
    from powerd_analytics.frame.index import query as ask
    from powerd_analytics.output.export import Column, make_table

    shared.check_output(output, form, overwrite, [index])
    with LateProgress() as progress:
        table = ask(index, sql, progress=progress)
    if form in ("text", "markdown", "latex"):
        # A column without any value would be left out: what was asked for is shown.
        empty = [name for k, name in enumerate(table.names) if all(row[k] is None for row in table.rows)]
        columns = [Column(c.name) if c.name in empty else replace(c, is_setting=False) for c in table.columns]
        table = make_table("query", "", columns, [row | dict.fromkeys(empty, "NULL") for row in table.records()])
    if form == "text":  # its first line is for a title
        text = shared.tables_text([table], form, output)
        shared.put_out(type(text)(text.partition("\n")[2]), output, overwrite)
    else:
        shared.put_tables([table], form, output, overwrite)
