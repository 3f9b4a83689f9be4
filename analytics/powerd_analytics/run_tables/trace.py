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
import json
import mmap
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.devices import Part, PhaseColumns, load_parts
from powerd_analytics.energy.magnified import energies_with_magnified
from powerd_analytics.output.text import device_text, seconds
from powerd_analytics.runs.run import Progress, Run, no_progress
from powerd_analytics.runs.signals import (
    Points,
    View,
    count_points,
    extremes_of,
    fastest_of,
    holes_of,
    load_bounded,
    points_of,
    summed_of,
)
from powerd_analytics.runs.wall_clock import WallClock, needed_wall_clock, wall_clock
from powerd_client.host.ownership import whole_output
from powerd_client.signals.signal import Signal
from powerd_core.errors import AnalysisError

Ints = NDArray[np.int64]
Values = NDArray[np.float64]

DEVICE_PID, PHASE_PID = 2_000_000_000, 2_000_100_000
"""Processes of ours in a trace: beyond any that Linux gives out (4 194 304) and below 2^31."""
MOST_POINTS = 100_000
MARGIN_NS = 100_000_000
"""So much of the run is shown before and behind a profile, so that a step at its edge can be seen."""
_BATCH = 20_000


@dataclass(slots=True)
class Written:
    """What `write_trace` did."""

    alignment: str = ""
    """How far the two timelines can be apart, in words; empty without a profile."""
    bound_ns: float = 0.0
    """The farthest that power and phases can stand off the profile's events."""
    counters: int = 0
    phases: int = 0


@dataclass(frozen=True, slots=True)
class TraceTimeline:
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
    with ExitStack() as stack:
        written, window_ns = Written(), (run.begin_ns, run.end_ns)
        if profile is None:
            wall = wall_clock(run)
            base_ns = run.begin_ns if wall is None else int(wall.unix_ns(np.array([run.begin_ns]))[0])
            head: dict[str, object] = {"schemaVersion": 1, "otherData": {"powerd run": run.path.name}}
            if wall is not None:
                head["baseTimeNanoseconds"] = base_ns
            text, before = None, json.dumps(head).encode()[:-1] + b', "traceEvents": ['
        else:
            progress(0.0, "reading profile")
            text = stack.enter_context(_unpacked(profile))
            cut, base_ns, first_ns, last_ns = read_profile(profile, text)
            before = text.read(cut)
            wall = needed_wall_clock(run)
            first, last = wall.host_ns(first_ns), wall.host_ns(last_ns)
            if last < run.begin_ns or first > run.end_ns:
                side = "before the run began" if last < run.begin_ns else "after the run had ended"
                raise AnalysisError(f"{profile} was taken {side}: it belongs to another run")
            if not whole_run:
                window_ns = (first - MARGIN_NS, last + MARGIN_NS)
            written.bound_ns = wall.bound_ns(*window_ns)
            seen = wall.seen_ns()
            agree = f"; anchors agree within {seconds(seen * 1e-9)}" if isfinite(seen) else ""
            bound = seconds(written.bound_ns * 1e-9)
            written.alignment = f"aligned within ± {bound} unless the wall clock was set{agree}"
        timeline = TraceTimeline(wall, base_ns, window_ns)
        parts = load_parts(run, device, lambda share, text: progress(0.2 + 0.3 * share, text))
        progress(0.5, "energies of phases")
        energies = {f"{p.device} ({p.provenance})": energies_with_magnified(run, p) for p in parts if len(run.phases)}
        file: IO[bytes] = stack.enter_context(stack.enter_context(whole_output(out)).open("wb"))
        if out.suffix == ".gz":
            file = stack.enter_context(gzip.GzipFile(fileobj=file, mode="wb", compresslevel=4, mtime=0))  # type: ignore[arg-type]
        progress(0.6, "writing")
        file.write(before)
        separator = b"\n"
        for event in _events(run, parts, energies, timeline, most_points, written):
            file.write(separator + event)
            separator = b",\n"
        if text is None:
            file.write(b"\n]}\n")
        else:
            file.write(b"," if separator != b"\n" else b"")
            shutil.copyfileobj(text, file)
        return written


# ---- profiles ----------------------------------------------------------------------------------------------------

