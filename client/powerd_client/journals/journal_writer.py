"""The journal as a worker keeps it: what was received, the marks of the training, and notes for its reader.

`Past` is what an earlier worker has written, so that the next one can go on where that one died.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from powerd_client.host.hostclock import anchor_note, now_ns, take_anchor
from powerd_client.host.ownership import delete, open_own
from powerd_client.journals.job import MAX_TEXT, log
from powerd_client.journals.journal import MarkTail, read_events, run_of, sync_path
from powerd_client.journals.link import LinkMemory
from powerd_core.errors import RunFileError, WireError
from powerd_core.marks import Marks
from powerd_core.model import UNKNOWN_TIME_NS, Block, ClockExchange, Description, Gap
from powerd_core.protocol import PastEpoch, StreamReceiver
from powerd_core.serde import read_description
from powerd_core.text import printable
from powerd_core.wire import CURRENT, Event, Garbage, Message, decode, encode

MAX_BYTES = 64 << 20
"""So much waits in memory; what is not fetched then stays in the daemon's ring."""
RESERVE_BYTES = 256 << 10
"""Disk space that is kept for the last words: gaps, notes, the end of the run."""
_RETRY_NS = 1_000_000_000
_SYNC_NS = 800_000_000
"""With the tenth of a second after which marks are copied, a power cut takes nothing that is older than a second."""
_REPEATED = {"run", "start", "description", "device-clock", "device-sampling"}
"""Messages without which the readings, or their times, would be nobody's. A reader takes the first of each."""
_REPEAT_FIRST_BYTES, _REPEAT_BYTES = 64 << 10, 4 << 20
"""They are said again so often: at first when the journal has doubled."""
_MAX_SPAN = 2**32 - 1
_TAIL_NS = 100_000_000
_ANCHOR_DENSE_NS, _ANCHOR_SPARSE_NS = 1_000_000_000, 10_000_000_000
_ANCHORS_DENSE = 60
"""Anchors of the wall clock are dense during the first minute, in which most profiles are taken."""
_MAX_NOTED = 1000
"""Different texts in one run; a powerd that makes up ever new ones fills neither memory nor the journal with them."""


@dataclass(slots=True)
class Past:
    """The contents of a journal, as far as a recorder must know them."""

    size: int = 0
    """Bytes up to the end of the last good frame."""
    has_run: bool = False
    has_start: bool = False
    t_start_ns: int = 0
    has_stop: bool = False
    notes: set[str] = field(default_factory=set)
    heads: dict[tuple[str, int], bytes] = field(default_factory=dict)
    """Frames that are said again now and then."""
    _places: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    """By epoch and stream: the next number, and the board time of the last reading."""
    _descriptions: dict[int, Description] = field(default_factory=dict)
    _states: dict[str, dict[int, str]] = field(default_factory=lambda: defaultdict(dict))
    """By address: what was last said of each epoch there, in the order in which they were first seen."""
    _live: dict[str, int] = field(default_factory=dict)

    def memory(self, url: str) -> LinkMemory | None:
        """What a link to ``url`` goes on from; None when it had not been described."""
        live, epochs = self._live.get(url), self._states.get(url, {})
        if live is None or live not in self._descriptions:
            return None
        described = [epoch for epoch in epochs if epoch in self._descriptions]
        receivers = {epoch: self._receivers(epoch, described[:i]) for i, epoch in enumerate(described)}
        earlier = {
            epoch: PastEpoch(self._descriptions[epoch], receivers[epoch])
            for epoch in described
            if epoch != live and epochs[epoch] != "settled"
        }
        return LinkMemory(self._descriptions[live], receivers[live], earlier, set(epochs))

    def _receivers(self, epoch: int, before: list[int]) -> dict[int, StreamReceiver]:
        """As the link began them: a board's second life is read from its oldest reading on."""
        description = self._descriptions[epoch]
        first = 0 if description.board in {self._descriptions[e].board for e in before} else CURRENT
        receivers = {}
        for stream in description.streams:
            number, t_last_ns = self._places.get((epoch, stream.number), (first, 0))
            receivers[stream.number] = StreamReceiver(stream, epoch, number, t_last_board_ns=t_last_ns)
        return receivers

    def take(self, event: Event) -> None:
        """The next event of the journal."""
        body: Mapping[str, Any] = event.body if isinstance(event, Message) else {}
        if isinstance(event, Message) and event.subject in _REPEATED:
            self.heads[event.subject, event.epoch] = encode(event)
        match event:
            case Block() | Gap():
                key = event.epoch, event.stream
                if event.following > self._places.get(key, (0, 0))[0]:
                    self._places[key] = event.following, event.t_last_ns
            case Message("run"):
                self.has_run = True
            case Message("start"):
                self.has_start = True
                self.t_start_ns = int(body["t_start_ns"])
            case Message("stop"):
                self.has_stop = True
            case Message("note"):
                self.notes.add(str(body.get("text")))
            case Message("description"):
                with contextlib.suppress(WireError):  # a damaged one is asked for again
                    self._descriptions[event.epoch] = read_description(body)
            case Message("epoch"):
                self._states[str(body["url"])][event.epoch] = body["state"]
                if body["state"] == "live":
                    self._live[str(body["url"])] = event.epoch


