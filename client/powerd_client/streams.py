"""The readings of one stream, from the places of its frames in a journal to the datasets of its lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np
from numpy.typing import NDArray

from powerd_client.account import Account, Part
from powerd_client.frames import Hole, StreamFrames
from powerd_client.linewriter import append_readings, open_lines
from powerd_core.errors import RunFileError, WireError
from powerd_core.model import UNKNOWN_TIME_NS, Block, Stream, columns
from powerd_core.wire import decode

_BATCH_BYTES = 8 << 20
_SILENCE_PERIODS = 5
_SLOW_NS = 1_000_000_000


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
                open_lines(lines, part, account.note, apart=False)
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
    groups = open_lines(lines, part, account.note, apart=apart)
    unknown = np.zeros(len(part.pieces), np.int64)
    for arrays in _batches(file, part.frames, part.stream):
        unknown += append_readings(groups, part.stream, arrays, part.pieces)
    cause = f"the clock of {part.description.board} stepped: nobody knows when these were read"
    for number, lost in enumerate(unknown.tolist()):
        if lost:
            before, after = part.pieces[number], part.pieces[min(number + 1, len(part.pieces) - 1)]
            begin = before.t_board_ns[-1] + round(before.offset_ns[-1])
            account.gap(part, begin, after.t_board_ns[0] + round(after.offset_ns[0]), cause, lost=lost)


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
