"""Energies of phases from a signal that is read in slices: each phase is the sum of its pieces.

A phase that lies in a slice is computed there as if the rest of the run did not exist; what the phases of a kind share
is then what those of the slice share. One that crosses slices is cut into pieces. Back-to-back phases of one kind are
a stretch, whose inner edges need neither correction nor resolution, and so are the pieces: their integrals add up
exactly, and only the real ends are corrected.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.edges.edges import PhaseEnergies, phase_line_energies
from powerd_analytics.signals.signal import Signal
from powerd_analytics.signals.slices import FAR_NS, SlicedSignal

Ints = NDArray[np.int64]
Indexes = NDArray[np.intp]
Which = slice | Indexes
Numbers = NDArray[np.signedinteger[Any]]

_SQUARED = "u_"
"""Uncertainties of pieces are of different readings and ends, and add up squared; all else adds up as it is."""
_LARGEST = frozenset({"u_place_j", "u_clock_j", "u_inner_j", "u_shift_w", "u_round_w"})
"""But for these: inside, one piece loses what the next one gains."""


def energies_of(
    signal: Signal, begin_ns: Ints, end_ns: Ints, label: Numbers, process: Numbers
) -> Iterator[tuple[Which, PhaseEnergies]]:
    """Energies of phases [m] from one signal, as parts: which phases, and their energies. Each phase comes once."""
    if isinstance(signal, SlicedSignal):
        yield from _Pieces(signal, begin_ns, end_ns, label, process).parts()
    else:
        label, process = (x.astype(np.int64, copy=False) for x in (label, process))
        yield slice(None), phase_line_energies(signal, begin_ns, end_ns, label, process)


class _Pieces:
    """One walk over the slices of a signal with phases [m]."""

    def __init__(self, signal: SlicedSignal, begin: Ints, end: Ints, label: Numbers, process: Numbers) -> None:
        self.signal, self.begin, self.end, self.label, self.process = signal, begin, end, label, process
        cuts = signal.cuts_ns
        self.split = np.flatnonzero(np.searchsorted(cuts, end, "left") > np.searchsorted(cuts, begin, "right"))
        """Phases that lie in more than one slice."""
        self._sums: dict[str, NDArray[Any]] = {}

    def parts(self) -> Iterator[tuple[Which, PhaseEnergies]]:
        signal, begin, end = self.signal, self.begin, self.end
        # Phases come in the order of their beginnings nearly always: no copies then.
        order = None if np.all(begin[1:] >= begin[:-1]) else np.argsort(begin, kind="stable")
        begins = begin if order is None else begin[order]

        def listed(first: int, last: int) -> Indexes:
            return np.arange(first, last) if order is None else order[first:last]

        cuts = np.concatenate([[-FAR_NS], signal.cuts_ns, [FAR_NS]])
        count, upto, there = len(cuts) - 1, 0, np.zeros(0, np.intp)
        with signal.slices() as read:
            for i in range(count):
                core = int(cuts[i]), int(cuts[i + 1])
                after = int(np.searchsorted(begins, core[1], "left"))
                earlier, since, upto = there, upto, after
                there = np.concatenate([earlier, listed(since, after)])
                there = there[end[there] >= core[0]]
                across = (begin[there] < core[0]) & (end[there] > core[1])
                if not len(there):
                    continue
                if not across.all() or i not in signal.whole:
                    signal.progress(i / count, f"{signal.line.name}: slice {i + 1} of {count}")
                    part = read(i)
                    view = _view(part, i == 0, i == count - 1)
                    # Phases in the margins tell what surrounds the slice's own.
                    near = np.concatenate([earlier, listed(since, int(np.searchsorted(begins, view[1], "left")))])
                    near = near[(end[near] >= view[0]) & ((begin[near] >= core[0]) | (end[near] <= core[1]))]
                    yield self._slice(part, near, view, core, i)
                self._add(there[across], signal.whole[i])
        if len(self.split):
            yield self.split, self._summed()

    def _slice(
        self, part: Signal, near: Indexes, view: tuple[int, int], core: tuple[int, int], number: int
    ) -> tuple[Which, PhaseEnergies]:
        """The phases that lie in one slice; pieces of others are added up. ``near`` are its own and its margins'."""
        b, e = self.begin[near], self.end[near]
        own = np.where(b < e, (b < core[1]) & (e > core[0]), (b >= core[0]) & (b < core[1]))
        of, begins, ends = [], [], []
        for low, high, inside in ((*core, own), (view[0], core[0], b < core[0]), (core[1], view[1], e > core[1])):
            of.append(near[inside])
            begins.append(np.clip(b[inside], low, high))
            ends.append(np.clip(e[inside], low, high))
        label, process = (np.concatenate([column[at] for at in of]) for column in (self.label, self.process))
        # A phase that is there all the time: the same for whatever goes on across the slice.
        always = np.array([view[0], *core, view[1]], np.int64)
        others = np.full(3, label.max(initial=-1) + 1), np.full(3, -1)
        found = phase_line_energies(
            part,
            np.concatenate([*begins, always[[1, 0, 2]]]),
            np.concatenate([*ends, always[[2, 1, 3]]]),
            np.concatenate([label, others[0]]),
            np.concatenate([process, others[1]]),
        )
        self.signal.whole[number] = _taken(found, np.array([len(label)]))
        mine = of[0]
        is_split = np.isin(mine, self.split, assume_unique=True)
        self._add(mine[is_split], _taken(found, np.flatnonzero(is_split)))
        return mine[~is_split], _taken(found, np.flatnonzero(~is_split))

    def _add(self, which: Indexes, found: PhaseEnergies) -> None:
        at = np.searchsorted(self.split, which)
        for name, values in _columns(found):
            sums = self._sums.setdefault(name, np.zeros(len(self.split), values.dtype))
            if values.dtype == bool:
                sums[at] |= values
            elif name in _LARGEST:
                new = np.nan_to_num(values)
                sums[at] = np.where(np.abs(new) > np.abs(sums[at]), new, sums[at])
            else:
                sums[at] += np.nan_to_num(values) ** (2 if name.startswith(_SQUARED) else 1)

    def _summed(self) -> PhaseEnergies:
        for name, values in self._sums.items():
            if name.startswith(_SQUARED) and name not in _LARGEST:
                self._sums[name] = np.sqrt(values)
        s = self._sums
        whole = s["linear_j"] + s["begin_j"] + s["end_j"]
        s["energy_j"] = np.where(s["resolvable"], whole, np.nan)
        return PhaseEnergies(**s)


def _view(part: Signal, is_first: bool, is_last: bool) -> tuple[int, int]:
    """From where to where a slice with its margins can be looked at; beyond the run's ends nothing is cut off."""
    return -FAR_NS if is_first else int(part.t_ns[0]), FAR_NS if is_last else int(part.t_ns[-1])


def _columns(found: PhaseEnergies) -> Iterator[tuple[str, NDArray[Any]]]:
    return ((f.name, getattr(found, f.name)) for f in fields(PhaseEnergies))


def _taken(found: PhaseEnergies, which: Indexes) -> PhaseEnergies:
    return PhaseEnergies(**{name: values[which] for name, values in _columns(found)})
