"""The readings of one stream, from the places of its frames in a journal to the datasets of its lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np
from numpy.typing import NDArray

from powerd_client.datasets import clean, make_dataset, own_name
from powerd_client.fileshape import FARTHEST_NS
from powerd_client.frames import Hole, StreamFrames
from powerd_client.hosttime import have_host_time, pieces_of, to_host_ns
from powerd_core.blocks import columns
from powerd_core.clock import ClockPiece
from powerd_core.document import to_document
from powerd_core.errors import RunFileError, WireError
from powerd_core.model import UNKNOWN_TIME_NS, Block, Description, Flag, Stream
from powerd_core.wire import decode

Int64 = NDArray[np.int64]
Note = Callable[[str, str, int], None]

_BATCH_BYTES = 8 << 20
_SILENCE_PERIODS = 5
_SLOW_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Part:
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
        return clock_name(self.description)

    def host_ns(self, t_board_ns: int) -> int:
        """A board time on the host's clock; it need not be that of a reading."""
        return int(to_host_ns(np.array([t_board_ns], np.int64), self.pieces)[0])

    @property
    def reach_ns(self) -> tuple[int, int] | None:
        """First and last reading on the host's clock, None without any that has a place in time."""
        places = self.frames.places.values()
        if not places or not self.pieces:
            return None
        first, last = min(p.t_first_ns for p in places), max(p.t_last_ns for p in places)
        return self.host_ns(first), self.host_ns(last)


@dataclass(slots=True)
class Account:
    """What is known of the readings beside themselves: what is missing, and that received and missing is all of it."""

    note: Note
    t_start_ns: int = 0
    t_stop_ns: int = 0
    ends: str = "powerd sent nothing more"
    """Why readings are missing at the end of the run, if they are."""
    gaps: list[dict[str, Any]] = field(default_factory=list)
    parts: list[dict[str, Any]] = field(default_factory=list)

    def gap(self, part: Part, begin_ns: int, end_ns: int, cause: str, *, lost: int = -1, numbers: int = 0) -> None:
        """Readings of a part that are missing. ``numbers`` of the stream would have brought them, as far as known."""
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

    def part(self, part: Part, missing: int) -> None:
        """A part and its numbers: blocks that are there, and ``missing`` ones that gaps declare."""
        places, (first, behind) = part.frames.places, part.frames.numbers
        self.parts.append(
            {
                "stream": part.stream.source,
                "number": part.stream.number,
                "clock": part.clock,
                "lines": part.names,
                "first": first,
                "behind": behind,
                "blocks": len(places),
                "missing": missing,
                "scans": sum(p.scans for p in places.values()),
                "in_file": bool(part.pieces),
            }
        )


def write_stream(lines: h5py.Group, parts: Sequence[Part], journal_file: Path, account: Account) -> int:
    """Write all lines of one stream, epoch after epoch, and what is missing into ``account``.

    Returns the host time of the last reading (0 for none).
    """
    last_ns = told_ns = 0
    latest = None
    with journal_file.open("rb") as file:
        ordered = sorted(parts, key=lambda p: (p.reach_ns or (0, 0))[0])
        for index, part in enumerate(ordered):
            holes = list(part.frames.holes())
            account.part(part, sum(hole.numbers for hole in holes))
            if not part.pieces:
                _lines_of(lines, part, account, apart=False)
                _count_unmapped(part, holes, account)
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
    final = latest or next((p for p in parts[-1:] if not p.frames.places), None)
    if final is not None:
        # A recorder waits for the last reading of the run, but not for that of a slow stream.
        period_ns = final.stream.period_ns
        silence_ns = period_ns if period_ns < _SLOW_NS else _SILENCE_PERIODS * period_ns
        heard_ns = max(last_ns or account.t_start_ns, told_ns)
        if account.t_stop_ns - heard_ns > silence_ns:
            account.gap(final, heard_ns, account.t_stop_ns, account.ends)
    return last_ns


