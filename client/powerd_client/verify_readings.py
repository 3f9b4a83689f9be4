"""What must hold of every single reading: its time, its place on the clock's mapping, its flags, no gap around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from powerd_client.fileshape import TIMES, check_times, numbers_of, read_json, read_texts, texts_of
from powerd_client.hosttime import have_host_time, to_host_ns
from powerd_client.tables import read_pieces
from powerd_core.clock import ClockPiece
from powerd_core.model import BAD, Flag

Int64 = NDArray[np.int64]
Sums = dict[str, tuple[list[str], str]]
"""By check: what is wrong, and what was looked at (nothing where it cannot be looked at)."""

_ROWS = 1 << 20
_ALL_FLAGS = int(sum(Flag))


@dataclass(slots=True)
class _Line:
    """What was found on one line, and what the rows to come are compared with."""

    name: str
    pieces: tuple[ClockPiece, ...] = ()
    last_board_ns: int | None = None
    last_host_ns: int | None = None
    backwards: int = 0
    wrong: dict[str, list[str]] = field(
        default_factory=lambda: {name: [] for name in ("times", "mapping", "flags", "holes")}
    )

    def say(self, check: str, bad: NDArray[np.bool_], first: int, why: str) -> None:
        if count := int(np.count_nonzero(bad)):
            others = f", and {count - 1} more" if count > 1 else ""
            self.wrong[check].append(f"reading {first + int(np.argmax(bad))} of {self.name!r} {why}{others}")


def look(file: h5py.File, progress: Callable[[float, str], None]) -> Sums:
    """Read every line once, a million readings at a time."""
    mappings = {name: read_pieces(clock) for name, clock in file["clocks"].items() if "piece_rates" in clock}
    gaps = _gaps_by_line(file)
    found: dict[str, list[str]] = {"times": [], "mapping": [], "flags": [], "holes": []}
    total, done, mapped = sum(len(line["t_ns"]) for line in file["lines"].values()), 0, 0
    for name, group in file["lines"].items():
        progress(done / max(total, 1), f"checking {name}")
        line = _Line(name)
        n = len(group["t_ns"])
        for clock, first, behind in _parts(group, n):
            line.pieces = mappings.get(clock, ())
            line.last_board_ns, line.backwards = None, 0
            for begin in range(first, behind, _ROWS):
                rows = slice(begin, min(begin + _ROWS, behind))
                t_board, t_ns, flags = (group[column][rows] for column in TIMES)
                _check(line, begin, t_board, t_ns, flags, gaps.get(name))
            mapped += behind - first if line.pieces else 0
            # A clock that was set back may show a time twice, once for each of its steps.
            if line.backwards > max(0, len(line.pieces) - 1):
                line.wrong["times"].append(f"the board's times of {name!r} go back {line.backwards} times")
        done += n
        for check, wrong in line.wrong.items():
            found[check] += wrong
    texts = {
        "times": f"the times of {total} readings increase",
        "mapping": f"{mapped} times are those of their clock's mapping" if mapped == total else "",
        "flags": f"no unknown flag in {total} readings",
        "holes": f"no reading is where a gap says that there is none ({len(file['gaps/lost'])} gaps)",
    }
    return {check: (wrong, texts[check]) for check, wrong in found.items()}


def _parts(group: h5py.Group, n: int) -> list[tuple[str, int, int]]:
    clocks = texts_of(group.attrs.get("clocks", [group.attrs.get("clock", "")]))
    firsts = numbers_of(group.attrs.get("clock_first", [0]))
    return list(zip(clocks, firsts, [*firsts[1:], n], strict=True))


def _check(
    line: _Line, first: int, t_board: Int64, t_ns: Int64, flags: NDArray[Any], gaps: tuple[Int64, Int64] | None
) -> None:
    for times in (t_board, t_ns):
        check_times(times, f"a reading of {line.name!r}")
    known = have_host_time(t_board, line.pieces) if line.pieces else np.ones(len(t_ns), bool)
    line.backwards += int(np.count_nonzero(np.diff(_after(line.last_board_ns, t_board)) <= 0))
    line.last_board_ns = int(t_board[-1])
    # Between two pieces of a mapping nobody knows the order, and the flag says so.
    where = np.flatnonzero(known)
    steps = np.diff(_after(line.last_host_ns, t_ns[known]))
    if len(steps) < len(where):
        where = where[1:]
    late = np.zeros(len(t_ns), bool)
    late[where[steps <= 0]] = True
    line.say("times", late, first, "is not later than the one before")
    if len(where):
        line.last_host_ns = int(t_ns[known][-1])
    if line.pieces:
        line.say(
            "mapping", np.abs(to_host_ns(t_board, line.pieces) - t_ns) > 1, first, "is not where its clock puts it"
        )
        unsaid = ~known & ((flags & int(Flag.MISSING)) == 0)
        line.say("mapping", unsaid, first, "has no known time, and no flag says so")
    line.say("flags", (flags.astype(np.int64) & ~_ALL_FLAGS) != 0, first, "has a flag that nobody knows")
    if gaps is not None:
        line.say("holes", _inside(t_ns, *gaps) & ((flags & int(BAD)) == 0), first, "lies inside a gap")


def _after(last: int | None, t_ns: Int64) -> Int64:
    return t_ns if last is None else np.concatenate([np.array([last], np.int64), t_ns])


def _gaps_by_line(file: h5py.File) -> dict[str, tuple[Int64, Int64]]:
    """Begins and ends of the gaps of each line, those that overlap as one."""
    group = file["gaps"]
    found: dict[str, list[tuple[int, int]]] = {}
    edges = zip(group["begin_ns"][:].tolist(), group["end_ns"][:].tolist(), strict=True)
    for (begin, end), text in zip(edges, read_texts(group["lines"]), strict=True):
        for name in read_json(text):
            found.setdefault(str(name), []).append((begin, end))
    return {name: _merged(sorted(edges)) for name, edges in found.items()}


def _merged(edges: Sequence[tuple[int, int]]) -> tuple[Int64, Int64]:
    begins, ends = [edges[0][0]], [edges[0][1]]
    for begin, end in edges[1:]:
        if begin < ends[-1]:
            ends[-1] = max(ends[-1], end)
        else:
            begins.append(begin)
            ends.append(end)
    return np.array(begins, np.int64), np.array(ends, np.int64)


def _inside(t_ns: Int64, begins: Int64, ends: Int64) -> NDArray[np.bool_]:
    """Strictly between the edges of a gap, which are readings themselves; they are rounded to whole nanoseconds."""
    before = np.searchsorted(begins, t_ns - 1, "left") - 1
    return (before >= 0) & (t_ns + 1 < ends[np.clip(before, 0, None)])
