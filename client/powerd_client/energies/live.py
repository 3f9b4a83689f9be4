"""Running joules of lines and phases: of powerds that are listened to, and of a recording that goes on.

A powerd is listened to as any other reader does. Joules are the integral between readings, on the board's clock, since
this began to listen, or since a run began, as far as powerd's ring goes back. A stretch in which powerd declares scans
lost is left out, except for lines that count energy themselves. Seconds without readings are those of
`Signal.missing_ns`, as in the tables: between good readings, whatever the cause. Scans that powerd declares lost are
another thing: they have a cause, and a sampler that was late or a reading that was flagged is none of them. What a
phase takes, and the mean power of the last minute, each with its uncertainty, come from the estimator of the tables
(`RecordingEnergies`), as those of `Meter.energies` do.
"""

from __future__ import annotations

import contextlib
import threading
import time
import tomllib
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from math import inf
from pathlib import Path
from typing import Any, cast

import numpy as np
import zmq
from numpy.typing import NDArray

from powerd_client.energies.live_energy import Energy, LiveRun
from powerd_client.energies.phase import BASELINE
from powerd_client.host.hostclock import now_ns
from powerd_client.journals.journal import MarkTail, journal_path, read_events, run_of
from powerd_client.journals.link import BoardLink
from powerd_client.runs.recover import open_run
from powerd_client.signals.followed_line import FollowedLine
from powerd_client.signals.pairing import Pairing, ProcessNames
from powerd_client.signals.signal import (
    Readings,
    RunLine,
    Signal,
    arrays_of,
    columns_of,
    count_faults,
    good_readings,
)
from powerd_core.errors import PowerdError, RunFileError
from powerd_core.marks import Mark
from powerd_core.model import Block, Description, Fault, Gap, QuantityConversion
from powerd_core.wire import Message

WINDOW_NS = 1_000_000_000
"""Watts and rates are means over the last second, or the last reading's interval where that is longer."""
MINUTE_S = 60.0
"""The energies with an uncertainty are those of the last minute."""
_EXCHANGE_NS = 500_000_000
_BEGINS = 200
"""Repetitions of a phase that are remembered, to see whether readings are in step with them."""
_DRIFT = 100e-6
"""So much a clock may go wrong while no exchange is made (`powerd_core.clock_comparison`'s default)."""
_QUIET_S = 3.0
_KEPT = ("energy_j", "covered_s", "missing_s", "told_missing_s", "heard_s", "readings", "bad", "faults")
"""What a line goes on with where its powerd was started anew."""
BETWEEN = "between phases"
_SPARKS, _FIRST_EVENTS, _ADD_S = 60, 1000, 0.2
_MOST_ROUNDS = 32
"""So often frames are taken in a step: all that has come, unless it comes faster than it is taken."""
_LOOK_S, _LOOK_SHARE = 5.0, 0.2
"""The energies of a recording are worked out so often, and take this share of a processor at most."""


