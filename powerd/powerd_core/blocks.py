"""Blocks from scans and back: the payload's arrays, without a copy where none is needed."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence

from powerd_core.errors import WireError
from powerd_core.model import CODE_BYTES, Block, Stream

BASE_COLUMNS = (("t_ns", "q"), ("dt_ns", "i"), ("flags", "H"))
"""The arrays that every block has in front of its columns of codes. ``t_ns`` has one value a scan."""


def _little(values: array[int]) -> bytes:
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    return values.tobytes()


class BlockBuilder:
    """Collects the scans of one stream until `take` makes them a block.

    ``columns`` holds one growing array for each column of codes, to which a source may also append itself; each must
    then have grown by one value a line for each scan. Numbers that are given out are consecutive.
    """

    def __init__(self, stream: Stream, epoch: int, first_sequence: int = 0) -> None:
        self.stream = stream
        self.epoch = epoch
        self.sequence = first_sequence
        self._layout = stream.layout
        self._clear()

    def _clear(self) -> None:
        self.t_ns: array[int] = array("q")
        self.dt_ns: array[int] = array("i")
        self.flags: array[int] = array("H")
        self.columns: list[array[int]] = [array(c.typecode) for c in self.stream.columns]

    def __len__(self) -> int:
        return len(self.t_ns)

    def append(self, t_ns: int, dt_ns: Sequence[int], flags: Sequence[int], codes: Sequence[Sequence[int]]) -> None:
        """Add one scan: ``dt_ns`` and ``flags`` have one value a line, ``codes`` one such row a column."""
        self.t_ns.append(t_ns)
        self.dt_ns.extend(dt_ns)
        self.flags.extend(flags)
        for column, row in zip(self.columns, codes, strict=True):
            column.extend(row)

    def take(self) -> Block | None:
        """The scans since the last call as a block, or None when there were none."""
        count, lines = len(self.t_ns), len(self.stream.lines)
        if not count:
            return None
        t_first = self.t_ns[0] + min(self.dt_ns[:lines])
        t_last = self.t_ns[-1] + max(self.dt_ns[-lines:])
        payload = b"".join(_little(a) for a in (self.t_ns, self.dt_ns, self.flags, *self.columns))
        if len(payload) != count * self.stream.scan_bytes:
            raise ValueError(f"stream {self.stream.source}: columns and scans differ in length")
        block = Block(self.stream.number, self.epoch, self.sequence, t_first, t_last, count, self._layout, payload)
        self.sequence += 1
        self._clear()
        return block


def columns(block: Block, stream: Stream) -> dict[str, memoryview]:
    """The block's arrays by name, as little-endian byte views: ``t_ns``, ``dt_ns``, ``flags`` and the codes.

    ``t_ns`` has shape [n], the others [n, L] in row-major order. Raises `WireError` when the block does not fit
    the stream.
    """
    if block.layout != stream.layout:
        raise WireError(f"a block of layout {block.layout:#06x} in stream {stream.source!r} of {stream.layout:#06x}")
    if len(block.payload) != block.count * stream.scan_bytes:
        raise WireError(f"a block of {block.count} scans with {len(block.payload)} bytes in stream {stream.source!r}")
    view, at, found = memoryview(block.payload), 0, {}
    for name, typecode in (*BASE_COLUMNS, *((c.name, c.typecode) for c in stream.columns)):
        size = block.count * CODE_BYTES[typecode] * (1 if name == "t_ns" else len(stream.lines))
        found[name] = view[at : at + size]
        at += size
    return found
