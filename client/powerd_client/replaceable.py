"""What a new file may take the place of."""

from __future__ import annotations

from pathlib import Path

from powerd_core.errors import RunFileError


def check_replaceable(path: Path) -> None:
    """A file takes the place of a file, never of a device (/dev/null) or a pipe. Raises `RunFileError`."""
    if path.is_dir():
        raise RunFileError(f"{path} is a directory: give the name of a file in it")
    if path.exists() and not path.is_file():
        raise RunFileError(f"{path} is a device or a pipe, which no file may replace: give the name of a file")
