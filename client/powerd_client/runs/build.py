"""From a journal to a run file: one pass for what is small, one pass a stream for the readings.

`Contents` is what a journal holds, but for the readings, of which only the places are kept: memory stays bounded by the
number of frames. A journal is what was left by processes that died, on disks that failed: whatever does not make sense
becomes a message, and the rest is read. What is small is written first: a file that is cut off later still has it. What
is missing of the readings is counted in `powerd_client.runs.losses`.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np
from numpy.typing import NDArray

from powerd_client.host.hostclock import FARTHEST_NS, time_of
from powerd_client.host.ownership import foreign
from powerd_client.host.visible_gpus import each_once
from powerd_client.journals import journal as journals
from powerd_client.journals.device_timing import DeviceTimes
from powerd_client.runs.losses import LossAccount, StreamEpoch, StreamFrames, clock_name, in_order
from powerd_client.runs.runfile import (
    BOUND_COLUMNS,
    COUNT_COLUMNS,
    FORMAT,
    FORMAT_VERSION,
    Progress,
    clean,
    make_dataset,
    open_file,
    own_name,
    read_objects,
    reading,
    seal,
    whole_file,
    write_documents,
    write_numbers,
    write_strings,
)
from powerd_client.signals.board_times import NO_LIMIT, have_host_time, pieces_of, to_host_ns
from powerd_client.signals.pairing import (
    Kinds,
    PhaseSpans,
    ProcessNames,
    add_iterations,
    name_models,
    pair_marks,
    spread_counts,
    take_counts,
)
from powerd_client.signals.signal import (
    Readings,
    RunLine,
    Signal,
    arrays_of,
    columns_of,
    joined_readings,
    make_signal,
)
from powerd_core.clock_comparison import ClockPiece, map_clock
from powerd_core.errors import ClockError, RunFileError, WireError
from powerd_core.marks import Edges, Marks
from powerd_core.model import CLOCK_NAME, UNKNOWN_TIME_NS, Block, ClockExchange, Description, Flag, Gap, Stream
from powerd_core.serde import read_description, to_document
from powerd_core.wire import Event, FrameReader, Garbage, Message, decode

Int64 = NDArray[np.int64]
Arrays = dict[str, NDArray[Any]]

_BATCH_BYTES, _PIECE_BYTES = 8 << 20, 1 << 20
_EVENT_TEXT_BYTES = 16 << 20
_CODES = np.dtype([("code", "<i4"), ("thread", "<u4"), ("t_ns", "<i8")])
_LOST_RUN = {"run_id": "unknown", "created_utc": "", "powerd_version": "", "command": [], "environment": {}}
"""What a run is called whose journal lost its beginning."""


@dataclass(slots=True)
class Contents:
    """Everything in a journal but the readings, which stay in the file and are known by their place."""

    run: dict[str, Any] = field(default_factory=dict)
    t_start_ns: int = 0
    t_stop_ns: int = 0
    complete: bool = False
    stopped: bool = False
    reception: dict[str, Any] = field(default_factory=dict)
    descriptions: dict[int, Description] = field(default_factory=dict)
    """By epoch, in the order in which they were first seen."""
    exchanges: dict[int, list[ClockExchange]] = field(default_factory=dict)
    streams: dict[tuple[int, int], StreamFrames] = field(default_factory=dict)
    """By epoch and stream number."""
    names: dict[int, ProcessNames] = field(default_factory=dict)
    marks: dict[int, dict[int, bytes]] = field(default_factory=dict)
    """By process: raw records by the index of the first of them."""
    devices: DeviceTimes = field(default_factory=DeviceTimes)
    messages: list[dict[str, Any]] = field(default_factory=list)
    size: int = 0
    damaged: int = 0
    """Bytes of the journal, and how many of them could not be read."""
    unusable: list[str] = field(default_factory=list)
    """What of the journal is in no run file, but for readings and marks that nothing describes (`left_out`)."""

    @property
    def processes(self) -> list[int]:
        """The tokens of the training processes, in the order in which the run file lists them."""
        return sorted({*self.names, *self.marks})

    def note(self, level: str, text: str, t_ns: int = 0) -> None:
        """Add a message to the run; those without a time come first."""
        self.messages.append({"t_ns": t_ns, "level": level, "text": text})

    def refuse(self, text: str) -> None:
        """Something of the journal cannot be used."""
        self.note("error", text)
        self.unusable.append(text)

    def take(self, event: Event | Garbage, at: int = 0, size: int = 0) -> None:
        """The next event; ``at`` and ``size`` are the place of its frame in the journal."""
        match event:
            case Block() | Gap() | ClockExchange() if not _is_in_time(event):
                self.damaged += size
                self.refuse(f"a frame at {at} in the journal has times that cannot be")
            case Block() | Gap():
                frames = self.streams.setdefault((event.epoch, event.stream), StreamFrames())
                frames.add(event, at, size)
            case ClockExchange():
                self.exchanges.setdefault(event.epoch, []).append(event)
            case Marks():
                pieces = self.marks.setdefault(event.process, {})
                # Of two pieces that begin alike the longer one holds the other.
                if len(event.records) > len(pieces.get(event.first, b"")):
                    pieces[event.first] = event.records
            case Edges():
                self.devices.add_edges(event)
            case Garbage():
                self.damaged += event.count
                self.refuse(f"{event.count} bytes of the journal at {at} could not be read ({event.reason})")
            case Message():
                try:
                    self._take_message(event.subject, event.epoch, dict(event.body))
                except (KeyError, TypeError, ValueError, OverflowError) as error:
                    self.refuse(f"a {event.subject!r} message in the journal makes no sense: {error}")

    def _take_message(self, subject: str, epoch: int, body: dict[str, Any]) -> None:
        match subject:
            case "run":
                # A recorder that was started anew says it again; the first one knows when the run began.
                texts = {key: str(body[key]) for key in ("run_id", "created_utc", "powerd_version")}
                objects = {"command": list(body["command"]), "environment": dict(body["environment"])}
                self.run = self.run or texts | objects
            case "start":
                self.t_start_ns = self.t_start_ns or time_of(body["t_start_ns"])
            case "stop":
                self.t_stop_ns, self.complete = time_of(body["t_stop_ns"]), bool(body["complete"])
                self.reception = dict(body.get("reception", {}))
                self.stopped = True
            case "description":
                description = read_description(body)
                if description.epoch != epoch:
                    raise ValueError(f"epoch {description.epoch} in a frame of {epoch}")
                self.descriptions.setdefault(epoch, description)
            case "device-clock":
                self.devices.add_clock(epoch, body)
            case "device-sampling":
                self.devices.add_sampling(body)
            case "phase-names":
                self.names.setdefault(int(body["process"]), ProcessNames()).take(body)
            case "note":
                self.note(str(body["level"]), str(body["text"]), time_of(body["t_ns"]))


def read_contents(journal: Path, *, needs_run: bool = True) -> Contents:
    """What a journal directory holds, marks that the recorder had not copied included; or a packed journal.

    Without ``needs_run`` a journal that does not say which run it is is read too, with a message. Raises
    `RunFileError`.
    """
    contents = Contents()
    is_packed = not journal.is_dir()
    file = journal if is_packed else journal / "journal.bin"
    if not is_packed:
        _check_begun(journal)
    tail: tuple[Garbage, int] | None = None
    for event, at, size in journals.read_events(file):
        if tail is not None:
            contents.take(*tail)
        contents.size, tail = at + size, (event, at) if isinstance(event, Garbage) else None
        if tail is None:
            contents.take(event, at, size)
    if tail is not None:
        _take_tail(contents, *tail, is_packed=is_packed)
    if not is_packed:
        _take_leftovers(contents, journal)
    if not contents.run:
        if needs_run:
            raise RunFileError(
                f"{file} does not say which run it is: it is no journal, or its beginning is lost; "
                f"`joules journal recover {journal}` makes what it can of it"
            )
        contents.run = dict(_LOST_RUN)
        contents.note("error", "the beginning of the journal is lost: nobody knows which run this is")
    return contents


def _check_begun(journal: Path) -> None:
    try:
        if journals.has_begun(journal):
            return
    except OSError as error:
        raise RunFileError(f"{journal} cannot be read: {error.strerror}") from error
    reason = foreign(journal) or "no recording, or one that ended before it began and can be deleted"
    raise RunFileError(f"{journal} holds nothing of a run: {reason}")


def _take_tail(contents: Contents, garbage: Garbage, at: int, *, is_packed: bool) -> None:
    """The end of a journal that is no frame. A recorder that was killed leaves half of one, which nobody misses."""
    if garbage.reason != "cut off" or is_packed:
        contents.take(garbage, at)
        return
    contents.damaged += garbage.count
    contents.note("info", f"{garbage.count} bytes of the journal at {at} could not be read ({garbage.reason})")


def _take_leftovers(contents: Contents, journal: Path) -> None:
    events, problems = journals.read_leftovers(journal)
    for event in events:
        # A piece of frames whose writer was killed ends with half of one.
        if not isinstance(event, Garbage) or event.reason != "cut off":
            contents.take(event)
    for text in problems:
        contents.refuse(text)


class JournalFollower:
    """Takes in what a recorder appends to a journal while its run goes on. Each byte is decoded once."""

    def __init__(self, journal: Path) -> None:
        self.contents = Contents()
        self.journal, self.file = journal, journal / "journal.bin"
        self._reader = FrameReader()
        self._bytes_read = self._at = 0

    def update(self) -> None:
        """Take in what is new. Raises `RunFileError` when the journal cannot be read."""
        try:
            with self.file.open("rb") as file:
                file.seek(self._bytes_read)
                while data := file.read(_PIECE_BYTES):
                    self._bytes_read += len(data)
                    for event, frame in self._reader.feed(data):
                        size = event.count if isinstance(event, Garbage) else len(frame)
                        self.contents.take(event, self._at, size)
                        self._at += size
        except OSError as error:
            raise RunFileError(f"cannot read {self.file}: {error.strerror}") from error

    def reaches(self, lines: Collection[str], t_host_ns: int) -> bool:
        """Whether every one of the lines has been read after that moment, by the quickest of the latest exchanges.

        A scan takes up to a period, so that its last reading alone does not say so of all its lines.
        """
        reached: set[str] = set()
        for epoch, description in self.contents.descriptions.items():
            if not (exchanges := self.contents.exchanges.get(epoch)):
                continue
            ahead_ns = min(exchanges[-10:], key=lambda exchange: exchange.delay_ns).offset_ns
            for stream in description.streams:
                frames = self.contents.streams.get((epoch, stream.number), StreamFrames())
                # What came last, readings or the knowledge that they are lost, is the newest.
                latest = (next(reversed(frames.blocks.values()), None), next(reversed(frames.gaps.values()), None))
                if any(e and e.t_last_ns + ahead_ns >= t_host_ns + stream.period_ns for e in latest):
                    reached |= {line.name for line in stream.lines}
        return reached >= set(lines)

    def signals(self, names: Collection[str], sets: Sequence[tuple[int, int]]) -> list[dict[str, Signal]]:
        """For each pair of host times the good readings of lines between them, and the nearest block on either side."""
        lines: dict[str, RunLine] = {}
        parts: list[dict[str, list[Readings]]] = [{name: [] for name in names} for _ in sets]
        for epoch, description in self.contents.descriptions.items():
            pieces: tuple[ClockPiece, ...] = ()
            with contextlib.suppress(ClockError):
                pieces = map_clock(self.contents.exchanges.get(epoch, []))
            for stream in description.streams:
                wanted = {i: line.name for i, line in enumerate(stream.lines) if line.name in names}
                lines |= {name: RunLine.of(stream.lines[i], stream, description.board) for i, name in wanted.items()}
                frames = self.contents.streams.get((epoch, stream.number), StreamFrames())
                if not (wanted and pieces and frames.blocks):
                    continue
                for edges, part in zip(sets, parts, strict=True):
                    scans = self._scans(frames, pieces, stream, edges)
                    for i, name in wanted.items():
                        t_board = scans["t_ns"] + scans["dt_ns"][:, i]
                        known = have_host_time(t_board, pieces)  # not around a step
                        codes = {c: scans[c][known, i] for c in columns_of(lines[name])}
                        t_host, flags = to_host_ns(t_board, pieces)[known], scans["flags"][known, i]
                        part[name].append(Readings(t_host, flags, codes))
        return [{name: _signal(lines[name], part[name]) for name in names} for part in parts]

    def _scans(
        self, frames: StreamFrames, pieces: tuple[ClockPiece, ...], stream: Stream, edges: tuple[int, int]
    ) -> Arrays:
        """The arrays of a stream's blocks, times [n] and the others [n, lines]."""
        places = sorted(frames.blocks.items())
        first = to_host_ns(np.array([p.t_first_ns for _, p in places], np.int64), pieces)
        last = to_host_ns(np.array([p.t_last_ns for _, p in places], np.int64), pieces)
        low, high = int(np.sum(last < edges[0])), int(np.sum(first <= edges[1]))
        chosen = StreamFrames(dict(places[max(low - 1, 0) : high + 1]))
        with self.file.open("rb") as file:
            parts = list(batches(file, chosen, stream))
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _signal(line: RunLine, parts: Sequence[Readings]) -> Signal:
    """One line's readings out of those of several powerds, or of several lives of one."""
    none = np.zeros(0, np.int64)
    nothing = Readings(none, none.astype(np.uint16), dict.fromkeys(columns_of(line), none))
    return make_signal(line, joined_readings(parts or [nothing]))


