"""What raw codes mean: metadata of a line, never applied to what is stored."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShuntConversion:
    """Power from a shunt and a bus voltage code (INA219 family).

    bus_v = (bus >> bus_shift) * bus_lsb_v;  current_a = (shunt * shunt_lsb_v / shunt_ohm + offset_a) * gain.
    """

    shunt_ohm: float
    shunt_lsb_v: float
    bus_lsb_v: float
    bus_shift: int = 0
    offset_a: float = 0.0
    gain: float = 1.0
    shunt: str = "shunt"
    bus: str = "bus"


@dataclass(frozen=True, slots=True)
class ScaledConversion:
    """Power as a code times a constant: power_w = codes[column] * w_per_code."""

    column: str
    w_per_code: float


@dataclass(frozen=True, slots=True)
class CounterConversion:
    """Energy from a cumulative counter of ``bits`` bits that wraps around.

    energy_j(t) = (codes[column] - first) * j_per_code + background_w * (t - t_first).
    """

    column: str
    j_per_code: float
    background_w: float = 0.0
    bits: int = 64


@dataclass(frozen=True, slots=True)
class QuantityConversion:
    """Something that is neither power nor energy, such as a temperature: value = codes[column] * per_code.

    ``quantity`` names what it is and its unit, such as ``temperature_c``. Where it ends in ``_bits`` each bit of the
    code is a yes or no of its own, named in the stream's ``detail["bits"][line]`` (an object of bit values by name).
    Such a line is shown beside powers and never feeds a device.
    """

    column: str
    quantity: str
    per_code: float = 1.0


Conversion = ShuntConversion | ScaledConversion | CounterConversion | QuantityConversion


def quantity_of(conversion: Conversion) -> str:
    """What a conversion gives, and its unit: ``power_w``, ``energy_j`` or a name such as ``temperature_c``."""
    match conversion:
        case CounterConversion():
            return "energy_j"
        case QuantityConversion():
            return conversion.quantity
    return "power_w"
