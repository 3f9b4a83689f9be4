"""The configuration file: what powerd measures and where it listens. See docs/configuration.md."""

from __future__ import annotations

import json
import socket
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from powerd_core.errors import ConfigError
from powerd_core.identity import pci_key, uuid_key
from powerd_core.toml_text import parse_toml
from powerd_daemon.clock import SystemClock
from powerd_daemon.endpoints import DEFAULT_LISTEN, check_endpoint, neighbour_endpoint
from powerd_daemon.options import build_options
from powerd_daemon.places import line_of
from powerd_daemon.registry import find_source
from powerd_daemon.sources.base import Source, Start
from powerd_daemon.suggest import did_you_mean
from powerd_daemon.textfile import read_text

STREAMS_PER_SOURCE = 256
MAX_SOURCES = 256
"""A stream's number has 16 bits; each source owns a block of 256 of them."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The table ``[server]``, with its endpoints checked and complete."""

    listen: str = DEFAULT_LISTEN
    """Where clients ask: tcp://HOST:PORT (port * takes a free one) or ipc:///PATH."""
    data: str = ""
    """Where the readings are sent. Empty for the port after listen's, or its path with '.data'."""
    clock: str = ""
    """Where clocks are compared. Empty for the second port after listen's, or its path with '.clock'."""
    board: str = field(default_factory=socket.gethostname)
    """Name of this machine in every recording."""
    ring_mib: float = 64.0
    """Memory for each stream's latest readings, from which a client that was away catches up."""
    block_ms: float = 20.0
    """How often readings are sent on."""
    spool: Path | None = None
    """Directory in which readings are kept too, so that they outlive powerd."""
    spool_mib: float = 1024.0
    """Size at which the spool's oldest readings are deleted."""
    spool_sync_s: float = 1.0
    """How much a power cut may take."""
    keys: str = ""
    """Directory of keys. Given, they guard every tcp address; otherwise those beyond this machine, with the default
    directory."""
    insecure: bool = False
    """Let anyone who reaches the addresses read, without keys."""

    def __post_init__(self) -> None:
        if not 0 < self.ring_mib <= 1 << 20:
            raise ValueError(f"option 'ring_mib': {self.ring_mib} MiB is not a size")
        if not 1 <= self.block_ms <= 1000:
            raise ValueError(f"option 'block_ms': {self.block_ms} is not between 1 and 1000")
        if not 1 <= self.spool_mib <= 1 << 30:
            raise ValueError(f"option 'spool_mib': {self.spool_mib} MiB is not a size of at least 1")
        if not 0.05 <= self.spool_sync_s <= 3600:
            raise ValueError(f"option 'spool_sync_s': {self.spool_sync_s} is not between 0.05 and 3600")
        if self.keys and self.insecure:
            raise ValueError("option 'insecure': it cannot go together with 'keys'")
        if not self.board:
            raise ValueError("option 'board': a board needs a name")

    @property
    def ring_bytes(self) -> int:
        return int(self.ring_mib * (1 << 20))

    @property
    def spool_bytes(self) -> int:
        return int(self.spool_mib * (1 << 20))

    @property
    def block_ns(self) -> int:
        return int(self.block_ms * 1e6)

    def listening_on(self, listen: str, where: str, data: str = "", clock: str = "") -> ServerConfig:
        """The same with other endpoints, checked; those not given are the defaults beside ``listen``."""
        listen = check_endpoint(listen, where)
        data = check_endpoint(data, where) if data else neighbour_endpoint(listen, 1, "data", where)
        clock = check_endpoint(clock, where) if clock else neighbour_endpoint(listen, 2, "clock", where)
        used = {"listen": listen, "data": data, "clock": clock}
        for name, other in (("listen", "data"), ("listen", "clock"), ("data", "clock")):
            if used[name] == used[other] and not used[name].endswith(":*"):
                raise ConfigError(f"{where}: {name!r} and {other!r} are both {used[name]}: each needs its own endpoint")
        return replace(self, listen=listen, data=data, clock=clock)


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
