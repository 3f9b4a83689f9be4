"""TOML as we take it: `tomllib`, with errors of one kind and numbers that arithmetic can hold."""

from __future__ import annotations

import tomllib
from math import isfinite
from typing import Any

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


def parse_toml(text: str) -> dict[str, Any]:
    """The document in a text. Raises `tomllib.TOMLDecodeError`, also for what `tomllib` lets through or chokes on.

    Integers have 64 bits, as TOML promises; infinities and what is no number are no option of ours.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except RecursionError:
        raise tomllib.TOMLDecodeError("tables and lists are nested too deep") from None
    except ValueError as error:
        raise tomllib.TOMLDecodeError(str(error)) from error
    waiting: list[tuple[str, Any]] = list(document.items())
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.items()
        elif isinstance(value, list):
            waiting += [(name, inner) for inner in value]
        elif isinstance(value, float) and not isfinite(value):
            raise tomllib.TOMLDecodeError(f"{name!r} is not a finite number")
        elif isinstance(value, str) and "\0" in value:
            # Most texts become names of files and ports, which end at such a character or refuse it.
            raise tomllib.TOMLDecodeError(f"{name!r} has a NUL character")
        elif isinstance(value, int) and not _LEAST <= value <= _MOST:
            raise tomllib.TOMLDecodeError(f"{name!r} has more than 64 bits")
    return document
