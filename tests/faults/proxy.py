"""A TCP proxy as a process of its own: a network that a test can cut, stall, slow down and spoil.

Arguments: the host to listen at, the host to connect to, and the ports, which are the same on both. Commands on
standard input, one a line:

    pass                everything goes through at once
    cut                 all connections are reset, new ones are refused
    reset               all connections are reset once
    stall               nothing goes through, in either direction, though connections stay
    slow DELAY_S RATE   each piece goes out DELAY_S later, RATE bytes a second on each connection
    spoil SHARE TO      a share of the pieces is damaged on their way TO the ``client``, the ``board`` or ``both``
    garbage             every client is sent bytes that nobody asked for
    count               say as JSON what was done so far to connections and pieces

Everything random comes of one seed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import struct
import sys
from collections import Counter
from dataclasses import dataclass, field

PIECE = 8192
QUEUED = 64
"""Pieces that may be under way in one direction; what comes on top waits in the sender's kernel."""
_RESET = struct.pack("ii", 1, 0)


@dataclass(slots=True)
class Way:
    """How the network is at present."""

    delay_s: float = 0.0
    rate: float = 0.0
    spoiled: float = 0.0
    toward: str = "both"
    is_due: bool = False
    """Whether the next piece is spoiled, whatever the share: a fault that is asked for happens."""
    is_open: asyncio.Event = field(default_factory=asyncio.Event)
    random: random.Random = field(default_factory=lambda: random.Random(1))

    def become(self, command: list[str]) -> None:
        """Take over what a command says about pieces that come from now on."""
        self.delay_s = self.rate = self.spoiled = 0.0
        self.is_due = False
        if command[0] == "slow":
            self.delay_s, self.rate = float(command[1]), float(command[2])
        if command[0] == "spoil":
            self.spoiled, self.toward, self.is_due = float(command[1]), command[2], True
        if command[0] == "stall":
            self.is_open.clear()
        else:
            self.is_open.set()

    def damaged(self, data: bytes, toward: str) -> bytes:
        """A piece as it arrives: now and then with a flipped bit, a missing end or something in between."""
        if self.toward not in (toward, "both"):
            return data
        if self.random.random() >= self.spoiled and not self.is_due:
            return data
        self.is_due = False
        at = self.random.randrange(len(data))
        match self.random.randrange(3):
            case 0:
                return data[:at] + bytes([data[at] ^ (1 << self.random.randrange(8))]) + data[at + 1 :]
            case 1:
                return data[:at]
        return data[:at] + self.random.randbytes(self.random.randint(1, 200)) + data[at:]


class Proxy:
    """The listening sockets and what goes through them."""

    def __init__(self, listen: str, target: str, ports: list[int]) -> None:
        self._listen, self._target, self._ports = listen, target, ports
        self.way = Way()
        self.counts = Counter({"reset": 0, "held": 0, "late": 0, "choked": 0, "spoiled": 0})
        """Connections that were reset; pieces that were held, delayed, made to wait for bandwidth, or spoiled."""
        self._servers: list[asyncio.Server] = []
        self._pairs: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        if self._servers:
            return
        for port in self._ports:

            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int = port) -> None:
                await self._serve(reader, writer, port)

            self._servers.append(await asyncio.start_server(serve, self._listen, port, limit=PIECE))

    async def obey(self, command: list[str]) -> None:
        if command[0] == "count":
            print(json.dumps({"counts": self.counts}), flush=True)
            return
        self.way.become(command)
        match command[0]:
            case "cut":
                for server in self._servers:
                    server.close()
                self._servers.clear()
                self._reset()
            case "reset":
                self._reset()
            case "garbage":
                for client, _ in self._pairs:
                    client.write(self.way.random.randbytes(500))
        if command[0] != "cut":
            await self.open()

    def _reset(self) -> None:
        self.counts["reset"] += len(self._pairs)
        for pair in self._pairs:
            for writer in pair:
                # With no time to linger, closing sends a reset: the other side learns it at once.
                made = writer.get_extra_info("socket")
                with contextlib.suppress(OSError):
                    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(self._target, port, limit=PIECE)
        except OSError:
            writer.transport.abort()
            return
        pair = writer, far_writer
        self._pairs.add(pair)
        try:
            await asyncio.gather(
                self._carry(reader, far_writer, "board"),
                self._carry(far_reader, writer, "client"),
                return_exceptions=True,
            )
        finally:
            self._pairs.discard(pair)
            for one in pair:
                one.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, toward: str) -> None:
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(QUEUED)
        sender = asyncio.create_task(self._send(queue, writer))
        try:
            while data := await reader.read(PIECE):
                self.counts["held"] += not self.way.is_open.is_set()
                await self.way.is_open.wait()
                due = asyncio.get_running_loop().time() + self.way.delay_s
                damaged = self.way.damaged(data, toward)
                self.counts["spoiled"] += damaged != data
                self.counts["late"] += self.way.delay_s > 0
                await queue.put((due, damaged))
                if self.way.rate:
                    self.counts["choked"] += 1
                    await asyncio.sleep(len(data) / self.way.rate)
        finally:
            sender.cancel()
            # One direction that ended ends both.
            writer.transport.abort()

    async def _send(self, queue: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, data = await queue.get()
            if (left := due - loop.time()) > 0:
                await asyncio.sleep(left)
            await self.way.is_open.wait()
            writer.write(data)
            await writer.drain()


async def main() -> None:
    listen, target, *ports = sys.argv[1:]
    proxy = Proxy(listen, target, [int(port) for port in ports])
    proxy.way.is_open.set()
    await proxy.open()
    print("ready", flush=True)
    commands = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while line := await commands.readline():
        await proxy.obey(line.decode().split())
        print("done", flush=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
