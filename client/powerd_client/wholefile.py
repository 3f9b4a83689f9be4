"""A file that appears under its name only when it is whole."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from glob import escape
from pathlib import Path

import h5py

from powerd_client.steadyfile import SteadyFile, steady_hdf5
from powerd_core.errors import RunFileError


@contextlib.contextmanager
def whole_file(out: Path, *, overwrite: bool) -> Iterator[tuple[h5py.File, SteadyFile]]:
    """An HDF5 file under another name, which becomes ``out`` when it is written and on the disk, else nothing.

    Raises `RunFileError` for a file in the way, `OSError` for what cannot be written, and what h5py raises.
    """
    partial = out.with_name(f"{out.name}.{os.getpid()}.partial")
    try:
        with steady_hdf5(partial) as made:
            yield made
        _move(partial, out, overwrite)
    finally:
        partial.unlink(missing_ok=True)


def _move(partial: Path, out: Path, overwrite: bool) -> None:
    if overwrite:
        partial.replace(out)
        return
    try:
        os.link(partial, out)  # unlike a rename, refuses to replace a file that appeared meanwhile
    except FileExistsError:
        raise RunFileError(
            f"{out} appeared while it was being recorded: move it away and run `joules info {out}`"
        ) from None
    except OSError:
        if out.exists():
            raise
        partial.replace(out)


def remove_partials(out: Path) -> None:
    """Delete what a killed conversion of ``out`` left. The caller owns the journal's lock."""
    for leftover in out.parent.glob(f"{escape(out.name)}.*.partial"):
        with contextlib.suppress(OSError):
            leftover.unlink()
