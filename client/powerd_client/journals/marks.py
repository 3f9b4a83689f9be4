"""Phase marks as the training process writes them: 16 bytes each into memory-mapped segment files, and nothing else.

A record that is in the mapping survives SIGKILL without flush or thread. The recorder tails the segments, copies them
into its journal and deletes those that are full. The layout of a record stands in `powerd_core.marks`. Beside the
segments, a file of names says in lines of JSON what the numbers in the records mean, and holds notes and events.

Why each race is safe:

- Two threads mark at the same time: `Segment.take` is one call in C and gives each its own index.
- A thread has taken an index and has not written yet: its record has time 0, and the recorder stops in front of it.
  Only the last read of all steps over it.
- Several threads find a segment full: under the lock, the first makes the next segment and the others find it made.
- A signal's handler marks while the thread that it interrupts does that: the lock lets the same thread in again, and
  whoever comes second finds the other's segment.
- The process is forked (a data loader's worker): the child shares the mappings, so all its writers are disabled.
"""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import secrets
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from threading import get_ident
from types import MappingProxyType

from powerd_client.host.hostclock import now_ns
from powerd_client.host.log import tell
from powerd_client.host.ownership import delete, move, open_own
from powerd_client.journals.attributes import with_figures
from powerd_core.marks import RECORD, SEGMENT_RECORDS, sealed_line, sealing_token
from powerd_core.serde import MAX_DEPTH, MAX_NAME, check_json

MANY_KINDS = 1000
"""So many values of one attribute are a counter, and no setting by which anybody compares phases."""
_MANY_VALUES = ("layer", "samples_in_pass", "tokens")
"""The attributes by which `Meter.watch` tells the layers of a model apart, and those of which a column is made."""
MOST_EVENT_BYTES = 64 << 10
"""An event's name and values, as JSON, take no more."""
MOST_EVENTS_BYTES = 32 << 20
"""All events of one process take no more: the file of names, which has room for twice as much, must not get too large
to be read, since the names of the phases are in it too."""
_MOST_LEVELS = MAX_DEPTH - 2
"""Of values within each other: in the journal a message with a body lies around them."""
_MOST_REFUSALS = 5
"""So often events that cannot be kept are spoken of."""
_SIZE = RECORD.size
_pack_into = RECORD.pack_into


