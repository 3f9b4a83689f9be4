"""Phases of a run as events of a Chrome trace, each with the joules of the devices."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.chrome.events import PHASE_PID, Ints, ToMicroseconds, Values, event_of_time, packed
from powerd_analytics.energy.devices import Part, PhaseColumns, part_phase_energies
from powerd_analytics.runs.phases import Small, pieces
from powerd_analytics.runs.run import Run


@dataclass(frozen=True, slots=True)
class Joules:
    """What a trace says of the energies of all phases [m]: of several devices, no more of many phases has room."""

    resolvable: NDArray[np.bool_]
    energy_j: Values
    u95_j: Values


@dataclass(frozen=True, slots=True)
class Tracks:
    """Phases of one process, by index into the run's [n], and the lane [0..] of each."""

    run: Run
    process: int
    own: Ints
    lane: Small

    def at(self, kept: slice | NDArray[np.bool_]) -> Tracks:
        """Some of them."""
        return Tracks(self.run, self.process, self.own[kept], self.lane[kept])


def joules_of(run: Run, part: Part) -> Joules:
    """Energies of all phases of a run on the device of a part."""
    columns = part_phase_energies(run, part)
    u95_j = np.empty(len(columns.energy_j))
    for some in pieces(len(u95_j)):
        u95_j[some] = _piece(columns, some).u95_j
    return Joules(columns.resolvable, columns.energy_j, u95_j)


def _piece(columns: PhaseColumns, some: slice) -> PhaseColumns:
    return PhaseColumns(**{name: getattr(columns, name)[some] for name in PhaseColumns.__dataclass_fields__})


def tracks_of(run: Run, process: int) -> Tracks:
    """The phases of a process: those of one thread share a lane as long as they nest."""
    p = run.phases
    own = np.flatnonzero(p.process == process)
    lane = np.zeros(len(p), np.int32)
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    count = 0
    for i in _outermost(run, own):
        while busy and busy[0][0] <= p.begin_ns[i]:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            heapq.heappush(free, count)
            count += 1
        lane[i] = heapq.heappop(free)
        heapq.heappush(busy, (int(p.end_ns[i]), int(lane[i])))
    for here in _by_depth(run, own) if count > 1 else ():
        lane[here] = lane[p.parent[here]]
    return Tracks(run, process, own, lane[own])


def _outermost(run: Run, own: Ints) -> Iterator[int]:
    for some in pieces(len(own)):
        here = own[some]
        yield from here[run.phases.parent[here] < 0].tolist()


def _by_depth(run: Run, own: Ints) -> Iterator[Ints]:
    """The phases ``own`` that have one around them, as indexes in pieces, outer ones before inner ones."""
    depths = run.phases.depth
    deepest = max((int(depths[own[some]].max()) for some in pieces(len(own))), default=0)
    for depth in range(1, deepest + 1):
        for some in pieces(len(own)):
            here = own[some]
            yield here[depths[here] == depth]


def phase_events(
    tracks: Tracks, window_ns: tuple[int, int], energies: Mapping[str, Joules], to_us: ToMicroseconds
) -> Iterator[bytes]:
    """The phases that meet the window, with their joules by device."""
    p = tracks.run.phases
    begin, end = nested(tracks.run, tracks.own)
    for some in pieces(len(tracks.own)):
        here = tracks.at(some)
        met = here.at((p.end_ns[here.own] >= window_ns[0]) & (p.begin_ns[here.own] <= window_ns[1]))
        yield from _events_of(met, (to_us(begin[met.own]), to_us(end[met.own])), energies)


def nested(run: Run, own: Ints) -> tuple[Ints, Ints]:
    """Edges of all phases, of ``own`` none beyond those of the phase around it: edges by two clocks may be a little."""
    p = run.phases
    begin, end = p.begin_ns, p.end_ns
    for here in _by_depth(run, own):
        above = p.parent[here]
        low = np.clip(begin[here], begin[above], end[above])
        high = np.clip(end[here], low, end[above])
        if begin is p.begin_ns and (np.any(low != begin[here]) or np.any(high != end[here])):
            begin, end = begin.copy(), end.copy()
        if begin is not p.begin_ns:
            begin[here], end[here] = low, high
    return begin, end


def _events_of(tracks: Tracks, edges_us: tuple[Values, Values], energies: Mapping[str, Joules]) -> Iterator[bytes]:
    """All of the tracks, with their edges and joules."""
    p, pid = tracks.run.phases, PHASE_PID + tracks.process
    own, lane, (begin_us, end_us) = tracks.own, tracks.lane, edges_us
    joules = {name: (j.resolvable[own], j.energy_j[own], j.u95_j[own]) for name, j in energies.items()}
    for k, i in enumerate(own):
        kind = p.classes[int(p.label[i])]
        # JSON has no number that is not finite; an attribute of the user's own may be one.
        own_words = {n: v if not isinstance(v, float) or isfinite(v) else str(v) for n, v in kind.attributes.items()}
        details: dict[str, Any] = {"timed": kind.timing, **own_words}
        if p.cut[i]:
            details["cut"] = "it was not ended"
        for name, (resolvable, energy_j, u95_j) in joules.items():
            if resolvable[k]:
                details[f"{name} J"] = float(f"{energy_j[k]:.6g}")
                details[f"{name} ± U95 J"] = float(f"{u95_j[k]:.2g}")
            else:
                details[f"{name} J"] = "not resolvable"
        edges = float(begin_us[k]), float(end_us[k])
        yield packed(event_of_time(kind.name, "phase", pid, int(lane[k]) + 1, *edges, details))