def _is_in_time(event: Block | Gap | ClockExchange) -> bool:
    """Whether arithmetic can hold its times, and clocks that never go back can have shown them."""
    if isinstance(event, ClockExchange):
        times = [event.t1_host_ns, event.t2_board_ns, event.t3_board_ns, event.t4_host_ns]
        if times[3] < times[0] or times[2] < times[1]:
            return False
    else:
        times = [t for t in (event.t_first_ns, event.t_last_ns) if isinstance(event, Block) or t != UNKNOWN_TIME_NS]
    return all(abs(t) <= FARTHEST_NS for t in times)


def phases_of(contents: Contents) -> tuple[PhaseSpans, list[dict[str, Any]], list[dict[str, Any]]]:
    """The phases of all processes, the kinds that they are of, the processes. What does not fit becomes a message."""
    phases, kinds, processes = PhaseSpans(), Kinds(), list[dict[str, Any]]()
    for token in contents.processes:
        names = contents.names.get(token, ProcessNames())
        for (t_ns, text), level in names.notes.items():
            contents.note(level, text, t_ns)
        process = names.about
        if known := each_once([*contents.devices.devices_of(token), *names.devices]):
            process["devices"] = known
        if "rank" in process and not names.closed:
            text = f"rank {process['rank']} (process {process.get('pid')}) ended without closing its Meter"
            contents.note("warning", text, contents.t_stop_ns)
        processes.append(process)
        pair_marks(
            phases,
            contents.devices.marks(token, contents.marks.get(token, {}), names.timings),
            process=len(processes) - 1,
            kinds={number: kinds.number(entry) for number, entry in names.kinds.items()},
            names={number: entry["name"] for number, entry in names.kinds.items()},
            last_ns=contents.t_stop_ns if contents.complete else None,
            cuts=names.cuts,
        )
    if contents.devices.moved:
        text = (
            f"{contents.devices.moved:,} edges of phases have no device event: they have the host's time, moved by the "
            f"GPU's lag at edges with one (within {contents.devices.spread_ns / 1e3:,.0f} us)"
        )
        contents.note("info", text)
    if contents.devices.unresolved:
        text = f"{contents.devices.unresolved} edges of phases timed by a device have the host's time only"
        contents.note("warning", text)
    phases.sort()
    for t_ns, text in phases.problems:
        contents.note("warning", text, t_ns)
    take_counts(phases, kinds)
    add_iterations(phases, kinds)
    name_models(phases, kinds)
    spread_counts(phases, kinds)
    return phases, kinds.entries, processes


