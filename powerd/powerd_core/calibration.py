"""Calibrations of single sensors: what was read against which reference, and what follows for a line.

A calibration changes metadata alone: the ``offset_a`` and ``gain`` of a line's conversion, and its accuracy. Raw codes
stay as they are, so a run taken before can be computed again with the calibration of a later day (`recalibrated`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import hypot, isfinite, sqrt
from typing import Literal

from powerd_core.errors import ConfigError
from powerd_core.model import Accuracy, ShuntConversion
from powerd_core.serde import option, toml_table

SPAN_K = 15.0
"""A calibration is meant to hold this far around the temperature at which it was taken."""
GAIN_DRIFT_PER_K = 100e-6
"""Metal strip shunts drift by 50 to 75 ppm/K, the chips' gains by 10 to 50."""
OFFSET_DRIFT_V_PER_K = 0.2e-6
"""The INA219 drifts by 0.1 uV/K (typical, SBOS448); its relatives by less."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Metadata of a line, never applied to codes: current_a = (shunt_v / shunt_ohm + offset_a) * gain."""

    offset_a: float = option(0.0, "added to the current before the gain")
    gain: float = option(1.0, "factor of the current")
    u_offset_a: float | None = option(
        None, "standard uncertainty of the zero; without it, the data sheet's limit counts"
    )
    u_gain: float | None = option(None, "standard uncertainty of the power's gain; without it, the data sheet's counts")
    date: str = option("", "when it was calibrated, such as '2025-06-30'")
    temperature_c: float | None = option(None, "at which temperature")
    reference: str = option("", "against what")

    @property
    def what_and_when(self) -> str:
        """For an accuracy's origin: what of it states its uncertainty, when and how warm."""
        what = " and ".join(n for n, u in (("gain", self.u_gain), ("zero", self.u_offset_a)) if u is not None)
        when = f"{what} calibrated {self.date or 'at an unknown date'}"
        return when if self.temperature_c is None else f"{when} at {self.temperature_c:g} C"

    def __post_init__(self) -> None:
        if self.gain <= 0:
            raise ConfigError(f"calibration: gain = {self.gain:g} must be positive")
        if min(self.u_offset_a or 0.0, self.u_gain or 0.0) < 0:
            raise ConfigError("calibration: u_offset_a and u_gain must not be negative")


@dataclass(frozen=True, slots=True)
class Point:
    """Readings of one sensor at one known load, averaged."""

    taken: str
    """Date and time in UTC, as ``2025-03-14T09:26:53Z``."""
    temperature_c: float
    reference: float
    """The true current or power; 0 for no load."""
    quantity: Literal["A", "W"]
    u_reference: float
    """Relative standard uncertainty of the reference."""
    count: int
    mean_a: float
    """Mean current by the nominal conversion: no offset, gain 1."""
    spread_a: float
    """Standard deviation of the single readings."""
    bus_v: float
    """Mean bus voltage."""

    def __post_init__(self) -> None:
        if self.count < 2:
            raise ValueError(f"option 'count': a mean of {self.count} readings has no spread")
        if min(self.reference, self.u_reference, self.spread_a) < 0:
            raise ValueError("options 'reference', 'u_reference' and 'spread_a' must not be negative")

    @property
    def u_mean_a(self) -> float:
        """Standard uncertainty of the mean as far as the readings scatter."""
        return self.spread_a / sqrt(self.count)


