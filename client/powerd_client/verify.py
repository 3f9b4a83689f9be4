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

from powerd_client.clock_map import MOST_DRIFT_PPM, check_times, have_host_time, read_pieces, to_host_ns
from powerd_client.hdf5 import BOUND_COLUMNS, DIGEST, digest
from powerd_client.runfile import TIMES, numbers_of, open_run, read_json, read_objects, read_texts, reading, texts_of
from powerd_core.clock import ClockPiece
from powerd_core.errors import RunFileError, WireError
from powerd_core.model import BAD, Accuracy, Conversion, Flag, Provenance, QuantityConversion, quantity_of
from powerd_core.serde import MAX_PERIOD_NS, check_conversion, from_document

State = Literal["ok", "wrong", "unknown"]
Check = Generator[str, None, str]
Progress = Callable[[float, str], None]
Int64 = NDArray[np.int64]

_LEVELS = ("info", "warning", "error")
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
        for check in (_metadata, _attributes, _run, _phases, _devices, _clocks, _gaps, _counts):
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


def _attributes(file: h5py.File) -> Check:
    """Units of every column of numbers; what the lines say of themselves."""
    count = 0
    for group in (file["phases"], file["gaps"], *file["clocks"].values(), *file["lines"].values()):
        for name, column in group.items():
            if column.dtype.kind in "SO":
                continue
            count += 1
            if group.parent.name == "/lines" and name not in TIMES:
                unit = "raw code"
            elif name.endswith("_ns") or name in ("map", "exchanges"):
                unit = "ns"
            else:
                unit = "bits" if name == "flags" else "1"
            if (stored := str(column.attrs.get("units", "none"))) != unit:
                yield f"{column.name} has unit {stored[:20]!r}, not {unit!r}"
    for name, line in file["lines"].items():
        try:
            yield from (f"line {name!r} {fault}" for fault in _settings(name, line))
        except WireError as error:
            yield str(error)
    return f"units of {count} columns, settings of {len(file['lines'])} lines"


def _settings(name: str, line: h5py.Group) -> Iterator[str]:
    a = line.attrs
    texts = ("device", "source", "board", "provenance", "quantity", "description", "conversion", "accuracy", "detail")
    if absent := [key for key in texts if not isinstance(a.get(key), str)]:
        yield f"does not say its {absent[0]}"
        return
    if a["provenance"] not in list(Provenance):
        yield f"is {a['provenance'][:20]!r}, not measured, modelled or simulated"
    if not 0 < int(a.get("period_ns", 0)) <= MAX_PERIOD_NS:
        yield "has no period"
    conversion = _conversion(line)
    accuracy = from_document(Accuracy, read_json(a["accuracy"]), "accuracy")
    check_conversion(conversion, accuracy, list(line), f"line {name!r}")
    if quantity_of(conversion) != a["quantity"]:
        yield f"is {a['quantity'][:20]!r}, its conversion gives {quantity_of(conversion)!r}"
    if not isinstance(read_json(a["detail"]), dict):
        yield "has a detail that is no object"


def _conversion(line: h5py.Group) -> Conversion:
    conversion: Conversion = from_document(Conversion, read_json(line.attrs["conversion"]), "conversion")  # type: ignore[arg-type]
    return conversion


def _run(file: h5py.File) -> Check:
    """The run's attributes and messages, and whether they tell the same of its end."""
    a, messages = file.attrs, read_objects(file["messages"])
    start, stop = int(a["t_start_ns"]), int(a["t_stop_ns"])
    check_times(np.array([start, stop]), "the run")
    complete, rebuilt = int(a["complete"]), int(a["rebuilt"])
    levels = [message.get("level") for message in messages]
    times = [int(message.get("t_ns", 0)) for message in messages]
    for is_wrong, why in (
        (stop < start, "the run stops before it starts"),
        (not {complete, rebuilt} <= {0, 1}, "'complete' and 'rebuilt' are 0 or 1"),
        (complete and rebuilt, "the run is complete, and yet its recorder ended before it"),
        (not complete and not {*_LEVELS[1:]} & {*levels}, "the run is not complete, and no message says why"),
        (times != sorted(times), "messages are not in the order of their times"),
        (not all(isinstance(message.get("text"), str) for message in messages), "a message has no text"),
        (not {*levels} <= {*_LEVELS}, "a message has no level"),
        *(
            (name in a and not isinstance(read_json(a[name]), kind), f"{name!r} is no {kind.__name__}")
            for name, kind in (("command", list), ("environment", dict), ("reception", dict))
        ),
    ):
        if is_wrong:
            yield why
    return f"{(stop - start) * 1e-9:.3f} s, {'complete' if complete else 'not complete'}, {len(messages)} messages"


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
    cut = group["cut"][:]
    for bad, why in (
        (end < begin, "ends before it begins"),
        (_steps(begin) < 0, "is not in the order of beginnings"),
        ((kind < 0) | (kind >= len(kinds)), "is of a kind that is not listed"),
        ((process < 0) | (process >= len(processes)), "is of a process that is not listed"),
        ((parent < -1) | (parent >= index), "is listed before the phase around it"),
        ((cut < 0) | (cut > 1), "is neither cut nor not"),
        *((group[n][:].astype(np.int64) < -1, f"has a {n} below -1") for n in BOUND_COLUMNS if n in group),
        (inner & ((begin < begin[outer]) | (end > end[outer])), "is not inside the phase around it"),
        (inner & (process != process[outer]), "lies in another process's phase"),
    ):
        yield from _rows("phase", bad, why)
    for number, entry in enumerate(kinds):
        if not isinstance(entry.get("name"), str) or not isinstance(entry.get("attributes"), dict):
            yield f"kind {number} has no name or attributes"
    return f"{len(begin)} phases of {len(kinds)} kinds in {len(processes)} processes"


