"""A hostile powerd at the other end of a client's link: only our errors, nothing that the journal could not hold."""

from __future__ import annotations

import struct
from collections import deque
from typing import Any

import zmq

from fuzzing.frames import EPOCH, STREAMS, any_frame, description_document, likely_block, likely_gap, message, sealed
from fuzzing.picker import Picker, expect, spoiled
from powerd_client.journals.link import BoardLink
from powerd_core import wire
from powerd_core.errors import PowerdError
from powerd_core.model import Description
from powerd_core.serde import to_document


class FakeDealer:
    """A DEALER whose answers are laid out beforehand. Options are taken and forgotten."""

    def __init__(self, endpoints: list[str]) -> None:
        self.coming: deque[bytes] = deque()
        self.sent: list[bytes] = []
        self.closed = False
        self.endpoints = endpoints

    def connect(self, endpoint: str) -> None:
        endpoint.encode()
        if not endpoint.startswith(("tcp://", "ipc://")):
            raise zmq.ZMQError(22)
        self.endpoints.append(endpoint)

    def disconnect(self, endpoint: str) -> None:
        pass

    def set(self, option: int, value: object) -> None:
        pass

    def get_monitor_socket(self, events: int = 0) -> FakeDealer:
        return FakeDealer([])

    def disable_monitor(self) -> None:
        pass

    def poll(self, timeout_ms: float) -> int:
        assert not self.closed
        return int(bool(self.coming))

    def recv(self, flags: int = 0) -> bytes:
        assert not self.closed
        if not self.coming:
            raise zmq.Again
        return self.coming.popleft()

    def send(self, frame: bytes, flags: int = 0) -> None:
        assert not self.closed
        self.sent.append(frame)

    def close(self, linger: int | None = None) -> None:
        self.closed = True


class FakeContext:
    def __init__(self) -> None:
        self.made: list[FakeDealer] = []

    def socket(self, kind: int) -> FakeDealer:
        self.made.append(FakeDealer([]))
        return self.made[-1]


def one(data: bytes) -> None:
    picker = Picker(data)
    context: Any = FakeContext()
    link = BoardLink(context, "tcp://board:7360")
    control: Any = link.control
    control.coming.append(message("description", description_document(), EPOCH))
    link.describe(timeout_s=5.0)
    for _ in range(picker.below(12)):
        _send(picker, link)
        try:
            link.ask()
            for _ in range(16):
                if not control.poll(0):
                    break
                found = link.receive_control()
                if isinstance(found, Description):
                    # As the recorder does it: what is taken over must be fit to be written down and read again.
                    kept = wire.decode(wire.encode(wire.Message("description", to_document(found), found.epoch)))
                    assert isinstance(kept, wire.Message)
            exchange = link.exchange(timeout_ms=1)
            for made in [*([exchange] if exchange else []), *link.late_exchanges()]:
                wire.decode(wire.encode(made))
            for event, frame in link.receive():
                assert wire.decode(frame) == event
            link.ask()
        except PowerdError as error:
            expect(len(str(error)) < 2000, error)
    for dealer in context.made:
        for frame in dealer.sent:
            wire.decode(frame)
    assert sum(not d.closed for d in context.made) <= 3, "sockets pile up"
    link.close()


def _send(picker: Picker, link: BoardLink) -> None:
    """A frame to one of the link's sockets."""
    control: Any = link.control
    door: Any = link.data
    clocks: Any = link.clock
    how = picker.below(6)
    if how == 0:
        link.ask_description()
        control.coming.append(message("description", spoiled(description_document(), picker), EPOCH))
    elif how == 1:
        control.coming.append(any_frame(picker) if picker.flip() else message("error", {"message": picker.value()}))
    elif how == 2 and clocks is not None and not clocks.closed:
        times = struct.pack("<4q", *(picker.signed(64) for _ in range(4)))
        clocks.coming.append(
            any_frame(picker) if picker.flip() else sealed(wire.CLOCK, times, epoch=picker.unsigned(64))
        )
    elif door is not None and not door.closed:
        state = link.streams.get(picker.below(3))
        sequence = state.next if state is not None and state.next < wire.CURRENT else picker.below(256)
        if state is None or picker.rarely():
            door.coming.append(any_frame(picker) if picker.flip() else picker.take(picker.below(70)))
        elif how == 3:
            door.coming.append(likely_gap(picker, STREAMS[state.stream.number % 2], sequence))
        else:
            door.coming.append(likely_block(picker, STREAMS[state.stream.number % 2], sequence))
