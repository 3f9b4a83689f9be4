"""A run file as frozen data: what was measured, when, and which phases it had.

Readings are loaded when they are asked for, whole or by range. Lines that are neither power nor energy (clocks, limits,
temperatures) are gone through a piece at a time. With `recalibrate` a run is computed again with the calibrations of a
later day: raw codes stay, what they mean is replaced.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from powerd_analytics.runs.phases import Phases, read_phases
from powerd_client.clock_map import check_times
from powerd_client.runfile import TIMES, open_run, read_json, read_objects, read_texts, reading, texts_of
from powerd_core.calibration import CalibrationFile, SensorCalibration, recalibrated
from powerd_core.errors import AnalysisError, ConfigError, RunFileError, WireError
from powerd_core.model import BAD, Accuracy, Conversion, Provenance, QuantityConversion, ShuntConversion, quantity_of
from powerd_core.serde import MAX_PERIOD_NS, check_conversion, from_document

Ints = NDArray[np.int64]
Progress = Callable[[float, str], None]
"""Called with the share done (0 to 1) and what is being done."""


def no_progress(share: float, text: str) -> None:
    """Progress that nobody watches."""


@dataclass(frozen=True, slots=True)
class RunClock:
    """Guaranteed half-width of the mapping of one board's clock at host times ``t_ns`` (both [x])."""

    board: str
    drift_ppm: float
    t_ns: NDArray[np.float64]
    half_width_ns: NDArray[np.float64]
    steps: int
    """Clock steps seen: pieces of the mapping less one."""

    def bound_ns(self, t_ns: Ints) -> NDArray[np.float64]:
        """Guaranteed bound at host times: the nearer knots' half-widths, widened by the drift since them."""
        if not len(self.t_ns):
            return np.zeros(len(t_ns))
        after = np.searchsorted(self.t_ns, t_ns)
        bounds = [
            self.half_width_ns[near] + np.abs(t_ns - self.t_ns[near]) * self.drift_ppm * 1e-6
            for near in (np.clip(after - 1, 0, None), np.clip(after, None, len(self.t_ns) - 1))
        ]
        return np.minimum(*bounds)


def read_clock(group: h5py.Group) -> RunClock:
    """The mapping of one clock of a run file. Raises ValueError for times that no clock shows."""
    offsets, t_board = group["map"][:].reshape(-1, 3), group["map_t_board_ns"][:]
    pieces, drift_ppm = group["map_piece"][:], float(group.attrs.get("drift_ppm", 100.0))
    check_times(t_board, "a clock exchange")
    t_host = t_board + offsets[:, 0]
    order = np.argsort(t_host, kind="stable")
    # The estimate need not lie in the middle of its bound: the farther end counts.
    half = np.maximum(offsets[:, 2] - offsets[:, 0], offsets[:, 0] - offsets[:, 1])
    return RunClock(
        board=_text(group.attrs.get("board", "")),
        drift_ppm=drift_ppm,
        t_ns=t_host[order],
        half_width_ns=half[order],
        steps=max(0, len(np.unique(pieces)) - 1),
    )


def pick(name: str, known: Iterable[str], what: str) -> str:
    """``name`` if it is known, else an `AnalysisError` that offers the nearest or all names there are."""
    names = list(known)
    if name in names:
        return name
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"this run has {', '.join(map(repr, names)) or 'none'}"
    raise AnalysisError(f"no {what} {name!r}: {hint}")


