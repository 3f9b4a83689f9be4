"""Frames on their way into the journal, and what becomes of them when the disk takes no more."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from powerd_client.journalfile import JournalWriter
from powerd_core.marks import Marks
from powerd_core.model import UNKNOWN_TIME_NS, Block, ClockExchange, Gap
from powerd_core.wire import Event, decode, encode

MAX_BYTES = 64 << 20
"""So much waits in memory; what is not fetched then stays in the daemon's ring."""
RESERVE_BYTES = 256 << 10
"""Disk space that is kept for the last words: gaps, notes, the end of the run."""
_RETRY_NS = 1_000_000_000
_MAX_SPAN = 2**32 - 1


class Backlog:
    """Frames that are not in the journal yet, oldest first."""

    def __init__(self, directory: Path, size: int | None = None) -> None:
        """``size``: how much of an existing journal is good. Raises `OSError`."""
        self.failure: OSError | None = None
        """Why the journal cannot be written now."""
        self._writer = JournalWriter(directory, size)
        self._frames: list[bytes] = []
        self._bytes = 0
        self._failed_ns = 0
        self._reserve = directory / "reserve"
        with contextlib.suppress(OSError):
            _reserve(self._reserve)

    def add(self, event: Event, frame: bytes | None = None) -> None:
        frame = encode(event) if frame is None else frame
        self._frames.append(frame)
        self._bytes += len(frame)

    @property
    def is_full(self) -> bool:
        return self._bytes > MAX_BYTES

    @property
    def is_empty(self) -> bool:
        return not self._frames

    def flush(self, now_ns: int) -> None:
        """Write everything, or keep it and say why in ``failure``; then try again every second."""
        if not self._frames or (self.failure is not None and now_ns - self._failed_ns < _RETRY_NS):
            return
        try:
            self._writer.write(self._frames)
        except OSError as error:
            self.failure, self._failed_ns = error, now_ns
            return
        self._frames, self._bytes, self.failure = [], 0, None

    def give_up(self, cause: str) -> int:
        """Write gaps for the readings that wait, and the rest as it is, into the space that was kept for this.

        Marks are left out: they are still in their own files. Returns the number of scans that are lost. Raises
        `OSError` when not even this can be written.
        """
        gaps: dict[tuple[int, int], Gap] = {}
        rest: list[bytes] = []
        exchanges: list[bytes] = []
        for frame in self._frames:
            match event := decode(frame):
                case Block() | Gap():
                    key = event.epoch, event.stream
                    gaps[key] = _joined(gaps.get(key), event, cause)
                case ClockExchange():
                    exchanges.append(frame)
                case Marks():
                    pass
                case _:
                    rest.append(frame)
        every = 1 + 2 * sum(map(len, exchanges)) // RESERVE_BYTES
        frames = [*rest, *exchanges[::every], *(encode(gap) for gap in gaps.values())]
        self._reserve.unlink(missing_ok=True)
        self._writer.write(frames)
        self._frames, self._bytes, self.failure = [], 0, None
        return sum(max(gap.lost, 0) for gap in gaps.values())

    def close(self) -> None:
        self._writer.close()


def _joined(gap: Gap | None, event: Block | Gap, cause: str) -> Gap:
    """A gap that takes the numbers of ``event`` too."""
    span, lost = (event.span, event.lost) if isinstance(event, Gap) else (1, event.count)
    if gap is None:
        return Gap(event.stream, event.epoch, event.sequence, UNKNOWN_TIME_NS, event.t_last_ns, span, lost, cause)
    lost = -1 if -1 in {gap.lost, lost} else gap.lost + lost
    span = min(gap.span + span, _MAX_SPAN)
    return Gap(gap.stream, gap.epoch, gap.sequence, UNKNOWN_TIME_NS, event.t_last_ns, span, lost, cause)


def _reserve(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
