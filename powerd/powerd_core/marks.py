"""Phase marks: 16 bytes each, written by the training process, tailed by the recorder.

A record is ``int32 code, uint32 thread, int64 t_ns``. A phase kind with number ``k`` begins with code
``k`` and ends with code ``~k`` (-1 - k). A zeroed record has not been written yet: time is stored
last, and no clock reads 0.

The recorder reads a segment while it grows. `written` therefore stops at the first record without a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct

RECORD = Struct("<iIq")
SEGMENT_RECORDS = 65536
"""Records in one segment file (1 MiB): small enough to be consumed soon, large enough to be rare."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One edge of a phase. ``kind`` is the number of a phase kind in its process."""

    kind: int
    is_begin: bool
    thread: int
    t_host_ns: int


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


def written(segment: bytes | memoryview, start: int = 0) -> int:
    """Index behind the last complete record of a segment, given that ``start`` records are known complete."""
    n, size, unpack_from = len(segment) // RECORD.size, RECORD.size, RECORD.unpack_from
    while start < n and unpack_from(segment, start * size)[2] != 0:
        start += 1
    return start
