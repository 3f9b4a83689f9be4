"""The recorder: a process beside the training that receives, journals, and at the end writes the run file.

It is started by `powerd_client.recording` with a JSON object on its standard input (`Job`), answers with JSON objects
on its standard output, one a line, and ends when it is told to stop or when its parent is gone (`Orders`).

It is two processes. The guardian, here, forks the worker (`powerd_client.worker`), which does everything, and another
one when it dies. The guardian inherits the journal's lock, which its workers share, and holds the local powerd of a run
that names none, which must outlive them. This module needs the standard library only, so that there is little in the
guardian that could fail, and its workers start at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import mmap
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from powerd_client.hostclock import now_ns, started
from powerd_client.log import last_line
from powerd_client.ranks import training_here
from powerd_core.errors import PeerError, PowerdError
from powerd_core.text import printable

MAX_TEXT = 500
"""Characters of one text. Another machine, or the last line of a log, may have said it."""
_ORDERLY = (0, 2)
"""Exit statuses of a worker behind which there is nothing more to do."""
_PAUSES_S = (0.0, 0.2, 0.5, 1.0, 2.0)
_WINDOW_S = 60.0
_LOOK_S = 0.5
_TRAINER_LOOK_NS = 20_000_000
_FAREWELL_S = 1.0
"""So long a local powerd may take to end when the process that started it is gone."""
POWERCAP = Path("/sys/class/powercap")
"""Where Linux shows the processors' energy counters."""
_DIRECTORY = "powerd-local-"
"""How the names of a local powerd's directories begin."""
_LONGEST_BYTES = 107 - len("/powerd.clock")
"""Of a directory: a socket's path has 107 bytes at most (unix(7), with the zero at its end 108)."""

log = logging.getLogger("powerd.recorder")
"""Warnings that the user should read now: see `UserHandler`."""


@dataclass(slots=True)
class Job:
    """The first line on a recorder's standard input."""

    out: Path
    journal: Path
    urls: list[str]
    parent_pid: int
    trainer_pid: int | None
    message: dict[str, Any]
    """The journal's first message: what the run is."""
    overwrite: bool
    source: dict[str, object] | None
    """Options of the local powerd's one source; None for all that this machine has."""
    death: str | None = None
    """How the guardian before this one ended with its worker, where there was one: the run goes on."""


def read_job() -> Job | None:
    """The job from the first line of standard input; None when there is none."""
    data = b""
    while not data.endswith(b"\n"):
        piece = os.read(0, 1)  # not a byte of the commands that may follow
        if not piece:
            return None
        data += piece
    document = json.loads(data)
    # The recorder has the environment of the process that began the recording, and so what its launcher said.
    document["message"]["environment"] |= training_here()
    return Job(**{**document, "out": Path(document["out"]), "journal": Path(document["journal"])})


def say(**message: object) -> None:
    """One JSON object to the parent, if it is still there."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(message).encode() + b"\n")


def take_stderr(log_file: Path) -> int | None:
    """A duplicate of the training's standard error, with which a recorder begins; from here on, its own is its log.

    None where the training has none. Raises `OSError`.
    """
    user = None
    with contextlib.suppress(OSError):
        user = os.dup(2)
    descriptor = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    if descriptor != 2:
        os.dup2(descriptor, 2)
        os.close(descriptor)
    return user


class UserHandler(logging.Handler):
    """Prints a warning at once on the training's own standard error, one line, where that is possible.

    Else the parent hears it, and says it when the run closes.
    """

    def __init__(self, descriptor: int | None) -> None:
        super().__init__(logging.WARNING)
        self._descriptor = descriptor

    def emit(self, record: logging.LogRecord) -> None:
        text = printable(record.getMessage(), limit=MAX_TEXT)
        is_told = False
        # A reader that does not read must not stop the recorder.
        with contextlib.suppress(OSError, ValueError):
            if self._descriptor is not None and select.select([], [self._descriptor], [], 0)[1]:
                is_told = os.write(self._descriptor, f"powerd: {text}\n".encode()) > 0
        if not is_told:
            say(warning=text)

    def close(self) -> None:
        """Whoever waits for the end of the training's output shall not wait for the recorder too."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        super().close()


class TrainerWatch:
    """Whether the process that is recorded still lives.

    Neither the pipe nor the parent's number can tell: forked children of the training hold the pipe open, and the
    parent of a worker is its guardian. When the process began tells it from a later one with its number.
    """

    def __init__(self, pid: int) -> None:
        self._pid, self._started = pid, started(pid)
        self._is_gone = False
        self._look_ns = 0

    def is_gone(self) -> bool:
        now = now_ns()
        if not self._is_gone and now >= self._look_ns:
            self._look_ns = now + _TRAINER_LOOK_NS
            self._is_gone = self._started is None or started(self._pid) != self._started
        return self._is_gone