_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d+)')
_TS = re.compile(rb'"ts"\s*:\s*"?(\d+(?:\.\d+)?)"?\s*[,}\s]')
_END = re.compile(rb'\}\s*\]\s*(,\s*"[^"]*"\s*:\s*("[^"]*"|[-\d.]+|\[(\s*"[^"]*"\s*,?)*\])\s*)*\}\s*$')
"""The last event, the end of the list, and what the trace has behind it: plain values, and a list of the profiler's
errors (``"ERROR"``, of a build for CUDA on a machine without a GPU)."""
_TAIL = 8192


@contextmanager
def _unpacked(path: Path) -> Iterator[mmap.mmap]:
    """The text of a profile, mapped and not read. Raises `AnalysisError`."""
    try:
        with path.open("rb") as file, tempfile.TemporaryFile() as plain:
            if file.read(2) == b"\x1f\x8b":
                file.seek(0)
                with gzip.GzipFile(fileobj=file) as packed:
                    shutil.copyfileobj(packed, plain)
                plain.flush()
            text = mmap.mmap((plain if plain.tell() else file).fileno(), 0, access=mmap.ACCESS_READ)
    except (EOFError, zlib.error, gzip.BadGzipFile, ValueError) as error:
        raise AnalysisError(f"{path} is empty, cut off or damaged ({error}): export it again") from error
    except OSError as error:
        raise AnalysisError(f"{path} cannot be read: {error.strerror or error}") from error
    with text:
        yield text


def read_profile(path: Path, text: mmap.mmap) -> tuple[int, int, int, int]:
    """Of a profile's text: the offset right behind the bracket that opens the events, the Unix time of ``ts`` 0, and
    the Unix times of its first and last event [ns]. Raises `AnalysisError` for what is none, is cut off, or holds no
    event."""
    events, base = _EVENTS.search(text), _BASE.search(text)
    if events is None:
        raise AnalysisError(f'{path} has no "traceEvents": it is no trace of torch.profiler (export_chrome_trace)')
    times = np.fromiter((float(ts[1]) for ts in _TS.finditer(text)), float)
    times = times[times > 0]  # metadata of older torch is dated 0
    if not len(times):
        raise AnalysisError(f"{path} holds no events")
    if _END.search(text[-_TAIL:]) is None:
        raise AnalysisError(f"{path} is cut off: export it again")
    base_ns = int(base[1]) if base else 0
    return events.end(), base_ns, base_ns + round(times.min() * 1e3), base_ns + round(times.max() * 1e3)


# ---- events ------------------------------------------------------------------------------------------------------


def _events(
    run: Run, parts: Sequence[Part], energies: Mapping[str, PhaseColumns], timeline: TraceTimeline, most: int,
    written: Written,
) -> Iterator[bytes]:  # fmt: skip
    for number, part in enumerate(parts):
        yield from _device_events(run, part, DEVICE_PID + number, timeline, most, written)
    for process in range(len(run.processes)):
        yield from _process_events(run, process, energies, timeline, written)


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
    run: Run, part: Part, pid: int, timeline: TraceTimeline, most: int, written: Written
) -> Iterator[bytes]:
    """Counters in watts of a device's lines and their sum, and a slice wherever a line has no readings: a counter holds
    its last value there."""
    compared = [n for n in run.compared(part.device) if run.lines[n].provenance.value == part.provenance]
    signals = [*part.signals, *(load_bounded(run, name) for name in compared)]
    holes = {s.line.name: holes_of(s) for s in signals}
    threads = {tid: f"no readings: {name}" for tid, (name, ends) in enumerate(holes.items(), 1) if len(ends)}
    yield from _names(pid, f"power of {device_text(part.device, part.provenance)}", -2, written.alignment, threads)
    tracks = {s.line.name: power_of(s, timeline.window_ns, most) for s in signals}
    if len(part.signals) > 1:
        name = f"{part.device}: sum of {len(part.signals)} lines"
        tracks = {name: summed_power(part.signals, timeline.window_ns, most), **tracks}
    for name, (t_ns, watts) in tracks.items():
        written.counters += len(t_ns) > 0
        head = f'{{"ph":"C","name":{json.dumps(f"{name} W")},"pid":{pid},"tid":0,"ts":'
        for at in range(0, len(t_ns), _BATCH):
            pairs = zip(timeline.us(t_ns[at : at + _BATCH]).tolist(), watts[at : at + _BATCH].tolist(), strict=True)
            yield ",\n".join([f'{head}{t:.3f},"args":{{"W":{w:.6g}}}}}' for t, w in pairs]).encode()
    first, last = timeline.window_ns
    for tid, (name, ends) in enumerate(holes.items(), 1):
        for begin, end in timeline.us(ends[(ends[:, 1] >= first) & (ends[:, 0] <= last)]).tolist():
            yield _slice(f"no readings: {name}", "powerd", pid, tid, begin, end, {})


