"""What a journal holds, read in one pass: everything but the readings, of which only the places are kept.

A journal is what was left by processes that died, on disks that failed, from boards that nobody vouches for. Whatever
does not make sense becomes a message; the rest is read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from powerd_client.devicetimes import DeviceTimes
from powerd_client.fileshape import FARTHEST_NS
from powerd_client.frames import StreamFrames
from powerd_client.journal import has_begun
from powerd_client.journalfile import check_version, read_events
from powerd_client.tails import FrameTail, MarkTail
from powerd_core.errors import RunFileError, WireError
from powerd_core.marks import Edges, Marks
from powerd_core.model import UNKNOWN_TIME_NS, Block, ClockExchange, Description, Gap
from powerd_core.serde import read_description
from powerd_core.wire import Event, Garbage, Message

_PROGRESS_EVENTS = 4096
_MOST_MESSAGES = 10_000
_LOST_RUN = {"run_id": "unknown", "created_utc": "", "powerd_version": "", "command": [], "environment": {}}


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
    names: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
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


def read_contents(
    journal: Path, *, needs_run: bool = True, progress: Callable[[float], None] = lambda share: None
) -> Contents:
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
    total = max(1, file.stat().st_size)
    for number, (event, at, size) in enumerate(read_events(file)):
        _take(contents, event, at, size)
        contents.size = at + size
        if number % _PROGRESS_EVENTS == 0:
            progress(contents.size / total)
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
    for document in names:
        _take(contents, Message("phase-names", document), 0, 0)
    for piece in marks:
        _take(contents, piece, 0, 0)
    for event, _ in frames:
        _take(contents, event, 0, 0)


def _take(contents: Contents, event: Event | Garbage, at: int, size: int) -> None:
    match event:
        case Block() | Gap() if not _is_in_time(event):
            contents.damaged += size
            contents.note("error", f"a frame at {at} in the journal has times that cannot be")
        case Block() | Gap():
            frames = contents.streams.setdefault((event.epoch, event.stream), StreamFrames())
            frames.add(event, at, size)
        case ClockExchange():
            if _is_in_time(event):
                contents.exchanges.setdefault(event.epoch, []).append(event)
            else:
                contents.damaged += size
                contents.note("error", f"a clock exchange at {at} in the journal has times that cannot be")
        case Marks():
            _take_records(contents.marks.setdefault(event.process, {}), event)
        case Edges():
            contents.devices.add_edges(event)
        case Garbage():
            contents.damaged += event.count
            cut_off = event.reason == "cut off"
            text = f"{event.count} bytes of the journal at {at} could not be read ({event.reason})"
            contents.note("info" if cut_off else "error", text)
        case Message():
            try:
                _take_message(contents, event)
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                contents.note("error", f"a {event.subject!r} message in the journal makes no sense: {error}")


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


def _take_records(found: dict[int, bytes], event: Marks) -> None:
    """Of two pieces that begin alike the longer one holds the other."""
    if len(event.records) > len(found.get(event.first, b"")):
        found[event.first] = event.records


def _take_message(contents: Contents, event: Message) -> None:
    body: dict[str, Any] = dict(event.body)
    match event.subject:
        case "run":
            # A recorder that was started anew says it again; the first one knows when the run began.
            run = {key: body[key] for key in _LOST_RUN}
            if not all(isinstance(run[key], type(usual)) for key, usual in _LOST_RUN.items()):
                raise ValueError("a value of the wrong type")
            contents.run = contents.run or run
        case "start":
            contents.t_start_ns = contents.t_start_ns or time_ns(body["t_start_ns"])
        case "stop":
            contents.t_stop_ns, contents.complete = time_ns(body["t_stop_ns"]), bool(body["complete"])
            reception = body.get("reception", {})
            contents.reception = reception if isinstance(reception, dict) else {}
            contents.stopped = True
        case "description":
            try:
                description = read_description(body)
            except WireError as error:
                contents.note("error", f"a description in the journal is damaged: {error}")
                return
            if description.epoch == event.epoch:
                contents.descriptions.setdefault(event.epoch, description)
            else:
                text = f"a description of epoch {description.epoch} in the journal has a frame of {event.epoch}"
                contents.note("error", text)
        case "device-clock":
            contents.devices.add_clock(event.epoch, body)
        case "phase-names":
            contents.names.setdefault(int(body["process"]), []).append(_named(body))
        case "note":
            note = {"t_ns": time_ns(body["t_ns"]), "level": str(body["level"]), "text": str(body["text"])}
            contents.messages.append(note)


def _named(body: dict[str, Any]) -> dict[str, Any]:
    """The description of a process or of a kind of phase, a mark that cuts one, or a note, if it is one."""
    expected: dict[str, type] = {}
    if "note" in body:
        time_ns(body["t_ns"])
        expected = {"note": str, "level": str}
    elif "closed" in body:
        time_ns(body["closed"])
    elif "devices" in body:
        expected = {"devices": list}
    elif "cuts" in body:
        expected = {"kind": int, "cuts": int}
    elif "kind" in body:
        expected = {"kind": int, "name": str, "attributes": dict, "timing": str}
    if not all(isinstance(body[key], kind) for key, kind in expected.items()):
        raise ValueError(f"one of {', '.join(expected)} of the wrong type")
    return body


def time_ns(value: Any) -> int:
    """A time in a document. Raises `ValueError` for what cannot be one."""
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > FARTHEST_NS:
        raise ValueError(f"{str(value)[:40]!r} is no time")
    return value
