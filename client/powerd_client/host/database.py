"""SQLite files of the user's own: opened through `powerd_client.host.ownership`, and no other program's."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from powerd_client.host.ownership import check_own, open_own
from powerd_core.errors import ConfigError, RunFileError

WAIT_S = 30.0
"""For another process that has the file: a transaction takes milliseconds."""
_APPLICATION = int.from_bytes(b"powd")
"""``PRAGMA application_id`` of our files."""


def own_database(path: Path, tables: Mapping[str, str], what: str, remedy: str) -> sqlite3.Connection:
    """The database of a file of the user's own, made where there is none: ``tables`` are the columns of each, as SQL
    writes them; `make_tables` makes them. No transaction is begun unasked.

    Raises `ConfigError` for a link, for what belongs to another user, and for a database of another program, which
    stays as it is; and `sqlite3.Error`. The messages say that it cannot be used as ``what``, and the ``remedy``.
    """
    try:
        for beside in ("-journal", "-wal", "-shm"):  # what SQLite takes into the database before it reads it
            check_own(path.with_name(f"{path.name}{beside}"))
        os.close(open_own(path, os.O_RDWR, 0o644))
    except OSError as error:
        why = error if isinstance(error, RunFileError) else error.strerror
        raise ConfigError(f"{path} cannot be used as {what}: {why}") from error
    rows = sqlite3.connect(path, timeout=WAIT_S, isolation_level=None)
    try:
        is_ours = _is_ours(rows, tables)
    except BaseException:
        rows.close()
        raise
    if not is_ours:
        rows.close()
        raise ConfigError(f"{path} is the database of another program: {remedy}")
    return rows


def make_tables(rows: sqlite3.Connection, tables: Mapping[str, str]) -> None:
    """Those that are not there. Raises `sqlite3.Error`."""
    for name, columns in tables.items():
        rows.execute(f"CREATE TABLE IF NOT EXISTS {name} {columns}")
    rows.execute(f"PRAGMA application_id = {_APPLICATION}")


def _is_ours(rows: sqlite3.Connection, tables: Mapping[str, str]) -> bool:
    """Whether nothing but our tables is in a database. Files of before have no number of an application."""
    number = rows.execute("PRAGMA application_id").fetchone()[0]
    names = {name for (name,) in rows.execute("SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'")}
    return number in (0, _APPLICATION) and names <= tables.keys() and all(_has_columns(rows, n, tables) for n in names)


def _has_columns(rows: sqlite3.Connection, table: str, tables: Mapping[str, str]) -> bool:
    with closing(sqlite3.connect(":memory:")) as ours:
        ours.execute(f"CREATE TABLE {table} {tables[table]}")
        query = f"PRAGMA table_info({table})"
        return rows.execute(query).fetchall() == ours.execute(query).fetchall()
