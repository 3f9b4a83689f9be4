"""Raw rows of many scans into the columns and flags of a block, at C speed while nothing is wrong.

A row holds each line's BUS register and then its SHUNT register, most significant byte first.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence

from powerd_core.model import Flag
from powerd_daemon.ina.chips import CNVR, OVF
from powerd_daemon.ina.settings import Settings

_UNUSUAL = bytes((low & (CNVR | OVF)) ^ CNVR for low in range(256))
"""Maps the low byte of an INA219's BUS word to 0 where it says 'converted, no overflow'."""
_SIGN = bytes(0xFF if top & 0x80 else 0 for top in range(256))
"""Maps the top byte of a register to the bytes above it when it is signed."""


class Decoder:
    """Decodes rows of lines with these settings."""

    def __init__(self, settings: Sequence[Settings]) -> None:
        self.settings = tuple(settings)
        self.is_wide = any(s.type.code_bytes > 2 for s in self.settings)
        self.at: list[int] = []
        """Where each line's BUS register begins in a row; SHUNT follows."""
        self.row_bytes = 0
        for s in self.settings:
            self.at.append(self.row_bytes)
            self.row_bytes += 2 * s.type.code_bytes
        self._limit = min(s.full_scale for s in self.settings)
        self._bus_limit = min(s.bus_full_scale << s.type.bus_shift for s in self.settings)
        self._with_status = [i for i, s in enumerate(self.settings) if s.chip == "INA219"]
        self._all_status = not self.is_wide and len(self._with_status) == len(self.settings)

    @property
    def typecodes(self) -> tuple[str, str]:
        """Of the columns ``shunt`` and ``bus``: 16 bits, or 32 where some chip has more."""
        return ("i", "I") if self.is_wide else ("h", "H")

    def codes(self, raw: bytes) -> tuple[array[int], array[int]]:
        """Shunt codes (sign-extended) and bus codes (the whole register)."""
        if self.is_wide:
            return self._wide(raw)
        words = array("H", raw)
        if sys.byteorder == "little":
            words.byteswap()
        shunt = array("h")
        shunt.frombytes(words[1::2].tobytes())
        return shunt, words[0::2]

    def flag(self, flags: array[int], raw: bytes, shunt: array[int], bus: array[int]) -> None:
        """Set SATURATED, OVERFLOW and RESET from the codes.

        An INA219's CNVR is cleared by a reset or a write of the mode alone (POWER is never read), so a reading
        without it has no conversion behind it.
        """
        count = len(self.settings)
        if max(shunt) >= self._limit or min(shunt) <= -self._limit:
            for i, code in enumerate(shunt):
                if abs(code) >= self.settings[i % count].full_scale:
                    flags[i] |= Flag.SATURATED
        if max(bus) >= self._bus_limit:
            for i, word in enumerate(bus):
                s = self.settings[i % count]
                if word >> s.type.bus_shift >= s.bus_full_scale:
                    flags[i] |= Flag.SATURATED
        for i in self._unusual(raw):
            if flags[i] & (Flag.IO_ERROR | Flag.MISSING):
                continue
            if bus[i] & OVF:
                flags[i] |= Flag.OVERFLOW
            if not bus[i] & CNVR:
                flags[i] |= Flag.RESET

    def _unusual(self, raw: bytes) -> Iterator[int]:
        """Readings of INA219 whose status says something."""
        count = len(self.settings)
        if self._all_status:
            if raw[1::4].translate(_UNUSUAL).strip(b"\0"):
                yield from (i for i, low in enumerate(raw[1::4]) if _UNUSUAL[low])
            return
        for line in self._with_status:
            status = raw[self.at[line] + 1 :: self.row_bytes].translate(_UNUSUAL)
            if status.strip(b"\0"):
                yield from (k * count + line for k, low in enumerate(status) if low)

    def _wide(self, raw: bytes) -> tuple[array[int], array[int]]:
        count, row = len(self.settings), self.row_bytes
        size = len(raw) // row * count * 4
        out = bytearray(size), bytearray(size)
        little = sys.byteorder == "little"
        for line, (at, s) in enumerate(zip(self.at, self.settings, strict=True)):
            width = s.type.code_bytes
            for column, begin in ((1, at), (0, at + width)):
                # From the least significant byte upwards; what the register does not have is its sign, or zero.
                for place in range(4):
                    to = 4 * line + (place if little else 3 - place)
                    if place < width:
                        out[column][to :: 4 * count] = raw[begin + width - 1 - place :: row]
                    elif column == 0:
                        out[column][to :: 4 * count] = raw[begin::row].translate(_SIGN)
        shunt, bus = array("i"), array("I")
        shunt.frombytes(out[0])
        bus.frombytes(out[1])
        return shunt, bus
