"""The server's three sockets: any parts from anybody. It answers, counts and bounds, and ends every turn."""

from __future__ import annotations

import errno
import io
from collections import deque
from collections.abc import Callable
from typing import Any

import zmq

from fuzzing.frames import EPOCH, STREAMS, any_frame, good_block, likely_gap, message, sealed
from fuzzing.picker import Picker, spoiled
from powerd_core import wire
from powerd_core.wire import decode
from powerd_daemon.log import Console
from powerd_daemon.ring import Store
from powerd_daemon.server import MAX_CLIENTS, MAX_LATER, Later, Server
from powerd_daemon.sockets import Sockets
from powerd_daemon.sources.sim.bus import VirtualClock


class FakeRouter:
    """What a ROUTER gives and takes; now and then a client is slow or gone."""

    def __init__(self, picker: Picker) -> None:
        self._picker = picker
        self.coming: deque[list[bytes]] = deque()
        self.sent: list[list[bytes]] = []

    def get(self, _: int) -> bytes:
        """Where it listens."""
        return b"ipc:///nowhere"

    def recv_multipart(self, flags: int, copy: bool = True) -> list[zmq.Frame]:
        if not self.coming:
            raise zmq.Again
        return [zmq.Frame(part) for part in self.coming.popleft()]

    def send_multipart(self, parts: list[bytes], flags: int) -> None:
        if self._picker.rarely():
            raise zmq.Again if self._picker.flip() else zmq.ZMQError(errno.EHOSTUNREACH)
        self.sent.append(parts)


def one(data: bytes) -> None:
    clock, said = VirtualClock(), io.StringIO()
    with Console(said, clock):
        _serve(Picker(data), clock)
    assert len(said.getvalue().splitlines()) < 20 * 5
    assert all(line.isprintable() and len(line) < 1000 for line in said.getvalue().splitlines())


def _serve(picker: Picker, clock: VirtualClock) -> None:
    store = Store(EPOCH, 2000)
    for stream in STREAMS:
        store.add(stream)
        for n in range(12):
            frame = wire.encode(good_block(stream, n, 1_000_000 * n))
            store.intakes[stream.number].accept(frame, decode(frame))
    control, door, clocks = (FakeRouter(picker) for _ in range(3))
    sockets: Any = Sockets(control, door, clocks)  # type: ignore[arg-type]
    answer = wire.encode(wire.Message("description", {"board": "b"}, EPOCH))
    may_read = picker.below(3) > 0
    given: list[Callable[[bytes], None]] = []
    subjects = {"describe": lambda question, caller: answer, "stats": lambda question, caller: Later(given.append)}
    server = Server(sockets, store, clock, subjects, lambda _: may_read)
    asked = 0
    for _ in range(picker.below(5)):
        for _ in range(picker.below(100)):
            if not picker.left:
                break
            router = picker.one_of((control, door, clocks))
            identity = bytes((picker.below(80),)) * (1 + picker.below(5))
            router.coming.append([identity, *_parts(picker)])
            asked += 1
        for _ in range(3000):
            clock.t_ns += 1_000_000
            if not server.cycle() and not any(r.coming for r in (control, door, clocks)):
                break
        else:
            raise AssertionError("the server does not come to rest")
        for give in given[::2]:
            give(answer)
        clock.t_ns += picker.one_of((0, 1_000_000_000, 31_000_000_000))
    for parts in control.sent + door.sent + clocks.sent:
        wire.decode(parts[-1])
    assert len(server.delivery.subscribers) <= MAX_CLIENTS
    assert all(len(s.cursors) <= 2 * len(STREAMS) for s in server.delivery.subscribers.values())
    assert len(control.sent) + len(clocks.sent) <= asked
    assert len(server._awaited) <= MAX_LATER


def _parts(picker: Picker) -> list[bytes]:
    how = picker.below(8)
    if how == 0:
        return [picker.take(picker.below(40)) for _ in range(picker.below(5))]
    if how == 1:
        return [any_frame(picker)]
    if how == 2:
        return [message(picker.one_of(("describe", "stats", picker.text())), spoiled({"a": 1}, picker))]
    if how == 3:
        return [likely_gap(picker, STREAMS[0], picker.unsigned(64))]
    if how == 4:
        return [sealed(wire.CLOCK, bytes(32))]
    reset, window = picker.below(2), picker.unsigned(32)
    want = window.to_bytes(4, "little") + bytes((reset,))
    stream = picker.unsigned(16) if picker.rarely() else picker.below(3)
    epoch = picker.unsigned(64) if picker.rarely() else picker.one_of((EPOCH, 0))
    sequence = picker.unsigned(64) if picker.flip() else picker.below(16)
    return [sealed(wire.WANT, want, stream=stream, epoch=epoch, sequence=sequence)]
