"""Energies of phases from one line: the plain integral, corrected at its edges, and what makes it unsure.

`phase_line_energies` does this for readings that are in memory; everything in it is prefix sums and sums by class. Of a
signal that is read in slices, each phase is the sum of its pieces (`energies_of`): a phase that lies in a slice is
computed there as if the rest of the run did not exist, and what the phases of a kind share is then what those of the
slice share. One that crosses slices is cut. The pieces are back to back like a stretch, so that their integrals add up
exactly, inner edges need neither correction nor resolution, and only the two real ends are corrected.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.edges import (
    JOIN_SHARE,
    Correction,
    EdgeSamples,
    StretchSamples,
    correct_edge,
    join_stretches,
)
from powerd_analytics.energy.sampling import Samples, instant_offset_ns, prefix_sums, rounding_u
from powerd_analytics.signals.integral import Integral
from powerd_analytics.signals.signal import FAR_NS, Signal

Ints = NDArray[np.int64]
Values = NDArray[np.float64]
Mask = NDArray[np.bool_]
Indexes = NDArray[np.intp]
Which = slice | Indexes
Numbers = NDArray[np.signedinteger[Any]]

_SQUARED = "u_"
"""Uncertainties of pieces are of different readings and ends, and add up squared; all else adds up as it is."""
_LARGEST = frozenset({"u_instant_j", "u_clock_j", "u_inner_j", "u_shift_w", "u_round_w"})
"""But for these: inside, one piece loses what the next one gains."""
OWN = 0.7
"""Share of a phase's own movement in its sampling variance, the rest is its kind's: a few readings are a poor estimate,
and a kind's mean says little of a phase that is unlike the others."""


@dataclass(frozen=True, slots=True)
class PhaseEnergies:
    """Energies of phases [m] from one signal, joules, with standard uncertainties by cause.

    Not resolvable: ``energy_j`` is NaN there; ``linear_j`` is always the plain integral.
    """

    energy_j: Values
    linear_j: Values
    begin_j: Values
    end_j: Values
    """Corrections at the edges that ``energy_j`` has on top of ``linear_j``."""
    resolvable: Mask
    u_random_j: Values
    """What differs from phase to phase: sampling inside and at the edges, noise."""
    u_inner_j: Values
    """The same from edges inside a stretch: what one phase loses there its neighbour of the same kind gains, so
    that it counts for single phases and not for their mean."""
    u_edge_j: Values
    u_residual_j: Values
    u_instant_j: Values
    u_clock_j: Values
    """Shared by all phases of a class: imperfect edge correction; what is left over at edges, as far as the line's own
    readings leave that open; windows that all lie beside their stamps; an offset of the clocks."""
    u_shift_w: Values
    """Joules by which all edges a second later would change the mean of the class."""
    u_round_w: Values
    """What rounding to codes leaves of the mean power: less where noise goes over a code."""
    missing_s: Values
    off_by_j: Values
    """Largest error that the missing readings can cause when power stays in the line's observed range."""
    beyond_j: Values
    """The part of it of time in which nothing is counted: before the first reading, behind the last, where a counter
    was set back. There the energy is off to one side, and by all of this where power is steady."""


