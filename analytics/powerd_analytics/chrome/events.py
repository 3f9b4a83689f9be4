"""A run as events of the Chrome trace format: a counter for every line, a slice for every phase.

Perfetto's rules for JSON: a counter track is a process and a name, and holds each value until the next; slices of one
thread must nest. Counters therefore get a process for each device, phases one for each process of the run, and phases
that overlap (of several threads) a thread each.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.devices import PhaseColumns
from powerd_analytics.runs.phases import Small, pieces
from powerd_analytics.runs.run import Run
from powerd_analytics.signals.envelopes import extremes_of
from powerd_analytics.signals.signal import Signal
from powerd_analytics.signals.streams import Points, View, count_points, fastest_of, points_of, summed_of

Ints = NDArray[np.int64]
Values = NDArray[np.float64]
ToMicroseconds = Callable[[Ints], Values]

DEVICE_PID, PHASE_PID = 2_000_000_000, 2_000_100_000
"""Processes of ours in a trace: beyond any that Linux gives out (4 194 304) and below 2^31."""
_BATCH = 20_000


def thinned(t_ns: Ints, value: Values, most: int) -> tuple[Ints, Values]:
    """At most about ``most`` points that keep the lowest and the highest value of every stretch, at their own times."""
    return extremes_of([(t_ns, value)] if len(t_ns) else [], len(t_ns), most)


def metadata(pid: int, name: str, *, sort: int, label: str = "", threads: Sequence[str] = ()) -> Iterator[bytes]:
    """Names of a process and its threads (numbered from 1), and where they stand."""
    yield _event({"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}})
    yield _event({"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": sort}})
    if label:
        yield _event({"ph": "M", "name": "process_labels", "pid": pid, "tid": 0, "args": {"labels": label}})
    for tid, text in enumerate(threads, 1):
        yield thread_name(pid, tid, text)


def thread_name(pid: int, tid: int, name: str) -> bytes:
    """The name of one thread."""
    return _event({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}})


def counter_events(pid: int, name: str, t_us: Values, value: Values) -> Iterator[bytes]:
    """A counter track called ``name``, in watts."""
    head = f'{{"ph":"C","name":{json.dumps(name)},"pid":{pid},"tid":0,"ts":'
    for at in range(0, len(t_us), _BATCH):
        pairs = zip(t_us[at : at + _BATCH].tolist(), value[at : at + _BATCH].tolist(), strict=True)
        yield ",\n".join([f'{head}{t:.3f},"args":{{"W":{w:.6g}}}}}' for t, w in pairs]).encode()


def power_of(signal: Signal, window_ns: tuple[int, int], most: int) -> Points:
    """Points of a counter track within a window and the one before it, thinned.

    A counter of energy gives the mean power of each interval, from its beginning on.
    """
    view = View(*window_ns, is_step=True)
    return extremes_of(points_of(signal, view), count_points(signal, view), most)


def summed(signals: Sequence[Signal], window_ns: tuple[int, int], most: int) -> Points:
    """The same of several lines together, at the readings of the quickest one, the others' in a straight line between
    theirs."""
    everywhere, view = View(is_step=True), View(*window_ns, is_step=True)
    firsts = [(s, int(t[0])) for s in signals for t, _ in islice(points_of(s, everywhere), 1)]
    if not firsts:
        return np.zeros(0, np.int64), np.zeros(0)
    since_ns = max(first for _, first in firsts)
    fastest = fastest_of([s for s, _ in firsts], everywhere)
    shown = View(max(view.begin_ns, since_ns), view.end_ns, is_step=True)
    count = count_points(fastest, shown)
    # The point before the view may lie before a line began; what has no sum is not shown.
    count -= any(t[0] < since_ns for t, _ in islice(points_of(fastest, shown), 1))
    return extremes_of(summed_of([s for s, _ in firsts], fastest, view, since_ns), count, most)


def missing_events(pid: int, tid: int, name: str, holes_ns: Ints, to_us: ToMicroseconds) -> Iterator[bytes]:
    """A slice wherever a line has no readings (`holes_ns` [h, 2]), as its counter holds the last value there."""
    for begin, end in to_us(holes_ns).tolist():
        yield _event(_slice(f"no readings: {name}", "powerd", pid, tid, begin, end, {}))


def lanes(run: Run, process: int) -> tuple[Ints, Small]:
    """Phases of a process by index, and the lane [0..] of each: those of one thread share one as long as they nest."""
    p = run.phases
    own = np.flatnonzero(p.process == process)
    lane = np.zeros(len(p), np.int32)
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    count = 0
    for i in own[p.parent[own] < 0].tolist():
        while busy and busy[0][0] <= p.begin_ns[i]:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            heapq.heappush(free, count)
            count += 1
        lane[i] = heapq.heappop(free)
        heapq.heappush(busy, (int(p.end_ns[i]), int(lane[i])))
    for depth in range(1, int(p.depth[own].max(initial=0)) + 1):
        level = own[p.depth[own] == depth]
        lane[level] = lane[p.parent[level]]
    return own, lane[own]


def phase_events(
    run: Run,
    process: int,
    window_ns: tuple[int, int],
    energies: Mapping[str, PhaseColumns],
    to_us: ToMicroseconds,
) -> Iterator[bytes]:
    """The phases of a process that meet the window, with their joules by device."""
    p = run.phases
    own, lane = lanes(run, process)
    begin, end = nested(run)
    for some in pieces(len(own)):
        here = own[some]
        kept = (p.end_ns[here] >= window_ns[0]) & (p.begin_ns[here] <= window_ns[1])
        here = here[kept]
        edges_us = to_us(begin[here]), to_us(end[here])
        yield from _events_of(run, process, (here, lane[some][kept]), edges_us, energies)


def _events_of(
    run: Run,
    process: int,
    chosen: tuple[Ints, Small],
    edges_us: tuple[Values, Values],
    energies: Mapping[str, PhaseColumns],
) -> Iterator[bytes]:
    """Phases by index, with their lanes, edges and joules."""
    p, pid = run.phases, PHASE_PID + process
    (own, lane), (begin_us, end_us) = chosen, edges_us
    joules = {name: (c.resolvable[own], c.energy_j[own], _kept(c, own).u95_j) for name, c in energies.items()}
    for k, i in enumerate(own.tolist()):
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
        yield _event(_slice(kind.name, "phase", pid, int(lane[k]) + 1, float(begin_us[k]), float(end_us[k]), details))


def _kept(columns: PhaseColumns, which: Ints) -> PhaseColumns:
    return PhaseColumns(**{name: getattr(columns, name)[which] for name in PhaseColumns.__dataclass_fields__})


def nested(run: Run) -> tuple[Ints, Ints]:
    """Edges of all phases, none beyond those of the phase around it: edges by two clocks may be a little."""
    p = run.phases
    begin, end = p.begin_ns.copy(), p.end_ns.copy()
    for depth in range(1, int(p.depth.max(initial=0)) + 1):
        level = np.flatnonzero(p.depth == depth)
        above = p.parent[level]
        begin[level] = np.clip(begin[level], begin[above], end[above])
        end[level] = np.clip(end[level], begin[level], end[above])
    return begin, end


def _slice(
    name: str, category: str, pid: int, tid: int, begin_us: float, end_us: float, details: dict[str, Any]
) -> dict[str, Any]:
    ts = round(begin_us, 3)
    found = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": ts}
    return found | {"dur": round(max(round(end_us, 3) - ts, 0.0), 3), "args": details}


def _event(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, default=str, allow_nan=False).encode()
