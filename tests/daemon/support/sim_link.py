"""A link to a simulated meter in virtual time, which can be pulled out and made to garble."""

from __future__ import annotations

from powerd_core.errors import SensorError
from powerd_daemon.clock import Clock
from powerd_daemon.meter.simulated import SimWt310


class SimLink:
    """A serial line to a `SimWt310`; with ``blocks`` a USBTMC one, whose reads wait in virtual time."""

    def __init__(self, meter: SimWt310, clock: Clock, *, blocks: bool = False) -> None:
        self.name = "/dev/usbtmc0" if blocks else "/dev/ttySIM"
        self.blocks = blocks
        self.byte_ns = meter.byte_ns
        self._meter, self._clock = meter, clock
        self.is_out = self.is_deaf = False
        self.garbles = False
        """Spoil the next bytes that come."""
        self.is_closed = False

    def read(self) -> bytes:
        self._check()
        answer = self._meter.transmit(self._clock.now_ns())
        give_up_ns = self._clock.now_ns() + 5_000_000_000
        while self.blocks and not answer.endswith(b"\n") and self._clock.now_ns() < give_up_ns:
            self._clock.sleep_until(self._clock.now_ns() + 200_000)
            answer += self._meter.transmit(self._clock.now_ns())
        if self.garbles and answer:
            answer, self.garbles = b"#" * len(answer), False
        return b"" if self.is_deaf else answer

    def write(self, data: bytes) -> None:
        self._check()
        # The bus itself ends a USBTMC message; the simulated meter knows the serial line's way alone.
        self._meter.receive(data.replace(b"\n", b"\r\n") if self.blocks else data, self._clock.now_ns())

    def close(self) -> None:
        self.is_closed = True

    def _check(self) -> None:
        if self.is_out:
            raise SensorError(f"{self.name} is gone")
