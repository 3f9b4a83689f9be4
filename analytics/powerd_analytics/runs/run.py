"""A run file as frozen data: what was measured, when, and which phases it had.

Readings are loaded when they are asked for, whole or by range. With `recalibrate` a run is computed again with the
calibrations of a later day: raw codes stay, what they mean is replaced.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from powerd_analytics.output.text import is_number_cell
from powerd_analytics.runs.in_force import (
    ENFORCED_CAP,
    Stated,
    Steps,
    Timeline,
    enforced_name,
    stated_steps,
    steps_of,
    timed_by,
    without_repeats,
)
from powerd_analytics.runs.nesting import with_iterations
from powerd_analytics.runs.phases import (
    LAYER,
    OPERATIONS,
    PhaseClass,
    Phases,
    distinct,
    dropped_attributes,
    pieces,
    read_phases,
    split_by_setting,
)
from powerd_client.energies.phase import RESULT
from powerd_client.host.ownership import Identity, identity, read_small
from powerd_client.record.recording import CAMPAIGN
from powerd_client.runs.recover import open_run
from powerd_client.runs.runfile import TIMES, read_json, read_objects, read_texts, reading, texts_of
from powerd_client.runs.verify import wrong_at_first_sight
from powerd_client.signals.board_times import check_times
from powerd_client.signals.signal import Readings, RunClock, RunLine
from powerd_client.training.layer_operations import WATCHED_MODEL
from powerd_core.calibration import CalibrationFile, SensorCalibration, recalibrated
from powerd_core.errors import AnalysisError, ConfigError, WireError
from powerd_core.model import BAD, Accuracy, Conversion, Provenance, QuantityConversion, ShuntConversion, quantity_of
from powerd_core.serde import MAX_PERIOD_NS, check_conversion, from_document
from powerd_core.settings import SETTING, KnobSetting, setting_in

Ints = NDArray[np.int64]
Progress = Callable[[float, str], None]
"""Called with the share done (0 to 1) and what is being done."""


def no_progress(share: float, text: str) -> None:
    """Progress that nobody watches."""


def pick(name: str, known: Iterable[str], what: str) -> str:
    """``name`` if it is known, else an `AnalysisError` that offers the nearest or all names there are."""
    names = list(known)
    if name in names:
        return name
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"this run has {', '.join(map(repr, names)) or 'none'}"
    raise AnalysisError(f"no {what} {name!r}: {hint}")


MOST_DRIFT_PPM = 1e6
"""A clock that drifts by more goes backwards."""


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
class Event:
    """What the training said of a moment (`Meter.event`); ``rank`` is None for a process that is no rank."""

    t_ns: int
    name: str
    values: Mapping[str, Any]
    rank: int | None = None


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
    dropped: tuple[str, ...] = ()
    """What to say of attributes of phases that are no figures; earlier releases stored them. Messages say it too."""
    events: tuple[Event, ...] = ()
    """In the order of their times."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    """How the file contradicts itself, as far as that is seen without its readings; see `powerd_client.runs.verify`."""
    enforced: Timeline = field(default_factory=Timeline)
    """What drivers enforced: power caps and other knobs; where one changed, it parts the phases' classes."""
    file: Identity | None = None
    """Which file it was read from, as that was then; None where it was not read."""
    calibrated: str = ""
    """SHA-256 of the file of calibrations by which it is computed again; empty for its own."""

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

    @property
    def result(self) -> Mapping[str, Any]:
        """How good what was trained is, as `Meter.result` said it: the last value of each name, of the first rank that
        gave any."""
        last: dict[str, Any] = {}
        for event in self.results:
            last |= event.values
        return last

    @property
    def results(self) -> tuple[Event, ...]:
        """The events of `Meter.result`, in the order of their times; of several ranks those of the first that has any:
        all ranks of a training say the same."""
        events = [event for event in self.events if event.name == RESULT]
        first = min((event.rank or 0 for event in events), default=0)
        return tuple(event for event in events if (event.rank or 0) == first)

    @property
    def campaign(self) -> Mapping[str, Any]:
        """Which run of a campaign it is, as `joules campaign` said it: campaign, cell, block, seed, program, factors;
        empty for a run of none."""
        return next((event.values for event in self.events if event.name == CAMPAIGN), {})

    def line(self, name: str) -> RunLine:
        """The line of that name. Raises `AnalysisError` for an unknown one."""
        return self.lines[pick(name, self.lines, "line")]

    def device(self, name: str) -> RunDevice:
        """The device of that name. Raises `AnalysisError` for an unknown one."""
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

    def good_readings(self, line: str, column: str) -> Readings:
        """A line's good readings, without those that are flagged. Raises `RunFileError`, and `AnalysisError` for an
        unknown line or one without that column."""
        every = self.readings(line)
        if column not in every.codes:
            raise AnalysisError(f"line {line!r} has no column {column!r}, which its conversion needs")
        good = (every.flags & np.uint16(int(BAD))) == 0
        return Readings(every.t_ns[good], every.flags[good], {key: codes[good] for key, codes in every.codes.items()})

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
        of_file = identity(path)
        attributes = {k: (_text(v) if isinstance(v, bytes | str) else v) for k, v in file.attrs.items()}
        for name in {"t_start_ns", "t_stop_ns", "complete", "rebuilt"} & attributes.keys():
            attributes[name] = int(attributes[name])
        check_times(np.array([attributes["t_start_ns"], attributes["t_stop_ns"]]), "an end of the run")
        if attributes["t_stop_ns"] < attributes["t_start_ns"]:
            raise ValueError("the run stops before it starts")
        lines = {name: _line(name, group) for name, group in file["lines"].items()}
        devices = {name: _device(name, group) for name, group in file["devices"].items()}
        for device in devices.values():
            for name in device.feeds:
                if name not in lines or lines[name].is_auxiliary:
                    raise ValueError(f"device {device.name!r} is fed by {name!r}, which is no line of power")
        clocks = {name: _clock(group) for name, group in file["clocks"].items()}
        processes = tuple(read_objects(file["processes"])) if "processes" in file else ()
        events = _events(file["events"], processes) if "events" in file else ()
        phases = with_operations(with_iterations(read_phases(file["phases"])), events)
        enforced = _timeline(_steps(file["lines"], lines.values(), clocks), events, phases)
        dropped = dropped_attributes(file["phases"])
        notes = [{"t_ns": attributes["t_start_ns"], "level": "warning", "text": text} for text in dropped]
        return Run(
            path=path,
            attributes=attributes,
            lines=lines,
            devices=devices,
            phases=split_by_setting(phases, enforced),
            clocks=clocks,
            gaps=_gaps(file["gaps"]),
            processes=processes,
            messages=(*read_objects(file["messages"]), *notes),
            dropped=dropped,
            events=events,
            environment=dict(read_json(attributes.get("environment") or "{}")),
            command=tuple(str(word) for word in read_json(attributes.get("command") or "[]")),
            wrong=tuple(wrong_at_first_sight(file)),
            enforced=enforced,
            file=of_file,
        )


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _device(name: str, group: h5py.Group) -> RunDevice:
    about = (_text(group.attrs.get(key, "")) for key in ("description", "uuid", "pci"))
    return RunDevice(name, tuple(texts_of(group.attrs["feeds"])), *about)


