"""What a Yokogawa WT310E understands and answers, as far as powerd uses it (IM WT310E-17EN). No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from math import sqrt

from powerd_core.errors import SensorError
from powerd_core.model import Accuracy, Flag

RATES_S = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0)
VOLT_RANGES = {3: (15.0, 30.0, 60.0, 150.0, 300.0, 600.0), 6: (7.5, 15.0, 30.0, 75.0, 150.0, 300.0)}
AMPERE_RANGES = {
    3: (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0),
    6: (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
}
"""Ranges by crest factor."""

UPDATED, INTEGRATING, OVER_RANGE = 0x1, 0x2, 0x40 | 0x80 | 0x100
"""Bits of the condition and extended event registers (section 7.4): UPD, set while an update is being written, so that
its fall is the end; ITG; OVR1, POV1, POA1. A filter's number is its bit's plus one."""

CODES_PER_UNIT = 1_000_000
"""Readings are kept as whole microwatts and micro-watt-hours: the meter's digits, exactly."""
J_PER_ENERGY_CODE = 3600 / CODES_PER_UNIT
W_PER_POWER_CODE = 1 / CODES_PER_UNIT

START_S = 0.2
"""How long the meter is deaf after an integration was started."""

VALUES = ":STAT:EESR?;:STAT:COND?;:NUM:NORM:VAL?"
WAIT = ":COMM:WAIT 1;"
ERRORS = ";:STAT:ERR?"
REPLY_CHARS = 36
"""Length of an answer to `VALUES` with two items, about."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer to `VALUES`. Codes are meaningless where their flag is not 0."""

    is_new: bool
    power: int
    power_flag: Flag
    energy: int
    energy_flag: Flag
    error: str = ""
    """What the meter's error queue said, where it was asked and held anything."""


def parse_reply(text: str, *, with_energy: bool, with_errors: bool) -> Reply:
    """The answer to `VALUES`, with `ERRORS` behind it where ``with_errors``. Raises ValueError for anything else."""
    parts = text.strip().split(";", 3)
    if len(parts) != (4 if with_errors else 3):
        raise ValueError(f"{text!r} has {len(parts)} parts")
    events, condition = int(parts[0]), int(parts[1])
    values = parts[2].split(",")
    if len(values) != (2 if with_energy else 1):
        raise ValueError(f"{text!r} has {len(values)} values")
    power, power_flag = parse_value(values[0])
    if condition & OVER_RANGE or events & OVER_RANGE:
        power_flag |= Flag.SATURATED
    energy, energy_flag = parse_value(values[1]) if with_energy else (0, Flag(0))
    if with_energy and not condition & INTEGRATING:
        energy_flag |= Flag.MISSING
    error = parts[3] if with_errors and parse_error(parts[3])[0] else ""
    return Reply(bool(events & UPDATED), power, power_flag, energy, energy_flag, error)


def parse_value(text: str) -> tuple[int, Flag]:
    """A number of the meter in `CODES_PER_UNIT`, or 0 with the flag that says why there is none. Raises ValueError."""
    try:
        value = Decimal(text.strip())
    except InvalidOperation as error:
        raise ValueError(f"{text!r} is no number") from error
    # Binary formats know 9.9E+37 for "over range" and 9.91E+37 for "no data"; ASCII says INF and NAN.
    if value.is_nan() or value == Decimal("9.91E+37"):
        return 0, Flag.MISSING
    if value.is_infinite() or value.copy_abs() >= Decimal("1E+12"):
        return 0, Flag.SATURATED
    return int((value * CODES_PER_UNIT).to_integral_value()), Flag(0)


def parse_error(text: str) -> tuple[int, str]:
    """Number and words of an answer to ``:STAT:ERR?``; number 0 is none."""
    number, _, words = text.strip().partition(",")
    try:
        return int(number), words.strip('"')
    except ValueError:
        return -1, text


def setup(*, coupling: str, crest_factor: int, volts: float, amperes: float, rate_s: float) -> tuple[str, ...]:
    """Everything that is set before the first reading, in order; each is checked with ``:STAT:ERR?``."""
    return (
        ":COMM:REM ON",
        ":COMM:HEAD OFF",
        ":SYST:COMM:COMM WT300",
        ":COMM:VERB ON",
        ":NUM:FORM ASCII",
        ":HOLD OFF",
        ":MEAS:MHOL OFF",
        ":MEAS:AVER:STAT OFF",
        f":INP:CFAC {crest_factor}",
        f":INP:MODE {coupling}",
        ":INP:VOLT:AUTO OFF",
        ":INP:CURR:AUTO OFF",
        f":INP:VOLT:RANG {volts:g}",
        f":INP:CURR:RANG {amperes:g}",
        f":SAMP:RATE {rate_s:g}",
        ":STAT:FILT1 FALL",
    )


def items(with_energy: bool) -> tuple[str, ...]:
    """What `VALUES` shall answer."""
    wanted = ("P", "WH") if with_energy else ("P",)
    return (f":NUM:NORM:NUM {len(wanted)}", *(f":NUM:NORM:ITEM{i} {name},1" for i, name in enumerate(wanted, 1)))


def exchange_s(baud: int, *, wait: bool) -> float:
    """How long a question and its answer take on a serial line of 10 bits a character."""
    return (len(WAIT if wait else "") + len(VALUES) + REPLY_CHARS + 4) * 10 / baud


POWER_FACTOR = 0.9
"""What the 80 PLUS programme asks of a supply at half its load."""


def accuracy(
    *, model: str, is_dc: bool, crest_factor: int, volts: float, amperes: float, window_ns: int, centre_ns: int
) -> Accuracy:
    """Of the power, as standard uncertainties, from the limits that the maker states for twelve months.

    IM WT310E-02EN and IM WT310-02EN, section 7.3.2. The range of a power is the product of both ranges. A crest factor
    of 6 doubles the share of the range. AC is stated for a power factor of 1; with another, 0.1 % of the reactive power
    are added (the share of the range stays as for 1, which is the larger).
    """
    old, large = "E" not in model.upper(), "H" in model.upper()
    reading = 0.003 if is_dc and large else 0.001
    share = 0.002 if is_dc else 0.001 if old else 0.0005
    if crest_factor == 6:
        share *= 2
    phase = 0.0 if is_dc else 0.001 * sqrt(1 / POWER_FACTOR**2 - 1)
    range_w = volts * amperes
    what = "DC" if is_dc else f"AC of 45-66 Hz, power factor {POWER_FACTOR:g} or more"
    return Accuracy(
        u_gain=(reading + phase) / sqrt(3),
        u_offset_w=share * range_w / sqrt(3),
        step_w=range_w * 1e-5,
        window_ns=window_ns,
        centre_ns=centre_ns,
        origin=(
            f"{model} specification, {what}: "
            f"±({reading + phase:.2%} of reading + {share:.2%} of the {range_w:g} W range)"
        ),
    )


def model_of(identity: str) -> str:
    """The model that an answer to ``*IDN?`` names."""
    return identity.split(",")[1].strip()


def check_identity(text: str) -> str:
    """The answer to ``*IDN?``. Raises `SensorError` when it is not from a WT310E or one of its near relations."""
    maker, _, rest = text.strip().partition(",")
    if maker.upper() != "YOKOGAWA" or not rest.upper().startswith(("WT31", "WT33")):
        raise SensorError(f"the meter says it is {text.strip()!r}, which is no Yokogawa WT310E: choose another source")
    return text.strip()
