"""Which run files are meant by paths on a command line: files, directories, and indexes of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from powerd_analytics.indexes.index import index_files, is_index
from powerd_core.errors import RunFileError

SUFFIXES = (".h5", ".hdf5")
JOURNAL = ".journal"
"""Ends the name of a directory in which a run is being recorded; what begins with a point is being written."""


@dataclass(slots=True)
class Below:
    """What is below a directory: links to directories are followed, and each directory is looked at once."""

    files: list[Path] = field(default_factory=list)
    """Run files, sorted. A link to one that is there under its own name is no second run. A link to nothing is among
    them: whoever reads it will say so."""
    unbuilt: list[Path] = field(default_factory=list)
    """Run files that are not there yet: they are being recorded, or their recorder died."""
    unreadable: list[tuple[Path, OSError]] = field(default_factory=list)
    """Directories that cannot be read."""


def run_files(paths: Sequence[Path]) -> list[Path]:
    """The run files that are meant: files as they are, all below directories, sorted by name, and those of indexes.

    Raises `RunFileError` for a directory without any or that cannot be read, and for a file that is given twice.
    """
    found: list[Path] = []
    for path in paths:
        if is_index(path):
            found += index_files(path)
        elif path.is_dir():
            below = look_below(path)
            for place, error in below.unreadable:
                raise unreadable(place, error)
            found += below.files
        else:
            found.append(path)
    seen: set[Path] = set()
    for path in found:
        if path.resolve() in seen:
            raise RunFileError(f"{path} is given twice: a run counts once")
        seen.add(path.resolve())
    return found


def look_below(folder: Path) -> Below:
    """The run files of a directory and of all below it. Raises `RunFileError` where there are none, and where there may
    be some that it must not look at."""
    found = Below()
    links, looked_at = [folder], set[str]()
    while links:
        # Those behind links come last: what is also there under its own name has that name.
        _walk(links.pop(0), found, links, looked_at)
    seen = {os.path.realpath(p) for p in found.files if not p.is_symlink()}
    kept = []
    for path in sorted(found.files):
        if path.is_symlink():
            target = os.path.realpath(path)
            if target in seen:
                continue
            seen.add(target)
        kept.append(path)
    if not kept and found.unreadable:
        raise unreadable(*found.unreadable[0])
    if not kept or any(part.endswith(JOURNAL) for part in folder.parts):
        raise RunFileError(f"{folder}: there are no run files in this directory (names ending in .h5)")
    return Below(kept, sorted(found.unbuilt), found.unreadable)


def unreadable(place: Path, error: OSError) -> RunFileError:
    """What to say of a directory that refused."""
    return RunFileError(f"{place} cannot be read: {error.strerror or error}")


def _walk(top: Path, found: Below, links: list[Path], looked_at: set[str]) -> None:
    """Add what is below one directory; links to other directories are added to ``links``."""

    def refused(error: OSError) -> None:
        found.unreadable.append((Path(str(error.filename)), error))

    for name, below, inside in os.walk(top, onerror=refused):
        if (place := os.path.realpath(name)) in looked_at:
            below.clear()
            continue
        looked_at.add(place)
        at = Path(name)
        journals = [at / n.removesuffix(JOURNAL) for n in below if n.endswith(JOURNAL)]
        found.unbuilt += [run for run in journals if run.suffix in SUFFIXES and not run.exists()]
        below[:] = sorted(n for n in below if not n.startswith(".") and not n.endswith(JOURNAL))
        links += [at / n for n in below if (at / n).is_symlink()]
        found.files += [at / n for n in inside if Path(n).suffix in SUFFIXES and n[0] != "." and _is_file(at / n)]


def _is_file(path: Path) -> bool:
    """A file, or a link to nothing, but no pipe or socket."""
    return path.is_file() or (path.is_symlink() and not path.exists())
