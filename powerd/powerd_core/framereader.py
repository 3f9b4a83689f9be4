"""Frames out of a byte stream, such as a journal, whatever lies between them. No files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from powerd_core.errors import WireError
from powerd_core.wire import HEADER_BYTES, MAGIC, Event, decode, header_fields


@dataclass(frozen=True, slots=True)
class Garbage:
    """Bytes that a `FrameReader` had to skip, and the reason."""

    count: int
    reason: str


class FrameReader:
    """Frames out of a byte stream that arrives in any pieces.

    The events do not depend on where the stream was cut. A damaged stretch is skipped up to the next good
    frame and reported as `Garbage`; a tail that is not a whole frame stays pending.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._skipped = 0
        self._reason = ""

    @property
    def pending(self) -> int:
        """Bytes held that are not a whole frame (yet)."""
        return len(self._buffer) + self._skipped

    def feed(self, data: bytes | memoryview) -> Iterator[tuple[Event | Garbage, bytes]]:
        """Yield each event completed by ``data``, with the bytes of its frame (empty for garbage)."""
        self._buffer += data
        buffer, at = self._buffer, 0
        try:
            while len(buffer) - at >= HEADER_BYTES:
                try:
                    length = header_fields(memoryview(buffer)[at : at + HEADER_BYTES])[8]
                    end = at + HEADER_BYTES + length
                    if len(buffer) < end:
                        # A damaged length must not swallow the frames behind it for ever, but only a
                        # longer stream can tell; `close` settles it at the end.
                        break
                    frame = bytes(memoryview(buffer)[at:end])
                    event = decode(frame)
                except WireError as error:
                    at += self._skip(buffer, at, str(error))
                    continue
                if self._skipped:
                    yield self._take_garbage(), b""
                at = end
                yield event, frame
        finally:
            del buffer[:at]

    def close(self) -> Iterator[tuple[Event | Garbage, bytes]]:
        """The stream has ended: look for frames inside the pending tail, then report what is left of it."""
        while self._buffer:
            skip = self._skip(self._buffer, 0, "cut off")
            del self._buffer[:skip]
            yield from self.feed(b"")
        if self._skipped:
            yield self._take_garbage(), b""

    def _skip(self, buffer: bytearray, at: int, reason: str) -> int:
        """Bytes from ``at`` to the next place where a frame could begin."""
        found = buffer.find(MAGIC, at + 1)
        if found < 0:
            # The last bytes may be the beginning of a magic whose rest has not arrived.
            found = max(at + 1, len(buffer) - len(MAGIC) + 1)
        self._reason = self._reason or reason
        self._skipped += found - at
        return found - at

    def _take_garbage(self) -> Garbage:
        garbage = Garbage(self._skipped, self._reason)
        self._skipped, self._reason = 0, ""
        return garbage
