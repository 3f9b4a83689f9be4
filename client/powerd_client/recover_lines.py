"""The lines of a damaged run file: readings that are whole are kept, and nothing else passes for one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from powerd_client import recover_rows
from powerd_client.datasets import clean, make_dataset, own_name
from powerd_client.fileshape import TIMES, check_times, numbers_of, read_json, texts_of
from powerd_client.hosttime import to_host_ns
from powerd_client.recover_rows import BROKEN, Column, Copies
from powerd_core.clock import ClockPiece
from powerd_core.errors import PowerdError
from powerd_core.model import Accuracy, Conversion, Flag, Provenance, quantity_of
from powerd_core.serde import check_conversion, from_document

CAUSE = "damaged in the file"
_TEXTS = (
    "device",
    "source",
    "board",
    "provenance",
    "quantity",
    "description",
    "conversion",
    "accuracy",
    "detail",
    "clock",
)
_UNKNOWN_ROWS = 1 << 40

Int64 = NDArray[np.int64]
Clocks = dict[str, tuple[tuple[ClockPiece, ...], bool]]
"""Mappings by the name of their clock, and whether they had to be made anew."""


@dataclass(slots=True)
class LineRecovery:
    """One line on its way from a damaged file into a new one."""

    name: str
    clocks: Clocks
    limits_ns: tuple[int, int]
    """Start and stop of the run: where a gap begins before the first and ends behind the last reading."""
    kept: int = 0
    dropped: int = 0
    flagged: int = 0
    retimed: int = 0
    by_clock: dict[str, int] = field(default_factory=dict)
    """Readings dropped, by the clock they were on."""
    gaps: list[dict[str, Any]] = field(default_factory=list)
    _last_ns: int | None = None
    _pending: int = 0
    _pending_clock: str = ""

    def copy(self, source: dict[str, Any], head: dict[str, Any], out: h5py.Group) -> None:
        """Copy the readings of ``source`` (datasets by name) into the datasets of ``out``."""
        columns = {name: Column(dataset) for name, dataset in source.items() if isinstance(dataset, h5py.Dataset)}
        # All columns had one length: where one claims another, most of them are right.
        claims = Counter(c.claimed for c in columns.values())
        claimed = max(claims, key=lambda rows: (claims[rows], rows), default=0)
        clocks = texts_of(head.get("clocks", [head["clock"]]))
        firsts = numbers_of(head.get("clock_first", [0] * len(clocks)))
        if len(firsts) != len(clocks) or firsts != sorted(firsts):
            clocks, firsts = [head["clock"]], [0]
        edges = [*firsts[1:], claimed]
        new_firsts = []
        for clock, first, behind in zip(clocks, firsts, edges, strict=True):
            new_firsts.append(self.kept)
            self._copy_part(columns, out, clock, first, behind)
        self._close_gap(head, self.limits_ns[1])
        for gap in self.gaps:
            gap["stream"] = head["source"]
        out.attrs["clocks"] = clocks
        out.attrs["clock_first"] = new_firsts

    def _copy_part(self, columns: dict[str, Column], out: h5py.Group, clock: str, first: int, behind: int) -> None:
        guides = [columns[name] for name in ("t_ns", "t_board_ns") if name in columns]
        starts = {b: e for c in guides for b, e in c.stretches if e > first and b < behind}
        reached = first
        for begin in sorted(starts):
            b, e = max(begin, reached), min(starts[begin], behind)
            if e <= b:
                continue
            self._drop(b - reached, clock)
            self._copy_rows(columns, out, clock, b, e)
            reached = e
        self._drop(behind - reached, clock)

    def _copy_rows(self, columns: dict[str, Column], out: h5py.Group, clock: str, begin: int, end: int) -> None:
        read = {name: column.read(begin, end) for name, column in columns.items()}
        times = self._times(read.get("t_board_ns"), read.get("t_ns"), clock)
        if times is None:
            self._drop(end - begin, clock)
            return
        t_board, t_ns = times
        flags, n = read.get("flags"), end - begin
        spoilt = flags is None or any(values is None for name, values in read.items() if name not in TIMES)
        flags = np.zeros(n, np.uint16) if flags is None else flags.astype(np.uint16)
        if spoilt:
            # A code that is gone must not pass for a value, and nobody knows any more which readings were good.
            flags |= np.uint16(Flag.MISSING)
            self.flagged += n
        self._close_gap({}, int(t_ns[0]))
        made = {"t_board_ns": t_board, "t_ns": t_ns, "flags": flags}
        for name, dataset in out.items():
            values = made.get(name, read.get(name))
            dataset.resize((self.kept + n,))
            dataset[self.kept :] = np.zeros(n, dataset.dtype) if values is None else values
        self.kept += n
        self._last_ns = int(t_ns[-1])

    def _times(self, t_board: Any, t_ns: Any, clock: str) -> tuple[Int64, Int64] | None:
        """Both times of each reading, one out of the other where only one is left."""
        pieces, is_new = self.clocks.get(clock, ((), False))
        if t_board is not None and pieces and (t_ns is None or is_new):
            self.retimed += len(t_board)
            t_board = t_board.astype(np.int64)
            t_ns = to_host_ns(t_board, pieces)
        elif t_board is None and t_ns is not None and pieces and not is_new:
            self.retimed += len(t_ns)
            t_ns = t_ns.astype(np.int64)
            t_board = _board_times(t_ns, pieces)
        if t_board is None or t_ns is None:
            return None
        t_board, t_ns = t_board.astype(np.int64), t_ns.astype(np.int64)
        try:
            check_times(t_board, "")
            check_times(t_ns, "")
        except ValueError:
            return None
        return t_board, t_ns

    def _drop(self, rows: int, clock: str) -> None:
        if rows <= 0:
            return
        self.dropped += rows
        self.by_clock[clock] = self.by_clock.get(clock, 0) + rows
        self._pending += rows
        self._pending_clock = clock

    def _close_gap(self, head: dict[str, Any], end_ns: int) -> None:
        if not self._pending:
            return
        begin = self.limits_ns[0] if self._last_ns is None else self._last_ns
        lost = self._pending if self._pending < _UNKNOWN_ROWS else -1
        self.gaps.append(
            {
                "stream": head.get("source", ""),
                "lines": [self.name],
                "begin_ns": begin,
                "end_ns": max(begin, end_ns),
                "lost": lost,
                "cause": CAUSE,
                "numbers": 0,
                "clock": self._pending_clock,
            }
        )
        self._pending = 0


def _board_times(t_ns: Int64, pieces: tuple[ClockPiece, ...]) -> Int64 | None:
    """Board times that a mapping puts at these host times. None when it has steps, or they cannot be found."""
    if len(pieces) != 1:
        return None
    t_board: Int64 = t_ns - np.int64(round(pieces[0].offset_ns[0]))
    for _ in range(4):
        t_board = t_board - (to_host_ns(t_board, pieces) - t_ns)
    return t_board if np.all(np.abs(to_host_ns(t_board, pieces) - t_ns) <= 1) else None


def recover_line(
    source: h5py.Group,
    lines: h5py.Group,
    clocks: Clocks,
    limits_ns: tuple[int, int],
    copied: Copies,
    lost: list[str],
) -> LineRecovery | None:
    """Copy one line. None, with the reason in ``lost``, when nothing says any more what its codes mean."""
    name = source.name.rpartition("/")[2]
    head = recover_rows.attributes(source, (*_TEXTS, "period_ns", "clocks", "clock_first"), copied)
    datasets = recover_rows.members(source, lost)
    try:
        _check_head(head, datasets)
    except (*BROKEN, PowerdError) as error:
        lost.append(f"line {name!r}: nothing says any more what its readings mean ({error})")
        return None
    made = lines.create_group(own_name(name))
    made.attrs.update({key: clean(head[key]) for key in _TEXTS} | {"period_ns": int(head["period_ns"])})
    units = dict(zip(TIMES, ("ns", "ns", "bits"), strict=True))
    for column in dict.fromkeys((*TIMES, *datasets)):
        dtype = {"flags": np.dtype("u2")}.get(column, np.dtype("i8"))
        if column not in TIMES:
            dtype = datasets[column].dtype
        make_dataset(made, column, dtype, units.get(column, "raw code"))
    found = LineRecovery(own_name(name), clocks, limits_ns)
    found.copy(datasets, head, made)
    return found


def _check_head(head: dict[str, Any], datasets: dict[str, Any]) -> None:
    if missing := [key for key in (*_TEXTS, "period_ns") if key not in head]:
        raise ValueError(f"{missing[0]!r} is gone")
    if bad := [key for key in _TEXTS if not isinstance(head[key], str)]:
        raise ValueError(f"{bad[0]!r} is no text")
    conversion: Conversion = from_document(Conversion, read_json(head["conversion"]), "conversion")  # type: ignore[arg-type]
    accuracy = from_document(Accuracy, read_json(head["accuracy"]), "accuracy")
    check_conversion(conversion, accuracy, list(datasets), "it")
    Provenance(head["provenance"])
    if not isinstance(read_json(head["detail"]), dict) or int(head["period_ns"]) <= 0:
        raise ValueError("its settings make no sense")
    head["quantity"] = quantity_of(conversion)
    for name, dataset in datasets.items():
        if dataset.dtype.kind not in "iu" or dataset.ndim != 1:
            raise ValueError(f"{name!r} is no column of whole numbers")
