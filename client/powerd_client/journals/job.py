"""The job of a recorder: what the training and its recorder say to each other, and what a worker inherits.

The training's process writes a JSON object on the recorder's standard input (`Job`), later its `Orders`; the recorder
answers with JSON objects on its standard output, one a line (`say`). Standard library only, as its guardian.
"""

from __future__ import annotations

import contextlib
import json
import logging
import mmap
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from powerd_client.host.hostclock import now_ns, started
from powerd_client.host.job_identity import job_here
from powerd_client.host.local_powerd import LocalDaemon
from powerd_client.host.ownership import open_own
from powerd_client.host.readiness import is_readable, is_writable
from powerd_client.journals.ranks import training_here
from powerd_core.text import printable

MAX_TEXT = 500
"""Characters of one text. Another machine, or the last line of a log, may have said it."""
_TRAINER_LOOK_NS = 20_000_000

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
    quiet: bool = True
    """Whether nobody wants the result of a run whose training was killed."""
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
    job = job_here()
    document["message"]["environment"] |= training_here() | ({} if job is None else job.document)
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
    descriptor = open_own(log_file, os.O_WRONLY | os.O_APPEND)
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
        if not self.show(f"powerd: {text}"):
            say(warning=text)

    def show(self, text: str) -> bool:
        """Print lines; whether that could be done."""
        # A reader that does not read must not stop the recorder.
        with contextlib.suppress(OSError, ValueError):
            if self._descriptor is not None and is_writable(self._descriptor):
                return os.write(self._descriptor, f"{text}\n".encode()) > 0
        return False

    def let_go(self) -> None:
        """The training has ended, and whoever waits for the end of its output shall not wait for the recorder too:
        let go of a pipe. Of a terminal or a file nobody waits for the end."""
        with contextlib.suppress(OSError):
            mode = os.fstat(self._descriptor).st_mode if self._descriptor is not None else 0
            if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
                self.close()

    def close(self) -> None:
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
        while not self.input_ended and is_readable(0):
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


@dataclass(slots=True)
class Inherited:
    """What a worker has of its guardian: the memory that the fork leaves it, so that a later worker has it too."""

    job: Job
    user: UserHandler
    trainer: TrainerWatch
    ready: mmap.mmap
    """Outlives each worker: 1 when the recording has begun."""
    death: str | None
    """How the last worker ended, where another one takes its place."""
    daemon: LocalDaemon | None = None
    notes: list[str] = field(default_factory=list)
    """What the user should know of the local powerd's sources."""
    terminations: list[int] = field(default_factory=list)
    """The SIGTERMs that came."""
