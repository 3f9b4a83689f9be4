"""What is below a directory that is indexed, as it was when somebody looked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from powerd_analytics.indexes.files import look_below, unreadable


@dataclass(frozen=True, slots=True)
class FileState:
    """What tells whether a run file has changed. A run file is never written in place, so size and time do."""

    file_bytes: int
    file_mtime_ns: int


@dataclass(frozen=True, slots=True)
class Present:
    """Run files by their names, relative to the directory."""

    files: dict[str, Path]
    states: dict[str, FileState]
    """Of those that can be looked at."""
    failed: list[str]
    """One line for each that cannot."""
    unbuilt: list[Path]
    """Those that are not there yet, `powerd_analytics.indexes.files.Below`."""


def present_in(folder: Path) -> Present:
    """The run files below a directory. Raises `RunFileError` where there are none."""
    found = look_below(folder)
    failed = [str(unreadable(path, error)) for path, error in found.unreadable]
    files, states = {}, {}
    for path in found.files:
        name = path.relative_to(folder).as_posix()
        state = state_of(path)
        if not _is_text(name):
            failed.append(f"{path}: its name is no UTF-8: rename it")
        elif state is not None:
            files[name], states[name] = path, state
        elif path.is_symlink():
            failed.append(f"{path} is a link to nothing")
    return Present(files, states, failed, found.unbuilt)


def state_of(path: Path) -> FileState | None:
    """None where the file went away meanwhile."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return FileState(stat.st_size, stat.st_mtime_ns)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
