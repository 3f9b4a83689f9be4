"""A cable between two network namespaces, as a process: IP packets from one TUN device to the other, late, or never.

Arguments: the names of the two devices, which it makes and which the caller then moves where they belong. Commands on
standard input, one a line:

    quality DELAY_MS JITTER_MS LOSS    each packet takes DELAY_MS and up to JITTER_MS more (so packets overtake each
                                       other), a share LOSS of them never arrives
    cut                                none arrives
    count                              say how many packets went through and how many were lost

Everything random comes of one seed.
"""

from __future__ import annotations

import errno
import fcntl
import heapq
import os
import random
import select
import struct
import sys
import time
from dataclasses import dataclass, field

TUN = "/dev/net/tun"
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_PACKET_BYTES = 65536


def open_tun(name: str) -> int:
    """A new TUN device. Raises `OSError` where that is not permitted."""
    descriptor = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH", name.encode(), _IFF_TUN | _IFF_NO_PI))
    return descriptor


@dataclass(slots=True)
class Cable:
    """What is under way, and how the cable is at present."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    is_cut: bool = False
    carried: int = 0
    lost: int = 0
    random: random.Random = field(default_factory=lambda: random.Random(7))
    _under_way: list[tuple[float, int, int, bytes]] = field(default_factory=list)

    def obey(self, command: list[str]) -> None:
        match command:
            case ["quality", delay_ms, jitter_ms, loss]:
                self.delay_s, self.jitter_s, self.loss = float(delay_ms) / 1e3, float(jitter_ms) / 1e3, float(loss)
                self.is_cut = False
            case ["cut"]:
                self.is_cut = True
            case ["count"]:
                print(f"carried {self.carried} lost {self.lost}", flush=True)
                return
        print("done", flush=True)

    def take(self, packet: bytes, out: int, now_s: float) -> None:
        """A packet comes in; ``out`` is where it should come out."""
        if self.is_cut or self.random.random() < self.loss:
            self.lost += 1
            return
        self.carried += 1
        due = now_s + self.delay_s + self.random.uniform(0, self.jitter_s)
        heapq.heappush(self._under_way, (due, self.carried, out, packet))

    def give(self, now_s: float) -> float | None:
        """Let out what has arrived; the seconds until the next packet does."""
        while self._under_way and self._under_way[0][0] <= now_s:
            _, _, out, packet = heapq.heappop(self._under_way)
            try:
                os.write(out, packet)
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EIO, errno.ENOBUFS):
                    raise
                self.lost += 1  # the device is full, or down
        return self._under_way[0][0] - now_s if self._under_way else None


def main() -> None:
    ends = [open_tun(name) for name in sys.argv[1:3]]
    other = {ends[0]: ends[1], ends[1]: ends[0]}
    cable = Cable()
    print("ready", flush=True)
    while True:
        wait_s = cable.give(time.monotonic())
        ready, _, _ = select.select([0, *ends], [], [], wait_s)
        for end in ready:
            if end == 0:
                said = os.read(0, 4096).decode()
                if not said:
                    return
                for line in said.splitlines():
                    cable.obey(line.split())
                continue
            try:
                while True:
                    cable.take(os.read(end, _PACKET_BYTES), other[end], time.monotonic())
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EIO):
                    raise


if __name__ == "__main__":
    main()
