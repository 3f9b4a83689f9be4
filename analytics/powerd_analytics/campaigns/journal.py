"""The journal of a campaign: one line of JSON for each thing that happened, appended and synced, never changed.

What a campaign has and what is still to do is read from it alone, so that a runner that was killed at any moment goes
on where it was. A run counts when its line ``verified`` is there; of one that only began nothing is taken.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from powerd_analytics.campaigns.design import Item
from powerd_client.ownership import check_own, led_to, make_folder, open_own
from powerd_core.errors import RunFileError

NAME = "campaign.jsonl"
RUN_FILE = re.compile(r"runs/[0-9a-f]{10}-[0-9]{1,9}-[0-9]{1,9}\.h5", re.ASCII)
"""Names of run files below the campaign's folder. Somebody else may have written a journal, and what it names is moved:
no other name is taken."""
_BEGIN = b'{"event": "'
"""Of each line, as it is written here."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a verified run took. Seconds and joules are of its training, those of several devices added up."""

    energy_j: float
    time_s: float
    u_statistical_j: float | None = None
    u_systematic_j: float | None = None
    samples: float | None = None
    """That the training went through, as its marks say."""
    verdict: str = ""
    note: str = ""
    provenance: str = "measured"
    device: str = ""
    is_lower_bound: bool = False
    accuracy: Mapping[str, float] = field(default_factory=dict)
    """What `Meter.result` said last, numbers only."""
    phases: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Joules and seconds of all phases of a name together."""
    operations: float | None = None
    """Of forward and backward: a multiply-add is one, each pass counts alike (Castro et al.)."""
    operations_executed: float | None = None
    """All that forward and backward run: a multiply-add is two."""
    kernels: Mapping[str, Any] = field(default_factory=dict)
    """Of `Meter.record_kernels`: ``digest`` of all names, how many are ``distinct``, and which is the ``first``."""
    testbed: Mapping[str, Any] = field(default_factory=dict)
    """The machine and the device, by columns of the frame (`results.TESTBED`)."""
    file: str = ""
    """The run file, below the campaign's folder."""
    file_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Discard:
    """An attempt that does not count."""

    reason: str
    text: str = ""


@dataclass(slots=True)
class Record:
    """What became of one item."""

    attempts: int = 0
    result: Result | None = None
    discards: list[Discard] = field(default_factory=list)
    is_given_up: bool = False

    @property
    def is_done(self) -> bool:
        return self.result is not None or self.is_given_up


@dataclass(slots=True)
class History:
    """A journal, read."""

    fingerprint: str = ""
    levels: dict[str, Any] = field(default_factory=dict)
    """As the design was resolved when the campaign began; see `Design.levels`."""
    done: int = 0
    """Items that have a result, or were given up."""
    start_c: float | None = None
    """Temperature of the GPU at the first run."""
    pilot: float | None = None
    """What the pilot has found."""
    records: dict[str, Record] = field(default_factory=dict)
    left: dict[str, Discard] = field(default_factory=dict)
    """Cells that can have no result (out of memory), with why."""
    unfinished: list[str] = field(default_factory=list)
    """Files of runs that began, and of whose end nothing was heard."""
    verified: int = 0
    """Runs whose result was written, those that were forgotten since among them."""
    took_s: float = 0.0
    """What they took together, start-up and waiting included."""
    took_j: float = 0.0

    def record(self, item: Item) -> Record:
        return self.records.setdefault(item.key, Record())

    def take(self, line: Mapping[str, Any]) -> None:
        """Let a line of the journal have happened."""
        event, key = line["event"], line.get("item", "")
        _check_names(line)
        record = self.records.setdefault(key, Record()) if key else Record()
        if event == "begun":
            self.fingerprint, self.levels = line["fingerprint"], line.get("levels", {})
        elif event == "temperature":
            self.start_c = line["start_c"]
        elif event == "pilot":
            self.pilot = line["value"]
        elif event == "started":
            record.attempts = line["attempt"]
            self.unfinished.append(line["file"])
        elif event == "left":
            self.left[line["cell"]] = Discard(line["reason"], line.get("text", ""))
        if event in ("verified", "discarded") and line.get("file") in self.unfinished:
            self.unfinished.remove(line["file"])
        if event == "verified":
            self.done += not record.is_done
            record.result = Result(**line["result"])
            self.verified += 1
            self.took_s += line["took_s"]
            self.took_j += record.result.energy_j
        elif event == "discarded":
            record.discards.append(Discard(line["reason"], line.get("text", "")))
        elif event == "given-up":
            self.done += not record.is_done
            record.is_given_up = True
        elif event == "forgotten":
            record.result = None
            self.done -= not record.is_done


