"""What a journal holds, read in one pass: everything but the readings, of which only the places are kept.

`StreamFrames` says where the readings of one stream in one epoch are, and what is missing between them. `Contents` is
the rest; `phases_of` makes phases of its marks. A journal is what was left by processes that died, on disks that
failed, from boards that nobody vouches for: whatever does not make sense becomes a message; the rest is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from powerd_client.device_timing import DeviceTimes
from powerd_client.gpus import each_once
from powerd_client.hostclock import FARTHEST_NS
from powerd_client.journal import FrameTail, MarkTail, check_version, has_begun, read_events
from powerd_client.pairing import PhaseSpans, kind_key, pair_marks
from powerd_core.errors import RunFileError
from powerd_core.marks import Edges, Marks
from powerd_core.model import UNKNOWN_TIME_NS, Block, ClockExchange, Description, Gap, Stream
from powerd_core.serde import read_description
from powerd_core.wire import Event, Garbage, Message

NO_CAUSE = "whoever declared the gap gave no cause"
_MOST_MESSAGES = 10_000
_LOST_RUN = {"run_id": "unknown", "created_utc": "", "powerd_version": "", "command": [], "environment": {}}
_ABOUT = ("pid", "command", "rank", "local_rank", "world_size")
"""What the run file says of a process, beside its devices."""


class BlockPlace(NamedTuple):
    """Where a block is in the journal, and what its header says."""

    at: int
    size: int
    t_first_ns: int
    t_last_ns: int
    scans: int
    layout: int


class Hole(NamedTuple):
    """Numbers of a stream that are missing, between two board times (`UNKNOWN_TIME_NS` where there is none)."""

    t_first_ns: int
    t_last_ns: int
    lost: int
    """Scans, -1 when nobody knows."""
    cause: str
    numbers: int
    """Sequence numbers, each of which would have been a block or was given to a gap."""


@dataclass(slots=True)
class StreamFrames:
    """The frames of one stream in one epoch: places of blocks, and gaps, by sequence number."""

    blocks: dict[int, BlockPlace] = field(default_factory=dict)
    gaps: dict[int, Gap] = field(default_factory=dict)
    size: int = 0
    unfit: set[int] = field(default_factory=set)
    """Numbers of blocks that are not what the stream's description says; they count as missing."""

    def add(self, event: Block | Gap, at: int, size: int) -> None:
        """Note a frame. Of two with one number the first block stays, and the wider gap."""
        number = event.sequence
        if isinstance(event, Gap):
            if number not in self.gaps or event.span > self.gaps[number].span:
                self.gaps[number] = event
        elif number not in self.blocks:
            self.blocks[number] = BlockPlace(at, size, event.t_first_ns, event.t_last_ns, event.count, event.layout)
            self.size += size

    def keep_fitting(self, stream: Stream, frame_bytes: int) -> None:
        """Leave out blocks of another layout or length than ``stream`` has; a frame is ``frame_bytes`` and payload."""
        for number, place in list(self.blocks.items()):
            fits = place.scans and place.size == frame_bytes + place.scans * stream.scan_bytes
            if not fits or place.layout != stream.layout:
                self.unfit.add(number)
                del self.blocks[number]

    @property
    def numbers(self) -> tuple[int, int]:
        """The first number seen and the one behind the last; (0, 0) for none."""
        known = [*self.blocks, *self.unfit]
        begins = [*known, *self.gaps]
        ends = [*(n + 1 for n in known), *(g.sequence + g.span for g in self.gaps.values())]
        return (min(begins), max(ends)) if begins else (0, 0)

    def holes(self) -> Iterator[Hole]:
        """Everything that is missing between the first number and the last, in order.

        A gap counts for what no block has delivered since.
        """
        reached, end = self.numbers
        gaps = sorted(self.gaps.values(), key=lambda g: g.sequence)
        t_last = UNKNOWN_TIME_NS
        for number in [*sorted(self.blocks), end]:
            place = self.blocks.get(number)
            t_next = place.t_first_ns if place else UNKNOWN_TIME_NS
            for gap, first, count in self._missing(gaps, reached, number):
                yield self._hole(gap, first, count, t_last, t_next)
            if place:
                reached, t_last = number + 1, place.t_last_ns

    def _missing(self, gaps: list[Gap], reached: int, end: int) -> Iterator[tuple[Gap | None, int, int]]:
        """The numbers from ``reached`` to ``end`` by the gap that declares them; gaps that are behind are dropped."""
        while reached < end:
            while gaps and gaps[0].sequence + gaps[0].span <= reached:
                del gaps[0]
            if gaps and gaps[0].sequence <= reached:
                stop = min(end, gaps[0].sequence + gaps[0].span)
                yield gaps[0], reached, stop - reached
            else:
                stop = min(end, gaps[0].sequence) if gaps else end
                yield None, reached, stop - reached
            reached = stop

    def _hole(self, gap: Gap | None, first: int, count: int, t_last: int, t_next: int) -> Hole:
        if gap is None:
            unfit = first in self.unfit
            cause = f"{count} blocks {'did not fit their stream' if unfit else 'were not received'}"
            return Hole(_known(t_last, t_next), _known(t_next, t_last), -1, cause, count)
        t_begin = _known(max(gap.t_first_ns, t_last), t_last, t_next, gap.t_last_ns)
        t_end = max(t_begin, _known(t_next, gap.t_last_ns))
        return Hole(t_begin, t_end, gap.lost if count == gap.span else -1, gap.cause or NO_CAUSE, count)


