"""The INA219: registers, settings, conversion times and data-sheet limits (Texas Instruments SBOS448).

The chip's own CURRENT and POWER registers are never used as values: they need a calibration that truncates, and they
overflow. Power comes from the raw SHUNT and BUS codes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from math import hypot, sqrt

from powerd_core.errors import ConfigError
from powerd_core.model import Accuracy, ShuntConversion


class Register(IntEnum):
    """Pointer values (data sheet, table 2)."""

    CONFIG = 0
    SHUNT = 1
    BUS = 2
    POWER = 3
    CURRENT = 4
    CALIBRATION = 5


RESET_CONFIG = 0x399F
RST = 0x8000
CNVR = 0x0002
"""In BUS: a conversion was completed since the mode was written or POWER was read. It stays set otherwise."""
OVF = 0x0001
"""In BUS: CURRENT or POWER overflowed. SHUNT and BUS stay valid."""
CONTINUOUS_BOTH = 7

SHUNT_LSB_V = 10e-6
BUS_LSB_V = 4e-3
BUS_SHIFT = 3
CLOCK_TOLERANCE = 0.10
"""The chip's conversion clock is off by at most this much (data sheet: 532 us typical, 586 us maximal)."""


@dataclass(frozen=True, slots=True)
class Adc:
    """One setting of BADC or SADC: its code, how long it converts, and its resolution."""

    code: int
    conversion_ns: int
    bits: int = 12


ADC = {
    "9bit": Adc(0x0, 84_000, 9),
    "10bit": Adc(0x1, 148_000, 10),
    "11bit": Adc(0x2, 276_000, 11),
    "12bit": Adc(0x3, 532_000),
    "avg2": Adc(0x9, 1_060_000),
    "avg4": Adc(0xA, 2_130_000),
    "avg8": Adc(0xB, 4_260_000),
    "avg16": Adc(0xC, 8_510_000),
    "avg32": Adc(0xD, 17_020_000),
    "avg64": Adc(0xE, 34_050_000),
    "avg128": Adc(0xF, 68_100_000),
}
"""Settings by the names that options use: resolution of a single conversion, or how many of 12 bit are averaged."""

PGA_MV = (40, 80, 160, 320)
BUS_RANGE_V = (16, 32)


@dataclass(frozen=True, slots=True)
class Settings:
    """How a chip converts. Raises `ConfigError` for values that the chip does not have."""

    shunt_adc: str = "avg2"
    bus_adc: str = "10bit"
    shunt_range_mv: int = 320
    bus_range_v: int = 32

    def __post_init__(self) -> None:
        for name, adc in (("shunt_adc", self.shunt_adc), ("bus_adc", self.bus_adc)):
            if adc not in ADC:
                raise ConfigError(f"{name} = {adc!r} is not a setting of the INA219: choose one of {', '.join(ADC)}")
        if self.shunt_range_mv not in PGA_MV:
            raise ConfigError(f"shunt_range_mv = {self.shunt_range_mv} is not one of {PGA_MV}")
        if self.bus_range_v not in BUS_RANGE_V:
            raise ConfigError(f"bus_range_v = {self.bus_range_v} is not one of {BUS_RANGE_V}")

    @property
    def word(self) -> int:
        """The CONFIG register: continuous conversion of shunt and bus."""
        return (
            BUS_RANGE_V.index(self.bus_range_v) << 13
            | PGA_MV.index(self.shunt_range_mv) << 11
            | ADC[self.bus_adc].code << 7
            | ADC[self.shunt_adc].code << 3
            | CONTINUOUS_BOTH
        )

    @property
    def shunt_ns(self) -> int:
        """Nominal time over which one shunt code averages."""
        return ADC[self.shunt_adc].conversion_ns

    @property
    def cycle_ns(self) -> int:
        """Nominal distance of two shunt codes: shunt and bus are converted one after the other."""
        return self.shunt_ns + ADC[self.bus_adc].conversion_ns

    @property
    def longest_cycle_ns(self) -> int:
        """After this long, the slowest chip has a new pair of codes."""
        return round(self.cycle_ns * (1 + CLOCK_TOLERANCE))

    @property
    def age_ns(self) -> int:
        """How long before its reading a shunt code was valid, on average: the middle of its window.

        Each register is renewed when its own conversion ends, whichever of the two comes first. A reading comes at
        any moment of the cycle, so the window ended half a cycle ago on average, and its middle is half a window older.
        """
        return self.cycle_ns // 2 + self.shunt_ns // 2

    @property
    def full_scale(self) -> int:
        """The shunt code at which the amplifier clips; its negative on the other side."""
        return self.shunt_range_mv * 100

    @property
    def bus_full_scale(self) -> int:
        """The bus code (without the flag bits) at which the range ends."""
        return self.bus_range_v * 250


