"""Making an index, and bringing one up to date: only files that are new or changed are read."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from powerd_analytics.energy.devices import Progress, no_progress
from powerd_analytics.indexes.files import run_files
from powerd_analytics.indexes.index import (
    CURRENT,
    FILE,
    INDEX_COLUMNS,
    NAME,
    OF_JOB,
    SUFFIX,
    WHOLE,
    Index,
    open_index,
    schema_of,
)
from powerd_analytics.indexes.jobs import with_jobs
from powerd_analytics.records.columns import Cell, Record
from powerd_analytics.reducing.reduce import Reduced, reduce_runs
from powerd_core.errors import ConfigError, RunFileError

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK = 4096
"""Run files whose records are in memory as such at one time; the rest is in columns."""
ROW_GROUP = 100_000


@dataclass(frozen=True, slots=True)
class FileState:
    """What tells whether a run file has changed. A run file is never written in place, so size and time do."""

    file_bytes: int
    file_mtime_ns: int


@dataclass(frozen=True, slots=True)
class IndexReport:
    """What indexing did."""

    path: Path
    runs: int
    """Run files in the index that could be read."""
    read: int
    """Those of them that were read now."""
    failed: tuple[str, ...] = ()
    """One line for each file that could not be read."""
    vanished: tuple[str, ...] = ()
    """Files that the index had, and that are no more."""
    afresh: str = ""
    """Why nothing of the index that was there could be kept."""


def index_runs(
    folder: Path,
    out: Path | None = None,
    *,
    jobs: int | None = None,
    scheduler: str | None = None,
    again: bool = False,
    progress: Progress = no_progress,
) -> IndexReport:
    """Index the run files below a directory; by default into `NAME` there.

    An index that is there already is brought up to date: files of the same size and time are not read unless
    ``again``. ``jobs`` and ``scheduler`` are those of `reduce_runs`, as are its errors. Nothing is written where no
    file can be read. Raises `RunFileError` for a directory without run files, and for a file in the way.
    """
    if not folder.is_dir():
        raise RunFileError(f"{folder} is no directory" if folder.exists() else f"there is no directory {folder}")
    out = out if out is not None else folder / NAME
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise RunFileError(f"{out} cannot be written: give the name of a file in a directory that exists")
    if out.suffix != SUFFIX:
        raise ConfigError(f"{out}: the name of an index ends in {SUFFIX}")
    before, afresh = _former(folder, out, again=again)
    progress(0.0, f"looking for run files in {folder}")
    files = {path.relative_to(folder).as_posix(): path for path in run_files([folder])}
    failed = [f"{path}: its name is no UTF-8: rename it" for name, path in files.items() if not _is_text(name)]
    states = {n: state for n, path in files.items() if _is_text(n) and (state := _state(path)) is not None}
    known = _known(before) if before is not None else {}
    todo = [name for name, state in states.items() if known.get(name) != state]
    vanished = sorted(_all_names(before) - set(states))
    blocks: list[pa.Table] = []
    good = len(states) - len(todo)
    for i in range(0, len(todo), BLOCK):
        names = todo[i : i + BLOCK]
        part = _part(progress, i / len(todo), len(names) / len(todo))
        found: list[Reduced[list[Record]]] = reduce_runs(
            [files[name] for name in names], jobs=jobs, scheduler=scheduler, progress=part
        )
        failed += [r.error for r in found if r.error is not None]
        good += sum(r.error is None for r in found)
        blocks.append(_table(names, found, states))
    if good and (todo or vanished or before is None):
        progress(1.0, f"writing {out}")
        kept = _kept(before, [name for name, state in states.items() if known.get(name) == state])
        _write(out, with_jobs(_ordered(kept, blocks, list(states))), _root(folder, out))
    gone = tuple(str(folder / name) for name in vanished)
    return IndexReport(out, good, good - len(states) + len(todo), tuple(failed), gone, afresh)


def _part(progress: Progress, begin: float, share: float) -> Progress:
    return lambda done, text: progress(begin + done * share, text)


def _former(folder: Path, out: Path, *, again: bool) -> tuple[Index | None, str]:
    """The index that is there, where its rows can be kept; else why not."""
    if not out.exists():
        return None, ""
    try:
        index = open_index(out, any_version=True)
    except RunFileError as error:
        raise RunFileError(f"{error}; it is in the way: name another file with --out") from error
    if index.runs.resolve() != folder.resolve():
        raise RunFileError(f"{out} is the index of {index.runs}, not of {folder}: name another file with --out")
    if again:
        return None, ""
    if (index.version, index.release, index.columns) != (CURRENT, _release(), tuple(INDEX_COLUMNS)):
        return None, "another release of powerd made the index"
    return index, ""


def _release() -> str:
    try:
        return version("powerd")
    except PackageNotFoundError:
        return ""


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _state(path: Path) -> FileState | None:
    """None where the file went away meanwhile."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return FileState(stat.st_size, stat.st_mtime_ns)


def _root(folder: Path, out: Path) -> str:
    return os.path.relpath(folder.resolve(), out.absolute().parent.resolve())


def _known(index: Index) -> dict[str, FileState]:
    """The files that were read then, as they were; those that failed are tried again."""
    import pyarrow.compute as pc

    table = index.table(("kind", "path", "error", "file_bytes", "file_mtime_ns"))
    good = table.filter((pc.field("kind") == FILE) & pc.field("error").is_null())
    columns = (good[name].to_pylist() for name in ("path", "file_bytes", "file_mtime_ns"))
    return {name: FileState(size, mtime) for name, size, mtime in zip(*columns, strict=True)}


def _all_names(index: Index | None) -> set[str]:
    return set() if index is None else {*index.names(), *index.names(broken=True)}


def _table(names: Sequence[str], found: Sequence[Reduced[list[Record]]], states: Mapping[str, FileState]) -> pa.Table:
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


def _kept(before: Index | None, names: Sequence[str]) -> list[pa.Table]:
    if before is None or not names:
        return []
    import pyarrow as pa
    import pyarrow.compute as pc

    table = before.table(tuple(INDEX_COLUMNS))
    # Jobs over several machines are made anew of what is there then.
    is_whole = pc.fill_null(pc.equal(table[OF_JOB], WHOLE), False)
    return [table.filter(pc.and_(pc.is_in(table["path"], pa.array(names)), pc.invert(is_whole)))]


def _ordered(kept: Sequence[pa.Table], blocks: Sequence[pa.Table], names: Sequence[str]) -> pa.Table:
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


def _write(out: Path, table: pa.Table, root: str) -> None:
    """Under another name first: whoever reads the index meanwhile has the old one."""
    import pyarrow.parquet as pq

    partial = out.with_name(f".{out.stem}.{os.getpid()}.partial{out.suffix}")
    whole = table.cast(schema_of(root, _release()))
    try:
        pq.write_table(whole, partial, compression="zstd", row_group_size=ROW_GROUP)
        partial.replace(out)
    except OSError as error:
        raise RunFileError(f"{out} cannot be written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):  # a file system that takes nothing refuses this as well
            partial.unlink(missing_ok=True)
