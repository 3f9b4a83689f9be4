"""Processes of a test: started with a mark in their environment, listened to, throttled, and none left over."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MARK = "FAULTS_RUN"
PATIENCE_S = 60.0
"""A process that has not done by then what it should is said to hang; a busy machine takes seconds for anything."""
TURN_S = 0.2


class Hang(AssertionError):
    """Something that should have happened did not, in a time that is long for the slowest machine."""


def wait_for(what: str, condition: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    """Wait until a condition is true. Raises `Hang` naming ``what`` was waited for."""
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            raise Hang(f"{what}: not within {patience_s:g} s")
        time.sleep(0.01)


class Child:
    """A process, the lines it says on standard output, and all it says on standard error."""

    def __init__(self, name: str, command: Sequence[object], environment: dict[str, str], log: Path) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as stderr:
            self.process = subprocess.Popen(
                self._command(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=environment,
                start_new_session=True,
            )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _command(self, command: Sequence[object]) -> list[str]:
        return [sys.executable, "-P", *map(str, command)]

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.decode(errors="replace").strip())

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def said(self) -> str:
        """What it said on standard error."""
        return self.log.read_text(errors="replace")

    def told(self, key: str) -> list[dict[str, Any]]:
        """The JSON objects it printed that have ``key``."""
        found = [json.loads(line) for line in list(self.lines) if line.startswith("{")]
        return [document for document in found if key in document]

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it has ended
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()

    def await_line(self, what: str, line: str, patience_s: float = PATIENCE_S) -> None:
        wait_for(f"{self.name} {what}", lambda: line in self.lines or not self.is_alive, patience_s)
        if line not in self.lines:
            raise AssertionError(f"{self.name} ended with status {self.process.returncode}: {self.said[-500:]}")

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def end(self, number: int = signal.SIGTERM, patience_s: float = PATIENCE_S) -> int:
        """Send a signal, wait, and give back the status. Raises `Hang`."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)
        return self.ended(patience_s)

    def ended(self, patience_s: float = PATIENCE_S) -> int:
        """The status, when it has ended by itself. Raises `Hang`."""
        wait_for(f"{self.name} ends", lambda: not self.is_alive, patience_s)
        self._reader.join(5)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        status = self.process.returncode
        assert status is not None
        return status


def marked(token: str) -> list[int]:
    """All processes that have the mark ``token`` in their environment, this one excepted."""
    wanted, found = f"{MARK}={token}".encode(), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def command_of(pid: int) -> str:
    """A process's command line, "" when it is gone or a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def running_module(token: str, module: str) -> list[int]:
    """The marked processes that run a module."""
    return [pid for pid in marked(token) if f"-m {module}" in command_of(pid)]


def left_over(token: str, patience_s: float = 15.0) -> list[str]:
    """Command lines of marked processes that do not end; they are killed."""
    with contextlib.suppress(Hang):
        wait_for("all processes end", lambda: not any(map(command_of, marked(token))), patience_s)
    found = []
    for pid in marked(token):
        if command := command_of(pid):
            found.append(command)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return found


def signal_all(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@contextlib.contextmanager
def stopped(pids: Callable[[], Sequence[int]]) -> Iterator[None]:
    """Processes that do not run meanwhile."""
    held = list(pids())
    assert held, "there is no process to be stopped"
    signal_all(held, signal.SIGSTOP)
    try:
        yield
    finally:
        signal_all(held, signal.SIGCONT)


@contextlib.contextmanager
def throttled(pids: Callable[[], Sequence[int]], share: float = 0.15) -> Iterator[None]:
    """Processes that run for a share of the time only, in turns of a fifth of a second."""
    done = threading.Event()
    assert pids(), "there is no process to be throttled"

    def work() -> None:
        while not done.is_set():
            held = list(pids())
            signal_all(held, signal.SIGSTOP)
            done.wait(TURN_S * (1 - share))
            signal_all(held, signal.SIGCONT)
            done.wait(TURN_S * share)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