@dataclass(frozen=True, slots=True)
class Grade:
    """Limits of a grade over its temperature range: relative for gains, in volts for the shunt's zero by range."""

    current_gain: float
    bus_gain: float
    offset_v: tuple[float, float, float, float]


GRADES = {
    "A": Grade(0.010, 0.010, (100e-6, 125e-6, 150e-6, 200e-6)),
    "B": Grade(0.005, 0.010, (50e-6, 75e-6, 75e-6, 100e-6)),
}

_LATCH_NS = 15_000
"""The chip latches a word some SCL periods behind the middle of its transfer (5 of 48, at 400 kHz)."""


def offset_limit_v(settings: Settings, grade: Grade) -> float:
    """The largest zero error of the shunt voltage at the settings' range."""
    return grade.offset_v[PGA_MV.index(settings.shunt_range_mv)]


def conversion(shunt_ohm: float) -> ShuntConversion:
    """What the raw codes of columns ``shunt`` and ``bus`` mean, uncalibrated."""
    return ShuntConversion(shunt_ohm, SHUNT_LSB_V, BUS_LSB_V, bus_shift=BUS_SHIFT)


def accuracy(
    settings: Settings,
    *,
    shunt_ohm: float,
    nominal_v: float,
    period_ns: int,
    grade: str = "A",
    shunt_tolerance: float = 0.01,
) -> Accuracy:
    """Standard uncertainties of an uncalibrated chip from the data sheet's limits over temperature.

    ``shunt_tolerance`` is the resistor's limit. Raises `ConfigError` for an unknown grade.
    """
    if grade not in GRADES:
        raise ConfigError(f"grade = {grade!r} is not one of {', '.join(GRADES)}")
    limits = GRADES[grade]
    bus_step_v, shunt_step_v = (
        lsb * 2 ** (12 - ADC[adc].bits)
        for lsb, adc in ((BUS_LSB_V, settings.bus_adc), (SHUNT_LSB_V, settings.shunt_adc))
    )
    # A steady voltage is always rounded the same way, so its step is an error of the gain.
    bus_rounding = bus_step_v / 2 / nominal_v
    return Accuracy(
        u_gain=hypot(limits.current_gain, limits.bus_gain, shunt_tolerance, bus_rounding) / sqrt(3),
        u_offset_w=offset_limit_v(settings, limits) / sqrt(3) / shunt_ohm * nominal_v,
        step_w=shunt_step_v / shunt_ohm * nominal_v,
        window_ns=settings.shunt_ns,
        centre_ns=round(
            settings.cycle_ns * (0.5 + CLOCK_TOLERANCE) + settings.shunt_ns * CLOCK_TOLERANCE / 2 + _LATCH_NS
        ),
        update_ns=settings.cycle_ns if settings.cycle_ns > period_ns else 0,
        origin=(
            f"INA219 data sheet SBOS448, grade {grade}, limits over temperature; "
            f"shunt +-{shunt_tolerance:.2%}; not calibrated"
        ),
    )
