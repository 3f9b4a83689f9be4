"""The configuration file: TOML to a checked `Config`, every error with its line."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from powerd_core.errors import ConfigError
from powerd_core.model import pci_key, uuid_key
from powerd_core.serde import build_options, parse_toml
from powerd_core.text import did_you_mean
from powerd_daemon.config.server import ServerConfig
from powerd_daemon.config.sources import MAX_SOURCES, Config, DeviceConfig, SamplerConfig, SourceConfig, source_config
from powerd_daemon.places import line_of
from powerd_daemon.textfile import read_text


@dataclass(frozen=True, slots=True)
class _DeviceTable:
    name: str
    feeds: tuple[str, ...] | None = None
    description: str | None = None
    uuid: str | None = None
    pci: str | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("option 'name': a device needs a name")
        if self.uuid is not None and not uuid_key(self.uuid):
            raise ValueError(f"option 'uuid': {self.uuid!r} is no UUID of a GPU: nvidia-smi -L lists them")
        if self.pci is not None and not pci_key(self.pci):
            raise ValueError(f"option 'pci': {self.pci!r} is no PCI address such as 0000:3b:00.0")


def load_config(path: Path) -> Config:
    """The configuration in a file. Raises `ConfigError`."""
    return parse_config(read_text(path, "there is no such configuration file"), str(path))


def parse_config(text: str, origin: str) -> Config:
    """The configuration in a TOML text; ``origin`` names it in errors. Raises `ConfigError`."""
    try:
        document = parse_toml(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{origin}: not valid TOML: {error}") from error
    try:
        return _checked(document, origin)
    except ConfigError as error:
        line = line_of(text, str(error).removeprefix(origin))
        raise ConfigError(f"{error} (line {line})" if line else str(error)) from error


def _checked(document: Mapping[str, object], origin: str) -> Config:
    tables = ("server", "source", "device")
    for name in document:
        if name not in tables:
            raise ConfigError(f"{origin}: unknown table {name!r}{did_you_mean(name, tables)}")
    server = document.get("server", {})
    if not isinstance(server, dict):
        raise ConfigError(f"{origin}: 'server' is a table: write [server]")
    where = f"{origin}: [server]"
    made = build_options(ServerConfig, server, where)
    made = made.listening_on(made.listen, where, made.data, made.clock)
    sources = [_source(t, i, origin) for i, t in enumerate(_tables(document, "source", origin), 1)]
    if not sources:
        raise ConfigError(f"{origin}: there is no [[source]]: nothing to measure")
    if len(sources) > MAX_SOURCES:
        raise ConfigError(f"{origin}: {len(sources)} sources are more than {MAX_SOURCES}")
    devices = [_device(t, i, origin) for i, t in enumerate(_tables(document, "device", origin), 1)]
    _refuse_twins("source", sources)
    _refuse_twins("device", devices)
    return Config(made, tuple(sources), tuple(devices))


def _tables(document: Mapping[str, object], name: str, origin: str) -> list[dict[str, object]]:
    found = document.get(name, [])
    if not isinstance(found, list) or not all(isinstance(t, dict) for t in found):
        raise ConfigError(f"{origin}: {name!r} is a list of tables: write [[{name}]]")
    return found


def _source(table: dict[str, object], number: int, origin: str) -> SourceConfig:
    common = {k: v for k, v in table.items() if k in ("priority", "lock_memory")}
    options = {k: v for k, v in table.items() if k not in ("kind", "name", *common)}
    where = f"{origin}: [[source]] {number}"
    if "kind" not in table:
        raise ConfigError(f"{where}: missing option 'kind' (a string, see `powerd sources`)")
    kind = table["kind"]
    if not isinstance(kind, str) or not kind:
        raise ConfigError(f"{where}: option 'kind': expected one that `powerd sources` lists, found {kind!r}")
    name = table.get("name", kind)
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{where}: option 'name': expected a string, found {name!r}")
    where = f"{where} ({kind})"
    return replace(source_config(kind, name, options, where), sampler=build_options(SamplerConfig, common, where))


def _device(table: dict[str, object], number: int, origin: str) -> DeviceConfig:
    where = f"{origin}: [[device]] {number}"
    if isinstance(table.get("name"), str):
        where += f" ({table['name']})"
    made = build_options(_DeviceTable, table, where)
    for line in made.feeds or ():
        if made.feeds and made.feeds.count(line) > 1:
            raise ConfigError(f"{where}: line {line!r} feeds it twice: each line counts once")
    return DeviceConfig(made.name, where, made.feeds, made.description, made.uuid, made.pci)


def _refuse_twins(what: str, configs: Sequence[SourceConfig | DeviceConfig]) -> None:
    seen: dict[str, int] = {}
    for number, config in enumerate(configs, 1):
        if config.name in seen:
            raise ConfigError(f"{config.where}: {what} {seen[config.name]} has the same name: give each its own 'name'")
        seen[config.name] = number
