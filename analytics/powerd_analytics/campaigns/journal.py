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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from math import isfinite
from pathlib import Path
from typing import Any, Self

from powerd_analytics.campaigns.design import Item
from powerd_analytics.frame.figure import Figure, Record, figure_of, number_of, sum_of_figures
from powerd_analytics.frame.figures import COLUMNS, RESULT
from powerd_analytics.runs.accuracy import BEST
from powerd_client.host.ownership import check_own, led_to, make_folder, open_own
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
    """A verified run: the frame's rows of it, and what its file says beside them."""

    rows: tuple[Record, ...]
    """Of the frame of figures: the totals of the devices that count (of a run without phases the recording), and the
    parts of an iteration; without the columns that have no value."""
    verdict: str = ""
    note: str = ""
    shared: str = ""
    """Other programs that the driver listed on its devices."""
    kernels: Mapping[str, Any] = field(default_factory=dict)
    """Of `Meter.record_kernels`: ``digest`` of all names, how many are ``distinct``, and which is the ``first``."""
    iterations: float | None = None
    """That its marks say; 0 of a run without any, None where nothing was recorded."""
    contradiction: str = ""
    """What its phases say against its cell, as that they had another batch size."""
    file: str = ""
    """The run file, below the campaign's folder."""
    file_bytes: int = 0
    is_old: bool = False
    """Of a journal that had no rows: these are made of the sums that it has."""

    @property
    def wholes(self) -> list[Record]:
        """The rows that are no phases."""
        return [row for row in self.rows if row["kind"] != "phase"]

    @property
    def energy(self) -> Figure:
        """Joules of all devices that count."""
        rows = self.wholes
        figures = [figure for row in rows if (figure := figure_of(row, "energy_j")) is not None]
        return sum_of_figures(figures, [row.get("device") for row in rows])

    @property
    def energy_j(self) -> float:
        return sum(number_of(row, "energy_j") or 0.0 for row in self.wholes)

    @property
    def time_s(self) -> float:
        """Of its training: devices work side by side."""
        return sum(number_of(row, "time_s") or 0.0 for row in self.of_one_device)

    @property
    def of_one_device(self) -> list[Record]:
        """Those of `wholes` that are of the first device."""
        rows = self.wholes
        return [row for row in rows if row.get("device") == rows[0].get("device")]

    @property
    def samples(self) -> float | None:
        """That the training went through: batches times their size; None where the marks do not say it."""
        counts = [samples_of(row) for row in self.of_one_device]
        return sum(counts) if counts and all(counts) else None

    def operations(self, name: str, passes: int) -> float | None:
        """Of all samples, by one of the columns of operations; None where the marks do not say them."""
        counts = [passes * (number_of(row, name) or 0.0) * samples_of(row) for row in self.of_one_device]
        return sum(counts) if counts and all(counts) else None

    @property
    def device(self) -> str:
        return ",".join(dict.fromkeys(str(row.get("device", "")) for row in self.wholes))

    @property
    def provenance(self) -> str:
        return str(self.rows[0].get("provenance", ""))

    @property
    def accuracy(self) -> dict[str, float]:
        """What `Meter.result` said last, numbers only."""
        named = {name: number_of(self.rows[0], name) for name in self.rows[0] if name.startswith(RESULT)}
        return {n.removeprefix(RESULT): v for n, v in named.items() if v is not None and not n.endswith(BEST)}

    def document(self) -> dict[str, Any]:
        """As the journal has it."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "is_old"} | {"rows": list(self.rows)}


def samples_of(row: Record) -> float:
    """That a total went through; 0 where it does not say."""
    size = number_of(row, "samples_per_batch") or number_of(row, "batch_size") or 0.0
    return (number_of(row, "iterations") or 0.0) * size


@dataclass(frozen=True, slots=True)
class Discard:
    """An attempt that does not count."""

    reason: str
    text: str = ""


@dataclass(slots=True)
class RunRecord:
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
    records: dict[str, RunRecord] = field(default_factory=dict)
    left: dict[str, Discard] = field(default_factory=dict)
    """Cells that are not tried any more, with why: out of memory, or none of their first runs went well."""
    unfinished: list[str] = field(default_factory=list)
    """Files of runs that began, and of whose end nothing was heard."""
    verified: int = 0
    """Runs whose result was written, those that were forgotten since among them."""
    took_s: float = 0.0
    """What they took together, start-up and waiting included."""
    took_j: float = 0.0

    def record(self, item: Item) -> RunRecord:
        return self.records.setdefault(item.key, RunRecord())

    def of_cell(self, cell: str) -> list[RunRecord]:
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

    def given_up(self) -> dict[str, RunRecord]:
        """The runs that are not tried any more, by the item's key."""
        return {key: record for key, record in self.records.items() if record.is_given_up and record.result is None}

    def take(self, line: Mapping[str, Any]) -> None:
        """Let a line of the journal have happened. Raises one of `DAMAGED` for what no runner writes."""
        event, key = _text_of(line, "event"), _text_of(line, "item", "")
        if key and not _KEY.fullmatch(key):
            raise ValueError(f"{key!r} is no run of a campaign")
        _check_names(line)
        record = self.records.setdefault(key, RunRecord()) if key else RunRecord()
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
_TEXTS = ("contradiction", "verdict", "note", "shared", "file")


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
    known = {f.name for f in fields(Result)} - {"rows", "is_old"}
    is_old = "rows" not in values
    rows = _rows_of_sums(values) if is_old else values["rows"]
    if not isinstance(rows, list) or not rows:
        raise ValueError("a result without rows")
    # A later release may say more of a run.
    own = {name: value for name, value in values.items() if name in known}
    result = Result(tuple(map(_row_of, rows)), is_old=is_old, **own)
    for name in ("file_bytes", "iterations"):
        value = getattr(result, name)
        if value is not None and not 0 <= _number(value) < _MOST:
            raise ValueError(f"{name}: {value:g} cannot be")
    for name in _TEXTS:
        _text_of({name: getattr(result, name)}, name)
    if not isinstance(result.kernels, dict):
        raise TypeError("kernels are a table")
    if result.verdict:
        Verdict(result.verdict)
    if result.rows[0]["kind"] == "phase" or not (0 < result.energy_j < _MOST and 0 < result.time_s < _MOST):
        raise ValueError("a result has joules and seconds above 0")
    return result


