"""Thousands of runs: one Parquet file with a row for each run file and the rows of its frame.

`index_runs` reads the run files below a directory, on all cores or on a Dask cluster, and brings an index that is there
up to date: only files that are new or changed are read. `index_frame` gives the frame back without opening a run file.
`query` answers SQL by DuckDB, which sees the index and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import math
import multiprocessing
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import pyarrow.parquet as pq
from threadpoolctl import threadpool_limits

from powerd_analytics.frame.figure import Record
from powerd_analytics.frame.figures import (
    ATTRIBUTE,
    COLUMNS,
    FRAME_VERSION,
    Frame,
    attributes_in,
    column,
    concat_frames,
    frame_of_records,
    known_records,
    rows_of,
    run_frame,
    run_records,
    with_column_types,
)
from powerd_analytics.frame.machines import jobs_of, of_machines, split_parts
from powerd_analytics.output.export import Column, Kind, Table, arrow_schema, arrow_table, make_table, whole_file
from powerd_analytics.output.text import Cell
from powerd_analytics.runs.run import Progress, no_progress, pick
from powerd_client.host.log import install_hint
from powerd_client.journals.journal import ONE_THREAD, RUN_SUFFIXES
from powerd_client.record.recording import release
from powerd_core.errors import AnalysisError, ConfigError, PeerError, PowerdError, RunFileError

if TYPE_CHECKING:
    import pandas as pd

# -- run files ---------------------------------------------------------------------------------------------------------

JOURNAL = ".journal"
"""Ends the name of a directory in which a run is being recorded; what begins with a point is being written."""


@dataclass(slots=True)
class Below:
    """What is below a directory: links to directories are followed, and each directory is looked at once."""

    files: list[Path] = field(default_factory=list)
    """Run files, sorted. A link to one that is there under its own name is no second run."""
    unbuilt: list[Path] = field(default_factory=list)
    """Run files that are not there yet: they are being recorded, or their recorder died."""
    unreadable: list[str] = field(default_factory=list)
    """A line for each directory that cannot be read."""


def run_files(paths: Sequence[Path]) -> list[Path]:
    """The run files that are meant: files as they are, all below directories, sorted by name, and those of indexes.

    Raises `RunFileError` for a directory without any or that cannot be read, and for a file that is given twice.
    """
    files: list[Path] = []
    for path in map(Path, paths):
        if is_index(path):
            files += index_files(path)
        elif path.is_dir():
            below = look_below(path)
            if below.unreadable:
                raise RunFileError(below.unreadable[0])
            files += below.files
        else:
            files.append(path)
    seen: set[Path] = set()
    for path in files:
        if path.resolve() in seen:
            raise RunFileError(f"{path} is given twice: a run counts once")
        seen.add(path.resolve())
    return files


def look_below(folder: Path) -> Below:
    """The run files of a directory and of all below it. Raises `RunFileError` where there are none."""
    below = Below()
    folders_seen: set[str] = set()
    by_target: dict[str, Path] = {}

    def refused(error: OSError) -> None:
        below.unreadable.append(f"{error.filename} cannot be read: {error.strerror or error}")

    for name, folders, names in os.walk(folder, onerror=refused, followlinks=True):
        if (place := os.path.realpath(name)) in folders_seen:
            folders.clear()
            continue
        folders_seen.add(place)
        journals = [Path(name, n.removesuffix(JOURNAL)) for n in folders if n.endswith(JOURNAL)]
        below.unbuilt += [run for run in journals if run.suffix in RUN_SUFFIXES and not run.exists()]
        folders[:] = sorted(n for n in folders if not n.startswith(".") and not n.endswith(JOURNAL))
        for path in (Path(name, n) for n in sorted(names) if not n.startswith(".")):
            if path.suffix in RUN_SUFFIXES and (not path.is_symlink() or os.path.realpath(path) not in by_target):
                by_target[os.path.realpath(path)] = path
    below.files = sorted(by_target.values())
    below.unbuilt.sort()
    if not below.files:
        why = f"{folder}: there are no run files in this directory (*.h5)"
        if folder.name.endswith(JOURNAL):
            why = f"{folder} is a journal: wait for its run to end, or `joules journal recover {folder}`"
        raise RunFileError((below.unreadable or [why])[0])
    return below


# -- the index ---------------------------------------------------------------------------------------------------------

INDEX_VERSION = 2
CURRENT = (INDEX_VERSION, FRAME_VERSION)
SUFFIX = ".parquet"
NAME = "index.parquet"
"""The index of a directory that was given no other name, in that directory."""
FILE = "file"
"""``kind`` of the rows that stand for run files."""
METADATA = b"powerd-index"
_OF_FILES = (
    Column("file_bytes", "integer", "1", "size of the run file"),
    Column("file_mtime_ns", "integer", "ns", "when the run file was last changed, since 1970"),
    Column("records", "integer", "1", "how many rows its frame has"),
    Column("error", "text", "", "why the file could not be read"),
)
FILE_COLUMNS = {
    c.name: c for c in (*(COLUMNS[n] for n in ("path", "run", "run_id", "created_utc", "host")), *_OF_FILES)
}
"""Columns of rows of kind `FILE`; the last four only these have."""
OF_JOB, PART, WHOLE = "of_job", "part", "whole"
INDEX_COLUMNS = {
    **COLUMNS,
    **FILE_COLUMNS,
    OF_JOB: Column(OF_JOB, "text", "", "part: of one machine of a training over several; whole: of such a training"),
}
"""Columns of every index, in their order. Behind them are those of the runs' attributes, by name."""
ROW_GROUP = 100_000
AGAIN = "make it again with `joules query DIR`"