def _devices(file: h5py.File) -> Check:
    """What feeds a device is there, is power or energy, and is counted once."""
    count = 0
    for name, device in file["devices"].items():
        feeds = texts_of(device.attrs["feeds"])
        count += len(feeds)
        if len(set(feeds)) != len(feeds):
            yield f"device {name!r} counts a line twice"
        for feed in feeds:
            if feed not in file["lines"]:
                yield f"device {name!r} is fed by {feed!r}, which is not in the file"
            elif isinstance(_conversion(file["lines"][feed]), QuantityConversion):
                yield f"device {name!r} is fed by {feed!r}, which is no power"
    return f"{len(file['devices'])} devices fed by {count} lines"


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
            ("point", ~(np.isfinite(offset) & np.isfinite(low) & np.isfinite(high)), "is no number"),
            ("point", (offset < low) | (offset > high), "lies outside its guaranteed bound"),
            ("point", _steps(piece) < 0, "is of an earlier piece than the one before"),
            ("point", again, "is not later than the one before"),
            ("exchange", (t4 < t1) | (t3 < t2), "ends before it begins"),
        ):
            yield from _rows(f"clock {name!r}: {row}", bad, why)
        if not 0 <= float(clock.attrs["drift_ppm"]) < MOST_DRIFT_PPM:
            yield f"clock {name!r} has no drift limit"
    for name, line in file["lines"].items():
        firsts = numbers_of(line.attrs.get("clock_first", [0]))
        if firsts != sorted(firsts) or not all(0 <= first <= len(line["t_ns"]) for first in firsts):
            yield f"line {name!r}: its clocks do not follow each other"
    return f"{len(file['clocks'])} clocks with {points} points"


def _gaps(file: h5py.File) -> Check:
    """Gaps are in order, and of lines and streams that exist."""
    group = file["gaps"]
    begin, end, lost = (group[name][:].astype(np.int64) for name in ("begin_ns", "end_ns", "lost"))
    streams, causes = read_texts(group["stream"]), read_texts(group["cause"])
    lines = [read_json(text) for text in read_texts(group["lines"])]
    for edges in (begin, end):
        check_times(edges, "a gap")
    for bad, why in (
        (end < begin, "ends before it begins"),
        (_steps(begin) < 0, "is not in the order of beginnings"),
        (lost < -1, "lost fewer than nothing"),
        (np.array([not cause for cause in causes], bool), "has no cause"),
    ):
        yield from _rows("gap", bad, why)
    for number, (stream, names) in enumerate(zip(streams, lines, strict=True)):
        if missing := [name for name in names if name not in file["lines"]]:
            yield f"gap {number} is of line {missing[0]!r}, which is not in the file"
        elif other := [name for name in names if file["lines"][name].attrs["source"] != stream]:
            yield f"gap {number} of {stream!r} names line {other[0]!r} of another source"
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
    firsts = numbers_of(line.attrs.get("clock_first", [0]))
    return list(zip(clocks, firsts, [*firsts[1:], len(line["t_ns"])], strict=True))


def _readings(run: Path, file: h5py.File) -> Iterator[Finding]:
    """Read every line once, a million readings at a time: times, mapping, flags, and no value inside a gap."""
    wrong: dict[str, list[str]] = {"times": [], "mapping": [], "flags": [], "holes": []}
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
    yield finding_of("flags", wrong["flags"], f"no unknown flag in {total} readings")
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
                ("flags", (flags.astype(np.int64) & ~int(sum(Flag))) != 0, "has a flag that nobody knows"),
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
