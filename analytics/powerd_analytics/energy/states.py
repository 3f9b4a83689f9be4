"""What went on at every moment of a run, by its marks: the states whose power the model estimates.

A state is the set of phases that are open, of whatever process or thread. Where no innermost phase is open it is a
rest, and what lies before and behind tells rests apart: the pause between iterations is another state than the moment
between forward and backward. Since when a state lasts matters too, as power moves within a phase: states are cut into
bins of age, fine at the beginning, and one bin of one state is a column of the model. What follows a step of power
follows it at once, however long the phase takes: early bins lie at fixed ages. What a phase does later, it does later
still where it takes longer: later bins lie at shares of the rest of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.runs.phases import Phases, moments_of, pieces

Ints = NDArray[np.int64]
Values = NDArray[np.float64]

MOST_STATES = 48
"""States with bins of their own for each setting in force; those with the least time beyond that are one state
together."""
MOST_OF_SETTINGS = 256
"""The same of all settings together. A sweep of 33 caps has 201, and takes 13 s instead of 2 s; the axis of `_bins_ns`
has room for 1,000."""
FINEST_S, FINEST_SHARE = 0.1e-3, 1 / 64
"""Age of the first bin's end: so many seconds, or this share of the state's usual length where that is longer."""
EARLY_S = np.array([0.1, 0.2, 0.4, 0.8, 1.2, 1.6, 2.0, 2.4, 2.8, 3.2]) * 1e-3
"""Ages at which bins end while a regulator's ramp or a lag may still go on. Later ones end `GROWS` times as late as the
one before, and from a sixteenth of the usual length on at sixteenths."""
GROWS = 1.7
MOST_BINS = 450
"""Where all states together had more, each has a third of the early bins, and quarters: the time of the fit grows with
the third power of their number."""
FIXED_S = 1.2e-3
"""Age up to which bins lie where they are however long a phase takes."""
LEAST_STRETCH, MOST_STRETCH = 0.5, 2.0
"""How much earlier and later than usual the later bins may lie."""
VARIES = 0.05
"""Half the distance of the outer sixths of a state's lengths, as a share of the usual one, beyond which its power may
go with its length: longer sequences are more work, and draw more."""
FEW_READINGS = 6.0
"""Readings in an interval from which on they tell what it takes, and its length need not."""
OFTEN = 10
"""Times that a state begins, beyond which what it followed only once is not usual."""
_SEED = 20240817
_FOREVER_NS, _LONGEST = 1 << 50, 52
"""Of intervals without a beginning or an end; and the power of 2 in nanoseconds at which ages end: 52 days."""


@dataclass(frozen=True)  # without slots: what follows from the fields is worked out once
class States:
    """The intervals between marks [e], from ``edge_ns[i]`` to ``edge_ns[i + 1]``, and what each of them is.

    The first interval reaches back and the last one on for ever.
    """

    edge_ns: Ints
    """[e - 1] moments at which an interval ends and the next one begins."""
    state: NDArray[np.int32]
    """[e] number of the state."""
    usual_s: Values
    """[s] how long each state usually lasts; 0 for one that only lasts for ever."""
    bin_ends_s: tuple[Values, ...]
    """For each state the ages [k] at which the bins of a usual interval end but the last one, which has no end."""
    is_rest: NDArray[np.bool_]
    """[s]"""
    lumped: int
    """Number of the state that stands for several rare ones, -1 for none."""
    spread: Values
    """[s] by how much its lengths vary, as a share of the usual one,"""
    mean_length: Values
    """and the mean length, by time, as a multiple of the usual one."""
    by_length: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """States of which another column has the power by which longer intervals differ from the mean one."""

    @cached_property
    def first_column(self) -> NDArray[np.int64]:
        """[s + 1] number of each state's first column, and of all columns."""
        return np.concatenate([[0], np.cumsum([len(ends) + 1 for ends in self.bin_ends_s])]).astype(np.int64)

    @cached_property
    def length_column(self) -> Ints:
        """[s] the column of each state's power by length, behind those of the bins; -1 for none."""
        column = np.full(len(self.bin_ends_s), -1)
        column[self.by_length] = self.first_column[-1] + np.arange(len(self.by_length))
        return column

    def seen_by(self, width_s: float) -> States:
        """With power by length where lengths vary, for readings of this width: of longer intervals they tell what each
        takes."""
        varies = ~self.is_rest & (self.spread > VARIES) & (self.usual_s < FEW_READINGS * width_s)
        varies &= np.arange(len(varies)) != self.lumped
        return replace(self, by_length=np.flatnonzero(varies)) if varies.any() else self

    @cached_property
    def bin_s(self) -> Values:
        """[c] length of each bin of a usual interval, 0 where that has no end."""
        ends = [np.append(ends, max([usual, *ends])) for ends, usual in zip(self.bin_ends_s, self.usual_s, strict=True)]
        return np.concatenate([np.diff(x, prepend=0.0) for x in ends])

    @cached_property
    def mean_s(self) -> float:
        """How long intervals last, those without a beginning or an end left out; infinite where there are no others."""
        return (
            float(self.edge_ns[-1] - self.edge_ns[0]) * 1e-9 / (len(self.edge_ns) - 1)
            if len(self.edge_ns) > 1
            else np.inf
        )

    @cached_property
    def follows(self) -> NDArray[np.int64]:
        """[s, s] how often each state (row) follows each other one."""
        count = len(self.bin_ends_s)
        pairs = np.zeros(count**2, np.int64)
        for own in pieces(len(self.state) - 1):
            code = self.state[1:][own].astype(np.int64) * count + self.state[:-1][own]
            pairs += np.bincount(code, minlength=count**2)
        return pairs.reshape(count, count)

    @cached_property
    def before(self) -> NDArray[np.int64]:
        """[s] the state that each one usually follows, -1 for none."""
        follows = self.follows
        return np.where(follows.any(axis=1), follows.argmax(axis=1), -1)

    @cached_property
    def rare_ns(self) -> Ints:
        """Moments at which a state follows another one for once, and usually others, as at the begin of a training."""
        follows = self.follows
        is_rare = (follows == 1) & (follows.sum(axis=1, keepdims=True) > OFTEN)
        every = pieces(len(self.edge_ns))
        some = [self.edge_ns[own][is_rare[self.state[1:][own], self.state[:-1][own]]] for own in every]
        return np.concatenate([np.zeros(0, np.int64), *some])

    @classmethod
    def of(cls, phases: Phases) -> States:
        """States of all phases, but for those without length and those that run beside others (DDP's communication),
        which are in no sum either."""
        some = (phases.end_ns > phases.begin_ns) & ~phases.of([i for i, c in enumerate(phases.classes) if c.overlaps])
        begin, end, label = phases.begin_ns, phases.end_ns, phases.label
        if not some.all():
            begin, end, label = begin[some], end[some], label[some]
        edge_ns = moments_of(begin, end)
        count = len(phases.classes)
        is_around = np.zeros(count + 1, bool)
        is_around[phases.label[phases.parent[phases.parent >= 0]]] = True
        is_inner = ~is_around[:count]
        # The sum of random numbers of the open phases tells sets of phases apart, and is exact below 2^53.
        weight = np.random.default_rng(_SEED).integers(1, 1 << 40, max(count, 1)).astype(np.float64)
        opened, closed = np.searchsorted(edge_ns, begin), np.searchsorted(edge_ns, end)
        keys = _open_sums(opened, closed, weight[label], len(edge_ns))
        inner = _open_sums(opened, closed, is_inner[label].astype(np.float64), len(edge_ns)) > 0.5
        del opened, closed  # of tens of millions of phases there is no room for them beside what follows
        state = _told_apart(keys, inner)
        length = np.zeros(len(state))
        length[1:-1] = np.diff(edge_ns) * 1e-9
        settings = len({kind.setting for kind in phases.classes})
        state, lumped = _most_common(state, length, min(MOST_STATES * max(settings, 1), MOST_OF_SETTINGS))
        numbers = int(state.max(initial=0)) + 1
        usual, spread, mean_length = _lengths(state, length, numbers)
        bin_ends = tuple(_bin_ends(x, is_fine=True) for x in usual)
        if sum(len(ends) + 1 for ends in bin_ends) > MOST_BINS:
            bin_ends = tuple(_bin_ends(x, is_fine=False) for x in usual)
        is_rest = np.zeros(numbers, bool)
        is_rest[state[~inner]] = True
        if lumped >= 0:
            is_rest[lumped] = False
        return cls(edge_ns, state, usual, bin_ends, is_rest, lumped, spread, mean_length)

    @cached_property
    def _bins_ns(self) -> tuple[Ints, Ints, Ints, Ints]:
        """[c] begin of each bin of a usual interval; [s] age up to which bins lie where they are; [c] how much of its
        begin a longer interval moves; [c] begins of all states on one axis, so that one search finds an interval's last
        bin."""
        base = self.first_column
        begins = np.concatenate([np.append(0, np.round(ends * 1e9)) for ends in self.bin_ends_s]).astype(np.int64)
        early_s = [float(ends[ends <= FIXED_S].max(initial=0.0)) for ends in self.bin_ends_s]
        early = np.round(np.array(early_s) * 1e9).astype(np.int64)
        moved = np.maximum(begins - np.repeat(early, np.diff(base)), 0)
        return begins, early, moved, begins + np.repeat(np.arange(len(base) - 1) << _LONGEST, np.diff(base))

    def cells(self, begin_ns: int, end_ns: int) -> StateCells:
        """All cells between two moments, the first and the last cut there."""
        first = int(np.searchsorted(self.edge_ns, begin_ns, "right"))
        last = int(np.searchsorted(self.edge_ns, end_ns, "left"))
        inner = self.edge_ns[first:last]
        # An interval that is cut keeps its age and its length; what has no beginning is as old as it can be.
        since = self.edge_ns[first - 1] if first else begin_ns - _FOREVER_NS
        until = self.edge_ns[last] if last < len(self.edge_ns) else end_ns + _FOREVER_NS
        starts = np.concatenate([[since], inner]).astype(np.int64)
        state, base = self.state[first : last + 1].astype(np.int64), self.first_column
        begins, early, moved, axis = self._bins_ns
        # By how much the later bins are moved where an interval takes longer than usual.
        usual = np.maximum(self.usual_s[state] * 1e9 - early[state], 1.0)
        stretch = (np.append(inner, until) - starts - early[state]) / usual
        stretch = np.clip(stretch, LEAST_STRETCH, MOST_STRETCH)
        age = np.append(inner, end_ns) - starts
        late = np.maximum(age - early[state], 0)
        age += (late / stretch).astype(np.int64) - late
        age = np.minimum(age, (1 << _LONGEST) - 1)  # the last bin of a state has no end
        count = np.searchsorted(axis, (state << _LONGEST) + age, "left") - base[state]
        column = np.arange(count.sum()) + np.repeat(base[state] - np.cumsum(count) + count, count)
        at = np.repeat(starts, count) + begins[column]
        at += (np.repeat(stretch - 1, count) * moved[column]).astype(np.int64)
        keep = max(int(np.searchsorted(at, begin_ns, "right")) - 1, 0)
        at, column = at[keep:], column[keep:]
        at[0] = begin_ns
        cells = StateCells(begin_ns, np.append(at - begin_ns, end_ns - begin_ns) * 1e-9, column)
        if not len(self.by_length):
            return cells
        length_s = np.asarray((np.append(inner, until) - starts) * 1e-9, np.float64)
        longer = _shares(length_s, self.usual_s[state]) - self.mean_length[state]
        longer, own = np.where(self.length_column[state] < 0, 0.0, longer), np.maximum(self.length_column[state], 0)
        return replace(cells, longer=np.repeat(longer, count)[keep:], length_column=np.repeat(own, count)[keep:])


