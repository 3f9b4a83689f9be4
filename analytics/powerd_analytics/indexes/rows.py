"""The rows of an index: made of records, kept from a former index, put in order and written."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from powerd_analytics.indexes.index import FILE, INDEX_COLUMNS, OF_JOB, WHOLE, Index, schema_of
from powerd_analytics.indexes.present import FileState
from powerd_analytics.records.columns import Cell, Record
from powerd_analytics.reducing.reduce import Reduced
from powerd_client.release import release
from powerd_core.errors import RunFileError

if TYPE_CHECKING:
    import pyarrow as pa

ROW_GROUP = 100_000


def table_of(names: Sequence[str], found: Sequence[Reduced[list[Record]]], states: Mapping[str, FileState]) -> pa.Table:
    """Rows of run files, each followed by its records."""
    import pyarrow as pa

    rows: list[Record] = []
    for name, result in zip(names, found, strict=True):
        records = result.value or []
        state = states[name]
        first = records[0] if records else {"run": Path(name).stem}
        row: Record = {key: first.get(key) for key in ("run", "run_id", "created_utc", "host")}
        row |= {"kind": FILE, "path": name, "file_bytes": state.file_bytes, "file_mtime_ns": state.file_mtime_ns}
        rows.append(row | {"records": len(records), "error": result.error})
        rows += [record | {"path": name} for record in records]
    schema = schema_of(".", "")
    columns = [pa.array([_cell(row.get(f.name), f.name) for row in rows], f.type) for f in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _cell(value: Cell, name: str) -> Cell:
    kind = INDEX_COLUMNS[name].kind
    if value is None:
        return None
    if kind == "text":
        # Half a character in an attribute of a phase cannot be written as UTF-8.
        return str(value).encode(errors="replace").decode()
    return float(value) if kind == "number" else value


def kept_of(before: Index | None, names: Sequence[str]) -> list[pa.Table]:
    """The rows that a former index has of these files."""
    if before is None or not names:
        return []
    import pyarrow as pa
    import pyarrow.compute as pc

    table = before.table(tuple(INDEX_COLUMNS))
    # Jobs over several machines are made anew of what is there then.
    is_whole = pc.fill_null(pc.equal(table[OF_JOB], WHOLE), False)
    return [table.filter(pc.and_(pc.is_in(table["path"], pa.array(names)), pc.invert(is_whole)))]


def ordered(kept: Sequence[pa.Table], blocks: Sequence[pa.Table], names: Sequence[str]) -> pa.Table:
    """In the order of the files, however many indexings the rows came from."""
    import pyarrow as pa
    import pyarrow.compute as pc

    plain = [table.replace_schema_metadata(None) for table in [*kept, *blocks]]
    table = pa.concat_tables(plain)
    if not kept:
        return table
    place = pc.index_in(table["path"], pa.array(names, pa.string()))
    order = pa.table({"place": place, "row": pa.array(range(len(table)))})
    return table.take(order.sort_by([("place", "ascending"), ("row", "ascending")])["row"])


def _partial(out: Path) -> Path:
    return out.with_name(f".{out.stem}.{os.getpid()}.partial{out.suffix}")


def check_writable(out: Path) -> None:
    """Raises `RunFileError` where no file can be made, before hours of reading are for nothing."""
    partial = _partial(out)
    try:
        partial.touch()
        partial.unlink()
    except OSError as error:
        raise RunFileError(
            f"{out} cannot be written: {error.strerror or error}; name another file with --out"
        ) from error


def write(out: Path, table: pa.Table, root: str) -> None:
    """Under another name first: whoever reads the index meanwhile has the old one."""
    import pyarrow.parquet as pq

    partial = _partial(out)
    whole = table.cast(schema_of(root, release()))
    try:
        pq.write_table(whole, partial, compression="zstd", row_group_size=ROW_GROUP)
        partial.replace(out)
    except OSError as error:
        # pyarrow's own words are about bytes and files that nobody has heard of.
        why = os.strerror(error.errno) if error.errno else error
        raise RunFileError(f"{out} cannot be written: {why}") from error
    finally:
        with contextlib.suppress(OSError):  # a file system that takes nothing refuses this as well
            partial.unlink(missing_ok=True)
