"""The firmware as a process behind a pseudo terminal. Arguments: the symbolic link to make, the number of sensors.

Real time, simulated sensors. Commands on standard input, one a line: ``garbage`` puts noise between two frames,
``edge N`` turns the marker input, ``end`` ends the process, which is what unplugging looks like from the other side.
"""

import os
import pty
import random
import select
import sys
import time
import tty
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[2] / "firmware")]

from powernode.node import Node  # noqa: E402
from simulated_pico import TICKS, SimulatedPico, chips  # noqa: E402


class ProcessPico(SimulatedPico):
    """The simulated sensors with this machine's time and a pseudo terminal."""

    def __init__(self, master: int, count: int) -> None:
        super().__init__(chips(count), boot=random.getrandbits(32))
        self.master = master

    def ticks(self) -> int:
        return time.monotonic_ns() // 1000 % TICKS

    def read(self) -> bytes:
        try:
            return os.read(self.master, 64)
        except BlockingIOError:
            return b""
        except OSError:
            # Nobody has the other side open.
            return b""

    def write(self, buffer: memoryview) -> int:
        try:
            return os.write(self.master, buffer)
        except OSError:
            return 0

    def idle(self) -> None:
        ready, _, _ = select.select([self.master, 0], [], [], 0.0002)
        if 0 in ready:
            # Not readline: what it buffers, select does not see.
            said = os.read(0, 4096).decode()
            for line in said.splitlines() or [""]:
                self.obey(line.split())

    def obey(self, command: list[str]) -> None:
        match command:
            case ["garbage"]:
                os.write(self.master, random.randbytes(200) + b"\0")
            case ["edge", level]:
                self.turn(int(level))
            case _:
                sys.exit(0)


def main() -> None:
    link, count = Path(sys.argv[1]), int(sys.argv[2])
    master, slave = pty.openpty()
    tty.setraw(slave)
    os.set_blocking(master, False)
    new = link.with_suffix(".new")
    new.symlink_to(os.ttyname(slave))
    new.rename(link)
    print("ready", flush=True)
    Node(ProcessPico(master, count)).run()


if __name__ == "__main__":
    main()
