"""A powerd on this machine, for a recording that names none: its sources, its process and its directory.

Standard library only: the recorder's guardian holds it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Collection, Sequence
from pathlib import Path

from powerd_client.host.log import last_line
from powerd_client.host.ownership import delete_folder, foreign, open_own, write_new
from powerd_core.errors import PeerError

POWERCAP = Path(os.environ.get("POWERD_SYSFS", "/sys"), "class/powercap")
"""Where Linux shows the processors' energy counters."""
_STANDS_S, _COUNTS_S = 0.25, 0.002
"""RAPL's counters that have not moved for so long stand still; and how often they are looked at."""
WINDOW_S = 60.0
_PAUSES_S = (0.0, 0.2, 0.5, 1.0, 2.0)
"""What dies more often than that within the window is given up."""
_FAREWELL_S = 1.0
"""So long a local powerd may take to end when the process that started it is gone."""
_DIRECTORY = "powerd-local-"
"""How the names of a local powerd's directories begin."""
_IN_DIRECTORY = re.compile(r"powerd(\.toml|\.data|\.clock)?")
"""What is in them: a configuration, and sockets."""
_LONGEST_BYTES = 107 - len("/powerd.clock")
"""Of a directory: a socket's path has 107 bytes at most (unix(7), with the zero at its end 108)."""


class Attempts:
    """How often what died is started again: five times within a minute, each after a longer pause."""

    def __init__(self) -> None:
        self._times: deque[float] = deque()

    def pause(self, now_s: float) -> float | None:
        """The seconds to wait before starting again what has just died; None when that has been tried often enough."""
        while self._times and self._times[0] < now_s - WINDOW_S:
            self._times.popleft()
        if len(self._times) == len(_PAUSES_S):
            return None
        pause = _PAUSES_S[len(self._times)]
        self._times.append(now_s)
        return pause


def manner_of_death(status: int) -> str:
    """``died (SIGKILL)`` or ``failed (status 3)``, from an exit status in which a signal is negative."""
    if -status in set(signal.Signals):
        return f"died ({signal.Signals(-status).name})"
    return f"failed (status {status})"


def local_sources(pid: int | None, powercap: Path = POWERCAP) -> tuple[list[dict[str, object]], list[str]]:
    """The options of a source for everything that tells power on this machine, and what the user should know of it.

    The GPUs that this process may use by the NVIDIA driver, and processors and memory by RAPL's counters. Only where
    there is neither, or RAPL's counters stand still, a model from CPU time of process ``pid``, or of the whole machine
    for None.
    """
    sources: list[dict[str, object]] = []
    notes = []
    with contextlib.suppress(ImportError):
        import pynvml

        from powerd_client.host.visible_gpus import list_gpus, usable_gpus

        with contextlib.suppress(pynvml.NVMLError):
            gpus = list_gpus()
            usable, note = usable_gpus(gpus)
            notes += [note] if note else []
            if usable:
                sources.append({"kind": "nvml", "gpus": usable if len(usable) < len(gpus) else []})
    counters = list(powercap.glob("intel-rapl:*/energy_uj"))
    are_standing = False
    if not all(os.access(counter, os.R_OK) for counter in counters):
        notes.append(f"processors and memory are left out until: sudo chmod a+r {powercap}/intel-rapl:*/energy_uj")
    elif are_standing := bool(counters) and not any_moves(counters):
        notes.append("RAPL's counters stand still here (a virtual machine?): the processor's power is modelled")
    elif counters:
        sources.append({"kind": "rapl", "root": str(powercap)})
    if not sources or are_standing:
        sources.append({"kind": "cpu-model", "name": "cpu"} | ({"pid": pid} if pid else {}))
    return [{"name": source["kind"], "optional": True} | source for source in sources], notes


def any_moves(counters: Sequence[Path]) -> bool:
    """Whether any of RAPL's counters counts. They move each millisecond, about; it is looked for a quarter of a second,
    as long as it takes."""
    before, end_s = _values(counters), time.monotonic() + _STANDS_S
    while time.monotonic() < end_s:
        time.sleep(_COUNTS_S)
        if any(now != then for now, then in zip(_values(counters), before, strict=True)):
            return True
    return False


def _values(counters: Sequence[Path]) -> list[bytes]:
    values = []
    for counter in counters:
        value = b""
        with contextlib.suppress(OSError):  # some kernels list zones that they cannot read
            value = counter.read_bytes()
        values.append(value)
    return values


