"""Clock exchanges with one powerd: answered at once, later, or never, and what they tell of the board's clock."""

from __future__ import annotations

from collections import deque

import zmq

from powerd_client.hostclock import now_ns
from powerd_core import wire
from powerd_core.clock import ClockFilter
from powerd_core.errors import ClockError, WireError
from powerd_core.model import UNKNOWN_TIME_NS, ClockExchange

_OPEN = 64
"""Exchanges that may wait for their answers; on a slow way there are always some."""


class Exchanges:
    """Asks and takes answers on the clock socket that each call is given."""

    def __init__(self) -> None:
        self.refused = 0
        """Frames that were none."""
        self.heard_ns = 0
        """When anything came last."""
        self._open: deque[int] = deque(maxlen=_OPEN)
        self._late: list[ClockExchange] = []
        self._filter = ClockFilter()
        self._offsets: dict[int, float] = {}

    def make(self, clock: zmq.Socket[bytes], timeout_ms: int) -> ClockExchange | None:
        """One exchange, or None when the answer does not come at once: it is then among `late`."""
        t1 = now_ns()
        try:
            clock.send(wire.encode(ClockExchange(0, t1)), zmq.NOBLOCK)
        except zmq.Again:
            return None
        self._open.append(t1)
        # Bounded by time too: whoever answers without end must not keep us here.
        while clock.poll(timeout_ms) and now_ns() - t1 < 10 * timeout_ms * 1_000_000:
            if (found := self._take(clock)) is not None:
                if found.t1_host_ns == t1:
                    return found
                self._late.append(found)
        return None

    def late(self, clock: zmq.Socket[bytes]) -> list[ClockExchange]:
        """Those whose answers took longer than `make` waited. Ask as soon as the socket has something."""
        for _ in range(_OPEN):
            if not clock.poll(0):
                break
            if (found := self._take(clock)) is not None:
                self._late.append(found)
        late, self._late = self._late, []
        return late

    def offset_ns(self, epoch: int) -> float | None:
        """Host minus board time, as well as it is known by now."""
        return self._offsets.get(epoch)

    def board_now_ns(self, epoch: int) -> int:
        """Now on the clock of an epoch."""
        offset = self._offsets.get(epoch)
        return UNKNOWN_TIME_NS if offset is None else now_ns() - round(offset)

    def _take(self, clock: zmq.Socket[bytes]) -> ClockExchange | None:
        frame = clock.recv(zmq.NOBLOCK)
        t4 = self.heard_ns = now_ns()
        try:
            event = wire.decode(frame)
        except WireError:
            self.refused += 1
            return None
        if not isinstance(event, ClockExchange) or event.t1_host_ns not in self._open:
            return None
        self._open.remove(event.t1_host_ns)
        exchange = ClockExchange(event.epoch, event.t1_host_ns, event.t2_board_ns, event.t3_board_ns, t4)
        self._filter.add(exchange)
        try:
            self._offsets[exchange.epoch] = self._filter.at(exchange.t_board_ns)[0]
        except ClockError:
            self._offsets.pop(exchange.epoch, None)
        return exchange
