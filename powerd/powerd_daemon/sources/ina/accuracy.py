"""How sure a reading of an INA chip on its shunt is, from the limits of both as standard uncertainties, and the
line that says so."""

from __future__ import annotations

from math import hypot, sqrt

from powerd_core.calibration import Calibration
from powerd_core.model import Accuracy, Line, Provenance, ShuntConversion
from powerd_daemon.sources.ina.chips import Settings
from powerd_daemon.sources.ina.sensor import Sensor

_LATCH_NS = 15_000
"""The chip latches a word some SCL periods behind the middle of its transfer (5 of 48, at 400 kHz)."""


def accuracy(sensor: Sensor, settings: Settings, *, period_ns: int, bus_hold: float = 0.0) -> Accuracy:
    """Standard uncertainties from the data sheet's limits, or from the calibration where it states its own.

    ``bus_hold`` is the limit of how far (relative) the bus voltage moves while its last code is held.
    """
    kind, limits, c = settings.type, settings.grade(sensor.grade), sensor.calibration
    bus_step_v = kind.bus_lsb_v * 2 ** kind.adc[settings.bus_adc].bits_lost
    used_bits = 4 if kind.code_bytes > 2 else 3 if kind.name == "INA3221" else 0
    shunt_step_v = settings.shunt.lsb_v * 2 ** (used_bits + kind.adc[settings.shunt_adc].bits_lost)
    # A steady voltage is always rounded the same way and off by the same zero: errors of the gain.
    bus_error = hypot(limits.bus_gain, bus_step_v / 2 / sensor.nominal_v, limits.bus_offset_v / sensor.nominal_v)
    u_gain = hypot(limits.current_gain, bus_error, sensor.shunt_tolerance, bus_hold) / sqrt(3)
    u_offset_w = limits.offset_v[settings.shunt_range] / sqrt(3) / sensor.shunt_ohm * sensor.nominal_v
    origin = f"{kind.name} data sheet {kind.data_sheet}"
    if kind.name == "INA219":
        origin += f", grade {sensor.grade or 'A'}"
    origin += f", limits over temperature; shunt +-{sensor.shunt_tolerance:.2%}"
    if c.u_gain is None and c.u_offset_a is None:
        origin += "; not calibrated" if c == Calibration() else "; calibrated without stated uncertainty"
    else:
        u_gain = u_gain if c.u_gain is None else hypot(c.u_gain, bus_hold / sqrt(3))
        u_offset_w = u_offset_w if c.u_offset_a is None else c.u_offset_a * c.gain * sensor.nominal_v
        origin += f"; {c.what_and_when}"
    tolerance = kind.clock_tolerance
    age_ns, half_ns = settings.age_ns(sensor.channel), settings.cycle_ns / 2
    # When a register is renewed within the sequence is not stated by all data sheets: up to one bus conversion earlier.
    unsure_ns = 0 if kind.renews_at_once else settings.bus_adc_ns
    return Accuracy(
        u_gain=u_gain,
        u_offset_w=u_offset_w,
        step_w=shunt_step_v / sensor.shunt_ohm * sensor.nominal_v,
        window_ns=settings.window_ns,
        centre_ns=round(half_ns + (age_ns + half_ns) * tolerance + _LATCH_NS + unsure_ns),
        update_ns=settings.cycle_ns if settings.cycle_ns > period_ns else 0,
        origin=origin,
    )


def conversion(sensor: Sensor, settings: Settings) -> ShuntConversion:
    """What the raw codes of columns ``shunt`` and ``bus`` mean."""
    kind, c = settings.type, sensor.calibration
    return ShuntConversion(
        sensor.shunt_ohm, settings.shunt.lsb_v, kind.bus_lsb_v, kind.bus_shift, offset_a=c.offset_a, gain=c.gain
    )


def line(
    sensor: Sensor, settings: Settings, device: str, provenance: Provenance, *, period_ns: int, bus_hold: float = 0.0
) -> Line:
    """The sensor as a line of ``device`` unless it names its own."""
    owner = sensor.device or device
    channel = f", channel {sensor.channel}" if len(settings.type.channels) > 1 else ""
    return Line(
        f"{owner}.{sensor.name}",
        owner,
        conversion(sensor, settings),
        provenance,
        accuracy(sensor, settings, period_ns=period_ns, bus_hold=bus_hold),
        f"{sensor.description or sensor.name} ({settings.chip} at {sensor.address:#04x}{channel})",
    )
