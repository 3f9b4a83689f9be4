"""A client on real sockets, and a powerd in a thread."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import zmq

from powerd_core import Block, Gap, Message, Stream, Want, decode, encode
from powerd_daemon.clock import SystemClock
from powerd_daemon.config import Config, parse_config
from powerd_daemon.daemon import Daemon
from powerd_daemon.log import Console
from support.steady import wait_for

PATIENCE_S = 60.0


def block(stream: Stream, sequence: int, epoch: int = 7, scans: int = 3) -> Block:
    """A block of scans 1 ms apart; block n begins at n seconds."""
    t_ns = sequence * 1_000_000_000
    payload = bytes(scans * stream.scan_bytes)
    t_last_ns = t_ns + (scans - 1) * 1_000_000
    return Block(stream.number, epoch, sequence, t_ns, t_last_ns, scans, stream.layout, payload)


def following(event: Block | Gap) -> int:
    return event.sequence + (event.span if isinstance(event, Gap) else 1)


class Client:
    """A DEALER on one socket of a powerd."""

    def __init__(self, endpoint: str, pump: Callable[[], object] = lambda: None) -> None:
        self._context = zmq.Context()
        self._endpoint = endpoint
        self._pump = pump
        self.socket = self._connected()

    def _connected(self) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.DEALER)
        socket.set(zmq.LINGER, 0)
        socket.connect(self._endpoint)
        return socket

    def close(self) -> None:
        self.socket.close()
        self._context.term()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, event: Any) -> None:
        self.socket.send(event if isinstance(event, bytes) else encode(event))

    def receive(self, patience_s: float = PATIENCE_S) -> Any:
        """The next event, while ``pump`` keeps an in-process server going; None when nothing comes."""
        end = time.monotonic() + patience_s
        while time.monotonic() < end:
            self._pump()
            if self.socket.poll(5):
                return decode(self.socket.recv())
        return None

    def ask(self, event: Any) -> Any:
        self.send(event)
        answer = self.receive()
        assert answer is not None, "no answer"
        return answer

    def stats(self) -> Any:
        answer = self.ask(Message("stats"))
        assert answer.subject == "stats"
        return answer.body

    def stats_when(self, is_so: Callable[[Any], object]) -> Any:
        """The first stats of which ``is_so`` holds."""
        return wait_for(lambda: stats if is_so(stats := self.stats()) else None)

    def frames(
        self, stream: int, begin: int, until: Callable[[list[Block | Gap]], bool], window: int = 10_000
    ) -> list[Block | Gap]:
        """Ask from ``begin`` on and collect until ``until``; every number must be covered, in order.

        On a new connection: on the old one, frames that were asked for before may still be on their way.
        """
        self.socket.close()
        self.socket = self._connected()
        self.send(Want(stream, 0, begin, window, reset=True))
        found: list[Block | Gap] = []
        expected = begin
        while not until(found):
            event = self.receive()
            assert event is not None, f"nothing came for {expected}"
            assert isinstance(event, Block | Gap)
            assert event.sequence == expected, "a silent hole"
            found.append(event)
            expected = following(event)
        return found


def steady_config(directory: Path, options: str = "", server: str = "", more: str = "") -> Config:
    """One test source behind sockets in ``directory``."""
    return parse_config(
        f'[server]\nlisten = "ipc://{directory}/s"\nboard = "bench"\n{server}\n'
        f'[[source]]\nkind = "steady_source:SteadySource"\nname = "steady"\n{options}\n{more}',
        "test.toml",
    )


class Running:
    """A powerd in a thread, and what it says."""

    def __init__(self, config: Config) -> None:
        self.said = io.StringIO()
        self.console = Console(self.said, SystemClock()).__enter__()
        self.stop = threading.Event()
        self.error: BaseException | None = None
        self.daemon = Daemon(config)
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            if self.daemon.start(self.stop.is_set):
                self.daemon.serve(self.stop.is_set)
        except BaseException as error:
            self.error = error
        finally:
            self.daemon.close()
            self.console.__exit__()

    def control(self) -> Client:
        return Client(self.daemon.listen)

    def data(self) -> Client:
        return Client(self.daemon.data)


@contextmanager
def running(config: Config) -> Iterator[Running]:
    """A powerd that has been stopped when the block is left; its error, if any, is raised then."""
    powerd = Running(config)
    powerd.thread.start()
    try:
        yield powerd
    finally:
        powerd.stop.set()
        powerd.thread.join(PATIENCE_S)
    assert not powerd.thread.is_alive()
    if powerd.error is not None:
        raise powerd.error
