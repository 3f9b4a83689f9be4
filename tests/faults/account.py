"""The account of a run: what its source measured, what the run file holds, and what the file says is missing.

Truth comes of the readings themselves. Those of `numbered_source` carry the number of their scan, which belongs to a
moment of the clock; those of `numbered_node` carry that of the node's deadline. Where sensors cannot count (the
simulated bus), the nominal period tells how many scans a hole is wide.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from powerd_client import open_run
from powerd_core.model import BAD

Array = NDArray[Any]

EDGE_SHARE = 0.25
"""A gap's edge and the reading at it may differ by this share of a period: host times are estimates."""

CODE_NOISE = 4
MOST_TOLD = 3


@dataclass(slots=True)
class Account:
    """Readings of all lines that were numbered or could be, one for each line and scan."""

    sent: int = 0
    received: int = 0
    replayed: int = 0
    lost: int = 0
    declared: int = 0
    lost_s: float = 0.0
    bytes: int = 0
    t_start_ns: int = 0
    t_stop_ns: int = 0
    is_complete: bool = False
    is_rebuilt: bool = False
    steps: int = 0
    """Phases "step" that were ended."""
    said: list[str] = field(default_factory=list)
    """Messages of the file, and causes of its gaps."""
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Scans:
    """One stream's scans in the order of their times; ``number`` counts them where the sensors can."""

    name: str
    period_ns: int
    t_ns: Array
    is_good: Array
    number: Array | None
    is_grid: bool
    """Whether number n belongs to the moment n * period."""
    lines: int = 1
    """How many lines are read in each scan."""


@dataclass(frozen=True, slots=True)
class FileGap:
    """A gap as the run file has it."""

    begin_ns: int
    end_ns: int
    lost: int
    lines: tuple[str, ...]


def take_account(run: Path) -> Account:
    """Read a run file and compare it with the truth."""
    account = Account()
    with open_run(run) as file:
        account.t_start_ns, account.t_stop_ns = int(file.attrs["t_start_ns"]), int(file.attrs["t_stop_ns"])
        account.is_complete, account.is_rebuilt = bool(file.attrs["complete"]), bool(file.attrs["rebuilt"])
        reception = json.loads(file.attrs["reception"])
        account.replayed, account.bytes = int(reception.get("replayed", 0)), int(reception.get("bytes", 0))
        gaps = list(_gaps(file))
        messages = [json.loads(m) for m in file["messages"].asstr()] if "messages" in file else []
        account.said = [m["text"] for m in messages] + [str(c) for c in file["gaps/cause"].asstr()]
        account.steps = _steps(file)
        for scans in _streams(file, account.problems):
            _count(scans, [g for g in gaps if scans.name in g.lines], account)
        _check_clock(file, account.problems)
    return account


def _gaps(file: h5py.File) -> Iterator[FileGap]:
    group = file["gaps"]
    for begin, end, lost, lines in zip(
        group["begin_ns"][:], group["end_ns"][:], group["lost"][:], group["lines"].asstr()[:], strict=True
    ):
        yield FileGap(int(begin), int(end), int(lost), tuple(json.loads(lines)))


def _steps(file: h5py.File) -> int:
    kinds = [json.loads(k)["name"] for k in file["phases/kinds"].asstr()]
    if not kinds:
        return 0
    names = np.array(kinds, dtype=object)[file["phases/kind"][:]]
    return int(np.sum((names == "step") & (file["phases/cut"][:] == 0)))


def _streams(file: h5py.File, problems: list[str]) -> Iterator[Scans]:
    """Each source's stream once, from its first line; other lines of it must tell the same."""
    by_source: dict[str, list[str]] = {}
    for name, group in file["lines"].items():
        # Marker edges come when they come, and what a node says of its clock is no reading.
        if "number" in group or "shunt" in group:
            by_source.setdefault(group.attrs["source"], []).append(name)
    for source, names in by_source.items():
        if source == "sim":
            yield from (_by_line(name, file["lines"][name], problems) for name in names)
            continue
        first = names[0].partition("@")[0]
        parts = [file["lines"][n] for n in names if n.partition("@")[0] == first]
        t, flags = (np.concatenate([p[c][:] for p in parts]) for c in ("t_ns", "flags"))
        order = np.argsort(t, kind="stable")
        number, is_grid = None, "number" in parts[0]
        if is_grid:
            number = np.concatenate([p["number"][:] for p in parts]).astype(np.int64)[order]
        elif source == "node":
            number = _node_numbers(file["lines"], names)[order]
        lines = len({name.partition("@")[0] for name in names})
        good = (flags[order] & int(BAD)) == 0
        for name in names:
            if name.partition("@")[0] != first and is_grid and "@" not in name:
                whole = np.concatenate([file["lines"][n]["number"][:] for n in names if n.partition("@")[0] == name])
                if not np.array_equal(np.sort(whole), np.sort(number)):
                    problems.append(f"{name} and {first} of one stream hold different readings")
        yield Scans(first, int(parts[0].attrs["period_ns"]), t[order], good, number, is_grid, lines)


def _by_line(name: str, group: h5py.Group, problems: list[str]) -> Scans:
    """A line of the simulated bus, where each fails on its own. Its load is constant: good codes all say the same."""
    good = (group["flags"][:] & int(BAD)) == 0
    codes = group["shunt"][:][good].astype(np.int64)
    if len(codes) and np.abs(codes - np.median(codes)).max() > CODE_NOISE:
        problems.append(f"{name}: a reading that is not flagged is wrong by {np.abs(codes - np.median(codes)).max()}")
    return Scans(name, int(group.attrs["period_ns"]), group["t_ns"][:], good, None, is_grid=False)


