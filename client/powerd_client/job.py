"""What a recorder is asked to do, how it talks to the training process, and what ends a recording.

The guardian (`powerd_client.recorder`) and the worker that it forks (`powerd_client.worker`) share all of this. Only
the standard library is needed, so that there is little in the guardian that could fail.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from powerd_client.hostclock import now_ns
from powerd_client.ranks import started, training_here
from powerd_core.text import printable

MAX_TEXT = 500
"""Characters of one text. Another machine, or the last line of a log, may have said it."""
LOST_TRAINER = "the training process ended without closing the run"
PAUSES_S = (0.0, 0.2, 0.5, 1.0, 2.0)
WINDOW_S = 60.0
_LOOK_NS = 20_000_000
_MAX_TOLD = 50
"""A recorder that has more to say than this says it in the run file only."""

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
    overwrite: bool = False
    source: dict[str, object] | None = None
    stderr: int | None = None
    """A duplicate of the parent's standard error."""


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
    document["message"]["environment"] = document["message"].get("environment", {}) | training_here()
    return Job(**{**document, "out": Path(document["out"]), "journal": Path(document["journal"])})


def say(**message: object) -> None:
    """One JSON object to the parent, if it is still there."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(message).encode() + b"\n")


class UserHandler(logging.Handler):
    """Prints a warning at once on the training's own standard error, one line, where that is possible.

    The parent hears it too, and whether it still has to be told when the run closes.
    """

    def __init__(self, descriptor: int | None) -> None:
        super().__init__(logging.WARNING)
        self._descriptor = descriptor
        self._count = 0

    def emit(self, record: logging.LogRecord) -> None:
        text = printable(record.getMessage(), limit=MAX_TEXT)
        self._count += 1
        if self._count <= _MAX_TOLD:
            say(warning=text, told=self._write(text))

    def _write(self, text: str) -> bool:
        if self._descriptor is None:
            return False
        try:
            # A reader that does not read must not stop the recorder.
            if not select.select([], [self._descriptor], [], 0)[1]:
                return False
            os.write(self._descriptor, f"powerd: {text}\n".encode())
        except (OSError, ValueError):
            return False
        return True

    def close(self) -> None:
        """Whoever waits for the end of the training's output shall not wait for the recorder too."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None
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
            self._look_ns = now + _LOOK_NS
            self._is_gone = self._started is None or started(self._pid) != self._started
        return self._is_gone


class Orders:
    """Whether, and when, a recording is to end: by the parent's word, by SIGTERM, or with the training process.

    The parent writes one JSON object a line on standard input.
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
            notes.append(LOST_TRAINER)
        return notes

    def _commands(self) -> list[dict[str, Any]]:
        """All that has come, without waiting."""
        commands: list[dict[str, Any]] = []
        while not self.input_ended and select.select([0], [], [], 0)[0]:
            data = os.read(0, 65536)
            self.input_ended = not data
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                try:
                    command = json.loads(line)
                except ValueError:
                    continue  # the end of a line whose beginning a worker took with it
                if isinstance(command, dict):
                    commands.append(command)
        return commands


class Attempts:
    """How often what died is started again: five times within a minute, each after a longer pause."""

    def __init__(self) -> None:
        self._times: deque[float] = deque()

    def pause(self, now_s: float) -> float | None:
        """The seconds to wait before starting again what has just died; None when that has been tried often enough."""
        while self._times and self._times[0] < now_s - WINDOW_S:
            self._times.popleft()
        if len(self._times) == len(PAUSES_S):
            return None
        pause = PAUSES_S[len(self._times)]
        self._times.append(now_s)
        return pause


def manner_of_death(status: int) -> str:
    """``died (SIGKILL)`` or ``failed (status 3)``, from an exit status in which a signal is negative."""
    if status >= 0:
        return f"failed (status {status})"
    try:
        return f"died ({signal.Signals(-status).name})"
    except ValueError:
        return f"died (signal {-status})"
