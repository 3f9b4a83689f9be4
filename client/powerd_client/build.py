"""From a journal to a run file: one pass for what is small, one pass a stream for the readings.

Memory stays bounded by the number of frames (not readings). What is small is written first: a file that is cut off
later still has it. Beside the readings a `LossAccount` is kept of what is missing and why, from two sides: the gaps,
and the numbers of each part, which docs/run-file.md requires to agree.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np
from numpy.typing import NDArray

from powerd_client.clock_map import NO_LIMIT, have_host_time, pieces_of, to_host_ns
from powerd_client.contents import Contents, StreamFrames, phases_of, read_contents
from powerd_client.hdf5 import (
    BOUND_COLUMNS,
    FORMAT,
    FORMAT_VERSION,
    Progress,
    clean,
    make_dataset,
    own_name,
    seal,
    whole_file,
    write_documents,
    write_numbers,
    write_strings,
)
from powerd_client.hostclock import FARTHEST_NS
from powerd_client.pairing import PhaseSpans
from powerd_core.clock import ClockPiece, map_clock
from powerd_core.errors import ClockError, RunFileError, WireError
from powerd_core.model import CLOCK_NAME, UNKNOWN_TIME_NS, Block, ClockExchange, Description, Flag, Stream, columns
from powerd_core.serde import to_document
from powerd_core.wire import HEADER_BYTES, decode

Note = Callable[[str, str, int], None]
Int64 = NDArray[np.int64]
Arrays = dict[str, NDArray[Any]]

_BATCH_BYTES = 8 << 20
_SILENCE_PERIODS = 5
_SLOW_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class StreamEpoch:
    """One epoch of a stream: who described it, its frames, and its clock (no pieces where nothing maps it)."""

    description: Description
    stream: Stream
    frames: StreamFrames
    pieces: tuple[ClockPiece, ...]

    @property
    def names(self) -> list[str]:
        return [own_name(line.name) for line in self.stream.lines]

    @property
    def clock(self) -> str:
        """The name of the clock's group in the run file."""
        return _clock_name(self.description)

    def host_ns(self, t_board_ns: int) -> int:
        """A board time on the host's clock; it need not be that of a reading."""
        return int(to_host_ns(np.array([t_board_ns], np.int64), self.pieces)[0])

    @property
    def reach_ns(self) -> tuple[int, int] | None:
        """First and last reading on the host's clock, None without any that has a place in time."""
        blocks = self.frames.blocks.values()
        if not blocks or not self.pieces:
            return None
        first, last = min(p.t_first_ns for p in blocks), max(p.t_last_ns for p in blocks)
        return self.host_ns(first), self.host_ns(last)


@dataclass(slots=True)
class LossAccount:
    """What is missing of the readings, and that received and missing is all of it."""

    note: Note
    t_start_ns: int
    t_stop_ns: int
    end_cause: str
    """Why readings are missing at the end of the run, if they are."""
    gaps: list[dict[str, Any]] = field(default_factory=list)
    parts: list[dict[str, Any]] = field(default_factory=list)

    def gap(
        self, part: StreamEpoch, begin_ns: int, end_ns: int, cause: str, *, lost: int = -1, numbers: int = 0
    ) -> None:
        """Readings that are missing. ``numbers`` of the stream would have brought them, as far as known."""
        self.gaps.append(
            {
                "stream": clean(part.stream.source),
                "lines": part.names,
                "begin_ns": begin_ns,
                "end_ns": max(begin_ns, end_ns),
                "lost": lost,
                "cause": clean(cause),
                "numbers": numbers,
                "clock": part.clock,
            }
        )

    def part(self, part: StreamEpoch, missing: int) -> None:
        """An epoch of a stream and its numbers: blocks that are there, and ``missing`` ones that gaps declare."""
        blocks, (first, behind) = part.frames.blocks, part.frames.numbers
        self.parts.append(
            {
                "stream": part.stream.source,
                "number": part.stream.number,
                "clock": part.clock,
                "lines": part.names,
                "first": first,
                "behind": behind,
                "blocks": len(blocks),
                "missing": missing,
                "scans": sum(p.scans for p in blocks.values()),
                "in_file": bool(part.pieces),
            }
        )


