"""What must hold in the small tables of a run file. Each check yields what is wrong and returns what it looked at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np

from powerd_client.fileshape import (
    TIMES,
    check_times,
    numbers_of,
    read_json,
    read_objects,
    read_texts,
    texts_of,
)
from powerd_client.findings import LEVELS, Check, NotStored
from powerd_client.tables import BOUND_COLUMNS, GAP_NUMBERS, MOST_DRIFT_PPM, PHASE_COLUMNS
from powerd_core.errors import WireError
from powerd_core.model import Accuracy, Conversion, Provenance, QuantityConversion, quantity_of
from powerd_core.serde import MAX_PERIOD_NS, check_conversion, from_document

_EPOCH_DIGITS = 16


def attributes(file: h5py.File) -> Check:
    """Units of every column; what the lines say of themselves."""
    units = {f"/phases/{name}": unit for name, _, unit in PHASE_COLUMNS}
    units |= {f"/phases/{name}": "ns" for name in BOUND_COLUMNS if name in file["phases"]}
    units |= {f"/gaps/{name}": unit for name, unit in GAP_NUMBERS if name in file["gaps"]}
    for name, clock in file["clocks"].items():
        units |= {
            f"/clocks/{name}/{column}": "1" if column in ("map_piece", "piece_rates") else "ns" for column in clock
        }
    for name, line in file["lines"].items():
        own = dict(zip(TIMES, ("ns", "ns", "bits"), strict=True))
        units |= {f"/lines/{name}/{column}": own.get(column, "raw code") for column in line}
    for path, unit in units.items():
        if str(file[path].attrs.get("units", "")) != unit:
            yield f"{path} has unit {str(file[path].attrs.get('units', 'none'))[:20]!r}, not {unit!r}"
    for name, line in file["lines"].items():
        yield from _line(name, line)
    return f"units of {len(units)} columns, settings of {len(file['lines'])} lines"


def _line(name: str, line: h5py.Group) -> Iterator[str]:
    a = line.attrs
    texts = ("device", "source", "board", "provenance", "quantity", "description", "conversion", "accuracy", "detail")
    if bad := [key for key in texts if not isinstance(a.get(key), str)]:
        yield f"line {name!r} does not say its {bad[0]}"
        return
    if a["provenance"] not in list(Provenance):
        yield f"line {name!r} is {a['provenance'][:20]!r}, not measured, modelled or simulated"
    if not 0 < int(a.get("period_ns", 0)) <= MAX_PERIOD_NS:
        yield f"line {name!r} has no period"
    try:
        conversion: Conversion = from_document(Conversion, read_json(a["conversion"]), "conversion")  # type: ignore[arg-type]
        accuracy = from_document(Accuracy, read_json(a["accuracy"]), "accuracy")
        check_conversion(conversion, accuracy, list(line), f"line {name!r}")
        if quantity_of(conversion) != a["quantity"]:
            yield f"line {name!r} is {a['quantity'][:20]!r}, its conversion gives {quantity_of(conversion)!r}"
        if not isinstance(read_json(a["detail"]), dict):
            yield f"line {name!r}: its detail is no object"
    except WireError as error:
        yield str(error)


def run(file: h5py.File) -> Check:
    """The run's attributes and messages, and whether they tell the same of its end."""
    a, messages = file.attrs, read_objects(file["messages"])
    start, stop = int(a["t_start_ns"]), int(a["t_stop_ns"])
    check_times(np.array([start, stop]), "the run")
    if stop < start:
        yield "the run stops before it starts"
    for name, kind in (("command", list), ("environment", dict), ("reception", dict)):
        if name in a and not isinstance(read_json(a[name]), kind):
            yield f"{name!r} is no {kind.__name__}"
    complete, rebuilt = int(a["complete"]), int(a["rebuilt"])
    if not {complete, rebuilt} <= {0, 1}:
        yield "'complete' and 'rebuilt' are 0 or 1"
    for message in messages:
        if message.get("level") not in LEVELS or not isinstance(message.get("text"), str):
            yield f"a message has no level or text: {str(message)[:80]}"
    if complete and rebuilt:
        yield "the run is complete, and yet its recorder ended before it"
    if not complete and not any(message.get("level") in LEVELS[1:] for message in messages):
        yield "the run is not complete, and no message says why"
    times = [int(message.get("t_ns", 0)) for message in messages]
    if times != sorted(times):
        yield "messages are not in the order of their times"
    return f"{(stop - start) * 1e-9:.3f} s, {'complete' if complete else 'not complete'}, {len(messages)} messages"


def _steps(values: Any) -> Any:
    """By how much each value is above the one before; 0 for the first."""
    return np.diff(values, prepend=values[:1])


def _rows(what: str, bad: Any, why: str) -> Iterator[str]:
    if count := int(np.count_nonzero(bad)):
        others = f", and {count - 1} more" if count > 1 else ""
        yield f"{what} {int(np.argmax(bad))} {why}{others}"


def devices(file: h5py.File) -> Check:
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


def _conversion(line: h5py.Group) -> Conversion:
    made: Conversion = from_document(Conversion, read_json(line.attrs["conversion"]), "conversion")  # type: ignore[arg-type]
    return made


