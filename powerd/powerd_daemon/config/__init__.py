"""The configuration: what powerd measures and where it listens. See docs/configuration.md."""

from powerd_daemon.config.file import load_config, parse_config
from powerd_daemon.config.server import ServerConfig
from powerd_daemon.config.sources import (
    MAX_SOURCES,
    STREAMS_PER_SOURCE,
    Config,
    DeviceConfig,
    SamplerConfig,
    SourceConfig,
    make_source,
    source_config,
)

__all__ = [
    "MAX_SOURCES",
    "STREAMS_PER_SOURCE",
    "Config",
    "DeviceConfig",
    "SamplerConfig",
    "ServerConfig",
    "SourceConfig",
    "load_config",
    "make_source",
    "parse_config",
    "source_config",
]