def build_run(journal: Path, out: Path, *, overwrite: bool = False, progress: Progress = lambda share: None) -> None:
    """Turn a journal directory into the run file ``out`` and remove it.

    The caller owns the journal's lock. Raises `RunFileError` (disk full, file in the way, damaged journal) with the
    journal left as it was.
    """
    write_file(out, read_contents(journal), journal, overwrite=overwrite, progress=progress)
    shutil.rmtree(journal, ignore_errors=True)


def write_file(out: Path, contents: Contents, journal: Path, *, overwrite: bool, progress: Progress) -> None:
    """Write everything that a journal holds into ``out``, whole or not at all. Raises `RunFileError`."""
    try:
        with whole_file(out, overwrite=overwrite) as (file, raw):
            for share in _write_run(file, contents, journal / "journal.bin"):
                raw.check()
                progress(share)
    except (OSError, RuntimeError, WireError) as error:
        if isinstance(error, RunFileError):
            raise
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise RunFileError(f"{out} could not be written ({reason}): nothing is lost, it is all in {journal}") from error


def _write_run(file: h5py.File, contents: Contents, journal_file: Path) -> Iterator[float]:
    """Write everything, and yield now and then how much of it is written."""
    clocks = _write_clocks(file, contents)
    groups = [[_part(contents, key, clocks) for key in keys] for keys in _streams(contents)]
    phases, kinds, processes = phases_of(contents)
    reached = [reach for parts in groups for part in parts if (reach := part.reach_ns)]
    last_ns = max([0, *(last for _, last in reached), *phases.end_ns])
    start_ns = contents.t_start_ns or min([last_ns, *phases.begin_ns])
    stop_ns = contents.t_stop_ns or max(last_ns, start_ns)
    if not contents.stopped:
        contents.note("warning", "the recorder ended before the run did: this file was built from its journal", last_ns)
    _write_head(
        file,
        {
            **contents.run,
            "host_clock": CLOCK_NAME,
            "t_start_ns": start_ns,
            "t_stop_ns": stop_ns,
            "complete": int(contents.complete),
            "rebuilt": int(not contents.stopped),
            "reception": contents.reception,
        },
    )
    _write_devices(file, list(contents.descriptions.values()))
    _write_phases(file, phases, kinds)
    write_documents(file, "processes", processes)
    file.flush()
    end_cause = "powerd sent nothing more" if contents.stopped else "the recorder ended before the run did"
    account = LossAccount(contents.note, start_ns, stop_ns, end_cause)
    total, done = sum(f.size for f in contents.streams.values()) or 1, 0
    lines = file.create_group("lines")
    for parts in groups:
        _write_stream(lines, parts, journal_file, account)
        done += sum(part.frames.size for part in parts)
        yield done / total
    _note_undescribed(contents)
    _write_gaps(file, account.gaps)
    write_documents(file, "parts", account.parts)
    write_documents(file, "messages", sorted(contents.messages, key=lambda m: m["t_ns"]))
    seal(file)


def _streams(contents: Contents) -> list[list[tuple[int, int]]]:
    """Which streams of which epochs are one: those of a source that have lines in common, each epoch at most once."""
    streams: list[tuple[str, set[str], list[tuple[int, int]]]] = []
    for epoch, description in contents.descriptions.items():
        for stream in description.streams:
            names = {line.name for line in stream.lines}
            for source, known, keys in streams:
                if source == stream.source and known & names and epoch not in {e for e, _ in keys}:
                    known.update(names)
                    keys.append((epoch, stream.number))
                    break
            else:
                streams.append((stream.source, names, [(epoch, stream.number)]))
    return [keys for _, _, keys in streams]


def _part(contents: Contents, key: tuple[int, int], clocks: dict[int, tuple[ClockPiece, ...]]) -> StreamEpoch:
    epoch, number = key
    description = contents.descriptions[epoch]
    stream = next(s for s in description.streams if s.number == number)
    frames = contents.streams.get(key, StreamFrames())
    frames.keep_fitting(stream, HEADER_BYTES)
    return StreamEpoch(description, stream, frames, clocks.get(epoch, ()))


def _note_undescribed(contents: Contents) -> None:
    """Readings of epochs and streams that no description in the journal speaks of."""
    known = {(epoch, s.number) for epoch, d in contents.descriptions.items() for s in d.streams}
    for (epoch, number), frames in contents.streams.items():
        if (epoch, number) not in known and frames.blocks:
            scans = sum(place.scans for place in frames.blocks.values())
            contents.note(
                "error",
                f"{len(frames.blocks)} blocks ({scans} scans) of stream {number} in epoch {epoch:016x} are left out: "
                "their description is lost",
            )


