"""The recorder as a child of this process: what it is told, what it says, and its end."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_END_S = 3.0
"""So long it may take to end by itself, and then by SIGTERM."""


class RecorderProcess:
    """One `powerd_client.recorder`. It is the guardian; ``pid`` is told by its worker, see `Recording`."""

    def __init__(self, log: Path, environment: Mapping[str, str], inherited: Sequence[int] = ()) -> None:
        """Start it with its standard error in ``log`` and the descriptors ``inherited``. Raises `OSError`."""
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "powerd_client.recorder"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=environment,
                pass_fds=inherited,
                start_new_session=True,  # Ctrl-C is for the training; the recorder then ends in order
            )
        self._heard = b""

    @property
    def pid(self) -> int:
        """Of the guardian."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """How it ended, if it is known that it did."""
        return self._process.returncode

    def tell(self, document: Mapping[str, Any]) -> None:
        """One JSON object on its standard input. Raises `OSError` when it does not listen any more."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(document).encode() + b"\n")
        self._process.stdin.flush()

    def hear(self, timeout_s: float) -> list[dict[str, Any]] | None:
        """What it said within the time, None when it has said its last."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        if not select.select([descriptor], [], [], timeout_s)[0]:
            return []
        data = os.read(descriptor, 65536)
        if not data:
            return None
        *lines, self._heard = (self._heard + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def wait(self, timeout_s: float | None = None) -> None:
        """Until it has ended. Raises `subprocess.TimeoutExpired`."""
        self._process.wait(timeout_s)

    def end(self) -> None:
        """Wait for its end; then ask for it, then make it. Its worker does not outlive it."""
        for stop in (self._process.terminate, self._process.kill):
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                stop()
        self._process.wait()
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close_pipes(self) -> None:
        """Neither speak to it nor listen any more."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what could not be flushed is for nobody
                    pipe.close()
