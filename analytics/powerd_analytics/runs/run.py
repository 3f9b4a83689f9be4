"""A run file as frozen data: what was measured, when, and which phases it had. Readings are loaded when asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from powerd_analytics.runs.clock import RunClock, read_clock
from powerd_analytics.runs.names import pick
from powerd_analytics.runs.phases import Phases, read_phases
from powerd_analytics.runs.readings import LineReader, Readings
from powerd_client.fileshape import check_times, read_json, read_objects, read_texts, texts_of
from powerd_client.runfile import open_run, reading
from powerd_core.errors import RunFileError, WireError
from powerd_core.model import Accuracy, Conversion, Provenance, QuantityConversion, quantity_of
from powerd_core.serde import MAX_PERIOD_NS, check_conversion, from_document


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
    def is_beside(self) -> bool:
        """Neither power nor energy: shown, never summed or compared."""
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
            n for n, line in self.lines.items() if line.device == device and n not in feeds and not line.is_beside
        )

    def beside(self, device: str) -> tuple[str, ...]:
        """Lines of the device that are neither power nor energy: temperatures, clocks, limits."""
        name = self.device(device).name
        return tuple(n for n, line in self.lines.items() if line.device == name and line.is_beside)


def read_run(path: str | Path, *, progress: Callable[[float, str], None] = lambda share, text: None) -> Run:
    """Open a run file and read everything but its readings; ``progress`` is told when it has to be built first.

    Raises `RunFileError` for a file that is missing, no run, cut off or of another version.
    """
    path = Path(path)
    building = "building the run file from its journal"
    with open_run(path, progress=lambda share: progress(share, building)) as file, reading(path):
        return _read(path, file)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _whole(value: Any, name: str) -> int:
    """An attribute that is one whole number. Raises ValueError for several, and for what is none."""
    if np.ndim(value):
        raise ValueError(f"attribute {name!r} is no single number")
    return int(value)


def _read(path: Path, file: h5py.File) -> Run:
    attributes = {k: (_text(v) if isinstance(v, bytes | str) else v) for k, v in file.attrs.items()}
    for needed in ("t_start_ns", "t_stop_ns"):
        attributes[needed] = _whole(attributes[needed], needed)
        check_times(np.array([attributes[needed]]), needed)
    for name in ("complete", "rebuilt"):
        if name in attributes:
            attributes[name] = _whole(attributes[name], name)
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
        if missing := sorted(set(device.feeds) - set(lines)):
            raise RunFileError(
                f"{path}: device {device.name!r} is fed by line {missing[0]!r}, which is not in the file"
            )
        if beside := sorted(n for n in device.feeds if lines[n].is_beside):
            raise RunFileError(f"{path}: device {device.name!r} is fed by line {beside[0]!r}, which is no power")
    return Run(
        path=path,
        attributes=attributes,
        lines=lines,
        devices=devices,
        phases=read_phases(file["phases"]) if "phases" in file else Phases.empty(),
        clocks={name: read_clock(g) for name, g in file["clocks"].items()} if "clocks" in file else {},
        gaps=_gaps(file["gaps"]) if "gaps" in file else (),
        processes=_json_rows(file, "processes"),
        messages=_json_rows(file, "messages"),
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


def _json_rows(file: h5py.File, name: str) -> tuple[Mapping[str, Any], ...]:
    return tuple(read_objects(file[name])) if name in file else ()
