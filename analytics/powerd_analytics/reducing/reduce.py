"""Many run files reduced to what somebody wants of each: one after the other, on all cores, or on a Dask cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

from powerd_analytics.energy.devices import Progress, no_progress
from powerd_analytics.records.flat import run_records
from powerd_core.errors import ConfigError, PowerdError

T = TypeVar("T")
Reducer = Callable[[Path], T]
"""Takes the absolute path of a run file. For other processes it must be a function of a module that they can import."""


@dataclass(frozen=True, slots=True)
class Reduced(Generic[T]):
    """What became of one run file: ``value``, or ``error`` (one line that names the file) where there is none."""

    path: Path
    value: T | None
    error: str | None = None


def reduce_runs(
    paths: Iterable[Path],
    function: Reducer[T] = run_records,  # type: ignore[assignment]
    *,
    jobs: int | None = None,
    scheduler: str | None = None,
    progress: Progress = no_progress,
) -> list[Reduced[T]]:
    """``function`` of every run file, in the order of ``paths``; the same in every way of running.

    ``jobs`` processes of this machine do it (one a core without), or the workers of the Dask cluster at ``scheduler``
    (``tcp://host:8786``), which must see the files under the same names. A file that cannot be reduced, even one that
    kills the process that reads it, has an ``error`` and stops no other. One job is this process itself, which such a
    file would end.

    Raises `ConfigError` for options or a function that cannot be used, `PeerError` where the cluster is not there or
    ends. `KeyboardInterrupt` ends the processes first.
    """
    given = [Path(p) for p in paths]
    absolute = [p.absolute() for p in given]
    if jobs is not None and jobs < 1:
        raise ConfigError(f"{jobs} jobs: at least one process has to do the work")
    if jobs is not None and scheduler is not None:
        raise ConfigError("give either a number of jobs, for this machine, or the scheduler of a cluster")
    if scheduler is not None:
        from powerd_analytics.reducing.cluster import on_cluster

        done = on_cluster(absolute, function, scheduler, progress)
    elif jobs == 1 or not absolute:
        done = _here(absolute, function, progress)
    else:
        from powerd_analytics.reducing.workers import on_workers

        # Even a single file has a process: it may be the one that ended a process before.
        done = on_workers(absolute, function, min(jobs or cores(), len(absolute)), progress)
    return [_as_given(path, result) for path, result in zip(given, done, strict=True)]


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def reduced(function: Reducer[T], path: Path) -> Reduced[T]:
    """``function`` of one file; whatever it raises becomes the ``error``."""
    try:
        return Reduced(path, function(path))
    except PowerdError as error:
        return Reduced(path, None, naming(path, str(error)))
    except Exception as error:  # noqa: BLE001 - its row says why, and the others go on
        return Reduced(path, None, naming(path, f"{type(error).__name__}: {error}"))


def naming(path: Path, text: str) -> str:
    """One line that names the file, where the text does not yet."""
    line = " ".join(text.split())
    return line if str(path) in line else f"{path}: {line}"


def progress_text(done: int, total: int) -> str:
    """How far it is."""
    return f"{done} of {total} run files"


def _here(paths: Sequence[Path], function: Reducer[T], progress: Progress) -> list[Reduced[T]]:
    found = []
    for i, path in enumerate(paths):
        progress(i / len(paths), progress_text(i, len(paths)))
        found.append(reduced(function, path))
    return found


def _as_given(path: Path, result: Reduced[T]) -> Reduced[T]:
    """Under the name by which the caller knows the file."""
    error = result.error.replace(str(result.path), str(path)) if result.error is not None else None
    return replace(result, path=path, error=error)
