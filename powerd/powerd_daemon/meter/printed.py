"""What a meter prints on a line, as whole micro-watts and micro-joules. No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, DecimalException

from powerd_core.errors import ConfigError

CODES_PER_UNIT = 1_000_000
"""Codes are microwatts and microjoules: whole numbers that hold what was printed without rounding to binary."""

# Without VA: apparent power says nothing of AC's power without the power factor.
POWER_UNITS = {"uW": "1e-6", "mW": "1e-3", "W": "1", "kW": "1e3"}
ENERGY_UNITS = {"mJ": "1e-3", "J": "1", "kJ": "1e3", "mWh": "3.6", "Wh": "3600", "kWh": "3.6e6"}
VOLT_UNITS = {"mV": "1e-3", "V": "1"}
AMPERE_UNITS = {"uA": "1e-6", "mA": "1e-3", "A": "1"}

_UNITS = {"power": POWER_UNITS, "energy": ENERGY_UNITS, "volts": VOLT_UNITS, "amps": AMPERE_UNITS}
_DEFAULTS = {"power": "W", "energy": "J", "volts": "V", "amps": "A"}
_LIMIT = 1 << 62


@dataclass(frozen=True, slots=True)
class Printed:
    """One understood line: codes, or None where the line does not say that quantity."""

    power: int | None
    energy: int | None


class LineFormat:
    """A pattern whose named groups are numbers: ``power``, ``energy``, or ``volts`` and ``amps``.

    ``units`` says each group's unit; a group ``power_unit`` (``energy_unit``, ...) in the pattern catches the unit that
    the meter prints itself. Raises `ConfigError` for a pattern or units that cannot be used.
    """

    def __init__(self, pattern: str, units: Mapping[str, str], decimal: str = ".") -> None:
        try:
            self._pattern = re.compile(pattern)
        except re.error as error:
            raise ConfigError(f"pattern is no regular expression: {error}") from error
        groups = self._pattern.groupindex.keys()
        known = {*_UNITS, *(f"{name}_unit" for name in _UNITS)}
        if unknown := sorted(groups - known):
            raise ConfigError(
                f"pattern has a group {unknown[0]!r}: groups are {', '.join(_UNITS)}, each also with _unit"
            )
        if ("volts" in groups) != ("amps" in groups):
            raise ConfigError("pattern needs both groups, volts and amps, or neither")
        if "volts" in groups and "power" in groups:
            raise ConfigError("pattern has both power and volts with amps: leave out one, or the power is told twice")
        if not groups & {"power", "energy", "volts"}:
            raise ConfigError("pattern has no group: name what to read, such as (?P<power>[0-9.]+)")
        self._scales: dict[str, Decimal] = {}
        for name, unit in {**_DEFAULTS, **units}.items():
            if name not in _UNITS or (name in units and name not in groups):
                raise ConfigError(f"units: the pattern has no group {name!r}")
            if unit not in _UNITS[name]:
                raise ConfigError(f"units: {unit!r} is no unit of {name}: choose from {', '.join(_UNITS[name])}")
            self._scales[name] = Decimal(_UNITS[name][unit])
        self._decimal = decimal
        self.has_power = bool(groups & {"power", "volts"})
        self.has_energy = "energy" in groups

    def read(self, text: str) -> Printed | None:
        """The codes of a line, or None for one that does not match or holds what is no number."""
        match = self._pattern.search(text)
        if match is None:
            return None
        found = match.groupdict()
        try:
            power = self._value(found, "power")
            if found.get("volts") is not None and found.get("amps") is not None:
                volts, amps = self._value(found, "volts"), self._value(found, "amps")
                power = volts * amps if volts is not None and amps is not None else None
            energy = self._value(found, "energy")
            codes = Printed(_code(power), _code(energy))
        except (DecimalException, ValueError, KeyError):
            return None
        return codes if codes.power is not None or codes.energy is not None else None

    def _value(self, found: Mapping[str, str | None], name: str) -> Decimal | None:
        text = found.get(name)
        if text is None:
            return None
        value = Decimal(text.strip().replace(self._decimal, "."))
        unit = found.get(f"{name}_unit")
        return value * (self._scales[name] if unit is None else Decimal(_UNITS[name][unit]))


def _code(value: Decimal | None) -> int | None:
    if value is None:
        return None
    if not value.is_finite() or abs(value) * CODES_PER_UNIT >= _LIMIT:
        raise ValueError(f"{value} is beyond what any meter measures")
    return int((value * CODES_PER_UNIT).to_integral_value())
