"""The configuration: what powerd measures and where it listens. See docs/reference/configuration.md.

Every error begins with the place it is about, such as ``powerd.toml: [[source]] 1 (sim)``, and says the remedy.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from powerd_core.errors import ConfigError
from powerd_core.lease import DEFAULT_SOCKET
from powerd_core.model import Device, Stream, pci_key, uuid_key
from powerd_core.serde import build_options
from powerd_core.text import did_you_mean
from powerd_daemon.clock import SystemClock
from powerd_daemon.sources.base import Source, Start, devices_of, find_source
from powerd_daemon.toml_files import parse_document, read_document

DEFAULT_LISTEN = "tcp://127.0.0.1:7360"
NOTHING = (
    "nothing is measured: the configuration has no [[source]]; `powerd scan --format toml` prints one for each bus"
)
IPC_PATH_BYTES = 107
"""A Unix socket's path has 108 bytes with its final NUL (unix(7))."""
STREAMS_PER_SOURCE = 256
"""A stream's number has 16 bits; each source owns a block of 256 of them."""
_TCP = re.compile(r"tcp://(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^:/\[\]\s]+):(?P<port>\d+|\*)")


def release() -> str:
    """The installed version, or ``unknown`` for a copy of the sources that was never installed."""
    try:
        return version("powerd")
    except PackageNotFoundError:
        return "unknown"


def check_endpoint(url: str, where: str) -> str:
    """``url`` with an ipc path made absolute. Raises `ConfigError` naming ``where`` it was given."""
    if url.startswith("ipc://"):
        path = str(Path(url.removeprefix("ipc://")).absolute())
        if len(path.encode()) > IPC_PATH_BYTES:
            raise ConfigError(f"{where}: the path of {url!r} is longer than {IPC_PATH_BYTES} bytes: choose another")
        return f"ipc://{path}"
    match = _TCP.fullmatch(url)
    if not match or (match["port"] != "*" and not 1 <= int(match["port"]) <= 65535):
        raise ConfigError(f"{where}: cannot use {url!r}: write tcp://HOST:PORT or ipc:///PATH")
    return url


def neighbour_endpoint(listen: str, step: int, name: str, where: str) -> str:
    """The default of another socket beside a checked control socket: ``step`` ports on, or the path with its name."""
    if listen.startswith("ipc://"):
        return check_endpoint(f"{listen}.{name}", where)
    host, _, port = listen.rpartition(":")
    return listen if port == "*" else check_endpoint(f"{host}:{int(port) + step}", f"{where}: {name!r}")


def public_endpoint(bound: str) -> str:
    """A bound endpoint as a `Description` states it: over tcp, host ``*`` stands for the address that was asked."""
    return f"tcp://*:{bound.rpartition(':')[2]}" if bound.startswith("tcp://") else bound


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The table ``[server]``, with its endpoints checked and complete."""

    listen: str = DEFAULT_LISTEN
    """Where clients ask: ``tcp://HOST:PORT`` or ``ipc://PATH``. Host * is every address of this machine, port * a free
    one. A relative path counts from the directory in which powerd starts; a socket's path has at most 107 bytes."""
    data: str = ""
    """Where the readings are sent. Empty for the port after listen's, or its path with '.data'."""
    clock: str = ""
    """Where clocks are compared. Empty for the second port after listen's, or its path with '.clock'."""
    board: str = field(default_factory=socket.gethostname)
    """Name of this machine in every recording; without it the host name."""
    ring_mib: float = 64.0
    """Memory in MiB for the latest readings of each stream, from which a client that was away catches up."""
    block_ms: float = 20.0
    """How often readings are sent on, 1 to 1000 ms. Smaller is fresher and costs more."""
    spool: Path | None = None
    """Directory in which readings are kept too, so that they outlive powerd, a power cut and the ring. It serves one
    powerd."""
    spool_mib: float = 1024.0
    """Size of the spool, at least 1; beyond it the oldest readings are deleted, earlier lives of powerd first."""
    spool_sync_s: float = 1.0
    """Seconds of readings that a power cut may take, 0.05 to 3600. More often wears an SD card more."""
    keys: str = ""
    """Directory of keys. Given, they are asked for on every tcp address; otherwise on those beyond this machine, from
    the default directory."""
    insecure: bool = False
    """Let anyone who reaches the addresses read, without keys and unencrypted."""

    control: str = DEFAULT_SOCKET
    """Socket of the control helper, to which questions of clients with the role control are handed on."""

    def __post_init__(self) -> None:
        for option, least, value, most in (
            ("ring_mib", 0.001, self.ring_mib, 1 << 20),
            ("block_ms", 1, self.block_ms, 1000),
            ("spool_mib", 1, self.spool_mib, 1 << 30),
            ("spool_sync_s", 0.05, self.spool_sync_s, 3600),
        ):
            if not least <= value <= most:
                raise ValueError(f"option {option!r}: {value} is not between {least} and {most}")
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
        return replace(self, listen=listen, data=data, clock=clock)