@dataclass(frozen=True, slots=True)
class Index:
    """An index that can be read. Its paths are relative to ``runs``, so that both can move together."""

    path: Path
    runs: Path
    """The directory that was indexed."""
    columns: tuple[str, ...]
    is_own: bool
    """Whether this release of powerd wrote it: then its rows can be kept."""

    @property
    def frame_columns(self) -> list[str]:
        """Those of the runs' frames: all but what is said of files."""
        return [*COLUMNS, *(name for name in self.columns if name.startswith(ATTRIBUTE))]

    def table(self, columns: Iterable[str]) -> pa.Table:
        """All rows of these columns; a column that a former release did not know is null."""
        try:
            known = [name for name in columns if name in self.columns]
            table = pq.read_table(self.path, columns=known, partitioning=None)  # a folder model=none says nothing of it
        except (pa.ArrowException, OSError) as error:
            raise RunFileError(f"{self.path} is damaged ({error}): {AGAIN}") from error
        for unknown in arrow_schema(INDEX_COLUMNS[name] for name in columns if name not in self.columns):
            table = table.append_column(unknown, pa.nulls(len(table), unknown.type))
        return table.select(list(columns))

    def files(self) -> list[dict[str, Any]]:
        """The rows of run files."""
        return list(self.table(("kind", *FILE_COLUMNS)).filter(pc.field("kind") == FILE).to_pylist())

    def rows(self) -> pa.Table:
        """The rows of the runs' frames, each run as if it were alone."""
        table = self.table((*self.frame_columns, OF_JOB))
        is_of_file = pc.field(OF_JOB).is_null() | (pc.field(OF_JOB) != WHOLE)
        return table.filter((pc.field("kind") != FILE) & is_of_file).drop_columns([OF_JOB])


_PANDAS = {pa.string(): pd.StringDtype(), pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}


def _frame(rows: pa.Table) -> Frame:
    """The frame of an index's rows. Which attributes there are, and of what kind, follows from these rows alone."""
    frame = rows.to_pandas(types_mapper=_PANDAS.get)
    attributes = attributes_in(frame)
    missing = [name for name in attributes if not frame[name].notna().any()]
    return with_column_types(frame.astype(dict.fromkeys(attributes, object)).drop(columns=missing))


def is_index(path: Path) -> bool:
    """Whether a path on the command line means an index, by its name."""
    return path.suffix == SUFFIX and not path.is_dir()


