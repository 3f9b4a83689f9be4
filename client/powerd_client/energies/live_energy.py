"""Energies while a program runs, and the result when its recording closes.

The joules of phases come from the analytics, found by the entry-point group `powerd.energies`: the client imports none
of it. `LiveRun` gives it what the journal holds so far as a small run file of the last seconds. What devices take
between two moments (`LiveRun.between`) needs no phases, and is worked out here.
"""

from __future__ import annotations

import contextlib
import json
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from powerd_client.host.hostclock import now_ns
from powerd_client.host.log import install_hint, shown_path
from powerd_client.journals.journal import MarkTail, has_begun
from powerd_client.runs.build import Contents, JournalFollower, write_run
from powerd_client.runs.losses import StreamFrames
from powerd_client.runs.recover import open_run
from powerd_client.runs.runfile import read_objects
from powerd_client.signals.signal import Signal
from powerd_core.errors import AnalysisError, PowerdError
from powerd_core.marks import RECORD
from powerd_core.model import Device
from powerd_core.text import printable, with_u95
from powerd_core.wire import Message

MEASURED = "measured"
_GROUP = "powerd.energies"
_LOOK_S = 0.02
_MARGIN_NS = 500_000_000
"""Readings this long before a phase are given to the estimator too."""
_SILENT_NS = 2_000_000_000
"""A stream that is so far behind the others is not waited for."""
_FAST_PERIOD_NS = 1_000_000_000
_LEAST_EXCHANGES = 20
_MOST_AWAY = 0.05
"""Of a window: with more of it without readings its joules are a lower bound."""
_LEAST_LENGTH = 5
"""A window shorter than so many times its sensor's resolution shares its joules with what lies beside it."""
INTERPOLATED = "too short for its readings: interpolated"
"""The note of such joules."""
_MOST_CPU_S = 60
"""A result that takes so much will never come."""


@dataclass(frozen=True, slots=True)
class Energy:
    """The energy of one phase, or the mean of several of one name, on one device."""

    phase: str
    energy_j: float | None = None
    """None where it is not resolvable; ``note`` then says why."""
    u95_j: float | None = None
    """Half of the 95 % interval; None where it is not known, and of a lower bound."""
    seconds: float = 0.0
    """How long the phase took, or its mean."""
    count: int = 0
    """The phases that it is the mean of."""
    device: str = ""
    provenance: str = ""
    """``measured``, ``modelled`` or ``simulated``."""
    is_so_far: bool = False
    """The phase, or the latest one of its name, is still open, or its last readings have not arrived."""
    is_lower_bound: bool = False
    note: str = ""
    missing_s: float | None = None
    """How much of it has no readings; None where that was not worked out."""

    @property
    def is_resolvable(self) -> bool:
        """Whether there is a number."""
        return self.energy_j is not None

    @property
    def power_w(self) -> float | None:
        """Mean power, None where the energy or the time is not known."""
        return self.energy_j / self.seconds if self.energy_j is not None and self.seconds > 0 else None

    def __str__(self) -> str:
        so_far = ", so far" if self.is_so_far else ""
        if self.energy_j is None:
            where = f" ({self.device})" if self.device else ""
            why = self.note.removeprefix("not resolvable: ")
            return printable(f"{self.phase}{where}: not resolvable{so_far}: {why}")
        text = with_u95(self.energy_j, self.u95_j, "J", is_lower_bound=self.is_lower_bound)
        mean = f", mean of {self.count}" if self.count > 1 else ""
        return printable(f"{text} {said_provenance(self.provenance)} ({self.device}){mean}{so_far}")


def said_provenance(provenance: str) -> str:
    """For a line of text: what was not measured must not look like it."""
    return provenance if provenance == MEASURED else provenance.upper()


def analytics() -> Any:
    """The module with ``energies`` and ``result_lines`` (`powerd_analytics.run_tables.closing_lines`); None where it,
    or a library that it needs, is not installed."""
    from importlib.metadata import entry_points  # a command that knows its estimator needs none

    for point in entry_points(group=_GROUP):
        with contextlib.suppress(ImportError):
            return point.load()
    return None


def _install() -> str:
    return f"joules need the analytics: {install_hint('analytics')}"


class _NotYet(AnalysisError):
    """What is asked about has not come."""


