"""Columns of integers as short texts that a page can carry: differences, byte planes, deflate, base64.

`unpack.js` is the other end. A column of whole numbers [n] becomes its first differences (the first from 0), each
folded to be positive (0, -1, 1, -2 -> 0, 1, 2, 3); then all lowest bytes, all second bytes and so on, zlib, base64.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_PLANES = 6
"""48 bits: a JavaScript number holds them exactly."""
STEPS = (1 << 16) - 1
"""Watts are rounded to this many steps between the least and the greatest of their line."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A column of ``n`` whole numbers in ``planes`` bytes each before deflate."""

    n: int
    planes: int
    text: str


@dataclass(frozen=True, slots=True)
class PackedValues:
    """Numbers ``low + step * q``: the columns hold the whole numbers q."""

    low: float
    step: float
    columns: tuple[Packed, ...]


def pack(values: NDArray[np.integer[Any]]) -> Packed:
    """A column of whole numbers. Raises `ValueError` for differences beyond 47 bits."""
    d = np.diff(values.astype(np.int64), prepend=np.int64(0))
    folded = np.where(d < 0, -2 * d - 1, 2 * d).astype(np.uint64)
    planes = max(1, -(-int(folded.max(initial=0)).bit_length() // 8))
    if planes > MOST_PLANES:
        raise ValueError(f"differences of up to {d.max()} do not fit into {MOST_PLANES} bytes")
    raw = folded.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :planes]
    data = zlib.compress(np.ascontiguousarray(raw.T).tobytes(), 6)
    return Packed(len(values), planes, base64.b64encode(data).decode("ascii"))


def unpack(packed: Packed) -> NDArray[np.int64]:
    """The same in Python: what `unpack.js` does."""
    raw = np.frombuffer(zlib.decompress(base64.b64decode(packed.text)), np.uint8).reshape(packed.planes, packed.n)
    folded = np.zeros(packed.n, np.int64)
    for i, plane in enumerate(raw):
        folded += plane.astype(np.int64) << (8 * i)
    return np.cumsum(np.where(folded & 1, -(folded + 1) // 2, folded // 2))


def pack_values(*columns: NDArray[np.float64]) -> PackedValues:
    """Columns of finite numbers on one scale, each rounded by at most half a step."""
    low = min((float(c.min()) for c in columns if len(c)), default=0.0)
    high = max((float(c.max()) for c in columns if len(c)), default=0.0)
    step = (high - low) / STEPS or 1.0
    return PackedValues(low, step, tuple(pack(np.rint((c - low) / step).astype(np.int64)) for c in columns))
