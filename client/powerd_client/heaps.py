"""A look at the raw bytes of an HDF5 file before the library gets them.

Strings of variable length lie in global heaps (HDF5 file format specification, III.E), which carry no checksum. The
library walks through a heap by the sizes in it, and where free space claims to have no size it walks for ever: a few
zeros in the wrong place, and opening the file never ends. Such a heap is found here.
"""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path
from struct import Struct

SIGNATURE = b"\x89HDF\r\n\x1a\n"
_HEAP = Struct("<4sBxxxQ")
_OBJECT = Struct("<HHxxxxQ")
_SETTLED_NS = 2_000_000_000
_checked: dict[tuple[int, int], tuple[int, int]] = {}
"""By device and inode: size and time of change of the file that was found good."""


def end_stated(path: Path) -> int | None:
    """The size that the file's own head states, None when it is none that h5py would write at the start of a file."""
    with path.open("rb") as file:
        head = file.read(64)
    if len(head) < 64 or head[:8] != SIGNATURE:
        return None
    old = head[8] in (0, 1)
    at = {0: 40, 1: 44, 2: 28, 3: 28}.get(head[8])
    # Heaps are read here with offsets and lengths of eight bytes each, as every h5py writes them.
    if at is None or tuple(head[13:15] if old else head[9:11]) != (8, 8):
        return None
    return int.from_bytes(head[at : at + 8], "little")


def endless_heaps(path: Path, lengthened: int = 0) -> dict[int, bytes]:
    """Places of free space without a size, and what would have to stand there for a reader to find an end.

    ``lengthened`` is the size to which zeros will make the file, where it was cut off.
    """
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        key, state = (status.st_dev, status.st_ino), (status.st_size, status.st_ctime_ns)
        if not status.st_size or _checked.get(key) == state:
            return {}
        found: dict[int, bytes] = {}
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            at = data.find(b"GCOL")
            while at >= 0:
                _walk(data, at, max(lengthened, len(data)), found)
                at = data.find(b"GCOL", at + 1)
    # The time of change is coarse: what was written just now may be written again without a sign of it.
    if not found and time.time_ns() - status.st_ctime_ns > _SETTLED_NS:
        _checked[key] = state
    return found


def _walk(data: mmap.mmap, at: int, size_then: int, found: dict[int, bytes]) -> None:
    if at + _HEAP.size > len(data):
        return
    _, _, size = _HEAP.unpack_from(data, at)
    end, at = at + size, at + _HEAP.size
    while at + _OBJECT.size <= min(end, size_then):
        head = data[at : at + _OBJECT.size]
        index, count, length = _OBJECT.unpack(head.ljust(_OBJECT.size, b"\0"))
        if index == 0 and length == 0:
            found[at] = _OBJECT.pack(0, count, end - at)
            return
        at += length if index == 0 else _OBJECT.size + (length + 7) // 8 * 8
