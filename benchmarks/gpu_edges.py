"""Edges of phases against the GPU's kernels in a trace of torch.profiler: where an edge may lie, and how far off it is.

A mark lies in the stream behind the last kernel that was queued before it and before the first one queued after it.
So its edge may lie anywhere from the end of the one to the start of the other, and its error is its distance from that.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.chrome.clock import WallClock
from powerd_analytics.runs.run import Run
from powerd_client.hosttime import to_host_ns
from powerd_core.clock import ClockPiece, map_clock
from powerd_core.model import ClockExchange

Ints = NDArray[np.int64]
Values = NDArray[np.float64]

NEVER_NS = 1 << 62
"""Farther than any time: there is no kernel on that side."""
PING = "spin_kernel"
"""The kernel of `torch.cuda._sleep`; nothing else runs it."""
_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_CALLS = ("cuda_runtime", "cuda_driver")


@dataclass(frozen=True, slots=True)
class Trace:
    """What of a profile is needed; times are Unix nanoseconds as the profiler dates them, in the order of queueing."""

    number: Ints
    """[k] of kernels, copies and fills on the stream that has most of them: their calls' correlation ids."""
    queued_ns: Ints
    """[k] when their calls began."""
    begin_ns: Ints
    end_ns: Ints
    pings: Ints
    """[p] indices of those that are pings."""
    records: Ints
    """[m] correlation ids of the marks' cudaEventRecord, anchors left out."""
    record_begin_ns: Ints
    record_end_ns: Ints
    elsewhere: int
    """Activities on other streams, left out."""


@dataclass(frozen=True, slots=True)
class Marks:
    """Marks as they were made, in order: the code, and the host's time before and after."""

    code: Ints
    before_ns: Ints
    after_ns: Ints

    @classmethod
    def of(cls, rows: Sequence[tuple[int, int, int]]) -> Marks:
        table = np.array(rows, np.int64).reshape(-1, 3)
        return cls(table[:, 0], table[:, 1], table[:, 2])

    def __len__(self) -> int:
        return len(self.code)


def read_trace(path: Path) -> Trace:
    """Read an exported Chrome trace. Raises ValueError for one without kernels."""
    document = json.loads(path.read_text())
    base = int(document.get("baseTimeNanoseconds", 0))
    work: list[tuple[int, int, int, Any, bool]] = []
    calls: list[tuple[int, int, int, str, Any]] = []
    for event in document["traceEvents"]:
        if event.get("ph") != "X":
            continue
        kind, args = event.get("cat"), event.get("args", {})
        if kind not in _GPU + _CALLS or "correlation" not in args:
            continue
        begin = base + round(float(event["ts"]) * 1e3)
        end = begin + round(float(event.get("dur", 0)) * 1e3)
        if kind in _GPU:
            place = (args.get("device"), args.get("stream"))
            work.append((int(args["correlation"]), begin, end, place, PING in event["name"]))
        else:
            calls.append((int(args["correlation"]), begin, end, event["name"], event.get("tid")))
    if not work:
        raise ValueError(f"{path} holds no kernels")
    places = [w[3] for w in work]
    main = max(set(places), key=places.count)
    chosen = sorted(w for w in work if w[3] == main)
    queued = {c[0]: c[1] for c in calls}
    if not any(w[0] in queued for w in chosen):
        raise ValueError(f"{path} does not say when its kernels were launched")
    records = _marks(sorted(calls))
    columns = np.array([(w[0], queued.get(w[0], w[1]), w[1], w[2]) for w in chosen], np.int64).T
    marks = np.array(records, np.int64).reshape(-1, 3).T
    pings = np.flatnonzero([w[4] for w in chosen])
    return Trace(*columns, pings, *marks, len(work) - len(chosen))


def _marks(calls: Sequence[tuple[int, int, int, str, Any]]) -> list[tuple[int, int, int]]:
    """Number, begin and end of each cudaEventRecord, but for anchors: there the thread waits for the event next."""
    found: dict[Any, list[tuple[int, int, int]]] = defaultdict(list)
    anchors: set[int] = set()
    for number, begin, end, name, thread in calls:
        if name.startswith("cudaEventRecord"):
            found[thread].append((number, begin, end))
        elif name.startswith("cudaEventSynchronize") and found[thread]:
            anchors.add(found[thread][-1][0])
    return sorted(r for records in found.values() for r in records if r[0] not in anchors)


