"""The powerd that a script measures with: its devices, and counters on them."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Literal

from powerd_client.journal import joined_journal, journal_path, run_of
from powerd_client.pmlib.counter import Counter
from powerd_client.pmlib.devices import DeviceInfo, devices_of
from powerd_client.pmlib.lines import Lines
from powerd_client.pmlib.session import Session
from powerd_client.recording import Recording
from powerd_core.errors import ConfigError, PeerError

PMLIB_PORT = 6526


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
        self._session: Session | None = None
        self._is_closed = False
        self._cannot_wait = ""

    def devices(self) -> tuple[DeviceInfo, ...]:
        """What can be measured.

        A line that measures a device by other means than the lines whose sum is the device's power is never added to
        them: it stands behind the devices, as one of its own under its own name.
        """
        found: dict[str, DeviceInfo] = {}
        for description in self._started().descriptions:
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
        session = self._started()
        own = f"counter {session.add_counter()}"
        chosen = {i: info.lines[i].name for i in numbers}
        return Counter(session, self.wait_for_device, name or own, device, chosen, bool(aggregate), frequency)

    def _started(self) -> Session:
        """The session, begun when it is first needed. Raises `ConfigError` after `close`."""
        with self._lock:
            if self._is_closed:
                raise ConfigError(f"this server is closed: its run is in {self.out}")
            if self._session is not None:
                return self._session
            recording = None
            journal = joined_journal()
            if journal is None:
                recording = self._record()
                journal = recording.journal
            self.out = run_of(journal)
            try:
                self._session = Session(self.out, journal, recording)
            except BaseException:
                if recording is not None:
                    recording.abandon()
                raise
            return self._session

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

    def close(self) -> None:
        """End the recording and wait until the run file is complete. Data that counters have read stay.

        A run without a single counter is thrown away.
        """
        if os.getpid() != self._pid:
            return  # see `Session.close`
        with self._lock:
            self._is_closed = True
            if self._session is not None:
                self._session.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self.close()
        return False


def _free_name(path: Path) -> Path:
    """``path``, or the first of its numbered sisters that neither a run nor a recording has taken."""
    number, candidate = 1, path
    while candidate.exists() or journal_path(candidate).exists():
        number += 1
        candidate = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return candidate
