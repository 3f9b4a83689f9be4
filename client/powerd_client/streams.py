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

from powerd_core.blocks import columns
from powerd_core.clock import ClockPiece
from powerd_core.document import to_document
from powerd_core.errors import RunFileError, WireError
from powerd_core.model import UNKNOWN_TIME_NS, Block, Description, Gap, Stream
from powerd_core.wire import decode

Int64 = NDArray[np.int64]
Part = tuple[Description, "StreamFrames", tuple[ClockPiece, ...], tuple[int, int]]
"""One epoch of a stream: who described it, its frames, its clock, and (epoch, stream number)."""
Note = Callable[[str, str, int], None]

_BATCH_BYTES = 8 << 20
_SILENCE_PERIODS = 5
_CHUNK = 65536


@dataclass(slots=True)
class StreamFrames:
    """The frames of one stream in one epoch: places of blocks, and gaps, by sequence number."""

    places: dict[int, tuple[int, int, int, int]] = field(default_factory=dict)
    """Sequence number of a block: offset, bytes, first and last board time."""
    gaps: dict[int, Gap] = field(default_factory=dict)
    size: int = 0

    def add(self, event: Block | Gap, at: int, size: int) -> None:
        """Note a frame. A number that was already there (a repetition) is left alone."""
        if isinstance(event, Gap):
            self.gaps.setdefault(event.sequence, event)
        elif event.sequence not in self.places:
            self.places[event.sequence] = (at, size, event.t_first_ns, event.t_last_ns)
            self.size += size

    def holes(self) -> Iterator[tuple[int, int, int, str]]:
        """First and last board time, scans lost (-1 unknown) and cause of everything that is missing inside."""
        next_number: int | None = None
        t_last = UNKNOWN_TIME_NS
        waiting: list[tuple[int, int, str]] = []
        for number in sorted({*self.places, *self.gaps}):
            if next_number is not None and number > next_number:
                waiting.append((UNKNOWN_TIME_NS, -1, f"{number - next_number} blocks were not received"))
            if number in self.gaps:
                gap = self.gaps[number]
                waiting.append((gap.t_first_ns, gap.lost, gap.cause))
                next_number = max(next_number or 0, number + gap.span)
                continue
            _, _, t_first, t_block_last = self.places[number]
            for t_gap, lost, cause in waiting:
                begin = t_gap if t_gap != UNKNOWN_TIME_NS else t_last
                yield (begin if begin != UNKNOWN_TIME_NS else t_first), t_first, lost, cause
            waiting.clear()
            next_number, t_last = number + 1, t_block_last
        for t_gap, lost, cause in waiting:
            if t_gap != UNKNOWN_TIME_NS:
                yield t_gap, max(t_gap, t_last), lost, cause


def to_host_ns(t_board_ns: Int64, pieces: Sequence[ClockPiece]) -> Int64:
    """Board times on the host's clock: each by the piece of the clock's mapping in which it lies.

    A step of the clock takes effect where the new piece's first exchange was made.
    """
    if not pieces:
        raise RunFileError("there is no mapping of this board's clock")
    found = np.empty_like(t_board_ns)
    starts = np.array([p.t_board_ns[0] for p in pieces], np.int64)
    which = np.clip(np.searchsorted(starts, t_board_ns, side="right") - 1, 0, len(pieces) - 1)
    for number, piece in enumerate(pieces):
        inside = which == number
        knots = np.array(piece.t_board_ns, np.int64)
        t = t_board_ns[inside]
        # Differences from the first knot: a float64 of nanoseconds since boot would lose whole nanoseconds.
        offset = np.interp((t - knots[0]).astype(float), (knots - knots[0]).astype(float), np.array(piece.offset_ns))
        base = np.int64(round(piece.offset_ns[0]))
        found[inside] = t + base + np.rint(offset - float(base)).astype(np.int64)
    return found


