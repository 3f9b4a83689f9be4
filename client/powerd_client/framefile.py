"""Wire frames that the training process leaves for the recorder: a file beside the marks, in pieces that can be let go.

    frames-<token>-N.bin     whole frames, appended by one write each; piece N is complete when N + 1 exists

What is written survives the process, however it dies; a frame cut off by a kill is found by its checksum.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from powerd_core.wire import Event, encode

PIECE_BYTES: Final = 1 << 20


class FrameFile:
    """Appends frames under ``directory`` for the process ``token``. Raises `OSError` when it cannot."""

    def __init__(self, directory: Path, token: int, *, piece_bytes: int = PIECE_BYTES) -> None:
        self._base = directory / f"frames-{token:016x}"
        self._piece_bytes = piece_bytes
        self._number = 0
        self._size = 0
        self._descriptor = self._open()

    def _open(self) -> int:
        path = self._base.with_name(f"{self._base.name}-{self._number:06d}.bin")
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)

    def write(self, event: Event) -> None:
        """Append the frame of ``event``."""
        frame = encode(event)
        if self._size and self._size + len(frame) > self._piece_bytes:
            before, self._number, self._size = self._descriptor, self._number + 1, 0
            self._descriptor = self._open()
            os.close(before)
        done = os.write(self._descriptor, frame)
        self._size += done
        if done < len(frame):
            raise OSError(f"only {done} of {len(frame)} bytes were written: is the disk full?")

    def close(self) -> None:
        """Again does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        with contextlib.suppress(OSError):
            os.close(descriptor)
