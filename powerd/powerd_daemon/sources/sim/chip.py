"""A chip of the INA family at its registers: pointer, read-only bits, reset values, and conversions on its own clock.

Its shunt codes are the true averages of the load over the conversions' windows. Nothing here knows about the driver:
only the tables of `powerd_daemon.sources.ina.chips`, which come from the data sheets, are shared. What the driver never
uses is left out: current and power, alerts, running averages (INA3221), triggered conversions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from powerd_daemon.sources.ina.chips import AVERAGES, CNVR, CONFIG, RST, Adc, ChipType, Settings, chip_type

_WRITABLE: dict[str, dict[int, int]] = {
    "INA219": {CONFIG: 0x3FFF},
    "INA226": {CONFIG: 0x0FFF, 7: 0xFFFF},
    "INA228": {CONFIG: 0x3FF0, 1: 0xFFFF},
    "INA3221": {CONFIG: 0x7FFF, 0x0E: 0xFFFE},
}
"""The bits of each register that a write changes, of the registers that the driver writes."""
POWER = 3
"""Register of the INA219; reading it clears CNVR."""
_COUNTS = {code: n for n, code in AVERAGES.items()}


@dataclass(frozen=True, slots=True)
class ChipErrors:
    """How one chip and its shunt deviate from their nominal values, relative where no unit is named."""

    current_gain: float = 0.0
    bus_gain: float = 0.0
    offset_v: float = 0.0
    """Zero error of the shunt voltage."""
    shunt_gain: float = 0.0
    clock: float = 0.0
    """Conversions take this much longer."""
    bus_offset_v: float = 0.0


def draw_errors(
    random: Random, settings: Settings, *, grade: str = "", shunt_tolerance: float = 0.01, exact: bool = False
) -> ChipErrors:
    """Errors drawn evenly between the limits of the data sheet; ``exact`` leaves only the clock's."""
    limits = settings.grade(grade)
    clock, current, bus, offset, shunt, bus_offset = (random.uniform(-1, 1) for _ in range(6))
    clock *= settings.type.clock_tolerance
    if exact:
        return ChipErrors(clock=clock)
    return ChipErrors(
        current * limits.current_gain,
        bus * limits.bus_gain,
        offset * limits.offset_v[settings.shunt_range],
        shunt * shunt_tolerance,
        clock,
        bus_offset * limits.bus_offset_v,
    )


@dataclass(frozen=True, slots=True)
class Load:
    """What one channel measures; ``mean_a`` is the average current between two times of the board's clock."""

    mean_a: Callable[[int, int], float]
    bus_v: float
    shunt_ohm: float


NO_LOAD = Load(lambda _begin_ns, _end_ns: 0.0, 0.0, 1.0)