class Journal:
    """The journal of a folder, opened to be continued. One runner at a time, and one a block where blocks are jobs."""

    def __init__(self, folder: Path, *, part: int | None = None, is_synced: bool = True) -> None:
        """``part`` is a block that has a journal of its own. Runs that are computed in no time need not be synced each.
        Raises `RunFileError` where the folder cannot be written or is not the user's own, what is there is no journal
        of the user's, or another runner is at work in it."""
        self.folder = folder
        self._is_synced = is_synced
        self.path = folder / (NAME if part is None else f"campaign.{part}.jsonl")
        try:
            make_folder(led_to(folder))
            for other in _paths(folder):
                check_own(other, "give --into another folder")
            self.lock = open_own(self.path.with_suffix(".lock"), os.O_RDWR, 0o644)
            try:
                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                os.close(self.lock)
                raise RunFileError(
                    f"{folder}: a runner is at work there, or the last run of one that was killed is just ending"
                ) from error
            self._file = open_own(self.path, os.O_RDWR | os.O_APPEND, 0o644)
            self.history = read_history(folder)
            _cut_torn_line(self.path, self._file)
        except OSError as error:
            if isinstance(error, RunFileError):
                raise
            raise RunFileError(f"{folder} cannot be written: {error.strerror or error}") from error
        self.unfinished = tuple(_read([self.path]).unfinished)
        """Files of runs that this journal's runner began before, and of whose end nothing was heard."""

    def write(self, event: str, **values: Any) -> None:
        """Append a line, synced, and let it have happened. Raises `RunFileError`, as for a full disk."""
        line = {"event": event, **{k: asdict(v) if isinstance(v, Result) else v for k, v in values.items()}}
        data = json.dumps(line).encode() + b"\n"
        end = os.fstat(self._file).st_size
        try:
            written = 0
            while written < len(data):  # a disk that is just full takes a part, and refuses the rest
                written += os.write(self._file, data[written:])
            if self._is_synced:
                os.fsync(self._file)
        except OSError as error:
            os.ftruncate(self._file, end)
            raise RunFileError(
                f"{self.path} cannot be written: {error.strerror}; what is in it stays, and "
                "`joules campaign resume` goes on from there"
            ) from error
        self.history.take(line)

    def close(self) -> None:
        os.close(self._file)
        os.close(self.lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_history(folder: Path) -> History:
    """What a campaign has so far; nothing where it has not begun. Raises `RunFileError` for a damaged journal."""
    return _read(_paths(folder))


def _paths(folder: Path) -> list[Path]:
    return [folder / NAME, *sorted(folder.glob("campaign.*.jsonl"))]


def _read(paths: Iterable[Path]) -> History:
    history = History()
    for path in paths:
        for number, line in enumerate(_lines(path), 1):
            try:
                history.take(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                raise RunFileError(f"{path}: line {number} is damaged: {error}") from error
    return history


def _check_names(line: Mapping[str, Any]) -> None:
    """Raises `ValueError` for a line that names another file than a run of a campaign has."""
    result = line.get("result")
    for name in (line.get("file"), result.get("file") if isinstance(result, Mapping) else None):
        if name and not (isinstance(name, str) and RUN_FILE.fullmatch(name)):
            raise ValueError(f"{str(name)[:200]!r} is no name of a run file")


def _lines(path: Path) -> Iterator[bytes]:
    """The whole lines; one that a killed runner has left half is none."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunFileError(f"{path} cannot be read: {error.strerror}") from error
    whole, _, _ = text.rpartition(b"\n")
    yield from whole.split(b"\n") if whole else ()


def _cut_torn_line(path: Path, descriptor: int) -> None:
    """Of a journal whose whole lines were read. Raises `RunFileError` for a file that does not begin as one, which
    stays as it is."""
    data = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    if data[: len(_BEGIN)] != _BEGIN[: len(data)]:
        raise RunFileError(f"{path} is no journal of a campaign: give --into another folder")
    end = data.rfind(b"\n") + 1
    if end != len(data):
        os.ftruncate(descriptor, end)
