"""Bounded queues: bytes on their way to the host, and edges on their way out of an interrupt."""

from array import array


class ByteRing:
    """Whole frames in, pieces out. A frame that does not fit is refused as a whole."""

    def __init__(self, size):
        self._buffer = bytearray(size)
        self._size = size
        self._begin = 0
        self._used = 0

    def __len__(self):
        return self._used

    def put(self, frame):
        """Whether the frame fitted in."""
        length, size = len(frame), self._size
        if length > size - self._used:
            return False
        at = (self._begin + self._used) % size
        first = min(length, size - at)
        self._buffer[at : at + first] = frame[:first]
        self._buffer[: length - first] = frame[first:]
        self._used += length
        return True

    def peek(self, most):
        """Up to ``most`` bytes from the front that lie in one piece."""
        length = min(most, self._used, self._size - self._begin)
        return memoryview(self._buffer)[self._begin : self._begin + length]

    def drop(self, count):
        """Forget ``count`` bytes at the front: they were sent."""
        self._begin = (self._begin + count) % self._size
        self._used -= count


class EdgeQueue:
    """Edges of the marker: `put` is called by an interrupt, and must not allocate; `take` by the main loop.

    One writer and one reader: each moves only its own index.
    """

    def __init__(self, size=64):
        self._ticks = array("I", [0] * size)
        self._levels = bytearray(size)
        self._size = size
        self._written = 0
        self._read = 0
        self.lost = 0
        """Edges for which there was no room."""

    def put(self, ticks, level):
        """Note an edge at ``ticks``, behind which the level is ``level``."""
        following = self._written + 1
        if following == self._size:
            following = 0
        if following == self._read:
            self.lost += 1
            return
        self._ticks[self._written] = ticks
        self._levels[self._written] = level
        self._written = following

    def take(self):
        """The oldest edge as (ticks, level), or None."""
        at = self._read
        if at == self._written:
            return None
        edge = self._ticks[at], self._levels[at]
        self._read = at + 1 if at + 1 < self._size else 0
        return edge