def edges_of(run: Run, marks: Marks, kinds: Mapping[int, tuple[str, Mapping[str, Any]]]) -> Ints:
    """[m] the moment that the run file has for each mark. ``kinds``: name and own attributes by code.

    Phases of one kind neither nest nor overlap here, so the i-th begin of a kind is the begin of its i-th phase.
    Raises ValueError where the counts differ.
    """
    p = run.phases
    own = [(c.name, dict(c.attributes)) for c in p.classes]
    edges = np.zeros(len(marks), np.int64)
    for code, (name, attributes) in kinds.items():
        labels = [i for i, (n, a) in enumerate(own) if n == name and all(a.get(k) == v for k, v in attributes.items())]
        inside = np.flatnonzero(np.isin(p.label, labels))
        for wanted, times in ((code, p.begin_ns[inside]), (~code, p.end_ns[inside])):
            at = np.flatnonzero(marks.code == wanted)
            if len(at) != len(times):
                raise ValueError(f"{name} {dict(attributes)}: {len(at)} marks, {len(times)} phases in the run file")
            edges[at] = np.sort(times)
    return edges


def admissible(queue: Ints, begin_ns: Ints, end_ns: Ints, at: Ints) -> tuple[Ints, Ints]:
    """[m] from when to when each mark may have been passed: ``queue`` [k] and ``at`` [m] are places in the stream."""
    order = np.argsort(queue, kind="stable")
    ends = np.concatenate([[-NEVER_NS], np.maximum.accumulate(end_ns[order])])
    starts = np.concatenate([np.minimum.accumulate(begin_ns[order][::-1])[::-1], [NEVER_NS]])
    place = np.searchsorted(queue[order], at)
    return ends[place], starts[place]


def errors_ns(edges: Ints, low: Ints, high: Ints) -> Ints:
    """[m] how far each edge lies outside: below 0 before the last kernel's end, above 0 behind the next one's start."""
    return np.where(edges < low, edges - low, np.where(edges > high, edges - high, 0))


def tie(pings: Sequence[tuple[int, int]], trace: Trace) -> tuple[ClockPiece, ...]:
    """The profiler's GPU clock on the host's: each ping is an exchange, queued after the one and waited for before the
    other host time. Raises ValueError when kernels are missing."""
    if len(pings) != len(trace.pings):
        raise ValueError(f"{len(pings)} pings, {len(trace.pings)} of their kernels in the trace")
    rows = zip(pings, trace.begin_ns[trace.pings].tolist(), trace.end_ns[trace.pings].tolist(), strict=True)
    return map_clock([ClockExchange(1, before, begin, end, after) for (before, after), begin, end in rows])


def tie_bound_ns(pieces: Sequence[ClockPiece], t_ns: Ints) -> Values:
    """[m] the farthest that `tie` can be off at times of the trace."""
    found = np.full(len(t_ns), np.inf)
    for i, t in enumerate(t_ns.tolist()):
        for piece in pieces:
            if piece.holds(t):
                offset, low, high = piece.at(t)
                found[i] = max(high - offset, offset - low)
    return found


def summary(errors: Ints) -> dict[str, float]:
    """Microseconds: median, 99th percentile and largest of the sizes, and the share that is 0."""
    sizes = np.abs(errors) / 1e3
    return {
        "median_us": float(np.median(sizes)),
        "p99_us": float(np.quantile(sizes, 0.99)),
        "largest_us": float(sizes.max()),
        "early_us": float(-errors.min() / 1e3) if errors.min() < 0 else 0.0,
        "late_us": float(errors.max() / 1e3) if errors.max() > 0 else 0.0,
        "inside": float(np.mean(errors == 0)),
    }