def _line(name: str, group: h5py.Group) -> RunLine:
    a = group.attrs
    try:
        conversion: Conversion = from_document(Conversion, read_json(a["conversion"]), "conversion")  # type: ignore[arg-type]
        accuracy = from_document(Accuracy, read_json(a["accuracy"]), "accuracy")
        check_conversion(conversion, accuracy, list(group), f"line {name!r}")
    except WireError as error:
        raise ValueError(f"line {name!r}: {error}") from error
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


def _clock(group: h5py.Group) -> RunClock:
    offsets, t_board = group["map"][:].reshape(-1, 3), group["map_t_board_ns"][:]
    check_times(t_board, "a clock exchange")
    check_times(offsets, "a board's clock")
    drift_ppm = float(group.attrs.get("drift_ppm", 100.0))
    if not 0 <= drift_ppm <= MOST_DRIFT_PPM:
        raise ValueError(f"a clock drifts by {drift_ppm} ppm")
    t_host = t_board + offsets[:, 0]
    order = np.argsort(t_host, kind="stable")
    # The estimate need not lie in the middle of its bound: the farther end counts.
    half = np.maximum(offsets[:, 2] - offsets[:, 0], offsets[:, 0] - offsets[:, 1])
    return RunClock(
        board=_text(group.attrs.get("board", "")),
        drift_ppm=drift_ppm,
        t_ns=t_host[order],
        half_width_ns=half[order],
        steps=max(0, len(distinct(group["map_piece"][:])) - 1),
    )


