"""The account of a run: what its source measured, what the run file holds, and what the file says is missing.

The two sides share no number. What was measured is told by the source's own ledger, a file of which daemon, recorder
and run know nothing, and what was due beside that by the clock. What the run has is told by the codes of its readings,
in which `numbered_source` and `numbered_node` put the number of the scan; what it declares, by the times of its gaps,
and by their numbers, which are checked against these. Where sensors cannot count (the simulated bus), the bus counts
the words that its chips gave out, and the nominal period tells how many scans a hole is wide.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from powerd_client import open_run
from powerd_core.model import BAD
from powerd_daemon.sources.sim.source import FIRST_ADDRESS
from powerd_daemon.sources.sim.waveforms import SHARES

Array = NDArray[Any]

EDGE_SHARE = 0.25
"""A gap's edge and the reading at it may differ by this share of a period: host times are estimates."""

CODE_NOISE = 4
MOST_TOLD = 3


@dataclass(slots=True)
class Account:
    """Readings of all lines that were numbered or could be, one for each line and scan."""

    due: int = 0
    """By the clock: also those that nobody measured."""
    sent: int = 0
    """What the sources counted out, by their own ledgers where they keep one."""
    received: int = 0
    replayed: int = 0
    lost: int = 0
    declared: int = 0
    lost_s: float = 0.0
    slept_s: float = 0.0
    """Of that, time that a source by its own account slept through: the machine was too busy to run it."""
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
    counted: Array | None = None
    """The numbers that the source counted out; None stands for all."""
    slept: Array | None = None
    """Those that it slept through."""
    ledger: Array | None = None
    """Where numbers have no moments of their own: the time of each scan that the source counted out, and its number."""


@dataclass(frozen=True, slots=True)
class FileGap:
    """A gap as the run file has it."""

    begin_ns: int
    end_ns: int
    lost: int
    lines: tuple[str, ...]


def take_account(run: Path, ledger: Path | None = None) -> Account:
    """Read a run file and compare it with what its sources wrote into the directory ``ledger``. Without one, a numbered
    source is taken to have counted out whatever was due."""
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
        for scans in _streams(file, ledger, account.problems):
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


def _streams(file: h5py.File, ledger: Path | None, problems: list[str]) -> Iterator[Scans]:
    """Each source's stream once, from its first line; other lines of it must tell the same."""
    by_source: dict[str, list[str]] = {}
    for name, group in file["lines"].items():
        # Marker edges come when they come, and what a node says of its clock is no reading.
        if "number" in group or "shunt" in group:
            by_source.setdefault(group.attrs["source"], []).append(name)
    for source, names in by_source.items():
        if source == "sim":
            words = None if ledger is None else _rows(ledger, "sim", 2)
            yield from (_by_line(name, file["lines"][name], words, problems) for name in names)
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
        scans = Scans(first, int(parts[0].attrs["period_ns"]), t[order], good, number, is_grid, lines)
        if ledger is None:
            yield scans
        elif is_grid:
            rows = _rows(ledger, "numbered", 3)
            read, slept = (
                np.unique(
                    np.concatenate([np.arange(0), *(np.arange(a, b + 1) for a, b, _ in rows[rows[:, 2] == is_read])])
                )
                for is_read in (1, 0)
            )
            yield replace(scans, counted=read, slept=slept)
        else:
            rows = _rows(ledger, "node", 2)
            yield replace(scans, ledger=rows[np.argsort(rows[:, 0], kind="stable")])


