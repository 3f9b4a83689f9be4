"""Frames on their way from a sampler to the server: bounded, never blocking, and without a silent loss."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from powerd_core.errors import WireError
from powerd_core.model import Block, Gap
from powerd_core.wire import Message, encode

OVERFLOW = "powerd did not take the sampler's readings in time"
MAX_CAUSE = 300


@dataclass(slots=True)
class _Queue:
    """One stream's waiting frames, and the gap that stands for those dropped in front of them."""

    waiting: deque[tuple[bytes, Gap]]
    """Each frame with the gap that would take its place."""
    size_bytes: int = 0
    dropped: Gap | None = None


class Outbox:
    """Holds at most ``max_bytes`` of frames a stream; the oldest give way, and one gap takes all their numbers."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.dropped_frames = 0
        self._messages: deque[bytes] = deque()
        self._statistics: bytes | None = None
        self._queues: dict[int, _Queue] = {}

    @property
    def is_empty(self) -> bool:
        return not self._messages and not any(q.waiting or q.dropped for q in self._queues.values())

    def put(self, event: Block | Gap) -> None:
        """Queue a block or gap. A block that is too large for a frame becomes a gap that says so."""
        try:
            frame, stand_in = encode(event), _gap_instead(event, OVERFLOW)
        except WireError as error:
            stand_in = _gap_instead(event, str(error))
            frame = encode(stand_in)
        queue = self._queues.setdefault(event.stream, _Queue(deque()))
        queue.waiting.append((frame, stand_in))
        queue.size_bytes += len(frame)
        while queue.size_bytes > self.max_bytes and len(queue.waiting) > 1:
            gone, gap = queue.waiting.popleft()
            queue.size_bytes -= len(gone)
            queue.dropped = gap if queue.dropped is None else _joined(queue.dropped, gap)
            self.dropped_frames += 1

    def put_message(self, message: Message) -> None:
        """Queue a rare message, in front of all frames."""
        self._messages.append(encode(message))

    def put_statistics(self, message: Message) -> None:
        """Keep a message to be sent when there is room; a newer one replaces it."""
        self._statistics = encode(message)

    def drain(self, send: Callable[[bytes], bool]) -> bool:
        """Give frames to ``send`` until it says no or nothing is left (then True)."""
        while self._messages:
            if not send(self._messages[0]):
                return False
            self._messages.popleft()
        for queue in self._queues.values():
            if queue.dropped is not None:
                if not send(encode(queue.dropped)):
                    return False
                queue.dropped = None
            while queue.waiting:
                if not send(queue.waiting[0][0]):
                    return False
                queue.size_bytes -= len(queue.waiting.popleft()[0])
        if self._statistics is not None and send(self._statistics):
            self._statistics = None
        return True


def _gap_instead(event: Block | Gap, cause: str) -> Gap:
    if isinstance(event, Gap):
        return replace(event, cause=f"{cause}; {event.cause}"[:MAX_CAUSE])
    return Gap(
        event.stream, event.epoch, event.sequence, event.t_first_ns, event.t_last_ns, 1, event.count, cause[:MAX_CAUSE]
    )


def _joined(first: Gap, second: Gap) -> Gap:
    lost = -1 if -1 in (first.lost, second.lost) else first.lost + second.lost
    cause = first.cause
    if second.cause not in cause:
        cause = f"{cause}; {second.cause.removeprefix(OVERFLOW + '; ')}"[:MAX_CAUSE]
    return replace(first, t_last_ns=second.t_last_ns, span=first.span + second.span, lost=lost, cause=cause)