@dataclass(frozen=True, slots=True)
class SamplerConfig:
    """Options that every ``[[source]]`` takes beside its own: how its sampler process runs."""

    priority: int = 0
    """Real-time priority of the sampler (SCHED_FIFO), 1 to 99; 0 leaves it an ordinary process."""
    lock_memory: bool = False
    """Keep the sampler's memory from being paged out."""
    optional: bool = False
    """Go on without it when it cannot be opened at the start, unless it is the last."""

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
    where: str = ""
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
        if self.feeds is not None and len(set(self.feeds)) < len(self.feeds):
            raise ValueError("option 'feeds': a line is named twice, and each counts once")


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that `powerd run` needs to know."""

    server: ServerConfig
    sources: tuple[SourceConfig, ...]
    devices: tuple[DeviceConfig, ...] = ()


def make_source(config: SourceConfig, cls: type[Source], start: Start) -> Source:
    """The source of a configuration, not yet opened. Raises `ConfigError`."""
    options = build_options(cls.Options, config.options, config.where)
    try:
        return cls(options, start)
    except (ConfigError, OverflowError) as error:
        raise ConfigError(f"{config.where}: {error}") from error


def source_config(table: Mapping[str, object], where: str) -> SourceConfig:
    """A table ``[[source]]`` with its options checked. Raises `ConfigError`."""
    kind, name = table.get("kind"), table.get("name", table.get("kind"))
    if not isinstance(kind, str) or not isinstance(name, str) or not kind or not name:
        raise ConfigError(f"{where}: missing option 'kind' or 'name' (strings, see `powerd sources`)")
    where = f"{where} ({kind})"
    common = {k: v for k, v in table.items() if k in {f.name for f in fields(SamplerConfig)}}
    options = {k: v for k, v in table.items() if k not in ("kind", "name", *common)}
    try:
        cls = find_source(kind)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    config = SourceConfig(kind, name, options, where, build_options(SamplerConfig, common, where))
    make_source(config, cls, Start(name, 1, 0, SystemClock()))
    return config


@dataclass(frozen=True, slots=True)
class Document:
    """A configuration file as it is written."""

    server: ServerConfig = field(default_factory=ServerConfig)
    source: tuple[dict[str, object], ...] = ()
    device: tuple[DeviceConfig, ...] = ()


def load_config(path: Path) -> Config:
    """The configuration in a file. Raises `ConfigError`."""
    return _config(build_options(Document, read_document(path), str(path)), str(path))


def parse_config(text: str, origin: str) -> Config:
    """The configuration in a TOML text; ``origin`` names it in errors. Raises `ConfigError`."""
    return _config(build_options(Document, parse_document(text, origin), origin), origin)


def _config(document: Document, origin: str) -> Config:
    server = document.server
    server = server.listening_on(server.listen, f"{origin}: [server]", server.data, server.clock)
    sources = tuple(source_config(t, f"{origin}: [[source]] {i}") for i, t in enumerate(document.source, 1))
    devices = tuple(replace(d, where=f"{origin}: [[device]] {i} ({d.name})") for i, d in enumerate(document.device, 1))
    for configs in (sources, devices):
        names = [config.name for config in configs]
        for config in configs:
            if names.count(config.name) > 1:
                raise ConfigError(f"{config.where}: another one has the same name: give each its own 'name'")
    _check_foreseen(sources, devices)
    return Config(server, sources, devices)


def _check_foreseen(sources: Sequence[SourceConfig], devices: Sequence[DeviceConfig]) -> None:
    """What `powerd run` would refuse once all sources are open, as far as their options tell. Raises `ConfigError`."""
    described = []
    for config in sources:
        lines = make_source(config, find_source(config.kind), Start(config.name, 1, 0, SystemClock())).foresee()
        if lines is not None:
            described.append((config, Stream(0, config.name, (), lines, 1)))
    names = check_lines([(config, [stream]) for config, stream in described])
    if len(described) == len(sources):
        merge_devices(names, [(config, devices_of(stream, "")) for config, stream in described], devices)


def check_lines(described: Iterable[tuple[SourceConfig, Sequence[Stream]]]) -> tuple[str, ...]:
    """The names of all lines. Raises `ConfigError` when two have the same."""
    owners: dict[str, SourceConfig] = {}
    for source, streams in described:
        for name in (line.name for stream in streams for line in stream.lines):
            if name in owners:
                raise ConfigError(
                    f"{source.where}: line {name!r} is also a line of source {owners[name].name!r}: "
                    "give one of them another name in its options, or remove it"
                )
            owners[name] = source
    return tuple(owners)


def merge_devices(
    lines: Sequence[str],
    proposed: Iterable[tuple[SourceConfig, Sequence[Device]]],
    configured: Sequence[DeviceConfig],
    beside: Collection[str] = (),
) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """All devices, and notes for the user on proposals that were set aside.

    Two sources that measure one device measure the same power twice: the first of them in the configuration feeds it,
    unless a ``[[device]]`` says otherwise. Raises `ConfigError` for a device fed by a line that does not exist, or by
    one of the lines ``beside``, which are no power.
    """
    devices: dict[str, Device] = {}
    notes = []
    settled = {d.name for d in configured if d.feeds is not None}
    for source, suggestions in proposed:
        for device in suggestions:
            _check_feeds(device.feeds, lines, beside, f"{source.where}: device {device.name!r}")
            if device.name not in devices or not devices[device.name].feeds:
                devices[device.name] = device
            elif device.feeds and device.name not in settled:
                notes.append(
                    f"device {device.name} is fed by {' + '.join(devices[device.name].feeds)}; the lines of source "
                    f"{source.name!r} are compared with them (a [[device]] table can say otherwise)"
                )
    gpus: dict[str, str] = {}
    for config in configured:
        before = devices.get(config.name, Device(config.name, ()))
        feeds = before.feeds if config.feeds is None else config.feeds
        if not feeds:
            raise ConfigError(f"{config.where}: no source proposes this device: say which lines are its 'feeds'")
        _check_feeds(feeds, lines, beside, config.where)
        description = before.description if config.description is None else config.description
        devices[config.name] = Device(
            config.name, feeds, description, config.uuid or before.uuid, config.pci or before.pci
        )
        # Two devices with one GPU's name would each be given what its processes use.
        for key in filter(None, (uuid_key(config.uuid), pci_key(config.pci))):
            if gpus.setdefault(key, config.name) != config.name:
                raise ConfigError(f"{config.where}: its GPU is also that of {gpus[key]!r}: a GPU is one device")
    return tuple(devices.values()), tuple(notes)


def _check_feeds(feeds: Sequence[str], lines: Sequence[str], beside: Collection[str], where: str) -> None:
    for line in feeds:
        if line not in lines:
            raise ConfigError(f"{where}: unknown line {line!r} in feeds{did_you_mean(line, lines)}")
        if line in beside:
            raise ConfigError(f"{where}: line {line!r} in feeds is neither power nor energy: leave it out")
