"""A powerd of one's own, for a run that names none: the best source that this machine has."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from powerd_client.job import Attempts, manner_of_death
from powerd_client.log import last_line
from powerd_core.errors import PeerError

_FAREWELL_S = 1.0
"""So long a powerd may take to end when the process that started it is gone."""
_LONGEST_BYTES = 107 - len("/powerd.clock")
"""Of a directory: a socket's path has 107 bytes at most (unix(7), with the zero at its end 108)."""


def best_source(pid: int | None) -> dict[str, object]:
    """The options of the best source here: the NVIDIA driver's readings where there is a GPU, else a model from CPU
    time.

    The model follows process ``pid``, or the whole machine for None.
    """
    model: dict[str, object] = {"kind": "cpu-model", "name": "cpu"} | ({"pid": pid} if pid else {})
    try:
        import pynvml
    except ImportError:
        return model
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        pynvml.nvmlShutdown()
        if count:
            return {"kind": "nvml", "name": "nvml"}
    return model


def _private_directory() -> Path:
    """A directory that only this user can enter, with a path short enough for sockets."""
    directory = Path(tempfile.mkdtemp(prefix="powerd-"))
    if len(os.fsencode(directory)) > _LONGEST_BYTES:
        directory.rmdir()
        directory = Path(tempfile.mkdtemp(prefix="powerd-", dir="/tmp"))
    return directory


class LocalDaemon:
    """A powerd process on a private ipc endpoint, which ends when it is stopped or the process that started it is gone.

    Call `tend` now and then: a daemon that died is started again at the same address.
    """

    def __init__(self, source: dict[str, object], log: Path) -> None:
        """Raises `OSError` when there is no place for its socket."""
        self._directory = _private_directory()
        self.url = f"ipc://{self._directory}/powerd"
        self._log = log
        self._attempts = Attempts()
        self._start_s: float | None = None
        self._process: subprocess.Popen[bytes] | None = None
        # A JSON string, number, boolean or list of them is also a TOML value.
        options = "\n".join(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in source.items())
        (self._directory / "powerd.toml").write_text(
            f'[server]\nlisten = "{self.url}"\nboard = "local"\n\n[[source]]\n{options}\n', encoding="utf-8"
        )

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

    def tend(self) -> str | None:
        """Start again what died, with pauses that grow. What the user should be told, if anything."""
        now_s = time.monotonic()
        if self._process is not None and (status := self._process.poll()) is not None:
            self._process = None
            pause = self._attempts.pause(now_s)
            ended = f"the local powerd {manner_of_death(status)}"
            if status >= 0:  # one that was killed did not say why
                ended += f": {last_line(self._log)}"
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
