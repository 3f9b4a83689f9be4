"""The rings of all streams, and the check that what samplers send is without holes."""

from __future__ import annotations

from struct import Struct

from powerd_core.errors import WireError
from powerd_core.model import UNKNOWN_TIME_NS, Gap, Stream
from powerd_core.wire import BLOCK, GAP, HEADER_BYTES, MAX_SEQUENCE, Header, decode, encode, read_header
from powerd_daemon.ring import MAX_SPAN, Frames, Ring
from powerd_daemon.spool import Spool

_LOST = Struct("<q")

LOST_ON_THE_WAY = "lost between the sampler and powerd"


class Intake:
    """One stream's ring and counters. Whatever `accept` is given, the ring stays free of holes."""

    def __init__(self, stream: Stream, epoch: int, ring_bytes: int) -> None:
        self.stream = stream
        self.ring = Ring(stream.number, epoch, ring_bytes)
        self._layout, self._scan_bytes = stream.layout, stream.scan_bytes
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
        if header.kind == BLOCK and header.layout != self._layout:
            raise WireError(f"a block of layout {header.layout:#06x} in a stream of {self._layout:#06x}")
        if header.kind == BLOCK and len(frame) != HEADER_BYTES + header.extent * self._scan_bytes:
            raise WireError(f"a block of {header.extent} scans with {len(frame)} bytes")
        if header.kind == GAP:
            decode(frame)  # rare, and read again when a part of it is asked for
        if header.sequence + header.extent > MAX_SEQUENCE:
            raise WireError(f"no stream gets to the number {header.sequence + header.extent}")
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
    """All streams of one powerd by number; with a ``spool``, also what that holds of them and of earlier epochs."""

    def __init__(self, epoch: int, ring_bytes: int, spool: Spool | None = None) -> None:
        self.epoch = epoch
        self.ring_bytes = ring_bytes
        self.spool = spool
        self.intakes: dict[int, Intake] = {}
        self._held: dict[int, Frames] = {}

    def add(self, stream: Stream) -> None:
        intake = Intake(stream, self.epoch, self.ring_bytes)
        self.intakes[stream.number] = intake
        self._held[stream.number] = intake.ring if self.spool is None else self.spool.reach(intake.ring)

    def ring(self, number: int, epoch: int = 0) -> Frames | None:
        """What is held of a stream. Of an epoch that is not kept (or 0), that of this powerd's own."""
        if epoch not in (0, self.epoch) and self.spool is not None:
            shelf = self.spool.archive.shelf(number, epoch)
            if shelf is not None:
                return shelf
        return self._held.get(number)