@dataclass(frozen=True, slots=True)
class Readings:
    """Readings of one line: int64 times [n], uint16 flags [n], raw codes by column [n]."""

    t_ns: Ints
    flags: NDArray[np.uint16]
    codes: Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class LineReader:
    """Ranges of one line's readings, from a file that somebody keeps open."""

    name: str
    group: h5py.Group

    def readings(self, first: int, last: int, columns: Iterable[str] | None = None) -> Readings:
        """Readings ``first`` to ``last - 1`` with these columns, or all. Raises ValueError for times that no clock
        shows."""
        t_ns = self.group["t_ns"][first:last].astype(np.int64, copy=False)
        check_times(t_ns, f"a reading of line {self.name!r}")
        wanted = set(self.group) - set(TIMES) if columns is None else set(columns) & set(self.group)
        codes = {name: self.group[name][first:last] for name in wanted}
        return Readings(t_ns, self.group["flags"][first:last].astype(np.uint16, copy=False), codes)


@dataclass(frozen=True, slots=True)
class RunLine:
    """One line of a run without its readings; `Run.readings` loads them."""

    name: str
    device: str
    source: str
    board: str
    provenance: Provenance
    quantity: str
    """``power_w``, ``energy_j``, or what it is that is neither, such as ``temperature_c``."""
    description: str
    period_ns: int
    conversion: Conversion
    accuracy: Accuracy
    detail: Mapping[str, Any]
    clock: str
    count: int
    """Readings in the file, good and bad."""

    @property
    def sensor(self) -> Mapping[str, Any]:
        """What the line's source says of the sensor behind it (its chip, its shunt); empty where it says nothing."""
        sensors = self.detail.get("sensors")
        for sensor in sensors if isinstance(sensors, list | tuple) else ():
            if isinstance(sensor, Mapping) and self.name.endswith(f".{sensor.get('name')}"):
                return sensor
        return {}

    @property
    def is_auxiliary(self) -> bool:
        """An auxiliary channel, neither power nor energy: shown, never summed or compared."""
        return isinstance(self.conversion, QuantityConversion)


@dataclass(frozen=True, slots=True)
class RunDevice:
    """A device and the lines whose sum is its power."""

    name: str
    feeds: tuple[str, ...]
    description: str = ""
    uuid: str = ""
    pci: str = ""
    """Which GPU it is, where its board says so."""


@dataclass(frozen=True, slots=True)
class RunGap:
    """Readings that are missing, and why. ``lost`` is -1 when nobody knows how many."""

    stream: str
    lines: tuple[str, ...]
    begin_ns: int
    end_ns: int
    lost: int
    cause: str


@dataclass(frozen=True, slots=True)
class Run:
    """One recording. Times are on the host's clock; ``attributes`` are those of the file's root."""

    path: Path
    attributes: Mapping[str, Any]
    lines: Mapping[str, RunLine]
    devices: Mapping[str, RunDevice]
    phases: Phases
    clocks: Mapping[str, RunClock]
    gaps: tuple[RunGap, ...] = ()
    processes: tuple[Mapping[str, Any], ...] = ()
    messages: tuple[Mapping[str, Any], ...] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)
    command: tuple[str, ...] = ()

    @property
    def begin_ns(self) -> int:
        """Start of the recording, host's clock."""
        return int(self.attributes["t_start_ns"])

    @property
    def end_ns(self) -> int:
        """End of the recording, host's clock."""
        return int(self.attributes["t_stop_ns"])

    @property
    def is_complete(self) -> bool:
        """False when the training process vanished or a part of the recording was cut off."""
        return bool(self.attributes.get("complete", 1))

    def line(self, name: str) -> RunLine:
        """The line of that name. Raises `AnalysisError` with a suggestion for an unknown one."""
        return self.lines[pick(name, self.lines, "line")]

    def device(self, name: str) -> RunDevice:
        """The device of that name. Raises `AnalysisError` with a suggestion for an unknown one."""
        return self.devices[pick(name, self.devices, "device")]

    def readings(self, line: str) -> Readings:
        """All readings of a line, read from the file now. Raises `RunFileError`, `AnalysisError`."""
        with self.reader(line) as read:
            return read.readings(0, self.line(line).count)

    @contextmanager
    def reader(self, line: str) -> Iterator[LineReader]:
        """The readings of a line by range, from a file that stays open meanwhile. Raises as `readings` does."""
        name = self.line(line).name
        with open_run(self.path) as file, reading(self.path):
            yield LineReader(name, file["lines"][name])

    def compared(self, device: str) -> tuple[str, ...]:
        """Lines that measure the device by other means: compared with it, never added to it."""
        feeds = self.device(device).feeds
        return tuple(
            n for n, line in self.lines.items() if line.device == device and n not in feeds and not line.is_auxiliary
        )

    def auxiliary(self, device: str) -> tuple[str, ...]:
        """Auxiliary channels of the device: temperatures, clocks, limits."""
        name = self.device(device).name
        return tuple(n for n, line in self.lines.items() if line.device == name and line.is_auxiliary)


