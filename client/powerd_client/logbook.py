"""The journal as a worker keeps it: what was received, the marks of the training, and notes for its reader."""

from __future__ import annotations

from powerd_client.backlog import Backlog
from powerd_client.hostclock import now_ns
from powerd_client.job import MAX_TEXT, Job, Voice
from powerd_client.resume import Past
from powerd_client.tails import FrameTail, MarkTail
from powerd_client.wallclock import WallAnchors, anchor_note, take_anchor
from powerd_core.errors import RunFileError
from powerd_core.text import printable
from powerd_core.wire import Event, Garbage, Message

_TAIL_NS = 100_000_000
_MAX_NOTED = 1000
"""Different texts in one run; a powerd that makes up ever new ones fills neither memory nor the journal with them."""


class Logbook:
    """Everything on its way into ``journal.bin``. The disk's failures are told to the user once, and at once."""

    def __init__(self, job: Job, voice: Voice, past: Past | None) -> None:
        """``past``: what an earlier worker has written. Raises `OSError`."""
        self._job = job
        self._voice = voice
        self._backlog = Backlog(job.journal, past.size if past else None)
        self._tail = MarkTail(job.journal, consume=True, copied=past.copied if past else None)
        self._frames = FrameTail(job.journal, consume=True)
        self._noted = set(past.notes) if past else set()
        self._tail_ns = 0
        self._wall = WallAnchors()

    @property
    def is_full(self) -> bool:
        """Whether as much waits for the disk as may."""
        return self._backlog.is_full

    @property
    def is_failing(self) -> bool:
        """Whether the disk takes nothing now."""
        return self._backlog.failure is not None

    def add(self, event: Event, frame: bytes | None = None) -> None:
        self._backlog.add(event, frame)

    def note(self, text: str) -> None:
        self.add(Message("note", {"t_ns": now_ns(), "level": "warning", "text": text}))

    def note_once(self, text: str) -> bool:
        """Whether it was news, to the worker before this one too."""
        is_new = text not in self._noted and len(self._noted) < _MAX_NOTED
        if is_new:
            self._noted.add(text)
            self.note(text)
        return is_new

    def warn(self, text: str) -> None:
        """As `note_once`, for what the user should know now."""
        text = printable(text, limit=MAX_TEXT)
        if self.note_once(text):
            self._voice.warn(text)

    def tail_marks(self, *, final: bool = False) -> None:
        """Copy what the training has marked, ten times a second; not while the disk fails: it is safe where it is."""
        now = now_ns()
        if (now < self._tail_ns and not final) or self.is_failing:
            return
        self._tail_ns = now + _TAIL_NS
        if (anchor := self._wall.note(now)) is not None:
            self.add(Message("note", anchor))
        names, marks = self._tail.read()
        for document in names:
            self.add(Message("phase-names", document))
        for piece in marks:
            self.add(piece)
        for event, frame in self._frames.read():
            if not isinstance(event, Garbage):
                self.add(event, frame)

    def flush(self) -> None:
        """Write what can be written."""
        was_failing = self.is_failing
        self._backlog.flush(now_ns())
        error = self._backlog.failure
        if error is not None and not was_failing:
            self.warn(f"the journal cannot be written ({error.strerror}): readings wait in memory and in powerd")
        elif error is None and was_failing:
            self.note("the journal can be written again")

    def end(self, stop: Message) -> None:
        """Write the end of the run, and gaps for what finds no room. Raises `RunFileError` when not even they do."""
        self.tail_marks(final=True)
        self.add(Message("note", anchor_note(take_anchor())))
        self.add(stop)
        self._backlog.flush(now_ns())
        error = self._backlog.failure
        if error is None:
            return
        try:
            lost = self._backlog.give_up(f"the journal could not be written: {error.strerror}")
        except OSError as again:
            raise RunFileError(
                f"the end of the run could not be written into {self._job.journal} ({again.strerror}): what was "
                f"recorded before is there; see to the disk, then: joules recover {self._job.out}"
            ) from error
        if lost:
            self._voice.warn(f"{lost} scans could not be kept ({error.strerror}): the run file says which")

    def close(self) -> None:
        """Let go of the file (not of the journal's lock)."""
        self._backlog.close()
