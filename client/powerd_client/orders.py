"""What ends a recording: the parent's word, a signal, or the end of the training process."""

from __future__ import annotations

import json
import os
import select
import signal
from typing import Any

from powerd_client.hostclock import now_ns

LOST_TRAINER = "the training process ended without closing the run"


class TermFlag:
    """Set by SIGTERM: end in order."""

    def __init__(self) -> None:
        self.is_set = False
        signal.signal(signal.SIGTERM, self._set)

    def _set(self, *_: object) -> None:
        self.is_set = True


class TrainerWatch:
    """Whether the process that is recorded still lives, by a file descriptor where the kernel has them.

    Neither the pipe nor the parent's number can tell: forked children of the training hold the pipe open, and the
    parent of a worker is its guardian.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._poll: select.poll | None = None
        self._ended = False
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            self._ended = True
        except (OSError, AttributeError):
            return  # an old kernel, or one that does not allow it
        else:
            self._poll = select.poll()
            self._poll.register(descriptor, select.POLLIN)

    def is_gone(self) -> bool:
        if not self._ended:
            self._ended = bool(self._poll.poll(0)) if self._poll else not _answers(self._pid)
        return self._ended


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


class Commands:
    """What the parent says on standard input, one JSON object a line."""

    def __init__(self) -> None:
        self.ended = False
        """The parent has closed its end, which it does when it dies."""
        self._rest = b""

    def read(self) -> list[dict[str, Any]]:
        """All that has come, without waiting."""
        found: list[dict[str, Any]] = []
        while not self.ended and select.select([0], [], [], 0)[0]:
            data = os.read(0, 65536)
            self.ended = not data
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                try:
                    command = json.loads(line)
                except ValueError:
                    continue  # the end of a line whose beginning a worker took with it
                if isinstance(command, dict):
                    found.append(command)
        return found


class Orders:
    """Whether, and when, a recording is to end."""

    def __init__(self, terminated: TermFlag, trainer: TrainerWatch) -> None:
        self.stop_ns: int | None = None
        """The last moment that belongs to the run."""
        self.is_complete = True
        """Whether the training closed the run itself."""
        self.is_abandoned = False
        """Whether nobody wants the run any more."""
        self.commands = Commands()
        self._terminated = terminated
        self._trainer = trainer

    @property
    def is_ending(self) -> bool:
        return self.stop_ns is not None or self.is_abandoned

    def look(self) -> list[str]:
        """Take notice of what has come; what of it belongs into the run file."""
        notes = []
        for command in self.commands.read():
            self.is_abandoned = self.is_abandoned or "abandon" in command
            if isinstance(stop_ns := command.get("stop_ns"), int):
                self._stop(stop_ns)
            if "note" in command:
                notes.append(str(command["note"]))
        if self._terminated.is_set:
            self._stop(now_ns())
        if (self.commands.ended or self._trainer.is_gone()) and not self.is_ending:
            self._stop(now_ns())
            self.is_complete = False
            notes.append(LOST_TRAINER)
        return notes

    def _stop(self, stop_ns: int) -> None:
        """The first word counts: a worker may hear again what it has heard."""
        if self.stop_ns is None:
            self.stop_ns = stop_ns
