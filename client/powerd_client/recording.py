"""A recording as the process sees it that began it: from its start to the run file."""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import secrets
import shutil
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from powerd_client import journal as journals
from powerd_client.recorderprocess import RecorderProcess
from powerd_client.release import release
from powerd_client.telling import end_progress, show_progress, tell
from powerd_client.together import Together
from powerd_core.errors import PeerError, PeerTimeout, PowerdError

_START_TIMEOUT_S = 30.0
_QUIET_S = 2.0
_WAITS_S = 5.0
"""After so long without a word from the recorder at the end, the user is told why nothing happens."""
_GIVE_UP_S = 60.0


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
        keys: str | os.PathLike[str] | None = None,
        together: Together | None = None,
    ) -> None:
        """Start the recorder and wait until readings flow. A local model of CPU time follows ``trainer_pid``, or the
        machine. Other ranks join it by ``together``.

        Raises `RunFileError` when the run file is in the way, `PeerError` when there is no powerd to listen to.
        """
        self.out = out.absolute()
        self.overwrite = overwrite
        self.warnings: list[str] = []
        """What is yet to be told when the run closes."""
        self.pid = 0
        """Process id of the recorder's worker, as far as it was heard of; see `listen`."""
        self._recorder: RecorderProcess | None = None
        self.journal = journals.prepare(self.out, overwrite=overwrite)
        told = _own_stderr()
        try:
            if together is not None:
                together.announce(ready=False)
            own = {journals.KEYS_ENVIRONMENT: os.fspath(Path(keys).absolute())} if keys else {}
            log, inherited = self.journal / "recorder.log", () if told is None else (told,)
            self._recorder = RecorderProcess(log, os.environ | own, inherited)
            self._recorder.tell(
                {
                    "out": str(self.out),
                    "journal": str(self.journal),
                    "urls": urls,
                    "parent_pid": os.getpid(),
                    "stderr": told,
                    "trainer_pid": trainer_pid,
                    "overwrite": overwrite,
                    "source": source,
                    "message": {
                        "run_id": secrets.token_hex(8),
                        "created_utc": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                        "powerd_version": release(),
                        "command": command or sys.argv,
                        "environment": environment(),
                    },
                }
            )
            self._await_ready()
            if together is not None:
                together.announce(ready=True)
        except BaseException as error:
            self.abandon()
            if isinstance(error, OSError) and not isinstance(error, PowerdError):
                raise PeerError(f"the recorder cannot be started: {error.strerror or error}") from error
            raise
        finally:
            if told is not None:
                os.close(told)

    @property
    def _process(self) -> RecorderProcess:
        assert self._recorder is not None, "a recording without a recorder is never handed out"
        return self._recorder

    @property
    def guardian_pid(self) -> int:
        """Process id of the recorder's guardian."""
        return self._process.pid

    def listen(self, timeout_s: float = 0.0) -> list[dict[str, Any]] | None:
        """As `RecorderProcess.hear`, with warnings and process ids taken out of it."""
        messages = self._process.hear(timeout_s)
        for message in messages or []:
            self.pid = message.get("pid", self.pid)
            if "warning" in message and not message.get("told"):
                self.warnings.append(message["warning"])
        return messages

    def _await_ready(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline:
            messages = self.listen(deadline - time.monotonic())
            if messages is None:
                raise PeerError(f"the recorder ended before it began: {self._last_words()}")
            for message in messages:
                if "error" in message:
                    raise PeerError(message["error"])
                if "ready" in message:
                    return
        raise PeerTimeout(f"the recorder was not ready within {_START_TIMEOUT_S:g} s: {self._last_words()}")

    def _last_words(self) -> str:
        lines = (self.journal / "recorder.log").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def abandon(self) -> None:
        """Stop the recorder at once and remove the journal: a recording that never began."""
        if self._recorder is not None:
            with contextlib.suppress(OSError):  # it may have ended already
                self._recorder.tell({"abandon": True})
            self._recorder.end()
            self._recorder.close_pipes()
        shutil.rmtree(self.journal, ignore_errors=True)

    def finish(self, stop_ns: int, failure: str | None = None, *, told: bool = False) -> None:
        """End the recording at ``stop_ns`` (host clock) and wait for the run file; problems go to stderr, one line
        each. ``failure`` is noted in the run, and printed unless it was ``told``.

        With the recorder dead, the run file is built here from its journal. A recorder that does not answer for a
        minute is left alone with the journal.
        """
        last_words = [{"note": failure}] if failure else []
        self._tell_all([*last_words, {"stop_ns": stop_ns}])
        if failure and not told:
            self.warnings.append(failure)
        try:
            ended = self._await_end([*last_words, {"stop_ns": stop_ns}])
        except KeyboardInterrupt:
            self._process.close_pipes()
            tell(f"the recorder (process {self.pid}) goes on by itself, and writes {self.out}")
            raise
        if ended is None:
            self.warnings.append(
                f"the recorder (process {self.pid}) has not answered for {_GIVE_UP_S:g} s: the run stays in "
                f"{self.journal}; when that process has ended: joules recover {self.out}"
            )
        else:
            self._process.wait()
        self._process.close_pipes()
        if ended is False:
            self._build()
        for text in dict.fromkeys(self.warnings):
            tell(text)

    def _tell_all(self, documents: list[dict[str, Any]]) -> None:
        with contextlib.suppress(OSError):  # it died: to listen will tell
            for document in documents:
                self._process.tell(document)

    def _await_end(self, last_words: list[dict[str, Any]]) -> bool | None:
        """Whether the recorder ended in order; None when it neither ends nor says anything."""
        started = heard = time.monotonic()
        shown = waiting = False
        try:
            while True:
                messages = self.listen(0.2)
                now = time.monotonic()
                if messages is None:
                    return False
                for message in messages:
                    heard = now
                    shown = self._show(message, started) or shown
                    if "restarted" in message:
                        self._tell_all(last_words)  # its predecessor may have taken them with it
                    if "error" in message:
                        self.warnings.append(message["error"])
                    if {"done", "error"} & message.keys():
                        return True
                if now - heard > _GIVE_UP_S:
                    return None
                if now - heard > _WAITS_S and not waiting:
                    waiting = True
                    tell(f"waiting for the recorder (process {self.pid}), which does not answer, for {_GIVE_UP_S:g} s")
        finally:
            if shown:
                end_progress()

    def _build(self) -> None:
        """The recorder's work, from what it left."""
        from powerd_client.runfile import rebuild

        self.warnings.append(f"the recorder died (status {self._process.status}); what it had is in {self.out}")
        try:
            rebuild(self.out, overwrite=self.overwrite)
        except (PowerdError, OSError) as error:
            self.warnings[-1] = f"the recorder died, and {error}"

    def _show(self, message: dict[str, Any], started: float) -> bool:
        """Progress, from the third second on. Returns whether something was printed."""
        if "progress" not in message or time.monotonic() - started <= _QUIET_S:
            return False
        return show_progress(f"writing {self.out.name}: {message['progress']:4.0%}")


def _own_stderr() -> int | None:
    """A duplicate of this process's standard error, if it has one."""
    try:
        return os.dup(2)
    except OSError:
        return None
