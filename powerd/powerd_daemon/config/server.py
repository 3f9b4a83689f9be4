"""The table ``[server]``: where powerd listens, what it keeps, and who may read."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field, replace
from pathlib import Path

from powerd_core.errors import ConfigError
from powerd_daemon.endpoints import DEFAULT_LISTEN, check_endpoint, neighbour_endpoint


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
