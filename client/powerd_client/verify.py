"""Whether a run file is what it says it is: every invariant of docs/run-file.md that needs no energies.

A check is a generator: it yields what is wrong, and returns what it looked at.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
from numpy.typing import NDArray

from powerd_client.clock_map import check_times, have_host_time, read_pieces, to_host_ns
from powerd_client.runfile import (
    DIGEST,
    TIMES,
    digest,
    open_run,
    read_json,
    read_objects,
    read_texts,
    reading,
    texts_of,
)
from powerd_core.clock import ClockPiece
from powerd_core.errors import RunFileError
from powerd_core.model import BAD, Flag

State = Literal["ok", "wrong", "unknown"]
Check = Generator[str, None, str]
Progress = Callable[[float, str], None]
Int64 = NDArray[np.int64]

_MOST_TOLD = 5
"""What is wrong is told this often for each check, and then counted."""
_ROWS = 1 << 20
"""Readings that are looked at together."""
_BEFORE_NS = -(1 << 62)
"""Before every time that `check_times` lets pass, and near enough for differences to fit into 64 bits."""
_EPOCH_DIGITS = 16


class NotStored(Exception):
    """A check needs something that the release that wrote the file did not store."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found. ``unknown`` is neither: the file does not hold what would be needed to tell."""

    check: str
    state: State
    text: str


def finding_of(name: str, wrong: list[str], text: str) -> Finding:
    """The finding of a check that told what is ``wrong``, else ``text``."""
    if not wrong:
        return Finding(name, "ok", text)
    more = f"; and {len(wrong) - _MOST_TOLD} more" if len(wrong) > _MOST_TOLD else ""
    return Finding(name, "wrong", "; ".join(wrong[:_MOST_TOLD]) + more)


def verify_file(path: str | os.PathLike[str], progress: Progress = lambda share, text: None) -> Iterator[Finding]:
    """Look at everything in a run file, one finding a check. Raises `RunFileError` only where there is no file."""
    run = Path(path)
    try:
        file = open_run(run)
    except RunFileError as error:
        if isinstance(error.__cause__, PermissionError) or not os.path.isfile(run):
            raise
        yield Finding("structure", "wrong", str(error))
        return
    with file:
        yield Finding("structure", "ok", f"{len(file['lines'])} lines, {len(file['clocks'])} clocks, nothing foreign")
        yield _judge(run, "checksums", _checksums(file, progress))
        for check in (_metadata, _phases, _clocks, _gaps, _counts):
            yield _judge(run, check.__name__.removeprefix("_"), check(file))
        progress(0.5, "checking times")
        yield from _readings(run, file)


def _judge(run: Path, name: str, check: Check) -> Finding:
    wrong: list[str] = []
    text = ""
    try:
        with reading(run):
            while True:
                try:
                    wrong.append(next(check))
                except StopIteration as end:
                    text = end.value
                    break
    except NotStored as missing:
        return Finding(name, "unknown", str(missing))
    except RunFileError as error:
        wrong.append(f"cannot be read: {error.__cause__ or error}")
    return finding_of(name, wrong, text)


def _rows(what: str, bad: Any, why: str, first: int = 0) -> Iterator[str]:
    """The first of the rows that are bad, and how many more there are; ``first`` is the number of the first row."""
    if count := int(np.count_nonzero(bad)):
        others = f", and {count - 1} more" if count > 1 else ""
        yield f"{what} {first + int(np.argmax(bad))} {why}{others}"


def _steps(values: Any) -> Any:
    """By how much each value is above the one before; 0 for the first."""
    return np.diff(values, prepend=values[:1])


def _checksums(file: h5py.File, progress: Progress) -> Check:
    """Read every chunk; HDF5 compares its checksum."""
    every: list[h5py.Dataset] = []
    file.visititems(lambda _, item: every.append(item) if isinstance(item, h5py.Dataset) else None)
    total, done, chunks = sum(d.nbytes for d in every) or 1, 0, 0
    for dataset in every:
        progress(0.5 * done / total, f"reading {dataset.name}")
        step = dataset.chunks[0] if dataset.chunks else _ROWS
        for begin in range(0, len(dataset), step):
            end = min(begin + step, len(dataset))
            chunks += 1
            try:
                dataset[begin:end]
            except (OSError, RuntimeError) as error:
                yield f"{dataset.name}, rows {begin} to {end - 1}: {error}"
        done += dataset.nbytes
    if bare := sum(not dataset.fletcher32 for dataset in every):
        raise NotStored(f"{bare} of {len(every)} datasets carry no checksums; all of them could be read")
    return f"{chunks} chunks of {len(every)} datasets"


def _metadata(file: h5py.File) -> Check:
    if DIGEST not in file.attrs:
        raise NotStored("the release that wrote this file stored no digest of its attributes")
    if file.attrs[DIGEST] != digest(file):
        yield "attributes, names or shapes are not those with which the file was written"
    return "attributes, names and shapes are as they were written"


