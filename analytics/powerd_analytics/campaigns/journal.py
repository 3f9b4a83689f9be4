"""The journal of a campaign: one line of JSON for each thing that happened, appended and synced, never changed.

What a campaign has and what is still to do is read from it alone, so that a runner that was killed at any moment goes
on where it was. A run counts when its line ``verified`` is there; of one that only began nothing is taken.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from math import isfinite
from pathlib import Path
from typing import Any, Self

from powerd_analytics.campaigns.design import Item
from powerd_client.ownership import check_own, led_to, make_folder, open_own
from powerd_core.errors import RunFileError
from powerd_core.text import printable
from powerd_core.verdict import Verdict

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
    shared: str = ""
    """Other programs that the driver listed on its devices."""
    provenance: str = "measured"
    device: str = ""
    is_lower_bound: bool = False
    accuracy: Mapping[str, float] = field(default_factory=dict)
    """What `Meter.result` said last, numbers only."""
    phases: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Joules and seconds of all phases of a name together."""
    phases_u: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Of these joules the standard uncertainties, statistical and systematic, and the rectangle within the latter."""
    unresolved: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Of phases without joules the seconds, and why."""
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
    iterations: float | None = None
    """That its marks say; 0 of a run without any, None where nothing was recorded."""
    contradiction: str = ""
    """What its phases say against its cell, as that they had another batch size."""


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
    forgiven: int = 0
    """Of the discards, those before somebody asked for the run once more."""

    @property
    def is_done(self) -> bool:
        return self.result is not None or self.is_given_up

    @property
    def failures(self) -> int:
        """Attempts in vain that count against it."""
        return len(self.discards) - self.forgiven


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
    files: dict[str, str] | None = None
    """Digests of the files that the command names, as of the last run; None where the journal does not say them."""
    changes: list[str] = field(default_factory=list)
    """What changed of these while the campaign went on, one sentence each."""
    records: dict[str, Record] = field(default_factory=dict)
    left: dict[str, Discard] = field(default_factory=dict)
    """Cells that are not tried any more, with why: out of memory, or none of their first runs went well."""
    unfinished: list[str] = field(default_factory=list)
    """Files of runs that began, and of whose end nothing was heard."""
    verified: int = 0
    """Runs whose result was written, those that were forgotten since among them."""
    took_s: float = 0.0
    """What they took together, start-up and waiting included."""
    took_j: float = 0.0

    def record(self, item: Item) -> Record:
        return self.records.setdefault(item.key, Record())

    def of_cell(self, cell: str) -> list[Record]:
        """The records of a cell, in the order in which its runs began."""
        return [record for key, record in self.records.items() if cell_of(key) == cell]

    def results(self) -> dict[str, Result]:
        """The results that count, by the item's key: where runs have iterations, one without did no work."""
        every = {key: record.result for key, record in self.records.items() if record.result is not None}
        has_iterations = any(result.iterations for result in every.values())
        return {key: r for key, r in every.items() if not (has_iterations and r.iterations == 0)}

    def repeats(self) -> dict[str, int]:
        """How many results each cell has that has any."""
        return Counter(map(cell_of, self.results()))

    def given_up(self) -> dict[str, Record]:
        """The runs that are not tried any more, by the item's key."""
        return {key: record for key, record in self.records.items() if record.is_given_up and record.result is None}

    def take(self, line: Mapping[str, Any]) -> None:
        """Let a line of the journal have happened. Raises one of `DAMAGED` for what no runner writes."""
        event, key = _text_of(line, "event"), _text_of(line, "item", "")
        if key and not _KEY.fullmatch(key):
            raise ValueError(f"{key!r} is no run of a campaign")
        _check_names(line)
        record = self.records.setdefault(key, Record()) if key else Record()
        if event == "begun":
            self.fingerprint, self.levels = _text_of(line, "fingerprint"), _levels_of(line.get("levels", {}))
            self.files = _texts_of(line["files"]) if "files" in line else None
        elif event == "changed":
            self.files = _texts_of(line["files"])
            self.changes.append(_text_of(line, "text"))
        elif event == "retried":
            self._retry()
        elif event == "temperature":
            self.start_c = _number(line["start_c"])
        elif event == "pilot":
            self.pilot = _number(line["value"])
        elif event == "started":
            record.attempts = int(_number(line["attempt"]))
            self.unfinished.append(_text_of(line, "file"))
        elif event == "left":
            self.left[_text_of(line, "cell")] = _discard_of(line)
        if event in ("verified", "discarded") and line.get("file") in self.unfinished:
            self.unfinished.remove(line["file"])
        if event == "verified":
            result, took_s = _result_of(line["result"]), _number(line["took_s"])
            self.done += not record.is_done
            record.result = result
            self.verified += 1
            self.took_s += took_s
            self.took_j += result.energy_j
        elif event == "discarded":
            record.discards.append(_discard_of(line))
        elif event == "given-up":
            self.done += not record.is_done
            record.is_given_up = True
        elif event == "forgotten":
            record.result = None
            self.done -= not record.is_done

    def _retry(self) -> None:
        """Somebody asked for all runs and cells once more that were given up."""
        self.left.clear()
        for record in self.records.values():
            record.forgiven = len(record.discards)
            self.done -= record.is_given_up and record.result is None
            record.is_given_up = False