class LocalDaemon:
    """A powerd process of one's own, on a private ipc endpoint; it ends when it is stopped or the process that started
    it is gone. Call `tend` now and then: a daemon that died is started again at the same address.
    """

    def __init__(self, sources: Sequence[dict[str, object]], log_file: Path) -> None:
        """``sources``: options of each of its sources. Raises `OSError` when there is no place for its socket."""
        self._names = [str(source.get("name", source["kind"])) for source in sources]
        self._directory, self._lock = _private_directory()
        self.url = f"ipc://{self._directory}/powerd"
        self._log = log_file
        self._attempts = Attempts()
        self._start_s: float | None = None
        """When to start it again; None while it runs, or was given up."""
        self._process: subprocess.Popen[bytes] | None = None
        # A JSON string, number, boolean or list of them is also a TOML value.
        rows = ["[server]", f'listen = "{self.url}"', 'board = "local"']
        for source in sources:
            rows.append("[[source]]")
            rows += [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in source.items()]
        write_new(self._directory / "powerd.toml", "\n".join(rows) + "\n")

    def start(self) -> None:
        """Raises `OSError` when no process can be started."""
        self._start_s = None
        command = [sys.executable, "-P", "-m", "powerd_daemon", "run", "--config", str(self._directory / "powerd.toml")]
        with os.fdopen(open_own(self._log, os.O_WRONLY | os.O_APPEND), "ab") as out:
            self._process = subprocess.Popen(
                [*command, "--parent-pid", str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def adopt(self) -> None:
        """In another process than the one that started it and is gone: the daemon ends too, `tend` starts a new one."""
        self._process = None
        self._start_s = time.monotonic() + _FAREWELL_S

    def check(self) -> None:
        """Raises `PeerError` with the daemon's last words when it has ended."""
        status = self._process.poll() if self._process else None
        if status is not None:
            raise PeerError(f"the local powerd {manner_of_death(status)}: {last_line(self._log)}")

    def left_out(self, opened: Collection[str]) -> list[str]:
        """What the user should be told of the sources that it could not open: those that are not among ``opened``."""
        lines = [line.removeprefix("powerd: ") for line in self._log.read_text(errors="replace").splitlines()]
        return [
            next((line for line in reversed(lines) if repr(name) in line), f"the source {name!r} could not be opened")
            for name in self._names
            if name not in opened
        ]

    def tend(self) -> str | None:
        """Start again what died, with pauses that grow. What the user should be told, if anything."""
        now_s = time.monotonic()
        if self._process is not None and (status := self._process.poll()) is not None:
            self._process = None
            pause = self._attempts.pause(now_s)
            # One that was killed did not say why.
            ended = f"the local powerd {manner_of_death(status)}" + (f": {last_line(self._log)}" if status >= 0 else "")
            if pause is None:
                return f"{ended}, again and again: it is not started any more, and nothing more is measured"
            self._start_s = now_s + pause
            return f"{ended}; it is started again, and what it had not sent is lost"
        if self._start_s is not None and now_s >= self._start_s:
            try:
                self.start()
            except OSError as error:
                return f"the local powerd cannot be started again: {error}"
        return None

    def stop(self) -> None:
        """End it, by force after two seconds, and remove what it left."""
        process, self._process, self._start_s = self._process, None, None
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(2)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        with contextlib.suppress(OSError):
            delete_folder(self._directory, _IN_DIRECTORY)
        os.close(self._lock)


def _private_directory() -> tuple[Path, int]:
    """A new directory for sockets, and its lock, which tells that somebody uses it: the kernel drops it when its last
    process dies. Those that the dead have left are removed. Raises `OSError`.
    """
    base = tempfile.gettempdir()
    if len(os.fsencode(f"{base}/{_DIRECTORY}12345678")) > _LONGEST_BYTES:
        base = "/tmp"
    for leftover in Path(base).glob(f"{_DIRECTORY}????????"):
        with contextlib.suppress(OSError):
            if foreign(leftover) is None and (lock := _lock_directory(leftover)) is not None:
                try:
                    delete_folder(leftover, _IN_DIRECTORY)
                finally:
                    os.close(lock)
    while True:
        directory = Path(tempfile.mkdtemp(prefix=_DIRECTORY, dir=base))
        lock = _lock_directory(directory)
        if lock is not None and directory.exists():  # else another start took it for a leftover
            return directory, lock


def _lock_directory(directory: Path) -> int | None:
    """The descriptor of its lock, None where somebody holds it or it is gone. Raises `OSError`."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