@dataclass(frozen=True, slots=True)
class StateCells:
    """Time between two moments cut into cells, each a bin of a state. Seconds since ``origin_ns``."""

    origin_ns: int
    at_s: Values
    """[n + 1] where cells begin, and the end of the last one."""
    column: NDArray[np.int64]
    """[n]"""
    longer: Values = field(default_factory=lambda: np.zeros(0))
    """[n] by how much longer than the mean the interval is, as a share of the usual length; none where no power goes
    with that,"""
    length_column: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """and the column of the power by that; any where it is 0."""

    def power(self, watts: Values) -> Values:
        """[n] of each cell, of ``watts`` of each column."""
        power = watts[self.column]
        return np.asarray(power + self.longer * watts[self.length_column] if len(self.longer) else power)

    def joules(self, watts: Values) -> Values:
        """[n + 1] of so much power in each cell, from the first cell up to where each begins, and to the end."""
        return np.concatenate([[0.0], np.cumsum(np.diff(self.at_s) * watts)])

    def since(self, t_ns: Ints) -> Values:
        """Seconds since the first cell's begin."""
        return np.asarray((t_ns - self.origin_ns) * 1e-9, np.float64)


def _open_sums(opened: Ints, closed: Ints, weight: Values, edges: int) -> Values:
    """[e] sums of the weights [m] of all phases that are open in each interval between edges, of which the phases'
    begins and ends have the numbers ``opened`` and ``closed``."""
    change = np.zeros(edges + 1)
    change[1:] += np.bincount(opened, weights=weight, minlength=edges)
    change[1:] -= np.bincount(closed, weights=weight, minlength=edges)
    return np.asarray(np.cumsum(change, out=change))