def open_index(path: Path | str, *, any_version: bool = False) -> Index:
    """The index in a file, or in a directory under its usual name.

    Raises `RunFileError` where there is none, for what is no index, and for one of another version unless
    ``any_version``, whose rows may then mean something else.
    """
    path = Path(path)
    if path.is_dir():
        path /= NAME
    if not path.is_file():
        raise RunFileError(f"there is no index {path}: `joules query DIR` makes one")
    try:
        schema = pq.read_schema(path)
        about = json.loads((schema.metadata or {})[METADATA])
        version, root, of_release = tuple(about["version"]), str(about["runs"]), str(about["powerd_version"])
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise RunFileError(f"{path} is no index that can be read ({error}): `joules query DIR` makes one") from error
    if version != CURRENT and not any_version:
        raise RunFileError(f"{path} was made by another release of powerd: {AGAIN}")
    # The link that an index may be reached by does not tell where its runs are.
    below = Path(os.path.realpath(path)).parent
    runs = path.parent if root == "." else Path(os.path.normpath(below / root))
    fixed = schema.names[: len(INDEX_COLUMNS)]
    is_own = (version, of_release, fixed) == (CURRENT, release(), list(INDEX_COLUMNS))
    return Index(path, runs, tuple(schema.names), is_own)


def index_files(path: Path) -> list[Path]:
    """The run files of an index. Raises `RunFileError` as `open_index`, and where some could not be read."""
    index = open_index(path)
    files = index.files()
    if broken := [file["path"] for file in files if file["error"] is not None]:
        raise RunFileError(
            f"{index.runs / broken[0]} could not be read when {index.path} was made (nor {len(broken) - 1} others): "
            "an index is of all runs; take it away and ask again"
        )
    return [index.runs / file["path"] for file in files]


def index_frame(path: Path | str, device: str | None = None, *, progress: Progress = no_progress) -> Frame:
    """The frame of all runs of an index, without opening a run file: that of `powerd_analytics.frame.figures.run_frame`
    for each, one below the other. Machines of one training are left to
    `powerd_analytics.frame.machines.merge_machines`.

    Raises `RunFileError` as `open_index`, `AnalysisError` for an unknown device.
    """
    index = open_index(path)
    progress(0.0, f"reading {index.path}")
    rows = index.rows()
    if device is not None:
        devices = rows["device"].drop_null().unique().to_pylist()
        of_device = rows.filter(pc.field("device") == pick(device, devices, "device"))["path"].unique()
        # Seconds of ranks are of no device.
        is_own = (pc.field("device") == device) | ((pc.field("kind") == "rank") & pc.field("path").isin(of_device))
        rows = rows.filter(is_own)
    if not len(rows):
        raise AnalysisError(f"{index.path}: there is no run in it")
    frame = _frame(rows)
    frame["path"] = (f"{index.runs}{os.sep}" + frame["path"]) if index.runs != Path() else frame["path"]
    return frame


# -- many run files, here or on a cluster ------------------------------------------------------------------------------

T = TypeVar("T")
Reducer = Callable[[Path], T]
"""Takes the absolute path of a run file. For other processes it must be a function of a module that they can import."""
ANSWER_S = 5.0
"""How long the scheduler of a cluster may take to answer."""


@dataclass(frozen=True, slots=True)
class Reduced(Generic[T]):
    """What became of one run file: ``value``, or ``error`` (one line that names the file) where there is none."""

    path: Path
    value: T | None
    error: str | None = None


def reduce_runs(
    paths: Iterable[Path],
    function: Reducer[T] = run_frame,
    *,
    jobs: int | None = None,
    scheduler: str | None = None,
    progress: Progress = no_progress,
) -> list[Reduced[T]]:
    """``function`` of every run file, in the order of ``paths``; the same in every way of running.

    ``jobs`` processes of this machine do it (one a core without), or the workers of the Dask cluster at ``scheduler``
    (``tcp://host:8786``), which must see the files under the same names. A file that cannot be reduced, even one that
    kills the process that reads it, has an ``error`` and stops no other. One job is this process itself, which such a
    file would end. A script calls this below ``if __name__ == "__main__":``, or with one job.

    Raises `ConfigError` for options that cannot be used, `PeerError` where the cluster is not there or ends.
    `KeyboardInterrupt` ends the processes first.
    """
    given = [Path(p) for p in paths]
    if jobs is not None and (jobs < 1 or scheduler is not None):
        raise ConfigError("give 1 job or more, for this machine, or the scheduler of a cluster")
    todo = list(dict.fromkeys(p.absolute() for p in given))
    results: dict[Path, Reduced[T]] = {}

    def done(result: Reduced[T]) -> None:
        results[result.path] = result
        progress(len(results) / len(todo), f"{len(results)} of {len(todo)} run files")

    progress(0.0, f"0 of {len(todo)} run files")
    if scheduler is not None:
        _on_cluster(scheduler, function, todo, done)
    elif jobs == 1:
        for path in todo:
            done(reduce_file(function, path))
    else:
        count = min(jobs or cores(), len(todo))
        while left := [path for path in todo if path not in results]:
            _on_processes(count, function, left, done)
            count = 1  # after a death one process reads what is left, so that the next death names its file
    # Under the names by which the caller knows the files.
    of_given = [(path, results[path.absolute()]) for path in given]
    return [replace(r, path=p, error=r.error and r.error.replace(str(r.path), str(p))) for p, r in of_given]


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def reduce_file(function: Reducer[T], path: Path) -> Reduced[T]:
    """``function`` of one file; whatever it raises becomes the ``error``."""
    try:
        return Reduced(path, function(path))
    except Exception as error:  # noqa: BLE001 - its row says why, and the others go on
        return _failed(path, error)


