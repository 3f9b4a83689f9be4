"""Whether a run file is what it says it is: every invariant of docs/reference/run-file.md that needs no energies.

Checksums and the digest show that the file is as it was written; the other checks, that what was written agrees with
itself. A check is a generator: it yields what is wrong, and returns what it looked at.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np

from powerd_client.runs.recover import open_run
from powerd_client.runs.runfile import (
    DIGEST,
    TIMES,
    digest,
    is_out_of_memory,
    read_json,
    read_objects,
    read_texts,
    reading,
    texts_of,
)
from powerd_core.errors import RunFileError
from powerd_core.model import Flag
from powerd_core.text import lost_text

State = Literal["ok", "wrong", "unknown"]
Check = Generator[str, None, str]
Progress = Callable[[float, str], None]

_MOST_TOLD = 5
"""What is wrong is told this often for each check, and then counted."""
_ROWS = 1 << 20
"""Readings that are looked at together."""
_BEFORE_NS = -(1 << 63)
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
    """Look at everything in a run file, one finding a check. Raises `RunFileError` only where there is no file, or no
    memory to read it."""
    run = Path(path)
    try:
        file = open_run(run)
    except RunFileError as error:
        is_of_machine = isinstance(error.__cause__, PermissionError) or is_out_of_memory(error.__cause__)
        if is_of_machine or not os.path.isfile(run):
            raise
        yield Finding("structure", "wrong", str(error))
        return
    with file:
        yield Finding("structure", "ok", f"{len(file['lines'])} lines, {len(file['clocks'])} clocks, nothing foreign")
        yield _judge(run, "checksums", _checksums(file, progress))
        progress(0.5, "checking times")
        for check in (_metadata, _gaps, _counts, _times):
            yield _judge(run, check.__name__.removeprefix("_"), check(file))


def wrong_at_first_sight(file: h5py.File) -> list[str]:
    """What `verify_file` would call wrong and can be told without going through the readings."""
    findings = [
        _judge(Path(file.filename), check.__name__.strip("_"), check(file)) for check in (_metadata, _gaps, _counts)
    ]
    return [finding.text for finding in findings if finding.state == "wrong"]


def _judge(run: Path, name: str, check: Check) -> Finding:
    wrong: list[str] = []
    try:
        with reading(run):
            while True:
                try:
                    wrong.append(next(check))
                except StopIteration as end:
                    return finding_of(name, wrong, end.value)
    except NotStored as missing:
        return Finding(name, "unknown", str(missing))
    except RunFileError as error:
        if is_out_of_memory(error.__cause__):
            raise
        return finding_of(name, [*wrong, f"cannot be read: {error.__cause__ or error}"], "")


def _rows(what: str, bad: Any, why: str, first: int = 0) -> Iterator[str]:
    """The first of the rows that are bad, and how many more there are; ``first`` is the number of the first row."""
    if count := int(np.count_nonzero(bad)):
        others = f", and {count - 1} more" if count > 1 else ""
        yield f"{what} {first + int(np.argmax(bad))} {why}{others}"


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
                if is_out_of_memory(error):
                    raise
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


def _gaps(file: h5py.File) -> Check:
    """Gaps are in order, each of lines that exist and with its cause."""
    group = file["gaps"]
    begin, end, lost = (group[name][:].astype(np.int64) for name in ("begin_ns", "end_ns", "lost"))
    strange = [any(name not in file["lines"] for name in read_json(text)) for text in read_texts(group["lines"])]
    for bad, why in (
        (end < begin, "ends before it begins"),
        (begin[1:] < begin[:-1], "begins after the next one"),
        (np.array([not cause for cause in read_texts(group["cause"])], bool), "has no cause"),
        (np.array(strange, bool), "is of a line that is not in the file"),
    ):
        yield from _rows("gap", bad, why)
    known = int(lost[lost > 0].sum())
    return lost_text(len(begin), known, int(np.count_nonzero(lost < 0)))


def _counts(file: h5py.File) -> Check:
    """What powerd numbered is what was received and what gaps declare; what was received is in the lines."""
    group = file["gaps"]
    if "parts" not in file or "numbers" not in group:
        raise NotStored("the release that wrote this file stored no sequence numbers")
    declared: Counter[tuple[str, ...]] = Counter()
    for clock, text, count in zip(
        read_texts(group["clock"]), read_texts(group["lines"]), group["numbers"][:].tolist(), strict=True
    ):
        declared[(clock, *read_json(text))] += count
    numbered = received = 0
    scans: Counter[tuple[str, str]] = Counter()
    for part in read_objects(file["parts"]):
        names, clock = [str(name) for name in part["lines"]], str(part["clock"])
        what = f"{part['stream']} ({clock})"
        span, missing = int(part["behind"]) - int(part["first"]), int(part["missing"])
        numbered, received = numbered + span, received + int(part["blocks"])
        if span != int(part["blocks"]) + missing:
            yield f"{what}: {span} numbers were given, {part['blocks']} received and {missing} declared lost"
        if declared[(clock, *names)] != missing:
            yield f"{what}: gaps declare {declared[(clock, *names)]} numbers lost, {missing} are"
        damaged = part.get("damaged", {})  # by line, in files that release 0.1.0 recovered
        for name in names:
            scans[name, clock] += int(part["scans"]) - int(damaged.get(name, 0)) if part["in_file"] else 0
    for name, line in file["lines"].items():
        plain, at, epoch = name.rpartition("@")  # two of one name are told apart by their epochs
        own = plain if at and len(epoch) == _EPOCH_DIGITS else name
        for clock, first, behind in _stretches(line):
            if (own, clock) in scans and behind - first != scans[own, clock]:
                yield f"line {name!r} has {behind - first} readings on {clock!r}, {scans[own, clock]} were received"
    return f"{numbered} numbers given = {received} received + {numbered - received} declared lost"


def _stretches(line: h5py.Group) -> list[tuple[str, int, int]]:
    """The clocks of a line, each with its first reading and the one behind its last."""
    clocks = texts_of(line.attrs.get("clocks", [line.attrs.get("clock", "")]))
    firsts = [int(first) for first in np.atleast_1d(line.attrs.get("clock_first", [0]))]
    return list(zip(clocks, firsts, [*firsts[1:], len(line["t_ns"])], strict=True))


def _times(file: h5py.File) -> Check:
    """The times of each line increase: on the host's clock, and on each board's but for its steps.

    A run that lasted has lines.
    """
    total = 0
    if not list(file["lines"]) and file.attrs["t_stop_ns"] > file.attrs["t_start_ns"]:
        yield "the run lasted, and there is no line in it"
    for name, line in file["lines"].items():
        total += len(line["t_ns"])
        last_ns = _BEFORE_NS
        for clock, first, behind in _stretches(line):
            group, last_board_ns, backwards = file["clocks"].get(clock), _BEFORE_NS, 0
            for begin in range(first, behind, _ROWS):
                t_board, t_ns, flags = (line[column][begin : min(begin + _ROWS, behind)] for column in TIMES)
                backwards += int(np.count_nonzero(_not_later(t_board, last_board_ns)))
                # While a clock steps nobody knows the order, and the flag says so.
                known = (flags & int(Flag.MISSING)) == 0
                late = np.zeros(len(t_ns), bool)
                late[known] = _not_later(t_ns[known], last_ns)
                yield from _rows("reading", late, f"of {name!r} is not later than the one before", begin)
                last_board_ns, last_ns = int(t_board[-1]), int(max([last_ns, *t_ns[known][-1:]]))
            # A clock that was set back may show a time twice, once for each of its steps.
            if backwards > (len(group["piece_rates"]) - 1 if group is not None and "piece_rates" in group else 0):
                yield f"the board's times of {name!r} go back {backwards} times"
    return f"the times of {total} readings increase"


def _not_later(t_ns: Any, last_ns: int) -> Any:
    """Which times are not later than the one before; ``last_ns`` is the one before the first."""
    return t_ns <= np.concatenate([np.array([last_ns], np.int64), t_ns])[: len(t_ns)]