# -- what a line may say -----------------------------------------------------------------------------------------------

DAMAGED = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What a file of ours raises when it is read whose contents are not what a program of ours writes."""
_KEY = re.compile(r"[0-9a-f]{10}-\d{1,9}")
_NUMBERS = ("energy_j", "time_s", "u_statistical_j", "u_systematic_j", "samples", "iterations", "operations",
            "operations_executed", "file_bytes")  # fmt: skip
_TEXTS = ("contradiction", "verdict", "note", "shared", "provenance", "device", "file")
_MAPPINGS = ("accuracy", "phases", "phases_u", "unresolved", "kernels", "testbed")


def cell_of(key: str) -> str:
    """The cell of a run, by the key of its item."""
    return key.rpartition("-")[0]


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise ValueError(f"{printable(repr(value), limit=80)} is no number")
    return value


def _text_of(line: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = line[name] if default is None else line.get(name, default)
    if not isinstance(value, str):
        raise TypeError(f"{name}: {printable(repr(value), limit=80)} is no text")
    return value


def _discard_of(line: Mapping[str, Any]) -> Discard:
    return Discard(_text_of(line, "reason"), _text_of(line, "text", ""))


def _texts_of(value: Any) -> dict[str, str]:
    return {name: _text_of(value, name) for name in value}


def _levels_of(value: Any) -> dict[str, Any]:
    """What `Design.levels` wrote. It is a table of factors, and rows of levels."""
    if not value:
        return {}
    rows = [value["reference"], *value["exclude"], *value["more_cells"]]
    if not all(isinstance(row, dict) for row in (value, value["factors"], *rows)):
        raise ValueError("levels: no tables")
    for levels in value["factors"].values():
        if not isinstance(levels, list) or not levels:
            raise ValueError("levels: a factor without any")
        for level in levels:
            if not isinstance(level, str):
                _ = level if isinstance(level, bool) else _number(level)
    return dict(value)


def _result_of(values: Any) -> Result:
    """A result by the types of its fields. Raises one of `DAMAGED`."""
    known = {f.name for f in fields(Result)}
    # A later release may say more of a run.
    result = Result(**{name: value for name, value in values.items() if name in known})
    for name in _NUMBERS:
        value = getattr(result, name)
        if value is not None and not 0 <= _number(value) < _MOST:
            raise ValueError(f"{name}: {value:g} cannot be")
    if result.energy_j is None or result.time_s is None or not (result.energy_j > 0 and result.time_s > 0):
        raise ValueError("a result has joules and seconds above 0")
    for name in _TEXTS:
        _text_of({name: getattr(result, name)}, name)
    if not isinstance(result.is_lower_bound, bool):
        raise TypeError("is_lower_bound is true or false")
    if not all(isinstance(getattr(result, name), dict) for name in _MAPPINGS):
        raise ValueError("a result whose parts are no tables")
    if result.verdict:
        Verdict(result.verdict)
    for pair in result.phases.values():
        joules, seconds = pair
        _ = _number(joules), _number(seconds)
    for parts in result.phases_u.values():
        statistical, systematic, rectangle = map(_number, parts)
        if min(statistical, systematic, rectangle) < 0:
            raise ValueError("an uncertainty is 0 or more")
    for seconds, why in result.unresolved.values():
        _ = _number(seconds), _text_of({"why": why}, "why")
    for value in result.accuracy.values():
        _number(value)
    return result


_MOST = 1e24
"""No number of a run is larger: operations of a training have up to 21 digits before the point."""


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
            except DAMAGED as error:
                why = f"there is no {error}" if isinstance(error, KeyError) else str(error)
                raise RunFileError(f"{path}: line {number} is damaged: {printable(why, limit=200)}") from error
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
