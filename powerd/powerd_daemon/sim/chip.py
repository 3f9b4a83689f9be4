"""An INA219 at its registers: pointer, read-only bits, reset values, and conversions on the chip's own clock.

Its shunt code is the true average of the load over the conversion's window. Nothing here knows about the driver.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from powerd_daemon.ina.ina219 import (
    ADC,
    BUS_LSB_V,
    BUS_SHIFT,
    CLOCK_TOLERANCE,
    CNVR,
    GRADES,
    OVF,
    PGA_MV,
    RESET_CONFIG,
    RST,
    SHUNT_LSB_V,
    Register,
    Settings,
    offset_limit_v,
)

MeanCurrent = Callable[[int, int], float]
"""Average current in amperes between two times of the board's clock."""

_CONFIG_BITS = 0x3FFF  # without RST, which clears itself, and the unused bit 14
_ADC_BY_CODE = {a.code: a for a in ADC.values()} | {a.code | 4: a for a in ADC.values() if a.code < 4}
_ADC_BY_CODE[0x8] = ADC["12bit"]


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


def draw_errors(
    random: Random, settings: Settings, *, grade: str = "A", shunt_tolerance: float = 0.01, exact: bool = False
) -> ChipErrors:
    """Errors drawn evenly between the limits of the data sheet; ``exact`` leaves only the clock's."""
    limits = GRADES[grade]
    clock, current, bus, offset, shunt = (random.uniform(-1, 1) for _ in range(5))
    if exact:
        return ChipErrors(clock=clock * CLOCK_TOLERANCE)
    return ChipErrors(
        current_gain=current * limits.current_gain,
        bus_gain=bus * limits.bus_gain,
        offset_v=offset * offset_limit_v(settings, limits),
        shunt_gain=shunt * shunt_tolerance,
        clock=clock * CLOCK_TOLERANCE,
    )


class SimIna219:
    """One chip with its shunt and supply. All times are the board clock's, and must not go back.

    Each register takes its value when its own conversion ends: shunt first, then bus; CNVR, CURRENT and POWER follow
    the second. Where a resolution below 12 bit is set, the codes are coarser by as many bits.
    """

    def __init__(
        self,
        mean_a: MeanCurrent,
        *,
        bus_v: float,
        shunt_ohm: float,
        errors: ChipErrors = ChipErrors(),
        t_ns: int = 0,
    ) -> None:
        self._mean_a, self._bus_v, self._errors = mean_a, bus_v, errors
        self._shunt_ohm = shunt_ohm * (1 + errors.shunt_gain)
        self.reset(t_ns)

    def reset(self, t_ns: int) -> None:
        """Power-on reset, as by the supply or by writing RST."""
        self._pointer = self._calibration = 0
        self._shunt = self._bus = self._current = self._power = 0
        self._ready = self._overflow = False
        self._configure(RESET_CONFIG, t_ns)

    def select(self, pointer: int) -> None:
        """Set the pointer; it is kept for all further reads."""
        self._pointer = pointer & 7

    def read_word(self, t_ns: int) -> int:
        """The register under the pointer, as the chip shifts it out at ``t_ns``."""
        self._convert(t_ns)
        match self._pointer:
            case Register.SHUNT:
                return self._shunt & 0xFFFF
            case Register.BUS:
                return self._bus << BUS_SHIFT | (CNVR if self._ready else 0) | (OVF if self._overflow else 0)
            case Register.CONFIG:
                return self._config
            case Register.POWER:
                self._ready = False
                return self._power
            case Register.CURRENT:
                return self._current & 0xFFFF
            case Register.CALIBRATION:
                return self._calibration
        return 0

    def write_word(self, register: int, word: int, t_ns: int) -> None:
        """Set the pointer and write; registers that are read-only ignore it."""
        self._convert(t_ns)
        self.select(register)
        if register == Register.CALIBRATION:
            self._calibration = word & 0xFFFE
        elif register == Register.CONFIG and word & RST:
            self.reset(t_ns)
        elif register == Register.CONFIG:
            self._configure(word & _CONFIG_BITS, t_ns)

    def _configure(self, config: int, t_ns: int) -> None:
        self._config = config
        mode = config & 7
        rate = 1 + self._errors.clock
        self._shunt_adc, self._bus_adc = _ADC_BY_CODE[config >> 3 & 15], _ADC_BY_CODE[config >> 7 & 15]
        self._shunt_ns = round(self._shunt_adc.conversion_ns * rate) if mode & 1 else 0
        self._bus_ns = round(self._bus_adc.conversion_ns * rate) if mode & 2 else 0
        self._full_scale = PGA_MV[config >> 11 & 3] * 100
        self._bus_full_scale = 8000 if config >> 13 & 1 else 4000
        self._triggered = not mode & 4
        self._since_ns = t_ns
        self._shunts = self._cycles = 0
        if mode not in (0, 4):
            self._ready = False

    def _convert(self, t_ns: int) -> None:
        """Bring the registers up to what was converted until ``t_ns``."""
        cycle_ns = self._shunt_ns + self._bus_ns
        if not cycle_ns:
            return
        cycles, rest_ns = divmod(max(t_ns - self._since_ns, 0), cycle_ns)
        shunts = cycles + (self._shunt_ns > 0 and rest_ns >= self._shunt_ns)
        if self._triggered:
            cycles, shunts = min(cycles, 1), min(shunts, 1)
        if cycles > self._cycles:
            self._cycles = cycles
            # A shunt code that the next conversion has replaced already matters to CURRENT alone.
            if self._shunts < cycles and self._shunt_ns and (shunts == cycles or self._calibration):
                self._shunt, self._shunts = self._shunt_code(cycles - 1), cycles
            if self._bus_ns:
                self._bus = self._bus_code()
            self._multiply()
            self._ready = True
        if shunts > self._shunts:
            self._shunts = shunts
            self._shunt = self._shunt_code(shunts - 1)

    def _shunt_code(self, conversion: int) -> int:
        begin_ns = self._since_ns + conversion * (self._shunt_ns + self._bus_ns)
        current_a = self._mean_a(begin_ns, begin_ns + self._shunt_ns)
        shunt_v = (current_a * self._shunt_ohm + self._errors.offset_v) * (1 + self._errors.current_gain)
        code = _quantise(shunt_v / SHUNT_LSB_V, self._shunt_adc.bits)
        return min(max(code, -self._full_scale), self._full_scale)

    def _bus_code(self) -> int:
        code = _quantise(self._bus_v * (1 + self._errors.bus_gain) / BUS_LSB_V, self._bus_adc.bits)
        return min(max(code, 0), self._bus_full_scale)

    def _multiply(self) -> None:
        """CURRENT and POWER by the data sheet's equations 4 and 5."""
        if not self._calibration:
            self._current, self._power, self._overflow = 0, 0, False
            return
        current = self._shunt * self._calibration // 4096
        power = abs(current) * self._bus // 5000
        self._overflow = not -32768 <= current <= 32767 or power > 65535
        self._current, self._power = current, power & 0xFFFF


def _quantise(code: float, bits: int) -> int:
    step = 1 << (12 - bits)
    return round(code / step) * step
