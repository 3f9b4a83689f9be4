"""A powerd at the wire: two sockets (control and clock are one) in a thread, a ring in a list, and the faults that a
test asks for.
"""

from __future__ import annotations

import threading
import time
from array import array
from dataclasses import replace

import zmq

from powerd_core import wire
from powerd_core.model import (
    Accuracy,
    Block,
    ClockExchange,
    Column,
    Description,
    Device,
    Gap,
    Line,
    Provenance,
    ScaledConversion,
    Stream,
)
from powerd_core.serde import to_document

PERIOD_NS = 1_000_000


def make_stream(lines: int = 2, number: int = 0) -> Stream:
    made = tuple(
        Line(f"gpu0.rail_{i}", "gpu0", ScaledConversion("power_mw", 1e-3), Provenance.SIMULATED, Accuracy(0.01))
        for i in range(lines)
    )
    return Stream(number, "fake", (Column("power_mw", "I"),), made, PERIOD_NS, {"made": "for tests"})


def make_block(stream: Stream, epoch: int, sequence: int, t_first_ns: int, powers_mw: list[int]) -> Block:
    """Scans ``PERIOD_NS`` apart in which every line has the same power; lines are read 10 us after each other."""
    n, lines = len(powers_mw), len(stream.lines)
    t = array("q", [t_first_ns + i * PERIOD_NS for i in range(n)])
    dt = array("i", [10_000 * j for _ in range(n) for j in range(lines)])
    flags = array("H", [0] * (n * lines))
    codes = array("I", [p for p in powers_mw for _ in range(lines)])
    payload = b"".join(a.tobytes() for a in (t, dt, flags, codes))
    return Block(stream.number, epoch, sequence, t[0], t[-1] + dt[-1], n, stream.layout, payload)


def make_description(
    stream: Stream, epoch: int, endpoint: str = "tcp://*:1", clock_endpoint: str = "tcp://*:2"
) -> Description:
    device = Device("gpu0", tuple(line.name for line in stream.lines))
    return Description("fake board", "0", epoch, "CLOCK_MONOTONIC_RAW", endpoint, (stream,), (device,), clock_endpoint)


class FakeDaemon:
    """Serves `ring` (list of frames, index = sequence number). ``drop`` numbers are swallowed the first time they are
    due. ``spool``: earlier daemons whose rings it holds.
    """

    def __init__(
        self,
        context: zmq.Context,
        *,
        epoch: int = 5,
        offset_ns: int = 0,
        control_port: int | None = None,
        board: str = "fake board",
        spool: list[FakeDaemon] | None = None,
    ) -> None:
        self.stream = make_stream()
        self.epoch = epoch
        self.offset_ns = offset_ns
        self.ring: list[bytes] = []
        self.oldest = 0
        self.drop: set[int] = set()
        self.wants: list[wire.Want] = []
        self.version = wire.VERSION
        self.spool = spool
        self.spool_ready = True
        self._control = context.socket(zmq.ROUTER)
        self._data = context.socket(zmq.ROUTER)
        self._data.router_mandatory = 1
        for socket in (self._control, self._data):
            socket.linger = 0
        port = control_port or self._control.bind_to_random_port("tcp://127.0.0.1")
        if control_port:
            self._bind_again(f"tcp://127.0.0.1:{control_port}")
        data_port = self._data.bind_to_random_port("tcp://127.0.0.1")
        self.port = port
        self.url = f"tcp://127.0.0.1:{port}"
        described = make_description(self.stream, epoch, f"tcp://*:{data_port}", f"tcp://*:{port}")
        self.description = replace(described, board=board)
        self._next: dict[tuple[bytes, int], int] = {}
        self._limit: dict[tuple[bytes, int], int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _bind_again(self, endpoint: str) -> None:
        """A socket that was closed lets go of its port a moment later, in ZeroMQ's own thread."""
        deadline = time.monotonic() + 60
        while True:
            try:
                self._control.bind(endpoint)
            except zmq.ZMQError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
            else:
                return

    def now_ns(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW) + self.offset_ns

    def add_block(self, powers_mw: list[int], t_first_ns: int | None = None) -> Block:
        t_first_ns = self.now_ns() if t_first_ns is None else t_first_ns
        block = make_block(self.stream, self.epoch, len(self.ring), t_first_ns, powers_mw)
        self.ring.append(wire.encode(block))
        return block

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._control, zmq.POLLIN)
        poller.register(self._data, zmq.POLLIN)
        while not self._stop.is_set():
            ready = dict(poller.poll(2))
            if self._control in ready:
                self._answer()
            if self._data in ready:
                self._take_want()
            self._send_due()
        self._control.close()
        self._data.close()

    def _answer(self) -> None:
        peer, frame = self._control.recv_multipart()
        t2 = self.now_ns()
        event = wire.decode(frame)
        if isinstance(event, ClockExchange):
            reply: wire.Event = ClockExchange(self.epoch, event.t1_host_ns, t2, self.now_ns())
        elif event.subject == "epochs":
            reply = self._epochs()
        else:
            reply = wire.Message("description", to_document(self.description), self.epoch)
        answer = bytearray(wire.encode(reply))
        answer[4] = self.version
        self._control.send_multipart([peer, bytes(answer)])

    def _epochs(self) -> wire.Message:
        held = [
            {
                "epoch": old.epoch,
                "description": to_document(old.description),
                "streams": [{"number": 0, "oldest": old.oldest, "next": len(old.ring)}],
            }
            for old in self.spool or []
        ]
        return wire.Message("epochs", {"ready": self.spool_ready, "epochs": held}, self.epoch)

    def _life(self, epoch: int) -> FakeDaemon:
        return next((old for old in self.spool or [] if old.epoch == epoch), self)

    def _take_want(self) -> None:
        peer, frame = self._data.recv_multipart()
        want = wire.decode(frame)
        assert isinstance(want, wire.Want)
        self.wants.append(want)
        life = self._life(want.epoch)
        key = peer, life.epoch
        first = max(0, len(life.ring) - 1) if want.sequence == wire.CURRENT else want.sequence
        if want.epoch != life.epoch:
            first = life.oldest
        if want.reset or key not in self._next:
            self._next[key] = first
        self._limit[key] = first + want.window

    def _send_due(self) -> None:
        for (peer, epoch), number in list(self._next.items()):
            key, life = (peer, epoch), self._life(epoch)
            while number < min(self._limit[key], len(life.ring)):
                if number < life.oldest:
                    gap = Gap(0, epoch, number, -(2**63), 0, life.oldest - number, -1, "no longer in powerd's ring")
                    frame, number = wire.encode(gap), life.oldest
                else:
                    frame, number = life.ring[number], number + 1
                if number - 1 in self.drop:
                    self.drop.discard(number - 1)
                    continue
                try:
                    self._data.send_multipart([peer, frame], zmq.NOBLOCK)
                except zmq.ZMQError:
                    self._next.pop(key)
                    break
            else:
                self._next[key] = number

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
