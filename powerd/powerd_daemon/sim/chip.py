"""A chip of the INA family at its registers: pointer, read-only bits, reset values, and conversions on its own clock.

Its shunt codes are the true averages of the load over the conversions' windows. Nothing here knows about the driver:
only the tables of `powerd_daemon.ina.chips`, which come from the data sheets, are shared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from powerd_daemon.ina.chips import CONFIG, RST, ChipType, chip_type
from powerd_daemon.ina.settings import Settings
from powerd_daemon.sim.registers import Fields, fields_of, find_adc, status_of, writable

_FORGOTTEN = 16
"""After so many times the number of averages, a running average keeps nothing that would show in a code."""

MeanCurrent = Callable[[int, int], float]
"""Average current in amperes between two times of the board's clock."""


@dataclass(frozen=True, slots=True)
class ChipErrors:
    """How one chip and its shunt deviate from their nominal values."""

    current_gain: float = 0.0
    bus_gain: float = 0.0
    offset_v: float = 0.0
    """Zero error of the shunt voltage."""
    shunt_gain: float = 0.0
    """Relative error of the shunt's resistance."""
    clock: float = 0.0
    """Conversions take this much longer (relative)."""
    bus_offset_v: float = 0.0


def draw_errors(
    random: Random, settings: Settings, *, grade: str = "", shunt_tolerance: float = 0.01, exact: bool = False
) -> ChipErrors:
    """Errors drawn evenly between the limits of the data sheet; ``exact`` leaves only the clock's."""
    limits, tolerance = settings.grade(grade), settings.type.clock_tolerance
    clock, current, bus, offset, shunt, bus_offset = (random.uniform(-1, 1) for _ in range(6))
    if exact:
        return ChipErrors(clock=clock * tolerance)
    return ChipErrors(
        current_gain=current * limits.current_gain,
        bus_gain=bus * limits.bus_gain,
        offset_v=offset * limits.offset_v[settings.shunt_range],
        shunt_gain=shunt * shunt_tolerance,
        clock=clock * tolerance,
        bus_offset_v=bus_offset * limits.bus_offset_v,
    )


@dataclass(frozen=True, slots=True)
class Load:
    """What one channel measures."""

    mean_a: MeanCurrent
    bus_v: float
    shunt_ohm: float


