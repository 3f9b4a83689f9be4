"""A whole powerd on real sockets under hostile peers: it lives, and its reader loses nothing.

Unlike the other targets this one drives a process of its own, since what it is after aborts the process. One powerd
serves all inputs; the reader beside them asks for every number of the stream, from the first input to the last.
"""

from __future__ import annotations

import atexit
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import zmq

from fuzzing.hostile_peers import PATIENCE_S, Resetter, harass
from fuzzing.picker import Picker
from powerd_core import Block, Want, decode, encode

OPEN_PEERS = 50
"""So many silent connections stay open at a time."""
SUPPORT = Path(__file__).parents[1] / "daemon" / "support"
START_S = 30.0


class Powerd:
    """A `powerd run` with a source of 1000 scans a second, and the ports on which it listens."""

    def __init__(self, *options: str) -> None:
        self.directory = tempfile.TemporaryDirectory()
        config = Path(self.directory.name) / "powerd.toml"
        config.write_text('[server]\n[[source]]\nkind = "steady_source:SteadySource"\n')
        command = [sys.executable, "-P", "-m", "powerd_daemon", "run", "--config", str(config), *options]
        environment = os.environ | {"PYTHONPATH": str(SUPPORT)}
        # What it says goes to a file: a pipe that nobody empties would stop it.
        self.log = Path(self.directory.name) / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, "--listen", "tcp://127.0.0.1:*", "--parent-pid", str(os.getpid())],
                stderr=log,
                env=environment,
                cwd=SUPPORT,
            )
        end = time.monotonic() + START_S
        while not (match := re.search(r"listens on \S+:(\d+) \(data on \S+:(\d+)\)", self.log.read_text())):
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.02)
        self.control, self.data = int(match[1]), int(match[2])

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def memory_mib(self) -> float:
        """Resident memory of its main process."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+)", status)
        assert found
        return int(found[1]) / 1024

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(START_S)
        self.directory.cleanup()


@contextmanager
def dealer(port: int, keys: Keys | None = None) -> Iterator[zmq.Socket[bytes]]:
    """A client's socket."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as client:
        client.linger = 0
        client.sndhwm = 0
        if keys is not None:
            client.curve_publickey, client.curve_secretkey, client.curve_serverkey = (key.encode() for key in keys)
        client.connect(f"tcp://127.0.0.1:{port}")
        yield client


class Reader:
    """Asks for all readings and insists on every number."""

    def __init__(self, port: int, keys: Keys | None = None) -> None:
        self._resources = ExitStack()
        self._socket = self._resources.enter_context(dealer(port, keys))
        self.next = 0
        self._ask(reset=True)

    def _ask(self, *, reset: bool = False) -> None:
        self._socket.send(encode(Want(0, 0, self.next, 10_000, reset=reset)))

    def read(self, patience_s: float = PATIENCE_S) -> None:
        """Take what comes, at least one frame, and ask on; as `BoardLink`, ask again when nothing comes."""
        end = time.monotonic() + patience_s
        while not self._socket.poll(200):
            assert time.monotonic() < end, f"nothing came for {self.next}"
            self._ask(reset=True)
        while self._socket.poll(0):
            event = decode(self._socket.recv())
            assert isinstance(event, Block), event
            if event.sequence < self.next:
                continue  # asked for again while it was on its way
            assert event.sequence == self.next, f"{event.sequence} came, not {self.next}"
            self.next += 1
        self._ask()

    def close(self) -> None:
        self._resources.close()


Keys = tuple[str, str, str]
"""A client's own public and secret key, and the server's."""


def make_keys(directory: Path) -> Keys:
    """Keys for a powerd in ``directory``, which may also read from itself."""
    command = [sys.executable, "-P", "-m", "powerd_daemon", "keys", "server", "--address", "board:1"]
    subprocess.run([*command, "--keys", str(directory)], check=True, stdout=subprocess.DEVNULL)
    pair = tomllib.loads((directory / "server.toml").read_text())
    return pair["public"], pair["secret"], pair["public"]


class Siege:
    """One powerd, one reader, and the silent peers that are still connected; with or without keys."""

    def __init__(self, keys_in: Path | None = None) -> None:
        self.keys = None if keys_in is None else make_keys(keys_in)
        self.tally: Counter[str] = Counter()
        self.powerd = Powerd(*(() if keys_in is None else ("--keys", str(keys_in))))
        self.reader = Reader(self.powerd.data, self.keys)
        self.silent: deque[socket.socket] = deque()
        self.proxy = Resetter(self.powerd.control, handshake_bytes=400, burst_bytes=150_000)

    def harass(self, data: bytes) -> None:
        """A few strangers."""
        picker = Picker(data)
        for _ in range(1 + picker.below(3)):
            port = picker.one_of((self.powerd.control, self.powerd.data))
            if (silent := harass(port, picker, self.tally)) is not None:
                self.silent.append(silent)
            if len(self.silent) > OPEN_PEERS:
                self.silent.popleft().close()
        self.look()

    def flood_by_a_client(self, messages: int = 10_000) -> None:
        """Somebody with keys who may read: heartbeats among empty messages, and a reset behind them."""
        before, end = self.proxy.resets, time.monotonic() + 0.5
        with dealer(self.proxy.port, self.keys) as client:
            client.heartbeat_ivl = 1
            for _ in range(messages):
                client.send(b"")
            while self.proxy.resets == before and time.monotonic() < end:
                time.sleep(0.002)
        self.tally["connections"] += 1
        self.tally["frames"] += messages
        self.tally["resets"] += self.proxy.resets - before
        self.look()

    def look(self) -> None:
        """It lives, and the reader gets what comes next."""
        assert self.powerd.is_alive(), self.powerd.log.read_text()[-2000:]
        self.reader.read()

    def close(self) -> None:
        while self.silent:
            self.silent.pop().close()
        self.reader.close()
        self.proxy.close()
        self.powerd.close()


_sieges: list[Siege] = []


def one(data: bytes) -> None:
    if not _sieges:
        _sieges.append(Siege())
        atexit.register(_sieges[0].close)
    _sieges[0].harass(data)