@dataclass(frozen=True, slots=True)
class SensorCalibration:
    """What is known of one sensor: its zero, and its gain from a loaded point.

    ``serial`` names what the sensor belongs to (a serial node) wherever that is plugged in; the others belong to a
    board. Of either, ``bus`` (a node's I2C controller), address and channel say which sensor it is. Raises ValueError
    where the points contradict each other.
    """

    line: str
    """The line that it fed when it was calibrated; for people."""
    chip: str
    shunt_ohm: float
    """The nominal resistance with which ``mean_a`` was computed."""
    step_a: float
    """Quantisation step of a current reading."""
    u_bus: float
    """Relative standard uncertainty of the bus voltage, as the data sheet has it."""
    u_bus_step: float
    """The part of it that comes from rounding to codes."""
    board: str = ""
    bus: int = -1
    address: int = -1
    channel: int = 1
    serial: str = ""
    zero: Point | None = None
    load: Point | None = None
    zero_before: Point | None = None
    """The zero of the calibration before: how far it has moved is how far it may move again."""

    def __post_init__(self) -> None:
        if min(self.shunt_ohm, self.step_a) <= 0 or min(self.u_bus, self.u_bus_step) < 0:
            raise ValueError("options 'shunt_ohm' and 'step_a' must be positive, 'u_bus' and 'u_bus_step' not negative")
        if any(zero is not None and zero.reference != 0 for zero in (self.zero, self.zero_before)):
            raise ValueError("option 'zero': its reference is not 0")
        if self.load is not None and not (self.load.reference > 0 and self._load_a > 0):
            raise ValueError("option 'load': a gain needs a reference and a mean current above 0")
        try:
            is_finite = all(map(isfinite, (self.offset_a, self.gain, self.u_offset_a or 0.0, self.u_gain or 0.0)))
        except (ZeroDivisionError, OverflowError):
            is_finite = False
        if not (is_finite and self.gain > 0):
            raise ValueError("options 'zero' and 'load': no finite offset and positive gain follow from these figures")

    @property
    def key(self) -> tuple[object, ...]:
        """Two calibrations of one key are of the same sensor."""
        return ("", self.serial) if self.serial else (self.board, ""), self.bus, self.address, self.channel

    @property
    def offset_a(self) -> float:
        return -self.zero.mean_a if self.zero else 0.0

    @property
    def gain(self) -> float:
        if self.load is None:
            return 1.0
        scale = self.load.bus_v if self.load.quantity == "W" else 1.0
        return self.load.reference / (scale * self._load_a)

    @property
    def u_offset_a(self) -> float | None:
        """Standard uncertainty of the zero in amperes; None without a zero point."""
        if self.zero is None:
            return None
        drift_a = OFFSET_DRIFT_V_PER_K * SPAN_K / sqrt(3) / self.shunt_ohm
        # Readings that do not scatter over several codes leave the true mean anywhere within a step.
        return hypot(self.zero.u_mean_a, self.step_a / 2 / sqrt(3), drift_a)

    @property
    def zero_moved_a(self) -> float | None:
        """How far the zero has moved since the calibration before; None without two."""
        if self.zero is None or self.zero_before is None:
            return None
        return self.zero.mean_a - self.zero_before.mean_a

    @property
    def is_drifted(self) -> bool:
        """Whether it has moved by more than the uncertainties (k = 2) of both zeros explain."""
        moved_a, u_a = self.zero_moved_a, self.u_offset_a
        return moved_a is not None and u_a is not None and abs(moved_a) > 2 * sqrt(2) * u_a

    @property
    def u_gain(self) -> float | None:
        """Relative standard uncertainty of the power's gain; None without a loaded point.

        A reference of current says nothing on the bus voltage, whose gain stays that of the data sheet. A reference of
        power settles both, up to the voltage's rounding then and at any other voltage later.
        """
        if self.load is None:
            return None
        mean_a = hypot(self.load.u_mean_a, self.step_a / 2 / sqrt(3), self.u_offset_a or 0.0)
        bus = self.u_bus if self.load.quantity == "A" else self.u_bus_step * sqrt(2)
        return hypot(self.load.u_reference, mean_a / self._load_a, GAIN_DRIFT_PER_K * SPAN_K / sqrt(3), bus)

    @property
    def _load_a(self) -> float:
        assert self.load is not None
        return self.load.mean_a + self.offset_a

    @property
    def option(self) -> Calibration:
        """What it amounts to, as the option ``calibration`` of a sensor."""
        points = [(p.taken[:10], name, p) for name, p in (("zero", self.zero), ("gain", self.load)) if p]
        days = {day for day, _, _ in points}
        date = days.pop() if len(days) == 1 else ", ".join(f"{day} ({name})" for day, name, _ in points)
        reference = ""
        if self.load is not None:
            reference = f"{self.load.reference:.6g} {self.load.quantity} +-{self.load.u_reference:.2%} (standard)"
        return Calibration(
            offset_a=self.offset_a,
            gain=self.gain,
            u_offset_a=self.u_offset_a,
            u_gain=self.u_gain,
            date=date,
            temperature_c=max(points, key=lambda row: row[2].taken)[2].temperature_c if points else None,
            reference=reference,
        )


@dataclass(frozen=True, slots=True)
class CalibrationFile:
    """All sensors of a calibration file."""

    sensor: tuple[SensorCalibration, ...] = ()

    def find(
        self, *, board: str = "", bus: int = -1, address: int = -1, channel: int = 1, serial: str = ""
    ) -> SensorCalibration | None:
        """The calibration of one sensor, or None.

        A record without a board and serial is of any board that has none of its own, but of no node.
        """
        place = bus, address, channel
        same = [s for s in self.sensor if s.serial == serial and (s.bus, s.address, s.channel) == place]
        boards = [s for name in (board, "") for s in same if serial or s.board == name]
        return boards[0] if boards else None

    def with_sensor(self, new: SensorCalibration) -> CalibrationFile:
        """The same with ``new`` in place of what was known of that sensor."""
        kept = tuple(s for s in self.sensor if s.key != new.key)
        return CalibrationFile((*kept, new))