def phase_line_energies(
    signal: Signal,
    begin_ns: Ints,
    end_ns: Ints,
    label: Ints,
    process: Ints,
) -> PhaseEnergies:
    """Energies of phases [m] of classes ``label``, from readings in memory."""
    integral = signal.integral()
    linear_j = integral.between(begin_ns, end_ns)
    missing = missing_in(signal, integral, begin_ns, end_ns)
    if len(signal) < 3 or not len(begin_ns):
        return _unresolved(linear_j, missing)
    s = join_stretches(begin_ns, end_ns, label, process, JOIN_SHARE * signal.resolution_ns)
    # Both come in order nearly always: a stable sort merges them, and what is there twice does no harm.
    edges = np.sort(np.concatenate([begin_ns, end_ns]), kind="stable")
    stretches = StretchSamples(signal, Samples(signal), s, edges)
    begins, ends = (correct_edge(stretches, integral, side) for side in stretches.sides)
    i, k = s.of_phase, s.label
    begin_j = np.where(s.is_first, (begins.weight[k] * begins.full_j)[i], 0.0)
    end_j = np.where(s.is_last, (ends.weight[k] * ends.full_j)[i], 0.0)
    resolvable = stretches.resolvable[i]
    u_random, u_inner = _random_j(stretches, begins, ends, begin_ns, end_ns)
    shift_w, spread_w = _shift_w(stretches, begins, ends)
    residual_w = (begins.weight * begins.residual.per_s_w)[k]
    u_clock_s, u_instant_s = stretches.bound_ns * 1e-9 / np.sqrt(3), instant_offset_ns(signal) * 1e-9 / np.sqrt(3)
    u_begin, u_end = _shared_j(stretches, begins)[i], _shared_j(stretches, ends)[i]
    return PhaseEnergies(
        energy_j=np.where(resolvable, linear_j + begin_j + end_j, np.nan),
        linear_j=linear_j,
        begin_j=np.where(resolvable, begin_j, 0.0),
        end_j=np.where(resolvable, end_j, 0.0),
        resolvable=resolvable,
        # Power that moves up in one phase and down in the next makes an offset a matter of chance.
        u_random_j=np.hypot(u_random, (np.hypot(u_clock_s, u_instant_s) * spread_w)[i]),
        u_inner_j=u_inner,
        u_edge_j=np.hypot(np.where(s.is_first, u_begin, 0.0), np.where(s.is_last, u_end, 0.0)),
        u_residual_j=np.where(s.is_first, (begins.weight * begins.residual.u_line_j)[k][i], 0.0),
        u_instant_j=(u_instant_s * np.abs(shift_w + residual_w))[i],
        u_clock_j=(u_clock_s * np.abs(shift_w))[i],
        u_shift_w=np.abs(shift_w)[i],
        u_round_w=rounding_u(signal.line.accuracy.step_w, stretches.sigma2)[k][i],
        **missing,
    )


def _unresolved(linear_j: Values, missing: dict[str, Values]) -> PhaseEnergies:
    """Of phases on a signal that has too few readings to tell anything but their plain integral."""
    m = len(linear_j)
    nothing = dict.fromkeys(("begin_j", "end_j", "u_shift_w", "u_round_w"), np.zeros(m))
    unknown = ("energy_j", "u_random_j", "u_inner_j", "u_edge_j", "u_residual_j", "u_instant_j", "u_clock_j")
    return PhaseEnergies(
        linear_j=linear_j,
        resolvable=np.zeros(m, bool),
        **nothing,
        **dict.fromkeys(unknown, np.full(m, np.nan)),
        **missing,
    )


def _random_j(
    stretches: StretchSamples, begins: Correction, ends: Correction, begin_ns: Ints, end_ns: Ints
) -> tuple[Values, Values]:
    """Random standard uncertainty of each single phase [m]: its own, and that of its edges inside a stretch.

    Inside: g S h^2 + sigma^2 h^2 + M c^2 / 3 a reading, where lines are straight. S and M are weighed by how much the
    stretch's power moves: what steps at the edges is corrected there, and all else lies between clean samples, while
    straight lines take in what moves up to the readings beyond the edges.
    """
    s, h, k = stretches.s, stretches.samples.spacing_ns, stretches.s.label
    i, is_counter = s.of_phase, stretches.signal.is_counter
    held_ns = begins.weight[k] * begins.d_ns + ends.weight[k] * ends.d_ns
    straight = np.clip(1 - held_ns / np.maximum(stretches.length_ns, 1.0), 0, 1)[i]
    readings = (end_ns - begin_ns).astype(np.float64) * straight / h
    w = (begins.weight + ends.weight)[k] / 2
    own = OWN * (w * stretches.own_share + (1 - w) * stretches.wide_share) + (1 - OWN)
    g, c = stretches.samples.figures.g, 0.0 if is_counter else stretches.samples.centre_ns
    rate = (g * stretches.step2[k] * h**2 + stretches.smooth2[k] * c**2 / 3) * own
    rate = rate + (0.0 if is_counter else stretches.sigma2[k] * h**2)
    begin_j2, end_j2 = _edge_j2(stretches, begins, own), _edge_j2(stretches, ends, own)
    single_j2 = (
        rate[i] * readings * 1e-18 + np.where(s.is_first, begin_j2[i], 0.0) + np.where(s.is_last, end_j2[i], 0.0)
    )
    swing_j2 = stretches.move1[k] * (h**2 + stretches.signal.window_ns**2) / 12 * 1e-18
    inner_j2 = (swing_j2 + _moment_j2(stretches, begins.side))[i]
    shared_j2 = np.where(s.is_first, 0.0, inner_j2) + np.where(s.is_last, 0.0, inner_j2)
    unknown = np.where(stretches.resolvable[i], 0.0, np.nan)
    return np.sqrt(single_j2) + unknown, np.sqrt(shared_j2) + unknown


