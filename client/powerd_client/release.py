"""Which release of powerd this is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def release() -> str:
    """The installed version, or ``unknown`` for a copy of the sources that was never installed."""
    try:
        return version("powerd")
    except PackageNotFoundError:
        return "unknown"