_KINDS = ("total", "run", "phase")
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "text": str, "integer": int, "number": (int, float), "flag": bool,
}  # fmt: skip
_ABOVE_0 = ("s_per_batch", "time_s", "iterations", "n", "u_statistical_j", "u_systematic_j", "rectangle_j",
            "samples_per_batch", "batch_size", "degrees_of_freedom", "degrees_of_freedom_s", "operations_per_sample",
            "operations_executed_per_sample")  # fmt: skip
"""Numbers of a row that are 0 or more."""


def _row_of(values: Any) -> Record:
    """A row of the frame by the types of its columns. Raises one of `DAMAGED`."""
    if not isinstance(values, dict) or values.get("kind") not in _KINDS:
        raise ValueError("a row of a kind that is none")
    for name, value in values.items():
        column = COLUMNS.get(name)
        kind = column.kind if column is not None else "number" if name.startswith(RESULT) else None
        is_flag = isinstance(value, bool)
        if kind is not None and (is_flag != (kind == "flag") or not isinstance(value, _TYPES[kind])):
            raise TypeError(f"{name}: {printable(repr(value), limit=80)} is no {kind}")
        if not isinstance(value, str | int | float):
            raise TypeError(f"{name}: {printable(repr(value), limit=80)} is no cell")
        if not is_flag and not isinstance(value, str) and not abs(_number(value)) < _MOST:
            raise ValueError(f"{name}: {value:g} cannot be")
        if name in _ABOVE_0 and _number(value) < 0:
            raise ValueError(f"{name}: {value:g} is less than 0")
    if values["kind"] != "phase":
        _number(values["energy_j"]), _number(values["time_s"])
    else:
        _text_of(values, "phase")
    return dict(values)


def _rows_of_sums(values: Any) -> list[Any]:
    """The rows that a journal of an earlier release would have had: it has sums over devices. What of an uncertainty is
    a limit it does not say. Raises one of `DAMAGED`."""
    samples, operations = values.get("samples"), values.get("operations")
    executed = values.get("operations_executed")
    common = dict(values.get("testbed") or {}) | {
        "provenance": values.get("provenance", "measured"), "device": values.get("device", ""),
    }  # fmt: skip
    whole = common | {name: values.get(name) for name in ("energy_j", "time_s", "u_statistical_j", "u_systematic_j")}
    whole |= {"kind": "total", "iterations": 1, "samples_per_batch": samples}
    whole |= {"is_lower_bound": True} if values.get("is_lower_bound") else {}
    whole |= {"operations_per_sample": operations / 2 / samples} if operations and samples else {}
    whole |= {"operations_executed_per_sample": executed / samples} if executed and samples else {}
    whole |= {f"{RESULT}{name}": value for name, value in (values.get("accuracy") or {}).items()}
    rows = [whole]
    for name, (joules, seconds) in (values.get("phases") or {}).items():
        parts = dict(zip(_PARTS, (values.get("phases_u") or {}).get(name, ()), strict=False))
        rows.append(common | phase_row(name, joules, seconds) | parts)
    for name, (seconds, why) in (values.get("unresolved") or {}).items():
        rows.append(common | phase_row(name, None, seconds) | {"note": f"not resolvable: {why}"})
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


_PARTS = ("u_statistical_j", "u_systematic_j", "rectangle_j")


def total_row(energy_j: float, time_s: float) -> Record:
    """A row of a whole run."""
    return {"kind": "total", "iterations": 1, "energy_j": energy_j, "time_s": time_s}


def phase_row(name: str, energy_j: float | None, time_s: float) -> Record:
    """A row of all phases of one name in a run, as if they were one."""
    return {"kind": "phase", "phase": name, "iterations": 1, "n": 1, "j_per_batch": energy_j, "s_per_batch": time_s}


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
        line = {"event": event, **{k: v.document() if isinstance(v, Result) else v for k, v in values.items()}}
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