def _known(*times_ns: int) -> int:
    return next((t for t in times_ns if t != UNKNOWN_TIME_NS), UNKNOWN_TIME_NS)


@dataclass(slots=True)
class _Names:
    """The documents of one process, by what they are for."""

    about: dict[str, Any] = field(default_factory=dict)
    devices: list[dict[str, Any]] = field(default_factory=list)
    kinds: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By the process's own number: name, attributes and timing."""
    cuts: dict[int, int] = field(default_factory=dict)
    """Numbers that stand for no phase, and the kind that such a mark cuts."""
    notes: dict[tuple[int, str], str] = field(default_factory=dict)
    """By what tells them apart: the journal and the names' file may both hold one."""
    closed: bool = False

    def take(self, document: dict[str, Any]) -> None:
        """Raises KeyError, TypeError or ValueError for what is none."""
        if "note" in document:
            self.notes[_time_ns(document["t_ns"]), str(document["note"])] = str(document["level"])
        elif "closed" in document:
            self.closed = True
        elif "devices" in document:
            self.devices += [d for d in document["devices"] if isinstance(d, dict)]
        elif "cuts" in document:
            self.cuts[int(document["kind"])] = int(document["cuts"])
        elif "kind" in document:
            self.kinds[int(document["kind"])] = {
                "name": str(document["name"]),
                "attributes": dict(document["attributes"]),
                "timing": str(document["timing"]),
            }
        elif not self.about:
            self.about = {key: document[key] for key in _ABOUT if key in document}

    @property
    def timings(self) -> dict[int, str]:
        """By number of a kind, or of what cuts one."""
        own = {number: entry["timing"] for number, entry in self.kinds.items()}
        return own | {number: own.get(cut, "") for number, cut in self.cuts.items()}


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
    names: dict[int, _Names] = field(default_factory=dict)
    marks: dict[int, dict[int, bytes]] = field(default_factory=dict)
    """By process: raw records by the index of the first of them."""
    devices: DeviceTimes = field(default_factory=DeviceTimes)
    messages: list[dict[str, Any]] = field(default_factory=list)
    size: int = 0
    damaged: int = 0
    """Bytes of the journal, and how many of them could not be read."""

    def note(self, level: str, text: str, t_ns: int = 0) -> None:
        """Add a message to the run; those without a time come first."""
        if len(self.messages) == _MOST_MESSAGES:
            text = "there is more to tell than anybody reads: what follows is left out"
        if len(self.messages) <= _MOST_MESSAGES:
            self.messages.append({"t_ns": t_ns, "level": level, "text": text})

    def take(self, event: Event | Garbage, at: int = 0, size: int = 0) -> None:
        """The next event; ``at`` and ``size`` are the place of its frame in the journal."""
        match event:
            case Block() | Gap() | ClockExchange() if not _is_in_time(event):
                self.damaged += size
                self.note("error", f"a frame at {at} in the journal has times that cannot be")
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
                cut_off = event.reason == "cut off"
                text = f"{event.count} bytes of the journal at {at} could not be read ({event.reason})"
                self.note("info" if cut_off else "error", text)
            case Message():
                try:
                    self._take_message(event)
                except (KeyError, TypeError, ValueError, OverflowError) as error:
                    self.note("error", f"a {event.subject!r} message in the journal makes no sense: {error}")

    def _take_message(self, event: Message) -> None:
        body: dict[str, Any] = dict(event.body)
        match event.subject:
            case "run":
                # A recorder that was started anew says it again; the first one knows when the run began.
                run = {key: body[key] for key in _LOST_RUN}
                if not all(isinstance(run[key], type(usual)) for key, usual in _LOST_RUN.items()):
                    raise ValueError("a value of the wrong type")
                self.run = self.run or run
            case "start":
                self.t_start_ns = self.t_start_ns or _time_ns(body["t_start_ns"])
            case "stop":
                self.t_stop_ns, self.complete = _time_ns(body["t_stop_ns"]), bool(body["complete"])
                reception = body.get("reception", {})
                self.reception = reception if isinstance(reception, dict) else {}
                self.stopped = True
            case "description":
                description = read_description(body)
                if description.epoch != event.epoch:
                    raise ValueError(f"epoch {description.epoch} in a frame of {event.epoch}")
                self.descriptions.setdefault(event.epoch, description)
            case "device-clock":
                self.devices.add_clock(event.epoch, body)
            case "phase-names":
                self.names.setdefault(int(body["process"]), _Names()).take(body)
            case "note":
                note = {"t_ns": _time_ns(body["t_ns"]), "level": str(body["level"]), "text": str(body["text"])}
                self.messages.append(note)