def _numbered(values: NDArray[Any]) -> tuple[NDArray[np.int32], int]:
    """[e] the number of each value among those that differ, and how many these are. They are few: `numpy.unique` would
    sort all of them, and of tens of millions there is no room for that."""
    different = values[:0]
    for own in pieces(len(values)):
        different = np.union1d(different, values[own])
    numbers = np.empty(len(values), np.int32)
    for own in pieces(len(values)):
        numbers[own] = np.searchsorted(different, values[own])
    return numbers, len(different)


def _told_apart(keys: Values, inner: NDArray[np.bool_]) -> NDArray[np.int32]:
    """[e] numbers of states: sets of phases, and for rests also the sets before and behind."""
    own, kinds = _numbered(keys)
    place = np.arange(len(own), dtype=np.int32)
    before = np.maximum.accumulate(np.where(inner, place, np.int32(-1)))
    behind = np.minimum.accumulate(np.where(inner, place, np.int32(len(own)))[::-1])[::-1]
    of = np.append(own + np.int64(1), 0)  # 0 where there is none, by the indexes -1 and len(own)
    code = np.zeros(len(own), np.int64)
    for i in pieces(len(own)):
        around = np.where(inner[i], 0, of[before[i]] * (kinds + 1) + of[behind[i]] + 1)
        code[i] = of[:-1][i] * ((kinds + 1) ** 2 + 1) + around
    return _numbered(code)[0]


