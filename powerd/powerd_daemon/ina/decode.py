"""Raw words of many scans into the columns and flags of a block, at C speed while nothing is wrong."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence

from powerd_core.model import Flag
from powerd_daemon.ina.ina219 import BUS_SHIFT, CNVR, OVF, Settings

_UNUSUAL = bytes((low & (CNVR | OVF)) ^ CNVR for low in range(256))
"""Maps the low byte of a BUS word to 0 where it says 'converted, no overflow'."""


def split_words(raw: bytes | bytearray) -> tuple[array[int], array[int]]:
    """Shunt codes (signed) and bus codes (the whole register) of alternating big-endian words."""
    words = array("H", bytes(raw))
    if sys.byteorder == "little":
        words.byteswap()
    shunt = array("h")
    shunt.frombytes(words[0::2].tobytes())
    return shunt, words[1::2]


def flag_codes(
    flags: array[int],
    raw: bytes | bytearray,
    shunt: array[int],
    bus: array[int],
    settings: Sequence[Settings],
) -> set[int]:
    """Set SATURATED, OVERFLOW and RESET from the codes; returns the chips that seem to have been reset.

    CNVR is cleared by a reset or a write of the mode alone (POWER is never read), so a reading without it has no
    conversion behind it.
    """
    suspects: set[int] = set()
    count = len(settings)
    limit = min(s.full_scale for s in settings)
    if max(shunt) >= limit or min(shunt) <= -limit:
        for i, code in enumerate(shunt):
            if abs(code) >= settings[i % count].full_scale:
                flags[i] |= Flag.SATURATED
    if max(bus) >> BUS_SHIFT >= min(s.bus_full_scale for s in settings):
        for i, word in enumerate(bus):
            if word >> BUS_SHIFT >= settings[i % count].bus_full_scale:
                flags[i] |= Flag.SATURATED
    if raw[3::4].translate(_UNUSUAL).strip(b"\0"):
        for i, word in enumerate(bus):
            if flags[i] & Flag.IO_ERROR:
                continue
            if word & OVF:
                flags[i] |= Flag.OVERFLOW
            if not word & CNVR:
                flags[i] |= Flag.RESET
                suspects.add(i % count)
    return suspects