def read_contents(journal: Path, *, needs_run: bool = True) -> Contents:
    """What a journal directory holds, marks that the recorder had not copied included.

    Without ``needs_run`` a journal that does not say which run it is is read too, with a message. Raises
    `RunFileError`.
    """
    contents = Contents()
    file = journal / "journal.bin"
    if not has_begun(journal):
        raise RunFileError(
            f"{journal} holds nothing of a run: no recording, or one that ended before it began and can be deleted"
        )
    check_version(file)
    for event, at, size in read_events(file):
        contents.take(event, at, size)
        contents.size = at + size
    _take_marks(contents, journal)
    if not contents.run:
        if needs_run:
            raise RunFileError(
                f"{file} does not say which run it is: it is no journal, or its beginning is lost; "
                f"`joules recover {journal}` makes what it can of it"
            )
        contents.run = dict(_LOST_RUN)
        contents.note("error", "the beginning of the journal is lost: nobody knows which run this is")
    return contents


def _take_marks(contents: Contents, journal: Path) -> None:
    try:
        names, marks = MarkTail(journal, consume=False).read(final=True)
        frames = FrameTail(journal, consume=False).read()
    except OSError as error:
        raise RunFileError(f"cannot read the marks in {journal}: {error.strerror}") from error
    except (TypeError, ValueError) as error:
        contents.note("error", f"the files of marks beside the journal cannot be used: {error}")
        return
    for event in (*(Message("phase-names", document) for document in names), *marks, *(event for event, _ in frames)):
        contents.take(event)


def _is_in_time(event: Block | Gap | ClockExchange) -> bool:
    """Whether arithmetic can hold its times, and clocks that never go back can have shown them."""
    if isinstance(event, ClockExchange):
        if event.t4_host_ns < event.t1_host_ns or event.t3_board_ns < event.t2_board_ns:
            return False
        times = [event.t1_host_ns, event.t2_board_ns, event.t3_board_ns, event.t4_host_ns]
    else:
        times = [event.t_last_ns, event.t_first_ns]
        if isinstance(event, Gap):
            times = [t for t in times if t != UNKNOWN_TIME_NS]
    return all(abs(t) <= FARTHEST_NS for t in times)


def _time_ns(value: Any) -> int:
    """A time in a document. Raises `ValueError` for what cannot be one."""
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > FARTHEST_NS:
        raise ValueError(f"{str(value)[:40]!r} is no time")
    return value


def phases_of(contents: Contents) -> tuple[PhaseSpans, list[dict[str, Any]], list[dict[str, Any]]]:
    """The phases of all processes, the kinds that they are of, the processes. What does not fit becomes a message."""
    phases, kinds, processes = PhaseSpans(), dict[str, tuple[int, dict[str, Any]]](), []
    for token in sorted({*contents.names, *contents.marks}):
        names = contents.names.get(token, _Names())
        for (t_ns, text), level in names.notes.items():
            contents.note(level, text, t_ns)
        process = names.about
        if known := each_once([*contents.devices.devices_of(token), *names.devices]):
            process["devices"] = known
        if "rank" in process and not names.closed:
            text = f"rank {process['rank']} (process {process.get('pid')}) ended without closing its Meter"
            contents.note("warning", text, contents.t_stop_ns)
        processes.append(process)
        numbers = {
            number: kinds.setdefault(kind_key(entry), (len(kinds), entry))[0] for number, entry in names.kinds.items()
        }
        pair_marks(
            phases,
            contents.devices.marks(token, contents.marks.get(token, {}), names.timings),
            process=len(processes) - 1,
            kinds=numbers,
            names={number: entry["name"] for number, entry in names.kinds.items()},
            last_ns=contents.t_stop_ns if contents.complete else None,
            cuts=names.cuts,
        )
    if contents.devices.unresolved:
        text = f"{contents.devices.unresolved} edges of phases timed by a device have the host's time only"
        contents.note("warning", text)
    phases.sort()
    for t_ns, text in phases.problems:
        contents.note("warning", text, t_ns)
    return phases, [entry for _, entry in kinds.values()], processes
