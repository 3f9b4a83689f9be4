"""Device-timed edges of phases against the kernels of a torch.profiler trace of the same iterations.

A mark lies in the stream behind the last kernel that was queued before it and before the first one queued after it. So
its edge may lie anywhere from the end of the one to the start of the other, and its error is its distance from that.
The profiler's GPU clock is tied to the host's by pings (a tiny kernel with the host's time before and after it), which
bound how far the tie can be off and owe nothing to the profiler's own alignment. Beside it, the same with the
profiler's times as they are, by the wall clock: what `joules trace` shows.

Needs CUDA. Target: every edge within powerd's stated bound and the tie's. Exit status 1 when one is not.
"""

from __future__ import annotations

import argparse
import ast
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from trainings.case import Case
from trainings.training import WARM_UP_S, Training, say

from powerd_analytics import read_run
from powerd_analytics.runs.run import Run
from powerd_analytics.runs.wall_clock import needed_wall_clock
from powerd_client import Meter
from powerd_client.host.hostclock import now_ns
from powerd_client.signals.board_times import to_host_ns
from powerd_core.clock_comparison import ClockPiece, map_clock
from powerd_core.model import ClockExchange

Ints = NDArray[np.int64]
Values = NDArray[np.float64]

TRAININGS = (("resnet34", 64, False), ("alexnet", 16, False), ("alexnet", 256, False), ("resnet34", 64, True))
"""Model, batch size, whether its layers are marked too."""
PINGS_EVERY, PINGS = 10, 10
"""Iterations between two groups of pings, and how many these are."""
NEVER_NS = 1 << 62
"""Farther than any time: there is no kernel on that side."""
PING = "spin_kernel"
"""The kernel of `torch.cuda._sleep`; nothing else runs it."""
_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_CALLS = ("cuda_runtime", "cuda_driver")


# --- Where an edge may lie


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


def read_trace(path: Path) -> Trace:
    """Read an exported Chrome trace. Raises ValueError for one without kernels or their launches."""
    document = json.loads(path.read_text())
    base = int(document.get("baseTimeNanoseconds", 0))
    work: dict[Any, list[tuple[int, int, int, bool]]] = defaultdict(list)
    calls: list[tuple[int, int, str, Any]] = []
    for event in document["traceEvents"]:
        kind, args = event.get("cat"), event.get("args", {})
        if event.get("ph") != "X" or "correlation" not in args:
            continue
        number, begin = int(args["correlation"]), base + round(float(event["ts"]) * 1e3)
        if kind in _GPU:
            end = begin + round(float(event.get("dur", 0)) * 1e3)
            work[args.get("device"), args.get("stream")].append((number, begin, end, PING in event["name"]))
        elif kind in _CALLS:
            calls.append((number, begin, event["name"], event.get("tid")))
    if not work:
        raise ValueError(f"{path} holds no kernels")
    of_stream = sorted(max(work.values(), key=len))
    queued = {number: begin for number, begin, _, _ in calls}
    if not any(w[0] in queued for w in of_stream):
        raise ValueError(f"{path} does not say when its kernels were launched")
    columns = np.array([(w[0], queued.get(w[0], w[1]), w[1], w[2]) for w in of_stream], np.int64).T
    return Trace(*columns, np.flatnonzero([w[3] for w in of_stream]), np.array(_records(sorted(calls)), np.int64))


def _records(calls: Sequence[tuple[int, int, str, Any]]) -> list[int]:
    """Numbers of each cudaEventRecord, but for anchors: there the thread waits for the event next."""
    last: dict[Any, int] = {}
    records: set[int] = set()
    for number, _, name, thread in calls:
        if name.startswith("cudaEventRecord"):
            records.add(number)
            last[thread] = number
        elif name.startswith("cudaEventSynchronize") and thread in last:
            records.discard(last[thread])
    return sorted(records)


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
    bounds = np.full(len(t_ns), np.inf)
    for i, t in enumerate(t_ns.tolist()):
        for piece in pieces:
            if piece.holds(t):
                offset, low, high = piece.at(t)
                bounds[i] = max(high - offset, offset - low)
    return bounds