def write_stream(
    lines: h5py.Group, parts: Sequence[Part], journal_file: Path, gaps: list[dict[str, Any]], note: Note, t_stop_ns: int
) -> int:
    """Write all lines of one stream, epoch after epoch, and append what is missing to ``gaps``.

    Returns the host time of the last reading (0 for none).
    """
    with journal_file.open("rb") as file:
        last_ns = 0
        for description, frames, pieces, (_, number) in parts:
            stream = next(s for s in description.streams if s.number == number)
            if not pieces:
                continue
            names = [line.name for line in stream.lines]
            if last_ns:
                first = min((p[2] for p in frames.places.values()), default=None)
                end = int(to_host_ns(np.array([first]), pieces)[0]) if first is not None else t_stop_ns
                gaps.append(_gap(stream, names, last_ns, end, -1, "powerd was started anew"))
            groups = [_group(lines, description, stream, i, note) for i in range(len(names))]
            for t_first, t_last, lost, cause in frames.holes():
                begin, end = to_host_ns(np.array([t_first, t_last], np.int64), pieces).tolist()
                gaps.append(_gap(stream, names, begin, end, lost, cause))
            for arrays in _batches(file, frames, stream):
                _append(groups, stream, arrays, pieces)
            if frames.places:
                t_last = max(p[3] for p in frames.places.values())
                last_ns = int(to_host_ns(np.array([t_last], np.int64), pieces)[0])
        if (
            parts
            and t_stop_ns
            and last_ns
            and t_stop_ns - last_ns > max(_SILENCE_PERIODS * stream.period_ns, 500_000_000)
        ):
            gaps.append(_gap(stream, names, last_ns, t_stop_ns, -1, "powerd sent nothing more"))
        return last_ns


def _gap(stream: Stream, names: list[str], begin: int, end: int, lost: int, cause: str) -> dict[str, Any]:
    return {"stream": stream.source, "lines": names, "begin_ns": begin, "end_ns": end, "lost": lost, "cause": cause}


def _batches(file: BinaryIO, frames: StreamFrames, stream: Stream) -> Iterator[dict[str, NDArray[Any]]]:
    """The stream's arrays, a few megabytes at a time, in the order of sequence numbers."""
    kept: list[dict[str, NDArray[Any]]] = []
    size = 0
    for number in sorted(frames.places):
        at, length, _, _ = frames.places[number]
        file.seek(at)
        block = decode(file.read(length))
        assert isinstance(block, Block)
        kept.append(_arrays(block, stream))
        size += length
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
    return f"{description.board.replace('/', '_')}-{description.epoch:016x}"


def _group(lines: h5py.Group, description: Description, stream: Stream, index: int, note: Note) -> h5py.Group:
    line = stream.lines[index]
    conversion = json.dumps(to_document(line.conversion))
    name = line.name
    if name in lines and lines[name].attrs["conversion"] != conversion:
        name = f"{line.name}@{description.epoch:016x}"
        note("warning", f"{line.name} came back with other settings: its later readings are in {name}", 0)
    if name not in lines:
        group = lines.create_group(name)
        group.attrs.update(
            {
                "device": line.device,
                "source": stream.source,
                "board": description.board,
                "provenance": line.provenance.value,
                "quantity": line.quantity,
                "description": line.description,
                "period_ns": stream.period_ns,
                "conversion": conversion,
                "accuracy": json.dumps(to_document(line.accuracy)),
                "detail": json.dumps(to_document(stream.detail)),
                "clock": clock_name(description),
            }
        )
        for column, dtype, units in (
            ("t_board_ns", "i8", "ns"),
            ("t_ns", "i8", "ns"),
            ("flags", "u2", "bits"),
            *((c.name, c.typecode, "raw code") for c in stream.columns),
        ):
            made = group.create_dataset(
                column, (0,), np.dtype(dtype), maxshape=(None,), chunks=(_CHUNK,), compression="gzip",
                compression_opts=1, shuffle=True, fletcher32=True,
            )  # fmt: skip
            made.attrs["units"] = units
    else:
        group = lines[name]
    clocks, first = list(group.attrs.get("clocks", [])), list(group.attrs.get("clock_first", []))
    group.attrs["clocks"] = [*clocks, clock_name(description)]
    group.attrs["clock_first"] = [*first, group["t_ns"].shape[0]]
    return group


def _append(
    groups: Sequence[h5py.Group], stream: Stream, arrays: dict[str, NDArray[Any]], pieces: Sequence[ClockPiece]
) -> None:
    for index, group in enumerate(groups):
        t_board = arrays["t_ns"] + arrays["dt_ns"][:, index]
        values = {"t_board_ns": t_board, "t_ns": to_host_ns(t_board, pieces), "flags": arrays["flags"][:, index]}
        values |= {c.name: arrays[c.name][:, index] for c in stream.columns}
        start = group["t_ns"].shape[0]
        for name, column in values.items():
            dataset = group[name]
            dataset.resize((start + len(column),))
            dataset[start:] = column
