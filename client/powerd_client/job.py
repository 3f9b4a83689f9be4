"""What a recorder is asked to do, and how it talks: to its parent over pipes, to the user on the training's stderr."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from powerd_client.ranks import training_here
from powerd_core.text import printable

_MAX_TOLD = 50
"""A recorder that has more to say than this says it in the run file only."""
MAX_TEXT = 500
"""Characters of one text. Another machine, or the last line of a log, may have said it."""


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


class Voice:
    """Tells the user what cannot wait until the run is closed: one line on the training's own standard error."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self._said = 0

    def warn(self, text: str) -> None:
        """Tell it now if possible; the parent hears whether it still has to be told at the end."""
        text = printable(text, limit=MAX_TEXT)
        self._said += 1
        if self._said <= _MAX_TOLD:
            say(warning=text, told=self._tell(text))

    def _tell(self, text: str) -> bool:
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


class Shared:
    """What the guardian and its workers must both know, in memory that outlives each of them."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, mmap.PAGESIZE)

    @property
    def is_ready(self) -> bool:
        """Whether the recording has begun."""
        return self._page[0] == 1

    def set_ready(self) -> None:
        self._page[0] = 1