def summary(errors: Ints) -> dict[str, float]:
    """Microseconds: median, 99th percentile and largest of the sizes, largest early and late; the share that is 0."""
    sizes = np.abs(errors) / 1e3
    return {
        "median_us": float(np.median(sizes)),
        "p99_us": float(np.quantile(sizes, 0.99)),
        "largest_us": float(sizes.max()),
        "early_us": max(float(-errors.min() / 1e3), 0.0),
        "late_us": max(float(errors.max() / 1e3), 0.0),
        "inside": float(np.mean(errors == 0)),
    }


# --- A training under the profiler


class MarkLog:
    """Stands before a meter's marks and writes down code and the host's time before each."""

    def __init__(self, mark: Callable[..., None]) -> None:
        self._mark = mark
        self.code: list[int] = []
        self.before_ns: list[int] = []

    def __call__(self, code: int, thread: int | None = None) -> None:
        self.before_ns.append(now_ns())
        self._mark(code, thread)
        self.code.append(code)


@dataclass(frozen=True, slots=True)
class Recording:
    """A run file and a trace, and what the benchmark itself saw."""

    run: Run
    trace: Trace
    code: Ints
    """[m] of all marks, in order; those from ``first`` to ``last`` were made under the profiler."""
    before_ns: Ints
    first: int
    last: int
    pings: list[tuple[int, int]]
    kinds: dict[int, tuple[str, dict[str, Any]]]
    """Name and own attributes by code."""


def ping() -> tuple[int, int]:
    before = now_ns()
    torch.cuda._sleep(1)
    torch.cuda.synchronize()
    return before, now_ns()


def profiler_activities(folder: Path) -> list[Any]:
    """What has to be profiled so that the trace tells launches."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:  # it starts what later ones find ready
        ping()
    profiler.export_chrome_trace(str(folder / "first.json"))
    if '"cuda_runtime"' not in (folder / "first.json").read_text():
        say("  the profile has no launches by itself: with the CPU's activities")
        activities.append(torch.profiler.ProfilerActivity.CPU)
    return activities


def record(folder: Path, name: str, batch: int, layers: bool, iterations: int) -> Recording:
    """Train under the profiler."""
    activities = profiler_activities(folder)
    with Meter(out=folder / "run.h5", device="cuda") as meter:
        log = meter._mark = MarkLog(meter._mark)
        training, pings = Training(name, batch, torch.device("cuda")), []
        training.warm_up(WARM_UP_S)
        with meter.watch(training.model, training.optimizer, layers=True) if layers else nullcontext():
            step = training.plain if layers else training.phased(meter)
            training.steps(step, 5)
            first = len(log.code)
            with torch.profiler.profile(activities=activities) as profiler:
                for number in range(iterations):
                    if number % PINGS_EVERY == 0:
                        pings += [ping() for _ in range(PINGS)]
                    step()
                training.wait()
                pings += [ping() for _ in range(PINGS)]
            last = len(log.code)
        profiler.export_chrome_trace(str(folder / "trace.json"))
        kinds = {phase._begin: _kind(key) for key, phase in meter._phases.items()}
        time.sleep(1.1)  # an anchor of the wall clock behind the profile
    run, trace = read_run(folder / "run.h5"), read_trace(folder / "trace.json")
    return Recording(run, trace, np.array(log.code), np.array(log.before_ns), first, last, pings, kinds)


def _kind(key: Any) -> tuple[str, dict[str, Any]]:
    """Name and attributes of a key of `Meter`'s phases."""
    return (key, {}) if isinstance(key, str) else (key[0], ast.literal_eval(key[1]))


def edges_of(r: Recording) -> Ints:
    """[m] the moment that the run file has for each mark.

    Phases of one kind neither nest nor overlap here, so the i-th begin of a kind is the begin of its i-th phase.
    Raises ValueError where the counts differ.
    """
    p, edges = r.run.phases, np.zeros(len(r.code), np.int64)
    for code, (name, own) in r.kinds.items():
        labels = [
            i
            for i, c in enumerate(p.classes)
            if c.name == name and all(c.attributes.get(key) == value for key, value in own.items())
        ]
        inside = np.flatnonzero(np.isin(p.label, labels))
        for wanted, times in ((code, p.begin_ns[inside]), (~code, p.end_ns[inside])):
            at = np.flatnonzero(r.code == wanted)
            if len(at) and len(at) != len(times):
                raise ValueError(f"{name} {own}: {len(at)} marks, {len(times)} phases in the run file")
            edges[at] = np.sort(times)[: len(at)]
    return edges


