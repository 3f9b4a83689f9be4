"""A run as events of the Chrome trace format: a counter for every line, a slice for every phase.

Perfetto's rules for JSON: a counter track is a process and a name, and holds each value until the next; slices of one
thread must nest. Counters therefore get a process for each device, phases one for each process of the run, and phases
that overlap (of several threads) a thread each.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.devices import Part, PhaseColumns
from powerd_analytics.runs.run import Run
from powerd_analytics.signals.signal import Signal

Ints = NDArray[np.int64]
Values = NDArray[np.float64]
ToMicroseconds = Callable[[Ints], Values]

DEVICE_PID, PHASE_PID = 2_000_000_000, 2_000_100_000
"""Processes of ours in a trace: beyond any that Linux gives out (4 194 304) and below 2^31."""
_BATCH = 20_000


def thinned(t_ns: Ints, value: Values, most: int) -> tuple[Ints, Values]:
    """At most about ``most`` points that keep the lowest and the highest value of every stretch, at their own times."""
    n = len(t_ns)
    if n <= max(most, 4):
        return t_ns, value
    starts = np.linspace(0, n, max(most // 2, 1), endpoint=False).astype(np.int64)
    which = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, n)))
    order = np.lexsort((value, which))  # within each stretch from low to high
    ends = np.append(starts[1:], n) - 1
    keep = np.unique(np.concatenate([order[starts], order[ends], [0, n - 1]]))
    return t_ns[keep], value[keep]


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


def power_of(signal: Signal) -> tuple[Ints, Values]:
    """Points of a counter track. A counter of energy gives the mean power of each interval, from its beginning on."""
    if not signal.is_counter:
        return signal.t_ns, signal.value
    if len(signal) < 2:
        return signal.t_ns[:0], signal.value[:0]
    watts = np.diff(signal.value) / (np.diff(signal.t_ns) * 1e-9)
    return signal.t_ns[:-1], watts


def summed(part: Part) -> tuple[Ints, Values]:
    """Power of a device at the readings of its quickest line, the other lines' in a straight line between theirs."""
    points = [p for s in part.signals if len((p := power_of(s))[0])]
    if not points:
        return np.zeros(0, np.int64), np.zeros(0)
    t = max(points, key=lambda p: len(p[0]))[0]
    begin = max(int(p[0][0]) for p in points)
    t = t[t >= begin]
    total = np.zeros(len(t))
    for t_line, watts in points:
        total += np.interp((t - begin).astype(np.float64), (t_line - begin).astype(np.float64), watts)
    return t, total


def missing_events(
    pid: int, tid: int, name: str, signal: Signal, window_ns: tuple[int, int], to_us: ToMicroseconds
) -> Iterator[bytes]:
    """A slice wherever a line has no readings, as its counter holds the last value there."""
    shown = (signal.t_ns[1:] >= window_ns[0]) & (signal.t_ns[:-1] <= window_ns[1])
    for i in np.flatnonzero((signal.missing_ns() > 0) & shown).tolist():
        begin, end = to_us(signal.t_ns[i : i + 2]).tolist()
        yield _event(_slice(f"no readings: {name}", "powerd", pid, tid, begin, end, {}))


def lanes(run: Run, process: int) -> tuple[Ints, Ints]:
    """Phases of a process by index, and the lane [0..] of each: those of one thread share one as long as they nest."""
    p = run.phases
    own = np.flatnonzero(p.process == process)
    lane = np.zeros(len(p), np.int64)
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
    kept = (p.end_ns[own] >= window_ns[0]) & (p.begin_ns[own] <= window_ns[1])
    pid = PHASE_PID + process
    own, lane = own[kept], lane[kept]
    begin_us, end_us = to_us(begin[own]), to_us(end[own])
    for k, i in enumerate(own.tolist()):
        kind = p.classes[int(p.label[i])]
        details: dict[str, Any] = {"timed": kind.timing, **kind.attributes}
        if p.cut[i]:
            details["cut"] = "it was not ended"
        for name, columns in energies.items():
            if columns.resolvable[i]:
                details[f"{name} J"] = float(f"{columns.energy_j[i]:.6g}")
                details[f"{name} ± U95 J"] = float(f"{columns.u95_j[i]:.2g}")
            else:
                details[f"{name} J"] = "not resolvable"
        yield _event(_slice(kind.name, "phase", pid, int(lane[k]) + 1, float(begin_us[k]), float(end_us[k]), details))


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