def _write_stream(lines: h5py.Group, parts: Sequence[StreamEpoch], journal_file: Path, account: LossAccount) -> None:
    """Write all lines of one stream, epoch after epoch, and what is missing into ``account``."""
    last_ns = told_ns = 0
    latest = None
    with journal_file.open("rb") as file:
        ordered = sorted(parts, key=lambda p: (p.reach_ns or (0, 0))[0])
        for index, part in enumerate(ordered):
            holes = list(part.frames.holes())
            account.part(part, sum(hole.numbers for hole in holes))
            if not part.pieces:  # a board that never answered a clock exchange: its gaps are over the whole run
                for i in range(len(part.names)):
                    _open_line(lines, part, i, account.note, apart=False)
                whole = account.t_start_ns, account.t_stop_ns
                for hole in holes:
                    account.gap(part, *whole, hole.cause, lost=hole.lost, numbers=hole.numbers)
                if scans := sum(p.scans for p in part.frames.blocks.values()):
                    cause = "no exchange with the board's clock succeeded: nobody knows when these were read"
                    account.gap(part, *whole, cause, lost=scans)
                continue
            reach = part.reach_ns
            apart = bool(last_ns and reach and reach[0] <= last_ns)
            if last_ns and not apart:
                account.gap(part, last_ns, reach[0] if reach else account.t_stop_ns, "powerd was started anew")
            for hole in holes:
                begin, end = (account.t_start_ns if t == UNKNOWN_TIME_NS else part.host_ns(t) for t in hole[:2])
                # That powerd had ended was known only some time after the next one had begun.
                begun = [later.reach_ns[0] for later in ordered[index + 1 :] if later.reach_ns]
                end = min([end, *(t for t in begun if t >= begin)])
                account.gap(part, begin, end, hole.cause, lost=hole.lost, numbers=hole.numbers)
                told_ns = max(told_ns, end)
            _write_part(lines, part, file, account, apart=apart)
            last_ns, latest = max(last_ns, reach[1] if reach else 0), part
    # One whose readings have no place in time has said so already.
    final = latest or next((p for p in parts[-1:] if not p.frames.blocks), None)
    if final is not None:
        # A recorder waits for the last reading of the run, but not for that of a slow stream.
        period_ns = final.stream.period_ns
        silence_ns = period_ns if period_ns < _SLOW_NS else _SILENCE_PERIODS * period_ns
        heard_ns = max(last_ns or account.t_start_ns, told_ns)
        if account.t_stop_ns - heard_ns > silence_ns:
            account.gap(final, heard_ns, account.t_stop_ns, account.end_cause)


def _write_part(lines: h5py.Group, part: StreamEpoch, file: BinaryIO, account: LossAccount, *, apart: bool) -> None:
    groups = [_open_line(lines, part, index, account.note, apart=apart) for index in range(len(part.names))]
    unknown = np.zeros(len(part.pieces), np.int64)
    for arrays in _batches(file, part.frames, part.stream):
        unknown += _append_readings(groups, part.stream, arrays, part.pieces)
    cause = f"the clock of {part.description.board} stepped: nobody knows when these were read"
    for number, lost in enumerate(unknown.tolist()):
        if lost:
            before, after = part.pieces[number], part.pieces[min(number + 1, len(part.pieces) - 1)]
            begin = before.t_board_ns[-1] + round(before.offset_ns[-1])
            account.gap(part, begin, after.t_board_ns[0] + round(after.offset_ns[0]), cause, lost=lost)


def _batches(file: BinaryIO, frames: StreamFrames, stream: Stream) -> Iterator[Arrays]:
    """The stream's arrays, a few megabytes at a time, in the order of sequence numbers."""
    types: dict[str, Any] = {"t_ns": "<i8", "dt_ns": "<i4", "flags": "<u2"}
    types |= {c.name: np.dtype(c.typecode).newbyteorder("<") for c in stream.columns}
    batch: list[Arrays] = []
    size, numbers = 0, sorted(frames.blocks)
    for number in numbers:
        place = frames.blocks[number]
        file.seek(place.at)
        block = decode(file.read(place.size))
        assert isinstance(block, Block)
        arrays: Arrays = {name: np.frombuffer(view, types[name]) for name, view in columns(block, stream).items()}
        batch.append({name: a if name == "t_ns" else a.reshape(block.count, -1) for name, a in arrays.items()})
        size += place.size
        if size >= _BATCH_BYTES or number == numbers[-1]:
            yield {name: np.concatenate([b[name] for b in batch]) for name in batch[0]}
            batch, size = [], 0