class Orders:
    """Whether, and when, a recording is to end: by the parent's word, by SIGTERM, or with the training process.

    The parent writes one JSON object a line on standard input: ``{"stop_ns"}``, ``{"note"}`` or ``{"abandon"}``.
    """

    def __init__(self, terminations: list[int], trainer: TrainerWatch) -> None:
        """``terminations``: the SIGTERMs that came."""
        self.stop_ns: int | None = None
        """The last moment that belongs to the run."""
        self.is_complete = True
        """Whether the training closed the run itself."""
        self.is_abandoned = False
        """Whether nobody wants the run any more."""
        self.input_ended = False
        """The parent has closed its end, which it does when it dies."""
        self._terminations = terminations
        self._trainer = trainer
        self._rest = b""

    @property
    def is_ending(self) -> bool:
        return self.stop_ns is not None or self.is_abandoned

    def look(self) -> list[str]:
        """Take notice of what has come; what of it belongs into the run file."""
        notes = []
        for command in self._commands():
            self.is_abandoned = self.is_abandoned or "abandon" in command
            # The first word counts: a worker may hear again what it has heard.
            self.stop_ns = self.stop_ns or command.get("stop_ns")
            if "note" in command:
                notes.append(str(command["note"]))
        if self._terminations:
            self.stop_ns = self.stop_ns or now_ns()
        if (self.input_ended or self._trainer.is_gone()) and not self.is_ending:
            self.stop_ns, self.is_complete = now_ns(), False
            notes.append("the training process ended without closing the run")
        return notes

    def _commands(self) -> list[dict[str, Any]]:
        """All that has come, without waiting."""
        commands: list[dict[str, Any]] = []
        while not self.input_ended and select.select([0], [], [], 0)[0]:
            data = os.read(0, 65536)
            self.input_ended = not data
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                # The end of a line whose beginning a worker took with it is no command.
                with contextlib.suppress(ValueError):
                    command = json.loads(line)
                    if isinstance(command, dict):
                        commands.append(command)
        return commands


