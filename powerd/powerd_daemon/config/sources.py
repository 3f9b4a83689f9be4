"""What is measured: sources with their options checked, and devices beside those that sources propose."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from powerd_core.errors import ConfigError
from powerd_core.serde import build_options
from powerd_daemon.clock import SystemClock
from powerd_daemon.config.server import ServerConfig
from powerd_daemon.registry import find_source
from powerd_daemon.sources.base import Source, Start

STREAMS_PER_SOURCE = 256
MAX_SOURCES = 256
"""A stream's number has 16 bits; each source owns a block of 256 of them."""


@dataclass(frozen=True, slots=True)
class SamplerConfig:
    """Options that every ``[[source]]`` takes beside its own: how its sampler process runs."""

    priority: int = 0
    """Real-time priority of the sampler (SCHED_FIFO), 1 to 99; 0 leaves it an ordinary process."""
    lock_memory: bool = False
    """Keep the sampler's memory from being paged out."""

    def __post_init__(self) -> None:
        if not 0 <= self.priority <= 99:
            raise ValueError(f"option 'priority': {self.priority} is not between 0 and 99")


@dataclass(frozen=True, slots=True)
class SourceConfig:
    """One ``[[source]]``: its options as the file gives them, already checked against the source's ``Options``."""

    kind: str
    name: str
    options: Mapping[str, object]
    where: str
    """Begins every error about it, such as ``powerd.toml: [[source]] 1 (sim)``."""
    sampler: SamplerConfig = SamplerConfig()


@dataclass(frozen=True, slots=True)
class DeviceConfig:
    """One ``[[device]]``: overrides or adds to the devices that sources propose. None leaves what they say."""

    name: str
    where: str
    feeds: tuple[str, ...] | None = None
    description: str | None = None
    uuid: str | None = None
    pci: str | None = None


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that `powerd run` needs to know."""

    server: ServerConfig
    sources: tuple[SourceConfig, ...]
    devices: tuple[DeviceConfig, ...] = ()


def source_config(kind: str, name: str, options: Mapping[str, object], where: str) -> SourceConfig:
    """A source with its options checked. Raises `ConfigError`."""
    try:
        cls = find_source(kind)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    try:
        # A sampler gets its options as JSON; what TOML has beyond that (dates) no source can want.
        json.dumps(options)
    except TypeError as error:
        raise ConfigError(f"{where}: an option has a type that sources do not take: {error}") from error
    config = SourceConfig(kind, name, options, where)
    make_source(config, cls, Start(name, 1, 0, SystemClock()))
    return config


def make_source(config: SourceConfig, cls: type[Source], start: Start) -> Source:
    """The source of a configuration, not yet opened. Raises `ConfigError`."""
    options = build_options(cls.Options, config.options, config.where)
    try:
        return cls(options, start)
    except ConfigError as error:
        raise ConfigError(f"{config.where}: {error}") from error
    except OverflowError as error:
        raise ConfigError(f"{config.where}: a number is too large: {error}") from error
