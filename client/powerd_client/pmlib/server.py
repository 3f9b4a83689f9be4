"""The powerd that a script measures with, and the recording that all its counters share.

A recorder process beside the script receives the readings. Here, only marks are written while a counter runs, and the
recorder's journal is read when a stopped counter is asked for its data.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal

from powerd_client import journal as journals
from powerd_client.hostclock import now_ns
from powerd_client.markwriter import MarkWriter
from powerd_client.pmlib.counter import Counter
from powerd_client.pmlib.devices import DeviceInfo, devices_of
from powerd_client.pmlib.journalreader import JournalReader
from powerd_client.pmlib.lines import Lines
from powerd_client.pmlib.readings import LineReadings
from powerd_client.recording import Recording
from powerd_core.errors import ConfigError, PeerError, RunFileError
from powerd_core.model import Stream

PMLIB_PORT = 6526
_SEGMENT_RECORDS = 4096
_POLL_S = 0.005
_PATIENCE_S = 3.0


class Server:
    """One powerd and the run that is recorded from it.

    ``url``        where it listens; None starts one on this machine, with its best source or the one of ``source``
    ``out``        the run file; by default the first of ``pmlib.h5``, ``pmlib-2.h5``, ... that is free
    ``overwrite``  replace ``out`` if it exists

    Nothing is started before it is needed: by the first question for devices or the first counter. `close` completes
    the run file; the end of the process does the same. Under ``joules record`` the counters join the run that goes on,
    and these arguments do not count.
    """

    def __init__(
        self,
        url: str | None = None,
        out: str | os.PathLike[str] | None = None,
        *,
        overwrite: bool = False,
        source: Mapping[str, object] | None = None,
    ) -> None:
        self.url = url
        self.out = None if out is None else Path(out)
        self._overwrite = overwrite
        self._source = dict(source) if source else None
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._recording: Recording | None = None
        self._journal: Path | None = None
        self._reader: JournalReader | None = None
        self._writers: list[MarkWriter] = []
        self._free: list[MarkWriter] = []
        self._counters = 0
        self._is_closed = False
        self._cannot_wait = ""

    def devices(self) -> tuple[DeviceInfo, ...]:
        """What can be measured.

        A line that measures a device by other means than the lines whose sum is the device's power is never added to
        them: it stands behind the devices, as one of its own under its own name.
        """
        with self._lock:
            self._start()
            assert self._reader is not None
            found: dict[str, DeviceInfo] = {}
            for description in self._reader.descriptions:
                for device in devices_of(description):
                    found.setdefault(device.name, device)
            return tuple(found.values())

    def device(self, name: str) -> DeviceInfo:
        """The device of that name. Raises `ConfigError` with the names that there are."""
        devices = {device.name: device for device in self.devices()}
        if name not in devices:
            raise ConfigError(f"there is no device {name!r}: there are {', '.join(devices)}")
        return devices[name]

    def counter(
        self,
        device: str,
        lines: Lines | str | None = None,
        *,
        aggregate: bool = True,
        frequency: float = 0.0,
        name: str | None = None,
    ) -> Counter:
        """A counter on some of a device's lines (None: all); ``name`` is its phase's name in the run.

        ``frequency`` thins what is printed, never what is measured; 0 prints all. Raises `ConfigError` for a device,
        lines or a frequency that there are not.
        """
        with self._lock:
            info = self.device(device)
            wanted = Lines.parse(lines) if isinstance(lines, str) else Lines.all() if lines is None else lines
            numbers = range(info.n_lines) if wanted.is_all else list(wanted)
            if not numbers:
                raise ConfigError("no line is set: a counter needs at least one")
            if beyond := [i for i in numbers if i >= info.n_lines]:
                raise ConfigError(f"device {device!r} has no line {beyond[0]}: its lines are 0 to {info.n_lines - 1}")
            if len(kinds := sorted({info.lines[i].provenance.value for i in numbers})) > 1:
                raise ConfigError(f"lines {wanted} are partly {' and partly '.join(kinds)}: make a counter for each")
            if not 0 <= frequency <= info.max_frequency * (1 + 1e-6):
                raise ConfigError(
                    f"device {device!r} is read {info.max_frequency:g} times a second, not {frequency:g}: 0 is all"
                )
            self._counters += 1
            chosen = {i: info.lines[i].name for i in numbers}
            return Counter(self, name or f"counter {self._counters}", device, chosen, bool(aggregate), frequency)

    def check_open(self) -> None:
        """Raises `ConfigError` after `close`."""
        if self._is_closed:
            raise ConfigError(f"this server is closed: its run is in {self.out}")

    def _start(self) -> None:
        self.check_open()
        if self._reader is not None:
            return
        if joined := os.environ.get(journals.RUN_ENVIRONMENT):
            self._journal = Path(joined)
            self.out = self._journal.with_name(self._journal.name.removesuffix(".journal"))
        else:
            self._recording = self._record()
            self._journal = self._recording.journal
        self._reader = JournalReader(self._journal)
        self._reader.update()
        atexit.register(self.close)

    def _record(self) -> Recording:
        self.out = self.out or _free_name(Path("pmlib.h5"))
        try:
            return Recording(
                self.out,
                [self.url] if self.url else [],
                overwrite=self._overwrite,
                source=self._source,
                trainer_pid=self._pid,
            )
        except PeerError as error:
            if self.url and self.url.endswith(f":{PMLIB_PORT}"):
                raise type(error)(f"{error}; {PMLIB_PORT} is pmlib's port, a powerd listens at 7360") from error
            raise

    def take_writer(self) -> MarkWriter:
        """A mark stream for one counter: counters overlap, and phases of one stream would have to nest."""
        with self._lock:
            self._start()
            if self._free:
                return self._free.pop()
            assert self._journal is not None
            try:
                writer = MarkWriter(self._journal, segment_records=_SEGMENT_RECORDS)
            except OSError as error:
                raise RunFileError(f"marks cannot be written under {self._journal}: {error.strerror}") from error
            self._writers.append(writer)
            return writer

    def give_writer(self, writer: MarkWriter) -> None:
        """The mark stream of a counter that needs it no more."""
        with self._lock:
            self._free.append(writer)

    def wait_for_device(self) -> Literal["host", "host-synchronised"]:
        """Where this process uses CUDA through torch, wait until the current device has done what it was given.

        Otherwise a counter would be stopped while the work that it is to measure still runs. What was waited for is
        the timing of the mark that follows.
        """
        torch = sys.modules.get("torch")
        if torch is None or self._cannot_wait:
            return "host"
        try:
            if not torch.cuda.is_initialized():
                return "host"
            torch.cuda.synchronize()
        except Exception as error:  # noqa: BLE001  (the script's next call will raise it too)
            self._cannot_wait = str(error)
            warnings.warn(f"powerd: counters do not wait for the GPU any more: {error}", stacklevel=4)
            return "host"
        return "host-synchronised"

    def await_readings(self, lines: Sequence[str], t_ns: int) -> None:
        """Return when all of these lines have been read after that moment, or will not be.

        Raises `ConfigError` when the server is closed.
        """
        with self._lock:
            reader, journal = self._open_reader()
            patience_s = _PATIENCE_S + 3e-9 * max(
                s.period_ns for d in reader.descriptions for s in d.streams if _has_any(s, lines)
            )
            deadline = time.monotonic() + patience_s
            is_recorded = True
            while not reader.reaches(lines, t_ns) and is_recorded and time.monotonic() < deadline:
                time.sleep(_POLL_S)
                # Asked before reading: what a recorder wrote before it ended is then still read.
                is_recorded = journals.is_locked(journal)
                reader.update()

    def readings(self, lines: Sequence[str], begin_ns: int, end_ns: int) -> dict[str, LineReadings]:
        """Readings of lines by name, from just before to just after a stretch of time."""
        with self._lock:
            return self._open_reader()[0].readings(lines, begin_ns, end_ns)

    def _open_reader(self) -> tuple[JournalReader, Path]:
        if self._reader is None or self._journal is None:
            raise ConfigError(f"this server is closed: what its counters measured is in {self.out}")
        return self._reader, self._journal

    def close(self) -> None:
        """End the recording and wait until the run file is complete. Data that counters have read stay.

        A run without a single counter is thrown away.
        """
        with self._lock:
            atexit.unregister(self.close)
            if self._is_closed or os.getpid() != self._pid:
                return
            self._is_closed = True
            recording, self._recording, self._reader = self._recording, None, None
            stop_ns = now_ns()
            for writer in self._writers:
                writer.close()
            failure = next((w.failure for w in self._writers if w.failure), None)
            if recording is not None:
                if self._counters:
                    recording.finish(stop_ns, failure)
                else:
                    recording.abandon()
            elif failure:
                print(f"powerd: {failure}", file=sys.stderr)

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self.close()
        return False


def _has_any(stream: Stream, lines: Sequence[str]) -> bool:
    return any(line.name in lines for line in stream.lines)


def _free_name(path: Path) -> Path:
    """``path``, or the first of its numbered sisters that neither a run nor a recording has taken."""
    number, candidate = 1, path
    while candidate.exists() or journals.journal_path(candidate).exists():
        number += 1
        candidate = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return candidate