def _open_line(lines: h5py.Group, part: StreamEpoch, index: int, note: Note, *, apart: bool) -> h5py.Group:
    """The group of a line, made where it is not there yet. ``apart``: readings of that time are there, and these come
    beside them.
    """
    description, stream, line = part.description, part.stream, part.stream.lines[index]
    conversion = json.dumps(to_document(line.conversion))
    name = own_name(line.name)
    if name in lines and (apart or lines[name].attrs["conversion"] != conversion):
        why = "is there twice at a time" if apart else "came back with other settings"
        name = f"{name}@{description.epoch:016x}"
        note("warning", f"{line.name} {why}: readings of {description.board} are in {name}", 0)
    if name in lines:
        group = lines[name]
    else:
        group = lines.create_group(name)
        group.attrs.update(
            {
                "device": own_name(line.device),
                "source": clean(stream.source),
                "board": clean(description.board),
                "provenance": line.provenance.value,
                "quantity": clean(line.quantity),
                "description": clean(line.description),
                "period_ns": stream.period_ns,
                "conversion": conversion,
                "accuracy": json.dumps(to_document(line.accuracy)),
                "detail": json.dumps(to_document(stream.detail)),
                "clock": part.clock,
            }
        )
        codes = ((c.name, c.typecode, "raw code") for c in stream.columns)
        for column, dtype, units in (("t_board_ns", "i8", "ns"), ("t_ns", "i8", "ns"), ("flags", "u2", "bits"), *codes):
            make_dataset(group, column, np.empty(0, dtype), units)
    group.attrs["clocks"] = [*group.attrs.get("clocks", []), part.clock]
    group.attrs["clock_first"] = [*group.attrs.get("clock_first", []), group["t_ns"].shape[0]]
    return group


def _append_readings(
    groups: Sequence[h5py.Group], stream: Stream, arrays: Arrays, pieces: Sequence[ClockPiece]
) -> Int64:
    """Append readings to the lines' datasets. Returns how many scans have no known time, by the piece before them."""
    t_board = arrays["t_ns"][:, np.newaxis] + arrays["dt_ns"]
    # A block's header may be right and a time in it no time at all.
    sound = (t_board >= -FARTHEST_NS) & (t_board <= FARTHEST_NS)
    t_board = np.clip(t_board, -FARTHEST_NS, FARTHEST_NS)
    known = sound & have_host_time(t_board.ravel(), pieces).reshape(t_board.shape)
    t_host = np.clip(to_host_ns(t_board.ravel(), pieces), -FARTHEST_NS, FARTHEST_NS).reshape(t_board.shape)
    # The codes stay; a reading at no known time is a value for nobody.
    flags = np.where(known, arrays["flags"], arrays["flags"] | np.uint16(Flag.MISSING))
    table = {"t_board_ns": t_board, "t_ns": t_host, "flags": flags}
    table |= {c.name: arrays[c.name] for c in stream.columns}
    for index, group in enumerate(groups):
        for name, column in table.items():
            dataset = group[name]
            start = dataset.shape[0]
            dataset.resize((start + len(column),))
            dataset[start:] = column[:, index]
    return np.bincount(pieces_of(arrays["t_ns"][~known.all(axis=1)], pieces), minlength=len(pieces))


def _clock_name(description: Description) -> str:
    """The name of a clock's group in the run file: its board and the epoch."""
    return f"{own_name(description.board)}-{description.epoch:016x}"


def _write_clocks(file: h5py.File, contents: Contents) -> dict[int, tuple[ClockPiece, ...]]:
    group, mapped = file.create_group("clocks"), {}
    for epoch, description in contents.descriptions.items():
        exchanges = sorted(contents.exchanges.get(epoch, []), key=lambda e: e.t1_host_ns)
        try:
            pieces = mapped[epoch] = map_clock(exchanges)
        except ClockError as error:
            contents.note("error", f"readings of {description.board!r} have no place in time: {error}")
            continue
        for before in pieces[:-1]:
            t_ns = before.t_board_ns[-1] + round(before.offset_ns[-1])
            contents.note("warning", f"the clock of {description.board!r} stepped against the host's", t_ns)
        _write_clock(group, _clock_name(description), description.board, epoch, exchanges, pieces)
    contents.devices.map_all(contents.exchanges)
    for epoch, pieces in contents.devices.pieces.items():
        device = contents.devices.clocks[epoch]
        name = f"{device['name']} {device['index']}".replace("/", "_")
        _write_clock(group, f"{name}-{epoch:016x}", name, epoch, contents.exchanges[epoch], pieces)
    return mapped