def _count_unmapped(part: Part, holes: Sequence[Hole], account: Account) -> None:
    """Readings of a board that never answered a clock exchange: a gap over the whole run, and its own gaps with it."""
    for hole in holes:
        account.gap(part, account.t_start_ns, account.t_stop_ns, hole.cause, lost=hole.lost, numbers=hole.numbers)
    if scans := sum(p.scans for p in part.frames.places.values()):
        cause = "no exchange with the board's clock succeeded: nobody knows when these were read"
        account.gap(part, account.t_start_ns, account.t_stop_ns, cause, lost=scans)


def _write_part(lines: h5py.Group, part: Part, file: BinaryIO, account: Account, *, apart: bool) -> None:
    groups = _lines_of(lines, part, account, apart=apart)
    unknown = np.zeros(len(part.pieces), np.int64)
    for arrays in _batches(file, part.frames, part.stream):
        unknown += _append(groups, part.stream, arrays, part.pieces)
    cause = f"the clock of {part.description.board} stepped: nobody knows when these were read"
    for number, lost in enumerate(unknown.tolist()):
        if lost:
            before, after = part.pieces[number], part.pieces[min(number + 1, len(part.pieces) - 1)]
            begin = before.t_board_ns[-1] + round(before.offset_ns[-1])
            account.gap(part, begin, after.t_board_ns[0] + round(after.offset_ns[0]), cause, lost=lost)


def _lines_of(lines: h5py.Group, part: Part, account: Account, *, apart: bool) -> list[h5py.Group]:
    return [_group(lines, part, i, account.note, apart=apart) for i in range(len(part.stream.lines))]


def _batches(file: BinaryIO, frames: StreamFrames, stream: Stream) -> Iterator[dict[str, NDArray[Any]]]:
    """The stream's arrays, a few megabytes at a time, in the order of sequence numbers."""
    kept: list[dict[str, NDArray[Any]]] = []
    size = 0
    for number in sorted(frames.places):
        place = frames.places[number]
        file.seek(place.at)
        block = decode(file.read(place.size))
        assert isinstance(block, Block)
        kept.append(_arrays(block, stream))
        size += place.size
        if size >= _BATCH_BYTES:
            yield {name: np.concatenate([k[name] for k in kept]) for name in kept[0]}
            kept, size = [], 0
    if kept:
        yield {name: np.concatenate([k[name] for k in kept]) for name in kept[0]}


def _arrays(block: Block, stream: Stream) -> dict[str, NDArray[Any]]:
    types = {"t_ns": "<i8", "dt_ns": "<i4", "flags": "<u2"} | {
        c.name: np.dtype(c.typecode).newbyteorder("<") for c in stream.columns
    }
    try:
        views = columns(block, stream)
    except WireError as error:
        raise RunFileError(f"the journal contradicts itself: {error}") from error
    return {
        name: np.frombuffer(view, types[name])
        if name == "t_ns"
        else np.frombuffer(view, types[name]).reshape(block.count, -1)
        for name, view in views.items()
    }


def clock_name(description: Description) -> str:
    """The name of a clock's group in the run file: its board and the epoch."""
    return f"{own_name(description.board)}-{description.epoch:016x}"


def _group(lines: h5py.Group, part: Part, index: int, note: Note, *, apart: bool) -> h5py.Group:
    description, stream, line = part.description, part.stream, part.stream.lines[index]
    conversion = json.dumps(to_document(line.conversion))
    name = own_name(line.name)
    if name in lines and (apart or lines[name].attrs["conversion"] != conversion):
        why = "is there twice at a time" if apart else "came back with other settings"
        name = f"{name}@{description.epoch:016x}"
        note("warning", f"{line.name} {why}: readings of {description.board} are in {name}", 0)
    if name not in lines:
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
        for column, dtype, units in (
            ("t_board_ns", "i8", "ns"),
            ("t_ns", "i8", "ns"),
            ("flags", "u2", "bits"),
            *((c.name, c.typecode, "raw code") for c in stream.columns),
        ):
            make_dataset(group, column, dtype, units)
    else:
        group = lines[name]
    clocks, first = list(group.attrs.get("clocks", [])), list(group.attrs.get("clock_first", []))
    group.attrs["clocks"] = [*clocks, part.clock]
    group.attrs["clock_first"] = [*first, group["t_ns"].shape[0]]
    return group


def _append(
    groups: Sequence[h5py.Group], stream: Stream, arrays: dict[str, NDArray[Any]], pieces: Sequence[ClockPiece]
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