def is_enforced_cap(line: RunLine) -> bool:
    """Whether a line is a driver's enforced power limit, and not the one that was requested of it."""
    return line.quantity == "power_limit_w" and not line.name.endswith("_requested")


def _steps(group: h5py.Group, lines: Iterable[RunLine], clocks: Mapping[str, RunClock]) -> dict[str, Steps]:
    """By device, what its driver enforced, as its first line with good readings of the limit tells."""
    steps: dict[str, Steps] = {}
    for line in lines:
        if is_enforced_cap(line) and line.device not in steps:
            t_ns, watts = _limits(LineReader(line.name, group[line.name]), line)
            bound_ns = clocks[line.clock].bound_ns(t_ns) if line.clock in clocks else 0.0
            if len(t_ns):
                steps[line.device] = steps_of(t_ns, watts, bound_ns)
    return steps


def _timeline(caps: Mapping[str, Steps], events: Sequence[Event], phases: Phases) -> Timeline:
    """What was enforced: of a power cap as its driver tells all along, else as events state."""
    stated: dict[tuple[str, str], list[Stated]] = {}
    for t_ns, setting in stated_settings(events):
        key = enforced_name(setting.knob, setting.unit), setting.device
        event = Stated(t_ns, setting.enforced, t_ns + round(1e9 * setting.settle_s))
        stated.setdefault(key, []).append(event)
    steps = {key: stated_steps(own) for key, own in stated.items()}
    caps = {device: timed_by(stated.get((ENFORCED_CAP, device), ()), own) for device, own in caps.items()}
    by_event = {device: s for (name, device), s in steps.items() if name == ENFORCED_CAP}
    others = {key: s for key, s in steps.items() if key[0] != ENFORCED_CAP}
    within = (int(phases.begin_ns.min()), int(phases.end_ns.max())) if len(phases) else (0, 0)
    return replace(Timeline.of(by_event | dict(caps), others, within), by_line=frozenset(caps))


def stated_settings(events: Iterable[Event]) -> list[tuple[int, KnobSetting]]:
    """What events state of knobs, in the order of their times."""
    settings = [(e.t_ns, setting_in(e.values)) for e in events if e.name == SETTING]
    return sorted(((t_ns, s) for t_ns, s in settings if s is not None), key=lambda own: own[0])


def _limits(reader: LineReader, line: RunLine) -> tuple[Ints, NDArray[np.float64]]:
    """Times and watts of a limit's good readings, without repeats of the same value."""
    conversion = line.conversion
    if not isinstance(conversion, QuantityConversion):
        return np.zeros(0, np.int64), np.zeros(0)
    each = []
    for some in pieces(line.count):
        read = reader.readings(some.start, some.stop, [conversion.column])
        watts = read.codes[conversion.column] * conversion.per_code
        is_good = ((read.flags & np.uint16(int(BAD))) == 0) & (watts > 0)
        each.append(without_repeats(read.t_ns[is_good], watts[is_good]))
    t_ns, limits = (np.concatenate(columns) for columns in zip(*each, strict=True)) if each else ([], [])
    return np.asarray(t_ns, np.int64), np.asarray(limits, np.float64)


def with_operations(phases: Phases, events: Sequence[Event]) -> Phases:
    """The phases of watched models with the operations that their first pass showed, where they state none."""
    counts: dict[str, set[float]] = {}
    for event in events:
        count = event.values.get(OPERATIONS) if event.name == WATCHED_MODEL else None
        if is_number_cell(count) and count > 0:
            counts.setdefault(str(event.values.get("model")), set()).add(float(count))
    known = {model: own.pop() for model, own in counts.items() if len(own) == 1}
    models = {str(kind.attributes["model"]) for kind in phases.classes if "model" in kind.attributes}
    if len(known) == len(counts) == len(models) == 1:  # one model, which the phases around may call otherwise
        known = dict.fromkeys(models, *known.values())
    stating = {str(kind.attributes.get("model")) for kind in phases.classes if OPERATIONS in kind.attributes}
    found = {model: count for model, count in known.items() if model in models - stating}
    if not found:
        return phases

    def told(kind: PhaseClass) -> PhaseClass:
        count = None if LAYER in kind.attributes else found.get(str(kind.attributes.get("model")))
        return kind if count is None else replace(kind, attributes={**kind.attributes, OPERATIONS: count})

    return replace(phases, classes=tuple(map(told, phases.classes)))