def _rows(ledger: Path, source: str, columns: int) -> Array:
    """The rows of all processes of a source, but for a last one that was not finished."""
    files = [
        np.frombuffer(path.read_bytes()[: path.stat().st_size // 8 // columns * 8 * columns], "<i8")
        for path in sorted(ledger.glob(f"{source}-*"))
    ]
    return np.concatenate([np.zeros(0, np.int64), *files]).reshape(-1, columns)


def _by_line(name: str, group: h5py.Group, words: Array | None, problems: list[str]) -> Scans:
    """A line of the simulated bus, where each fails on its own. Its load is constant: good codes all say the same.

    ``words`` are the time of each word that a chip gave out, and the chip's address.
    """
    good = (group["flags"][:] & int(BAD)) == 0
    codes = group["shunt"][:][good].astype(np.int64)
    if len(codes) and np.abs(codes - np.median(codes)).max() > CODE_NOISE:
        problems.append(f"{name}: a reading that is not flagged is wrong by {np.abs(codes - np.median(codes)).max()}")
    given = None
    if words is not None:
        given = words[words[:, 1] == FIRST_ADDRESS + list(SHARES).index(name.partition("@")[0].rpartition(".")[2])]
    return Scans(name, int(group.attrs["period_ns"]), group["t_ns"][:], good, None, is_grid=False, ledger=given)


def _node_numbers(lines: h5py.Group, names: list[str]) -> Array:
    low, high = (lines[name]["shunt"][:].astype(np.int64) for name in sorted(names)[:2])
    return low | high << 12


def _count(scans: Scans, gaps: list[FileGap], account: Account) -> None:
    """Add one stream (or one line of the simulated bus) to the account."""
    if np.any(np.diff(scans.t_ns) <= 0):
        account.problems.append(f"{scans.name}: times do not increase: a reading is there twice")
    if scans.is_grid:
        _count_grid(scans, gaps, account)
    else:
        _count_holes(scans, gaps, account)


def _count_grid(scans: Scans, gaps: list[FileGap], account: Account) -> None:
    """Scans whose numbers belong to moments. What was due and counted out is known without the file; what it holds is
    told by the codes of its readings, what it declares by the times of its gaps."""
    assert scans.number is not None
    period, start, stop = scans.period_ns, account.t_start_ns, account.t_stop_ns
    due = np.arange(-(-start // period), stop // period + 1)
    counted = due if scans.counted is None else np.intersect1d(due, scans.counted)
    number, t = scans.number[scans.is_good], scans.t_ns[scans.is_good]
    inside = (number >= due[0]) & (number <= due[-1]) if len(due) else np.zeros(len(number), bool)
    number, t = number[inside], t[inside]
    held = np.unique(number)
    if len(held) < len(number):
        account.problems.append(f"{scans.name}: {len(number) - len(held)} readings are there twice")
    if strange := len(np.setdiff1d(held, counted)):
        account.problems.append(f"{scans.name}: {strange} readings are there that their source never counted out")
    error_ns = int(np.abs(t - number * period).max(initial=0))
    if error_ns > EDGE_SHARE * period:
        account.problems.append(f"{scans.name}: a reading is {error_ns / 1000:.0f} us from its true time")
    lost, declared = np.setdiff1d(due, held), _declared_numbers(scans, gaps, set(held.tolist()), account)
    # Times of this run are off by up to error_ns: a scan that is due nearer than that to the run's ends may lie beyond.
    edge_ns = min(error_ns, EDGE_SHARE * period)
    lost, declared = (n[(n * period - start >= edge_ns) & (stop - n * period >= edge_ns)] for n in (lost, declared))
    account.due += scans.lines * len(due)
    account.sent += scans.lines * len(counted)
    account.received += scans.lines * len(held)
    account.lost += scans.lines * len(lost)
    account.declared += scans.lines * len(declared)
    account.lost_s = max(account.lost_s, len(lost) * period / 1e9)
    slept = lost[:0] if scans.slept is None else np.intersect1d(lost, scans.slept)
    account.slept_s = max(account.slept_s, len(slept) * period / 1e9)
    silent = np.setdiff1d(lost, declared)
    for run in np.split(silent, np.flatnonzero(np.diff(silent) > 1) + 1)[:MOST_TOLD]:
        if len(run):
            account.problems.append(
                f"{scans.name}: {len(run)} scans are missing {(run[0] * period - start) / 1e9:.3f} s ... "
                f"{(run[-1] * period - start) / 1e9:.3f} s after the start, and the file does not say so"
            )
    if claimed := len(np.intersect1d(declared, held)):
        account.problems.append(f"{scans.name}: gaps claim {claimed} scans that are there")


def _declared_numbers(scans: Scans, gaps: list[FileGap], held: set[int], account: Account) -> Array:
    """The scans within the run whose moments gaps cover. Where gaps tell a number too, it must be that of the moments.

    A moment at which two gaps meet, or a gap and the run's edge, is declared too, unless its reading is there.
    """
    period, start, stop = scans.period_ns, account.t_start_ns, account.t_stop_ns
    edge = round(EDGE_SHARE * period)
    stretches: list[list[FileGap]] = []
    reached = start
    for gap in sorted(gaps, key=lambda g: g.begin_ns):
        is_edge = abs(gap.begin_ns - reached) <= 2 * edge and round(gap.begin_ns / period) in held
        if stretches and gap.begin_ns - edge <= reached and not is_edge:
            stretches[-1].append(gap)
        else:
            stretches.append([gap])
        reached = max(reached, gap.end_ns)
    numbers = [np.arange(0)]
    for stretch in stretches:
        begin, end = stretch[0].begin_ns, max(g.end_ns for g in stretch)
        is_whole = begin > start + edge and end < stop - edge
        first, last = (begin + edge) // period + 1, -(-(end - edge) // period) - 1
        if begin <= start + edge:
            first = -(-start // period)
            first += first in held and first * period <= begin + edge
        if end >= stop - edge:
            last = stop // period
            last -= last in held and last * period >= end - edge
        numbers.append(np.arange(first, last + 1))
        told = sum(g.lost for g in stretch)
        if is_whole and all(g.lost >= 0 for g in stretch) and told != len(numbers[-1]):
            account.problems.append(f"{scans.name}: a gap tells of {told} scans where {len(numbers[-1])} were due")
    return np.unique(np.concatenate(numbers)).astype(np.int64)


def _count_holes(scans: Scans, gaps: list[FileGap], account: Account) -> None:
    """Scans that come when they come: what is missing lies between two that are there."""
    period, good = scans.period_ns, scans.is_good
    inside = (scans.t_ns >= account.t_start_ns) & (scans.t_ns <= account.t_stop_ns)
    t, flagged = scans.t_ns[good & inside], scans.t_ns[~good & inside]
    entry = None
    if scans.number is not None:
        entry = _entries(scans, account)[good & inside]
    account.received += scans.lines * len(t)
    account.due += scans.lines * len(t)
    lost_s = 0.0
    if scans.number is None:
        # Nobody counts: a reading that is flagged is lost and says so, holes are those between any readings.
        # On a bus that is too slow for its period scans are closer together than that.
        since = np.diff(scans.t_ns[inside], prepend=account.t_start_ns)
        lost_s = float(np.minimum(since[~good[inside]], period).sum()) / 1e9
        account.due += len(flagged)
        account.lost += len(flagged)
        account.declared += len(flagged)
    if scans.ledger is not None:
        read_ns = scans.ledger[:, 0]
        counted = int(np.sum((read_ns >= account.t_start_ns - period) & (read_ns <= account.t_stop_ns + period)))
        account.sent += scans.lines * counted
        if len(t) > counted:
            account.problems.append(f"{scans.name}: {len(t)} readings are there, of which its source gave {counted}")
    edge = round(EDGE_SHARE * period)
    wrong = []
    for begin, end, lost in _holes(scans, account, scans.t_ns[inside] if scans.number is None else t, entry):
        account.due += scans.lines * lost
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


def _entries(scans: Scans, account: Account) -> Array:
    """For each reading its entry in the ledger: the one with its number that is nearest in time, -1 for none."""
    assert scans.ledger is not None
    assert scans.number is not None
    by_number: dict[int, list[int]] = {}
    for entry, number in enumerate(scans.ledger[:, 1].tolist()):
        by_number.setdefault(number, []).append(entry)
    read_ns = scans.ledger[:, 0].tolist()
    found = np.full(len(scans.number), -1)
    for k, (number, t_ns, is_good) in enumerate(
        zip(scans.number.tolist(), scans.t_ns.tolist(), scans.is_good.tolist(), strict=True)
    ):
        if is_good and number in by_number:
            found[k] = min(by_number[number], key=lambda entry: abs(read_ns[entry] - t_ns))
    good = found[scans.is_good]
    if strange := int(np.sum(good < 0)):
        account.problems.append(f"{scans.name}: {strange} readings are there that their source never counted out")
    if np.any(np.diff(good[good >= 0]) <= 0):
        account.problems.append(f"{scans.name}: readings are not in the order in which their source counted them out")
    return found


def _holes(scans: Scans, account: Account, t: Array, entry: Array | None) -> Iterator[tuple[int, int, int]]:
    """(time of the reading before, of the one after, scans between them that should be there).

    Between two entries of the ledger their distance in it counts, and what its numbers and times skip.
    """
    period = scans.period_ns
    start, stop = account.t_start_ns, account.t_stop_ns
    times = np.concatenate([[start], t, [stop]])
    # A scan that is late by less than a period is not lost; the first and last are anywhere in their period.
    missing = np.maximum(np.diff(times) // period - 1, 0)
    missing[0], missing[-1] = max(missing[0] - 1, 0), max(missing[-1] - 1, 0)
    if entry is not None and len(entry):
        assert scans.ledger is not None
        missing[1:-1] = np.diff(_due(scans.ledger, period)[entry]) - 1
    for k in np.flatnonzero(missing > 0):
        yield int(max(times[k], start)), int(min(times[k + 1], stop)), int(missing[k])


def _due(ledger: Array, period_ns: int) -> Array:
    """How many scans were due up to each entry: one for each, those slept through by their numbers, and while nobody
    counted (a number is lower than the one before) those of the nominal period."""
    steps = np.diff(ledger[:, 1])
    by_time = np.maximum(np.diff(ledger[:, 0]) // period_ns, 1)
    return np.concatenate([[0], np.cumsum(np.where(steps > 0, steps, by_time))])


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
