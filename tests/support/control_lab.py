"""A machine of fake GPUs with a control helper on it, as a process, and holders that are processes too."""

import getpass
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from powerd_client.knobs.control import HelperSocket
from powerd_core.errors import ControlError
from support import file_nvml
from support.steady import wait_for

FOUND_W, ASKED_W = 260.0, 200.0
RULE = """
sm_clock_found = "unlocked"
[[allow]]
user = "{user}"
devices = ["*"]
knobs = ["power_cap", "sm_clock"]
power_cap_w = [120, 280]
{more}
"""


class Lab:
    """A machine of fake GPUs with a helper on it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.socket = folder, folder / "socket"
        self.nvml = file_nvml.fresh(folder / "gpus.json", 2)
        monkeypatch.setenv("POWERD_FAKE_NVML", str(self.nvml))
        monkeypatch.setenv("POWERD_CONTROL", str(self.socket))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setitem(sys.modules, "pynvml", file_nvml)
        support = str(Path(file_nvml.__file__).parent)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([support, os.environ.get("PYTHONPATH", "")]))
        self.policy = folder / "control.toml"
        self.allow()
        self.process: subprocess.Popen[str] | None = None

    def allow(self, more: str = "") -> None:
        self.policy.write_text(RULE.format(user=getpass.getuser(), more=more))

    def start(self) -> None:
        command = [sys.executable, "-m", "powerd_control", "--nvml", "file_nvml", "--simulated"]
        command += ["--socket", str(self.socket), "--policy", str(self.policy), "--sysfs", str(self.folder / "sys")]
        log = (self.folder / "log").open("a")
        self.process = subprocess.Popen(command, stderr=log, text=True)
        log.close()
        wait_for(self.is_up)

    def is_up(self) -> bool:
        try:
            HelperSocket(self.socket).close()
        except ControlError:
            return False
        return True

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        assert self.process.wait(10) == -signal.SIGKILL

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(20)

    def caps_w(self) -> list[float]:
        with file_nvml.opened(self.nvml) as state:
            return [gpu["limit_mw"] / 1e3 for gpu in state["gpus"]]

    @contextmanager
    def holder(self, *levels: str, device: str = "gpu0"):
        """`powerd control set` as a process of its own."""
        command = [sys.executable, "-c", HOLDER, device, *levels]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert "held" in process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


HOLDER = """
import sys, time
from powerd_client.knobs.control import Hold
hold = Hold(dict(w.split("=") for w in sys.argv[2:]), [sys.argv[1]], name="holder", ttl_s=3).acquire()
print("held", hold.lease.lease, flush=True)
time.sleep(100)
"""
