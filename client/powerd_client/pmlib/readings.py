"""What a counter of pmlib's has measured.

Readings come out of the journal of a run that goes on, as watts at moments and joules between them. Of these are made
pmlib's joules, rows and traces, for its sets of line numbers (``line_t``) and its devices.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from math import isnan
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from powerd_client.host.ownership import whole_text
from powerd_client.runs.build import JournalFollower
from powerd_client.signals.signal import Signal
from powerd_core.errors import ConfigError
from powerd_core.model import Description, Line

Times = NDArray[np.int64]
Values = NDArray[np.float64]


class LineReadings:
    """The readings of one line as a counter looks at them; its methods want at least two good ones."""

    def __init__(self, signal: Signal) -> None:
        self.t_ns = signal.t_ns
        self.clipped_ns = np.concatenate([signal.clipped_ns, signal.clipped_low_ns])
        """Times of readings at full scale. They are left out, since the truth is only known to be more."""
        self._signal, self._integral, self._lost_ns = signal, signal.integral(), signal.missing_ns()

    def joules(self, begin_ns: ArrayLike, end_ns: ArrayLike) -> Values:
        """Energy between pairs of moments; what lies before the first and after the last reading counts nothing."""
        return self._integral.between(begin_ns, end_ns)

    def watts_at(self, t_ns: Times) -> Values:
        """Power at moments, NaN where nobody knows: outside the readings and where readings were lost. A line that
        counts energy has constant power between two readings."""
        t, i, share = self._interval(t_ns)
        _, watts = self._signal.power()
        watts = watts[i] if self._signal.is_counter else watts[i] + share * (watts[i + 1] - watts[i])
        is_known = (t == t_ns) & ((share == 0) | (share == 1) | (self._lost_ns[i] == 0))
        return np.where(is_known, watts, np.nan)

    def missing_s(self, begin_ns: int, end_ns: int) -> float:
        """Seconds between two moments for which there are no readings."""
        begin, end = self.missing_until(np.array([begin_ns, end_ns]))
        return float(end - begin)

    def missing_until(self, t_ns: Times) -> Values:
        """Seconds without readings from the first one up to moments. Beyond both ends there are none."""
        t, i, share = self._interval(t_ns)
        lost_ns = np.concatenate([[0.0], np.cumsum(self._lost_ns)])[i] + share * self._lost_ns[i]
        return np.asarray((lost_ns + (t_ns - t)) * 1e-9)

    def _interval(self, t_ns: ArrayLike) -> tuple[Times, NDArray[np.intp], Values]:
        """Moments, moved to the readings where they lie outside, the reading before each, and how far it lies from that
        to the next one (0 to 1)."""
        t = np.clip(np.asarray(t_ns, np.int64), self.t_ns[0], self.t_ns[-1])
        i = np.clip(np.searchsorted(self.t_ns, t, "right") - 1, 0, len(self.t_ns) - 2)
        return t, i, (t - self.t_ns[i]) / (self.t_ns[i + 1] - self.t_ns[i])


class JournalReader(JournalFollower):
    """The readings of a run that goes on, out of its journal. Its calls may not overlap."""

    @property
    def descriptions(self) -> tuple[Description, ...]:
        """What every powerd of the run said it measures, in the order in which they were first heard."""
        return tuple(self.contents.descriptions.values())

    def readings(self, names: Collection[str], sets: Sequence[tuple[int, int]]) -> list[dict[str, LineReadings]]:
        """For each pair of host times the good readings of lines between them, and the nearest block on either side."""
        signals = self.signals(names, sets)
        return [{name: LineReadings(signal) for name, signal in part.items()} for part in signals]


# ---- what a counter has measured ---------------------------------------------------------------------------------

MAX_LINES = 128
ALL_SETS = -1
_PART = re.compile(r"\s*(\d{1,3})\s*(?:-\s*(\d{1,3})\s*)?", re.ASCII)


class Lines(set[int]):
    """A set of line numbers (from 0, at most `MAX_LINES`), in order."""

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        """Raises `ConfigError` for a number that no line can have."""
        super().__init__()
        for number in numbers:
            self.add(number)

    @classmethod
    def parse(cls, text: str) -> Lines:
        """From text such as ``"1-4,6,9-10"``. Raises `ConfigError` for anything else."""
        numbers: list[int] = []
        for part in text.split(","):
            match = _PART.fullmatch(part)
            last = int(match[2] or match[1]) if match else -1
            if match is None or last < int(match[1]):
                raise ConfigError(f"lines {text!r}: {part.strip()!r} is no line and no range: write them as '1-4,6'")
            numbers += range(int(match[1]), last + 1)
        return cls(numbers)

    @classmethod
    def all(cls) -> Lines:
        """Every number; for a counter, every line that its device has."""
        return cls(range(MAX_LINES))

    def add(self, number: int) -> None:
        """Raises `ConfigError` for a number that no line can have."""
        if not 0 <= number < MAX_LINES:
            raise ConfigError(f"line {number}: lines have the numbers 0 to {MAX_LINES - 1}")
        super().add(number)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(super().__iter__()))

    def __str__(self) -> str:
        """The shortest text that `parse` turns into this set."""
        ranges = [[pair[1] for pair in group] for _, group in groupby(enumerate(self), lambda pair: pair[1] - pair[0])]
        return ",".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in ranges)


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """Something that can be measured. Its lines are numbered from 0, in this order; their sum is its power."""

    name: str
    max_frequency: float
    """Readings per second of its fastest line."""
    lines: tuple[Line, ...]
    description: str = ""

    @property
    def n_lines(self) -> int:
        return len(self.lines)


@dataclass(frozen=True, slots=True)
class CounterSet:
    """Readings between one start (or continue) and the next stop. Times are on the host's clock."""

    number: int
    begin_ns: int
    end_ns: int
    readings: Mapping[int, LineReadings]
    """By number of the line; they reach a little beyond both ends, so that the power at the ends is known."""

    def energy_j(self, lines: Sequence[int]) -> float:
        """Joules of these lines: the exact integral of power that is linear between readings."""
        return sum(float(self.readings[i].joules(self.begin_ns, self.end_ns)) for i in lines)

    def missing_s(self, lines: Sequence[int]) -> float:
        """Seconds without readings on that of the lines that misses most."""
        return max(self.readings[i].missing_s(self.begin_ns, self.end_ns) for i in lines)

    def moments(self, lines: Sequence[int], frequency: float) -> Times:
        """Both ends, and between them the times of the readings of that line which is read most often.

        A frequency above 0 leaves out those that follow one another faster.
        """
        inside = [t[(t > self.begin_ns) & (t < self.end_ns)] for t in (self.readings[i].t_ns for i in lines)]
        t = max(inside, key=len)
        if frequency > 0:
            turn = np.floor((t - self.begin_ns) * 1e-9 * frequency)
            t = t[np.diff(turn, prepend=0) > 0]
        return np.unique(np.concatenate([[self.begin_ns], t, [self.end_ns]]))


