"""The INA family as plain data: one frozen table for each type of chip, and what the settings of a chip amount to.

Texas Instruments data sheets: INA219 SBOS448G, INA226 SBOS547B, INA228 SLYS021A, INA3221 SBOS576A. All talk in
registers of two or three bytes, most significant first, behind a pointer that is kept between reads and does not count
up.

What is read is SHUNT and BUS. The chips' own CURRENT and POWER registers are never used as values: they need a
calibration that truncates, and they overflow. *Codes* are the registers as they come over the wire, sign-extended, with
the unused low bits that some types have; `shunt_lsb_v` is the weight of such a code's last bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from powerd_core.errors import ConfigError

CONFIG, RST = 0, 0x8000
CNVR, OVF = 0x0002, 0x0001
"""In the BUS register of the INA219. CNVR: converted since the mode was written or POWER was read; it stays set else.
That is what the register's own section says (8.6.3.2); section 8.3.1 has a read of the status clear it as well. OVF:
CURRENT or POWER overflowed; SHUNT and BUS stay valid."""
MANUFACTURER = 0x5449
"""'TI', in all types that have an identification."""
AVERAGES = {n: code for code, n in enumerate((1, 4, 16, 64, 128, 256, 512, 1024))}
"""Numbers of averages and their codes, in all types but the INA219."""
_WARMING_K = 60.0
"""How far from 25 C the limits are taken: an enclosure beside a graphics card stays below 85 C."""
_PGA_MV = (40, 80, 160, 320)


@dataclass(frozen=True, slots=True)
class Adc:
    """One setting of a converter: its code, nominal duration, and resolution (``bits`` below the type's full ones)."""

    code: int
    conversion_ns: int
    bits_lost: int = 0


@dataclass(frozen=True, slots=True)
class Range:
    """One range of a voltage: the field's value, the weight of a code in volts, and the code (of the bus: shifted
    right) at which it clips."""

    code: int
    lsb_v: float
    full_scale: int


@dataclass(frozen=True, slots=True)
class Grade:
    """The data sheet's limits, over temperature where it gives them: +- half-widths."""

    current_gain: float
    bus_gain: float
    offset_v: Mapping[str, float]
    """Zero of the shunt voltage, by range."""
    bus_offset_v: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipType:
    """Everything that a driver or a model has to know of one type. What has a default is so in most of them."""

    name: str
    channels: tuple[tuple[int, int], ...] = ((1, 2),)
    """Each channel's SHUNT and BUS register."""
    code_bytes: int = 2
    """Width of those registers; all others that are used here have two bytes."""
    config: int = CONFIG
    """The register whose reset value tells the type where there is no identification."""
    resets: Mapping[int, int]
    """Reset values of the registers that are written or looked at."""
    identity: tuple[tuple[int, int, int], ...]
    """Registers that hold constants: register, value, and the mask of the bits that count."""
    shunt_ranges: Mapping[str, Range]
    bus_ranges: Mapping[str, Range]
    """All of one weight."""
    bus_shift: int
    """Bits below the bus code within its register."""
    adc: Mapping[str, Adc]
    averages: Mapping[int, int] = field(default_factory=lambda: AVERAGES)
    """Numbers of averages that may be set and their codes; only 1 where a reading would have no window, or where
    averaging is a setting of the converter."""
    renews_at_once: bool = False
    """Whether each register takes its value when its own conversion ends, or all of them when the whole cycle does."""
    clock_tolerance: float = 0.10
    """Conversions last at most this much longer or shorter (relative). The data sheets give maxima alone: the typical
    times and a tenth, rounded up to whole microseconds."""
    grades: Mapping[str, Grade]
    defaults: tuple[str, str]
    """Converter settings of shunt and bus for about 500 scans a second."""
    addresses: tuple[int, int] = (0x40, 0x4F)
    """First and last address that the pins can choose."""
    data_sheet: str
    max_bus_v: float
    """Absolute limit of the measured voltage."""

    @property
    def bus_lsb_v(self) -> float:
        return next(iter(self.bus_ranges.values())).lsb_v


def _times(*durations_us: int) -> dict[str, Adc]:
    return {f"{us}us": Adc(code, us * 1000) for code, us in enumerate(durations_us)}


_TIMES = _times(140, 204, 332, 588, 1100, 2116, 4156, 8244)


def _pga(*limits_uv: float) -> dict[str, float]:
    return {f"{mv}mV": uv * 1e-6 for mv, uv in zip(_PGA_MV, limits_uv, strict=True)}


def _grade(
    gain: tuple[float, float], ranges: tuple[str, ...], zero_v: tuple[float, float], bus_zero_v: tuple[float, float]
) -> Grade:
    """From limits at 25 C and their drifts for each kelvin; shunt and bus have the same limit of the gain."""
    warm_gain, warm_zero_v, warm_bus_v = (limit + drift * _WARMING_K for limit, drift in (gain, zero_v, bus_zero_v))
    return Grade(warm_gain, warm_gain, dict.fromkeys(ranges, warm_zero_v), warm_bus_v)


INA219 = ChipType(
    name="INA219",
    resets={CONFIG: 0x399F, 5: 0},
    identity=(),
    shunt_ranges={f"{mv}mV": Range(code, 10e-6, mv * 100) for code, mv in enumerate(_PGA_MV)},
    bus_ranges={"16V": Range(0, 4e-3, 4000), "32V": Range(1, 4e-3, 8000)},
    bus_shift=3,
    adc={
        "9bit": Adc(0x0, 84_000, 3),
        "10bit": Adc(0x1, 148_000, 2),
        "11bit": Adc(0x2, 276_000, 1),
        "12bit": Adc(0x3, 532_000),
    }
    | {
        f"avg{2**k}": Adc(0x8 + k, us * 1000)
        for k, us in enumerate((1060, 2130, 4260, 8510, 17_020, 34_050, 68_100), start=1)
    },
    averages={1: 0},
    renews_at_once=True,
    # Gains over temperature. Of the zero's drift the data sheet gives the typical value alone (0.1 uV/C), and of the
    # bus voltage one error for all: neither is added to.
    grades={
        "A": Grade(0.010, 0.010, _pga(100, 125, 150, 200)),
        "B": Grade(0.005, 0.010, _pga(50, 75, 75, 100)),
    },
    defaults=("avg2", "10bit"),
    data_sheet="SBOS448",
    max_bus_v=26.0,
)

INA226 = ChipType(
    name="INA226",
    resets={CONFIG: 0x4127, 5: 0, 6: 0, 7: 0},
    identity=((0xFE, MANUFACTURER, 0xFFFF), (0xFF, 0x2260, 0xFFF0)),
    shunt_ranges={"82mV": Range(0, 2.5e-6, 0x7FFF)},
    bus_ranges={"41V": Range(0, 1.25e-3, 0x7FFF)},
    bus_shift=0,
    adc=_TIMES,
    grades={"": _grade((0.001, 50e-6), ("82mV",), (10e-6, 0.1e-6), (7.5e-3, 40e-6))},
    defaults=("1100us", "140us"),
    data_sheet="SBOS547",
    max_bus_v=36.0,
)

INA228 = ChipType(
    name="INA228",
    channels=((4, 5),),
    code_bytes=3,
    resets={CONFIG: 0x0000, 1: 0xFB68, 2: 0x1000, 0x0B: 0x0001},
    identity=((0x3E, MANUFACTURER, 0xFFFF), (0x3F, 0x2280, 0xFFF0)),
    # 20 bits in the upper part of 24
    shunt_ranges={
        "164mV": Range(0, 312.5e-9 / 16, 0x7FFFF << 4),
        "41mV": Range(1, 78.125e-9 / 16, 0x7FFFF << 4),
    },
    bus_ranges={"85V": Range(0, 195.3125e-6, 435_200)},
    bus_shift=4,
    adc=_times(50, 84, 150, 280, 540, 1052, 2074, 4120),
    clock_tolerance=0.01,  # of the oscillator over temperature; 0.5 % at 25 C
    # The shunt's zero is stated for conversions of more than 280 us; for shorter ones no limit was found. The bus's is
    # that of the INA238, the sister with 16 bits (SLYS026), which is the less exact part.
    grades={"": _grade((0.0005, 20e-6), ("164mV", "41mV"), (1e-6, 10e-9), (5e-3, 40e-6))},
    defaults=("1052us", "150us"),
    data_sheet="SLYS021",
    max_bus_v=85.0,
)

INA3221 = ChipType(
    name="INA3221",
    channels=((1, 2), (3, 4), (5, 6)),
    resets={CONFIG: 0x7127, 0x0E: 0x7FFE, 0x0F: 0x0002},
    identity=((0xFE, MANUFACTURER, 0xFFFF), (0xFF, 0x3220, 0xFFFF)),
    # 13 bits in the upper part of 16
    shunt_ranges={"164mV": Range(0, 40e-6 / 8, 0x7FF8)},
    bus_ranges={"33V": Range(0, 8e-3, 0x0FFF)},
    bus_shift=3,
    adc=_TIMES,
    # Its averaging is a running one (section 8.4.1): each conversion moves the register by a share of the difference.
    # The past fades and never ends, so such a reading has no window, and a phase would leak into those after it.
    averages={1: AVERAGES[1]},
    renews_at_once=True,
    grades={"": _grade((0.0025, 50e-6), ("164mV",), (80e-6, 0.5e-6), (16e-3, 80e-6))},
    defaults=("332us", "140us"),
    addresses=(0x40, 0x43),
    data_sheet="SBOS576",
    max_bus_v=26.0,
)

CHIPS: dict[str, ChipType] = {c.name: c for c in (INA219, INA226, INA228, INA3221)}
"""All types by name."""


def chip_type(name: str) -> ChipType:
    """The type called ``name`` in any case. Raises `ConfigError`."""
    kind = CHIPS.get(name.upper())
    if kind is None:
        raise ConfigError(f"unknown type of chip {name!r}: there are {', '.join(CHIPS)}")
    return kind


@dataclass(frozen=True, slots=True)
class ChipSettings:
    """How one chip converts: its settings, the words that bring them about, and the times and limits that follow.

    Shunt and bus are converted one after the other, over and over, for all channels in turn. The INA219 averages the
    shunt, then the bus, and renews each register when its own conversion ends; so does the INA3221, channel by channel.
    The INA226 and INA228 take the averages over the whole sequence and renew all registers when it is complete.

    Empty strings stand for the type's defaults and its widest ranges; ``channels`` are those converted, from 1. Raises
    `ConfigError` for what the chip does not have.
    """

    chip: str = "INA219"
    shunt_adc: str = ""
    bus_adc: str = ""
    averages: int = 1
    shunt_range: str = ""
    bus_range: str = ""
    channels: tuple[int, ...] = (1,)

    def __post_init__(self) -> None:
        kind = chip_type(self.chip)
        object.__setattr__(self, "chip", kind.name)
        widest = max(kind.shunt_ranges, key=lambda n: kind.shunt_ranges[n].full_scale * kind.shunt_ranges[n].lsb_v)
        for option, value, known in (
            ("shunt_adc", self.shunt_adc or kind.defaults[0], kind.adc),
            ("bus_adc", self.bus_adc or kind.defaults[1], kind.adc),
            ("shunt_range", self.shunt_range or widest, kind.shunt_ranges),
            ("bus_range", self.bus_range or list(kind.bus_ranges)[-1], kind.bus_ranges),
            ("averages", self.averages, kind.averages),
        ):
            if value not in known:
                there_are = ", ".join(map(str, known))
                raise ConfigError(f"{option} = {value!r} is not of the {kind.name}, which has: {there_are}")
            object.__setattr__(self, option, value)
        if not self.channels or any(not 1 <= c <= len(kind.channels) for c in self.channels):
            raise ConfigError(f"the {kind.name} has channels 1 to {len(kind.channels)}, not {list(self.channels)}")

    @property
    def type(self) -> ChipType:
        return chip_type(self.chip)

    @property
    def shunt(self) -> Range:
        return self.type.shunt_ranges[self.shunt_range]

    @property
    def bus(self) -> Range:
        return self.type.bus_ranges[self.bus_range]

    @property
    def words(self) -> tuple[tuple[int, int], ...]:
        """Registers and what to write into them. At least one differs from its reset value, so that reading them back
        shows a reset."""
        kind = self.type
        shunt, bus, average = kind.adc[self.shunt_adc].code, kind.adc[self.bus_adc].code, kind.averages[self.averages]
        if kind.name == "INA219":
            word = self.bus.code << 13 | self.shunt.code << 11 | bus << 7 | shunt << 3 | 7
            # 12 bit has a second code, which tells our setting from the same one after a reset.
            return ((CONFIG, word if word != kind.resets[CONFIG] else word & ~0x78 | 0x8 << 3),)
        if kind.name == "INA228":
            return ((CONFIG, self.shunt.code << 4), (1, 0xB << 12 | bus << 9 | shunt << 6 | 4 << 3 | average))
        word = average << 9 | bus << 6 | shunt << 3 | 7
        if kind.name == "INA3221":
            word |= sum(1 << (15 - c) for c in set(self.channels))
            canary = (0x0E, 0x7FFC)  # limit of a sum that is not formed
        else:
            word |= 0x4000
            canary = (0x07, 0x7FF8)  # limit of an alert that is not enabled
        return ((CONFIG, word),) if word != kind.resets[CONFIG] else ((CONFIG, word), canary)

    @property
    def shunt_adc_ns(self) -> int:
        """Nominal time of one shunt conversion."""
        return self.type.adc[self.shunt_adc].conversion_ns

    @property
    def bus_adc_ns(self) -> int:
        """Nominal time of one bus conversion."""
        return self.type.adc[self.bus_adc].conversion_ns

    @property
    def cycle_ns(self) -> int:
        """Nominal distance of two codes of a channel."""
        return len(set(self.channels)) * self.averages * (self.shunt_adc_ns + self.bus_adc_ns)

    @property
    def longest_cycle_ns(self) -> int:
        """After this long, the slowest chip has a new pair of codes."""
        return round(self.cycle_ns * (1 + self.type.clock_tolerance))

    @property
    def window_ns(self) -> int:
        """From the beginning of the first to the end of the last conversion that one shunt code averages."""
        round_ns = self.cycle_ns // self.averages
        return (self.averages - 1) * round_ns + self.shunt_adc_ns

    def age_ns(self, channel: int = 1) -> int:
        """How long before its reading the middle of a shunt code's window was, on average.

        A reading comes at any moment, so its code was renewed half a cycle ago on average. The INA219 and the INA3221
        renew it at the end of its window. The others do so at the end of the sequence, of which this channel's window
        is a part.
        """
        if self.type.renews_at_once:
            return self.cycle_ns // 2 + self.window_ns // 2
        earlier = sum(c < channel for c in set(self.channels))
        begin_ns = earlier * (self.shunt_adc_ns + self.bus_adc_ns)
        return self.cycle_ns // 2 + self.cycle_ns - begin_ns - self.window_ns // 2

    @property
    def coverage(self) -> float:
        """Share of the time during which a channel's current is looked at."""
        return self.averages * self.shunt_adc_ns / self.cycle_ns

    def clip_a(self, shunt_ohm: float) -> float:
        """The current at which the shunt voltage reaches the end of its range."""
        return self.shunt.full_scale * self.shunt.lsb_v / shunt_ohm

    @property
    def clip_bus_v(self) -> float:
        """The voltage at which the range or the chip's rating ends."""
        return min(self.bus.full_scale * self.type.bus_lsb_v, self.type.max_bus_v)

    def grade(self, name: str = "") -> Grade:
        """Limits of a grade (the worst where a type has several and none is named). Raises `ConfigError`."""
        grades = self.type.grades
        if name and name not in grades:
            raise ConfigError(f"grade = {name!r} is not a grade of the {self.chip}")
        return grades[name or next(iter(grades))]
