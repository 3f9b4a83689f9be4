"""The rings of all streams, and the check that what samplers send is without holes."""

from __future__ import annotations

from struct import Struct

from powerd_core.errors import WireError
from powerd_core.model import UNKNOWN_TIME_NS, Gap, Stream
from powerd_core.wire import BLOCK, GAP, HEADER_BYTES, Header, encode, read_header
from powerd_daemon.ring import MAX_SPAN, Ring

_LOST = Struct("<q")

LOST_ON_THE_WAY = "lost between the sampler and powerd"


class Intake:
    """One stream's ring and counters. Whatever `accept` is given, the ring stays free of holes."""

    def __init__(self, stream: Stream, epoch: int, ring_bytes: int) -> None:
        self.stream = stream
        self.ring = Ring(stream.number, epoch, ring_bytes)
        self.t_last_ns = UNKNOWN_TIME_NS
        """Time of the last reading (or end of the last gap) that came in."""
        self.frames = self.scans = self.gaps = self.lost_scans = self.duplicates = self.holes = 0

    def accept(self, frame: bytes, header: Header) -> None:
        """Append a sampler's frame. A number already seen is dropped and counted; a hole before it becomes a gap.

        Raises `WireError` for a frame that does not belong here.
        """
        if header.epoch != self.ring.epoch:
            raise WireError(f"a frame of epoch {header.epoch}")
        if header.kind not in (BLOCK, GAP) or header.extent < 1:
            raise WireError(f"a frame of kind {header.kind} with count {header.extent}")
        if header.kind == BLOCK and header.layout != self.stream.layout:
            raise WireError(f"a block of layout {header.layout:#06x} in a stream of {self.stream.layout:#06x}")
        if header.sequence < self.ring.next:
            self.duplicates += 1
            return
        if header.sequence - self.ring.next > MAX_SPAN:
            raise WireError(f"frame {header.sequence} where {self.ring.next} is next")
        if header.sequence > self.ring.next:
            self.holes += 1
            self._fill(header)
        self._append(frame, header)

    def _fill(self, header: Header) -> None:
        ring = self.ring
        t_end = header.t_last_ns if header.t_first_ns == UNKNOWN_TIME_NS else header.t_first_ns
        span = header.sequence - ring.next
        gap = Gap(self.stream.number, ring.epoch, ring.next, self.t_last_ns, t_end, span, -1, LOST_ON_THE_WAY)
        frame = encode(gap)
        self._append(frame, read_header(frame))

    def _append(self, frame: bytes, header: Header) -> None:
        self.ring.append(frame, header)
        self.t_last_ns = header.t_last_ns
        self.frames += 1
        if header.kind == BLOCK:
            self.scans += header.extent
        else:
            self.gaps += 1
            self.lost_scans += max(_LOST.unpack_from(frame, HEADER_BYTES)[0], 0)


class Store:
    """All streams of one powerd by number."""

    def __init__(self, epoch: int, ring_bytes: int) -> None:
        self.epoch = epoch
        self.ring_bytes = ring_bytes
        self.intakes: dict[int, Intake] = {}

    def add(self, stream: Stream) -> None:
        self.intakes[stream.number] = Intake(stream, self.epoch, self.ring_bytes)

    def ring(self, number: int) -> Ring | None:
        intake = self.intakes.get(number)
        return intake.ring if intake else None