def _phases(file: h5py.File) -> Check:
    """Phases are in order, inside those around them, and of kinds and processes that exist."""
    group = file["phases"]
    begin, end, process, kind, parent = (
        group[name][:].astype(np.int64, copy=False) for name in ("begin_ns", "end_ns", "process", "kind", "parent")
    )
    kinds = read_objects(group["kinds"])
    processes = read_objects(file["processes"]) if "processes" in file else []
    for edges in (begin, end):
        check_times(edges, "a phase")
    index = np.arange(len(begin))
    inner = (parent >= 0) & (parent < index)
    outer = np.where(inner, parent, 0)
    for bad, why in (
        (end < begin, "ends before it begins"),
        (_steps(begin) < 0, "is not in the order of beginnings"),
        ((kind < 0) | (kind >= len(kinds)), "is of a kind that is not listed"),
        ((process < 0) | (process >= len(processes)), "is of a process that is not listed"),
        ((parent < -1) | (parent >= index), "is listed before the phase around it"),
        (inner & ((begin < begin[outer]) | (end > end[outer])), "is not inside the phase around it"),
    ):
        yield from _rows("phase", bad, why)
    return f"{len(begin)} phases of {len(kinds)} kinds in {len(processes)} processes"


def _clocks(file: h5py.File) -> Check:
    """Every mapping lies inside its guaranteed bound; exchanges run forwards on both sides."""
    points = 0
    for name, clock in file["clocks"].items():
        t, (offset, low, high), piece = clock["map_t_board_ns"][:], clock["map"][:].T, clock["map_piece"][:]
        t1, t2, t3, t4 = clock["exchanges"][:].astype(np.int64).T
        points += len(t)
        check_times(t, f"clock {name!r}")
        again = (_steps(piece) == 0) & (_steps(t) <= 0)
        again[:1] = False
        for row, bad, why in (
            ("point", ~((offset >= low) & (offset <= high)), "lies outside its guaranteed bound"),
            ("point", again, "is not later than the one before"),
            ("exchange", (t4 < t1) | (t3 < t2), "ends before it begins"),
        ):
            yield from _rows(f"clock {name!r}: {row}", bad, why)
    return f"{len(file['clocks'])} clocks with {points} points"


def _gaps(file: h5py.File) -> Check:
    """Gaps are in order, each of lines that exist and with its cause."""
    group = file["gaps"]
    begin, end, lost = (group[name][:].astype(np.int64) for name in ("begin_ns", "end_ns", "lost"))
    for edges in (begin, end):
        check_times(edges, "a gap")
    for bad, why in (
        (end < begin, "ends before it begins"),
        (_steps(begin) < 0, "is not in the order of beginnings"),
        (np.array([not cause for cause in read_texts(group["cause"])], bool), "has no cause"),
        (
            np.array([any(n not in file["lines"] for n in read_json(t)) for t in read_texts(group["lines"])], bool),
            "is of a line that is not in the file",
        ),
    ):
        yield from _rows("gap", bad, why)
    known = int(lost[lost > 0].sum())
    return f"{len(begin)} gaps, {known} scans lost, and {int(np.count_nonzero(lost < 0))} times nobody knows how many"


def _counts(file: h5py.File) -> Check:
    """What powerd numbered is what was received and what gaps declare; what was received is in the lines."""
    if "parts" not in file or "numbers" not in file["gaps"]:
        raise NotStored("the release that wrote this file stored no sequence numbers")
    group = file["gaps"]
    declared: dict[tuple[str, ...], int] = {}
    for clock, text, count in zip(
        read_texts(group["clock"]), read_texts(group["lines"]), group["numbers"][:].tolist(), strict=True
    ):
        key = (clock, *read_json(text))
        declared[key] = declared.get(key, 0) + count
    numbered = received = 0
    scans: dict[tuple[str, str], int] = {}
    for part in read_objects(file["parts"]):
        names, clock = [str(name) for name in part["lines"]], str(part["clock"])
        what = f"{part['stream']} ({clock})"
        span, missing = int(part["behind"]) - int(part["first"]), int(part["missing"])
        numbered, received = numbered + span, received + int(part["blocks"])
        if span != int(part["blocks"]) + missing:
            yield f"{what}: {span} numbers were given, {part['blocks']} received and {missing} declared lost"
        if declared.get((clock, *names), 0) != missing:
            yield f"{what}: gaps declare {declared.get((clock, *names), 0)} numbers lost, {missing} are"
        damaged = part.get("damaged", {})  # by line, in files that an earlier release recovered
        for name in names:
            there = int(part["scans"]) - int(damaged.get(name, 0)) if part["in_file"] else 0
            scans[name, clock] = scans.get((name, clock), 0) + there
    for name, line in file["lines"].items():
        plain, at, epoch = name.rpartition("@")  # two of one name are told apart by their epochs
        own = plain if at and len(epoch) == _EPOCH_DIGITS else name
        for clock, first, behind in _stretches(line):
            expected = scans.get((own, clock))
            if expected is not None and behind - first != expected:
                yield f"line {name!r} has {behind - first} readings on {clock!r}, {expected} were received"
    return f"{numbered} numbers given = {received} received + {numbered - received} declared lost"


