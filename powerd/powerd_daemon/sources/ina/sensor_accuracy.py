"""A sensor as the configuration gives it: a channel of a chip with its shunt, its calibration and what it feeds.

Then how sure a reading of it is, from the limits of chip and shunt as standard uncertainties; and the calibration file:
TOML, one ``[[sensor]]`` a sensor, read strictly and written atomically.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import hypot, sqrt
from pathlib import Path
from socket import gethostname

from powerd_core.calibration import Calibration, CalibrationFile
from powerd_core.errors import ConfigError
from powerd_core.model import Accuracy, Line, Provenance, ShuntConversion
from powerd_core.serde import build_options, option, to_document, toml_table
from powerd_daemon.sources.ina.chips import ChipSettings, chip_type
from powerd_daemon.toml_files import read_document, write_text


@dataclass(frozen=True, slots=True)
class Sensor:
    """One table of a source's ``sensors``."""

    name: str = field(metadata={"help": "name of the line, after the device's: gpu0.<name>"})
    address: int = field(metadata={"help": "7-bit address on the bus, such as 0x40"})
    chip: str = option("INA219", "INA219, INA226, INA228 or INA3221")
    channel: int = option(1, "channel of an INA3221: 1 to 3")
    shunt_ohm: float = option(0.05, "resistance of the shunt")
    shunt_tolerance: float = option(0.01, "limit of the shunt's relative error")
    nominal_v: float = option(12.0, "voltage of the line")
    shunt_adc: str = option("", "shunt conversion: INA219 9bit ... avg128, others 140us ...")
    bus_adc: str = option("", "bus voltage conversion, likewise")
    averages: int = option(1, "conversions that are averaged (INA226, INA228; for the INA219 see shunt_adc)")
    shunt_range: str = option("", "such as 320mV (INA219) or 41mV (INA228); empty = widest")
    bus_range: str = option("", "16V or 32V (INA219); empty = widest")
    grade: str = option("", "grade of an INA219: A or B")
    device: str = option("", "device that the line belongs to; empty = the source's")
    description: str = option("", "what the line is, in words")
    calibration: Calibration = option(Calibration(), "what a calibration found")

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("a sensor needs a name")
        kind = chip_type(self.chip)
        first, last = kind.addresses
        if not first <= self.address <= last:
            hexadecimal = int(str(self.address), 16) if self.address >= 0 else 0
            hint = f": did you mean {hexadecimal:#04x}?" if first <= hexadecimal <= last else ""
            raise ConfigError(
                f"{self.name}: address = {self.address} ({self.address:#04x}) is not of an {kind.name}{hint}"
            )
        if not (self.shunt_ohm > 0 and self.nominal_v > 0 and 0 <= self.shunt_tolerance < 1):
            raise ConfigError(f"{self.name}: shunt_ohm and nominal_v must be positive, shunt_tolerance in 0 to 1")
        self.settings_of((self.channel,)).grade(self.grade)

    def settings_of(self, channels: tuple[int, ...]) -> ChipSettings:
        """The chip's settings when these channels of it are converted. Raises `ConfigError`."""
        try:
            return ChipSettings(
                self.chip, self.shunt_adc, self.bus_adc, self.averages, self.shunt_range, self.bus_range, channels
            )
        except ConfigError as error:
            raise ConfigError(f"{self.name}: {error}") from error


@dataclass(frozen=True, slots=True)
class Bank:
    """The sensors of one bus: each with its chip's settings, in the order of the configuration."""

    sensors: tuple[Sensor, ...]
    settings: tuple[ChipSettings, ...]

    def __iter__(self) -> Iterator[tuple[Sensor, ChipSettings]]:
        return zip(self.sensors, self.settings, strict=True)

    @property
    def longest_cycle_ns(self) -> int:
        """After this long, every sensor has a new pair of codes."""
        return max(s.longest_cycle_ns for s in self.settings)


def make_bank(sensors: Sequence[Sensor]) -> Bank:
    """Check that the sensors fit together on one bus. Raises `ConfigError`."""
    if not sensors:
        raise ConfigError("there are no sensors: add [[source.sensors]] with 'name' and 'address'")
    for i, one in enumerate(sensors):
        for other in sensors[:i]:
            if (one.device, one.name) == (other.device, other.name):
                raise ConfigError(f"two sensors are called {one.name!r}: give each its own name")
            if one.address != other.address:
                continue
            if one.channel == other.channel:
                raise ConfigError(f"{other.name} and {one.name} are both at {one.address:#04x}")
            if one.settings_of((1,)) != other.settings_of((1,)):
                raise ConfigError(f"{other.name} and {one.name} share a chip and must have the same settings")
    channels = {s.address: tuple(sorted(o.channel for o in sensors if o.address == s.address)) for s in sensors}
    return Bank(tuple(sensors), tuple(s.settings_of(channels[s.address]) for s in sensors))


# -- how sure a reading is ---------------------------------------------------------------------------------------------

_LATCH_NS = 15_000
"""The chip latches a word some SCL periods behind the middle of its transfer (5 of 48, at 400 kHz)."""


