"""The files of powerd's user on the disk: TOML documents that are read, and texts that are replaced as a whole."""

from __future__ import annotations

import errno
import os
import stat
import tomllib
from pathlib import Path
from typing import Any

from powerd_core.errors import ConfigError
from powerd_core.serde import parse_toml
from powerd_daemon.ownership import foreign, led_to, replace

MOST_BYTES = 4 << 20
"""No configuration, calibration or key is longer."""


def read_small(path: Path) -> bytes:
    """What a file holds. Raises `OSError`, also for a device or a pipe (which may never end, or never begin), and for
    more than `MOST_BYTES`."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no file, but a directory, device or pipe: copy the text into a file")
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"it is longer than {MOST_BYTES >> 20} MiB: is it the right file?")
    return data


def read_document(path: Path) -> dict[str, Any]:
    """The TOML document in a file. Raises `ConfigError`."""
    try:
        return parse_document(read_small(path).decode("utf-8-sig"), str(path))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not a text file in UTF-8 (byte {error.start})") from None


def parse_document(text: str, origin: str) -> dict[str, Any]:
    """A TOML text; ``origin`` names it in errors. Raises `ConfigError`."""
    try:
        return parse_toml(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{origin}: not valid TOML: {error}") from error


def write_text(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace a file as a whole or not at all, whenever the power fails. A link of the user's own stays, and its file
    is replaced. Raises `ConfigError`, also for a file that belongs to another user."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        place = led_to(path)
        if (reason := foreign(place)) is not None:
            raise ConfigError(f"{path}: cannot be written: {reason}")
        replace(place, text, mode)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error
