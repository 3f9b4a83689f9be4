"""Which run files are meant by paths on a command line: files, directories, and indexes of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from powerd_analytics.indexes.index import index_files, is_index
from powerd_core.errors import RunFileError

SUFFIXES = (".h5", ".hdf5")


def run_files(paths: Sequence[Path]) -> list[Path]:
    """The run files that are meant: files as they are, all below directories, sorted by name, and those of indexes.

    Raises `RunFileError` for a directory without any, and for a file that is given twice.
    """
    found: list[Path] = []
    for path in paths:
        if is_index(path):
            found += index_files(path)
            continue
        if not path.is_dir():
            found.append(path)
            continue
        below = sorted(p for p in path.rglob("*") if p.suffix in SUFFIXES and p.is_file() and _is_whole(p))
        if not below:
            raise RunFileError(f"{path}: there are no run files in this directory (names ending in .h5)")
        found += below
    seen: set[Path] = set()
    for path in found:
        if path.resolve() in seen:
            raise RunFileError(f"{path} is given twice: a run counts once")
        seen.add(path.resolve())
    return found


def _is_whole(path: Path) -> bool:
    """Neither a file that is being written nor inside a journal."""
    hidden = any(part.startswith(".") for part in path.parts[-2:] if part not in (".", ".."))
    return not hidden and not any(part.endswith(".journal") for part in path.parts)