def read_run(path: str | Path, *, progress: Progress = no_progress) -> Run:
    """Open a run file and read everything but its readings; ``progress`` is told when it has to be built first.

    Raises `RunFileError` for a file that is missing, no run, cut off or of another version.
    """
    path = Path(path)
    building = "building the run file from its journal"
    with open_run(path, progress=lambda share: progress(share, building)) as file, reading(path):
        return _read(path, file)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _read(path: Path, file: h5py.File) -> Run:
    attributes = {k: (_text(v) if isinstance(v, bytes | str) else v) for k, v in file.attrs.items()}
    for name in ("t_start_ns", "t_stop_ns", "complete", "rebuilt"):
        if name in attributes:
            attributes[name] = int(attributes[name])
    check_times(np.array([attributes["t_start_ns"], attributes["t_stop_ns"]]), "an end of the run")
    if attributes["t_stop_ns"] < attributes["t_start_ns"]:
        raise ValueError("the run stops before it starts")
    devices = {
        name: RunDevice(
            name,
            tuple(texts_of(g.attrs["feeds"])),
            *(_text(g.attrs.get(key, "")) for key in ("description", "uuid", "pci")),
        )
        for name, g in file["devices"].items()
    }
    lines = {name: _line(path, name, g) for name, g in file["lines"].items()}
    for device in devices.values():
        for name in device.feeds:
            if name not in lines or lines[name].is_auxiliary:
                raise RunFileError(f"{path}: device {device.name!r} is fed by {name!r}, which is no line of power")
    return Run(
        path=path,
        attributes=attributes,
        lines=lines,
        devices=devices,
        phases=read_phases(file["phases"]),
        clocks={name: read_clock(g) for name, g in file["clocks"].items()},
        gaps=_gaps(file["gaps"]),
        processes=tuple(read_objects(file["processes"])) if "processes" in file else (),
        messages=tuple(read_objects(file["messages"])),
        environment=dict(read_json(attributes.get("environment") or "{}")),
        command=tuple(str(word) for word in read_json(attributes.get("command") or "[]")),
    )


def _line(path: Path, name: str, group: h5py.Group) -> RunLine:
    a = group.attrs
    try:
        conversion: Conversion = from_document(Conversion, read_json(a["conversion"]), "conversion")  # type: ignore[arg-type]
        accuracy = from_document(Accuracy, read_json(a["accuracy"]), "accuracy")
        check_conversion(conversion, accuracy, list(group), f"line {name!r}")
    except WireError as error:
        raise RunFileError(f"{path}: line {name!r}: {error}") from error
    period_ns = int(a["period_ns"])
    if not 0 < period_ns < MAX_PERIOD_NS:
        raise ValueError(f"line {name!r} has a reading every {period_ns} ns")
    return RunLine(
        name=name,
        device=_text(a["device"]),
        source=_text(a["source"]),
        board=_text(a["board"]),
        provenance=Provenance(_text(a["provenance"])),
        quantity=quantity_of(conversion),
        description=_text(a.get("description", "")),
        period_ns=period_ns,
        conversion=conversion,
        accuracy=accuracy,
        detail=dict(read_json(a.get("detail") or "{}")),
        clock=_text(a.get("clock", "")),
        count=len(group["t_ns"]),
    )