def _most_common(state: NDArray[np.int32], length: Values, most: int) -> tuple[NDArray[np.int32], int]:
    """Numbers [e] of at most so many states, and which of them stands for several."""
    numbers = int(state.max(initial=0)) + 1
    if numbers <= most:
        return state, -1
    time = np.bincount(state, weights=length, minlength=numbers)
    order = np.argsort(-time, kind="stable")
    new = np.full(numbers, most - 1, np.int32)
    new[order[: most - 1]] = np.arange(most - 1)
    return new[state], most - 1


def _lengths(state: NDArray[np.int32], length: Values, numbers: int) -> tuple[Values, Values, Values]:
    """[s] upper quartile of how long each state lasts, and as shares of that half the distance of the outer sixths, and
    the mean by time."""
    usual, spread, mean = np.zeros((3, numbers))
    for number in range(numbers):
        own = length[state == number]
        low, quartile, high = len(own) // 6, len(own) * 3 // 4, len(own) * 5 // 6
        own.partition((low, quartile, high))
        usual[number] = own[quartile]
        if own[quartile] > 0:
            spread[number] = (own[high] - own[low]) / (2 * own[quartile])
            mean[number] = own @ _shares(own, usual[number]) / own.sum()
    return usual, spread, mean


def _shares(length_s: Values, usual_s: Values | float) -> Values:
    """Lengths as multiples of the usual one, no more than the greatest that counts."""
    return np.asarray(np.minimum(length_s / np.maximum(usual_s, 1e-9), MOST_STRETCH))


def _bin_ends(usual_s: float, *, is_fine: bool) -> Values:
    finest = max(FINEST_S, FINEST_SHARE * usual_s)
    parts = 16 if is_fine else 4
    shares = np.arange(1, parts) / parts * usual_s
    early = EARLY_S[(finest <= EARLY_S) & (0.9 * usual_s > EARLY_S)][:: 1 if is_fine else 3]
    last = early[-1] if len(early) else finest / GROWS
    late = last * GROWS ** np.arange(1, 16)
    late = late[late < 0.8 * shares[0]]
    last = max(last, late[-1] if len(late) else 0.0)
    return np.concatenate([early, late, shares[shares > max(1.15 * last, finest)]])