def read_past(journal: Path) -> Past:
    """Read a journal's file, if there is one. Raises `RunFileError`."""
    past, file = Past(), journal / "journal.bin"
    if not file.exists():
        return past
    for event, at, size in read_events(file):
        if not isinstance(event, Garbage):
            past.take(event)
            past.size = at + size
    return past


class JournalWriter:
    """Everything on its way into ``journal.bin``: frames wait here, oldest first, while the disk takes none.

    The disk's failures are told to the user once, and at once.
    """

    def __init__(self, journal: Path, past: Past | None = None) -> None:
        """``past``: what an earlier worker has written. Raises `OSError`."""
        self.failure: OSError | None = None
        """Why the journal cannot be written now."""
        self._journal = journal
        self._descriptor = open_own(journal / "journal.bin", os.O_WRONLY | os.O_APPEND)
        for directory in (journal, journal.parent):
            sync_path(directory)
        self._size = past.size if past else os.fstat(self._descriptor).st_size
        self._heads = dict(past.heads) if past else {}
        self._repeat_at = max(_REPEAT_FIRST_BYTES, self._size)
        self._sync = SyncThread(self._descriptor)
        # What lies behind the last good frame is the torn one of a worker that was killed.
        self._is_torn = past is not None
        self._frames: list[bytes] = []
        self._bytes = self._failed_ns = 0
        self._reserve = journal / "reserve"
        try:
            with os.fdopen(open_own(self._reserve, os.O_WRONLY), "wb") as file:
                os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)
        except OSError:
            delete(self._reserve)
        self._marks = MarkTail(journal, consume=True)
        self.first_process: int | None = None
        """Token of the first process that was heard of."""
        self.marking: set[int] = set()
        """The process ids of all."""
        self._noted = set(past.notes) if past else set()
        self._tail_ns = self._anchors = self._anchor_ns = self._sync_ns = 0

    @property
    def is_full(self) -> bool:
        """Whether as much waits for the disk as may."""
        return self._bytes > MAX_BYTES

    def add(self, event: Event, frame: bytes | None = None) -> None:
        """Another frame: that of ``event``, encoded here where it is not given."""
        frame = encode(event) if frame is None else frame
        if isinstance(event, Message) and event.subject in _REPEATED:
            self._heads.setdefault((event.subject, event.epoch), frame)
        self._frames.append(frame)
        self._bytes += len(frame)

    def note(self, text: str) -> None:
        """A warning in the run file."""
        self.add(Message("note", {"t_ns": now_ns(), "level": "warning", "text": text}))

    def note_once(self, text: str) -> bool:
        """Whether it was news, to the worker before this one too."""
        if text in self._noted or len(self._noted) >= _MAX_NOTED:
            return False
        self._noted.add(text)
        self.note(text)
        return True

    def warn(self, text: str) -> None:
        """As `note_once`, for what the user should know now."""
        text = printable(text, limit=MAX_TEXT)
        if self.note_once(text):
            log.warning(text)

    def tail_marks(self, *, final: bool = False) -> None:
        """Copy what the training has marked, ten times a second; not while the disk fails: it is safe where it is."""
        now = now_ns()
        if (now < self._tail_ns and not final) or self.failure:
            return
        self._tail_ns = now + _TAIL_NS
        if now >= self._anchor_ns:
            self._anchors += 1
            self._anchor_ns = now + (_ANCHOR_DENSE_NS if self._anchors <= _ANCHORS_DENSE else _ANCHOR_SPARSE_NS)
            self.add(Message("note", anchor_note(take_anchor())))
        if self._marks.has_spent:
            try:
                os.fdatasync(self._descriptor)
            except OSError:
                return  # what the training wrote stays where it is
        names, marks = self._marks.read()
        for document in names:
            self.add(Message("phase-names", document))
            if self.first_process is None and isinstance(token := document.get("process"), int):
                self.first_process = token
            if isinstance(pid := document.get("pid"), int):
                self.marking.add(pid)
        for piece in marks:
            self.add(piece)
        for event, frame in self._marks.read_frames():
            if not isinstance(event, Garbage):
                self.add(event, frame)

    def flush(self) -> None:
        """Write everything, or keep it and say why in ``failure``; then try again every second."""
        now, was_failing = now_ns(), self.failure is not None
        if now >= self._sync_ns:
            self._sync_ns = now + _SYNC_NS
            self._sync.ask()
        if not self._frames or (was_failing and now - self._failed_ns < _RETRY_NS):
            return
        if self._size >= self._repeat_at:
            often = max(_REPEAT_BYTES, 8 * sum(map(len, self._heads.values())))
            self._repeat_at = self._size + min(self._size, often)
            self._frames += self._heads.values()
        try:
            self._write(self._frames)
        except OSError as error:
            self.failure, self._failed_ns = error, now
            if not was_failing:
                self.warn(f"the journal cannot be written ({error.strerror}): readings wait in memory and in powerd")
            return
        if was_failing:
            self.note("the journal can be written again")
        if (failure := self._sync.failure) is not None:
            self.warn(f"the journal cannot be synced ({failure.strerror}): a power cut would take what was not written")

    def _write(self, frames: list[bytes]) -> None:
        """Write frames, and forget all that waited. Raises `OSError` with the file as it was; then call again."""
        data = memoryview(b"".join(frames))
        done = 0
        self._mend()
        try:
            while done < len(data):
                done += os.write(self._descriptor, data[done:])
        except OSError:
            self._is_torn = True
            with contextlib.suppress(OSError):  # of a file system that went read-only: tried again before more is added
                self._mend()
            raise
        self._size += len(data)
        self._frames, self._bytes, self.failure = [], 0, None

    def _mend(self) -> None:
        if self._is_torn:
            os.ftruncate(self._descriptor, self._size)
            self._is_torn = False

    def end(self, stop: Message) -> None:
        """Write the end of the run, and gaps for what finds no room. Raises `RunFileError` when not even they do."""
        self.tail_marks(final=True)
        self.add(Message("note", anchor_note(take_anchor())))
        self._frames += self._heads.values()
        self.add(stop)
        try:
            self._write(self._frames)
        except OSError as error:
            try:
                lost = self._write_last_words(f"the journal could not be written: {error.strerror}")
            except OSError as again:
                raise RunFileError(
                    f"the end of the run could not be written into {self._journal} ({again.strerror}): what was "
                    f"recorded before is there; see to the disk, then: joules journal recover {run_of(self._journal)}"
                ) from error
            if lost:
                log.warning(f"{lost} scans could not be kept ({error.strerror}): the run file says which")

    def _write_last_words(self, cause: str) -> int:
        """Write gaps for the readings that wait, and the rest as it is, into the space that was kept for this.

        Marks, names and events are left out: they are still in their own files. Returns the number of scans that are
        lost. Raises `OSError` when not even this can be written.
        """
        gaps: dict[tuple[int, int], Gap] = {}
        rest: list[bytes] = []
        exchanges: list[bytes] = []
        for frame in self._frames:
            event = decode(frame)
            if isinstance(event, Block | Gap):
                key = event.epoch, event.stream
                gaps[key] = _joined(gaps.get(key), event, cause)
            elif not _is_in_own_file(event):
                (exchanges if isinstance(event, ClockExchange) else rest).append(frame)
        every = 1 + 2 * sum(map(len, exchanges)) // RESERVE_BYTES
        delete(self._reserve)
        self._write([*rest, *exchanges[::every], *(encode(gap) for gap in gaps.values())])
        return sum(max(gap.lost, 0) for gap in gaps.values())

    def close(self) -> None:
        """Let go of the file (not of the journal's lock)."""
        self._sync.close()
        os.close(self._descriptor)