def _stretches(line: h5py.Group) -> list[tuple[str, int, int]]:
    """The clocks of a line, each with its first reading and the one behind its last."""
    clocks = texts_of(line.attrs.get("clocks", [line.attrs.get("clock", "")]))
    firsts = [int(first) for first in np.atleast_1d(line.attrs.get("clock_first", [0]))]
    return list(zip(clocks, firsts, [*firsts[1:], len(line["t_ns"])], strict=True))


def _readings(run: Path, file: h5py.File) -> Iterator[Finding]:
    """Read every line once, a million readings at a time: times, mapping, and no value inside a gap."""
    wrong: dict[str, list[str]] = {"times": [], "mapping": [], "holes": []}
    total = mapped = 0
    try:
        with reading(run):
            mappings = {name: read_pieces(clock) for name, clock in file["clocks"].items() if "piece_rates" in clock}
            gaps = _gaps_by_line(file)
            for name, line in file["lines"].items():
                total += len(line["t_ns"])
                mapped += sum(behind - first for clock, first, behind in _stretches(line) if clock in mappings)
                for check, fault in _faults(name, line, mappings, gaps.get(name)):
                    wrong[check].append(fault)
    except RunFileError as error:
        yield Finding("readings", "wrong", f"cannot be read: {error.__cause__ or error}")
        return
    yield finding_of("times", wrong["times"], f"the times of {total} readings increase")
    if mapped == total or wrong["mapping"]:
        yield finding_of("mapping", wrong["mapping"], f"{mapped} times are those of their clock's mapping")
    else:
        yield Finding("mapping", "unknown", "this file stores no mapping")
    holes = f"no reading is where a gap says that there is none ({len(file['gaps/lost'])} gaps)"
    yield finding_of("holes", wrong["holes"], holes)


def _faults(
    name: str, line: h5py.Group, mappings: dict[str, tuple[ClockPiece, ...]], gaps: tuple[Int64, Int64] | None
) -> Iterator[tuple[str, str]]:
    """What is wrong with the readings of a line, each with the check that it fails."""
    last_ns = _BEFORE_NS
    for clock, first, behind in _stretches(line):
        pieces, last_board_ns, backwards = mappings.get(clock, ()), _BEFORE_NS, 0
        for begin in range(first, behind, _ROWS):
            t_board, t_ns, flags = (line[column][begin : min(begin + _ROWS, behind)] for column in TIMES)
            for times in (t_board, t_ns):
                check_times(times, f"a reading of {name!r}")
            backwards += int(np.count_nonzero(np.diff(t_board, prepend=last_board_ns) <= 0))
            last_board_ns = t_board[-1]
            # Between two pieces of a mapping nobody knows the order, and the flag says so.
            known = have_host_time(t_board, pieces) if pieces else np.ones(len(t_ns), bool)
            late = np.zeros(len(t_ns), bool)
            late[known] = np.diff(t_ns[known], prepend=last_ns) <= 0
            last_ns = max([last_ns, *t_ns[known][-1:]])
            off = np.abs(to_host_ns(t_board, pieces) - t_ns) > 1 if pieces else np.zeros(len(t_ns), bool)
            for check, bad, why in (
                ("times", late, "is not later than the one before"),
                ("mapping", off, "is not where its clock puts it"),
                ("mapping", ~known & ((flags & int(Flag.MISSING)) == 0), "has no known time, and no flag says so"),
                ("holes", _inside(t_ns, gaps) & ((flags & int(BAD)) == 0), "lies inside a gap"),
            ):
                yield from ((check, fault) for fault in _rows("reading", bad, f"of {name!r} {why}", begin))
        # A clock that was set back may show a time twice, once for each of its steps.
        if backwards > max(0, len(pieces) - 1):
            yield "times", f"the board's times of {name!r} go back {backwards} times"


def _gaps_by_line(file: h5py.File) -> dict[str, tuple[Int64, Int64]]:
    """Begins and ends of the gaps of each line, those that overlap as one."""
    group = file["gaps"]
    by_line: dict[str, list[list[int]]] = {}
    edges = zip(group["begin_ns"][:].tolist(), group["end_ns"][:].tolist(), strict=True)
    for (begin, end), text in sorted(zip(edges, read_texts(group["lines"]), strict=True)):
        for name in read_json(text):
            merged = by_line.setdefault(str(name), [])
            if merged and begin < merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            else:
                merged.append([begin, end])
    return {name: (array[:, 0], array[:, 1]) for name, m in by_line.items() if len(array := np.array(m, np.int64))}


def _inside(t_ns: Int64, gaps: tuple[Int64, Int64] | None) -> NDArray[np.bool_]:
    """Strictly between the edges of a gap, which are readings themselves; they are rounded to whole nanoseconds."""
    if gaps is None:
        return np.zeros(len(t_ns), bool)
    begins, ends = gaps
    before = np.searchsorted(begins, t_ns - 1, "left") - 1
    return (before >= 0) & (t_ns + 1 < ends[np.clip(before, 0, None)])