def clocks(file: h5py.File) -> Check:
    """Every mapping lies inside its guaranteed bound; exchanges run forwards on both sides."""
    points = 0
    for name, clock in file["clocks"].items():
        t, (offset, low, high), piece = clock["map_t_board_ns"][:], clock["map"][:].T, clock["map_piece"][:]
        t1, t2, t3, t4 = clock["exchanges"][:].astype(np.int64).T
        points += len(t)
        check_times(t, f"clock {name!r}")
        where = f"clock {name!r}: point"
        yield from _rows(where, ~(np.isfinite(offset) & np.isfinite(low) & np.isfinite(high)), "is no number")
        yield from _rows(where, (offset < low) | (offset > high), "lies outside its guaranteed bound")
        yield from _rows(where, _steps(piece) < 0, "is of an earlier piece than the one before")
        again = (_steps(piece) == 0) & (_steps(t) <= 0)
        again[:1] = False
        yield from _rows(where, again, "is not later than the one before")
        yield from _rows(f"clock {name!r}: exchange", (t4 < t1) | (t3 < t2), "ends before it begins")
        if not 0 <= float(clock.attrs["drift_ppm"]) < MOST_DRIFT_PPM:
            yield f"clock {name!r} has no drift limit"
    for name, line in file["lines"].items():
        firsts = numbers_of(line.attrs.get("clock_first", [0]))
        if firsts != sorted(firsts) or not all(0 <= first <= len(line["t_ns"]) for first in firsts):
            yield f"line {name!r}: its clocks do not follow each other"
    return f"{len(file['clocks'])} clocks with {points} points"


def gaps(file: h5py.File) -> Check:
    """Gaps are in order, and of lines and streams that exist."""
    group = file["gaps"]
    begin, end, lost = (group[name][:].astype(np.int64) for name in ("begin_ns", "end_ns", "lost"))
    streams, causes = read_texts(group["stream"]), read_texts(group["cause"])
    lines = [read_json(text) for text in read_texts(group["lines"])]
    for edges in (begin, end):
        check_times(edges, "a gap")
    yield from _rows("gap", end < begin, "ends before it begins")
    yield from _rows("gap", _steps(begin) < 0, "is not in the order of beginnings")
    yield from _rows("gap", lost < -1, "lost fewer than nothing")
    yield from _rows("gap", np.array([not cause for cause in causes], bool), "has no cause")
    for number, (stream, names) in enumerate(zip(streams, lines, strict=True)):
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            yield f"gap {number} names no lines"
        elif missing := [name for name in names if name not in file["lines"]]:
            yield f"gap {number} is of line {missing[0]!r}, which is not in the file"
        elif other := [name for name in names if file["lines"][name].attrs["source"] != stream]:
            yield f"gap {number} of {stream!r} names line {other[0]!r} of another source"
    known = int(lost[lost > 0].sum())
    return f"{len(begin)} gaps, {known} scans lost, and {int(np.count_nonzero(lost < 0))} times nobody knows how many"


def counts(file: h5py.File) -> Check:
    """What powerd numbered is what was received and what gaps declare; what was received is in the lines."""
    if "parts" not in file or "numbers" not in file["gaps"]:
        raise NotStored("the release that wrote this file stored no sequence numbers")
    parts = read_objects(file["parts"])
    declared: dict[tuple[str, ...], int] = {}
    group = file["gaps"]
    numbers_of_gaps = group["numbers"][:].tolist()
    for clock, text, numbers in zip(
        read_texts(group["clock"]), read_texts(group["lines"]), numbers_of_gaps, strict=True
    ):
        key = (clock, *read_json(text))
        declared[key] = declared.get(key, 0) + numbers
    numbered = received = 0
    scans: dict[tuple[str, str], int] = {}
    for part in parts:
        names, clock = [str(name) for name in part["lines"]], str(part["clock"])
        what = f"{part['stream']} ({clock})"
        span, missing = int(part["behind"]) - int(part["first"]), int(part["missing"])
        numbered, received = numbered + span, received + int(part["blocks"])
        if span != int(part["blocks"]) + missing:
            yield f"{what}: {span} numbers were given, {part['blocks']} received and {missing} declared lost"
        if declared.get((clock, *names), 0) != missing:
            yield f"{what}: gaps declare {declared.get((clock, *names), 0)} numbers lost, {missing} are"
        damaged = part.get("damaged", {})
        for name in names:
            there = int(part["scans"]) - int(damaged.get(name, 0)) if part["in_file"] else 0
            scans[name, clock] = scans.get((name, clock), 0) + there
    yield from _readings_of(file, scans)
    return f"{numbered} numbers given = {received} received + {numbered - received} declared lost"


def _readings_of(file: h5py.File, scans: dict[tuple[str, str], int]) -> Iterator[str]:
    for name, line in file["lines"].items():
        clocks, firsts = texts_of(line.attrs.get("clocks", [])), numbers_of(line.attrs.get("clock_first", []))
        for clock, first, behind in zip(clocks, firsts, [*firsts[1:], len(line["t_ns"])], strict=True):
            expected = scans.get((_plain(name), clock))
            if expected is not None and behind - first != expected:
                yield f"line {name!r} has {behind - first} readings on {clock!r}, {expected} were received"


def _plain(name: str) -> str:
    """A line's own name, without the epoch that tells two of one name apart."""
    plain, at, epoch = name.rpartition("@")
    return plain if at and len(epoch) == _EPOCH_DIGITS else name
