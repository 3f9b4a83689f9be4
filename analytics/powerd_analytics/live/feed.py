"""What `joules top` knows: powerds listened to as any other reader does, and the run whose phases are shown."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq

from powerd_analytics.live.lines import LiveBoard, LiveLine
from powerd_analytics.live.machine import CurrentPhase, RunPhases
from powerd_client.hostclock import now_ns
from powerd_client.link import BoardLink
from powerd_core.errors import PowerdError

_EXCHANGE_NS = 500_000_000
_DRIFT = 100e-6
"""So much a clock may go wrong while no exchange is made (`powerd_core.clock`'s default)."""
_QUIET_S = 3.0


class Feed:
    """One powerd. What goes wrong once it has answered is shown, not raised: it may come back."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], url: str, keys: Path | None = None) -> None:
        """Raises `PowerdError` when nobody answers."""
        self.url = url
        self.link = BoardLink(context, url, client="joules top", keys=keys)
        try:
            self.board = LiveBoard(self.link.describe())
        except PowerdError:
            self.link.close()
            raise
        self.trouble = ""
        self.restarts = 0
        self._heard_s = time.monotonic()
        self._exchange_ns = 0
        self._delays: deque[tuple[int, int]] = deque(maxlen=64)
        """Host time and delay of the latest exchanges."""

    def step(self) -> None:
        """Take what has arrived, ask for more, and compare clocks now and then."""
        link = self.link
        link.ask()
        for event, _ in link.receive():
            self.board.take(event)
            self._heard_s, self.trouble = time.monotonic(), ""
        try:
            while link.control.poll(0):
                link.receive_control()
            if link.description is not None and link.description.epoch != self.board.description.epoch:
                self._begin_anew()
            if now_ns() - self._exchange_ns > _EXCHANGE_NS:
                self._exchange_ns = now_ns()
                if (exchange := link.exchange()) is not None:
                    self._delays.append((exchange.t4_host_ns, exchange.delay_ns))
        except PowerdError as error:
            self.trouble = str(error)
        if (quiet := time.monotonic() - self._heard_s) > _QUIET_S + 2 * self._longest_period_s():
            self.trouble = f"nothing heard for {quiet:.0f} s"

    def _longest_period_s(self) -> float:
        return max((line.period_ns for line in self.board.lines.values()), default=0) * 1e-9

    def _begin_anew(self) -> None:
        """A powerd that was restarted: what its lines had so far stays in the sums."""
        assert self.link.description is not None
        self.restarts += 1
        old, self.board = self.board, LiveBoard(self.link.description)
        self.board.gaps, self.board.unknown_gaps = old.gaps + 1, old.unknown_gaps + 1
        self.board.lost_scans, self.board.last_cause = old.lost_scans, "powerd was started anew"
        self._delays.clear()
        for name, line in self.board.lines.items():
            if (before := old.lines.get(name)) is not None:
                line.energy_j, line.covered_s = before.energy_j, before.covered_s
                line.readings, line.bad = before.readings, before.bad

    @property
    def clock_bound_s(self) -> float | None:
        """Half of the quickest of the latest exchanges, widened by what the clocks may have drifted since."""
        now = now_ns()
        found = [delay / 2 + (now - t) * _DRIFT for t, delay in self._delays]
        return min(found) * 1e-9 if found else None

    def sockets(self) -> list[Any]:
        """What may become readable."""
        return [s for s in (self.link.control, self.link.data) if s is not None]

    def close(self) -> None:
        self.link.close()


@dataclass(frozen=True, slots=True)
class DeviceFigures:
    """The sum of a device's feeding lines of one provenance."""

    device: str
    provenance: str
    power_w: float | None
    """None as long as one of its lines has said nothing."""
    energy_j: float | None
    """None as long as one of the lines has told nothing."""
    lines: int


class Watch:
    """All feeds, and the run if there is one."""

    def __init__(self, urls: Sequence[str], run: RunPhases | None, keys: Path | None = None) -> None:
        """``keys`` is the directory of keys. Raises `PowerdError` when one of the powerds does not answer."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.feeds: list[Feed] = []
        self.run = run
        self._begin_s = time.monotonic()
        try:
            self.feeds = [Feed(self._context, url, keys) for url in urls]
        except PowerdError:
            self.close()
            raise

    @property
    def elapsed_s(self) -> float:
        """How long it has listened: joules are since then."""
        return time.monotonic() - self._begin_s

    def step(self, timeout_s: float, descriptor: int | None = None) -> bool:
        """Wait for readings (or for ``descriptor``, a terminal) and take them. Whether the latter is readable."""
        poller = zmq.Poller()
        for feed in self.feeds:
            for socket in feed.sockets():
                poller.register(socket, zmq.POLLIN)
        if descriptor is not None:
            poller.register(descriptor, zmq.POLLIN)
        ready = dict(poller.poll(int(timeout_s * 1000)))
        for feed in self.feeds:
            feed.step()
        return descriptor is not None and descriptor in ready

    def phases(self) -> list[CurrentPhase]:
        """Where the run's processes are now."""
        if self.run is None:
            return []
        self.run.update()
        return self.run.current()

    def lines(self) -> list[LiveLine]:
        """Lines of all powerds, in their order."""
        return [line for feed in self.feeds for line in feed.board.lines.values()]

    def devices(self) -> list[DeviceFigures]:
        """Devices of all powerds. Lines of different provenance are never added."""
        found = []
        for feed in self.feeds:
            for device in feed.board.description.devices:
                parts: dict[str, list[LiveLine]] = {}
                for name in device.feeds:
                    if (line := feed.board.lines.get(name)) is not None:
                        parts.setdefault(line.line.provenance.value, []).append(line)
                for provenance, lines in parts.items():
                    watts = [line.power_w for line in lines]
                    total = None if None in watts else sum(w for w in watts if w is not None)
                    known = [line.known_j for line in lines]
                    joules = None if None in known else sum(j for j in known if j is not None)
                    found.append(DeviceFigures(device.name, provenance, total, joules, len(lines)))
        return found

    def close(self) -> None:
        for feed in self.feeds:
            feed.close()
        with contextlib.suppress(zmq.ZMQError):
            self._context.destroy(linger=0)