class LiveRun:
    """A recording as far as its journal has come. Each byte of that is decoded once; what is kept grows by about
    30 MB an hour at a thousand scans a second.
    """

    def __init__(self, journal: Path, out: Path, token: int) -> None:
        """``token``: the marking process."""
        self._journal, self._out, self._token = journal, out, token
        self._follower = JournalFollower(journal)
        self._contents = self._follower.contents
        self._marks = MarkTail(journal, consume=False)
        self._mutex = threading.Lock()

    def ask(
        self,
        name: str,
        device: str | None,
        *,
        number: int | None = None,
        last_s: float | None = None,
        wait_s: float = 0.0,
    ) -> list[Energy]:
        """The energy of the phase that this process began with its mark ``number``, or the mean of the phases of a
        name, or of each name there is ("") in the last seconds. Never empty, and raises nothing: the note says what is
        wrong. The best known device comes first.
        """
        deadline = time.monotonic() + wait_s
        try:
            if (estimator := analytics()) is None:
                return [Energy(name, note=_install())]
            with self._mutex, tempfile.TemporaryDirectory(prefix="powerd-live-") as folder:
                while True:
                    found, note = list[Energy](), "none has ended yet"
                    try:
                        run, row = self._run(Path(folder), number, name, last_s)
                        found = estimator.energies(run, name=name or None, row=row, device=device)
                    except _NotYet as error:
                        note = str(error)
                    is_over = time.monotonic() >= deadline
                    if found and (is_over or not found[0].is_so_far):
                        return found
                    if is_over and last_s is None:
                        return [Energy(name, is_so_far=True, note=note)]
                    last_s = last_s if found else None  # an epoch may be longer than that
                    time.sleep(_LOOK_S)
        except Exception as error:  # noqa: BLE001  (whatever a library throws: the training goes on)
            text = str(error) if isinstance(error, PowerdError) else f"{type(error).__name__}: {error}"
            return [Energy(name, note=text)]

    def look(self, last_s: float) -> list[Energy]:
        """What the devices took in the last seconds, and the mean energies of each kind of phase in them: empty until
        there are readings. Raises nothing."""
        try:
            if (estimator := analytics()) is None:
                return [Energy("", note=_install())]
            with self._mutex, tempfile.TemporaryDirectory(prefix="powerd-live-") as folder:
                run, _ = self._run(Path(folder), None, "", last_s)
                energies: list[Energy] = estimator.figures(run)
                return energies
        except _NotYet:
            return []
        except Exception as error:  # noqa: BLE001  (as in `ask`)
            return [Energy("", note=f"{type(error).__name__}: {error}")]

    def devices(self) -> list[Device]:
        """What is measured, as far as the recording has said it. Raises nothing."""
        with self._mutex, contextlib.suppress(PowerdError):
            self._follow()
        return [device for description in self._contents.descriptions.values() for device in description.devices]

    def between(
        self,
        begin_ns: int,
        end_ns: int,
        wait_s: float,
        devices: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    ) -> list[Energy]:
        """What devices, all of them by default, took between two moments of the host's clock, by the plain integral of
        their readings: for a window of many readings, which knows no phases, at a tenth of the estimator's cost. A
        device that nothing measures is left out. A mapping says which lines are added up under which name.

        Waits at most so long for the last readings; of a device where they have not come nothing is known
        (``is_so_far``). Never empty, and raises nothing.
        """
        deadline = time.monotonic() + wait_s
        try:
            while True:
                with self._mutex:
                    self._follow()
                    feeds = self._feeds(devices)
                    come = {d: own for d, own in feeds.items() if self._follower.reaches(own, end_ns)}
                    if (feeds and len(come) == len(feeds)) or time.monotonic() >= deadline:
                        lines = {line for own in come.values() for line in own}
                        (signals,) = self._follower.signals(lines, [(begin_ns, end_ns)])
                        break
                time.sleep(_LOOK_S)
        except Exception as error:  # noqa: BLE001  (as in `ask`)
            return [Energy("", note=f"{type(error).__name__}: {error}")]
        late = "its readings have not arrived"
        return [
            _integral(device, [signals[line] for line in own], begin_ns, end_ns)
            if device in come
            else Energy("", device=device, is_so_far=True, note=late)
            for device, own in feeds.items()
        ] or [Energy("", is_so_far=True, note=late)]

    def _feeds(self, devices: Sequence[str] | Mapping[str, Sequence[str]] | None) -> Mapping[str, Sequence[str]]:
        """By device the lines whose sum is its power."""
        if isinstance(devices, Mapping):
            return devices
        every = [device for description in self._contents.descriptions.values() for device in description.devices]
        return {d.name: d.feeds for d in every if d.feeds and (devices is None or d.name in devices)}

    def events(self, name: str) -> list[tuple[int, dict[str, Any]]]:
        """The events of a name so far, of the first rank: moment by the host's clock and values, oldest first. Raises
        nothing: what has not come, or cannot be read, is not there."""
        with self._mutex, contextlib.suppress(PowerdError):
            self._follow()
        every = [
            (t_ns, json.loads(values))
            for names in self._contents.names.values()
            for t_ns, of, values in names.events
            if of == name and not names.about.get("rank")
        ]
        return sorted(every, key=lambda event: event[0])

    def _run(self, folder: Path, number: int | None, name: str, last_s: float | None) -> tuple[Path, int | None]:
        """A run file of what is asked about, and the row of the phase that began with mark ``number``."""
        if not has_begun(self._journal):
            if number is not None:
                raise AnalysisError(f"the recording is closed: `joules tables {self._out}` has it")
            return self._out, None
        self._follow()
        since_ns = self._time_of(number) if number is not None else now_ns() - int(last_s * 1e9) if last_s else 0
        path = folder / "live.h5"
        part = self._since(since_ns - _MARGIN_NS)
        with h5py.File(path, "w") as file:
            for _ in write_run(file, part, self._follower.file):
                pass
        return path, None if number is None else self._row(path, part, number, name)

    def _follow(self) -> None:
        """Take what has come since: marks first, as the recorder deletes what it has copied into its journal."""
        names, marks = self._marks.read()
        frames = [event for event, _ in self._marks.read_frames()]
        self._follower.update()
        for event in (*(Message("phase-names", document) for document in names), *marks, *frames):
            self._contents.take(event)

    def _time_of(self, number: int) -> int:
        """When the mark was written, by the host's clock."""
        for first, records in self._contents.marks.get(self._token, {}).items():
            if first <= number < first + len(records) // RECORD.size:
                return int(RECORD.unpack_from(records, (number - first) * RECORD.size)[2])
        raise _NotYet("its marks have not come yet")

    def _since(self, since_ns: int) -> Contents:
        """What belongs to the time from then to the last readings that have arrived, both by the host's clock."""
        whole = self._contents
        offsets = {
            epoch: (last.t1_host_ns + last.t4_host_ns - last.t2_board_ns - last.t3_board_ns) // 2
            for epoch, exchanges in whole.exchanges.items()
            if (last := exchanges[-1])
        }
        periods = {(epoch, s.number): s.period_ns for epoch, d in whole.descriptions.items() for s in d.streams}
        streams: dict[tuple[int, int], StreamFrames] = {}
        reached: dict[tuple[int, int], int] = {}
        for key, frames in whole.streams.items():
            offset = offsets.get(key[0], 0)
            blocks = {n: b for n, b in frames.blocks.items() if b.t_last_ns + offset >= since_ns}
            gaps = {n: g for n, g in frames.gaps.items() if g.t_last_ns + offset >= since_ns}
            if blocks:
                streams[key] = StreamFrames(blocks, gaps, sum(b.size for b in blocks.values()))
                if periods.get(key, 0) < _FAST_PERIOD_NS:
                    reached[key] = max(b.t_last_ns for b in blocks.values()) + offset
        if not streams:
            raise _NotYet("its readings have not arrived yet")
        latest = max(reached.values(), default=now_ns())
        begin_ns = max(since_ns, whole.t_start_ns)
        end_ns = min((t for t in reached.values() if t > latest - _SILENT_NS), default=latest)
        if end_ns < begin_ns:  # those that are here are of the time before
            raise _NotYet("its readings have not arrived yet")
        return replace(
            whole,
            t_start_ns=begin_ns,
            t_stop_ns=end_ns,
            complete=True,
            stopped=True,
            streams=streams,
            exchanges={
                epoch: [e for e in every if e.t4_host_ns >= since_ns] or every[-_LEAST_EXCHANGES:]
                for epoch, every in whole.exchanges.items()
            },
            marks={token: _marks_since(pieces, since_ns) for token, pieces in whole.marks.items()},
            devices=replace(whole.devices, pieces={}, unresolved=0, moved=0),
            names={token: replace(names, events={}) for token, names in whole.names.items()},
            messages=[],
            unusable=[],
        )

    def _row(self, path: Path, part: Contents, number: int, name: str) -> int:
        """The row of the phase in the file that begins with a mark."""
        pieces = part.marks[self._token]
        first = max(n for n in pieces if n <= number)
        record = pieces[first][(number - first) * RECORD.size :][: RECORD.size]
        mark = next(iter(part.devices.marks(self._token, {number: record}, part.names[self._token].timings)))
        with open_run(path) as file:
            kinds = [i for i, kind in enumerate(read_objects(file["phases/kinds"])) if kind["name"] == name]
            process = part.processes.index(self._token)
            is_own = np.isin(file["phases/kind"][:], kinds) & (file["phases/process"][:] == process)
            rows = np.flatnonzero(is_own)
            return int(rows[np.argmin(np.abs(file["phases/begin_ns"][:][rows] - mark.t_host_ns))])


