"""The node's clock against the board's, while readings stream in: only exchanges that were already made count.

The maths are those of `powerd_core.clock`, with the board in the place of the host and the node in that of the board:
an offset is board minus node time. Both are in nanoseconds; the node's is unwrapped.
"""

from __future__ import annotations

from collections import deque

from powerd_core.clock import ClockPiece, map_clock
from powerd_core.errors import ClockError
from powerd_core.model import ClockExchange
from powerd_daemon.serial.protocol import TICK_NS

KEPT = 64
"""Exchanges that count: the last 16 s at four a second."""


class Unwrapper:
    """Node times of 32 bits as an ever-growing count. Two of them must be less than 35 minutes apart."""

    def __init__(self) -> None:
        self._us: int | None = None

    def us(self, time_us: int) -> int:
        """Microseconds, whole: times may come slightly out of order."""
        if self._us is None:
            # Room below, for a time before the first.
            self._us = time_us + (1 << 32)
            return self._us
        step = (time_us - self._us + (1 << 31)) % (1 << 32) - (1 << 31)
        found = self._us + step
        self._us = max(self._us, found)
        return found


class NodeTime:
    """Maps node times to board times by the exchanges so far.

    Beyond the last exchange the estimate goes on at the rate of the recent ones, inside the guaranteed bound, which
    there grows with the drift limit.
    """

    def __init__(self) -> None:
        self._exchanges: deque[ClockExchange] = deque(maxlen=KEPT)
        self._piece: ClockPiece | None = None

    def __len__(self) -> int:
        return len(self._exchanges)

    @property
    def latest_ns(self) -> int:
        """Node time of the last exchange."""
        return self._exchanges[-1].t_board_ns

    def add(self, t1_board_ns: int, received_us: int, sent_us: int, t4_board_ns: int) -> None:
        """An echo: sent and received by the board, received and sent by the node (cut to whole microseconds).

        Raises `ClockError` when no offset agrees with all exchanges, as one of the clocks stepped.
        """
        # The node received within the microsecond after its stamp: the later end keeps the interval a guarantee.
        exchange = ClockExchange(0, t1_board_ns, (received_us + 1) * TICK_NS, sent_us * TICK_NS, t4_board_ns)
        if exchange.delay_ns < 0:
            raise ClockError("the node's echo took less time than the node says it had it: its clock is broken")
        self._exchanges.append(exchange)
        pieces = map_clock(tuple(self._exchanges))
        if len(pieces) > 1:
            raise ClockError("the node's clock stepped against the board's")
        self._piece = pieces[0]

    def board_ns(self, node_ns: int) -> tuple[int, int]:
        """The best estimate of a node time on the board's clock, and the half-width of its guaranteed bound."""
        if self._piece is None:
            raise ClockError("there is no exchange with the node yet")
        offset, low, high = self._piece.at(node_ns)
        # From the estimate to the farther end: the estimate need not stand in the middle.
        return node_ns + round(offset), round(max(high - offset, offset - low))
