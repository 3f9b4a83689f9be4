"""What was worked out of a run file, kept in the user's cache: whoever asks the same again has it at once.

A figure is found again by what it depends on: the bytes of the run file and of the calibration, and the programs that
worked it out. What cannot be read, is somebody else's, or whose checksum is another, is as if it were not there.
Figures are rows of numbers and texts: nothing in a cache is ever run.
"""

from __future__ import annotations

import functools
import json
import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

import numpy as np

import powerd_client
import powerd_core
from powerd_analytics.runs.run import Run
from powerd_client.host.ownership import MOST_BYTES, delete, identity, read_own, whole_output, write_new
from powerd_client.journals.journal import journal_path
from powerd_core.errors import RunFileError

MOST_FILES = 10_000
"""Of all runs together, and `MOST_KEPT` bytes: what was written first goes."""
MOST_KEPT = 256 << 20
_LOOK_EVERY = 256
"""Files that a process writes before it looks again at how many there are."""
_ENDING = ".figures"
_written = 0


# -- what it is found by -----------------------------------------------------------------------------------------------


def key_of_run(run: Run) -> str | None:
    """The key of a run as `read_run` and `recalibrate` gave it. None where its file has changed since.

    A run of which something else was replaced has the key of its file, and other figures: keep none of these.
    """
    if run.file is None:
        return None
    try:
        return _key(run.path, run.calibrated) if identity(run.path) == run.file else None
    except OSError:
        return None


def key_of_file(path: Path, calibration: Path | None = None) -> str | None:
    """The same without opening the run. None where there is none, or where it has to be made of its journal first."""
    try:
        if os.path.lexists(journal_path(path)):
            return None
        return _key(path, "" if calibration is None else digest_of(calibration))
    except OSError:
        return None


def digest_of(path: Path) -> str:
    """Of all bytes of a file. Raises `OSError`."""
    return _digest(path, identity(path))


@functools.lru_cache(4096)
def _digest(path: Path, of: object) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def _key(path: Path, calibrated: str) -> str:
    return sha256("\n".join((digest_of(path), calibrated, _programs())).encode()).hexdigest()


@functools.cache
def _programs() -> str:
    """Of which programs figures are: all of powerd's, as they lie on the disk, on this Python and numpy."""
    files = []
    for module in (powerd_core.__file__, powerd_client.__file__, str(Path(__file__).parent)):
        for folder, _, names in os.walk(str(Path(str(module)).parent)):
            stats = ((name, os.stat(os.path.join(folder, name))) for name in names if name.endswith(".py"))
            files += [(folder, name, s.st_size, s.st_mtime_ns) for name, s in stats]
    about = sorted(files), platform.python_version(), platform.machine(), np.__version__
    return sha256(repr(about).encode()).hexdigest()


# -- keeping -----------------------------------------------------------------------------------------------------------


def keep(key: str | None, what: str, value: object) -> None:
    """Keep figures of a run under their kind. A cache that cannot be written is none, and what is too long is not
    kept."""
    global _written  # noqa: PLW0603 -- of the process
    if key is None:
        return
    with suppress(OSError, RunFileError, TypeError, ValueError):
        text = json.dumps(_plain(value), separators=(",", ":"))
        place = _place(key, what)
        text = f"{_checksum(place, text)}\n{text}"
        if len(text) > MOST_BYTES:
            return
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if _written % _LOOK_EVERY == 0:
            _make_room(place.parent)
        with whole_output(place) as partial:
            write_new(partial, text)
        _written += 1


def recall(key: str | None, what: str, kinds: Sequence[type]) -> Any | None:
    """The figures of a run that were kept, of these dataclasses; None where there are none."""
    if key is None:
        return None
    try:
        place = _place(key, what)
        checksum, _, text = read_own(place).decode().partition("\n")
        if checksum != _checksum(place, text):
            return None
        return _value(json.loads(text), {kind.__name__: kind for kind in kinds})
    except (OSError, RunFileError, ValueError, TypeError, LookupError):
        return None


def _place(key: str, what: str) -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    name = sha256(f"{key}\n{what}".encode()).hexdigest()
    return Path(home) / "powerd" / "figures" / f"{name[:40]}{_ENDING}"


def _checksum(place: Path, text: str) -> str:
    """Of the figures and of what they are of."""
    return sha256(f"{place.name}\n{text}".encode()).hexdigest()


def _make_room(folder: Path) -> None:
    every = [(entry.stat(), Path(entry.path)) for entry in os.scandir(folder) if entry.name.endswith(_ENDING)]
    count, size = len(every), sum(status.st_size for status, _ in every)
    for status, path in sorted(every, key=lambda one: one[0].st_mtime_ns):
        if count < MOST_FILES and size <= MOST_KEPT:
            break
        delete(path)
        count, size = count - 1, size - status.st_size


# -- figures as JSON ---------------------------------------------------------------------------------------------------

_TUPLE, _LIST, _TABLE, _ARRAY = "tuple", "list", "table", "array"


def _plain(value: Any) -> Any:
    """As JSON of which `_value` makes the same. Raises `TypeError` for what is no figure."""
    if value is None or type(value) in (bool, int, str, float):
        return value
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, np.ndarray):
        return [_ARRAY, value.astype(np.float64, casting="safe").tolist()]
    if isinstance(value, tuple | list):
        return [_TUPLE if isinstance(value, tuple) else _LIST, *map(_plain, value)]
    if isinstance(value, Mapping) and all(type(name) is str for name in value):
        return [_TABLE, {name: _plain(inner) for name, inner in value.items()}]
    if is_dataclass(value):
        return [type(value).__name__, *(_plain(getattr(value, f.name)) for f in fields(value))]
    raise TypeError(f"{type(value).__name__} is no figure")


def _value(plain: Any, kinds: Mapping[str, type]) -> Any:
    if not isinstance(plain, list):
        return plain
    name, *inner = plain
    if name == _ARRAY:
        return np.array(inner[0], np.float64)
    if name == _TABLE:
        return {key: _value(of_key, kinds) for key, of_key in inner[0].items()}
    values = [_value(one, kinds) for one in inner]
    if name in (_TUPLE, _LIST):
        return tuple(values) if name == _TUPLE else values
    return kinds[name](*values)
