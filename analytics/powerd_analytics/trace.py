"""`joules trace`: power and phases beside the kernels, in a Chrome trace for Perfetto or chrome://tracing.

A counter for every line, a slice for every phase. Perfetto's rules for JSON: a counter track is a process and a name,
and holds each value until the next; slices of one thread must nest. Counters therefore get a process for each device,
phases one for each process of the run, and phases that overlap (of several threads) a lane each.

A profile of torch.profiler, to which these events are added, is copied byte by byte and never held in memory. It dates
its events in microseconds of the wall clock less ``baseTimeNanoseconds`` (since torch 2.4; before that, of the wall
clock itself). Kineto converts the CPU's counter and CUPTI's clock to that; the conversion is measured at the profile's
beginning and end.
"""

from __future__ import annotations

import gzip
import heapq
import io
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.clocks import WallClock, needed_wall_clock, wall_clock
from powerd_analytics.energy.devices import Part, load_parts, part_phase_energies
from powerd_analytics.runs.run import Progress, Run, no_progress
from powerd_analytics.signals.signal import Signal, load_bounded
from powerd_analytics.signals.streams import (
    Points,
    View,
    count_points,
    extremes_of,
    fastest_of,
    holes_of,
    points_of,
    summed_of,
)
from powerd_analytics.text import seconds
from powerd_core.errors import AnalysisError

Ints = NDArray[np.int64]
Values = NDArray[np.float64]
Joules = tuple[NDArray[np.bool_], Values, Values]
"""Of all phases of a run on one device: whether they are resolvable, joules, 95 % half-widths."""

DEVICE_PID, PHASE_PID = 2_000_000_000, 2_000_100_000
"""Processes of ours in a trace: beyond any that Linux gives out (4 194 304) and below 2^31."""
MOST_POINTS = 100_000
MARGIN_NS = 100_000_000
"""So much of the run is shown before and behind a profile, so that a step at its edge can be seen."""
_BATCH = 20_000


@dataclass(frozen=True, slots=True)
class Written:
    """What `write_trace` did."""

    counters: int
    phases: int
    bound_ns: float | None
    """The farthest that power and phases can stand off the profile's events; None without a profile."""
    seen_ns: float = float("nan")
    """The farthest that any of the run's anchors lies from the line between its neighbours."""

    @property
    def alignment(self) -> str:
        """How far the two timelines can be apart, in words."""
        if self.bound_ns is None:
            return "not aligned with anything"
        seen = f"; anchors agree within {seconds(self.seen_ns * 1e-9)}" if self.seen_ns == self.seen_ns else ""
        return f"aligned within ± {seconds(self.bound_ns * 1e-9)} unless the wall clock was set{seen}"


@dataclass(frozen=True, slots=True)
class Timeline:
    """Where moments of the run stand in the trace, and which of them are shown."""

    wall: WallClock | None
    base_ns: int
    """Of the wall clock, or without one of the host's: where the trace's 0 is."""
    window_ns: tuple[int, int]

    def us(self, t_ns: Ints) -> Values:
        unix = self.wall.unix_ns(t_ns) if self.wall is not None else t_ns
        return (unix - self.base_ns).astype(np.float64) * 1e-3


