"""The recording that all counters of a server share.

A recorder process beside the script receives the readings. Here, only marks are written while a counter runs, and the
recorder's journal is read when a stopped counter is asked for its data.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from powerd_client import journal as journals
from powerd_client.hostclock import now_ns
from powerd_client.markwriter import MarkWriter
from powerd_client.pmlib.journalreader import JournalReader
from powerd_client.pmlib.readings import LineReadings
from powerd_client.recording import Recording
from powerd_client.telling import tell
from powerd_core.errors import ConfigError, RunFileError
from powerd_core.model import Description, Stream

_SEGMENT_RECORDS = 4096
_POLL_S = 0.005
_PATIENCE_S = 3.0


class Session:
    """From the first question to the run file ``out``. The end of the process closes it too."""

    def __init__(self, out: Path, journal: Path, recording: Recording | None) -> None:
        """``recording`` is what this process began; without one it has joined. Raises `RunFileError`."""
        self.out = out
        self.journal = journal
        self._recording = recording
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._writers: list[MarkWriter] = []
        self._free: list[MarkWriter] = []
        self._counters = 0
        self._is_closed = False
        self._reader = JournalReader(journal)
        self._reader.update()
        atexit.register(self.close)

    @property
    def descriptions(self) -> tuple[Description, ...]:
        """What every powerd of the run said it measures."""
        return self._reader.descriptions

    def check_open(self) -> None:
        """Raises `ConfigError` after `close`."""
        if self._is_closed:
            raise ConfigError(f"this server is closed: its run is in {self.out}")

    def add_counter(self) -> int:
        """The number of one more counter, from 1."""
        with self._lock:
            self._counters += 1
            return self._counters

    def take_writer(self) -> MarkWriter:
        """A mark stream for one counter: counters overlap, and phases of one stream would have to nest."""
        with self._lock:
            self.check_open()
            if self._free:
                return self._free.pop()
            try:
                writer = MarkWriter(self.journal, segment_records=_SEGMENT_RECORDS)
            except OSError as error:
                raise RunFileError(f"marks cannot be written under {self.journal}: {error.strerror}") from error
            self._writers.append(writer)
            return writer

    def give_writer(self, writer: MarkWriter) -> None:
        """The mark stream of a counter that needs it no more."""
        with self._lock:
            self._free.append(writer)

    def await_readings(self, lines: Sequence[str], t_ns: int) -> None:
        """Return when all of these lines have been read after that moment, or will not be.

        Raises `ConfigError` after `close`.
        """
        with self._lock:
            reader = self._open_reader()
            patience_s = _PATIENCE_S + 3e-9 * max(
                s.period_ns for d in reader.descriptions for s in d.streams if _has_any(s, lines)
            )
            deadline = time.monotonic() + patience_s
            is_recorded = True
            while not reader.reaches(lines, t_ns) and is_recorded and time.monotonic() < deadline:
                time.sleep(_POLL_S)
                # Asked before reading: what a recorder wrote before it ended is then still read.
                is_recorded = journals.is_locked(self.journal)
                reader.update()

    def readings(self, lines: Sequence[str], begin_ns: int, end_ns: int) -> dict[str, LineReadings]:
        """Readings of lines by name, from just before to just after a stretch of time. Raises `ConfigError` after
        `close`."""
        with self._lock:
            return self._open_reader().readings(lines, begin_ns, end_ns)

    def _open_reader(self) -> JournalReader:
        if self._is_closed:
            raise ConfigError(f"this server is closed: what its counters measured is in {self.out}")
        return self._reader

    def close(self) -> None:
        """End the recording and wait until the run file is complete. A run without a single counter is thrown away."""
        if os.getpid() != self._pid:
            return  # in a forked child a thread that is not there may hold the lock for ever
        with self._lock:
            atexit.unregister(self.close)
            if self._is_closed:
                return
            self._is_closed = True
            recording, self._recording = self._recording, None
            stop_ns = now_ns()
            for writer in self._writers:
                writer.close()
            failed = next((w for w in self._writers if w.failure), None)
            failure, told = (failed.failure, failed.told) if failed is not None else (None, False)
            if recording is None:
                if failure and not told:
                    tell(failure)
            elif self._counters:
                recording.finish(stop_ns, failure, told=told)
            else:
                recording.abandon()


def _has_any(stream: Stream, lines: Sequence[str]) -> bool:
    return any(line.name in lines for line in stream.lines)
