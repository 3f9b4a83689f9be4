"""The node's time: microseconds in 32 bits, from a tick counter that wraps around earlier."""


class NodeClock:
    """``ticks`` reads the counter, ``diff`` subtracts two readings. Ask at least every few minutes."""

    def __init__(self, ticks, diff):
        self._ticks = ticks
        self._diff = diff
        self._last = ticks()
        self._us = 0

    def now(self):
        """Microseconds since start modulo 2**32."""
        ticks = self._ticks()
        self._us = (self._us + self._diff(ticks, self._last)) & 0xFFFFFFFF
        self._last = ticks
        return self._us

    def at(self, ticks):
        """The same for a reading of the counter a short while ago."""
        return (self.now() - self._diff(self._last, ticks)) & 0xFFFFFFFF


def since(later, earlier):
    """Microseconds from ``earlier`` to ``later``, negative when they come the other way round."""
    span = (later - earlier) & 0xFFFFFFFF
    return span - 0x100000000 if span & 0x80000000 else span