# --- The comparison


def compare(r: Recording, clock_name: str) -> bool:
    """Print how far edges are off; whether all are within powerd's bound and that of the tie. Raises ValueError."""
    run, trace, edges, before_ns = r.run, r.trace, edges_of(r)[r.first : r.last], r.before_ns[r.first : r.last]
    wall = needed_wall_clock(run)
    by_wall_ns = wall.unix_ns(edges)
    is_matched = len(trace.records) == len(edges)
    if is_matched:
        low, high = admissible(trace.number, trace.begin_ns, trace.end_ns, trace.records)
    else:  # the profile lacks some: by the host's times of marks and launches, which the wall clock ties
        low, high = admissible(trace.queued_ns, trace.begin_ns, trace.end_ns, wall.unix_ns(before_ns))
    pieces = tie(r.pings, trace)
    low_ns, high_ns = low.copy(), high.copy()
    has_low, has_high = low > -NEVER_NS, high < NEVER_NS
    low_ns[has_low], high_ns[has_high] = to_host_ns(low[has_low], pieces), to_host_ns(high[has_high], pieces)
    after_mark = errors_ns(edges, np.maximum(low_ns, before_ns), high_ns)
    width_us = (high_ns - low_ns)[has_low & has_high] / 1e3
    timings = ", ".join(sorted({c.timing for c in run.phases.classes}))
    matching = "correlation" if is_matched else f"host times ({len(trace.records)} records)"
    say(f"    {len(edges)} edges (timed by {timings}), {len(trace.number)} kernels, matched by {matching}")
    say(f"    room between kernels: {np.median(width_us):.1f} us (median), {width_us.min():.1f} us (least)")
    for text, errors in (
        ("GPU clock tied by pings", errors_ns(edges, low_ns, high_ns)),
        ("the same, and not before the mark", after_mark),
        ("profiler's times by the wall clock", errors_ns(by_wall_ns, low, high)),
    ):
        s = summary(errors)
        say(
            f"    {text:36} median {s['median_us']:.2f}, p99 {s['p99_us']:.2f}, largest {s['largest_us']:.2f} us "
            f"(early {s['early_us']:.2f}, late {s['late_us']:.2f}); {s['inside']:.1%} inside"
        )
    clock = next(c for name, c in run.clocks.items() if clock_name in name + c.board)
    bound_ns, tie_ns = clock.bound_ns(edges), tie_bound_ns(pieces, by_wall_ns)
    for text, bound in (("powerd's bound at the edges", bound_ns), ("bound of the pings' tie", tie_ns)):
        say(f"    {text:36} ± {np.median(bound) / 1e3:.1f} us (median), ± {bound.max() / 1e3:.1f} us (largest)")
    is_held = np.abs(after_mark) <= bound_ns + tie_ns
    share = np.mean(np.abs(after_mark) <= bound_ns)
    say(f"    edges within powerd's bound: {share:.2%}; within it and the tie's: {is_held.mean():.2%}")
    return bool(is_held.all())


def judge(args: argparse.Namespace, folder: Path) -> bool:
    """Every training; whether all edges are within the stated bound."""
    missed = []
    for model, batch, layers in TRAININGS:
        training = f"{model}, batch {batch}{', every layer' if layers else ''}"
        say(f"  {training}")
        with tempfile.TemporaryDirectory(dir=folder) as own:
            recording = record(Path(own), model, batch, layers, args.iterations)
            if not compare(recording, torch.cuda.get_device_name()):
                missed.append(training)
    say(f"  stated bound: {'NOT HELD in ' + '; '.join(missed) if missed else 'held for every edge'}")
    return not missed


CASES = {"edges": Case("device-timed edges against torch.profiler", judge, {"iterations": 60}, on_gpu=True)}
