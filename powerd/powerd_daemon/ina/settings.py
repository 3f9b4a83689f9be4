"""How a chip converts: its settings, the words that bring them about, and the times and limits that follow.

Shunt and bus are converted one after the other, over and over, for all channels in turn. The INA219 averages the shunt,
then the bus, and renews each register when its own conversion ends; so does the INA3221, channel by channel. The INA226
and INA228 take the averages over the whole sequence and renew all registers when it is complete.
"""

from __future__ import annotations

from dataclasses import dataclass

from powerd_core.errors import ConfigError
from powerd_core.text import did_you_mean
from powerd_daemon.ina.chips import CONFIG, Adc, BusRange, ChipType, Grade, ShuntRange, chip_type


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one chip; empty strings stand for the type's defaults and its widest ranges.

    ``channels`` are those converted, from 1. Raises `ConfigError` for what the chip does not have.
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
        put = object.__setattr__
        put(self, "chip", kind.name)
        put(self, "shunt_adc", self.shunt_adc or kind.defaults[0])
        put(self, "bus_adc", self.bus_adc or kind.defaults[1])
        put(self, "shunt_range", self.shunt_range or max(kind.shunt_ranges, key=lambda n: _widest(kind, n)))
        put(self, "bus_range", self.bus_range or list(kind.bus_ranges)[-1])
        for option, value, known in (
            ("shunt_adc", self.shunt_adc, kind.adc),
            ("bus_adc", self.bus_adc, kind.adc),
            ("shunt_range", self.shunt_range, kind.shunt_ranges),
            ("bus_range", self.bus_range, kind.bus_ranges),
        ):
            if value not in known:
                raise ConfigError(
                    f"{option} = {value!r} is not a setting of the {kind.name}{did_you_mean(value, known)}"
                )
        if self.averages not in kind.averages:
            known_counts = ", ".join(map(str, kind.averages))
            raise ConfigError(
                f"averages = {self.averages} is not a setting of the {kind.name} (there are: {known_counts})"
            )
        if not self.channels or any(not 1 <= c <= len(kind.channels) for c in self.channels):
            raise ConfigError(f"the {kind.name} has channels 1 to {len(kind.channels)}, not {list(self.channels)}")

    @property
    def type(self) -> ChipType:
        return chip_type(self.chip)

    @property
    def shunt(self) -> ShuntRange:
        return self.type.shunt_ranges[self.shunt_range]

    @property
    def bus(self) -> BusRange:
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
        return self._adc(self.shunt_adc).conversion_ns

    @property
    def bus_adc_ns(self) -> int:
        """Nominal time of one bus conversion."""
        return self._adc(self.bus_adc).conversion_ns

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

    @property
    def full_scale(self) -> int:
        """The shunt code at which the converter clips; its negative on the other side."""
        return self.shunt.full_scale

    @property
    def bus_full_scale(self) -> int:
        """The bus code (shifted right) at which the range ends."""
        return self.bus.full_scale

    def clip_a(self, shunt_ohm: float) -> float:
        """The current at which the shunt voltage reaches the end of its range."""
        return self.full_scale * self.shunt.lsb_v / shunt_ohm

    @property
    def clip_bus_v(self) -> float:
        """The voltage at which the range or the chip's rating ends."""
        return min(self.bus_full_scale * self.type.bus_lsb_v, self.type.max_bus_v)

    def grade(self, name: str = "") -> Grade:
        """Limits of a grade (the worst where a type has several and none is named). Raises `ConfigError`."""
        grades = self.type.grades
        found = grades.get(name or next(iter(grades)))
        if found is None:
            known = ", ".join(repr(g) for g in grades if g) or "none"
            raise ConfigError(f"grade = {name!r} is not a grade of the {self.chip} (there are: {known})")
        return found

    def _adc(self, name: str) -> Adc:
        return self.type.adc[name]


def _widest(kind: ChipType, name: str) -> float:
    shunt = kind.shunt_ranges[name]
    return shunt.full_scale * shunt.lsb_v