def accuracy(
    sensor: Sensor, settings: ChipSettings, *, period_ns: int, bus_hold: float = 0.0, read_ns: int = 0
) -> Accuracy:
    """Standard uncertainties from the data sheet's limits, or from the calibration where it states its own.

    ``bus_hold`` is the limit of how far (relative) the bus voltage moves while its last code is held, and ``read_ns``
    is how long a slow adapter may take for a read: somewhere in it the chip was read, always at the same place perhaps.
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
        centre_ns=round(half_ns + (age_ns + half_ns) * tolerance + _LATCH_NS + unsure_ns) + read_ns // 2,
        update_ns=settings.cycle_ns if settings.cycle_ns > period_ns else 0,
        origin=origin,
        shared_centre_ns=read_ns // 2,
    )


def conversion(sensor: Sensor, settings: ChipSettings) -> ShuntConversion:
    """What the raw codes of columns ``shunt`` and ``bus`` mean."""
    kind, c = settings.type, sensor.calibration
    return ShuntConversion(
        sensor.shunt_ohm, settings.shunt.lsb_v, kind.bus_lsb_v, kind.bus_shift, offset_a=c.offset_a, gain=c.gain
    )


def line(sensor: Sensor, settings: ChipSettings, device: str, provenance: Provenance, accuracy: Accuracy) -> Line:
    """The sensor as a line of ``device`` unless it names its own."""
    owner = sensor.device or device
    channel = f", channel {sensor.channel}" if len(settings.type.channels) > 1 else ""
    return Line(
        f"{owner}.{sensor.name}",
        owner,
        conversion(sensor, settings),
        provenance,
        accuracy,
        f"{sensor.description or sensor.name} ({settings.chip} at {sensor.address:#04x}{channel})",
    )


# -- the calibration file ----------------------------------------------------------------------------------------------


def bus_number(bus: int | str) -> int | None:
    """N of ``N`` or ``/dev/i2c-N``; None for a path of another form."""
    digits = str(bus).rpartition("-")[2]
    return bus if isinstance(bus, int) else int(digits) if digits.isdigit() else None


def calibrated(
    sensors: Sequence[Sensor], file: CalibrationFile, *, bus: int | str, board: str = "", serial: str = ""
) -> tuple[tuple[Sensor, ...], dict[str, object]]:
    """The sensors with what the file knows of them, and the records used by sensor name, for a stream's ``detail``.

    What a sensor's own table ``calibration`` says counts before the file. Raises `ConfigError` for a record that was
    taken with another shunt or type of chip.
    """
    with_calibration: list[Sensor] = []
    used: dict[str, object] = {}
    number, board = bus_number(bus), board or gethostname()
    for sensor in sensors:
        place = {"bus": -1 if number is None else number, "address": sensor.address, "channel": sensor.channel}
        record = file.find(board=board, serial=serial, **place)
        if record is None or sensor.calibration != Calibration():
            with_calibration.append(sensor)
            continue
        kind = chip_type(sensor.chip).name
        if abs(sensor.shunt_ohm / record.shunt_ohm - 1) > 1e-9 or kind != record.chip:
            raise ConfigError(
                f"{sensor.name}: its calibration was taken with an {record.chip} and shunt_ohm = {record.shunt_ohm:g}, "
                f"not {kind} and {sensor.shunt_ohm:g}: calibrate again, or correct the options"
            )
        with_calibration.append(replace(sensor, calibration=record.option))
        used[sensor.name] = to_document(record)
    return tuple(with_calibration), used


def calibrated_by(
    path: str | Path, sensors: Sequence[Sensor], *, bus: int | str
) -> tuple[tuple[Sensor, ...], dict[str, object]]:
    """`calibrated` by the file at ``path``, which is a source's option ``calibration``: an empty one is no file."""
    return calibrated(sensors, load_calibration(Path(path)) if str(path) else CalibrationFile(), bus=bus)


def load_calibration(path: Path) -> CalibrationFile:
    """What is in a calibration file. Raises `ConfigError`."""
    file = build_options(CalibrationFile, read_document(path), str(path))
    if len({sensor.key for sensor in file.sensor}) < len(file.sensor):
        raise ConfigError(f"{path}: two [[sensor]] tables are of one sensor: remove one")
    return file


_HEAD = """\
# Calibrations of single sensors, written by `powerd calibrate`; load it with: calibration = "{name}"
# zero: read without load. load: read at a known current ("A") or power ("W"). Means are by the nominal conversion.
"""


def save_calibration(path: Path, calibration: CalibrationFile) -> None:
    """Write the file, whole or not at all. Raises `ConfigError` where it cannot be written."""
    tables = [_HEAD.format(name=path.name)]
    for sensor in calibration.sensor:
        tables.append(toml_table("[[sensor]]", sensor))
        tables += [
            toml_table(f"[sensor.{name}]", p)
            for name, p in (("zero", sensor.zero), ("load", sensor.load), ("zero_before", sensor.zero_before))
            if p
        ]
    write_text(path, "\n".join(tables))
