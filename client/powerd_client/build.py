"""From a journal to a run file: one pass for what is small, one pass a stream for the readings.

Memory stays bounded by the number of frames (not readings). The file appears under its name only when it is whole.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from powerd_client import journal as journals
from powerd_client.phases import Phases, kind_key, pair_marks
from powerd_client.streams import StreamFrames, clock_name, write_stream
from powerd_core.clock import ClockPiece, map_clock
from powerd_core.document import read_description, to_document
from powerd_core.errors import ClockError, RunFileError, WireError
from powerd_core.framereader import Garbage
from powerd_core.marks import RECORD, Marks
from powerd_core.model import CLOCK_NAME, Block, ClockExchange, Description, Gap
from powerd_core.wire import Event, Message

FORMAT = "powerd-run"
FORMAT_VERSION = 1

Progress = Callable[[float], None]


@dataclass(slots=True)
class Contents:
    """Everything in a journal but the readings, which stay in the file and are known by their place."""

    run: dict[str, Any] = field(default_factory=dict)
    t_start_ns: int = 0
    t_stop_ns: int = 0
    complete: bool = False
    stopped: bool = False
    reception: dict[str, Any] = field(default_factory=dict)
    descriptions: dict[int, Description] = field(default_factory=dict)
    """By epoch, in the order in which they were first seen."""
    exchanges: dict[int, list[ClockExchange]] = field(default_factory=dict)
    streams: dict[tuple[int, int], StreamFrames] = field(default_factory=dict)
    """By epoch and stream number."""
    names: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    marks: dict[int, dict[int, bytes]] = field(default_factory=dict)
    """By process: raw records by the index of the first of them."""
    messages: list[dict[str, Any]] = field(default_factory=list)

    def note(self, level: str, text: str, t_ns: int = 0) -> None:
        self.messages.append({"t_ns": t_ns, "level": level, "text": text})


def read_contents(journal: Path) -> Contents:
    """What a journal directory holds, marks that the recorder had not copied included. Raises `RunFileError`."""
    contents = Contents()
    file = journal / "journal.bin"
    if not file.exists():
        raise RunFileError(f"{journal} holds no journal.bin: it is not a recording, or it ended before it began")
    journals.check_version(file)
    for event, at, size in journals.read_events(file):
        _take(contents, event, at, size)
    names, marks = journals.MarkTail(journal, consume=False).read(final=True)
    for document in names:
        _take(contents, Message("phase-names", document), 0, 0)
    for piece in marks:
        _take(contents, piece, 0, 0)
    if not contents.run:
        raise RunFileError(f"{file} does not say which run it is: it is no journal, or its beginning is lost")
    return contents


def _take(contents: Contents, event: Event | Garbage, at: int, size: int) -> None:
    match event:
        case Block() | Gap():
            frames = contents.streams.setdefault((event.epoch, event.stream), StreamFrames())
            frames.add(event, at, size)
        case ClockExchange():
            contents.exchanges.setdefault(event.epoch, []).append(event)
        case Marks():
            contents.marks.setdefault(event.process, {})[event.first] = event.records
        case Garbage():
            cut_off = event.reason == "cut off"
            text = f"{event.count} bytes of the journal at {at} could not be read ({event.reason})"
            contents.note("info" if cut_off else "error", text)
        case Message():
            _take_message(contents, event)


def _take_message(contents: Contents, event: Message) -> None:
    body: dict[str, Any] = dict(event.body)
    match event.subject:
        case "run":
            contents.run = body
        case "start":
            contents.t_start_ns = int(body["t_start_ns"])
        case "stop":
            contents.t_stop_ns, contents.complete, contents.stopped = (
                int(body["t_stop_ns"]),
                bool(body["complete"]),
                True,
            )
            contents.reception = body.get("reception", {})
        case "description":
            try:
                contents.descriptions.setdefault(event.epoch, read_description(body))
            except WireError as error:
                contents.note("error", f"a description in the journal is damaged: {error}")
        case "phase-names":
            contents.names.setdefault(int(body["process"]), []).append(body)
        case "note":
            contents.messages.append(body)


def build_run(journal: Path, out: Path, *, overwrite: bool = False, progress: Progress = lambda share: None) -> None:
    """Turn a journal directory into the run file ``out`` and remove it.

    The caller owns the journal's lock. Raises `RunFileError` (disk full, file in the way, damaged journal) with the
    journal left as it was.
    """
    contents = read_contents(journal)
    partial = out.with_name(f"{out.name}.{os.getpid()}.partial")
    try:
        with h5py.File(partial, "x", libver=("earliest", "v110")) as file:
            _write(file, contents, journal / "journal.bin", progress)
            file.flush()
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        _move(partial, out, overwrite)
    except (OSError, RuntimeError) as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, RunFileError):
            raise
        raise RunFileError(
            f"{out} could not be written ({error}): nothing is lost, `joules info {out}` tries again from {journal}"
        ) from error
    shutil.rmtree(journal, ignore_errors=True)


def _move(partial: Path, out: Path, overwrite: bool) -> None:
    if overwrite:
        partial.replace(out)
        return
    try:
        os.link(partial, out)  # unlike a rename, refuses to replace a file that appeared meanwhile
    except FileExistsError:
        raise RunFileError(
            f"{out} appeared while it was being recorded: move it away and run `joules info {out}`"
        ) from None
    except OSError:
        if out.exists():
            raise
        partial.replace(out)
        return
    partial.unlink()


def _write(file: h5py.File, contents: Contents, journal_file: Path, progress: Progress) -> None:
    clocks = _write_clocks(file, contents)
    total = sum(f.size for f in contents.streams.values()) or 1
    done = 0
    gaps: list[dict[str, Any]] = []
    last_ns = 0
    groups: dict[str, list[tuple[int, int]]] = {}
    for epoch, description in contents.descriptions.items():
        for stream in description.streams:
            groups.setdefault(stream.source + "/" + str(stream.number), []).append((epoch, stream.number))
    lines = file.create_group("lines")
    for keys in groups.values():
        parts = [
            (contents.descriptions[key[0]], contents.streams.get(key, StreamFrames()), clocks.get(key[0], ()), key)
            for key in keys
        ]
        end = write_stream(lines, parts, journal_file, gaps, contents.note, contents.t_stop_ns)
        last_ns = max(last_ns, end)
        done += sum(part[1].size for part in parts)
        progress(done / total)
    phases, kinds, processes = _phases(contents)
    last_ns = max([last_ns, *phases.end_ns])
    if not contents.stopped:
        contents.note("warning", "the recorder ended before the run did: this file was built from its journal", last_ns)
    _write_devices(file, contents)
    _write_phases(file, phases, kinds)
    _write_table(file.create_group("gaps"), gaps)
    _write_strings(file, "processes", processes)
    _write_strings(file, "messages", sorted(contents.messages, key=lambda m: m["t_ns"]))
    run = contents.run
    start_ns = contents.t_start_ns or min([last_ns, *phases.begin_ns])
    file.attrs.update(
        {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "run_id": run["run_id"],
            "created_utc": run["created_utc"],
            "powerd_version": run["powerd_version"],
            "host_clock": CLOCK_NAME,
            "t_start_ns": start_ns,
            "t_stop_ns": contents.t_stop_ns or max(last_ns, start_ns),
            "complete": int(contents.complete),
            "rebuilt": int(not contents.stopped),
            "command": json.dumps(run["command"]),
            "environment": json.dumps(run["environment"]),
            "reception": json.dumps(contents.reception),
        }
    )


def _write_clocks(file: h5py.File, contents: Contents) -> dict[int, tuple[ClockPiece, ...]]:
    group, found = file.create_group("clocks"), {}
    for epoch, description in contents.descriptions.items():
        exchanges = sorted(contents.exchanges.get(epoch, []), key=lambda e: e.t_board_ns)
        try:
            pieces = found[epoch] = map_clock(exchanges)
        except ClockError as error:
            contents.note("error", f"readings of {description.board!r} have no place in time: {error}")
            continue
        clock = group.create_group(clock_name(description))
        clock.attrs.update({"board": description.board, "epoch": str(epoch), "drift_ppm": pieces[0].drift_ppm})
        rows = [[e.t1_host_ns, e.t2_board_ns, e.t3_board_ns, e.t4_host_ns] for e in exchanges]
        _numbers(clock, "exchanges", np.array(rows, np.int64), "ns")
        bounds = [np.column_stack([p.offset_ns, p.low_ns, p.high_ns]) for p in pieces]
        _numbers(clock, "map", np.concatenate(bounds), "ns")
        _numbers(clock, "map_t_board_ns", np.concatenate([np.array(p.t_board_ns, np.int64) for p in pieces]), "ns")
        _numbers(clock, "map_piece", np.repeat(np.arange(len(pieces)), [len(p.t_board_ns) for p in pieces]), "1")
    return found


def _phases(contents: Contents) -> tuple[Phases, list[dict[str, Any]], list[dict[str, Any]]]:
    phases, kinds, processes = Phases(), dict[str, tuple[int, dict[str, Any]]](), []
    for token in sorted({*contents.names, *contents.marks}):
        own: dict[int, int] = {}
        names: dict[int, str] = {}
        process: dict[str, Any] = {}
        for document in contents.names.get(token, []):
            if "kind" in document:
                entry = {key: document[key] for key in ("name", "attributes", "timing")}
                own[document["kind"]] = kinds.setdefault(kind_key(entry), (len(kinds), entry))[0]
                names[document["kind"]] = entry["name"]
            elif not process:
                process = {key: document[key] for key in ("pid", "command") if key in document}
        processes.append(process)
        pair_marks(
            phases,
            Marks(token, 0, _join(contents.marks.get(token, {}))),
            process=len(processes) - 1,
            kinds=own,
            names=names,
            last_ns=contents.t_stop_ns if contents.complete else None,
        )
    phases.sort()
    for t_ns, text in phases.problems:
        contents.note("warning", text, t_ns)
    return phases, [entry for _, entry in kinds.values()], processes


def _join(pieces: dict[int, bytes]) -> bytes:
    """The records of one process in order; what the journal and a segment both hold is taken once."""
    found, behind = [], 0
    for first in sorted(pieces):
        records = pieces[first]
        skip = max(0, behind - first)
        found.append(records[skip * RECORD.size :])
        behind = max(behind, first + len(records) // RECORD.size)
    return b"".join(found)


def _numbers(group: h5py.Group, name: str, values: Any, units: str) -> None:
    array = np.asarray(values)
    options: dict[str, Any] = {}
    if array.size:
        options = {"compression": "gzip", "compression_opts": 1, "shuffle": True, "fletcher32": True, "chunks": True}
    group.create_dataset(name, data=array, **options).attrs["units"] = units


def _write_phases(file: h5py.File, phases: Phases, kinds: list[dict[str, Any]]) -> None:
    group = file.create_group("phases")
    for name, dtype, units in (
        ("begin_ns", np.int64, "ns"),
        ("end_ns", np.int64, "ns"),
        ("kind", np.int32, "1"),
        ("parent", np.int64, "1"),
        ("process", np.int32, "1"),
        ("cut", np.uint8, "1"),
    ):
        _numbers(group, name, np.array(getattr(phases, name), dtype), units)
    _write_strings(group, "kinds", kinds)


def _write_devices(file: h5py.File, contents: Contents) -> None:
    group = file.create_group("devices")
    for description in contents.descriptions.values():
        for device in description.devices:
            if device.name not in group:
                entry = group.create_group(device.name)
                entry.attrs.update({"feeds": list(device.feeds), "description": device.description})


def _write_table(group: h5py.Group, gaps: list[dict[str, Any]]) -> None:
    gaps.sort(key=lambda g: g["begin_ns"])
    for name in ("begin_ns", "end_ns", "lost"):
        _numbers(group, name, np.array([g[name] for g in gaps], np.int64), "1" if name == "lost" else "ns")
    text = h5py.string_dtype()
    group.create_dataset("stream", data=[g["stream"] for g in gaps], dtype=text)
    group.create_dataset("cause", data=[g["cause"] for g in gaps], dtype=text)
    _write_strings(group, "lines", [g["lines"] for g in gaps])


def _write_strings(group: h5py.Group, name: str, documents: list[Any]) -> None:
    group.create_dataset(name, data=[json.dumps(to_document(d)) for d in documents], dtype=h5py.string_dtype())


def remove_partials(out: Path) -> None:
    """Delete what a killed conversion of ``out`` left. The caller owns the journal's lock."""
    for leftover in out.parent.glob(f"{out.name}.*.partial"):
        with contextlib.suppress(OSError):
            leftover.unlink()
