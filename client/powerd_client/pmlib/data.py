"""pmlib's sets of line numbers (``line_t``), its devices, and what a counter has measured, also as rows of text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from powerd_client.pmlib.readings import LineReadings, Times
from powerd_core.errors import ConfigError
from powerd_core.model import Line

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
            first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
            if last < first:
                raise ConfigError(f"lines {text!r}: {part.strip()!r} is no line and no range: write them as '1-4,6'")
            numbers += range(first, last + 1)
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
            shown = [watts.sum(axis=0)] if self.is_aggregate else [*watts, watts.sum(axis=0)]
            for k, t_ns in enumerate(moments):
                cells = ["" if np.isnan(w[k]) else f"{w[k]:.6f}" for w in shown]
                yield separator.join([str(part.number), f"{(t_ns - self.begin_ns) * 1e-9:.9f}", *cells])

    def write_text(self, path: Path, lines: Lines | None, set_number: int, separator: str) -> None:
        """The rows into a file. Raises `ConfigError` when it cannot be written."""
        text = "\n".join(self.rows(lines, set_number, separator)) + "\n"
        try:
            path.write_text(text)
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror}") from error