class Attempts:
    """How often what died is started again: five times within a minute, each after a longer pause."""

    def __init__(self) -> None:
        self._times: deque[float] = deque()

    def pause(self, now_s: float) -> float | None:
        """The seconds to wait before starting again what has just died; None when that has been tried often enough."""
        while self._times and self._times[0] < now_s - _WINDOW_S:
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
    there is neither, a model from CPU time of process ``pid``, or of the whole machine for None.
    """
    sources: list[dict[str, object]] = []
    notes = []
    with contextlib.suppress(ImportError):
        import pynvml

        from powerd_client.gpus import list_gpus, usable_gpus

        with contextlib.suppress(pynvml.NVMLError):
            gpus = list_gpus()
            usable, note = usable_gpus(gpus)
            notes += [note] if note else []
            if usable:
                sources.append({"kind": "nvml", "gpus": usable if len(usable) < len(gpus) else []})
    counters = list(powercap.glob("intel-rapl:*/energy_uj"))
    if counters and all(os.access(counter, os.R_OK) for counter in counters):
        sources.append({"kind": "rapl", "root": str(powercap)})
    elif counters:
        notes.append(f"processors and memory are left out until: sudo chmod a+r {powercap}/intel-rapl:*/energy_uj")
    if not sources:
        sources.append({"kind": "cpu-model", "name": "cpu"} | ({"pid": pid} if pid else {}))
    return [{"name": source["kind"], "optional": True} | source for source in sources], notes


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
        (self._directory / "powerd.toml").write_text("\n".join(rows) + "\n", encoding="utf-8")

    def start(self) -> None:
        """Raises `OSError` when no process can be started."""
        self._start_s = None
        command = [sys.executable, "-P", "-m", "powerd_daemon", "run", "--config", str(self._directory / "powerd.toml")]
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(
                [*command, "--parent-pid", str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=os.environ | {"TMPDIR": str(self._directory)},  # what it leaves when killed goes with it
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

    @property
    def pid(self) -> int | None:
        """None while none runs."""
        return self._process.pid if self._process else None

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
        shutil.rmtree(self._directory, ignore_errors=True)
        os.close(self._lock)


def _private_directory() -> tuple[Path, int]:
    """A new directory for sockets, and its lock, which tells that somebody uses it: the kernel drops it when its last
    process dies. Those that the dead have left are removed. Raises `OSError`.
    """
    base = tempfile.gettempdir()
    if len(os.fsencode(f"{base}/{_DIRECTORY}12345678")) > _LONGEST_BYTES:
        base = "/tmp"
    for leftover in Path(base).glob(f"{_DIRECTORY}*"):
        with contextlib.suppress(OSError):
            if leftover.lstat().st_uid == os.getuid() and (lock := _lock_directory(leftover)) is not None:
                shutil.rmtree(leftover, ignore_errors=True)
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


class Guardian:
    """Forks workers until one of them has ended in order. Raises `OSError` or `PeerError` at once.

    A worker inherits all of this: it is the memory that the fork leaves it.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.daemon: LocalDaemon | None = None
        self.user = UserHandler(take_stderr(job.journal / "recorder.log"))
        self.ready = mmap.mmap(-1, 1)
        """Outlives each worker: 1 when the recording has begun."""
        self.ready[0] = job.death is not None
        self.notes: list[str] = []
        """What the user should know of the local powerd's sources."""
        self.terminations: list[int] = []
        """The SIGTERMs that came."""
        self.trainer = TrainerWatch(job.parent_pid)
        self.death = job.death
        """How the last worker ended, where another one takes its place."""
        self._attempts = Attempts()
        self._worker = 0
        self._fork_s: float | None = None
        """When to fork the next worker."""
        log.addHandler(self.user)
        log.propagate = False
        # A signal wakes the select below: what its handlers write into this pipe cannot be missed.
        self._wake, wake = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda number, _: self.terminations.append(number))
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> int:
        """The exit status: that of the last worker, or 1 when too many have died."""
        if not self.job.urls:
            if self.job.source is None:
                sources, self.notes = local_sources(self.job.trainer_pid)
            else:
                sources = [self.job.source]
            self.daemon = LocalDaemon(sources, self.job.journal / "powerd.log")
            self.daemon.start()
        self._fork()
        was_told = False
        while True:
            if (status := self._ended()) is not None:
                if status in _ORDERLY:
                    return status
                if not self._try_again(status):
                    return 1
            self._mind_daemon()
            if self._fork_s is not None and time.monotonic() >= self._fork_s:
                self._fork()
            if self.terminations and not was_told and self._worker:
                was_told = True
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._worker, signal.SIGTERM)
            if self.trainer.is_gone():
                self.user.close()
            pause = _LOOK_S if self._fork_s is None else max(min(_LOOK_S, self._fork_s - time.monotonic()), 0)
            if select.select([self._wake], [], [], pause)[0]:
                os.read(self._wake, 4096)

    def _ended(self) -> int | None:
        """The worker's exit status (negative: a signal) when it has just ended."""
        pid, status = os.waitpid(self._worker, os.WNOHANG) if self._worker else (0, 0)
        if not pid:
            return None
        self._worker = 0
        return os.waitstatus_to_exitcode(status)

    def _try_again(self, status: int) -> bool:
        died = manner_of_death(status)
        pause = self._attempts.pause(time.monotonic())
        if pause is None:
            log.warning(
                f"the recorder {died} again and again within {_WINDOW_S:g} s and is given up: the training goes on, "
                f"what was recorded is kept; the reason may be in {self.job.journal / 'recorder.log'}"
            )
            return False
        if self.death is None:
            log.warning(f"the recorder {died} and is started again; powerd holds the readings meanwhile")
        self.death = died
        self._fork_s = time.monotonic() + pause
        return True

    def _mind_daemon(self) -> None:
        if self.daemon is None:
            return
        if not self.ready[0]:
            self.daemon.check()  # one that cannot even start is an error of the start
        elif not self.trainer.is_gone() and (text := self.daemon.tend()) is not None:
            log.warning(text)

    def _fork(self) -> None:
        self._fork_s = None
        try:
            self._worker = os.fork()
        except OSError as error:
            if not self._try_again(error.errno or 1):
                raise
            return
        if self._worker == 0:
            self._be_worker()

    def _be_worker(self) -> None:
        """The forked child's life, which ends here."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            if self.death:
                say(restarted=True, pid=os.getpid())
            from powerd_client.worker import work  # zmq: not in the guardian

            status = work(self)
        except BaseException:  # noqa: BLE001  (whatever it is, nothing of the guardian's must run in this process)
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)

    def close(self) -> None:
        """End what lives longer than a worker."""
        if self._worker:
            with contextlib.suppress(OSError):
                os.kill(self._worker, signal.SIGKILL)
                os.waitpid(self._worker, 0)
        if self.daemon is not None:
            self.daemon.stop()


def main() -> int:
    """Entry of the recorder process: record in workers until the run is done; the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    job = read_job()
    if job is None:
        return 2
    guardian = None
    try:
        guardian = Guardian(job)
        return guardian.run()
    except (PowerdError, OSError) as error:
        say(error=str(error) if isinstance(error, PowerdError) else f"the recorder cannot begin: {error}")
        return 2
    finally:
        if guardian is not None:
            guardian.close()


if __name__ == "__main__":
    from powerd_client import recorder  # noqa: PLW0406  (its worker imports this module: one set of classes)

    sys.exit(recorder.main())
