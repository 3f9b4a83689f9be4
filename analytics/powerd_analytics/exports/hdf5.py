"""Tables inside HDF5: ``/tables/NAME`` of a run file or of a campaign's own file, one dataset a column.

Columns are plain one-dimensional datasets with their unit as an attribute, so that xarray, pandas and h5py read a
table with one call each (docs/tables.md). What has no value is NaN or an empty text. A run file's digest is checked
before it is changed, and made anew: tables are metadata like any other, and their chunks carry checksums.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import h5py
import numpy as np

from powerd_analytics.exports.sheet import Sheet, SheetColumn
from powerd_client.datasets import DIGEST, clean, copy_attributes, digest, own_name, write_numbers, write_strings
from powerd_client.fileshape import dataset_problems
from powerd_client.runfile import open_run
from powerd_client.steadyfile import steady_hdf5
from powerd_core.errors import AnalysisError, PowerdError, RunFileError

if TYPE_CHECKING:
    import pandas as pd

FORMAT = "powerd-tables"
FORMAT_VERSION = 1
TABLES = "tables"


def write_tables(path: Path, sheets: Sequence[Sheet], *, overwrite: bool = False) -> None:
    """Put sheets into ``/tables`` of a run file, a file of tables, or a new one, which is then a file of tables.

    The file is copied, the copy changed, and moved into its place when it is whole and on the disk; a link to it stays
    one. ``overwrite`` replaces tables of the same names; others stay.

    Raises `RunFileError`, also for a run file that is damaged.
    """
    place = path.resolve() if path.is_symlink() else path
    partial = place.with_name(f".{place.stem}.{os.getpid()}.partial{place.suffix}")
    try:
        with _translated(path, "written"):
            is_run = path.exists() and _is_run(path)
            if path.exists():
                shutil.copy2(path, partial)
            with steady_hdf5(partial, "r+" if path.exists() else "x") as (file, _):
                if not path.exists():
                    file.attrs.update({"format": FORMAT, "format_version": FORMAT_VERSION})
                _add(path, file, sheets, overwrite)
                if is_run:
                    _sign(file)
            partial.replace(place)
    finally:
        with contextlib.suppress(OSError):  # a file system that takes nothing refuses this as well
            partial.unlink(missing_ok=True)


def read_table(path: str | Path, name: str) -> pd.DataFrame:
    """A table of a run file or campaign as a pandas frame; ``frame.attrs["units"]`` has the units by column.

    Raises `RunFileError` for a file that is none of ours, `AnalysisError` for a table that is not there.
    """
    import pandas as pd

    path = Path(path)
    with _translated(path, "read"):
        if not path.exists():
            raise RunFileError(f"there is no file {path}")
        if not _is_run(path):
            _check_tables_file(path)
        with h5py.File(path, "r") as file:
            there = list(file.get(TABLES, {}))
            if name not in there:
                raise AnalysisError(f"{path} has no table {name!r}: it has {', '.join(there) or 'none'}")
            group = file[TABLES][name]
            columns, units = {}, {}
            for column in group:
                _check_column(path, group, column)
                values = group[column][:]
                columns[column] = [v.decode() for v in values] if values.dtype.kind == "S" else values
                units[column] = str(group[column].attrs.get("units", ""))
    frame = pd.DataFrame(columns)
    frame.attrs["units"] = units
    return frame


def _add(path: Path, file: h5py.File, sheets: Sequence[Sheet], overwrite: bool) -> None:
    tables = file.require_group(TABLES)
    for sheet in sheets:
        name = own_name(sheet.name)
        if name in tables:
            if not overwrite:
                raise RunFileError(f"{path} has a table {name!r} already: give --overwrite to replace it")
            del tables[name]
        group = tables.create_group(name, track_order=True)
        group.attrs["title"] = clean(sheet.title)
        group.attrs["notes"] = clean("\n".join(sheet.notes))
        for i, column in enumerate(sheet.columns):
            _write_column(group, column, [row[i] for row in sheet.rows])


def _write_column(group: h5py.Group, column: SheetColumn, values: Sequence[object]) -> None:
    name = own_name(column.name)
    if column.kind == "text":
        write_strings(group, name, ["" if v is None else str(v) for v in values])
        # How netCDF says that bytes are text.
        group[name].attrs["_Encoding"] = "utf-8"
        group[name].attrs["units"] = ""
        return
    numbers = np.array([np.nan if v is None else float(v) for v in values])  # type: ignore[arg-type]
    if column.kind in ("integer", "flag") and np.isfinite(numbers).all():
        numbers = numbers.astype(np.int64 if column.kind == "integer" else np.uint8)
    write_numbers(group, name, numbers, column.units)


def _sign(file: h5py.File) -> None:
    """The second copy of the attributes and the digest, for what the file holds now."""
    if "attributes" in file:
        del file["attributes"]
        copy_attributes(file)
    if DIGEST in file.attrs:
        file.attrs[DIGEST] = digest(file)


def _is_run(path: Path) -> bool:
    """Whether that is a run file, with the metadata that it was written with. Raises `RunFileError` for neither."""
    if not h5py.is_hdf5(path):
        raise RunFileError(f"{path} is no HDF5 file: tables go into a run file or into a new file")
    with h5py.File(path, "r") as file:
        if file.attrs.get("format") == FORMAT:
            return False
    with open_run(path) as file:
        if DIGEST in file.attrs and file.attrs[DIGEST] != digest(file):
            raise RunFileError(f"{path} is damaged: its attributes are not those it was written with (`joules verify`)")
    return True


def _check_tables_file(path: Path) -> None:
    with h5py.File(path, "r") as file:
        if (version := file.attrs.get("format_version")) != FORMAT_VERSION:
            raise RunFileError(f"{path} has version {version} of a file of tables, this powerd reads {FORMAT_VERSION}")


def _check_column(path: Path, group: h5py.Group, name: str) -> None:
    """A file may come from anywhere: nothing outside it is read, and no library loaded for a filter."""
    item = group[name] if isinstance(group.get(name, getlink=True), h5py.HardLink) else None
    if not isinstance(item, h5py.Dataset) or item.ndim != 1:
        raise RunFileError(f"{path} is damaged: {name} of {group.name} is no column")
    if found := next(dataset_problems(item, item.name), ""):
        raise RunFileError(f"{path} is damaged: {found}")


@contextlib.contextmanager
def _translated(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except PowerdError:
        raise
    except OSError as error:
        raise RunFileError(f"{path} cannot be {what}: {error.strerror or ' '.join(str(error).split())}") from error
    except (RuntimeError, LookupError, ValueError, TypeError, AttributeError) as error:
        raise RunFileError(f"{path} cannot be {what}: {' '.join(str(error).split())}") from error