def _failed(path: Path, error: BaseException) -> Reduced[Any]:
    """An error in one line that names the file."""
    line = " ".join(str(error).split())
    line = line if isinstance(error, PowerdError) else f"{type(error).__name__}: {line}"
    return Reduced(path, None, line if str(path) in line else f"{path}: {line}")


def _on_processes(count: int, function: Reducer[T], paths: Sequence[Path], done: Callable[[Reduced[T]], None]) -> None:
    """A process that dies takes its pool along: some of the files then have no result."""
    others = set(multiprocessing.active_children())
    # Spawned, not forked: HDF5 and numerical libraries hold locks and threads that a fork would copy in any state.
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, spawning, initializer=_with_one_thread) as pool:
        try:
            with _ctrl_c_later():
                futures = _submitted(pool, function, paths)
            unread = _gathered(futures, done)
        except BaseException:
            for process in set(multiprocessing.active_children()) - others:
                process.kill()  # it only reads
            raise
    if unread and count == 1:
        done(_failed(unread[0], PeerError("the process that read it was killed (out of memory?)")))


def _with_one_thread() -> None:
    # A thread a core in each of as many processes would wait for each other. What loads later reads the environment.
    os.environ |= ONE_THREAD
    threadpool_limits(1)


@contextlib.contextmanager
def _ctrl_c_later() -> Iterator[None]:
    """Processes that begin here inherit Ctrl-C as blocked. It goes to the whole group: the parent, which does see it,
    ends them. An initializer would come too late, as they are interrupted while they still import."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _submitted(pool: Executor, function: Reducer[T], paths: Sequence[Path]) -> list[tuple[Path, Future[Reduced[T]]]]:
    return [(path, pool.submit(reduce_file, function, path)) for path in paths]


def _gathered(futures: Sequence[tuple[Path, Future[Reduced[T]]]], done: Callable[[Reduced[T]], None]) -> list[Path]:
    """Returns the files, in order, that a broken pool left unread."""
    unread = []
    for path, future in futures:
        error = future.exception()
        if isinstance(error, BrokenProcessPool):
            unread.append(path)
        elif error is not None:  # of the way to the process and back
            done(_failed(path, error))
        else:
            done(future.result())
    return unread


def _on_cluster(
    scheduler: str, function: Reducer[T], paths: Sequence[Path], done: Callable[[Reduced[T]], None]
) -> None:
    """A task a file, by the workers of a Dask cluster that is already there."""
    try:
        from distributed import Client
    except ImportError as error:
        raise ConfigError(f"a Dask cluster needs its client here: {install_hint('query')}") from error
    try:
        client: Any = Client(scheduler, timeout=ANSWER_S, set_as_default=False)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        raise PeerError(f"no Dask scheduler answers at {scheduler}: {error}") from error
    with client:
        if not client.scheduler_info()["workers"]:
            raise PeerError(f"{scheduler} has no workers: start some with `dask worker {scheduler}`")
        try:
            # Not pure: a file under a known name may hold something else than before.
            with client.get_executor(pure=False) as pool:
                _gathered(_submitted(pool, function, paths), done)
        except CancelledError:
            raise PeerError(f"the Dask cluster at {scheduler} went away") from None


# -- making an index ---------------------------------------------------------------------------------------------------

BLOCK = 4096
"""Run files whose frames are in memory one by one at a time."""


@dataclass(frozen=True, slots=True)
class IndexReport:
    """What indexing did; each text is a line about one file."""

    path: Path
    runs: int
    """Run files in the index that could be read."""
    read: int
    """Those of them that were read now."""
    failed: tuple[str, ...] = ()
    vanished: tuple[str, ...] = ()
    """Files that the index had and that are no more."""
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
        raise RunFileError(f"there is no directory {folder}")
    out = out if out is not None else folder / NAME
    if out.suffix != SUFFIX:
        raise ConfigError(f"{out}: the name of an index ends in {SUFFIX}")
    before, afresh = _former(folder, out, again=again)
    progress(0.0, f"looking for run files in {folder}")
    below = look_below(folder)
    failed = list(below.unreadable)
    states = _states_of(folder, below.files, failed)
    files = {file["path"]: file for file in before.files()} if before is not None else {}
    unchanged = [name for name in states if name in files and _is_unchanged(files[name], states[name])]
    done = set(unchanged)
    todo = [name for name in states if name not in done]
    vanished = sorted(set(files) - set(states))
    is_due = before is None or bool(todo or vanished)
    if is_due and not os.access(out.parent, os.W_OK):  # before hours of reading are for nothing
        raise RunFileError(f"{out} cannot be written: its directory takes no files, or is none")
    is_kept = pc.field("path").isin(pa.array(unchanged, pa.string()))  # of a type where there is none, too
    frames = [_frame(before.rows().filter(is_kept))] if before is not None else []
    read = 0
    for i in range(0, len(todo), BLOCK):
        reduced = partial(reduce_runs, jobs=jobs, scheduler=scheduler, progress=progress)
        records = _records_of(folder, todo[i : i + BLOCK], reduced, again=again)
        frame = frame_of_records(row | {"path": name} for name, own in records.items() for row in own.value or ())
        first = {str(r["path"]): r for r in reversed(rows_of(frame[[n for n in FILE_COLUMNS if n in frame]]))}
        for name, own in records.items():
            files[name] = _row_of_file(name, states[name], first.get(name), len(own.value or ()), own.error)
        errors = [own.error for own in records.values() if own.error is not None]
        failed += errors
        read += len(records) - len(errors)
        frames.append(frame)
    if is_due and (unchanged or read):
        progress(1.0, f"writing {out}")
        root = os.path.relpath(folder.resolve(), out.absolute().parent.resolve())
        _write(out, [files[name] for name in states], concat_frames(frames), root)
    gone = tuple(str(folder / name) for name in vanished)
    return IndexReport(out, len(unchanged) + read, read, tuple(failed), gone, tuple(map(str, below.unbuilt)), afresh)


def _is_unchanged(file: Record, state: tuple[int, int]) -> bool:
    return file["error"] is None and state == (file["file_bytes"], file["file_mtime_ns"])


_Records = Reduced[list[dict[str, Any]]]


def _records_of(
    folder: Path, names: Sequence[str], reduce: Callable[..., list[_Records]], *, again: bool
) -> dict[str, _Records]:
    """The rows of run files by their names; but with ``again`` the kept ones of files that have them."""
    kept = {} if again else {name: known_records(folder / name) for name in names}
    records = {name: Reduced(folder / name, rows) for name, rows in kept.items() if rows is not None}
    others = [name for name in names if name not in records]
    work = partial(run_records, is_anew=again)
    records |= zip(others, reduce([folder / name for name in others], function=work), strict=True)
    return {name: records[name] for name in names}


def _former(folder: Path, out: Path, *, again: bool) -> tuple[Index | None, str]:
    """The index that is there, where its rows can be kept; else why not."""
    if not out.exists():
        return None, ""
    try:
        index = open_index(out, any_version=True)
    except RunFileError as error:
        raise RunFileError(f"{error}; it is in the way: name another file with -o") from error
    if index.runs.resolve() != folder.resolve():
        raise RunFileError(f"{out} is the index of {index.runs}, not of {folder}: name another file with -o")
    if again:
        return None, ""
    return (index, "") if index.is_own else (None, "another release of powerd made the index")


def _states_of(folder: Path, paths: Sequence[Path], failed: list[str]) -> dict[str, tuple[int, int]]:
    """Size and time of the last change of run files, by their names relative to the directory; a line in ``failed`` for
    each without. A run file is never written in place, so they tell whether it has changed."""
    states = {}
    for path in paths:
        name = path.relative_to(folder).as_posix()
        try:
            name.encode()
            stat = path.stat()
            states[name] = stat.st_size, stat.st_mtime_ns
        except UnicodeEncodeError:
            failed.append(f"{path}: its name is no UTF-8: rename it")
        except OSError as error:
            failed.append(f"{path} cannot be read: {error.strerror or error}")
    return states


def _row_of_file(name: str, state: tuple[int, int], first: Record | None, count: int, error: str | None) -> Record:
    """The row that stands for a run file, by the first of ``count`` rows of its frame."""
    about = first or {"run": Path(name).stem}
    row: Record = {key: about.get(key) for key in FILE_COLUMNS}
    row |= {"kind": FILE, "path": name, "file_bytes": state[0], "file_mtime_ns": state[1]}
    return row | {"records": count, "error": error}


def _write(out: Path, files: Sequence[Record], frame: Frame, root: str) -> None:
    """Write an index at once: each file followed by its rows, and behind all of them those of trainings over several
    machines, whose parts are marked. Raises `RunFileError`.

    Trainings are looked for anew whenever files come or go. Runs that seem to be of one and do not say so are left
    apart: an index is of what is there, and who makes a table of them is told.
    """
    jobs = [job for job in jobs_of(split_parts(frame)[1], strict=False) if len(job) > 1]
    parts = {member.path for job in jobs for member in job}
    every = concat_frames([frame, *map(of_machines, jobs)])
    marks = [PART if path in parts else None for path in frame["path"]] + [WHOLE] * (len(every) - len(frame))
    every[OF_JOB] = pd.Series(marks, dtype=object)
    attributes = [name for name in sorted(attributes_in(every)) if every[name].notna().any()]
    kinds: dict[str, Kind] = {"float64": "number", "boolean": "flag", "string": "text"}
    columns = [*INDEX_COLUMNS.values(), *(replace(column(n), kind=kinds[str(every[n].dtype)]) for n in attributes)]
    about = {METADATA: json.dumps({"version": CURRENT, "runs": root, "powerd_version": release()})}
    schema = arrow_schema(columns, about)
    arrays = [
        pa.array(every[c.name], type, from_pandas=True) if c.name in every else pa.nulls(len(every), type)
        for c, type in zip(columns, schema.types, strict=True)
    ]
    rows = pa.concat_tables([arrow_table(columns, files, about), pa.table(arrays, schema=schema)])
    # In the order of the files, however many indexings the rows came from.
    places = {file["path"]: i for i, file in enumerate(files)}
    of_rows = [len(files) if mark == WHOLE else places[path] for mark, path in zip(marks, every["path"], strict=True)]
    in_order = np.argsort([*range(len(files)), *of_rows], kind="stable")
    with whole_file(out) as partial:
        pq.write_table(rows.take(in_order), partial, compression="zstd", row_group_size=ROW_GROUP)


# -- SQL ---------------------------------------------------------------------------------------------------------------

VIEWS = {"runs": "run", "phases": "phase", "totals": "total", "ranks": "rank"}
"""View -> ``kind`` of its rows. Beside these there is ``files``, a row a run file. Of a training over several machines
there are its own rows, not those of its parts."""


QUERY_S, QUERY_MEMORY = 60.0, "2GiB"
"""An answer takes no longer, and no more memory: of SQL that asks for more something is wrong."""


def query(path: Path, sql: str, *, progress: Progress = no_progress, most_s: float = QUERY_S) -> Table:
    """The answer of an index to one SELECT over its views: those of `VIEWS` and ``files``.

    The database is in memory and has no way to any file or variable: it is given the rows. Raises `RunFileError` as
    `open_index`, `AnalysisError` for SQL that cannot be answered, takes longer than ``most_s`` or more than
    `QUERY_MEMORY`, or would do something else than ask.
    """
    try:
        import duckdb
    except ImportError as error:
        raise ConfigError(f"queries need DuckDB: {install_hint('query')}") from error
    index = open_index(path)
    progress(0.0, "asking the index")
    connection = duckdb.connect(":memory:", config={"python_enable_replacements": "false", "temp_directory": ""})
    connection.register("_index", pyarrow.dataset.dataset(str(index.path.absolute()), format="parquet"))
    connection.execute("SET enable_external_access = false")
    _create_views(connection, index)
    connection.execute(f"SET memory_limit = '{QUERY_MEMORY}'")
    connection.execute("SET lock_configuration = true")
    begun_s, timer = time.monotonic(), threading.Timer(most_s, connection.interrupt)
    timer.daemon = True
    timer.start()
    before = _limit_memory(3 << 30)
    try:
        statements = connection.extract_statements(sql)
        # A query with a PIVOT is several statements. What else is: nothing, as there is no way to any file.
        asks = (duckdb.StatementType.SELECT, duckdb.StatementType.MULTI)
        if len(statements) != 1 or statements[0].type not in asks:
            raise AnalysisError(f"{index.path}: an index is only asked: give one SELECT")
        result = connection.execute(statements[0])
        described, rows = [(str(d[0]), str(d[1])) for d in result.description or ()], result.fetchall()
    except (duckdb.Error, RuntimeError, ImportError, MemoryError) as error:
        if "interrupted" in str(error).lower():
            if time.monotonic() - begun_s >= most_s:
                raise AnalysisError(f"{index.path}: no answer within {most_s:g} s: ask for less") from error
            raise KeyboardInterrupt from error
        raise AnalysisError(f"{index.path}: {_one_line(str(error))}") from error
    finally:
        timer.cancel()
        if before is not None:
            resource.setrlimit(resource.RLIMIT_AS, before)
    names_made: list[str] = []
    for name, _ in described:
        again = [n for n in range(2, len(described) + 1) if f"{name}_{n}" not in names_made]
        names_made.append(f"{name}_{again[0]}" if name in names_made else name)
    columns_made = [Column(name, _kind(sql_type)) for name, (_, sql_type) in zip(names_made, described, strict=True)]
    return make_table("query", "", columns_made, [tuple(map(_cell, row)) for row in rows], bounds=())


def _limit_memory(more: int) -> tuple[int, int] | None:
    """Let this process have so many bytes more and no others: DuckDB's own limit does not hold within one function.
    The limits before, None where the system tells or takes none."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        limits = [n for n in (soft, hard) if n != resource.RLIM_INFINITY]
        least = min([pages * resource.getpagesize() + more, *limits])
        resource.setrlimit(resource.RLIMIT_AS, (least, hard))
    except (OSError, ValueError, TypeError):
        return None
    return soft, hard