@dataclass(slots=True)
class LiveLine:
    """One line since it was first heard."""

    line: RunLine
    feeds: bool
    """Whether the sum of its device holds it."""
    energy_j: float = 0.0
    covered_s: float = 0.0
    missing_s: float = 0.0
    """Seconds without readings between the first reading and the latest."""
    readings: int = 0
    bad: int = 0
    faults: Counter[Fault] = field(default_factory=Counter)
    """How many of the readings had each fault."""
    fault: Fault | None = None
    """That of the readings since the last good one."""
    value: float | None = None
    """Of a line that is neither power nor energy: its latest value."""
    follow: FollowedLine = field(init=False)
    is_after_loss: bool = False
    """Whether the interval that ends with the next good reading is left out of the joules."""
    silent: tuple[int, float] | None = None
    """Of a line whose powerd was started anew: board time of its last good reading before, and when that was heard."""
    recent: deque[tuple[int, float, float, int]] = field(default_factory=deque)
    """Of the last second: end (board time), joules, seconds, readings."""
    trail: deque[tuple[NDArray[np.int64], NDArray[np.float64]]] = field(default_factory=lambda: deque(maxlen=1024))
    """Board times and joules until then of the readings that no phase has been given yet."""
    heard_s: float = field(default_factory=time.monotonic)
    """When its latest good reading came, by this machine's clock; before there was one, when this began to listen."""
    told_missing_s: float = 0.0
    """What `missing_until_now_s` has said, which never falls."""

    def __post_init__(self) -> None:
        self.follow = FollowedLine(self.line)

    def take(self, readings: Readings) -> None:
        """Readings as they came, times increasing."""
        n = len(readings.t_ns)
        self.readings += n
        own = count_faults(readings.flags)
        self.faults.update(own)
        self.fault = max(own, key=own.__getitem__) if own and sum(own.values()) == n else None
        if isinstance(self.line.conversion, QuantityConversion):
            self._take_value(readings, self.line.conversion)
            return
        is_first = self.last is None
        signal = self.follow.take(readings)
        self.bad += signal.bad
        if not len(signal):
            return
        if is_first:
            self.missing_s = max(self.missing_s, self.told_missing_s)
        t_ns = int(signal.t_ns[-1])
        self.missing_s += self._silence_s(signal)
        if len(signal) > 1:
            until_j = signal.integral().between(signal.t_ns[0], signal.t_ns)
            is_known = ~signal.broken
            if self.is_after_loss:
                until_j[1:] -= until_j[1]
                is_known[0] = self.is_after_loss = False
            joules, seconds = float(until_j[-1]), float(np.diff(signal.t_ns)[is_known].sum() * 1e-9)
            self.missing_s += float(signal.missing_ns().sum()) * 1e-9
            self.trail.append((signal.t_ns, self.energy_j + until_j))
            self.heard_s = time.monotonic()
            self.energy_j += joules
            self.covered_s += seconds
            self._remember(t_ns, joules, seconds, n)

    @property
    def last(self) -> Readings | None:
        """The latest good reading."""
        return self.follow.last

    def _silence_s(self, signal: Signal) -> float:
        """Seconds without readings until a powerd that was started anew gave its first one. Its clock goes on where it
        is the same machine's; else the time is this machine's."""
        if self.silent is None:
            return 0.0
        (before_ns, heard_s), self.silent = self.silent, None
        since_s, elapsed_s = (int(signal.t_ns[0]) - before_ns) * 1e-9, time.monotonic() - heard_s
        away_s = since_s if 0 < since_s < elapsed_s + 1 else elapsed_s
        return max(away_s - signal.spacing_ns * 1e-9, 0.0)

    def _take_value(self, readings: Readings, conversion: QuantityConversion) -> None:
        good = np.flatnonzero(good_readings(readings))
        self.bad += len(readings.t_ns) - len(good)
        if len(good):
            self.heard_s = time.monotonic()
            self.value = float(readings.codes[conversion.column][good[-1]]) * conversion.per_code
        self._remember(int(readings.t_ns[-1]), 0.0, 0.0, len(readings.t_ns))

    def _remember(self, t_ns: int, joules: float, seconds: float, readings: int) -> None:
        self.recent.append((t_ns, joules, seconds, readings))
        while len(self.recent) > 1 and self.recent[0][0] < t_ns - WINDOW_NS:
            self.recent.popleft()

    def taken_j(self, t_ns: NDArray[np.float64]) -> NDArray[np.float64]:
        """Joules between moments of the board, which increase."""
        if not self.trail:
            return np.zeros(len(t_ns) - 1)
        at, joules = (np.concatenate(column) for column in zip(*self.trail, strict=True))
        origin = float(at[0])
        return np.diff(np.interp(t_ns - origin, at - origin, joules))

    def forget(self, until_ns: float) -> None:
        """What the trail has before a moment of the board, as phases have been given it."""
        while len(self.trail) > 1 and self.trail[0][0][-1] < until_ns:
            self.trail.popleft()

    def fault_shares(self, *, is_answering: bool = False) -> dict[Fault, float]:
        """The share of readings that each fault took so far; all of them for a fault that lasts. A line of which
        nothing comes any more has one, too, where its powerd ``is_answering``."""
        shares = {fault: count / max(self.readings, 1) for fault, count in self.faults.items()}
        fault = self.fault or (Fault.NO_ANSWER if is_answering else None)
        if fault is not None and self._silence_until_now_s() > 0:
            shares[fault] = 1.0
        return shares

    def missing_until_now_s(self) -> float:
        """``missing_s``, and a silence that lasts: readings that fail, or do not come. It never falls."""
        self.told_missing_s = max(self.told_missing_s, self.missing_s + self._silence_until_now_s())
        return self.told_missing_s

    def _silence_until_now_s(self) -> float:
        """Seconds since the latest good reading, without the line's period; 0 where the next may be on its way."""
        period_s, silent_s = self.line.period_ns * 1e-9, time.monotonic() - self.heard_s
        return silent_s - period_s if silent_s > _QUIET_S + 2 * period_s else 0.0

    @property
    def known_j(self) -> float | None:
        """``energy_j``, None as long as no two readings have told anything."""
        return self.energy_j if self.covered_s > 0 else None

    @property
    def power_w(self) -> float | None:
        """Mean of the last second."""
        seconds = sum(s for _, _, s, _ in self.recent)
        return sum(j for _, j, _, _ in self.recent) / seconds if seconds > 0 else None

    @property
    def rate_hz(self) -> float | None:
        """Readings a second, good and bad."""
        span_s = (self.recent[-1][0] - self.recent[0][0]) * 1e-9 if self.recent else 0.0
        return sum(n for _, _, _, n in list(self.recent)[1:]) / span_s if span_s > 0 else None