def build_run(
    journal: Path, out: Path, *, overwrite: bool = False, progress: Progress = lambda share: None
) -> list[str]:
    """Turn a journal directory into the run file ``out``, and pack the journal when all of it is in there.

    What is not is returned, in words; then the directory stays. The caller owns the journal's lock. Raises
    `RunFileError` (disk full, file in the way, damaged journal) with the journal left as it was.
    """
    contents = read_contents(journal)
    write_file(out, contents, journal, overwrite=overwrite, progress=progress)
    return keep_journal(journal, out, contents=contents, overwrite=overwrite, progress=progress)


def keep_journal(
    journal: Path,
    out: Path,
    *,
    contents: Contents | None = None,
    overwrite: bool = False,
    progress: Progress = lambda share: None,
) -> list[str]:
    """Pack a journal directory where all of it is in the run file, which stands. What is not is returned, in words."""
    if not journals.has_begun(journal):  # packed by a process that was killed then
        journals.remove(journal)
        return []
    missing = left_out(contents or read_contents(journal), out)
    if not missing:
        # Without room for it the directory stays, and nothing is lost.
        with contextlib.suppress(OSError):
            journals.pack(journal, overwrite=overwrite, progress=progress)
    return missing


def left_out(contents: Contents, run: Path) -> list[str]:
    """What of a journal's contents is not in a run file, in words; nothing where all of it is. Raises `RunFileError`.

    The journal's frames are counted against what the file itself holds.
    """
    with open_file(run) as file, reading(run):
        run_id, held = str(file.attrs.get("run_id")), _held(file)
        events_held = len(file["events/t_ns"]) if "events" in file else 0
    if run_id != clean(str(contents.run["run_id"])):
        return [f"the journal is of another run than {run}"]
    missing = list(contents.unusable)
    for (epoch, number), frames in contents.streams.items():
        blocks = len(frames.blocks) + len(frames.unfit)
        if lost := blocks - held.get((f"{epoch:016x}", number), 0):
            missing.append(f"{lost} of {blocks} blocks of stream {number} in epoch {epoch:016x} are left out")
    for token, pieces in contents.marks.items():
        names = contents.names.get(token, ProcessNames())
        codes = np.frombuffer(b"".join(pieces.values()), _CODES)["code"]
        kinds = np.where(codes < 0, ~codes, codes)
        known = np.array([*names.kinds, *names.cuts], np.int64)
        if count := int(np.count_nonzero(~np.isin(kinds, known))):
            missing.append(f"{count} marks of process {token:016x} are left out: the names of their phases are lost")
    if lost := sum(len(names.events) for names in contents.names.values()) - events_held:
        missing.append(f"{lost} events are left out")
    for edges in contents.devices.edges.values():
        clocks = {epoch for epoch, _ in edges.values()}
        missing += [
            f"times by the device clock {epoch:016x} are left out" for epoch in clocks - {*contents.devices.clocks}
        ]
    return missing