def _moment_j2(
    stretches: StretchSamples, side: EdgeSamples, weight: Values | float = 0.0, d_ns: Values | float = 0.0
) -> Values:
    """Variance (J^2) [n] of one end of an interval for the moments ± c at which a counter stood where it was read.

    The energy counted since the reading nearest to the edge is unsure by P c. Power that is held over d has been taken
    from two readings h apart: P c (1 + d/h) and P c d/h. Straight between two readings it is 2/3 of one on average.
    """
    if not stretches.signal.is_counter:
        return np.zeros(len(side.inside))
    far = np.asarray(d_ns) / stretches.samples.spacing_ns
    of_readings = weight * ((1 + far) ** 2 + far**2) + (1 - np.asarray(weight)) * 2 / 3
    variance: Values = (stretches.samples.watts[side.inside] * stretches.signal.centre_ns * 1e-9) ** 2 / 3 * of_readings
    return variance


def _edge_j2(stretches: StretchSamples, fix: Correction, own: Values) -> Values:
    """Variance (J^2) [n] of one edge.

    Power held over d wanders on the way to the edge, S d^3 / 3h and d^4 / 4h^2 of smooth movement, and has the noise of
    its sample, sigma^2 d (d + h): w^2 of it. Straight lines have steps near the edge, and h^2 / 12 of how much more
    power moves across it than elsewhere: (1 - w)^2 of it.
    """
    k, h, d = stretches.s.label, stretches.samples.spacing_ns, fix.d_ns
    S, sigma2 = stretches.step2[k], stretches.sigma2[k]
    w2, rest2 = fix.weight[k] ** 2, (1 - fix.weight[k]) ** 2
    wander = S * d**3 / (3 * h) + stretches.wild2[k] * d**4 / (4 * h**2)
    noise = sigma2 * d * (d + h)
    if not stretches.signal.is_counter:
        # On its way to another level, power is another where the window of the reading held lies beside its stamp.
        noise = noise + (fix.steeper[k] * stretches.samples.centre_ns * (d + h / 2)) ** 2 / 3
    straight = stretches.samples.figures.g_edge * S * h**2 * own + fix.excess2[k] * h**2 / 12
    moment_j2 = _moment_j2(stretches, fix.side, fix.weight[k], d)
    residual_j2 = w2 * fix.residual.u_single_j[k] ** 2
    variance: Values = (w2 * (wander + noise) + rest2 * straight) * 1e-18 + moment_j2 + residual_j2
    return variance


def _shared_j(stretches: StretchSamples, fix: Correction) -> Values:
    """Standard uncertainty (J) [n] of a corrected edge that all phases of a class share: what a weight below 1 may have
    left, / sqrt(3), and the slope correction B, which goes on to the edge somewhere between half and one and a half
    times as steep: B / sqrt(12)."""
    n = np.maximum(stretches.count(), 1)
    left_j = (1 - fix.weight) * np.abs(stretches.sum(fix.full_j) / n) / np.sqrt(3)
    bent_j = fix.weight * np.abs(stretches.sum(fix.bend_j) / n) / np.sqrt(12)
    shared: Values = np.sqrt(left_j**2 + bent_j**2 + (fix.weight * fix.residual.u_shared_j) ** 2)[stretches.s.label]
    return shared


def _shift_w(stretches: StretchSamples, begins: Correction, ends: Correction) -> tuple[Values, Values]:
    """[n] joules (W s) by which all edges a second later would change the mean of a stretch's class, and how far that
    of its own is from it.

    What is held moves with the readings; a straight line has at the edge what lies there between two of them.
    """
    k = stretches.s.label
    begin_w, end_w = (
        fix.weight[k] * fix.side.inside_w + (1 - fix.weight[k]) * stretches.samples.at(fix.side.edge_ns)
        for fix in (begins, ends)
    )
    moved_w = end_w - begin_w
    mean_w = (stretches.sum(moved_w) / np.maximum(stretches.count(), 1))[k]
    return mean_w, np.abs(moved_w - mean_w)