def power_of(signal: Signal, window_ns: tuple[int, int], most: int) -> Points:
    """Points of a counter track within a window and the one before it, thinned.

    A counter of energy gives the mean power of each interval, from its beginning on.
    """
    view = View(*window_ns, is_step=True)
    return extremes_of(points_of(signal, view), count_points(signal, view), most)


def summed_power(signals: Sequence[Signal], window_ns: tuple[int, int], most: int) -> Points:
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


def _process_events(
    run: Run, process: int, energies: Mapping[str, PhaseColumns], timeline: TraceTimeline, written: Written
) -> Iterator[bytes]:
    """The phases of a process that meet the window, with their joules by device."""
    p, about, pid = run.phases, run.processes[process], PHASE_PID + process
    own = np.flatnonzero(p.process == process)
    if not len(own):
        return
    lane, begin, end = laid_out(run, own)
    rank = f", rank {about['rank']}" if "rank" in about else ""
    threads = {i + 1: f"phases {i + 1}" for i in range(int(lane.max()) + 1)}
    yield from _names(pid, f"phases of process {about.get('pid', process)}{rank}", -1, written.alignment, threads)
    shown = (p.end_ns[own] >= timeline.window_ns[0]) & (p.begin_ns[own] <= timeline.window_ns[1])
    tids, edges = (lane[shown] + 1).tolist(), (timeline.us(t[shown]).tolist() for t in (begin, end))
    for i, tid, begin_us, end_us in zip(own[shown].tolist(), tids, *edges, strict=True):
        kind = p.classes[int(p.label[i])]
        # JSON has no number that is not finite; an attribute of the user's own may be one.
        attributes = {n: v if not isinstance(v, float) or isfinite(v) else str(v) for n, v in kind.attributes.items()}
        details: dict[str, Any] = {"timed": kind.timing, **attributes}
        if p.cut[i]:
            details["cut"] = "it was not ended"
        for name, columns in energies.items():
            details[f"{name} J"] = "not resolvable"
            if columns.resolvable[i]:
                details[f"{name} J"] = float(f"{columns.energy_j[i]:.6g}")
                details[f"{name} ± U95 J"] = float(f"{columns.u95_j[i]:.2g}")
        written.phases += 1
        yield _slice(kind.name, "phase", pid, tid, begin_us, end_us, details)


def laid_out(run: Run, own: Ints) -> tuple[Ints, Ints, Ints]:
    """Lanes [0..], begins and ends of the phases of a process, ``own`` by index into the run's.

    Phases of one thread share a lane as long as they nest, and no edge lies beyond those of the phase around it: edges
    by two clocks may, by a little.
    """
    p = run.phases
    lane, begin, end = np.zeros(len(p), np.int64), p.begin_ns.copy(), p.end_ns.copy()
    free_at: list[int] = []
    for i in own[p.parent[own] < 0].tolist():
        at = next((k for k, t_ns in enumerate(free_at) if t_ns <= begin[i]), len(free_at))
        free_at[at : at + 1] = [int(end[i])]
        lane[i] = at
    depth = p.depth[own]
    for d in range(1, int(depth.max(initial=0)) + 1):  # outer ones before inner ones
        inner = own[depth == d]
        outer = p.parent[inner]
        lane[inner] = lane[outer]
        begin[inner] = np.clip(begin[inner], begin[outer], end[outer])
        end[inner] = np.clip(end[inner], begin[inner], end[outer])
    return lane[own], begin[own], end[own]
