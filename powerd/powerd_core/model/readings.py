"""Readings: their flags, the columns they come in, blocks of them, and gaps where there are none.

The blocks of a stream with ``L`` lines hold, for ``n`` scans, these little-endian arrays one after the other:

    t_ns   int64 [n]      board clock, start of the scan
    dt_ns  int32 [n, L]   each line's own time, relative to its scan
    flags  uint16[n, L]   `Flag` bits of each reading
    …      one array [n, L] for each column of raw codes that the stream declares
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag

CODE_BYTES = {"b": 1, "B": 1, "h": 2, "H": 2, "i": 4, "I": 4, "q": 8, "Q": 8}
"""Bytes of each type code that a column may have (as in `struct` and `array`, little-endian)."""


class Flag(IntFlag):
    """What is wrong with one reading. A reading with any bit of `BAD` is never used as a value."""

    STALE = 1
    """The conversion behind it is not newer than that of the reading before."""
    SATURATED = 2
    """The converter stood at full scale: the true value is at least this one."""
    OVERFLOW = 4
    """The chip's own power or current register overflowed; shunt and bus codes are still good."""
    IO_ERROR = 8
    """The transfer failed. The codes are meaningless."""
    RESET = 16
    """The chip had lost its configuration."""
    MISSING = 32
    """The source gave no value at this moment."""


BAD = Flag.STALE | Flag.SATURATED | Flag.IO_ERROR | Flag.RESET | Flag.MISSING


@dataclass(frozen=True, slots=True)
class Column:
    """One array of raw codes in a stream: a name and a type code of `CODE_BYTES`."""

    name: str
    typecode: str


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive scans of one stream. ``payload`` is laid out as this module's docstring says."""

    stream: int
    epoch: int
    sequence: int
    t_first_ns: int
    t_last_ns: int
    """Board times of the first and the last reading in it."""
    count: int
    """Number of scans."""
    layout: int
    payload: bytes


UNKNOWN_TIME_NS = -(2**63)
"""A gap's ``t_first_ns`` when it begins at whatever reading was last seen."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Readings that are missing, and why. Takes ``span`` sequence numbers of its stream."""

    stream: int
    epoch: int
    sequence: int
    t_first_ns: int
    t_last_ns: int
    span: int
    lost: int
    """How many scans are missing; -1 when nobody knows."""
    cause: str