def _held(file: h5py.File) -> dict[tuple[str, int], int]:
    """How many blocks of each stream have their readings in a run file, by epoch (as text) and stream number."""
    held: dict[tuple[str, int], int] = {}
    for part in read_objects(file["parts"]) if "parts" in file else ():
        key = str(part["clock"])[-16:], int(part["number"])
        held[key] = held.get(key, 0) + (int(part["blocks"]) if part["in_file"] else 0)
    return held


def write_file(
    out: Path, contents: Contents, journal: Path, *, overwrite: bool, progress: Progress, kept: Path | None = None
) -> None:
    """Write everything that a journal holds into ``out``, whole or not at all. Raises `RunFileError`.

    ``kept`` is what the journal was unpacked from.
    """
    try:
        with whole_file(out, overwrite=overwrite) as (file, raw):
            for share in write_run(file, contents, journal / "journal.bin"):
                raw.check()
                progress(min(share, 1.0))
    except RunFileError:
        raise
    except (OSError, RuntimeError, WireError, ValueError, TypeError, OverflowError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise RunFileError(
            f"{out} could not be written ({reason}): nothing is lost, it is all in {kept or journal}"
        ) from error


def write_run(file: h5py.File, contents: Contents, journal_file: Path) -> Iterator[float]:
    """Write everything, and yield now and then how much of it is written."""
    clocks = _write_clocks(file, contents)
    streams = [in_order([_epoch(contents, key, clocks) for key in keys]) for keys in _streams(contents)]
    phases, kinds, processes = phases_of(contents)
    reached = [reach for epochs in streams for epoch in epochs if (reach := epoch.reach_ns)]
    last_ns = max([0, *(last for _, last in reached), *phases.end_ns])
    start_ns = contents.t_start_ns or min([last_ns, *phases.begin_ns])
    stop_ns = contents.t_stop_ns or max(last_ns, start_ns)
    end_cause = "powerd sent nothing more"
    if not contents.stopped:
        end_cause = "the recorder ended before the run did"
        contents.note("warning", f"{end_cause}: this file was built from its journal", last_ns)
    head = {
        **{key: json.dumps(v) if isinstance(v, list | dict) else clean(v) for key, v in contents.run.items()},
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "host_clock": CLOCK_NAME,
        "t_start_ns": start_ns,
        "t_stop_ns": stop_ns,
        "complete": int(contents.complete),
        "rebuilt": int(not contents.stopped),
        "reception": json.dumps(contents.reception),
    }
    file.attrs.update(head)
    _write_devices(file, list(contents.descriptions.values()))
    _write_phases(file, phases, kinds)
    write_documents(file, "processes", processes)
    _write_events(file, contents)
    file.flush()
    account = LossAccount(start_ns, stop_ns, end_cause)
    total, done = sum(f.size for f in contents.streams.values()) or 1, 0
    lines, most = file.create_group("lines"), Counter[str]()
    for epoch in (epoch for epochs in streams for epoch in epochs):
        for line in epoch.stream.lines:
            most[own_name(line.name)] += epoch.frames.scans
    for epochs in streams:
        account.add_stream(epochs)
        for size in _write_stream(lines, epochs, most, journal_file, contents, account):
            done += size
            yield done / total
    _note_undescribed(contents)
    _write_gaps(file, account.gaps)
    write_documents(file, "parts", account.parts)
    write_documents(file, "messages", sorted(contents.messages, key=lambda m: m["t_ns"]))
    seal(file)


def _streams(contents: Contents) -> list[list[tuple[int, int]]]:
    """Which streams of which epochs are one: those of a source that have lines in common, each epoch at most once."""
    streams: list[tuple[str, set[str], list[tuple[int, int]]]] = []
    for epoch, description in contents.descriptions.items():
        for stream in description.streams:
            names = {line.name for line in stream.lines}
            for source, known, keys in streams:
                if source == stream.source and known & names and epoch not in {e for e, _ in keys}:
                    known.update(names)
                    keys.append((epoch, stream.number))
                    break
            else:
                streams.append((stream.source, names, [(epoch, stream.number)]))
    return [keys for _, _, keys in streams]


def _epoch(contents: Contents, key: tuple[int, int], clocks: dict[int, tuple[ClockPiece, ...]]) -> StreamEpoch:
    epoch, number = key
    description = contents.descriptions[epoch]
    stream = next(s for s in description.streams if s.number == number)
    frames = contents.streams.get(key, StreamFrames())
    frames.keep_fitting(stream)
    return StreamEpoch(description, stream, frames, clocks.get(epoch, ()))


def _note_undescribed(contents: Contents) -> None:
    """Readings of epochs and streams that no description in the journal speaks of."""
    known = {(epoch, s.number) for epoch, d in contents.descriptions.items() for s in d.streams}
    for (epoch, number), frames in contents.streams.items():
        if (epoch, number) not in known and frames.blocks:
            contents.note(
                "error",
                f"{len(frames.blocks)} blocks ({frames.scans} scans) of stream {number} in epoch {epoch:016x} are left "
                "out: their description is lost",
            )


def _write_stream(
    lines: h5py.Group,
    epochs: Sequence[StreamEpoch],
    most: Mapping[str, int],
    journal_file: Path,
    contents: Contents,
    account: LossAccount,
) -> Iterator[int]:
    """Write all lines of one stream, epoch after epoch: of each at most so many readings. What has no known time goes
    into the account.

    Yields now and then how many bytes of the journal have been written since.
    """
    # Written once, when all epochs are there: each time such a list is written anew its old texts stay in the file.
    clocks: dict[str, list[tuple[str, int]]] = {}
    with journal_file.open("rb") as file:
        for epoch in epochs:
            groups = [_open_line(lines, epoch, index, most, contents) for index in range(len(epoch.names))]
            for group in groups:
                clocks.setdefault(group.name, []).append((epoch.clock, group["t_ns"].shape[0]))
            if not epoch.pieces:
                continue
            unknown = np.zeros(len(epoch.pieces), np.int64)
            for arrays in batches(file, epoch.frames, epoch.stream):
                unknown += _append_readings(groups, epoch.stream, arrays, epoch.pieces)
                yield sum(array.nbytes for array in arrays.values())
            account.add_steps(epoch, unknown.tolist())
    for name, of_line in clocks.items():
        own = lines[name].attrs
        own["clocks"] = [*own.get("clocks", []), *(clock for clock, _ in of_line)]
        own["clock_first"] = [*own.get("clock_first", []), *(first for _, first in of_line)]


def batches(file: BinaryIO, frames: StreamFrames, stream: Stream) -> Iterator[Arrays]:
    """The stream's arrays, a few megabytes at a time, in the order of sequence numbers."""
    batch: list[Block] = []
    size, numbers = 0, sorted(frames.blocks)
    for number in numbers:
        place = frames.blocks[number]
        file.seek(place.at)
        block = decode(file.read(place.size))
        assert isinstance(block, Block)
        batch.append(block)
        size += place.size
        if size >= _BATCH_BYTES or number == numbers[-1]:
            yield arrays_of(batch, stream)
            batch, size = [], 0


def _open_line(
    lines: h5py.Group, epoch: StreamEpoch, index: int, most: Mapping[str, int], contents: Contents
) -> h5py.Group:
    """The group of a line, made where it is not there yet, or cannot be shared."""
    description, stream, line = epoch.description, epoch.stream, epoch.stream.lines[index]
    conversion = json.dumps(to_document(line.conversion))
    name = own_name(line.name)
    if name in lines and (epoch.is_apart or lines[name].attrs["conversion"] != conversion):
        why = "is there twice at a time" if epoch.is_apart else "came back with other settings"
        name = f"{name}@{description.epoch:016x}"
        contents.note("warning", f"{line.name} {why}: readings of {description.board} are in {name}")
    if name in lines:
        group = lines[name]
    else:
        group = lines.create_group(name)
        group.attrs.update(
            {
                "device": own_name(line.device),
                "source": clean(stream.source),
                "board": clean(description.board),
                "provenance": line.provenance.value,
                "quantity": clean(line.quantity),
                "description": clean(line.description),
                "period_ns": stream.period_ns,
                "conversion": conversion,
                "accuracy": json.dumps(to_document(line.accuracy)),
                "detail": json.dumps(to_document(stream.detail)),
                "clock": epoch.clock,
            }
        )
        codes = ((c.name, c.typecode, "raw code") for c in stream.columns)
        for column, dtype, units in (("t_board_ns", "i8", "ns"), ("t_ns", "i8", "ns"), ("flags", "u2", "bits"), *codes):
            make_dataset(group, column, np.empty(0, dtype), units, most[own_name(line.name)])
    return group


def _append_readings(
    groups: Sequence[h5py.Group], stream: Stream, arrays: Arrays, pieces: Sequence[ClockPiece]
) -> Int64:
    """Append readings to the lines' datasets. Returns how many scans have no known time, by the piece before them."""
    t_board = arrays["t_ns"][:, np.newaxis] + arrays["dt_ns"]
    known = have_host_time(t_board.ravel(), pieces).reshape(t_board.shape)
    t_host = to_host_ns(t_board.ravel(), pieces).reshape(t_board.shape)
    # The codes stay; a reading at no known time is a value for nobody.
    flags = np.where(known, arrays["flags"], arrays["flags"] | np.uint16(Flag.MISSING))
    table = {"t_board_ns": t_board, "t_ns": t_host, "flags": flags}
    table |= {c.name: arrays[c.name] for c in stream.columns}
    for index, group in enumerate(groups):
        for name, column in table.items():
            dataset = group[name]
            start = dataset.shape[0]
            dataset.resize((start + len(column),))
            dataset[start:] = column[:, index]
    return np.bincount(pieces_of(arrays["t_ns"][~known.all(axis=1)], pieces), minlength=len(pieces))


def _write_clocks(file: h5py.File, contents: Contents) -> dict[int, tuple[ClockPiece, ...]]:
    group, mapped = file.create_group("clocks"), {}
    read = {epoch for epoch, _ in contents.streams}
    for epoch, description in contents.descriptions.items():
        exchanges = sorted(contents.exchanges.get(epoch, []), key=lambda e: e.t1_host_ns)
        if not exchanges and epoch not in read:
            continue  # a life of the board of which nothing but its description came
        try:
            pieces = mapped[epoch] = map_clock(exchanges)
        except ClockError as error:
            contents.note("error", f"readings of {description.board!r} have no place in time: {error}")
            continue
        for before in pieces[:-1]:
            t_ns = before.t_board_ns[-1] + round(before.offset_ns[-1])
            contents.note("warning", f"the clock of {description.board!r} stepped against the host's", t_ns)
        _write_clock(group, clock_name(description), description.board, epoch, exchanges, pieces)
    contents.devices.map_all(contents.exchanges)
    for epoch, pieces in contents.devices.pieces.items():
        device = contents.devices.clocks[epoch]
        name = f"{device['name']} {device['index']}".replace("/", "_")
        _write_clock(group, f"{name}-{epoch:016x}", name, epoch, contents.exchanges[epoch], pieces)
    return mapped


def _write_clock(
    group: h5py.Group,
    name: str,
    board: str,
    epoch: int,
    exchanges: Sequence[ClockExchange],
    pieces: Sequence[ClockPiece],
) -> None:
    """One board's clock in one epoch: its exchanges, and the mapping of them, which the analytics read."""
    clock = group.create_group(name)
    clock.attrs.update({"board": clean(board), "epoch": str(epoch), "drift_ppm": pieces[0].drift_ppm})
    rows = [[e.t1_host_ns, e.t2_board_ns, e.t3_board_ns, e.t4_host_ns] for e in exchanges]
    write_numbers(clock, "exchanges", np.array(rows, np.int64).reshape(-1, 4), "ns")
    bounds = [np.column_stack([p.offset_ns, p.low_ns, p.high_ns]) for p in pieces]
    write_numbers(clock, "map", np.concatenate(bounds), "ns")
    write_numbers(clock, "map_t_board_ns", np.concatenate([np.array(p.t_board_ns, np.int64) for p in pieces]), "ns")
    numbers = np.repeat(np.arange(len(pieces), dtype=np.int32), [len(p.t_board_ns) for p in pieces])
    write_numbers(clock, "map_piece", numbers, "1")
    write_numbers(clock, "piece_rates", np.array([p.rates for p in pieces], np.float64), "1")
    limits = [
        (NO_LIMIT.min if p.begin_ns is None else p.begin_ns, NO_LIMIT.max if p.end_ns is None else p.end_ns)
        for p in pieces
    ]
    write_numbers(clock, "piece_limits_ns", np.array(limits, np.int64), "ns")


def _write_phases(file: h5py.File, phases: PhaseSpans, kinds: Sequence[dict[str, Any]]) -> None:
    group = file.create_group("phases")
    types = {"kind": np.int32, "process": np.int32, "cut": np.uint8} | dict.fromkeys(COUNT_COLUMNS, np.int32)
    counts = [name for name in COUNT_COLUMNS if getattr(phases, name)]
    for name in ("begin_ns", "end_ns", "kind", "parent", "process", "cut", *BOUND_COLUMNS, *counts):
        column = np.array(getattr(phases, name), types.get(name, np.int64))
        write_numbers(group, name, column, "ns" if name.endswith("_ns") else "1")
    write_documents(group, "kinds", kinds)


def _write_events(file: h5py.File, contents: Contents) -> None:
    """What happened at a moment, as the training said it, in the order of the times."""
    events = sorted(
        (t_ns, process, name, values)
        for process, token in enumerate(contents.processes)
        for t_ns, name, values in contents.names.get(token, ProcessNames()).events
    )
    group = file.create_group("events")
    write_numbers(group, "t_ns", np.array([t_ns for t_ns, *_ in events], np.int64), "ns")
    write_numbers(group, "process", np.array([process for _, process, *_ in events], np.int32), "1")
    # Short ones may be as many as fit into their files: as two columns of fixed width a reader would refuse them.
    write_strings(group, "name", [name for *_, name, _ in events], _EVENT_TEXT_BYTES)
    write_strings(group, "values", [values for *_, values in events], _EVENT_TEXT_BYTES)


def _write_devices(file: h5py.File, descriptions: Sequence[Description]) -> None:
    """Every device once, as the board that named it first describes it, and which GPU it is where that is known."""
    group = file.create_group("devices")
    for device in (device for description in descriptions for device in description.devices):
        name = own_name(device.name)
        if name in group:
            continue
        attributes = group.create_group(name).attrs
        # Said in full: of an empty list nothing would tell that its elements are texts.
        attributes["feeds"] = np.array([own_name(feed) for feed in device.feeds], h5py.string_dtype())
        attributes["description"] = clean(device.description)
        for key, value in (("uuid", device.uuid), ("pci", device.pci)):
            if value:
                attributes[key] = clean(value)


def _write_gaps(file: h5py.File, gaps: Sequence[dict[str, Any]]) -> None:
    """What is missing, in the order of its beginnings."""
    group = file.create_group("gaps")
    ordered = sorted(gaps, key=lambda g: (g["begin_ns"], g["end_ns"]))
    for name in ("begin_ns", "end_ns", "lost", "numbers"):
        column = np.array([g[name] for g in ordered], np.int64)
        write_numbers(group, name, column, "ns" if name.endswith("_ns") else "1")
    for name in ("stream", "cause", "clock"):
        write_strings(group, name, [g[name] for g in ordered])
    write_documents(group, "lines", [g["lines"] for g in ordered])
