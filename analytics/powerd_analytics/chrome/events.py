"""A run as events of the Chrome trace format: a counter for every line, a slice for every phase.

Perfetto's rules for JSON: a counter track is a process and a name, and holds each value until the next; slices of one
thread must nest. Counters therefore get a process for each device, phases one for each process of the run, and phases
that overlap (of several threads) a thread each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    yield packed({"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}})
    yield packed({"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": sort}})
    if label:
        yield packed({"ph": "M", "name": "process_labels", "pid": pid, "tid": 0, "args": {"labels": label}})
    for tid, text in enumerate(threads, 1):
        yield thread_name(pid, tid, text)


def thread_name(pid: int, tid: int, name: str) -> bytes:
    """The name of one thread."""
    return packed({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}})


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
        yield packed(event_of_time(f"no readings: {name}", "powerd", pid, tid, begin, end, {}))


def event_of_time(
    name: str, category: str, pid: int, tid: int, begin_us: float, end_us: float, details: dict[str, Any]
) -> dict[str, Any]:
    """An event with a beginning and an end."""
    ts = round(begin_us, 3)
    found = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": ts}
    return found | {"dur": round(max(round(end_us, 3) - ts, 0.0), 3), "args": details}


def packed(document: Mapping[str, Any]) -> bytes:
    """An event as text."""
    return json.dumps(document, default=str, allow_nan=False).encode()
