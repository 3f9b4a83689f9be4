"""What a simulated WT310E measures: its inputs with their ranges, its updates, its integration and its registers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf, nan

from powerd_daemon.meter.wt310 import AMPERE_RANGES, INTEGRATING, OVER_RANGE, RATES_S, UPDATED, VOLT_RANGES

OUT_OF_RANGE, NOT_NOW = (222, "Data out of range"), (813, "Invalid operation")
STARTED, NOT_STARTED, NOT_STOPPED = (842, "Integration runs"), (844, "Integration does not run"), (845, "Stop it first")
"""813: not while it integrates. The numbers are the meter's; the words of the last three are ours."""
CLIP = 1.4
"""A range shows up to this much of itself."""
UPDATING_NS = 5_000_000
"""How long before its end an update shows in the condition register."""
_OVER = OVER_RANGE & 0x40


@dataclass(slots=True)
class Input:
    """What is connected: energy by time, at a voltage. The power of an update is its mean."""

    energy_j: Callable[[int, int], float]
    volts: float = 230.0


class Refused(Exception):
    """A command that goes to the error queue."""

    def __init__(self, error: tuple[int, str]) -> None:
        super().__init__(error[1])
        self.error = error


class Registers:
    """The condition register, and the events that its transition filters let through."""

    def __init__(self) -> None:
        self.condition = self.events = 0
        self._filters = ["NEVER"] * 16

    def filter(self, number: int, kind: str) -> None:
        kinds = {"RISE": "RISE", "FALL": "FALL", "BOTH": "BOTH", "NEV": "NEVER", "NEVER": "NEVER"}
        if not 1 <= number <= len(self._filters) or kind.upper() not in kinds:
            raise Refused(OUT_OF_RANGE)
        self._filters[number - 1] = kinds[kind.upper()]

    def set(self, condition: int) -> None:
        rose, fell = condition & ~self.condition, self.condition & ~condition
        for bit, kind in enumerate(self._filters):
            seen = {"RISE": rose, "FALL": fell, "BOTH": rose | fell, "NEVER": 0}[kind]
            self.events |= seen & 1 << bit
        self.condition = condition

    def take(self) -> int:
        events, self.events = self.events, 0
        return events


class Inputs:
    """Measures what is connected, one update after the other. ``settings`` are those of the meter."""

    def __init__(self, connected: Input, t_ns: int, settings: Mapping[str, str], registers: Registers) -> None:
        self.connected = connected
        self.volts, self.amperes, self.rate_s = 600.0, 20.0, 0.5
        self.integration = "RESET"
        self.update_ns = t_ns + self.period_ns
        """When the update under way ends."""
        self._settings, self._registers = settings, registers
        self._shown = {"P": nan, "U": nan, "I": nan}
        self._wh = nan
        self._integrated_j = 0.0
        self._integrated_to_ns = t_ns
        self._skip_update = False

    @property
    def period_ns(self) -> int:
        return round(self.rate_s * 1e9)

    @property
    def values(self) -> Mapping[str, float]:
        """By item; NaN where there is none (yet), infinite over range."""
        return {**self._shown, "WH": self._wh}

    def set_volts(self, value: float) -> None:
        self.volts = self._range(value, VOLT_RANGES)

    def set_amperes(self, value: float) -> None:
        self.amperes = self._range(value, AMPERE_RANGES)

    def set_rate(self, value: float, t_ns: int) -> None:
        if value not in RATES_S:
            raise Refused(OUT_OF_RANGE)
        self.remeasure()
        self.rate_s = value
        self.update_ns = t_ns + self.period_ns
        self._skip_update = False

    def remeasure(self) -> None:
        """Something changed: what was measured before is no longer shown."""
        if self.integration == "START":
            raise Refused(NOT_NOW)
        self._shown = dict.fromkeys(self._shown, nan)
        # The update that runs has begun with the settings before.
        self._skip_update = True

    def start(self, t_ns: int) -> None:
        if self.integration == "START":
            raise Refused(STARTED)
        self.integration = "START"
        self._integrated_to_ns = t_ns
        self._registers.set(self._registers.condition | INTEGRATING)

    def stop(self, t_ns: int) -> None:
        if self.integration != "START":
            raise Refused(NOT_STARTED)
        self._integrate(t_ns)
        self.integration = "STOP"
        self._registers.set(self._registers.condition & ~INTEGRATING)

    def reset(self) -> None:
        if self.integration == "START":
            raise Refused(NOT_STOPPED)
        self.integration, self._integrated_j, self._wh = "RESET", 0.0, nan

    def advance(self, t_ns: int) -> int | None:
        """Do what is due next by ``t_ns``. Returns the end of an update that ended, -1 for less, None for nothing."""
        registers = self._registers
        if self.update_ns - UPDATING_NS <= t_ns and not registers.condition & UPDATED:
            registers.set(registers.condition | UPDATED)
            return -1
        if self.update_ns > t_ns:
            return None
        end_ns = self.update_ns
        self.update_ns += self.period_ns
        self._integrate(end_ns)
        is_over = False
        if self._skip_update:
            self._skip_update = False
        elif self._settings[":HOLD"] == "0":
            is_over = self._measure(end_ns)
        registers.set(registers.condition & ~(UPDATED | OVER_RANGE) | (_OVER if is_over else 0))
        return end_ns

    def _measure(self, end_ns: int) -> bool:
        volts = self.connected.volts
        power_w = self.connected.energy_j(end_ns - self.period_ns, end_ns) / self.rate_s
        amperes = abs(power_w) / volts
        over_volts, over_amperes = volts > CLIP * self.volts, amperes > CLIP * self.amperes
        self._shown = {
            "U": inf if over_volts else volts,
            "I": inf if over_amperes else amperes,
            "P": inf if over_volts or over_amperes else power_w,
        }
        if self.integration != "RESET":
            self._wh = self._integrated_j / 3600
        return over_volts or over_amperes

    def _integrate(self, t_ns: int) -> None:
        if self.integration == "START":
            self._integrated_j += self.connected.energy_j(self._integrated_to_ns, t_ns)
            self._integrated_to_ns = t_ns

    def _range(self, value: float, known: Mapping[int, tuple[float, ...]]) -> float:
        if value not in known[int(self._settings[":INPut:CFACtor"])]:
            raise Refused(OUT_OF_RANGE)
        self.remeasure()
        return value
