"""Opening a run file, and building it first when its recorder could not."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py

from powerd_client import journal as journals
from powerd_client.build import Progress, build_run
from powerd_client.filetables import problems
from powerd_client.heaps import endless_heaps
from powerd_client.tables import FORMAT, FORMAT_VERSION
from powerd_client.wholefile import remove_partials
from powerd_core.errors import PowerdError, RunFileError

SAVE = "`joules recover {}` saves what is left"


def open_run(path: str | os.PathLike[str], *, progress: Progress = lambda share: None) -> h5py.File:
    """The run file at ``path``, open for reading.

    A run whose recorder died is built from its journal first, also where it was to overwrite ``path``. Raises
    `RunFileError` for a file that is missing, is no run, is cut off or damaged, is of another version, or is still
    being recorded.
    """
    run = Path(path)
    try:
        is_there = run.exists()
        is_journal = journals.is_to_replace(run) if is_there else journals.journal_path(run).is_dir()
    except OSError as error:  # a name that is too long, a directory that may not be entered
        raise RunFileError(f"{run} cannot be read: {error.strerror or error}") from error
    if is_journal:
        rebuild(run, overwrite=is_there, progress=progress)
    if run.is_dir():
        raise RunFileError(f"{run} is a directory: give the name of a run file")
    if not run.exists():
        raise RunFileError(f"there is no run file {run}")
    with reading(run):
        if endless_heaps(run):
            raise ValueError("a heap of texts in it has no end")
        try:
            file = h5py.File(run, "r")
        except OSError as error:
            raise RunFileError(f"{run} is no run file, or was cut off: {_reason(error)}") from error
        try:
            _check(run, file)
        except BaseException:
            file.close()
            raise
    return file


@contextlib.contextmanager
def reading(run: str | os.PathLike[str]) -> Iterator[None]:
    """Whatever h5py, JSON or arithmetic make of a damaged file inside becomes a `RunFileError` of one line."""
    try:
        yield
    except PowerdError:
        raise
    except PermissionError as error:
        raise RunFileError(f"{run} cannot be read: {error.strerror or error}") from error
    except MemoryError as error:
        raise RunFileError(f"{run} does not fit into the memory of this machine") from error
    except (OSError, RuntimeError, LookupError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise RunFileError(f"{run} is damaged or incomplete ({text}): {SAVE.format(run)}") from error


def _reason(error: OSError) -> str:
    text = str(error)
    for known, said in (
        ("truncated", "it is shorter than it says"),
        ("signature", "it is not HDF5"),
        ("ermission", "no permission"),
    ):
        if known in text:
            return said
    return " ".join(text.split())


def _check(run: Path, file: h5py.File) -> None:
    if _attribute(file, "format") != FORMAT:
        raise RunFileError(f"{run} is an HDF5 file, but no powerd run")
    version = _attribute(file, "format_version")
    if version != FORMAT_VERSION:
        raise RunFileError(
            f"{run} has version {version} of the run file's format, this powerd reads version {FORMAT_VERSION}: "
            "open it with the release that wrote it"
        )
    if (problem := next(problems(file), None)) is not None:
        raise RunFileError(f"{run} is damaged: {problem}")


def _attribute(file: h5py.File, name: str) -> Any:
    """An attribute of the root that is one value, else None."""
    if name not in file.attrs or h5py.h5a.open(file.id, name.encode()).shape != ():
        return None
    return file.attrs[name]


def rebuild(run: Path, *, overwrite: bool = False, progress: Progress = lambda share: None) -> None:
    """Build a run file from the journal of a recorder that is gone. Raises `RunFileError` while it is still being
    recorded.
    """
    journal = journals.journal_path(run)
    if journals.is_locked(journal):
        raise RunFileError(f"{run} is still being recorded: open it when its run has ended")
    try:
        held = journals.lock(journal)
    except RunFileError:
        raise
    except OSError as error:
        why = "may not be written" if isinstance(error, PermissionError) else f"cannot be written ({error.strerror})"
        raise RunFileError(f"{run} has to be built from {journal}, which {why}") from error
    try:
        remove_partials(run)
        build_run(journal, run, overwrite=overwrite, progress=progress)
    finally:
        os.close(held)
