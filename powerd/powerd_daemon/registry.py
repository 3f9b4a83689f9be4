"""Which kinds of source there are: the entry-point group ``powerd.sources``, and ``module.path:Class``."""

from __future__ import annotations

from dataclasses import is_dataclass
from importlib.metadata import EntryPoint, entry_points

from powerd_core.errors import ConfigError
from powerd_core.text import did_you_mean
from powerd_daemon.sources.base import Source

GROUP = "powerd.sources"


def kinds() -> tuple[str, ...]:
    """The registered kinds, sorted."""
    return tuple(sorted({point.name for point in entry_points(group=GROUP)}))


def find_source(kind: str) -> type[Source]:
    """The class behind ``kind``. Raises `ConfigError` when it is unknown, cannot be imported or is no source."""
    if ":" in kind:
        module, _, name = kind.partition(":")
        if not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
            raise ConfigError(f"source {kind!r} cannot be loaded: write it as module.path:Class")
        point = EntryPoint(name=kind, group=GROUP, value=kind)
    else:
        points = [point for point in entry_points(group=GROUP) if point.name == kind]
        if not points:
            raise ConfigError(f"unknown kind of source {kind!r}{_known(kind)}")
        point = points[0]
    try:
        found = point.load()
    except Exception as error:
        # Whatever a third party's module does while it is imported is a fault of the configuration that names it.
        raise ConfigError(f"source {kind!r} cannot be loaded: {type(error).__name__}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Source)):
        raise ConfigError(f"source {kind!r} is not a subclass of powerd_daemon.sources.base.Source")
    if not is_dataclass(getattr(found, "Options", None)):
        raise ConfigError(f"source {kind!r} has no dataclass 'Options'")
    return found


def _known(kind: str) -> str:
    known = kinds()
    meant = did_you_mean(kind, known)
    listing = f" (known kinds: {', '.join(known)}; or module.path:Class)"
    return meant + listing if meant.startswith(": did") else listing