class SimChip:
    """One chip with the shunts and supplies of its channels, which converts shunt and bus for ever. All times are the
    board clock's, and must not go back.

    INA219 and INA3221 give each register its value when that conversion ends; the others do so when all averages are
    complete. Where a resolution below the full one is set, the codes are coarser by as many bits.
    """

    def __init__(
        self, chip: str | ChipType, loads: Sequence[Load], *, errors: ChipErrors = ChipErrors(), t_ns: int = 0
    ) -> None:
        self.type = chip if isinstance(chip, ChipType) else chip_type(chip)
        self._errors, self._ready = errors, False
        self._loads = [*loads, *[NO_LOAD] * (len(self.type.channels) - len(loads))]
        self.reset(t_ns)

    def reset(self, t_ns: int) -> None:
        """Power-on reset, as by the supply or by writing RST."""
        self._pointer = 0
        self._registers = {**self.type.resets, **{register: value for register, value, _ in self.type.identity}}
        self._shunt = [0] * len(self.type.channels)
        self._bus = [0] * len(self.type.channels)
        self._configure(t_ns)

    def select(self, pointer: int) -> None:
        """Set the pointer; it is kept for all further reads."""
        self._pointer = pointer & (7 if self.type.name == "INA219" else 0xFF)

    def size_of(self) -> int:
        """Bytes of the register under the pointer."""
        return self.type.code_bytes if any(self._pointer in pair for pair in self.type.channels) else 2

    def read_word(self, t_ns: int) -> int:
        """The register under the pointer, unsigned, as the chip shifts it out at ``t_ns``."""
        self._convert(t_ns)
        is_ina219 = self.type.name == "INA219"
        for i, (shunt, bus) in enumerate(self.type.channels):
            if self._pointer == shunt:
                return self._shunt[i] & ((1 << 8 * self.type.code_bytes) - 1)
            if self._pointer == bus:
                return self._bus[i] << self.type.bus_shift | (CNVR if is_ina219 and self._ready else 0)
        if is_ina219 and self._pointer == POWER:
            self._ready = False
        return self._registers.get(self._pointer, 0)

    def write_word(self, register: int, word: int, t_ns: int) -> None:
        """Set the pointer and write; registers that are read-only ignore it."""
        self._convert(t_ns)
        self.select(register)
        if register == CONFIG and word & RST:
            self.reset(t_ns)
        elif mask := _WRITABLE[self.type.name].get(register, 0):
            self._registers[register] = word & mask | self._registers[register] & ~mask
            if register == CONFIG or (register == 1 and self.type.name == "INA228"):
                self._configure(t_ns)

    def _configure(self, t_ns: int) -> None:
        """Begin to convert as the registers say."""
        kind, word = self.type, self._registers[CONFIG]
        average = shunt_range = bus_range = 0
        channels = [0]
        match kind.name:
            case "INA219":
                shunt, bus = word >> 3 & 15, word >> 7 & 15
                shunt_range, bus_range = word >> 11 & 3, word >> 13 & 1
            case "INA228":
                adc = self._registers[1]
                shunt, bus, average, shunt_range = adc >> 6 & 7, adc >> 9 & 7, adc & 7, word >> 4 & 1
            case _:
                shunt, bus, average = word >> 3 & 7, word >> 6 & 7, word >> 9 & 7
                if kind.name == "INA3221":
                    channels = [c for c in range(3) if word >> (14 - c) & 1]
        self._averages, self._channels = _COUNTS[average], channels
        self._shunt_adc, self._bus_adc = _find_adc(kind, shunt), _find_adc(kind, bus)
        slower = 1 + self._errors.clock
        self._shunt_ns = round(self._shunt_adc.conversion_ns * slower)
        self._one_ns = self._shunt_ns + round(self._bus_adc.conversion_ns * slower)
        self._range = next(r for r in kind.shunt_ranges.values() if r.code == shunt_range)
        self._bus_full_scale = next(r.full_scale for r in kind.bus_ranges.values() if r.code == bus_range)
        self._cycle_ns = max(len(channels), 1) * self._averages * self._one_ns
        """Distance of two codes of a channel."""
        self._since_ns, self._cycles, self._ready = t_ns, 0, False
        self._shunts, self._buses = [0] * len(channels), [0] * len(channels)

    def _convert(self, t_ns: int) -> None:
        """Bring the registers up to what was converted until ``t_ns``."""
        cycles, rest_ns = divmod(max(t_ns - self._since_ns, 0), self._cycle_ns)
        if cycles > self._cycles:
            self._cycles, self._ready = cycles, True
        for k, channel in enumerate(self._channels):
            of_this_ns = rest_ns - k * self._one_ns if self.type.renews_at_once else -1
            shunts, buses = cycles + (of_this_ns >= self._shunt_ns), cycles + (of_this_ns >= self._one_ns)
            load = self._loads[channel]
            if shunts > self._shunts[k]:
                self._shunts[k] = shunts
                begin_ns = self._since_ns + (shunts - 1) * self._cycle_ns + k * self._one_ns
                begins_ns = [begin_ns + n * len(self._channels) * self._one_ns for n in range(self._averages)]
                mean_a = sum(load.mean_a(t_ns, t_ns + self._shunt_ns) for t_ns in begins_ns) / self._averages
                self._shunt[channel] = self._shunt_code(load, mean_a)
            if buses > self._buses[k]:
                self._buses[k] = buses
                self._bus[channel] = self._bus_code(load.bus_v)

    def _shunt_code(self, load: Load, current_a: float) -> int:
        e, r = self._errors, self._range
        shunt_v = (current_a * load.shunt_ohm * (1 + e.shunt_gain) + e.offset_v) * (1 + e.current_gain)
        bits = self._shunt_adc.bits_lost + {"INA228": 4, "INA3221": 3}.get(self.type.name, 0)
        return min(max(_quantise(shunt_v / r.lsb_v, bits), -r.full_scale), r.full_scale)

    def _bus_code(self, steady_v: float) -> int:
        bus_v = steady_v * (1 + self._errors.bus_gain) + self._errors.bus_offset_v if steady_v else 0.0
        return min(max(_quantise(bus_v / self.type.bus_lsb_v, self._bus_adc.bits_lost), 0), self._bus_full_scale)


def _quantise(code: float, bits: int) -> int:
    return round(code / (1 << bits)) << bits


def _find_adc(kind: ChipType, code: int) -> Adc:
    """The converter setting behind a code; several codes of the INA219 mean the same."""
    if kind.name == "INA219":
        code = code & 3 if not code & 8 else 3 if code == 8 else code
    return next(a for a in kind.adc.values() if a.code == code)