class LiveBoard:
    """All lines of one powerd, and what was lost on the way."""

    def __init__(self, description: Description, before: LiveBoard | None = None) -> None:
        """``before``: what was counted until powerd was restarted, which goes on."""
        self.description = description
        feeds = {name for device in description.devices for name in device.feeds}
        self._streams = {stream.number: stream for stream in description.streams}
        self.lines = {
            line.name: LiveLine(RunLine.of(line, stream, description.board), line.name in feeds)
            for stream in description.streams
            for line in stream.lines
        }
        self.losses = self.lost_scans = 0
        """How often scans were declared lost, and how many where that is known."""
        self.unknown_losses = 0
        """Losses of which nobody knows how many scans they are; among ``losses``."""
        self.last_cause = ""
        if before is not None:
            self.losses, self.unknown_losses = before.losses + 1, before.unknown_losses + 1
            self.lost_scans, self.last_cause = before.lost_scans, "powerd was started anew"
            for name in self.lines.keys() & before.lines.keys():
                old = before.lines[name]
                for count in _KEPT:
                    setattr(self.lines[name], count, getattr(old, count))
                self.lines[name].silent = old.silent if old.last is None else (int(old.last.t_ns[0]), old.heard_s)

    @property
    def devices(self) -> dict[tuple[str, str], list[LiveLine]]:
        """The lines that feed each device, by its name and their provenance."""
        own: dict[tuple[str, str], list[LiveLine]] = {}
        for device in self.description.devices:
            for line in (self.lines[name] for name in device.feeds if name in self.lines):
                own.setdefault((device.name, line.line.provenance.value), []).append(line)
        return own

    def take(self, *events: Block | Gap) -> None:
        """Frames of the data socket, in turn; those of a stream that come together cost hardly more than one. Frames of
        another epoch of the powerd are left alone."""
        blocks: defaultdict[int, list[Block]] = defaultdict(list)
        for event in events:
            if event.stream not in self._streams or event.epoch != self.description.epoch:
                continue
            if isinstance(event, Block):
                blocks[event.stream].append(event)
            else:
                self._take_blocks(event.stream, blocks.pop(event.stream, []))
                self._take_gap(event)
        for number, own in blocks.items():
            self._take_blocks(number, own)

    def _take_gap(self, event: Gap) -> None:
        self.losses += 1
        self.unknown_losses += event.lost < 0
        self.lost_scans += max(event.lost, 0)
        self.last_cause = event.cause
        for line in (self.lines[line.name] for line in self._streams[event.stream].lines):
            # A counter has counted on meanwhile.
            line.is_after_loss = line.last is not None and line.line.quantity != "energy_j"

    def _take_blocks(self, number: int, blocks: Sequence[Block]) -> None:
        if not blocks:
            return
        stream = self._streams[number]
        arrays = arrays_of(blocks, stream)
        for i, name in enumerate(line.name for line in stream.lines):
            own = self.lines[name]
            t_ns = arrays["t_ns"] + arrays["dt_ns"][:, i]
            own.take(Readings(t_ns, arrays["flags"][:, i], {c: arrays[c][:, i] for c in columns_of(own.line)}))