def _node_numbers(lines: h5py.Group, names: list[str]) -> Array:
    low, high = (lines[name]["shunt"][:].astype(np.int64) for name in sorted(names)[:2])
    return low | high << 12


def _count(scans: Scans, gaps: list[FileGap], account: Account) -> None:
    """Add one stream (or one line of the simulated bus) to the account."""
    period, good = scans.period_ns, scans.is_good
    if np.any(np.diff(scans.t_ns) <= 0):
        account.problems.append(f"{scans.name}: times do not increase: a reading is there twice")
    # Where the number tells the true time, that decides which readings are the run's; host times are estimates.
    true_ns = scans.t_ns if scans.number is None or not scans.is_grid else scans.number * period
    inside = (true_ns >= account.t_start_ns) & (true_ns <= account.t_stop_ns)
    t, flagged = scans.t_ns[good & inside], scans.t_ns[~good & inside]
    number = None if scans.number is None else scans.number[good & inside]
    account.received += scans.lines * len(t)
    account.sent += scans.lines * len(t)
    lost_s = 0.0
    if scans.number is None:
        # Nobody counts: a reading that is flagged is lost and says so, holes are those between any readings.
        lost_s = len(flagged) * period / 1e9
        account.sent += len(flagged)
        account.lost += len(flagged)
        account.declared += len(flagged)
    elif scans.is_grid and len(t):
        error_ns = np.abs(t - number * period)
        if error_ns.max() > EDGE_SHARE * period:
            account.problems.append(f"{scans.name}: a reading is {error_ns.max() / 1000:.0f} us from its true time")
    edge = round(EDGE_SHARE * period)
    wrong = []
    for begin, end, lost in _holes(scans, account, scans.t_ns[inside] if scans.number is None else t, number):
        account.sent += scans.lines * lost
        account.lost += scans.lines * lost
        lost_s += (end - begin) / 1e9
        whole = begin > account.t_start_ns + period and end < account.t_stop_ns - period
        told = 0 if scans.number is None else int(np.sum((flagged > begin) & (flagged < end)))
        declared = _declared(gaps, told, begin, end, lost, edge, period, whole=whole)
        account.declared += scans.lines * declared
        if declared != lost:
            wrong.append(
                f"{scans.name}: {lost} scans are missing {(begin - account.t_start_ns) / 1e9:.3f} s ... "
                f"{(end - account.t_start_ns) / 1e9:.3f} s after the start, the file declares {declared}"
            )
    account.problems += wrong[:MOST_TOLD]
    account.lost_s = max(account.lost_s, lost_s)
    for gap in gaps:
        claimed = int(np.sum((t > gap.begin_ns + edge) & (t < gap.end_ns - edge)))
        if claimed:
            account.declared += scans.lines * claimed
            account.problems.append(f"{scans.name}: a gap claims {claimed} scans that are there")


def _holes(scans: Scans, account: Account, t: Array, number: Array | None) -> Iterator[tuple[int, int, int]]:
    """(time of the reading before, of the one after, scans between them that should be there)."""
    period = scans.period_ns
    start, stop = account.t_start_ns, account.t_stop_ns
    if scans.is_grid:
        first, last = -(-start // period), stop // period
        n = np.concatenate([[first - 1], number if number is not None else [], [last + 1]]).astype(np.int64)
        times = n * period
        missing = np.diff(n) - 1
    else:
        times = np.concatenate([[start], t, [stop]])
        # A scan that is late by less than a period is not lost; the first and last are anywhere in their period.
        missing = np.maximum(np.diff(times) // period - 1, 0)
        missing[0], missing[-1] = max(missing[0] - 1, 0), max(missing[-1] - 1, 0)
        if number is not None:
            steps = np.diff(number)
            known = (steps > 0) & (steps < 1 << 20)
            missing[1:-1][known] = steps[known] - 1
    for k in np.flatnonzero(missing > 0):
        yield int(max(times[k], start)), int(min(times[k + 1], stop)), int(missing[k])


def _declared(
    gaps: list[FileGap], told: int, begin: int, end: int, lost: int, edge: int, period: int, *, whole: bool
) -> int:
    """How many of the scans missing between two moments the file declares: by gaps, or as ``told`` readings it flags.

    A gap may know a number; at the edges of the run, where a hole is not ``whole``, that tells of scans outside too.
    """
    # A node that is stopped inside a scan has slept through deadlines that lie behind it by number and not by time.
    here = [
        g
        for g in gaps
        if (g.end_ns > begin + edge and g.begin_ns < end - edge)
        or (g.end_ns - g.begin_ns <= 2 * edge and begin <= (g.begin_ns + g.end_ns) // 2 < end)
    ]
    if not here:
        return min(told, lost)
    if whole and all(g.lost >= 0 for g in here):
        return told + sum(g.lost for g in here)
    covered = _covered(here, begin, end, edge)
    return lost if covered >= end - begin - 2 * edge - (told + 1) * period else round(covered / period) + told


def _covered(gaps: list[FileGap], begin: int, end: int, edge: int) -> int:
    total, reached = 0, begin
    for gap in sorted(gaps, key=lambda g: g.begin_ns):
        upto = min(gap.end_ns, end)
        at = max(gap.begin_ns - edge, reached)
        total += max(upto - at, 0)
        reached = max(reached, upto)
    return total


def _check_clock(file: h5py.File, problems: list[str]) -> None:
    """Every process here reads one clock: the true offset is 0, and the guaranteed bound must hold it."""
    for name, clock in file["clocks"].items():
        bounds = clock["map"][:]
        if np.any(bounds[:, 1] > 0) or np.any(bounds[:, 2] < 0):
            problems.append(f"the guaranteed bound of clock {name} does not hold the truth")
