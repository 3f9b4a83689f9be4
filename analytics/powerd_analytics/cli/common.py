"""What the commands share: options, opening runs, and files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
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


def refuse_existing(path: Path | None, overwrite: bool) -> None:
    if path is not None and path.exists() and not overwrite:
        raise RunFileError(f"{path} exists: give another name or --overwrite")
    if path is not None and not path.absolute().parent.is_dir():
        raise RunFileError(f"{path.parent} is no directory: make it first")


def write(path: Path, make: Callable[[Path], object], overwrite: bool) -> None:
    """Make a file under another name and move it into place when it is whole."""
    partial = path.with_name(f".{path.stem}.{os.getpid()}.partial{path.suffix}")
    try:
        make(partial)
        if overwrite:
            partial.replace(path)
        else:
            os.link(partial, path)  # unlike a rename, refuses to replace a file that appeared meanwhile
    except FileExistsError as error:
        raise RunFileError(f"{path} exists: give another name or --overwrite") from error
    except OSError as error:
        if isinstance(error, PowerdError):
            raise
        raise RunFileError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):  # a file system that takes nothing refuses this as well
            partial.unlink(missing_ok=True)


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
