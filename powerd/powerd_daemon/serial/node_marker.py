"""The marker input of a node as readings: its level at every edge, and twice a second besides.

A reading with level 1 says that the input is high from then on. The column ``edge`` counts edges modulo 2**16: a
reading whose count is that of the one before is no edge but the node's word that there was none. So a stream in
which nothing happens is told from one that is lost.
"""

from __future__ import annotations

from powerd_core.model import Block, BlockBuilder, Gap
from powerd_daemon.serial.protocol import Edge, Status


class MarkerRows:
    """Turns edges and statuses into the blocks and gaps of one stream with columns ``level`` and ``edge``."""

    def __init__(self, builder: BlockBuilder) -> None:
        self._builder = builder
        self._made: list[Block | Gap] = []
        self._next: int | None = None
        """Number of the next edge; None until the node has said."""
        self._last_ns: int | None = None
        self.lost = 0
        """Edges in gaps."""

    def edge(self, edge: Edge, t_ns: int, cause: str) -> None:
        """An edge at ``t_ns`` of the board's clock; ``cause`` is that of edges missing in front of it, if any."""
        self._find_lost(edge.sequence, t_ns, cause)
        self._next = edge.sequence + 1 & 0xFFFF
        # An interrupt's edges may share a microsecond, or two corrections of the clock may overlap.
        self._append(t_ns if self._last_ns is None else max(t_ns, self._last_ns + 1), edge.level, self._next)

    def status(self, status: Status, t_ns: int, cause: str) -> None:
        """A status: the level at ``t_ns`` unless an edge behind that is known already."""
        self._find_lost(status.edges & 0xFFFF, t_ns, cause)
        self._next = status.edges & 0xFFFF
        if self._last_ns is None or t_ns > self._last_ns:
            self._append(t_ns, status.level, self._next)

    def take(self) -> list[Block | Gap]:
        """Everything since the last call, in order."""
        self._close_block()
        made, self._made = self._made, []
        return made

    def _find_lost(self, sequence: int, t_ns: int, cause: str) -> None:
        if self._next is None or not (lost := (sequence - self._next) & 0xFFFF):
            return
        self.lost += lost
        b = self._builder
        self._close_block()
        begin_ns = t_ns if self._last_ns is None else min(self._last_ns, t_ns)
        self._made.append(Gap(b.stream.number, b.epoch, b.sequence, begin_ns, max(begin_ns, t_ns), 1, lost, cause))
        b.sequence += 1

    def _append(self, t_ns: int, level: int, edge: int) -> None:
        self._builder.append(t_ns, (0,), (0,), ((level,), (edge,)))
        self._last_ns = t_ns

    def _close_block(self) -> None:
        block = self._builder.take()
        if block is not None:
            self._made.append(block)
