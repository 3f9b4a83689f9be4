"""What a counter has measured: sets of readings, each with its own times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from powerd_client.pmlib.lines import Lines
from powerd_client.pmlib.readings import LineReadings, Times, Values
from powerd_core.errors import ConfigError

ALL_SETS = -1


@dataclass(frozen=True, slots=True)
class CounterSet:
    """Readings between one start (or continue) and the next stop. Times are on the host's clock."""

    number: int
    begin_ns: int
    end_ns: int
    readings: Mapping[int, LineReadings]
    """By number of the line; they reach a little beyond both ends, so that the power at the ends is known."""

    @property
    def duration_s(self) -> float:
        return (self.end_ns - self.begin_ns) * 1e-9

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
        if frequency > 0 and len(t):
            turn = np.floor((t - self.begin_ns) * 1e-9 * frequency)
            t = t[np.concatenate([[turn[0] > 0], np.diff(turn) > 0])]
        ends = np.array([self.begin_ns, self.end_ns], np.int64)
        return np.unique(np.concatenate([ends, t]))

    def watts(self, lines: Sequence[int], t_ns: Times) -> Values:
        """Power of each line at each moment [lines, moments]; NaN where readings are missing."""
        return np.array([self.readings[i].watts_at(t_ns) for i in lines])


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
        found = [i for i in self.names if i in lines]
        if not found:
            raise ConfigError(f"the counter measures lines {Lines(self.names)} of {self.device}, none of {lines}")
        return found

    def chosen(self, set_number: int) -> tuple[CounterSet, ...]:
        """One set by its number, or all for -1. Raises `ConfigError` for a set that is not there."""
        if set_number == ALL_SETS:
            return self.sets
        if not 0 <= set_number < len(self.sets):
            raise ConfigError(
                f"there is no set {set_number}: the counter has sets 0 to {len(self.sets) - 1}, -1 is all"
            )
        return (self.sets[set_number],)