def _create_views(connection: Any, index: Index) -> None:
    runs = "" if index.runs == Path() else f"{index.runs}/".replace("'", "''")
    # DuckDB does not tell names by their case: the second of two that differ in nothing else gets another name.
    own = [d[0] for d in connection.execute("SELECT * FROM _index LIMIT 0").description]
    quoted = {name: '"' + n.replace('"', '""') + '"' for name, n in zip(index.columns, own, strict=True)}
    quoted["path"] = f"'{runs}' || path AS path"
    views = {view: (index.frame_columns, kind) for view, kind in VIEWS.items()} | {"files": (list(FILE_COLUMNS), FILE)}
    for view, (columns, kind) in views.items():
        names = ", ".join(quoted[name] for name in columns if name in quoted)
        is_own = f"kind = '{kind}' AND {OF_JOB} IS DISTINCT FROM '{PART}'"
        connection.execute(f"CREATE VIEW {view} AS SELECT {names} FROM _index WHERE {is_own}")


def _kind(sql_type: str) -> Kind:
    name = sql_type.upper().partition("(")[0]
    if name == "BOOLEAN":
        return "flag"
    if name.endswith(("INT", "INTEGER")):
        return "integer"
    return "number" if name in ("FLOAT", "DOUBLE", "DECIMAL") else "text"


def _cell(value: Any) -> Cell:
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float | Decimal):
        return float(value) if math.isfinite(value) else None
    return json.dumps(value, default=str) if isinstance(value, list | dict | tuple) else str(value)


def _one_line(text: str) -> str:
    """DuckDB's message without its drawing of the place."""
    line = " ".join(text.partition("\n\nLINE ")[0].split())
    if "Permission" in line or "external extensions" in line:
        return "a query sees the views of the index and nothing else, neither files nor extensions"
    return line