@dataclass(frozen=True, slots=True)
class GpuResponse:
    """How the driver of one GPU sees its power, as `powerd identify` found it: a low-pass, a window, or both.

    In milliseconds; ``u95_…`` is half of a 95 % interval.
    """

    uuid: str
    driver: str
    """Its version: another one may see power otherwise."""
    field: Literal["nvml_samples", "nvml"]
    """The line's name behind the GPU's."""
    family: str
    tau_ms: float
    u95_tau_ms: float
    window_ms: float
    u95_window_ms: float
    age_ms: float
    """How long before a reading is taken or renewed lies the centre of what it shows."""
    u95_age_ms: float
    delay_ms: float
    """The same of the newest power that it shows."""
    u95_delay_ms: float
    residual_w: float
    """Standard deviation of readings that the fit did not see."""
    taken: str
    """Date and time in UTC."""

    def __post_init__(self) -> None:
        if min(self.tau_ms, self.window_ms, self.u95_tau_ms, self.u95_window_ms, self.u95_age_ms) < 0:
            raise ValueError("options 'tau_ms', 'window_ms' and all 'u95' must not be negative")
        if not (max(self.tau_ms, self.window_ms) <= 10_000 and abs(self.age_ms) <= 10_000):
            raise ValueError("options 'tau_ms', 'window_ms' and 'age_ms': at most 10 s")

    @property
    def text(self) -> str:
        shown = [f"low-pass {self.tau_ms:.2f} ± {self.u95_tau_ms:.2f} ms"] if self.tau_ms else []
        shown += [f"window {self.window_ms:.1f} ± {self.u95_window_ms:.1f} ms"] if self.window_ms else []
        return ", ".join([*shown, f"delay {self.delay_ms:.2f} ± {self.u95_delay_ms:.2f} ms"])


@dataclass(frozen=True, slots=True)
class GpuGain:
    """What the driver's power of one GPU is to be multiplied by, as a reference said (`powerd calibrate gpu0`)."""

    uuid: str
    field: Literal["nvml_samples", "nvml", "nvml_energy"]
    gain: float
    u_gain: float
    """Relative standard uncertainty."""
    reference: str
    """For people."""
    taken: str

    def __post_init__(self) -> None:
        if not 0.5 <= self.gain <= 2 or not 0 <= self.u_gain < 1:
            raise ValueError(
                "options 'gain' and 'u_gain': a gain lies between 0.5 and 2, its uncertainty between 0 and 1"
            )


@dataclass(frozen=True, slots=True)
class GpuFile:
    """What was found of GPUs: their responses by UUID, driver and field, their gains by UUID and field."""

    response: tuple[GpuResponse, ...] = ()
    gain: tuple[GpuGain, ...] = ()

    def of(self, uuid: str, driver: str) -> GpuFile:
        """What is known of one GPU with this driver."""
        return GpuFile(
            tuple(r for r in self.response if (r.uuid, r.driver) == (uuid, driver)),
            tuple(g for g in self.gain if g.uuid == uuid),
        )

    def with_new(self, new: GpuFile) -> GpuFile:
        """With ``new`` in place of what was known of the same."""
        responses = {(r.uuid, r.driver, r.field): r for r in (*self.response, *new.response)}
        gains = {(g.uuid, g.field): g for g in (*self.gain, *new.gain)}
        return GpuFile(tuple(responses.values()), tuple(gains.values()))


GPUS_FILE = "gpus.toml"
"""What a `GpuFile` is called in the directory of powerd's keys, where the source nvml finds it."""
_GPUS_HEAD = """\
# What `powerd identify` and `powerd calibrate gpu0` found of GPUs; the source nvml reads it here, or where its option
# calibration says.
"""


def gpus_text(file: GpuFile) -> str:
    """The contents of the file."""
    tables = [toml_table(f"[[{name}]]", row) for name in ("response", "gain") for row in getattr(file, name)]
    return "\n".join([_GPUS_HEAD, *tables])


def recalibrated(
    conversion: ShuntConversion, accuracy: Accuracy, record: SensorCalibration, *, nominal_v: float, bus_hold: float
) -> tuple[ShuntConversion, Accuracy]:
    """A line's conversion and accuracy as its source would have described them with ``record``.

    ``bus_hold`` is the limit of how far (relative) a bus voltage moved while its code was held. Raises ValueError where
    the record cannot replace what the line was recorded with: taken with another shunt, or lacking a zero or a gain
    that the line has, whose data-sheet uncertainty nobody knows any more.
    """
    if abs(conversion.shunt_ohm / record.shunt_ohm - 1) > 1e-9:
        raise ValueError(
            f"its calibration was taken with shunt_ohm = {record.shunt_ohm:g}, the run with {conversion.shunt_ohm:g}"
        )
    lacks_zero = record.zero is None and conversion.offset_a != 0
    if lacks_zero or (record.load is None and conversion.gain != 1):
        missing = "zero" if lacks_zero else "gain"
        raise ValueError(f"it was recorded with a calibrated {missing}, which the file lacks: calibrate that too")
    new, u_gain, u_offset_w = record.option, accuracy.u_gain, accuracy.u_offset_w
    if new.u_gain is not None:
        u_gain = hypot(new.u_gain, bus_hold / sqrt(3))
    if new.u_offset_a is not None:
        u_offset_w = new.u_offset_a * new.gain * nominal_v
    # What it says last is how the line was calibrated.
    origin = accuracy.origin.rpartition("; ")[0] or accuracy.origin
    return (
        replace(conversion, offset_a=new.offset_a, gain=new.gain),
        replace(
            accuracy, u_gain=u_gain, u_offset_w=u_offset_w, origin=f"{origin}; recomputed with {new.what_and_when}"
        ),
    )
