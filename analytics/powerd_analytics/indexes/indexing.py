"""Making an index, and bringing one up to date: only files that are new or changed are read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from powerd_analytics.energy.devices import Progress, no_progress
from powerd_analytics.indexes.index import CURRENT, FILE, INDEX_COLUMNS, NAME, SUFFIX, Index, open_index
from powerd_analytics.indexes.jobs import with_jobs
from powerd_analytics.indexes.present import FileState, Present, present_in, state_of
from powerd_analytics.indexes.rows import check_writable, kept_of, ordered, table_of, write
from powerd_analytics.records.columns import Record
from powerd_analytics.reducing.reduce import Reduced, reduce_runs
from powerd_client.release import release
from powerd_core.errors import ConfigError, RunFileError

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK = 4096
"""Run files whose records are in memory as such at one time; the rest is in columns."""


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
    """Files that the index had, or that were there when it was begun, and that are no more."""
    unbuilt: tuple[str, ...] = ()
    """Run files that are not there yet: they are being recorded, or their recorder died."""
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
    file can be read. Raises `RunFileError` for a directory without run files, for a file in the way, and for an index
    that could not be written, before any file is read.
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
    present = present_in(folder)
    states = present.states
    known = _known(before) if before is not None else {}
    unchanged = [name for name, state in states.items() if known.get(name) == state]
    todo = [name for name, state in states.items() if known.get(name) != state]
    vanished = sorted(_all_names(before) - set(states))
    is_due = before is None or bool(todo or vanished)
    if is_due:
        check_writable(out)
    read = _ReadNow([], [], [])
    for i in range(0, len(todo), BLOCK):
        names = todo[i : i + BLOCK]
        part = _part(progress, i / len(todo), len(names) / len(todo))
        paths = [present.files[name] for name in names]
        read.add(present, names, reduce_runs(paths, jobs=jobs, scheduler=scheduler, progress=part))
    good = len(unchanged) + read.good
    if good and is_due:
        progress(1.0, f"writing {out}")
        rows = ordered(kept_of(before, unchanged), read.blocks, list(states))
        write(out, with_jobs(rows), _root(folder, out))
    gone = tuple(str(folder / name) for name in [*vanished, *read.vanished])
    unbuilt = tuple(map(str, present.unbuilt))
    return IndexReport(out, good, read.good, (*present.failed, *read.failed), gone, unbuilt, afresh)


@dataclass(slots=True)
class _ReadNow:
    """What became of the files that were read, block by block."""

    blocks: list[pa.Table]
    failed: list[str]
    vanished: list[str]
    """Names of those that went away before they were read."""
    good: int = 0

    def add(self, present: Present, names: Sequence[str], found: Sequence[Reduced[list[Record]]]) -> None:
        kept = []
        for name, result in zip(names, found, strict=True):
            if result.error is not None and state_of(present.files[name]) is None:
                self.vanished.append(name)
            else:
                kept.append((name, result))
        self.failed += [r.error for _, r in kept if r.error is not None]
        self.good += sum(r.error is None for _, r in kept)
        self.blocks.append(table_of([name for name, _ in kept], [r for _, r in kept], present.states))


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
    if (index.version, index.release, index.columns) != (CURRENT, release(), tuple(INDEX_COLUMNS)):
        return None, "another release of powerd made the index"
    return index, ""


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