def missing_in(signal: Signal, integral: Integral, begin: Ints, end: Ints) -> dict[str, Values]:
    """The columns ``missing_s``, ``off_by_j`` and ``beyond_j`` of `PhaseEnergies` for intervals [m]."""
    length_s = (end - begin).astype(np.float64) * 1e-9
    if len(signal) < 2:
        unknown = np.full(len(length_s), np.nan)
        return {"missing_s": length_s, "off_by_j": unknown, "beyond_j": unknown}
    t, lost_ns = signal.t_ns, signal.missing_ns()
    edges = *_locate(t, begin), *_locate(t, end)
    bridged, outside = _lost_s(lost_ns, *edges), length_s - integral.covered_s(begin, end)
    if signal.broken.any():
        set_back = _lost_s(np.where(signal.broken, lost_ns, 0.0), *edges)
        bridged, outside = np.maximum(bridged - set_back, 0.0), outside + set_back
    low_w, high_w = signal.shown_w()
    # Between readings the estimate stays in the observed range.
    beyond_j = outside * max(abs(high_w), abs(low_w))
    return {
        "missing_s": bridged + outside,
        "off_by_j": bridged * (high_w - low_w) + beyond_j,
        "beyond_j": beyond_j,
    }


def _lost_s(lost_ns: Values, i_b: Ints, share_b: Values, i_e: Ints, share_e: Values) -> Values:
    """Seconds of what is lost [n-1] between readings, between edges as `_locate` finds them."""
    prefix = prefix_sums(lost_ns)
    inside = (prefix[i_e] + share_e * lost_ns[i_e] - prefix[i_b] - share_b * lost_ns[i_b]) * 1e-9
    # What rounding leaves of a difference of sums is no time.
    return np.asarray(np.maximum(inside, 0.0))


def _locate(t: Ints, at: Ints) -> tuple[Ints, Values]:
    """The reading before each moment, and how far the moment lies towards the next one."""
    at = np.clip(at, t[0], t[-1])
    i = np.clip(np.searchsorted(t, at, "right") - 1, 0, len(t) - 2)
    return i, (at - t[i]) / (t[i + 1] - t[i])


def energies_of(
    signal: Signal, begin_ns: Ints, end_ns: Ints, label: Numbers, process: Numbers
) -> Iterator[tuple[Which, PhaseEnergies]]:
    """Energies of phases [m] from one signal, as parts: which phases, and their energies. Each phase comes once."""
    if len(signal.cuts_ns):
        yield from _Pieces(signal, begin_ns, end_ns, label, process).parts()
    else:
        label, process = (x.astype(np.int64, copy=False) for x in (label, process))
        with signal.slices() as read:
            yield slice(None), phase_line_energies(read(0), begin_ns, end_ns, label, process)


class _Pieces:
    """One walk over the slices of a signal with phases [m].

    ``core`` are the two readings at which a slice meets its neighbours, ``view`` reaches to the ends of its margins.
    """

    def __init__(self, signal: Signal, begin: Ints, end: Ints, label: Numbers, process: Numbers) -> None:
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
                    # Beyond the run's ends nothing is cut off.
                    view = -FAR_NS if i == 0 else int(part.t_ns[0]), FAR_NS if i == count - 1 else int(part.t_ns[-1])
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
        energies = phase_line_energies(
            part,
            np.concatenate([*begins, always[[1, 0, 2]]]),
            np.concatenate([*ends, always[[2, 1, 3]]]),
            np.concatenate([label, others[0]]),
            np.concatenate([process, others[1]]),
        )
        self.signal.whole[number] = _taken(energies, np.array([len(label)]))
        mine = of[0]
        is_split = np.isin(mine, self.split, assume_unique=True)
        self._add(mine[is_split], _taken(energies, np.flatnonzero(is_split)))
        return mine[~is_split], _taken(energies, np.flatnonzero(~is_split))

    def _add(self, which: Indexes, energies: PhaseEnergies) -> None:
        at = np.searchsorted(self.split, which)
        for name, values in _columns(energies):
            sums = self._sums.setdefault(name, np.zeros(len(self.split), values.dtype))
            if values.dtype == bool:
                sums[at] |= values
            elif name in _LARGEST:
                sums[at] = np.maximum(sums[at], np.nan_to_num(values))
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


def _columns(energies: PhaseEnergies) -> Iterator[tuple[str, NDArray[Any]]]:
    return ((f.name, getattr(energies, f.name)) for f in fields(PhaseEnergies))


def _taken(energies: PhaseEnergies, which: Indexes) -> PhaseEnergies:
    return PhaseEnergies(**{name: values[which] for name, values in _columns(energies)})
