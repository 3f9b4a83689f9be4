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

from powerd_core.errors import PeerError


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


class LocalDaemon:
    """A powerd process on a private ipc endpoint, which ends when it is stopped or when this process is gone."""

    def __init__(self, source: dict[str, object], log: Path) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="powerd-"))
        self.url = f"ipc://{self._directory}/powerd"
        self._log = log
        config = self._directory / "powerd.toml"
        # A JSON string, number or boolean is also a TOML value.
        options = "\n".join(f"{key} = {json.dumps(value)}" for key, value in source.items())
        config.write_text(f'[server]\nlisten = "{self.url}"\nboard = "local"\n\n[[source]]\n{options}\n')
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "powerd_daemon",
                    "run",
                    "--config",
                    config,
                    "--parent-pid",
                    str(os.getpid()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def check(self) -> None:
        """Raises `PeerError` with the daemon's last words when it has ended."""
        status = self._process.poll()
        if status is not None:
            lines = self._log.read_text(errors="replace").strip().splitlines()
            raise PeerError(f"the local powerd ended with status {status}: {lines[-1] if lines else 'it said nothing'}")

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        """End it, by force after two seconds, and remove what it left."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + 2
            while self._process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.01)
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)