class LivePowerd:
    """One powerd. What goes wrong once it has answered is shown, not raised: it may come back."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], url: str, keys: Path | None = None, *, client: str
    ) -> None:
        """``client`` is who listens, for powerd. Raises `PowerdError` when nobody answers."""
        self.url = url
        self.link = BoardLink(context, url, client=client, keys=keys)
        try:
            self.board = LiveBoard(self.link.describe())
        except PowerdError:
            self.link.close()
            raise
        self.trouble = ""
        self.restarts = 0
        self._heard_s = time.monotonic()
        self._exchange_ns = 0
        self._delays: deque[tuple[int, int]] = deque(maxlen=64)
        """Host time and delay of the latest exchanges."""

    def step(self) -> None:
        """Take what has arrived, ask for more, and compare clocks now and then."""
        link = self.link
        link.ask()
        for _ in range(_MOST_ROUNDS):  # a round takes a limited number of frames
            events = [event for event, _ in link.receive()]
            if not events:
                break
            self.board.take(*events)
            self._heard_s, self.trouble = time.monotonic(), ""
            link.ask()
        try:
            while link.control.poll(0):
                link.receive_control()
            if link.description is not None and link.description.epoch != self.board.description.epoch:
                self.board = LiveBoard(link.description, self.board)
                self.restarts += 1
                self._delays.clear()
            if now_ns() - self._exchange_ns > _EXCHANGE_NS:
                self._exchange_ns = now_ns()
                if (exchange := link.exchange()) is not None:
                    self._delays.append((exchange.t4_host_ns, exchange.delay_ns))
        except PowerdError as error:
            self.trouble = str(error)
        longest_s = max((stream.period_ns for stream in self.board.description.streams), default=0) * 1e-9
        if (quiet_s := time.monotonic() - self._heard_s) > _QUIET_S + 2 * longest_s:
            self.trouble = f"nothing heard for {quiet_s:.0f} s"

    @property
    def known_until_ns(self) -> float | None:
        """The host's time up to which all lines that are not silent have told their power."""
        lines = [line for line in self.board.lines.values() if line.feeds and line.trail]
        lines = [line for line in lines if time.monotonic() - line.heard_s < _QUIET_S + 2e-9 * line.line.period_ns]
        if not lines or self.link.offset_ns is None:
            return None
        return min(float(line.trail[-1][0][-1]) for line in lines) + self.link.offset_ns

    @property
    def clock_bound_s(self) -> float | None:
        """Half of the quickest of the latest exchanges, widened by what the clocks may have drifted since."""
        now = now_ns()
        bounds_ns = [delay / 2 + (now - t) * _DRIFT for t, delay in self._delays]
        return min(bounds_ns) * 1e-9 if bounds_ns else None


@dataclass(frozen=True, slots=True)
class DeviceFigures:
    """The sum of a device's feeding lines of one provenance; None as long as one of them has told nothing."""

    device: str
    provenance: str
    power_w: float | None
    energy_j: float | None
    missing_s: float
    """Seconds without readings, of the line that misses most."""
    lines: int
    is_recorded: bool = False
    """Whether the run that is followed records this device, and no other one of the same name."""