def _events(group: h5py.Group, processes: Sequence[Mapping[str, Any]]) -> tuple[Event, ...]:
    """Raises ValueError for an event of a process that is not in the run."""
    t_ns, numbers = group["t_ns"][:].astype(np.int64), group["process"][:].tolist()
    check_times(t_ns, "an event")
    if not all(0 <= number < len(processes) for number in numbers):
        raise ValueError("an event of a process that is not listed")
    ranks = [processes[number].get("rank") for number in numbers]
    rows = zip(t_ns.tolist(), read_texts(group["name"]), read_objects(group["values"]), ranks, strict=True)
    return tuple(Event(t, name, values, rank if isinstance(rank, int) else None) for t, name, values, rank in rows)


def _gaps(group: h5py.Group) -> tuple[RunGap, ...]:
    texts = [read_texts(group[name]) for name in ("stream", "lines", "cause")]
    numbers = [group[name][:].astype(np.int64) for name in ("begin_ns", "end_ns", "lost")]
    for column in numbers[:2]:
        check_times(column, "a gap")
    return tuple(
        RunGap(s, tuple(str(n) for n in read_json(names)), b, e, lost, cause)
        for s, names, cause, b, e, lost in zip(*texts, *(n.tolist() for n in numbers), strict=True)
    )


# ---- a later calibration -----------------------------------------------------------------------------------------


def read_calibration(path: Path) -> CalibrationFile:
    """A file that `powerd calibrate` wrote. Raises `ConfigError`."""
    try:
        return from_document(CalibrationFile, tomllib.loads(read_small(path).decode()), str(path))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}: make it with `powerd calibrate`") from error
    except ValueError as error:
        # Not TOML, not UTF-8, or points that contradict each other.
        raise ConfigError(f"{path}: no calibration file: {error}") from error


def recalibrate(run: Run, path: Path) -> tuple[Run, tuple[str, ...]]:
    """The run with the calibrations in a file, and the names of the lines that have one there.

    A record is of the sensor at its bus, address and channel; where several boards have such a one, of the board. Those
    of a node are known by its serial number and their controller on it.
    Raises `ConfigError` for the file, `AnalysisError` where it has nothing on this run or contradicts it.
    """
    known, changed = read_calibration(path), {}
    for name, line in run.lines.items():
        sensor = line.sensor
        if not sensor or not isinstance(line.conversion, ShuntConversion):
            continue
        record = _record(known, line, sensor)
        if record is None:
            continue
        if record.chip != str(sensor.get("chip", record.chip)).upper():
            raise AnalysisError(f"{path}: {name}: its calibration is of an {record.chip}, not {sensor['chip']}")
        nominal_v, bus_hold = float(sensor["nominal_v"]), float(line.detail.get("bus_hold", 0.0))
        try:
            conversion, accuracy = recalibrated(
                line.conversion, line.accuracy, record, nominal_v=nominal_v, bus_hold=bus_hold
            )
            check_conversion(conversion, accuracy, (conversion.shunt, conversion.bus), "with it the line")
        except ValueError as error:
            raise AnalysisError(f"{path}: {name}: {error}") from error
        changed[name] = replace(line, conversion=conversion, accuracy=accuracy)
    if not changed:
        raise AnalysisError(
            f"{path}: no sensor of {run.path} is calibrated there (board or serial number, bus, address and channel)"
        )
    calibrated = sha256(read_small(path)).hexdigest()
    return replace(run, lines={**run.lines, **changed}, calibrated=calibrated), tuple(changed)


def _record(known: CalibrationFile, line: RunLine, sensor: Mapping[str, Any]) -> SensorCalibration | None:
    if "controller" in sensor:
        uid, controller = str(line.detail.get("uid", "")), int(sensor["controller"])
        return known.find(serial=uid, bus=controller, address=int(sensor["address"])) if uid else None
    bus = str(line.detail.get("bus", "")).rpartition("-")[2]
    place = (int(bus) if bus.isdigit() else -1, sensor.get("address"), sensor.get("channel", 1))
    there = [s for s in known.sensor if not s.serial and (s.bus, s.address, s.channel) == place]
    # A board's name in its configuration need not be the host name under which it was calibrated: the line then tells.
    mine = [s for s in there if s.board in ("", line.board)] or [s for s in there if s.line == line.name]
    return mine[0] if mine else None