def write_trace(
    run: Run,
    out: Path,
    profile: Path | None = None,
    *,
    device: str | None = None,
    most_points: int = MOST_POINTS,
    whole_run: bool = False,
    progress: Progress = no_progress,
) -> Written:
    """Write a trace to ``out``, packed where its name ends in .gz.

    Of each counter ``most_points`` are written, the lowest and highest of every stretch among them. With a profile only
    what lies beside it is, unless the ``whole_run`` is asked for. Raises `AnalysisError` for a profile that is none or
    was not taken during the run.
    """
    beside = None
    if profile is not None:
        beside = read_profile(profile, lambda share: progress(0.2 * share, "reading profile"))
    timeline = _timeline(run, beside, whole_run=whole_run)
    parts = load_parts(run, device, lambda share, text: progress(0.2 + 0.3 * share, text))
    progress(0.5, "energies of phases")
    energies: dict[str, Joules] = {}
    for part in parts if len(run.phases) else ():
        columns = part_phase_energies(run, part)
        energies[f"{part.device} ({part.provenance})"] = columns.resolvable, columns.energy_j, columns.u95_j
    aligned = Written(0, 0, None)
    if beside is not None and timeline.wall is not None:
        aligned = Written(0, 0, timeline.wall.bound_ns(*timeline.window_ns), timeline.wall.seen_ns())
    label = aligned.alignment if beside is not None else ""
    counts = {"counters": 0, "phases": 0}

    def events() -> Iterator[bytes]:
        for number, part in enumerate(parts):
            yield from _device_events(run, part, DEVICE_PID + number, timeline, most_points, label, counts)
        for process in range(len(run.processes)):
            yield from _process_events(run, process, energies, timeline, label, counts)

    is_packed = out.suffix == ".gz"
    with out.open("wb") as raw:
        text: IO[bytes] = gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=4, mtime=0) if is_packed else raw  # type: ignore[assignment]
        if beside is None:
            _write_alone(text, run, timeline, events())
        else:
            copy_with(beside, text, events(), lambda share: progress(0.6 + 0.4 * share, "writing"))
        if is_packed:
            text.close()
    return Written(**counts, bound_ns=aligned.bound_ns, seen_ns=aligned.seen_ns)


def _timeline(run: Run, profile: Profile | None, *, whole_run: bool) -> Timeline:
    whole = (run.begin_ns, run.end_ns)
    if profile is None:
        wall = wall_clock(run)
        return Timeline(wall, run.begin_ns if wall is None else int(wall.unix_ns(np.array([run.begin_ns]))[0]), whole)
    wall = needed_wall_clock(run)
    first, last = wall.host_ns(profile.first_ns), wall.host_ns(profile.last_ns)
    if last < run.begin_ns or first > run.end_ns:
        apart = run.begin_ns - last if last < run.begin_ns else first - run.end_ns
        side = "before the run began" if last < run.begin_ns else "after the run had ended"
        raise AnalysisError(f"{profile.path} was taken {seconds(apart * 1e-9)} {side}: it belongs to another run")
    return Timeline(wall, profile.base_ns, whole if whole_run else (first - MARGIN_NS, last + MARGIN_NS))


def _write_alone(out: IO[bytes], run: Run, timeline: Timeline, events: Iterator[bytes]) -> None:
    head: dict[str, object] = {"schemaVersion": 1, "displayTimeUnit": "ms", "otherData": {"powerd run": run.path.name}}
    if timeline.wall is not None:
        head["baseTimeNanoseconds"] = timeline.base_ns
    out.write(json.dumps(head).encode()[:-1] + b', "traceEvents": [')
    for i, event in enumerate(events):
        out.write((b",\n" if i else b"\n") + event)
    out.write(b"\n]}\n")


# ---- events ------------------------------------------------------------------------------------------------------


def _event(document: Mapping[str, Any]) -> bytes:
    """An event as text."""
    return json.dumps(document, default=str, allow_nan=False).encode()


