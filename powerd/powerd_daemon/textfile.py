"""Small text files that a user names, read whole: never more than fits, whatever stands behind the name."""

from __future__ import annotations

from pathlib import Path

from powerd_core.errors import ConfigError

MAX_BYTES = 4 << 20
"""A configuration of all lines that one powerd can have is far below that; a device such as /dev/zero never ends."""


def read_text(path: Path, missing: str) -> str:
    """The text of a file; ``missing`` is said where there is none. Raises `ConfigError`."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(f"{path}: {missing}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path}: longer than {MAX_BYTES >> 20} MiB: that is no such file")
    try:
        # Some editors put a mark of their own before the first character.
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not a text file in UTF-8 (byte {error.start})") from None
