"""A board in QEMU: what it is given, how it is switched on and off, and a shell in it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
FIRST_PORT = int(os.environ.get("BOARD_PORT", "17360"))
ARCH = os.environ.get("ARCH", "amd64")
"""Of the machine, as Debian names it."""
EMULATED = {
    "amd64": ["qemu-system-x86_64", "-cpu", "max"],
    # As in a Raspberry Pi 4.
    "arm64": ["qemu-system-aarch64", "-M", "virt", "-cpu", "cortex-a72"],
}
CONSOLE = {"amd64": "ttyS0", "arm64": "ttyAMA0"}
KERNEL = "quiet net.ifnames=0 mitigations=off no_timer_check panic=-1"
WHEELS = {"amd64": "manylinux2014_x86_64", "arm64": "manylinux2014_aarch64"}
PORTS = 20
"""Of one machine, each the same in it and here, for a description names them: of powerd, and of a second one."""
CARRIED = ["powerd", "client", "analytics", "firmware", "tests/board_vm", "tests/firmware/support"]
CARRIED += ["tests/daemon/support", "pyproject.toml", "hatch_build.py", "README.md", "LICENSE"]


class Failed(Exception):
    """Something of the machine is not as it must be."""


def make_payload(out: Path) -> Path:
    """A disk with a copy of the repository and with wheels."""
    tree = out / "payload"
    shutil.rmtree(tree, ignore_errors=True)
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *CARRIED]
    for name in subprocess.run(listed, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout.splitlines():
        target = tree / "powerd" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, target)
    pip, wheels = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"], str(tree / "wheels")
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", wheels, str(REPOSITORY)], check=True)
    (powerd,) = (tree / "wheels").glob("powerd-*.whl")
    for_debian = ["--only-binary", ":all:", "--python-version", "3.11", "--platform", WHEELS[ARCH]]
    subprocess.run([*pip, "download", *for_debian, "--dest", wheels, f"{powerd}[board]"], check=True)
    disk = out / "payload.img"
    disk.unlink(missing_ok=True)
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-d", str(tree), str(disk), "64M"], check=True)
    return disk


class Board:
    """One machine, whose files are in ``out``. `sh` needs it switched on."""

    def __init__(self, out: Path, number: int, tell: Callable[[str], None]) -> None:
        self.out, self.tell, self.status = out / f"board{number}", tell, 0
        """The status is that of the last command."""
        self.name, self.port = f"machine {number + 1}", FIRST_PORT + number * PORTS
        self.second_port = self.port + PORTS // 2
        self.image = out
        self.out.mkdir(exist_ok=True)
        self._qemu: subprocess.Popen[bytes] | None = None
        self._shell: socket.socket | None = None
        self._number = 0

    def switch_on(self) -> float:
        """Boot; returns the seconds until there is a shell."""
        begun_s = time.monotonic()
        path = self.out / "shell"
        path.unlink(missing_ok=True)
        ports = [first + i for first in (self.port, self.second_port) for i in range(3)]
        forward = ",".join(f"hostfwd=tcp:127.0.0.1:{port}-:{port}" for port in ports)
        command = [
            *EMULATED[ARCH], "-accel", "tcg,thread=multi", "-smp", "2", "-m", "768",
            "-display", "none", "-no-reboot", "-nodefaults", "-serial", f"file:{self.out / 'console.log'}",
            "-kernel", str(self.image / "vmlinuz"), "-initrd", str(self.image / "initrd"),
            "-append", f"root=/dev/vda rw console={CONSOLE[ARCH]} {KERNEL}",
            "-drive", f"file={self.out / 'board.img'},format=raw,if=virtio,cache=writeback",
            "-drive", f"file={self.image / 'payload.img'},format=raw,if=virtio,readonly=on",
            "-nic", f"user,model=virtio-net-pci,restrict=on,{forward}",
            "-device", "virtio-serial", "-chardev", f"socket,id=shell,path={path},server=on,wait=on",
            "-device", "virtconsole,chardev=shell",
        ]  # fmt: skip
        self._qemu = subprocess.Popen(command)
        self._wait(path.exists, 120)
        self._shell = socket.socket(socket.AF_UNIX)
        self._shell.connect(str(path))
        self._until(rb"\nREADY\r?\n", 900)
        self._shell.sendall(b"PS1= PS2=\n")
        self.sh("true", quiet=True)
        return time.monotonic() - begun_s

    def cut_power(self) -> None:
        """Kill the machine: what it had not synced is gone."""
        if self._qemu is not None:
            self._qemu.kill()
            self._qemu.wait()

    def reboot(self) -> float:
        """Shut down as `reboot` does, and boot. Returns the seconds of both."""
        begun_s = time.monotonic()
        assert self._qemu is not None
        assert self._shell is not None
        self._shell.sendall(b"systemctl reboot\n")
        self._qemu.wait(600)  # it ends instead: -no-reboot
        self.switch_on()
        return time.monotonic() - begun_s

    def sh(
        self, command: str, *, limit_s: float = 600, user: str = "root", check: bool = True, quiet: bool = False
    ) -> str:
        """What a command prints. It goes into the transcript unless ``quiet``."""
        assert self._shell is not None
        wrapped = shlex.quote(f"cd; {command}" if user == "root" else f"cd /home/{user}/powerd; {command}")
        inner = f"sh -c {wrapped}" if user == "root" else f"sudo -u {user} -i sh -c {wrapped}"
        self._number = n = self._number + 1  # so that what ended too late is not taken for this
        self._shell.sendall(
            f'{inner} </dev/null >/tmp/said 2>&1; s=$?; echo "<{n}>"; cat /tmp/said; echo "<<{n}:$s>>"\n'.encode()
        )
        _, match = self._until(rf"(?s)<{n}>\r?\n(.*?)<<{n}:(\d+)>>\r?\n".encode(), limit_s)
        said, self.status = match[1].decode(errors="replace").replace("\r", ""), int(match[2])
        status = self.status
        if not quiet or (check and status):
            self.tell(
                f"{'#' if user == 'root' else '$'} {command}\n{said.rstrip()}" + (f"\n[{status}]" if status else "")
            )
        if check and status:
            raise Failed(f"{command}: status {status}")
        return said

    def until(self, command: str, limit_s: float = 300, *, user: str = "root") -> str:
        """Run a command quietly until it succeeds."""
        end_s = time.monotonic() + limit_s
        while True:
            said = self.sh(f"{command} || echo NOT-YET", quiet=True, user=user, check=False)
            if "NOT-YET" not in said:
                return said
            if time.monotonic() > end_s:
                raise Failed(f"{command}: not within {limit_s:g} s: {said}")
            time.sleep(0.3)

    def _until(self, pattern: bytes, limit_s: float) -> tuple[bytes, re.Match[bytes]]:
        assert self._shell is not None
        data, end_s = b"", time.monotonic() + limit_s
        while not (match := re.search(pattern, data)):
            self._shell.settimeout(max(end_s - time.monotonic(), 0.01))
            try:
                piece = self._shell.recv(65536)
            except TimeoutError:
                raise Failed(f"nothing like {pattern!r} within {limit_s:g} s: {data[-2000:]!r}") from None
            if not piece:
                raise Failed("the machine has ended")
            data += piece
        return data[: match.start()], match

    def _wait(self, condition: Callable[[], bool], limit_s: float) -> None:
        end_s = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > end_s:
                raise Failed("QEMU does not begin")
            time.sleep(0.05)
