"""Phase marks: 16 bytes each, written by the training process, tailed by the recorder.

A record is ``int32 code, uint32 thread, int64 t_ns``. A phase kind with number ``k`` begins with code
``k`` and ends with code ``~k`` (-1 - k). A zeroed record has not been written yet: time is stored
last, and no clock reads 0.

Where a phase is timed on a device, the device's own time of an edge comes later and apart: ``uint64 number, int64
t_ns`` says when the device passed the process's mark of that number.

The recorder reads a segment while it grows. `written` therefore stops at the first record without a time.

In a segment the upper eight bits of ``thread`` are a check of the rest (`sealed_thread`), and each line of names ends
with a checksum (`sealed_line`): one flipped bit in either is noticed. Whoever reads them takes both off, so that what
travels and is stored has neither. Releases before 0.2.0 wrote no checks; a process's token says whether it does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple
from zlib import crc32

RECORD = Struct("<iIq")
_PRIME, THREAD_BITS = 251, 24
_SEAL = b',"crc":"%08x"}'
_SEAL_BYTES = len(_SEAL % 0)
EDGE = Struct("<Qq")
ITERATION = "iteration"
"""The name of the phases that are a step of a training each."""
OTHERS = "gpu-processes"
"""The name of events that say which other programs a GPU's driver lists."""
SEGMENT_RECORDS = 65536
"""Records in one segment file (1 MiB): small enough to be consumed soon, large enough to be rare."""


class Mark(NamedTuple):
    """One edge of a phase. ``kind`` is the number of a phase kind in its process."""

    kind: int
    is_begin: bool
    thread: int
    t_host_ns: int
    bound_ns: int = 0
    """The moment is within this of ``t_host_ns``; 0 where the host read its clock at the edge itself, -1 where a device
    was to time the edge and only the host's time is known."""


@dataclass(frozen=True, slots=True)
class Marks:
    """Consecutive raw mark records of one process; ``first`` is the index of the first of them."""

    process: int
    first: int
    records: bytes

    def __len__(self) -> int:
        return len(self.records) // RECORD.size

    def __iter__(self) -> Iterator[Mark]:
        for code, thread, t_ns in RECORD.iter_unpack(self.records):
            yield Mark(code if code >= 0 else ~code, code >= 0, thread, t_ns)


@dataclass(frozen=True, slots=True)
class Edges:
    """When a device passed marks of one process, by the device's clock ``clock`` (its epoch among the run's clocks)."""

    process: int
    clock: int
    records: bytes

    @classmethod
    def of(cls, process: int, clock: int, edges: Sequence[tuple[int, int]]) -> Edges:
        """From pairs of a mark's number and the device's time in ns."""
        return cls(process, clock, b"".join(EDGE.pack(*edge) for edge in edges))

    def __len__(self) -> int:
        return len(self.records) // EDGE.size

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return EDGE.iter_unpack(self.records)


def sealed_thread(code: int, thread: int, t_ns: int) -> int:
    """The field ``thread`` of a record in a segment: the thread's lower 24 bits, and above them a check.

    The check is a sum modulo a prime of eight bits, which no single flipped bit leaves as it is; it is never 0.
    """
    thread &= 0xFFFFFF
    return thread | (t_ns + 3 * code + 7 * thread) % _PRIME + 1 << THREAD_BITS


def sealed_line(text: bytes) -> bytes:
    """A JSON object with a checksum as its last member."""
    return text[:-1] + _SEAL % crc32(text) if text.endswith(b"}") and len(text) > 2 else text


def unsealed_line(line: bytes) -> bytes | None:
    """The object without its checksum, None where that is missing or wrong."""
    text = line[:-_SEAL_BYTES] + b"}"
    return text if sealed_line(text) == line else None


def sealing_token(number: int) -> int:
    """A process's token of 63 bits that says that its marks have checks; of ``number`` 47 bits count."""
    number &= (1 << 47) - 1
    return number << 16 | crc32(number.to_bytes(8, "little")) & 0xFFFF


def is_sealing(token: int) -> bool:
    """Whether the marks of a process have checks. One in 65,000 of releases before 0.2.0 is taken for one."""
    return sealing_token(token >> 16) == token


def written(segment: bytes | memoryview, start: int = 0) -> int:
    """Index behind the last complete record of a segment, given that ``start`` records are known complete."""
    n, size, unpack_from = len(segment) // RECORD.size, RECORD.size, RECORD.unpack_from
    while start < n and unpack_from(segment, start * size)[2] != 0:
        start += 1
    return start
