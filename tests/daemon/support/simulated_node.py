"""The firmware itself behind a port in virtual time: what it does costs its own clock time, and nothing waits."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from powerd_core.errors import SensorError
from powerd_daemon.clock import Clock

ROOT = Path(__file__).parents[3]
for folder in (ROOT / "firmware", ROOT / "tests" / "firmware" / "support"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from powernode.node import Node  # noqa: E402
from simulated_pico import SimulatedPico, chips  # noqa: E402

STEP_NS = 50_000


class SimulatedNode:
    """A port (`powerd_daemon.sources.port.Port`) with a node that runs whenever somebody looks.

    The node's clock runs ``skew`` (relative) fast and began at ``node_us``.
    """

    def __init__(
        self, clock: Clock, *, sensors: int = 8, skew: float = 40e-6, node_us: int = 0xFFFF_0000, boot: int = 77
    ) -> None:
        self.clock, self.skew = clock, skew
        self.t0_ns = clock.now_ns()
        self.node_us = node_us
        self.pico = SimulatedPico(chips(sensors), us=node_us, boot=boot)
        self.node = Node(self.pico)
        self.unplugged = ""
        self.deaf = False
        self.mangle: Callable[[bytes], bytes] = lambda data: data
        self.turns_us: list[tuple[float, int]] = []
        """Edges to come: (microseconds of the node, level)."""
        self.closed = 0
        self._sent: list[tuple[float, bytes]] = []

    def us_at(self, t_ns: int) -> float:
        """What the node's clock shows."""
        return self.node_us + (t_ns - self.t0_ns) * 1e-3 * (1 + self.skew)

    def t_ns(self, us: float) -> float:
        """The true time at which the node's clock shows ``us``."""
        return self.t0_ns + (us - self.node_us) * 1e3 / (1 + self.skew)

    def read(self, timeout_ns: int) -> bytes:
        end_ns = self.clock.now_ns() + timeout_ns
        while True:
            if self.unplugged:
                raise SensorError(f"/dev/fake: {self.unplugged}")
            self.catch_up()
            data = self._arrived()
            if data or self.clock.now_ns() >= end_ns:
                return self.mangle(data)
            self.clock.sleep_until(self.clock.now_ns() + STEP_NS)

    def write(self, data: bytes) -> None:
        if self.unplugged:
            raise SensorError(f"/dev/fake: {self.unplugged}")
        self.catch_up()
        if not self.deaf:
            self.pico.incoming += data

    def close(self) -> None:
        self.closed += 1

    def catch_up(self) -> None:
        """Run the node up to the present."""
        now_us = self.us_at(self.clock.now_ns())
        while self.pico.us < now_us:
            while self.turns_us and self.turns_us[0][0] <= self.pico.us:
                at, level = self.turns_us.pop(0)
                self.pico.pin = level
                self.pico.edges.put(int(at) % (1 << 30), level)
            self.node.step()
            if self.pico.outgoing:
                self._sent.append((self.pico.us, bytes(self.pico.outgoing)))
                self.pico.outgoing = bytearray()

    def _arrived(self) -> bytes:
        """What was sent by now: the node's last turn may have ended later."""
        now_us, found = self.us_at(self.clock.now_ns()), b""
        while self._sent and self._sent[0][0] <= now_us:
            found += self._sent.pop(0)[1]
        return found