def compare(
    run: Run, clock: str, trace: Trace, marks: Marks, edges: Ints, pings: Sequence[tuple[int, int]], wall: WallClock
) -> dict[str, Any]:
    """Edges [m] on the host's clock against the kernels of a trace taken meanwhile. ``clock``: the device's name.

    Twice: with the profiler's times as they are, by the wall clock (what `joules trace` shows), and with its GPU clock
    tied to the host's by pings, which owes nothing to the profiler's own alignment. Raises ValueError.
    """
    is_matched = len(trace.records) == len(marks)
    by_wall_ns = wall.unix_ns(edges)
    if is_matched:
        low, high = admissible(trace.number, trace.begin_ns, trace.end_ns, trace.records)
    else:  # the profile lacks some: by the host's times of marks and launches, which the wall clock ties
        low, high = admissible(trace.queued_ns, trace.begin_ns, trace.end_ns, wall.unix_ns(marks.before_ns))
    pieces = tie(pings, trace)
    has_low, has_high = low > -NEVER_NS, high < NEVER_NS
    low_ns, high_ns = np.full(len(low), -NEVER_NS), np.full(len(high), NEVER_NS)
    low_ns[has_low], high_ns[has_high] = to_host_ns(low[has_low], pieces), to_host_ns(high[has_high], pieces)
    tied, shown = errors_ns(edges, low_ns, high_ns), errors_ns(by_wall_ns, low, high)
    strict = errors_ns(edges, np.maximum(low_ns, marks.before_ns), high_ns)
    device_ns, ping_ns = run.clocks[clock].bound_ns(edges), tie_bound_ns(pieces, by_wall_ns)
    width = (high_ns - low_ns)[has_low & has_high] / 1e3
    first, last = int(edges.min()), int(edges.max())
    return {
        "edges": len(edges),
        "matched_by": "correlation" if is_matched else "host times",
        "records": len(trace.records),
        "kernels": len(trace.number),
        "elsewhere": trace.elsewhere,
        "window_s": (last - first) * 1e-9,
        "width_us": {"median": float(np.median(width)), "least": float(width.min())} if len(width) else None,
        "tied": summary(tied),
        "tied_after_mark": summary(strict),
        "shown": summary(shown),
        "device_bound_us": {"median": float(np.median(device_ns)) / 1e3, "largest": float(device_ns.max()) / 1e3},
        "ping_bound_us": {"median": float(np.median(ping_ns)) / 1e3, "largest": float(ping_ns.max()) / 1e3},
        "clock_pieces": len(pieces),
        "within_device_bound": float(np.mean(np.abs(strict) <= device_ns)),
        "within_both_bounds": float(np.mean(np.abs(strict) <= device_ns + ping_ns)),
        "wall_bound_us": wall.bound_ns(first, last) / 1e3,
        "profiler": _alignment(trace, marks if is_matched else None, pings, wall),
    }


def _alignment(trace: Trace, marks: Marks | None, pings: Sequence[tuple[int, int]], wall: WallClock) -> dict[str, Any]:
    """The profiler's clocks less the wall clock, in microseconds: of its GPU times by pings, of its calls by marks."""
    table = np.array(pings, np.int64).reshape(-1, 2)
    before, after = wall.unix_ns(table[:, 0]), wall.unix_ns(table[:, 1])
    found = {"gpu": _offset(trace.begin_ns[trace.pings] - before, trace.end_ns[trace.pings] - after)}
    if marks is not None:
        before, after = wall.unix_ns(marks.before_ns), wall.unix_ns(marks.after_ns)
        found["host"] = _offset(trace.record_begin_ns - before, trace.record_end_ns - after)
    return found


def _offset(highest: Ints, lowest: Ints) -> dict[str, float]:
    """Each pair says that the offset lies between ``lowest`` and ``highest`` at that moment."""
    middle, half = (highest + lowest) / 2e3, (highest - lowest) / 2e3
    return {
        "median_us": float(np.median(middle)),
        "least_us": float(middle.min()),
        "most_us": float(middle.max()),
        "known_to_us": float(np.median(half)),
        "first_us": float(middle[: max(1, len(middle) // 10)].mean()),
        "last_us": float(middle[-max(1, len(middle) // 10) :].mean()),
    }
