"""Board times on the host's clock by the pieces of a clock's mapping, whole arrays at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from powerd_client.host.hostclock import FARTHEST_NS
from powerd_core.clock_comparison import ClockPiece
from powerd_core.errors import RunFileError

Int64 = NDArray[np.int64]

NO_LIMIT = np.iinfo(np.int64)
"""Its ends stand in the run file where a piece of a clock's mapping has no limit."""


def to_host_ns(t_board_ns: Int64, pieces: Sequence[ClockPiece]) -> Int64:
    """Board times on the host's clock: each by the piece of the clock's mapping in which it lies.

    Between two pieces there is no mapping (`have_host_time` says where): such a time is put between the moments at
    which the clock was last known before its step and first known after it, in the order of the board's times.
    """
    if not pieces:
        raise RunFileError("there is no mapping of this board's clock")
    t_host_ns = np.empty_like(t_board_ns)
    which = pieces_of(t_board_ns, pieces)
    for number, piece in enumerate(pieces):
        inside = which == number
        knots = np.array(piece.t_board_ns, np.int64)
        t = t_board_ns[inside]
        # Differences from the first knot: a float64 of nanoseconds since boot would lose whole nanoseconds.
        since, offsets = (t - knots[0]).astype(float), np.array(piece.offset_ns)
        offset = np.interp(since, (knots - knots[0]).astype(float), offsets)
        outside = np.minimum(since, 0.0) * piece.rates[0] + np.maximum(t - knots[-1], 0) * piece.rates[1]
        base = np.int64(round(piece.offset_ns[0]))
        host = t + base + np.rint(offset - float(base) + outside).astype(np.int64)
        if piece.end_ns is not None and number + 1 < len(pieces):
            host = _between(t, host, piece, pieces[number + 1])
        t_host_ns[inside] = host
    return t_host_ns


def have_host_time(t_board_ns: Int64, pieces: Sequence[ClockPiece]) -> NDArray[np.bool_]:
    """Whether each board time is on a known side of every step of the clock: `piece_at` of the core, all at once."""
    count, holds = np.zeros(len(t_board_ns), np.int64), np.zeros(len(t_board_ns), bool)
    for piece in pieces:
        first, last = piece.t_board_ns[0], piece.t_board_ns[-1]
        inside, may = np.ones(len(t_board_ns), bool), np.ones(len(t_board_ns), bool)
        if piece.begin_ns is not None:
            inside &= t_board_ns >= first
            may &= t_board_ns >= piece.begin_ns
        if piece.end_ns is not None:
            inside &= t_board_ns <= last
            may &= t_board_ns <= piece.end_ns
        count += may
        holds |= inside
    known: NDArray[np.bool_] = (count == 1) & holds
    return known


def pieces_of(t_board_ns: Int64, pieces: Sequence[ClockPiece]) -> Int64:
    """The last piece that had begun by each board time."""
    which = np.zeros(len(t_board_ns), np.int64)
    for number, piece in enumerate(pieces[1:], 1):
        which[t_board_ns >= piece.t_board_ns[0]] = number
    return which


def _between(t: Int64, host: Int64, before: ClockPiece, after: ClockPiece) -> Int64:
    last, first = before.t_board_ns[-1], after.t_board_ns[0]
    begin, end = last + round(before.offset_ns[-1]), first + round(after.offset_ns[0])
    share = np.clip((t - last) / max(first - last, 1), 0.0, 1.0)
    return np.where(t > last, begin + np.rint(share * max(end - begin, 0)).astype(np.int64), host)


def check_times(t_ns: NDArray[np.int64], what: str) -> None:
    """Raises ValueError for times that no clock shows, whose differences would not fit into 64 bits."""
    if len(t_ns) and (int(t_ns.min()) < -FARTHEST_NS or int(t_ns.max()) > FARTHEST_NS):
        raise ValueError(f"{what} is at a time that cannot be")