def _write_clock(
    group: h5py.Group,
    name: str,
    board: str,
    epoch: int,
    exchanges: Sequence[ClockExchange],
    pieces: Sequence[ClockPiece],
) -> None:
    """One board's clock in one epoch: its exchanges, and the mapping of them, which `clock_map.read_pieces` reads."""
    clock = group.create_group(name)
    clock.attrs.update({"board": clean(board), "epoch": str(epoch), "drift_ppm": pieces[0].drift_ppm})
    rows = [[e.t1_host_ns, e.t2_board_ns, e.t3_board_ns, e.t4_host_ns] for e in exchanges]
    write_numbers(clock, "exchanges", np.array(rows, np.int64).reshape(-1, 4), "ns")
    bounds = [np.column_stack([p.offset_ns, p.low_ns, p.high_ns]) for p in pieces]
    write_numbers(clock, "map", np.concatenate(bounds), "ns")
    write_numbers(clock, "map_t_board_ns", np.concatenate([np.array(p.t_board_ns, np.int64) for p in pieces]), "ns")
    numbers = np.repeat(np.arange(len(pieces), dtype=np.int32), [len(p.t_board_ns) for p in pieces])
    write_numbers(clock, "map_piece", numbers, "1")
    write_numbers(clock, "piece_rates", np.array([p.rates for p in pieces], np.float64), "1")
    limits = [
        (NO_LIMIT.min if p.begin_ns is None else p.begin_ns, NO_LIMIT.max if p.end_ns is None else p.end_ns)
        for p in pieces
    ]
    write_numbers(clock, "piece_limits_ns", np.array(limits, np.int64), "ns")


def _write_phases(file: h5py.File, phases: PhaseSpans, kinds: Sequence[dict[str, Any]]) -> None:
    group = file.create_group("phases")
    types = {"kind": np.int32, "process": np.int32, "cut": np.uint8}
    for name in ("begin_ns", "end_ns", "kind", "parent", "process", "cut", *BOUND_COLUMNS):
        column = np.array(getattr(phases, name), types.get(name, np.int64))
        write_numbers(group, name, column, "ns" if name.endswith("_ns") else "1")
    write_documents(group, "kinds", kinds)


def _write_devices(file: h5py.File, descriptions: Sequence[Description]) -> None:
    """Every device once, as the board that named it first describes it, and which GPU it is where that is known."""
    group = file.create_group("devices")
    for device in (device for description in descriptions for device in description.devices):
        name = own_name(device.name)
        if name in group:
            continue
        attributes = group.create_group(name).attrs
        # Said in full: of an empty list nothing would tell that its elements are texts.
        attributes["feeds"] = np.array([own_name(feed) for feed in device.feeds], h5py.string_dtype())
        attributes["description"] = clean(device.description)
        for key, value in (("uuid", device.uuid), ("pci", device.pci)):
            if value:
                attributes[key] = clean(value)


def _write_gaps(file: h5py.File, gaps: Sequence[dict[str, Any]]) -> None:
    """What is missing, in the order of its beginnings."""
    group = file.create_group("gaps")
    ordered = sorted(gaps, key=lambda g: (g["begin_ns"], g["end_ns"]))
    for name in ("begin_ns", "end_ns", "lost", "numbers"):
        column = np.array([g[name] for g in ordered], np.int64)
        write_numbers(group, name, column, "ns" if name.endswith("_ns") else "1")
    for name in ("stream", "cause", "clock"):
        write_strings(group, name, [g[name] for g in ordered])
    write_documents(group, "lines", [g["lines"] for g in ordered])


def _write_head(file: h5py.File, attributes: dict[str, Any]) -> None:
    """The attributes of the run; lists and objects as JSON."""
    plain = {
        name: json.dumps(value) if isinstance(value, list | dict) else clean(value) if isinstance(value, str) else value
        for name, value in attributes.items()
    }
    file.attrs.update({"format": FORMAT, "format_version": FORMAT_VERSION, **plain})