class SimChip:
    """One chip with the shunts and supplies of its channels. All times are the board clock's, and must not go back.

    INA219 and INA3221 give each register its value when that conversion ends; the others do so when all averages are
    complete. The INA3221 averages by moving its register a share of the way to each new value. Where a resolution below
    the full one is set, the codes are coarser by as many bits.
    """

    def __init__(
        self, chip: str | ChipType, loads: Sequence[Load], *, errors: ChipErrors = ChipErrors(), t_ns: int = 0
    ) -> None:
        self.type = chip if isinstance(chip, ChipType) else chip_type(chip)
        self._errors = errors
        self._loads = list(loads) + [Load(lambda _a, _b: 0.0, 0.0, 1.0)] * (len(self.type.channels) - len(loads))
        self.reset(t_ns)

    def reset(self, t_ns: int) -> None:
        """Power-on reset, as by the supply or by writing RST."""
        self._pointer = 0
        self._registers = dict(self.type.resets)
        self._registers |= {register: value for register, value, _ in self.type.identity}
        self._shunt = [0] * len(self.type.channels)
        self._bus = [0] * len(self.type.channels)
        self._mean_a = [0.0] * len(self.type.channels)
        self._mean_bus_v = [0.0] * len(self.type.channels)
        self._current = self._power = 0
        self._ready = self._overflow = False
        self._configure(t_ns)

    def select(self, pointer: int) -> None:
        """Set the pointer; it is kept for all further reads."""
        self._pointer = pointer & (7 if self.type.name == "INA219" else 0xFF)

    def size_of(self, register: int | None = None) -> int:
        """Bytes of a register, or of the one under the pointer."""
        at = self._pointer if register is None else register
        return self.type.code_bytes if any(at in pair for pair in self.type.channels) else 2

    def read_word(self, t_ns: int) -> int:
        """The register under the pointer, unsigned, as the chip shifts it out at ``t_ns``."""
        self._convert(t_ns)
        for i, (shunt, bus) in enumerate(self.type.channels):
            if self._pointer == shunt:
                return self._shunt[i] & ((1 << 8 * self.type.code_bytes) - 1)
            if self._pointer == bus:
                status = self._ready << 1 | self._overflow if self.type.name == "INA219" else 0
                return self._bus[i] << self.type.bus_shift | status
        if self.type.name == "INA219" and self._pointer in (3, 4):
            if self._pointer == 4:
                return self._current & 0xFFFF
            self._ready = False
            return self._power
        status_register = {"INA226": 6, "INA228": 0x0B, "INA3221": 0x0F}.get(self.type.name)
        if self._pointer == status_register:
            word = status_of(self.type, self._registers, self._shunt, self._bus, self._ready)
            self._ready = False
            return word
        return self._registers.get(self._pointer, 0)

    def write_word(self, register: int, word: int, t_ns: int) -> None:
        """Set the pointer and write; registers that are read-only ignore it."""
        self._convert(t_ns)
        self.select(register)
        if register == CONFIG and word & RST:
            self.reset(t_ns)
        elif mask := writable(self.type, register):
            fixed = self._registers.get(register, 0) & ~mask
            self._registers[register] = word & mask | fixed
            if register in (CONFIG, 1 if self.type.name == "INA228" else CONFIG):
                self._configure(t_ns)

    def _configure(self, t_ns: int) -> None:
        kind, f = self.type, fields_of(self.type, self._registers)
        self._fields: Fields = f
        rate = 1 + self._errors.clock
        self._shunt_adc, self._bus_adc = find_adc(kind, f.shunt_adc), find_adc(kind, f.bus_adc)
        self._shunt_ns = round(self._shunt_adc.conversion_ns * rate) if f.mode & 1 else 0
        self._bus_ns = round(self._bus_adc.conversion_ns * rate) if f.mode & 2 else 0
        self._range = next(r for r in kind.shunt_ranges.values() if r.code == f.shunt_range)
        self._bus_full_scale = next(r.full_scale for r in kind.bus_ranges.values() if r.code == f.bus_range)
        self._since_ns = t_ns
        self._cycles = 0
        self._shunts, self._buses = [0] * len(f.channels), [0] * len(f.channels)
        if f.mode not in (0, 4):
            self._ready = False

    def _convert(self, t_ns: int) -> None:
        """Bring the registers up to what was converted until ``t_ns``."""
        if not (cycle_ns := self._cycle_ns()):
            return
        cycles, rest_ns = divmod(max(t_ns - self._since_ns, 0), cycle_ns)
        if cycles and not self._fields.mode & 4:
            cycles, rest_ns = 1, 0
        if cycles > self._cycles:
            self._cycles = cycles
            if self._registers.get(5):
                # CURRENT and POWER are made of this cycle's codes, even where the next one has replaced some by now.
                self._renew(cycles, 0)
            self._multiply()
            self._ready = True
        self._renew(cycles, rest_ns)

    def _cycle_ns(self) -> int:
        """Distance of two codes of a channel."""
        f = self._fields
        conversions = len(f.channels) * (1 if self.type.renews_at_once else f.averages)
        return conversions * (self._shunt_ns + self._bus_ns)

    def _renew(self, cycles: int, rest_ns: int) -> None:
        """Give the registers what is complete after so many cycles and ``rest_ns`` of the next."""
        one_ns = self._shunt_ns + self._bus_ns
        for k in range(len(self._fields.channels)):
            of_this_ns = rest_ns - k * one_ns if self.type.renews_at_once else -1
            shunts, buses = cycles + (of_this_ns >= self._shunt_ns), cycles + (of_this_ns >= one_ns)
            if self._shunt_ns and shunts > self._shunts[k]:
                self._take_shunt(k, range(self._shunts[k], shunts))
                self._shunts[k] = shunts
            if self._bus_ns and buses > self._buses[k]:
                self._take_bus(k, buses - self._buses[k])
                self._buses[k] = buses

    def _take_shunt(self, k: int, cycles: range) -> None:
        f, one_ns = self._fields, self._shunt_ns + self._bus_ns
        channel = f.channels[k]
        load, mean_a = self._loads[channel], self._mean_a[channel]
        runs = self.type.renews_at_once
        for cycle in cycles[-_FORGOTTEN * f.averages :] if runs and f.averages > 1 else cycles[-1:]:
            begin_ns = self._since_ns + cycle * self._cycle_ns()
            total = 0.0
            for n in range(1 if runs else f.averages):
                t_ns = begin_ns + (n * len(f.channels) + k) * one_ns
                total += load.mean_a(t_ns, t_ns + self._shunt_ns)
            mean_a = mean_a + (total - mean_a) / f.averages if runs else total / f.averages
        self._mean_a[channel] = mean_a
        self._shunt[channel] = self._shunt_code(load, mean_a)

    def _take_bus(self, k: int, conversions: int) -> None:
        channel = self._fields.channels[k]
        load, averages = self._loads[channel], self._fields.averages
        # The voltage is steady, so a mean of any kind is its own, but for what a running one keeps of the time before.
        kept = (1 - 1 / averages) ** conversions if self.type.renews_at_once else 0.0
        mean_v = load.bus_v + (self._mean_bus_v[channel] - load.bus_v) * kept
        self._mean_bus_v[channel] = mean_v
        self._bus[channel] = self._bus_code(mean_v)

    def _shunt_code(self, load: Load, current_a: float) -> int:
        e, r = self._errors, self._range
        shunt_v = (current_a * load.shunt_ohm * (1 + e.shunt_gain) + e.offset_v) * (1 + e.current_gain)
        bits = self._shunt_adc.bits_lost + {"INA228": 4, "INA3221": 3}.get(self.type.name, 0)
        return min(max(_quantise(shunt_v / r.lsb_v, bits), -r.full_scale), r.full_scale)

    def _bus_code(self, steady_v: float) -> int:
        e = self._errors
        bus_v = steady_v * (1 + e.bus_gain) + e.bus_offset_v if steady_v else 0.0
        return min(max(_quantise(bus_v / self.type.bus_lsb_v, self._bus_adc.bits_lost), 0), self._bus_full_scale)

    def _multiply(self) -> None:
        """CURRENT and POWER by the data sheet's equations 4 and 5 (INA219)."""
        calibration = self._registers.get(5, 0) if self.type.name == "INA219" else 0
        if not calibration:
            self._current, self._power, self._overflow = 0, 0, False
            return
        current = self._shunt[0] * calibration // 4096
        power = abs(current) * self._bus[0] // 5000
        self._overflow = not -32768 <= current <= 32767 or power > 65535
        self._current, self._power = current, power & 0xFFFF


def _quantise(code: float, bits: int) -> int:
    return round(code / (1 << bits)) << bits