def _integral(device: str, signals: Sequence[Signal], begin_ns: int, end_ns: int) -> Energy:
    """The energy of a device by its lines. U95 is of gain, zero and what the readings vary by, at the edges too."""
    energy_j, squares, away_s, length_s = 0.0, 0.0, 0.0, (end_ns - begin_ns) * 1e-9
    is_short = False
    for signal in signals:
        if len(signal) < 2:
            return Energy("", note=f"{signal.line.name} has no readings", device=device)
        integral, accuracy = signal.integral(), signal.line.accuracy
        own_j, covered_s = (float(f(begin_ns, end_ns)) for f in (integral.between, integral.covered_s))
        missing_s = length_s - covered_s + float(signal.missing_ns().sum()) * 1e-9
        if missing_s > max(_MOST_AWAY * length_s, 2e-9 * signal.spacing_ns):
            away_s = max(away_s, missing_s)
        _, watts = signal.power()
        resolution_s = signal.resolution_ns * 1e-9
        is_short = is_short or length_s < _LEAST_LENGTH * resolution_s
        sampling_j = float(np.std(watts)) * length_s / np.sqrt(max(len(watts), 1))
        edges_j = float(np.std(watts)) * min(length_s, resolution_s)
        energy_j += own_j
        squares += (accuracy.u_gain * own_j) ** 2 + (accuracy.u_offset_w * length_s) ** 2 + sampling_j**2 + edges_j**2
    return Energy(
        "",
        energy_j,
        1.96 * float(np.sqrt(squares)),
        length_s,
        device=device,
        provenance=signals[0].line.provenance.value,
        is_lower_bound=away_s > 0,
        note="readings are missing" if away_s else INTERPOLATED if is_short else "",
        missing_s=away_s,
    )


def _marks_since(pieces: Mapping[int, bytes], since_ns: int) -> dict[int, bytes]:
    return {
        first: records for first, records in pieces.items() if RECORD.unpack_from(records, -RECORD.size)[2] >= since_ns
    }


def main() -> None:
    """Work out the result of the run whose path comes on standard input: its lines as JSON.

    A process of its own, for `powerd_client.record.recording`: what it imports and allocates is not the training's.
    """
    estimator = analytics()
    if not (path := sys.stdin.readline().rstrip("\n")):
        return
    try:
        if estimator is None:
            with open_run(path) as file:
                time_s = (int(file.attrs["t_stop_ns"]) - int(file.attrs["t_start_ns"])) * 1e-9
                head = f"{shown_path(Path(path))} is recorded: {time_s:.3g} s, {len(file['phases/kind'])} phases"
            lines = [head, f"  {_install()}"]
        else:
            lines = estimator.result_lines(Path(path))
    except PowerdError as error:
        lines = [f"{shown_path(Path(path))} is recorded, its joules are not known: {error}"]
    print(json.dumps(lines))


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CPU, (_MOST_CPU_S, _MOST_CPU_S))
    main()