def _gaps(group: h5py.Group) -> tuple[RunGap, ...]:
    texts = [read_texts(group[name]) for name in ("stream", "lines", "cause")]
    numbers = [group[name][:].astype(np.int64) for name in ("begin_ns", "end_ns", "lost")]
    for column in numbers[:2]:
        check_times(column, "a gap")
    return tuple(
        RunGap(s, tuple(str(n) for n in read_json(names)), b, e, lost, cause)
        for s, names, cause, b, e, lost in zip(*texts, *(n.tolist() for n in numbers), strict=True)
    )


AT_A_TIME = 1 << 20
"""Readings that are in memory together."""


@dataclass(frozen=True, slots=True)
class GoodReadings:
    """The good ones [n] of some readings in a row: host times and raw codes by column."""

    t_ns: Ints
    codes: Mapping[str, NDArray[Any]]
    bad: int
    """Readings among them that are flagged, and left out."""


def good_pieces(run: Run, name: str, column: str, *others: str) -> Iterator[GoodReadings]:
    """A line's good readings in the order of the file, with ``column`` and those of ``others`` that there are.

    Raises `RunFileError`, and `AnalysisError` for an unknown line or one without that column.
    """
    count = run.line(name).count
    with run.reader(name) as reader:
        for first in range(0, count, AT_A_TIME):
            readings = reader.readings(first, min(first + AT_A_TIME, count), (column, *others))
            if column not in readings.codes:
                raise AnalysisError(f"line {name!r} has no column {column!r}, which its conversion needs")
            good = (readings.flags & np.uint16(int(BAD))) == 0
            codes = {key: values[good] for key, values in readings.codes.items()}
            yield GoodReadings(readings.t_ns[good], codes, len(good) - int(np.count_nonzero(good)))


