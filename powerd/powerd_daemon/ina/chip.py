"""One chip on a bus: identified, set up, and read back to see whether it still is what it was."""

from __future__ import annotations

from powerd_daemon.clock import Clock
from powerd_daemon.ina.bus import Read, RegisterBus, singly
from powerd_daemon.ina.chips import CONFIG, RST
from powerd_daemon.ina.settings import Settings

RESET_NS = 400_000
"""After a software reset, the slowest type (INA228) needs 300 us."""


class Chip:
    """A chip by its address and what it is to be. All transfers are single: chips come and go one by one."""

    def __init__(self, bus: RegisterBus, clock: Clock, address: int, settings: Settings) -> None:
        self.address = address
        self.settings = settings
        self._bus, self._clock = bus, clock
        kind = settings.type
        self._config = bus.prepare([Read(address, CONFIG)])
        self._identity = [(bus.prepare([Read(address, r)]), value, mask) for r, value, mask in kind.identity]
        self._read_back = singly(bus, [Read(address, register) for register, _ in settings.words])
        self._expected = b"".join(word.to_bytes(2, "big") for _, word in settings.words)

    def set_up(self) -> str:
        """Reset, identify and configure the chip. Returns what is wrong, or nothing; a failed transfer is wrong too."""
        kind = self.settings.type
        try:
            self._bus.write_word(self.address, CONFIG, RST)
            self._clock.sleep_until(self._clock.now_ns() + RESET_NS)
            if (found := _word(self._config())) != kind.resets[CONFIG]:
                return f"is no {kind.name}: CONFIG is {found:#06x} after a reset, not {kind.resets[CONFIG]:#06x}"
            for read, value, mask in self._identity:
                if (found := _word(read())) & mask != value & mask:
                    return f"is no {kind.name}: it identifies itself as {found:#06x}, not {value:#06x}"
            for register, word in self.settings.words:
                self._bus.write_word(self.address, register, word)
            if not self.is_as_set():
                return "does not keep its configuration: check its supply"
        except OSError as error:
            return f"does not answer ({error.strerror or error})"
        return ""

    def is_as_set(self) -> bool:
        """Whether its configuration reads back as written. Raises `OSError` when the transfer fails."""
        return bytes(self._read_back()) == self._expected


def _word(raw: bytes | bytearray | memoryview) -> int:
    return int.from_bytes(bytes(raw), "big")
