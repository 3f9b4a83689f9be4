"""`powerd calibrate`: whether readings at a known load will do for a calibration, and the record that follows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import hypot, sqrt
from statistics import fmean, stdev
from time import gmtime, strftime
from typing import Literal

from powerd_core.calibration import Calibration, Point, SensorCalibration
from powerd_core.errors import SensorError
from powerd_daemon.calibration_readings import Readings
from powerd_daemon.ina.sensor import Sensor, accuracy
from powerd_daemon.ina.settings import Settings

PARTS = 10
MIN_COUNT = 200
MAX_BAD = 0.1
WANDER_STEPS = 2.0
WANDER_SHARE = 0.002
"""The means of ten equal parts of the readings may differ by two quantisation steps or 0.2 % of the mean."""
IMPLAUSIBLE = 3.0
"""An offset or a gain that is off by more than so many data-sheet limits is a mistake of the set-up."""


@dataclass(frozen=True, slots=True)
class Reference:
    """What is known of the load. A value of 0 is no load at all."""

    value: float
    quantity: Literal["A", "W"] = "A"
    u: float = 0.0
    """Relative standard uncertainty."""


@dataclass(frozen=True, slots=True)
class Means:
    """What is left of a line's readings in a calibration."""

    line: str
    count: int
    mean_a: float
    spread_a: float
    bus_v: float

    @staticmethod
    def of(line: str, readings: Readings) -> Means:
        """The means of at least two readings."""
        currents = readings.current_a
        return Means(line, len(currents), fmean(currents), stdev(currents), fmean(readings.bus_v))


def judge(line: str, readings: Readings, step_a: float) -> None:
    """Refuse what a calibration must not rest on. Raises `SensorError`."""
    count = len(readings.current_a)
    everything = count + readings.bad + readings.saturated
    if readings.saturated:
        raise SensorError(
            f"{line}: {readings.saturated} of {everything} readings stand at full scale: lower the current, "
            "or choose a wider range or a smaller shunt"
        )
    if readings.bad > MAX_BAD * everything:
        raise SensorError(f"{line}: {readings.bad} of {everything} readings failed: run `powerd check` first")
    if count < MIN_COUNT:
        raise SensorError(f"{line}: {count} readings are too few, {MIN_COUNT} are needed: give more --seconds")
    part = count // PARTS
    means = [fmean(readings.current_a[i * part : (i + 1) * part]) for i in range(PARTS)]
    wander_a = max(means) - min(means)
    # Means of parts differ by their scatter alone, about three standard deviations between the ends of ten.
    scatter_a = 5 * stdev(readings.current_a) / sqrt(part)
    limit_a = max(WANDER_STEPS * step_a, WANDER_SHARE * abs(fmean(means)))
    if wander_a > max(limit_a, min(scatter_a, 3 * limit_a)):
        raise SensorError(
            f"{line}: the readings wander by {wander_a * 1000:.3g} mA within {count} of them, more than "
            f"{limit_a * 1000:.3g} mA: wait until the load and the temperature are steady"
        )


def calibrate(
    before: SensorCalibration | None,
    sensor: Sensor,
    settings: Settings,
    readings: Readings,
    reference: Reference,
    *,
    line: str,
    board: str,
    bus: int,
    serial: str = "",
    wall_ns: int,
    temperature_c: float,
    period_ns: int,
) -> SensorCalibration:
    """The sensor's record with a new zero or a new loaded point. Raises `SensorError` for readings that will not do."""
    judge(line, readings, _step_a(sensor, settings, period_ns))
    means = Means.of(line, readings)
    return make_record(
        before,
        sensor,
        settings,
        means,
        reference,
        board=board,
        bus=bus,
        serial=serial,
        wall_ns=wall_ns,
        temperature_c=temperature_c,
        period_ns=period_ns,
    )


def make_record(
    before: SensorCalibration | None,
    sensor: Sensor,
    settings: Settings,
    means: Means,
    reference: Reference,
    *,
    board: str,
    bus: int,
    serial: str = "",
    wall_ns: int,
    temperature_c: float,
    period_ns: int,
) -> SensorCalibration:
    """The same from means of readings that have been judged. Raises `SensorError` for what no sensor can have."""
    line = means.line
    point = Point(
        taken=strftime("%Y-%m-%dT%H:%M:%SZ", gmtime(wall_ns // 1_000_000_000)),
        temperature_c=temperature_c,
        reference=reference.value,
        quantity=reference.quantity,
        u_reference=reference.u,
        count=means.count,
        mean_a=means.mean_a,
        spread_a=means.spread_a,
        bus_v=means.bus_v,
    )
    kind, limits = settings.type, settings.grade(sensor.grade)
    bus_rounding = kind.bus_lsb_v * 2 ** kind.adc[settings.bus_adc].bits_lost / 2 / sensor.nominal_v
    record = SensorCalibration(
        line=line,
        chip=kind.name,
        shunt_ohm=sensor.shunt_ohm,
        step_a=_step_a(sensor, settings, period_ns),
        u_bus=hypot(limits.bus_gain, bus_rounding, limits.bus_offset_v / sensor.nominal_v) / sqrt(3),
        u_bus_step=bus_rounding / sqrt(3),
        board="" if serial else board,
        bus=bus,
        address=sensor.address,
        channel=sensor.channel,
        serial=serial,
        zero=before.zero if before else None,
        load=before.load if before else None,
    )
    if reference.value == 0:
        limit_a = IMPLAUSIBLE * limits.offset_v[settings.shunt_range] / sensor.shunt_ohm
        if abs(point.mean_a) > limit_a:
            raise SensorError(
                f"{line}: {point.mean_a * 1000:.4g} mA without load is more than any zero error "
                f"({limit_a * 1000:.3g} mA is three times the data sheet's limit): disconnect the load"
            )
        return replace(record, zero=point)
    try:
        made = replace(record, load=point)
    except ValueError as error:
        raise SensorError(f"{line}: {error}: is the load on, and does the current flow from IN+ to IN-?") from error
    limit = IMPLAUSIBLE * hypot(limits.current_gain, sensor.shunt_tolerance, limits.bus_gain)
    if abs(made.gain - 1) > limit:
        raise SensorError(
            f"{line}: a gain of {made.gain:.4f} is further from 1 than three times all limits ({limit:.1%}): "
            "check the reference, shunt_ohm, and that the load is on this line"
        )
    return made


def _step_a(sensor: Sensor, settings: Settings, period_ns: int) -> float:
    uncalibrated = accuracy(replace(sensor, calibration=Calibration()), settings, period_ns=period_ns)
    return uncalibrated.step_w / sensor.nominal_v
