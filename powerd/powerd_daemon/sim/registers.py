"""What the bits of each type's registers mean: which can be written, what they set, and what the status says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from powerd_daemon.ina.chips import AVERAGES, CONFIG, Adc, ChipType

_WRITABLE: dict[str, dict[int, int]] = {
    "INA219": {CONFIG: 0x3FFF, 5: 0xFFFE},
    "INA226": {CONFIG: 0x0FFF, 5: 0x7FFF, 6: 0xFC03, 7: 0xFFFF},
    "INA228": {CONFIG: 0x3FF0, 1: 0xFFFF, 2: 0x7FFF, 0x0B: 0xF000} | dict.fromkeys(range(0x0C, 0x12), 0xFFFF),
    "INA3221": {CONFIG: 0x7FFF, 0x0E: 0xFFFE, 0x0F: 0x7C00} | dict.fromkeys(range(7, 0x0D), 0xFFF8),
}


@dataclass(frozen=True, slots=True)
class Fields:
    """The configuration. ``mode`` is that of the INA219: bit 0 shunt, bit 1 bus, bit 2 continuous. Channels from 0."""

    mode: int
    shunt_adc: int
    bus_adc: int
    averages: int
    shunt_range: int
    bus_range: int
    channels: tuple[int, ...]


def writable(kind: ChipType, register: int) -> int:
    """The bits of a register that a write changes."""
    return _WRITABLE[kind.name].get(register, 0)


def fields_of(kind: ChipType, registers: Mapping[int, int]) -> Fields:
    """What the configuration registers set."""
    word = registers[CONFIG]
    if kind.name == "INA219":
        return Fields(word & 7, word >> 3 & 15, word >> 7 & 15, 1, word >> 11 & 3, word >> 13 & 1, (0,))
    counts = {code: n for n, code in AVERAGES.items()}
    if kind.name == "INA228":
        adc = registers[1]
        # Bits of the mode: 15 continuous, 14 temperature, 13 shunt, 12 bus.
        mode = (adc >> 15 & 1) << 2 | (adc >> 12 & 1) << 1 | (adc >> 13 & 1)
        return Fields(mode, adc >> 6 & 7, adc >> 9 & 7, counts[adc & 7], word >> 4 & 1, 0, (0,))
    enabled: tuple[int, ...] = (0,)
    if kind.name == "INA3221":
        enabled = tuple(c for c in range(3) if word >> (14 - c) & 1)
    return Fields(word & 7, word >> 3 & 7, word >> 6 & 7, counts[word >> 9 & 7], 0, 0, enabled)


def find_adc(kind: ChipType, code: int) -> Adc:
    """The converter setting behind a code; several codes of the INA219 mean the same."""
    if kind.name == "INA219":
        code = code & 3 if not code & 8 else 3 if code == 8 else code
    return next(a for a in kind.adc.values() if a.code == code)


def status_of(
    kind: ChipType, registers: Mapping[int, int], shunt: Sequence[int], bus: Sequence[int], ready: bool
) -> int:
    """The register of conversion-ready and alert flags. Alerts are transparent: they say what the codes say now."""
    if kind.name == "INA226":
        enabled, limit = registers[6] & 0xF800, registers[7]
        signed = limit - 0x10000 if limit & 0x8000 else limit
        alert = (
            (enabled & 0x8000 and shunt[0] > signed)
            or (enabled & 0x4000 and shunt[0] < signed)
            or (enabled & 0x2000 and bus[0] > limit)
            or (enabled & 0x1000 and bus[0] < limit)
        )
        return registers[6] & 0xFC03 | bool(alert) << 4 | ready << 3
    if kind.name == "INA228":
        word = registers[0x0B] & 0xF000 | 1 | ready << 1
        if 0x0C in registers:
            word |= (shunt[0] >> 8 > _signed(registers[0x0C])) << 6
        if 0x0D in registers:
            word |= (shunt[0] >> 8 < _signed(registers[0x0D])) << 5
        if 0x0E in registers:
            word |= (bus[0] >> 4 > registers[0x0E]) << 4
        if 0x0F in registers:
            word |= (bus[0] >> 4 < registers[0x0F]) << 3
        return word
    word = registers[0x0F] & 0x7C00 | 0x0002 | ready
    for c in range(3):
        if 7 + 2 * c in registers:
            word |= (shunt[c] > _signed(registers[7 + 2 * c])) << (9 - c)
        if 8 + 2 * c in registers:
            word |= (shunt[c] > _signed(registers[8 + 2 * c])) << (5 - c)
    return word


def _signed(word: int) -> int:
    return word - 0x10000 if word & 0x8000 else word