@dataclass(frozen=True, slots=True)
class CounterData:
    """All sets of a counter, as they were when it was read."""

    device: str
    names: Mapping[int, str]
    """The counter's lines: names by number."""
    is_aggregate: bool
    frequency: float
    sets: tuple[CounterSet, ...]

    @property
    def begin_ns(self) -> int:
        """Start of the first set, from which times are counted when they are printed."""
        return self.sets[0].begin_ns

    def energy_j(self, lines: Lines | None = None, set_number: int = ALL_SETS) -> float:
        """Joules of these lines (those of them that the counter has; None: all) in one set or all sets together."""
        chosen = self.lines(lines)
        return sum(s.energy_j(chosen) for s in self.chosen(set_number))

    def lines(self, lines: Lines | None = None) -> list[int]:
        """Which of the lines the counter has. An aggregate knows no single ones: it always gives all.

        Raises `ConfigError` when it has none of them.
        """
        if lines is None or self.is_aggregate:
            return list(self.names)
        chosen = [i for i in self.names if i in lines]
        if not chosen:
            raise ConfigError(f"the counter measures lines {Lines(self.names)} of {self.device}, none of {lines}")
        return chosen

    def chosen(self, set_number: int) -> tuple[CounterSet, ...]:
        """One set by its number, or all for -1. Raises `ConfigError` for a set that is not there."""
        if set_number == ALL_SETS:
            return self.sets
        if not 0 <= set_number < len(self.sets):
            raise ConfigError(f"there is no set {set_number}: the counter has {len(self.sets)}, from 0; -1 is all")
        return (self.sets[set_number],)

    def rows(self, lines: Lines | None, set_number: int, separator: str) -> Iterator[str]:
        """A header, then one row a moment: seconds since the first set began, and watts of each line.

        A power that nobody knows is an empty cell, and so is a sum with one in it.
        """
        chosen = self.lines(lines)
        columns = ["Value_aggregate"] if self.is_aggregate else [*(f"Line {i}" for i in chosen), "Sum"]
        yield separator.join(["Set_id", "Time", *columns])
        for part in self.chosen(set_number):
            moments = part.moments(chosen, self.frequency)
            watts = np.array([part.readings[i].watts_at(moments) for i in chosen])
            shown = np.vstack([watts, watts.sum(axis=0)])[-len(columns) :]
            for t_ns, row in zip(moments.tolist(), shown.T.tolist(), strict=True):
                cells = ["" if isnan(w) else f"{w:.6f}" for w in row]
                yield separator.join([str(part.number), f"{(t_ns - self.begin_ns) * 1e-9:.9f}", *cells])

    def write(self, path: Path, lines: Lines | None, set_number: int, separator: str) -> None:
        """The rows into a file. Raises `ConfigError` when it cannot be written."""
        _write(path, "\n".join(self.rows(lines, set_number, separator)) + "\n")


