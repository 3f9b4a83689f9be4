"""SQL over an index by DuckDB, which can read nothing but the index and write nothing at all."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from powerd_analytics.energy.devices import Progress, no_progress
from powerd_analytics.exports.sheet import Sheet, SheetColumn
from powerd_analytics.indexes.index import FILE, FILE_COLUMNS, OF_JOB, PART, Index, open_index
from powerd_analytics.records.columns import COLUMNS, Cell
from powerd_core.errors import AnalysisError, ConfigError

if TYPE_CHECKING:
    import duckdb

VIEWS = {"runs": "run", "phases": "phase", "totals": "total", "ranks": "rank", "jobs": "job"}
"""View -> ``kind`` of its records. Beside these there is ``files``, a row a run file. Of a job over several machines
there are its own records, not those of its parts."""
_OF_FILES = ("path", "run", "run_id", "created_utc", "host", *FILE_COLUMNS)
_POLL_S = 0.1
_GLOB = re.compile(r"[*?\[]")
_PIVOT = re.compile(r"\s*(PIVOT|UNPIVOT|SELECT|FROM|WITH|\()", re.IGNORECASE)
_ALONE: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "temp_directory": "",
}


def query(path: Path, sql: str, *, progress: Progress = no_progress) -> Sheet:
    """The answer of an index to one SELECT over its views: those of `VIEWS` and ``files``.

    Raises `RunFileError` as `open_index`, `AnalysisError` for SQL that cannot be answered or would do something else
    than ask.
    """
    try:
        import duckdb
    except ImportError as error:
        raise ConfigError("queries need DuckDB: pip install 'powerd[campaign]'") from error
    index = open_index(path)
    connection = connected(index)
    try:
        statements = connection.extract_statements(sql)
        if len(statements) != 1 or not _only_asks(statements[0]):
            raise AnalysisError(f"{index.path}: an index is only asked: give one SELECT")
        return _sheet(*_answer(connection, statements[0], progress))
    except (duckdb.Error, RuntimeError) as error:
        raise AnalysisError(f"{index.path}: {_one_line(str(error))}") from error
    finally:
        with contextlib.suppress(duckdb.Error):  # busy for a moment after Ctrl-C, and refuses; it is in memory only
            connection.close()


def _only_asks(statement: Any) -> bool:
    """Whether a statement can do nothing but read.

    It must be looked at, for DuckDB lets no one read the index's file who could not also write it. A query with a PIVOT
    is of type MULTI, but so is COPY of one; EXPLAIN ANALYZE does what it explains.
    """
    import duckdb

    if statement.type == duckdb.StatementType.MULTI:
        return _PIVOT.match(statement.query) is not None
    return bool(statement.type == duckdb.StatementType.SELECT)


def connected(index: Index) -> duckdb.DuckDBPyConnection:
    """A database in memory with the views of an index, which has no way to any other file."""
    import duckdb

    connection = duckdb.connect(":memory:", config=_ALONE)
    name = str(index.path.absolute())
    pattern = _GLOB.sub(r"[\g<0>]", name)  # which only that file fits, whatever its directories are called
    file = _text(pattern)
    connection.execute(f"SET allowed_paths = [{_text(name)}, {file}]")
    connection.execute("SET enable_external_access = false")
    # Without the option, a directory called `model=x` would become a column.
    connection.execute(f"CREATE VIEW _index AS SELECT * FROM read_parquet({file}, hive_partitioning = false)")
    runs = "" if str(index.runs) == "." else f"{index.runs}/"
    full = f"{_text(runs)} || path AS path"
    for view, kind in VIEWS.items():
        names = ", ".join(full if name == "path" else name for name in COLUMNS if name in index.columns)
        once = f" AND {OF_JOB} IS DISTINCT FROM {_text(PART)}" if OF_JOB in index.columns else ""
        connection.execute(f"CREATE VIEW {view} AS SELECT {names} FROM _index WHERE kind = {_text(kind)}{once}")
    names = ", ".join(full if name == "path" else name for name in _OF_FILES if name in index.columns)
    connection.execute(f"CREATE VIEW files AS SELECT {names} FROM _index WHERE kind = {_text(FILE)}")
    connection.execute("SET lock_configuration = true")
    return connection


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _answer(
    connection: duckdb.DuckDBPyConnection, statement: Any, progress: Progress
) -> tuple[list[tuple[str, str]], list[tuple[Any, ...]]]:
    """Names and types of the columns, and the rows. In a thread, so that somebody can look and Ctrl-C works."""

    def ask() -> tuple[list[tuple[str, str]], list[tuple[Any, ...]]]:
        result = connection.execute(statement)
        return [(str(d[0]), str(d[1])) for d in result.description or ()], result.fetchall()

    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(ask)
        try:
            while not wait([asked], _POLL_S).done:
                progress(max(0.0, connection.query_progress()) / 100, "asking the index")
        except BaseException:
            connection.interrupt()
            raise
        return asked.result()


def _sheet(columns: Sequence[tuple[str, str]], rows: Sequence[tuple[Any, ...]]) -> Sheet:
    names: list[str] = []
    for name, _ in columns:
        same = sum(n == name or n.rpartition("_")[0] == name for n in names)
        names.append(f"{name}_{same + 1}" if name in names else name)
    made = tuple(SheetColumn(name, name, _kind(kind)) for name, (_, kind) in zip(names, columns, strict=True))
    return Sheet("query", "", made, tuple(tuple(map(_cell, row)) for row in rows))


def _kind(duckdb_type: str) -> Any:
    name = duckdb_type.upper().partition("(")[0]
    if name == "BOOLEAN":
        return "flag"
    if name.endswith("INT") or name in ("INTEGER", "UINTEGER"):
        return "integer"
    return "number" if name in ("FLOAT", "DOUBLE", "DECIMAL") else "text"


def _cell(value: Any) -> Cell:
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float | Decimal):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, list | dict | tuple):
        return json.dumps(value, default=str)
    return str(value)


def _one_line(text: str) -> str:
    """DuckDB's message without its drawing of the place."""
    if "pytz" in text:
        return "times with a zone cannot be shown: cast them, as in now()::VARCHAR"
    said = " ".join(text.partition("\n\nLINE ")[0].split())
    if "Permission" in said or "external extensions" in said:
        return "a query sees the views of the index and nothing else, neither files nor extensions"
    return said
