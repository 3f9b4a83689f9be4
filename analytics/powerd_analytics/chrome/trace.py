"""`joules trace`: power and phases beside the kernels, in a Chrome trace for Perfetto or chrome://tracing."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from powerd_analytics.chrome.clock import WallClock, needed_wall_clock, wall_clock
from powerd_analytics.chrome.events import (
    DEVICE_PID,
    PHASE_PID,
    Ints,
    Values,
    counter_events,
    metadata,
    missing_events,
    power_of,
    summed,
    thread_name,
)
from powerd_analytics.chrome.phasetracks import Joules, joules_of, phase_events, tracks_of
from powerd_analytics.chrome.profile import Profile, copy_with, read_profile
from powerd_analytics.energy.devices import Part, Progress, load_parts, no_progress
from powerd_analytics.energy.reasons import seconds
from powerd_analytics.runs.run import Run
from powerd_analytics.signals.slices import IN_MEMORY, load_bounded
from powerd_analytics.signals.streams import holes_of
from powerd_core.errors import AnalysisError

MOST_POINTS = 100_000
MARGIN_NS = 100_000_000
"""So much of the run is shown before and behind a profile, so that a step at its edge can be seen."""


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """What of a run is put into a trace."""

    device: str | None = None
    most_points: int = MOST_POINTS
    """Of each counter; the lowest and highest value of every stretch stay."""
    whole_run: bool = False
    """Not only what lies beside the profile."""


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
class _Timeline:
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
    options: TraceOptions = TraceOptions(),
    *,
    progress: Progress = no_progress,
) -> Written:
    """Write a trace to ``out``, packed where its name ends in .gz.

    Raises `AnalysisError` for a profile that is none or was not taken during the run.
    """
    found = None if profile is None else read_profile(profile, lambda share: progress(0.2 * share, "reading profile"))
    timeline = _timeline(run, found, whole_run=options.whole_run)
    parts = load_parts(run, options.device, lambda share, text: progress(0.2 + 0.3 * share, text), in_memory=IN_MEMORY)
    progress(0.5, "energies of phases")
    energies = {f"{p.device} ({p.provenance})": joules_of(run, p) for p in parts} if len(run.phases) else {}
    bound = seen = None
    if found is not None and timeline.wall is not None:
        bound, seen = timeline.wall.bound_ns(*timeline.window_ns), timeline.wall.seen_ns()
    written = Written(0, 0, bound, float("nan") if seen is None else seen)
    label = written.alignment if found is not None else ""
    counts = {"C": 0, "X": 0}
    events = _events(run, parts, energies, timeline, options.most_points, label, counts)
    packed = out.suffix == ".gz"
    with out.open("wb") as raw:
        text: IO[bytes] = gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=4, mtime=0) if packed else raw  # type: ignore[assignment]
        if found is None:
            _write_own(text, run, timeline, events)
        else:
            copy_with(found, text, events, lambda share: progress(0.6 + 0.4 * share, "writing"))
        if packed:
            text.close()
    return Written(counts["C"], counts["X"], bound, written.seen_ns)


def _timeline(run: Run, profile: Profile | None, *, whole_run: bool) -> _Timeline:
    whole = (run.begin_ns, run.end_ns)
    if profile is None:
        wall = wall_clock(run)
        return _Timeline(wall, run.begin_ns if wall is None else int(wall.unix_ns(np.array([run.begin_ns]))[0]), whole)
    wall = needed_wall_clock(run)
    first, last = wall.host_ns(profile.first_ns), wall.host_ns(profile.last_ns)
    if last < run.begin_ns or first > run.end_ns:
        apart = run.begin_ns - last if last < run.begin_ns else first - run.end_ns
        side = "before the run began" if last < run.begin_ns else "after the run had ended"
        raise AnalysisError(f"{profile.path} was taken {seconds(apart * 1e-9)} {side}: it belongs to another run")
    return _Timeline(wall, profile.base_ns, whole if whole_run else (first - MARGIN_NS, last + MARGIN_NS))


def _write_own(out: IO[bytes], run: Run, timeline: _Timeline, events: Iterator[bytes]) -> None:
    head: dict[str, object] = {"schemaVersion": 1, "displayTimeUnit": "ms", "otherData": {"powerd run": run.path.name}}
    if timeline.wall is not None:
        head["baseTimeNanoseconds"] = timeline.base_ns
    out.write(json.dumps(head).encode()[:-1] + b', "traceEvents": [')
    is_first = True
    for event in events:
        out.write((b"\n" if is_first else b",\n") + event)
        is_first = False
    out.write(b"\n]}\n")


def _events(
    run: Run,
    parts: tuple[Part, ...],
    energies: Mapping[str, Joules],
    timeline: _Timeline,
    most_points: int,
    label: str,
    counts: dict[str, int],
) -> Iterator[bytes]:
    for number, part in enumerate(parts):
        pid = DEVICE_PID + number
        names = [n for n in run.compared(part.device) if run.lines[n].provenance.value == part.provenance]
        signals = [*part.signals, *(load_bounded(run, name) for name in names)]
        yield from metadata(pid, f"power of {part.device} ({part.provenance})", sort=-2, label=label)
        sums = [part.signals] if len(part.signals) > 1 else []
        for of in [*sums, *((s,) for s in signals)]:
            if len(of) > 1:
                name, points = f"{part.device}: sum of {len(of)} lines", summed(of, timeline.window_ns, most_points)
            else:
                name, points = of[0].line.name, power_of(of[0], timeline.window_ns, most_points)
            counts["C"] += len(points[0]) > 0
            yield from counter_events(pid, f"{name} W", timeline.us(points[0]), points[1])
        holes = {s.line.name: holes_of(s) for s in signals}
        yield from _missing(pid, holes, timeline)
    for process, about in enumerate(run.processes):
        tracks = tracks_of(run, process)
        if not len(tracks.own):
            continue
        rank = f", rank {about['rank']}" if "rank" in about else ""
        name = f"phases of process {about.get('pid', process)}{rank}"
        threads = [f"phases {i + 1}" for i in range(int(tracks.lane.max()) + 1)]
        yield from metadata(PHASE_PID + process, name, sort=-1, label=label, threads=threads)
        for event in phase_events(tracks, timeline.window_ns, energies, timeline.us):
            counts["X"] += 1
            yield event


def _missing(pid: int, holes: Mapping[str, Ints], timeline: _Timeline) -> Iterator[bytes]:
    first, last = timeline.window_ns
    for tid, (name, ends) in enumerate(holes.items(), 1):
        if not len(ends):
            continue
        yield thread_name(pid, tid, f"no readings: {name}")
        shown = (ends[:, 1] >= first) & (ends[:, 0] <= last)
        yield from missing_events(pid, tid, name, ends[shown], timeline.us)