def _write(path: Path, text: str) -> None:
    try:
        whole_text(path, text)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error


# ---- Paraver -----------------------------------------------------------------------------------------------------

UNITS = {"ns": (1, "NANOSEC"), "us": (1_000, "MICROSEC"), "ms": (1_000_000, "MILLISEC")}
"""Nanoseconds of each unit of time, and its name in a ``.pcf`` file."""
SET_TYPE = 500_000_008
SUM_TYPE = 500_000_009
LINE_TYPE = 500_000_010
"""Type of line 0; the other lines follow. These are pmlib's own numbers, but for the set's."""

_LABELS = """\
DEFAULT_OPTIONS

LEVEL               THREAD
UNITS               {unit}

STATES
0    not measured
1    measured

EVENT_TYPE
{events}

EVENT_TYPE
0    {set_type}    set of the counter
VALUES
0    none
{sets}
"""


def write_paraver(path: Path, data: CounterData, lines: Lines | None, set_number: int, unit: str = "ns") -> None:
    """Write a trace for Paraver, ``NAME.prv``, with labels, ``NAME.pcf`` and ``NAME.row``. Times count from the
    beginning of the counter's first set.

    Paraver holds a value from its event to the next one of the same type, and knows integers only. So each event has
    the *mean* power in milliwatts up to the next event, from the exact integral: values times durations add up to the
    energy, but for the rounding to milliwatts. Raises `ConfigError` for an unknown unit, a name that does not end in
    ``.prv``, and files that cannot be written.
    """
    if unit not in UNITS:
        raise ConfigError(f"unit {unit!r}: Paraver knows {', '.join(UNITS)}")
    if path.suffix != ".prv":
        raise ConfigError(f"{path}: the name of a Paraver trace ends in .prv")
    chosen, sets = data.lines(lines), data.chosen(set_number)
    step_ns, unit_name = UNITS[unit]
    names = {SUM_TYPE: f"{data.device}: sum of lines {Lines(data.names)}"}
    names |= {} if data.is_aggregate else {LINE_TYPE + i: data.names[i] for i in chosen}
    records: list[str] = []
    end = 0
    for part in sets:
        moments, t = _trace_times(part.moments(chosen, data.frequency), data.begin_ns, step_ns, end)
        joules = np.array([part.readings[i].joules(moments[:-1], moments[1:]) for i in chosen])
        # By the times that are printed: so the rounding of times costs no energy.
        milliwatts = joules / (np.diff(t) * (step_ns * 1e-9)) * 1e3
        shown = np.vstack([milliwatts.sum(axis=0), milliwatts])[: len(names)]
        end = int(t[-1])
        records.append(f"1:1:1:1:1:{t[0]}:{end}:1\n")
        for k, time in enumerate(t[:-1]):
            first = f"{SET_TYPE}:{part.number + 1}:" if k == 0 else ""
            values = ":".join(f"{kind}:{round(column[k])}" for kind, column in zip(names, shown, strict=True))
            records.append(f"2:1:1:1:1:{time}:{first}{values}\n")
        records.append(f"2:1:1:1:1:{end}:{':'.join(f'{kind}:0' for kind in (SET_TYPE, *names))}\n")
    events = "\n".join(f"0    {kind}    {name}, power (mW)" for kind, name in names.items())
    numbers = "\n".join(f"{part.number + 1}    set {part.number}" for part in sets)
    labels = _LABELS.format(unit=unit_name, events=events, set_type=SET_TYPE, sets=numbers)
    levels = "\n\n".join(f"LEVEL {level} SIZE 1\n{data.device}" for level in ("CPU", "NODE", "THREAD"))
    # One node with one CPU; one application with one task of one thread on that node.
    head = f"#Paraver ({datetime.now():%d/%m/%Y at %H:%M}):{end}_{unit}:1(1):1:1(1:1)\n"
    _write(path, head + "".join(records))
    _write(path.with_suffix(".pcf"), labels)
    _write(path.with_suffix(".row"), f"{levels}\n")


def _trace_times(moments: Times, origin_ns: int, step_ns: int, after: int) -> tuple[Times, Times]:
    """Moments of a set, and the same in units of the trace, not before ``after``.

    Moments that a coarse unit cannot tell apart become one, but the set's ends stay apart.
    """
    t = (moments - origin_ns + step_ns // 2) // step_ns
    t += max(0, after - int(t[0]))
    is_last_of_equals = np.append(np.diff(t) > 0, True)
    inside = is_last_of_equals & (t > t[0]) & (t < t[-1])
    kept = np.concatenate([[0], np.flatnonzero(inside), [len(t) - 1]])
    t[-1] = max(t[-1], t[0] + 1)
    return moments[kept], t[kept]