class CodeCounts:
    """How often each code came. Of a hundred million readings of a clock or a limit there are few different ones."""

    def __init__(self, pieces: Iterable[NDArray[Any]] = ()) -> None:
        self._codes, self._counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
        for codes in pieces:
            self.add(codes)

    def add(self, codes: NDArray[Any]) -> None:
        """More codes [n], of whole numbers."""
        new, counts = np.unique(codes, return_counts=True)
        if not len(self._codes):
            self._codes, self._counts = new, counts.astype(np.int64)
            return
        self._codes, place = np.unique(np.concatenate([self._codes, new]), return_inverse=True)
        both = np.concatenate([self._counts, counts])
        self._counts = np.bincount(place.ravel(), both, len(self._codes)).astype(np.int64)

    def __len__(self) -> int:
        return int(self._counts.sum())

    def median(self) -> float:
        """The middle one of all codes, or the mean of the middle two. There is at least one."""
        upto, n = np.cumsum(self._counts), len(self)
        low, high = (self._codes[np.searchsorted(upto, k, "right")] for k in ((n - 1) // 2, n // 2))
        return (float(low) + float(high)) / 2

    def largest(self) -> float:
        """The largest code. There is at least one."""
        return float(self._codes[-1])


def read_calibration(path: Path) -> CalibrationFile:
    """A file that `powerd calibrate` wrote. Raises `ConfigError`."""
    try:
        return from_document(CalibrationFile, tomllib.loads(path.read_text(encoding="utf-8")), str(path))
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such calibration file: make it with `powerd calibrate`") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except WireError as error:
        raise ConfigError(str(error)) from error
    except ValueError as error:
        # Not TOML, not UTF-8, or points that contradict each other.
        raise ConfigError(f"{path}: no calibration file: {error}") from error


def recalibrate(run: Run, path: Path) -> tuple[Run, tuple[str, ...]]:
    """The run with the calibrations in a file, and the names of the lines that have one there.

    A record is of the sensor at its bus, address and channel; where several boards have such a one, of the board. Those
    of a node are known by its serial number and their controller on it.
    Raises `ConfigError` for the file, `AnalysisError` where it has nothing on this run or contradicts it.
    """
    known, lines = read_calibration(path), dict(run.lines)
    calibrated = []
    for name, line in run.lines.items():
        sensor = line.sensor
        if not sensor or not isinstance(line.conversion, ShuntConversion):
            continue
        record = _record(known, line, sensor)
        if record is None:
            continue
        if record.chip != str(sensor.get("chip", record.chip)).upper():
            raise AnalysisError(
                f"{path}: {name}: its calibration was taken with an {record.chip}, not {sensor['chip']}"
            )
        try:
            conversion, accuracy = recalibrated(
                line.conversion,
                line.accuracy,
                record,
                nominal_v=float(sensor["nominal_v"]),
                bus_hold=float(line.detail.get("bus_hold", 0.0)),
            )
        except ValueError as error:
            raise AnalysisError(f"{path}: {name}: {error}") from error
        lines[name] = replace(line, conversion=conversion, accuracy=accuracy)
        calibrated.append(name)
    if not calibrated:
        raise AnalysisError(
            f"{path}: no sensor of {run.path} is calibrated there (board or serial number, bus, address and channel)"
        )
    return replace(run, lines=lines), tuple(calibrated)


def _record(known: CalibrationFile, line: RunLine, sensor: Mapping[str, Any]) -> SensorCalibration | None:
    if "controller" in sensor:
        uid, controller = str(line.detail.get("uid", "")), int(sensor["controller"])
        return known.find(serial=uid, bus=controller, address=int(sensor["address"])) if uid else None
    bus = str(line.detail.get("bus", ""))
    number = int(bus.rpartition("-")[2]) if bus.rpartition("-")[2].isdigit() else -1
    place = (number, sensor.get("address"), sensor.get("channel", 1))
    there = [s for s in known.sensor if not s.serial and (s.bus, s.address, s.channel) == place]
    # A board's name in its configuration need not be the host name under which it was calibrated: the line then tells.
    mine = [s for s in there if s.board in ("", line.board)] or [s for s in there if s.line == line.name]
    return mine[0] if mine else None


def describe_auxiliary(run: Run, name: str) -> str:
    """One line of text for `joules info` on an auxiliary channel: range and mean, or how often each bit was set."""
    line = run.line(name)
    c = line.conversion
    if not isinstance(c, QuantityConversion):
        raise AnalysisError(f"line {name!r} is {line.quantity}: it is shown with the energies")
    names = line.detail.get("bits", {}) if c.quantity.endswith("_bits") else {}
    named = names.get(name, {}) if isinstance(names, dict) else {}
    times = dict.fromkeys(named, 0)
    good, bad, total, low, high = 0, 0, 0.0, np.inf, -np.inf
    for piece in good_pieces(run, name, c.column):
        codes = piece.codes[c.column]
        good, bad = good + len(codes), bad + piece.bad
        if not len(codes):
            continue
        unsigned = codes.astype(np.int64).view(np.uint64)
        for n, bit in named.items():
            times[n] += int(np.count_nonzero(unsigned & np.uint64(int(bit))))
        values = codes.astype(np.float64) * c.per_code
        total += float(values.sum())
        low, high = min(low, float(values.min())), max(high, float(values.max()))
    text = f"  {name} ({line.provenance.value}, {line.source}): "
    if not good:
        return f"{text}{c.quantity}, no good reading"
    count = f"{good} good readings, {bad} bad"
    if c.quantity.endswith("_bits"):
        shares = ", ".join(f"{n} in {k / good:.1%}" for n, k in times.items() if k)
        return f"{text}{c.quantity}: {shares or 'none set'}; {count}"
    return f"{text}{c.quantity} {low:.6g} to {high:.6g}, mean of the readings {total / good:.6g}; {count}"