class Listener:
    """The powerds that are listened to, and the recording whose phases are given their joules.

    A run belongs to a powerd by the epoch of its streams, or by its address where it was started anew; never by the
    names of lines and devices, which every powerd has alike.
    """

    def __init__(self, urls: Sequence[str], keys: Path | None = None, *, client: str = "joules top") -> None:
        """``keys`` is the directory of keys, ``client`` who listens. Raises `PowerdError` when one of the powerds does
        not answer."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.powerds: list[LivePowerd] = []
        self._begin_s = self._spark_s = self._added_s = time.monotonic()
        self.run: RunPhases | None = None
        self.recorded: list[LivePowerd] = []
        """The powerds that the run records."""
        self.no_run = ""
        """Why no run is followed."""
        self.is_since_run = False
        """Whether joules are asked for since the run began."""
        self.sparks: defaultdict[tuple[str, str], deque[float | None]] = defaultdict(lambda: deque(maxlen=_SPARKS))
        """Watts of each device, second by second."""
        try:
            for url in urls:
                self.powerds.append(LivePowerd(self._context, url, keys, client=client))
        except PowerdError:
            self.close()
            raise

    def follow(self, run: RunPhases) -> bool:
        """Give each phase of a run its joules, and ask for the readings since it began: before the first `step`.
        Whether the run records any of these powerds; another run is left alone."""
        sources = run.sources()
        recorded = sources.among(self.powerds)
        if not recorded:
            return False
        self.run, self.recorded, self.no_run = run, recorded, ""
        for powerd in recorded:
            for number, stream in powerd.link.streams.items():
                first = sources.first_frames.get((powerd.board.description.epoch, number))
                if first is not None:
                    stream.next, self.is_since_run = first, True
        return True

    def let_go(self, why: str) -> None:
        """Follow no run any more."""
        self.run, self.recorded, self.no_run = None, [], why

    @property
    def elapsed_s(self) -> float:
        """How long it has listened."""
        return time.monotonic() - self._begin_s

    def step(self, timeout_s: float, descriptor: int | None = None) -> bool:
        """Wait for readings (or for ``descriptor``, a terminal) and take them. Whether the latter is readable."""
        poller = zmq.Poller()
        sockets: list[Any] = [s for powerd in self.powerds for s in (powerd.link.control, powerd.link.data)]
        for readable in (*sockets, descriptor):
            if readable is not None:
                poller.register(readable, zmq.POLLIN)
        ready = dict(poller.poll(int(timeout_s * 1000)))
        for powerd in self.powerds:
            powerd.step()
        now_s = time.monotonic()
        if self.run is not None and now_s - self._added_s > _ADD_S:
            self._added_s = now_s
            self.run.add_up(self.recorded)
            self.forget(self.run)
        if now_s - self._spark_s > 1:
            self._spark_s = now_s
            for figures in self.devices():
                self.sparks[figures.device, figures.provenance].append(figures.power_w)
        return descriptor in ready

    def forget(self, *runs: RunPhases) -> None:
        """Drop the readings whose joules all these runs have."""
        done_ns = min((run.done_ns for run in runs), default=inf)
        for powerd in self.powerds:
            for line in powerd.board.lines.values():
                line.forget(done_ns - (powerd.link.offset_ns or 0.0))

    def lines(self) -> list[LiveLine]:
        """Lines of all powerds, in their order."""
        return [line for powerd in self.powerds for line in powerd.board.lines.values()]

    def devices(self) -> list[DeviceFigures]:
        """Devices of all powerds. Lines of different provenance are never added."""
        figures = []
        recorded = Counter(device for powerd in self.recorded for device in powerd.board.devices)
        for powerd in self.powerds:
            for (device, kind), own in powerd.board.devices.items():
                power_w, energy_j = _sum([s.power_w for s in own]), _sum([s.known_j for s in own])
                missing_s = max((s.missing_until_now_s() for s in own), default=0.0)
                is_recorded = powerd in self.recorded and recorded[device, kind] == 1
                figures.append(DeviceFigures(device, kind, power_w, energy_j, missing_s, len(own), is_recorded))
        return figures

    def close(self) -> None:
        for powerd in self.powerds:
            powerd.link.close()
        with contextlib.suppress(zmq.ZMQError):
            self._context.destroy(linger=0)


def _sum(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) if len(known) == len(values) else None


# ---- runs and powerds of this machine, from /proc and the files of journals (docs/reference/journal.md) --------------

DEFAULT_URL = "tcp://127.0.0.1:7360"


def runs_here() -> list[Path]:
    """Run files that are being recorded by processes whose open files we may see, the newest first."""
    journals = set()
    for process in _processes():
        with contextlib.suppress(OSError):
            for entry in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    target = entry.readlink()
                    if target.name == "journal.bin" and journal_path(run_of(target.parent)) == target.parent:
                        journals.add(target.parent)
    return [run_of(journal) for journal in sorted(journals, key=_age_s)]


def powerds_here() -> list[str]:
    """Addresses of the powerds that run on this machine, as far as their command lines tell; those that were started
    last come first: a recorder's own is among them."""
    urls = []
    for process in sorted(_processes(), key=lambda path: -int(path.name)):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if "run" in words and any(w == "powerd_daemon" or w.endswith("/powerd") for w in words):
                urls.append(_listens(words, process))
    return list(dict.fromkeys(urls))