class Segment:
    """One mapped file. ``take()`` gives each caller the next free index, atomically among threads."""

    __slots__ = ("first", "memory", "take")

    def __init__(self, path: Path, records: int, first: int = 0) -> None:
        self.first = first
        partial = path.with_suffix(".new")
        descriptor = open_own(partial, os.O_RDWR | os.O_EXCL)
        try:
            # Blocks are reserved now: a full disk is an error here, not a SIGBUS in the middle of a training step.
            os.posix_fallocate(descriptor, 0, records * _SIZE)
            self.memory = mmap.mmap(descriptor, records * _SIZE, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
            move(partial, path, overwrite=True)  # a name that nobody else has: one step, also for a power cut
        except OSError:
            delete(partial)
            raise
        finally:
            os.close(descriptor)
        self.take: Callable[[], int] = count().__next__


class MarkWriter:
    """Writes one process's marks under ``directory``. Never raises once it is made.

    What goes wrong is kept in ``failure`` (first cause only); marks are dropped from then on and counted in
    ``dropped``. They do not begin again when the disk has room: a phase whose end was dropped would swallow those
    behind it.
    """

    def __init__(
        self,
        directory: Path,
        *,
        segment_records: int = SEGMENT_RECORDS,
        about: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        """``about`` is what else the run should say of this process, such as its rank. Raises `OSError`."""
        self.token = sealing_token(secrets.randbits(47))
        self.failure: str | None = None
        self.told = False
        """Whether the user has been told of the failure."""
        self.dropped = 0
        self._is_closed = self._was_late = False
        self._pid, self._is_rank = os.getpid(), "rank" in about
        self._records = segment_records
        self._base = directory / f"marks-{self.token:016x}"
        self._lock = threading.RLock()
        self._number = 0
        self._kinds: dict[tuple[str, str], int] = {}
        self._segment: Segment | None = Segment(self._path(0), segment_records)
        self._names = open_own(Path(f"{self._base}.names"), os.O_WRONLY | os.O_EXCL | os.O_APPEND)
        self._is_torn = False
        self._events_bytes = 0
        self._refusals: set[str] = set()
        self._faults: set[str] = set()
        """Attributes that were to be figures and are none, as was said."""
        self._describe({"process": self.token, "pid": self._pid, "command": sys.argv, **about})
        _writers.add(self)

    def _path(self, number: int) -> Path:
        return self._base.with_name(f"{self._base.name}-{number:06d}.bin")

    def _describe(self, document: Mapping[str, object]) -> None:
        self._write_line(json.dumps(document).encode())

    def _write_line(self, line: bytes) -> None:
        # Behind half a line, of a disk that was full, a whole one begins anew: else its kind's name would be lost.
        line = b"\n" * self._is_torn + sealed_line(line) + b"\n"
        self._is_torn = os.write(self._names, line) < len(line)
        if self._is_torn:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _remark(self, document: Mapping[str, object]) -> None:
        """Describe what no mark needs, unless this is closed, or the copy of a forked child."""
        if self._segment is not None:
            with contextlib.suppress(OSError):
                self._describe(document)

    @property
    def is_open(self) -> bool:
        """Whether marks are written at all: not after `close` or a failure, and not in a forked child."""
        return self._segment is not None

    def kind(self, name: str, attributes: Mapping[str, object], timing: str) -> int:
        """The number of a phase kind; it is written down before any mark can use it.

        A name or attribute that is nothing JSON knows becomes text, a number of numpy or torch a plain one. A figure
        that is no number is not known; this is said at the first such phase.
        """
        name = str(name)
        plain, faults = with_figures(name, {key: _plain(value) for key, value in attributes.items()})
        for attribute in faults.keys() - self._faults:
            self._faults.add(attribute)
            self._tell_fault(faults[attribute])
        key = name, json.dumps([plain, timing], sort_keys=True)
        return self._numbered(key, {"name": name, "attributes": plain, "timing": timing})

    def has_kind(self, name: str) -> bool:
        """Whether phases of this name have been asked for."""
        return any(known == name for known, _ in list(self._kinds))

    def _tell_fault(self, text: str) -> None:
        if self.is_open:
            tell(text)
            self.note(text)

    def crowded(self) -> list[str]:
        """What the user should know of attributes with very many values."""
        numbered = [(name, text) for name, text in list(self._kinds) if name]  # without a name: what cuts a kind
        many = {name for name, count in Counter(name for name, _ in numbered).items() if count >= MANY_KINDS}
        return crowded((name, json.loads(text)[0]) for name, text in numbered if name in many)

    def cut(self, kind: int) -> int:
        """The code that ends the innermost open phase of a kind as one that was cut off, and does nothing where none is
        open."""
        return self._numbered(("", str(kind)), {"cuts": kind})

    def _numbered(self, key: tuple[str, str], document: dict[str, object]) -> int:
        with self._lock:
            number = self._kinds.get(key)
            if number is None:
                number = self._kinds[key] = len(self._kinds)
                try:
                    if self._segment is not None:  # else closed, or forked: nothing will use it
                        self._describe({"kind": number, **document})
                except OSError as error:
                    self._fail(error)
            return number

    def note(self, text: str, level: str = "warning") -> None:
        """Put a message into the run. It needs no recorder that hears it now."""
        self._remark({"note": text, "level": level, "t_ns": now_ns()})

    def note_of_child(self, text: str, t_ns: int) -> None:
        """Put a message into the run of the parent, from a forked child: a line that is appended whole."""
        with contextlib.suppress(OSError):
            if not self._is_closed:
                note = json.dumps({"note": text, "level": "warning", "t_ns": t_ns}).encode()
                os.write(self._names, sealed_line(note) + b"\n")

    def event(self, name: str, values: Mapping[str, object], t_ns: int | None = None) -> None:
        """Put an event into the run: what happened at ``t_ns``, by default now, with any values that JSON knows (others
        become text).

        It may be called until `close`, also where marks are dropped. What cannot be written is left out, and said once.
        """
        t_ns = now_ns() if t_ns is None else t_ns
        try:
            line = _event_line(str(name), t_ns, values)
            with self._lock:
                self._add_event(line)
        except Exception as error:  # noqa: BLE001  (whatever a value does when it is asked: a step must not fail)
            self._refuse(f"the event {str(name)[:40]!r} is in no run: {error}")

    def _add_event(self, line: bytes) -> None:
        """Raises ValueError for one that has no place, `OSError`."""
        if self._is_closed:
            raise ValueError("the Meter was closed before it")
        if os.getpid() != self._pid:
            raise ValueError("this process was forked from the one that is recorded")
        if self._events_bytes + len(line) > MOST_EVENTS_BYTES:
            raise ValueError(f"the events of a process have {MOST_EVENTS_BYTES >> 20} MiB at most")
        self._events_bytes += len(line)
        self._write_line(line)

    def _refuse(self, text: str) -> None:
        if text not in self._refusals and len(self._refusals) < _MOST_REFUSALS:
            self._refusals.add(text)
            tell(text)
            self.note(text)

    def _tell_lost(self, t_host_ns: int) -> None:
        """Why the first phase that is in no run is in none, where the failure that is told when the run closes does not
        say it."""
        if self._is_closed:
            tell("a phase was begun after the Meter was closed: such phases are in no run")
        elif os.getpid() != self._pid:
            text = "a forked child process began a phase: what it marks is in no run; it needs a Meter of its own"
            tell(text)
            self.note_of_child(text, t_host_ns)

    def identify(self, devices: Sequence[Mapping[str, object]]) -> None:
        """Say on which devices this process works."""
        self._remark({"devices": list(devices)})

    def mark(self, code: int, thread: int | None = None, t_host_ns: int | None = None) -> int:
        """Write one mark: ``code`` is a phase kind's number to begin it, its bitwise inverse to end it.

        ``thread`` is the one to whose phases it belongs, where that is not the one that runs; ``t_host_ns`` a time that
        was read before. Returns the mark's number in this process, -1 when dropped.
        """
        if t_host_ns is None:
            t_host_ns = now_ns()
        segment = self._segment
        if segment is None:
            self.dropped += 1
            if code >= 0 and not self._was_late:  # the end of a phase that was open at close() is no news
                self._was_late = True
                self._tell_lost(t_host_ns)
            return -1
        index = segment.take()
        if index < self._records:
            thread = get_ident() if thread is None else thread
            # A thread's identity is an address: stacks may lie so far apart that the lower 24 bits of two are the same.
            # Then `sealed_thread`, spelled out: a call would cost a tenth of a mark.
            thread = (thread ^ thread >> 20) & 0xFFFFFF
            check = (t_host_ns + 3 * code + 7 * thread) % 251 + 1
            _pack_into(segment.memory, index * _SIZE, code, check << 24 | thread, t_host_ns)
            return segment.first + index
        self._roll(segment)
        return self.mark(code, thread, t_host_ns)

    def mark_at(self, code: int, t_host_ns: int, thread: int | None = None) -> int:
        """As `mark`, with a time that was read before."""
        return self.mark(code, thread, t_host_ns)

    def _roll(self, full: Segment) -> None:
        with self._lock:
            if self._segment is not full:
                return
            number = self._number = self._number + 1
            try:
                following = Segment(self._path(number), self._records, number * self._records)
            except OSError as error:
                self._fail(error)
            else:
                if self._segment is full:  # else a signal's handler was faster: ours stays empty
                    self._segment = following

    def _fail(self, error: OSError) -> None:
        self._segment = None
        if self.failure is None:
            self.failure, self.told = f"phases could not be written any more: {error.strerror}", True
            tell(f"{self.failure}; the training goes on, its readings too")

    def disable(self, reason: str) -> None:
        """Drop all marks from now on."""
        self._segment = None
        self.failure = self.failure or reason

    def close(self) -> None:
        """No more marks. The files stay for the recorder; those of a rank say that nothing is cut off."""
        self._segment = None
        with self._lock:
            self._is_closed = True
            with contextlib.suppress(OSError):
                if self._is_rank and os.getpid() == self._pid:
                    self._describe({"closed": now_ns()})
            with contextlib.suppress(OSError):
                os.close(self._names)


def crowded(kinds: Iterable[tuple[str, Mapping[str, object]]]) -> list[str]:
    """What to say of phases whose attribute has very many values, a line each: ``kinds`` have a name and attributes of
    their own."""
    values: dict[tuple[str, str], set[str]] = {}
    for name, attributes in kinds:
        for attribute, value in attributes.items():
            values.setdefault((name, attribute), set()).add(repr(value))
    return [
        f"phase {name!r} has {len(of):,} values of its attribute {attribute!r}: each makes a kind of phase of its own, "
        f"with its own rows in every table; leave {attribute!r} out, and use `joules tables RUN --table iterations "
        "--format csv` instead for a row each time"
        for (name, attribute), of in values.items()
        if len(of) >= MANY_KINDS and attribute not in _MANY_VALUES
    ]


def _plain(value: object) -> object:
    """What JSON knows. Scalars of numpy and torch know their plain value; a `torch.device` or a path is its text."""
    if value is None or isinstance(value, str | int | float):
        return value
    item = getattr(value, "item", None)
    plain = item() if callable(item) and getattr(value, "ndim", None) == 0 else value
    try:
        json.dumps(plain)
    except (TypeError, ValueError):
        return str(plain)
    return plain


_encode = json.JSONEncoder(default=_plain).encode


def _event_line(name: str, t_ns: int, values: Mapping[str, object]) -> bytes:
    """The line of an event in the file of names. Raises ValueError, or what a value raises, where there can be none."""
    document = {"event": name, "t_ns": t_ns, "values": values}
    try:
        text = _encode(document)
    except (TypeError, ValueError, RecursionError):  # a key that is no text, or values that hold themselves
        document["values"] = {str(key): _plain(value) for key, value in values.items()}
        text = _encode(document)
    line = text.encode()
    if len(name) > MAX_NAME or len(line) > MOST_EVENT_BYTES:
        raise ValueError(
            f"its name has {len(name)} characters and all of it {len(line)} bytes, {MAX_NAME} and {MOST_EVENT_BYTES} "
            "are allowed"
        )
    if text.count("{") + text.count("[") > _MOST_LEVELS:  # else it cannot be that deep
        check_json([json.loads(text, parse_constant=str)])
    return line


_writers: weakref.WeakSet[MarkWriter] = weakref.WeakSet()


def _disable_all() -> None:
    """A forked child (a data loader's worker) shares the mappings and must not write into its parent's marks."""
    for writer in list(_writers):
        writer.disable("this process was forked from the one that is recorded")
        writer._lock = threading.RLock()  # a thread that is not in this process may have held it
    _writers.clear()


os.register_at_fork(after_in_child=_disable_all)