def _names(pid: int, name: str, sort: int, label: str, threads: Mapping[int, str]) -> Iterator[bytes]:
    """Names of a process and its threads, and where they stand."""
    for what, tid, arguments in (
        ("process_name", 0, {"name": name}),
        ("process_sort_index", 0, {"sort_index": sort}),
        *([("process_labels", 0, {"labels": label})] if label else []),
        *(("thread_name", tid, {"name": text}) for tid, text in threads.items()),
    ):
        yield _event({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": arguments})


def _slice(
    name: str, category: str, pid: int, tid: int, begin_us: float, end_us: float, details: dict[str, Any]
) -> bytes:
    """An event with a beginning and an end."""
    ts = round(begin_us, 3)
    event = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": ts}
    return _event(event | {"dur": round(max(round(end_us, 3) - ts, 0.0), 3), "args": details})


def _device_events(
    run: Run, part: Part, pid: int, timeline: Timeline, most: int, label: str, counts: dict[str, int]
) -> Iterator[bytes]:
    """Counters in watts of a device's lines and their sum, and a slice wherever a line has no readings: a counter holds
    its last value there."""
    names = [n for n in run.compared(part.device) if run.lines[n].provenance.value == part.provenance]
    signals = [*part.signals, *(load_bounded(run, name) for name in names)]
    holes = {s.line.name: holes_of(s) for s in signals}
    threads = {tid: f"no readings: {name}" for tid, (name, ends) in enumerate(holes.items(), 1) if len(ends)}
    yield from _names(pid, f"power of {part.device} ({part.provenance})", -2, label, threads)
    sums = [part.signals] if len(part.signals) > 1 else []
    for several in [*sums, *((s,) for s in signals)]:
        if len(several) > 1:
            name, points = f"{part.device}: sum of {len(several)} lines", summed(several, timeline.window_ns, most)
        else:
            name, points = several[0].line.name, power_of(several[0], timeline.window_ns, most)
        counts["counters"] += len(points[0]) > 0
        yield from _counter_events(pid, f"{name} W", timeline.us(points[0]), points[1])
    first, last = timeline.window_ns
    for tid, (name, ends) in enumerate(holes.items(), 1):
        for begin, end in timeline.us(ends[(ends[:, 1] >= first) & (ends[:, 0] <= last)]).tolist():
            yield _slice(f"no readings: {name}", "powerd", pid, tid, begin, end, {})


def _counter_events(pid: int, name: str, t_us: Values, value: Values) -> Iterator[bytes]:
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


# ---- phases ------------------------------------------------------------------------------------------------------


def _process_events(
    run: Run, process: int, energies: Mapping[str, Joules], timeline: Timeline, label: str, counts: dict[str, int]
) -> Iterator[bytes]:
    """The phases of a process that meet the window, with their joules by device."""
    p, about, pid = run.phases, run.processes[process], PHASE_PID + process
    own = np.flatnonzero(p.process == process)
    if not len(own):
        return
    lane = lanes_of(run, own)
    rank = f", rank {about['rank']}" if "rank" in about else ""
    threads = {i + 1: f"phases {i + 1}" for i in range(int(lane.max()) + 1)}
    yield from _names(pid, f"phases of process {about.get('pid', process)}{rank}", -1, label, threads)
    begin, end = nested(run, own)
    shown = (p.end_ns[own] >= timeline.window_ns[0]) & (p.begin_ns[own] <= timeline.window_ns[1])
    own, tids = own[shown], (lane[shown] + 1).tolist()
    edges = zip(timeline.us(begin[own]).tolist(), timeline.us(end[own]).tolist(), strict=True)
    for i, tid, (begin_us, end_us) in zip(own.tolist(), tids, edges, strict=True):
        kind = p.classes[int(p.label[i])]
        # JSON has no number that is not finite; an attribute of the user's own may be one.
        attributes = {n: v if not isinstance(v, float) or isfinite(v) else str(v) for n, v in kind.attributes.items()}
        details: dict[str, Any] = {"timed": kind.timing, **attributes}
        if p.cut[i]:
            details["cut"] = "it was not ended"
        for name, (is_resolvable, energy_j, u95_j) in energies.items():
            if is_resolvable[i]:
                details[f"{name} J"] = float(f"{energy_j[i]:.6g}")
                details[f"{name} ± U95 J"] = float(f"{u95_j[i]:.2g}")
            else:
                details[f"{name} J"] = "not resolvable"
        counts["phases"] += 1
        yield _slice(kind.name, "phase", pid, tid, begin_us, end_us, details)


def lanes_of(run: Run, own: Ints) -> NDArray[np.int32]:
    """The lane [0..] of each phase of a process, ``own`` by index into the run's: those of one thread share a lane as
    long as they nest."""
    p = run.phases
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
    for inner in _by_depth(run, own):
        lane[inner] = lane[p.parent[inner]]
    return lane[own]


def nested(run: Run, own: Ints) -> tuple[Ints, Ints]:
    """Edges of all phases, of ``own`` none beyond those of the phase around it: edges by two clocks may be a little."""
    p = run.phases
    begin, end = p.begin_ns.copy(), p.end_ns.copy()
    for inner in _by_depth(run, own):
        outer = p.parent[inner]
        begin[inner] = np.clip(begin[inner], begin[outer], end[outer])
        end[inner] = np.clip(end[inner], begin[inner], end[outer])
    return begin, end


def _by_depth(run: Run, own: Ints) -> Iterator[Ints]:
    """The phases ``own`` that have one around them, as indexes, outer ones before inner ones."""
    depth = run.phases.depth[own]
    for d in range(1, int(depth.max(initial=0)) + 1):
        yield own[depth == d]


# ---- profiles ----------------------------------------------------------------------------------------------------


_CHUNK = 1 << 22
_EDGE = 8192
"""Bytes of one chunk that are seen again with the next: nothing that is looked for is longer."""
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d+)')
_TS = re.compile(rb'"ts"\s*:\s*"?(\d+(?:\.\d+)?)"?\s*[,}\s]')
_END = re.compile(rb'\}\s*\]\s*(,\s*"[^"]*"\s*:\s*("[^"]*"|[-\d.]+)\s*)*\}\s*$')
"""The last event, the end of the list, and whatever plain values the trace has behind it."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What has to be known of a profile before something is put into it."""

    path: Path
    insert_at: int
    """Offset in the (unpacked) text, right behind the bracket that opens the events."""
    base_ns: int
    """Unix time of ``ts`` 0."""
    first_ns: int
    last_ns: int
    """Unix time of its events' beginnings."""


def read_profile(path: Path, progress: Callable[[float], None] = lambda share: None) -> Profile:
    """Look through a profile once. Raises `AnalysisError` for what is none, is cut off, or holds no event."""
    insert_at, base, low, high, has_events = -1, 0, float("inf"), 0.0, False
    at, tail = 0, b""
    for chunk, share in _chunks(path):
        progress(share)
        text = tail + chunk
        begin = at - len(tail)
        if insert_at < 0 and (events := _EVENTS.search(text)) is not None:
            insert_at = begin + events.end()
        if (dated := _BASE.search(text)) is not None:
            base = int(dated[1])
        times = [t for t in map(float, _TS.findall(text)) if t > 0]  # metadata of older torch is dated 0
        if times:
            low, high, has_events = min(low, *times), max(high, *times), True
        at += len(chunk)
        tail = text[-_EDGE:]
    if insert_at < 0:
        raise AnalysisError(f'{path} has no "traceEvents": it is no trace of torch.profiler (export_chrome_trace)')
    if not has_events:
        raise AnalysisError(f"{path} holds no events")
    if _END.search(tail) is None:
        raise AnalysisError(f"{path} is cut off: export it again")
    return Profile(path, insert_at, base, base + round(low * 1e3), base + round(high * 1e3))


def copy_with(
    profile: Profile, out: IO[bytes], added: Iterator[bytes], progress: Callable[[float], None] = lambda share: None
) -> None:
    """Write the profile to ``out`` with further events in front of its own. Everything of its own stays as it is."""
    at, is_inserted = 0, False
    for chunk, share in _chunks(profile.path):
        progress(share)
        cut = profile.insert_at - at
        if not is_inserted and cut <= len(chunk):
            out.write(chunk[:cut])
            for event in added:
                out.write(b"\n" + event + b",")
            out.write(chunk[cut:])
            is_inserted = True
        else:
            out.write(chunk)
        at += len(chunk)


def _chunks(path: Path) -> Iterator[tuple[bytes, float]]:
    """The unpacked text in pieces, with the share of the file that has been read."""
    try:
        size = max(path.stat().st_size, 1)
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            text: io.BufferedIOBase = gzip.GzipFile(fileobj=raw) if packed else raw
            while chunk := text.read(_CHUNK):
                yield chunk, raw.tell() / size
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise AnalysisError(f"{path} is cut off or damaged ({error}): export it again") from error
    except OSError as error:
        raise AnalysisError(f"{path} cannot be read: {error.strerror or error}") from error