def _listens(words: list[str], process: Path) -> str:
    options = dict(pairwise(words)) | dict(w.split("=", 1) for w in words if "=" in w)
    listen = options.get("--listen")
    if listen is None and "--config" in options:
        with contextlib.suppress(OSError, ValueError):
            # Its relative paths are from where it runs, and seen as it sees them.
            path = (process / "cwd").readlink() / options["--config"]
            listen = tomllib.loads(path.read_text()).get("server", {}).get("listen")
    return str(listen or DEFAULT_URL).replace("*", "127.0.0.1").replace("0.0.0.0", "127.0.0.1")


def _processes() -> list[Path]:
    return [path for path in Path("/proc").iterdir() if path.name.isdigit()]


def _age_s(journal: Path) -> float:
    """How long ago a recording began: its lock is made first and never written."""
    with contextlib.suppress(OSError):
        return time.time() - (journal / "lock").stat().st_mtime
    return 0.0


@dataclass(slots=True)
class _OpenPhases:
    """The phases of a process that are open, and how many have ended: what a live pairing keeps of them."""

    kind: dict[int, int] = field(default_factory=dict)
    """By the phase's index."""
    problems: list[tuple[int, str]] = field(default_factory=list)
    ended: Counter[int] = field(default_factory=Counter)
    """By kind, without those that were cut."""
    count: int = 0

    def begin(self, mark: Mark, kind: int, parent: int, process: int, thread: int) -> int:
        self.kind[self.count] = kind
        self.count += 1
        return self.count - 1

    def end(self, index: int, mark: Mark, *, is_cut: bool) -> None:
        kind = self.kind.pop(index)
        self.ended[kind] += not is_cut


class _Process:
    """One process's phases as far as its marks have been read."""

    def __init__(self) -> None:
        self.said = ProcessNames()
        self.names: dict[int, str] = {}
        """Of kinds, by number."""
        self._kinds: dict[int, int] = {}
        self._spans = _OpenPhases()
        self._pairing = Pairing(self._spans, 0, self._kinds, self.names, self.said.cuts)
        self._latest: tuple[int, int] = (0, 0)
        """Time and thread of the latest mark."""
        self.timeline: list[tuple[int, str]] = []
        """The innermost phase from each mark on, as far as it has not been given its joules."""

    def describe(self, document: dict[str, Any]) -> None:
        """Raises KeyError, TypeError or ValueError for what is none."""
        self.said.take(document)
        for number in self.said.kinds.keys() - self.names.keys():
            self.names[number], self._kinds[number] = self.said.kinds[number]["name"], number

    def take(self, mark: Mark) -> None:
        self._pairing.take(mark)
        self._latest = max(self._latest, (mark.t_host_ns, mark.thread))
        path = self._path(mark.thread)
        self.timeline.append((mark.t_host_ns, path[-1] if path else BETWEEN))

    def _path(self, thread: int) -> tuple[str, ...]:
        """Open phases of a thread, outermost first."""
        known = self._pairing.threads.get(thread)
        return tuple(self.names[self._spans.kind[index]] for index in known.open) if known else ()

    @property
    def path(self) -> tuple[str, ...]:
        """Those of the thread that marked last."""
        return self._path(self._latest[1])

    @property
    def ended(self) -> Counter[str]:
        """Phases that have ended, by name."""
        ended: Counter[str] = Counter()
        for kind, count in self._spans.ended.items():
            ended[self.names[kind]] += count
        return ended


