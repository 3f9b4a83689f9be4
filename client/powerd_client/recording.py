"""A recorder process as its parent sees it: start it, hear from it, end it."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import secrets
import select
import shutil
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from powerd_client import journal as journals
from powerd_client.runfile import rebuild
from powerd_core.errors import PeerError, PeerTimeout, PowerdError

_START_TIMEOUT_S = 30.0
_QUIET_S = 2.0


def environment() -> dict[str, str]:
    """What a run's figures depend on, as far as it can be told without importing anything that is not imported yet."""
    found = {"host": platform.node(), "python": platform.python_version(), "system": platform.platform()}
    for name in ("torch", "numpy", "pyzmq"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


class Recording:
    """Owns one recorder process and its journal directory, from start to run file."""

    def __init__(
        self,
        out: Path,
        urls: list[str],
        *,
        overwrite: bool = False,
        source: dict[str, object] | None = None,
        trainer_pid: int | None = None,
        command: list[str] | None = None,
    ) -> None:
        """Start the recorder and wait until readings flow. A local model of CPU time follows ``trainer_pid``, or the
        machine.

        Raises `RunFileError` when the run file is in the way, `PeerError` when there is no powerd to listen to.
        """
        self.out = out.absolute()
        self.overwrite = overwrite
        self.warnings: list[str] = []
        self.journal = journals.prepare(self.out, overwrite=overwrite)
        try:
            stderr = (self.journal / "recorder.log").open("ab")
            with stderr:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "powerd_client.recorder"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    start_new_session=True,  # Ctrl-C is for the training; the recorder then ends in order
                )
            self._heard = b""
            self._tell(
                {
                    "out": str(self.out),
                    "journal": str(self.journal),
                    "urls": urls,
                    "trainer_pid": trainer_pid,
                    "overwrite": overwrite,
                    "source": source,
                    "message": {
                        "run_id": secrets.token_hex(8),
                        "created_utc": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                        "powerd_version": version("powerd"),
                        "command": command or sys.argv,
                        "environment": environment(),
                    },
                }
            )
            self._await_ready()
        except BaseException:
            self.abandon()
            raise

    @property
    def pid(self) -> int:
        """The recorder's process id."""
        return self._process.pid

    def _tell(self, document: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(document).encode() + b"\n")
        self._process.stdin.flush()

    def _hear(self, timeout_s: float) -> list[dict[str, Any]] | None:
        """What the recorder said within the time, None when it has said its last."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        if not select.select([descriptor], [], [], timeout_s)[0]:
            return []
        data = os.read(descriptor, 65536)
        if not data:
            return None
        *lines, self._heard = (self._heard + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def _await_ready(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline:
            messages = self._hear(deadline - time.monotonic())
            if messages is None:
                raise PeerError(f"the recorder ended before it began: {self._last_words()}")
            for message in messages:
                if "error" in message:
                    raise PeerError(message["error"])
                if "warning" in message:
                    self.warnings.append(message["warning"])
                if "ready" in message:
                    return
        raise PeerTimeout(f"the recorder was not ready within {_START_TIMEOUT_S:g} s: {self._last_words()}")

    def _last_words(self) -> str:
        lines = (self.journal / "recorder.log").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def abandon(self) -> None:
        """Stop the recorder at once and remove the journal: a recording that never began."""
        if hasattr(self, "_process"):
            with contextlib.suppress(OSError):  # it may have ended already
                self._tell({"abandon": True})
            self._end_process()
            self._close_pipes()
        shutil.rmtree(self.journal, ignore_errors=True)

    def _end_process(self) -> None:
        """Wait for the recorder's end; then ask for it, then make it."""
        for stop in (self._process.terminate, self._process.kill):
            try:
                self._process.wait(3)
            except subprocess.TimeoutExpired:
                stop()
        self._process.wait()

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    continue

    def finish(self, stop_ns: int, failure: str | None = None) -> None:
        """End the recording at ``stop_ns`` (host clock) and wait for the run file; problems go to stderr, one line
        each.

        With the recorder dead, the run file is built here from its journal.
        """
        ended = False
        try:
            if failure:
                self._tell({"note": failure})
            self._tell({"stop_ns": stop_ns})
        except OSError:
            pass  # it died: _hear will say so
        started, shown = time.monotonic(), False
        while not ended:
            messages = self._hear(0.2)
            if messages is None:
                break
            for message in messages:
                shown = self._show(message, started) or shown
                ended = ended or bool({"done", "error"} & message.keys())
        if shown:
            print(file=sys.stderr)
        self._process.wait()
        self._close_pipes()
        if not ended:
            self.warnings.append(f"the recorder died (status {self._process.returncode}); what it had is in {self.out}")
            try:
                rebuild(self.out, overwrite=self.overwrite)
            except (PowerdError, OSError) as error:
                self.warnings[-1] = f"the recorder died, and {error}"
        for text in [*self.warnings, *([failure] if failure else [])]:
            print(f"powerd: {text}", file=sys.stderr)

    def _show(self, message: dict[str, Any], started: float) -> bool:
        """Progress, from the third second on and only where somebody looks. Returns whether something was printed."""
        for key in ("warning", "error"):
            if key in message:
                self.warnings.append(message[key])
        if "progress" in message and time.monotonic() - started > _QUIET_S and sys.stderr.isatty():
            print(f"\rpowerd: writing {self.out.name}: {message['progress']:4.0%}", end="", file=sys.stderr, flush=True)
            return True
        return False