class SyncThread:
    """Syncs a file when it is told to, so that nobody else waits for the disk."""

    def __init__(self, descriptor: int) -> None:
        self.failure: OSError | None = None
        """Why the last one did not succeed."""
        # One of its own: another file may get the number while a sync hangs.
        self._descriptor = os.dup(descriptor)
        self._is_asked = threading.Event()
        self._is_closed = False
        threading.Thread(target=self._run, name="sync", daemon=True).start()

    def ask(self) -> None:
        """Sync soon."""
        self._is_asked.set()

    def close(self) -> None:
        """Sync once more, and no more. Nobody waits for that."""
        self._is_closed = True
        self._is_asked.set()

    def _run(self) -> None:
        while not self._is_closed:
            self._is_asked.wait()
            self._is_asked.clear()
            self.sync()
        os.close(self._descriptor)

    def sync(self) -> None:
        """Come back when what was written survives a power cut, or with a `failure`."""
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            self.failure = error
        else:
            self.failure = None


def _is_in_own_file(event: Event) -> bool:
    """Whether it is a copy of what a training process wrote into a file that is still there."""
    return isinstance(event, Marks) or (isinstance(event, Message) and event.subject == "phase-names")


def _joined(gap: Gap | None, event: Block | Gap, cause: str) -> Gap:
    """A gap that takes the numbers of ``event`` too."""
    span, lost = (event.span, event.lost) if isinstance(event, Gap) else (1, event.count)
    if gap is None:
        return Gap(event.stream, event.epoch, event.sequence, UNKNOWN_TIME_NS, event.t_last_ns, span, lost, cause)
    lost = -1 if -1 in {gap.lost, lost} else gap.lost + lost
    span = min(gap.span + span, _MAX_SPAN)
    return Gap(gap.stream, gap.epoch, gap.sequence, UNKNOWN_TIME_NS, event.t_last_ns, span, lost, cause)
