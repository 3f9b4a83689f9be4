"""What the commands share: options, opening runs, and files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.console import Console

from powerd_core.errors import AnalysisError, PowerdError, RunFileError

if TYPE_CHECKING:
    from powerd_analytics.runs.run import Run

Device = Annotated[str | None, Parameter(help="Only this device; all of them without it.")]
Calibration = Annotated[
    Path | None,
    Parameter(help="Compute again with this file of `powerd calibrate`; the run file stays as it is."),
]
Co2 = Annotated[float | None, Parameter(help="Grams of CO2 equivalent of a kWh: adds their columns to totals.")]
Price = Annotated[float | None, Parameter(help="Price of a kWh: adds what totals cost.")]
OfFactor = Annotated[float | None, Parameter(help="Standard uncertainty of that.")]
Currency = Annotated[str | None, Parameter(help="Of the price, in three letters: EUR.")]
_HDF5 = b"\x89HDF\r\n\x1a\n"
Overwrite = Annotated[bool, Parameter(negative="", help="Replace a file that exists.")]


def check_picture(path: Path) -> None:
    if path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise RunFileError(f"{path}: a picture is written as .png, .pdf or .svg")


def open_run(path: Path, calibration: Path | None, progress: Callable[[float, str], None]) -> Run:
    """The run, by its own calibrations or by later ones; which lines those change goes to the error stream."""
    from powerd_analytics.runs.recalibration import recalibrate
    from powerd_analytics.runs.run import read_run

    opened = read_run(path, progress=progress)
    if calibration is None:
        return opened
    opened, lines = recalibrate(opened, calibration)
    sys.stderr.write(f"joules: computed again with {calibration}: {', '.join(lines)}\n")
    return opened


def refuse_existing(path: Path | None, overwrite: bool, inputs: Sequence[Path] = (), *, is_hdf5: bool = False) -> None:
    """Raises `RunFileError` where no file can be written, before anything is read or computed.

    What is there and counts among the ``inputs`` is never replaced, nor is an HDF5 file but by what ``is_hdf5``.
    """
    if path is None:
        return
    from powerd_client.replaceable import check_replaceable

    try:
        check_replaceable(path)
        if any(_is_same(path, given) for given in inputs):
            raise RunFileError(f"{path} is read by this command: give its output another name")
        if path.exists() and not overwrite:
            raise RunFileError(f"{path} exists: give another name or --overwrite")
        if not is_hdf5:
            _check_no_run(path)
        if not path.absolute().parent.is_dir():
            raise RunFileError(f"{path.parent} is no directory: make it first")
    except PermissionError as error:
        raise RunFileError(f"{path} cannot be written: {error.strerror or error}") from error


def _is_same(path: Path, other: Path) -> bool:
    """Whether both are there, and one file. One that may not be looked at is told by who reads it."""
    with contextlib.suppress(OSError):
        return path.samefile(other)
    return False


def _check_no_run(path: Path) -> None:
    """No text or picture takes the place of a recording, not even with --overwrite."""
    begin = b""
    with contextlib.suppress(OSError), path.open("rb") as file:
        begin = file.read(len(_HDF5))
    if begin == _HDF5:
        raise RunFileError(f"{path} is an HDF5 file, as runs are: give the output another name")


def write(path: Path, make: Callable[[Path], object], overwrite: bool) -> None:
    """Make a file under another name and move it into place when it is whole.

    A link keeps its place, and what it leads to is written. Raises `RunFileError`, which names another file than
    ``path`` where ``make`` met that.
    """
    from powerd_client.replaceable import check_replaceable

    check_replaceable(path)
    _check_no_run(path)
    place = path.resolve() if path.is_symlink() else path
    partial = place.with_name(f".{place.stem}.{os.getpid()}.partial{place.suffix}")
    try:
        make(partial)
        if overwrite:
            partial.replace(place)
        else:
            os.link(partial, place)  # unlike a rename, refuses to replace a file that appeared meanwhile
    except FileExistsError as error:
        raise RunFileError(f"{path} exists: give another name or --overwrite") from error
    except OSError as error:
        if isinstance(error, PowerdError):
            raise
        # Libraries put their own words around what the system said.
        why = os.strerror(error.errno) if error.errno else error
        if error.filename is not None and Path(os.fsdecode(error.filename)) not in (partial, place):
            raise RunFileError(f"{os.fsdecode(error.filename)} cannot be opened: {why}") from error
        raise RunFileError(f"{path} cannot be written: {why}") from error
    finally:
        with contextlib.suppress(OSError):  # a file system that takes nothing refuses this as well
            partial.unlink(missing_ok=True)


def put_out(text: str, output: Path | None, overwrite: bool) -> None:
    """Write a text to its file, or to standard output where no file is named and somebody listens."""
    if output is not None:
        write(output, lambda partial: partial.write_text(text, encoding="utf-8"), overwrite)
    elif sys.stdout is not None:
        sys.stdout.write(text)
        sys.stdout.flush()


def goes_to_terminal(output: Path | None) -> bool:
    """Whether `put_out` shows the text to a person."""
    return output is None and sys.stdout is not None and sys.stdout.isatty()


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Errors of an analysis that do not say which file they are about say it."""
    try:
        yield
    except AnalysisError as error:
        if path.name in str(error):
            raise
        raise AnalysisError(f"{path}: {error}") from error


def stderr() -> Console:
    return Console(stderr=True)


class _Output(Console):
    def on_broken_pipe(self) -> None:
        """Rich itself would end the process, with status 1."""
        raise BrokenPipeError


def stdout(width: int | None = None) -> Console:
    """What prints to a terminal or a pipe. Raises `BrokenPipeError` once nobody reads it any more."""
    return _Output(width=width)