@dataclass(frozen=True, slots=True)
class CurrentPhase:
    """Where a process of a run is."""

    process: str
    path: tuple[str, ...]
    """Open phases of the thread that marked last, outermost first; empty between phases."""
    ended: int
    """Phases that have ended since this began to look."""


@dataclass(frozen=True, slots=True)
class RunSources:
    """The powerds that a run records, as its journal has them."""

    epochs: frozenset[int]
    urls: frozenset[str]
    first_frames: dict[tuple[int, int], int]
    """The number of the first frame of each stream, by epoch and stream."""
    job: str
    """Of a cluster, that the run belongs to; empty where its environment says none."""

    def among(self, powerds: Sequence[LivePowerd]) -> list[LivePowerd]:
        """Those that the run records."""
        return [p for p in powerds if p.board.description.epoch in self.epochs or p.url in self.urls]


def _job_in(environment: object) -> str:
    return str(environment.get("job_id") or "") if isinstance(environment, dict) else ""


class RunPhases:
    """Follows the marks of a run that is being recorded. The recorder deletes segments that it has copied: phases that
    were begun in those are not known, and what is inside them is shown without them."""

    def __init__(self, run: Path) -> None:
        """Raises `RunFileError` when no such run is being recorded."""
        self.run = run.absolute()
        self.journal = journal_path(self.run)
        if not (self.journal / "journal.bin").exists():
            if run.exists():
                open_run(run).close()  # raises for what is no run file
                raise RunFileError(f"{run} has ended: `joules tables` shows it")
            raise RunFileError(f"{run} is not being recorded here")
        self._begin_s = time.monotonic() - _age_s(self.journal)
        self._tail = MarkTail(self.journal, consume=False)
        self._processes: defaultdict[int, _Process] = defaultdict(_Process)
        self.energies: dict[tuple[str, str], dict[str, float]] = {}
        """Joules of each device, by its name and provenance, while a phase was the innermost one of the first process:
        the parts add up, so that a phase's are without those inside it."""
        self.seconds: dict[str, float] = {}
        self._begins: defaultdict[str, deque[int]] = defaultdict(lambda: deque(maxlen=_BEGINS))
        self._done: tuple[float, str] | None = None
        """Up to when joules were given to phases, and the phase then."""

    def sources(self) -> RunSources:
        """What the beginning of the journal says of the powerds; nothing where the run has just ended."""
        epochs, urls, first, job = set[int](), set[str](), dict[tuple[int, int], int](), ""
        with contextlib.suppress(RunFileError):
            for event, _, _ in islice(read_events(self.journal / "journal.bin"), _FIRST_EVENTS):
                match event:
                    case Block() | Gap():
                        epochs.add(event.epoch)
                        first.setdefault((event.epoch, event.stream), event.sequence)
                    case Message("description"):
                        epochs.add(event.epoch)
                    case Message("epoch"):
                        urls.add(str(event.body.get("url")))
                    case Message("run"):
                        job = _job_in(event.body.get("environment"))
        return RunSources(frozenset(epochs), frozenset(urls), first, job)

    @property
    def is_over(self) -> bool:
        return not self.journal.exists()

    @property
    def elapsed_s(self) -> float:
        """Since the recording was begun."""
        return time.monotonic() - self._begin_s

    def current(self) -> list[CurrentPhase]:
        """Where the processes are now, one entry each, ranks in order."""
        self._read()
        phases = []
        for process in self._training():
            about = process.said.about
            rank = f"rank {about['rank']}" if "rank" in about else f"pid {about.get('pid', '?')}"
            phases.append(CurrentPhase(rank, process.path, process.ended.total()))
        return phases

    @property
    def done_ns(self) -> float:
        """Up to when joules were given to phases, by the host's clock."""
        return self._done[0] if self._done is not None else -inf

    @property
    def gpus(self) -> set[str]:
        """The UUIDs of the GPUs that its processes say they use; empty where none says."""
        return {str(d["uuid"]) for process in self._processes.values() for d in process.said.devices if d.get("uuid")}

    @property
    def is_timed_on_device(self) -> bool:
        """Whether phases are where a device is, which marks do not say when they are made: the host is ahead of it."""
        return any("device" in process.said.timings.values() for process in self._processes.values())

    @property
    def ended(self) -> Counter[str]:
        """How many phases of the first process have ended, by name."""
        return next((process.ended for process in self._training()), Counter())

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the run may end at any moment, and its journal with it
            names, pieces = self._tail.read()
            for document in names:
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    self._processes[cast("int", document["process"])].describe(document)
            for piece in pieces:
                for mark in piece:
                    self._processes[piece.process].take(mark)

    def _training(self) -> list[_Process]:
        """The processes that mark phases, ranks in order; not `joules record` itself, after its baseline."""
        abouts = {process: process.said.about for process in self._processes.values()}
        every = sorted(abouts, key=lambda p: (abouts[p].get("rank", 0), abouts[p].get("pid", 0)))
        return [p for p in every if p.path or set(p.names.values()) != {BASELINE}]

    def begins_ns(self, phase: str) -> NDArray[np.int64]:
        """When a phase became the innermost one, lately."""
        return np.array(self._begins[phase], np.int64)

    def add_up(self, powerds: Sequence[LivePowerd]) -> None:
        """Give the joules that came since the last call to the phases of the first process, mark by mark.

        The clock is the link's best estimate: a live figure, for which a run file has a better one.
        """
        self._read()
        training = self._training()
        ends = [end for powerd in powerds if (end := powerd.known_until_ns) is not None]
        for process in training[1:]:
            process.timeline.clear()
        if not training or not ends:
            return
        until, timeline = min(ends), training[0].timeline
        count = sum(t_ns <= until for t_ns, _ in timeline)
        marks, timeline[:count] = timeline[:count], []
        if self._done is not None:
            marks.insert(0, (int(self._done[0]), self._done[1]))
        if not marks or until <= marks[0][0]:
            return
        names = [name for _, name in marks]
        for t_ns, name in marks[self._done is not None :]:
            self._begins[name].append(t_ns)
        edges = np.maximum.accumulate(np.array([*(t_ns for t_ns, _ in marks), until], np.float64))
        self._done = (until, names[-1])
        for name, seconds in zip(names, np.diff(edges) * 1e-9, strict=True):
            self.seconds[name] = self.seconds.get(name, 0.0) + float(seconds)
        for powerd in powerds:
            for device, lines in powerd.board.devices.items():
                joules = np.sum([line.taken_j(edges - (powerd.link.offset_ns or 0.0)) for line in lines], axis=0)
                own = self.energies.setdefault(device, {})
                for name, value in zip(names, joules, strict=True):
                    own[name] = own.get(name, 0.0) + float(value)


class RecordingEnergies:
    """What the estimator of the tables says of the last minute of a recording, worked out anew in a thread."""

    def __init__(self, run: RunPhases) -> None:
        self.latest: list[Energy] = []
        """Mean power of each device (with its joules; ``phase`` is empty), then the energies of each kind of phase."""
        self._live = LiveRun(run.journal, run.run, 0)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="energies", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def look(self) -> list[Energy]:
        """Work them out now, which takes about a second. Raises nothing; without readings there are none."""
        self.latest = self._live.look(MINUTE_S) or self.latest
        return self.latest

    def close(self) -> None:
        """No more of it; nobody waits for the one under way."""
        self._is_over.set()

    def _work(self) -> None:
        pause_s = 0.0
        while not self._is_over.wait(pause_s):
            begin_s = time.monotonic()
            self.look()
            pause_s = max(_LOOK_S, (time.monotonic() - begin_s) / _LOOK_SHARE)
