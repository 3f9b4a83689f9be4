"""Further clients of one powerd, in one process. Arguments: the address, how many. Ends with its standard input.

Each reads every stream by pull and resume, as any client in any language would, and checks that no number is missing.
Prints one JSON object at the end: frames received, and numbers that were never sent.
"""

from __future__ import annotations

import json
import select
import sys

import zmq
from numbered_source import SLEPT

from powerd_core.model import Block, Gap
from powerd_core.serde import read_description
from powerd_core.wire import CURRENT, Message, Want, decode, encode

WINDOW = 256
ASK_MS = 200


class Client:
    """One DEALER on the control socket and one on the data socket."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], url: str) -> None:
        self._context = context
        self._url = url
        self.frames = self.missing = 0
        self.causes: list[str] = []
        """What powerd says of the numbers that are missing."""
        self._next: dict[int, int] = {}
        self._epoch = 0
        self.control = self._socket(url)
        self.data: zmq.Socket[bytes] | None = None

    def _socket(self, endpoint: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.DEALER)
        socket.linger, socket.sndhwm = 0, 8
        socket.connect(endpoint)
        return socket

    def ask(self) -> None:
        """Ask for the description, and for what is next in each stream."""
        self._send(self.control, Message("describe", {"client": "further client"}))
        if self.data is not None:
            for number, following in self._next.items():
                self._send(self.data, Want(number, self._epoch, following, WINDOW))

    @staticmethod
    def _send(socket: zmq.Socket[bytes], event: Message | Want) -> None:
        try:
            socket.send(encode(event), zmq.NOBLOCK)
        except zmq.Again:
            return

    def receive(self) -> None:
        while self.control.poll(0):
            event = decode(self.control.recv())
            if isinstance(event, Message) and event.subject == "description" and event.epoch != self._epoch:
                self._begin(event)
        while self.data is not None and self.data.poll(0):
            event = decode(self.data.recv())
            if isinstance(event, Block | Gap) and event.epoch == self._epoch:
                self._take(event)

    def _begin(self, message: Message) -> None:
        description = read_description(message.body)
        self._epoch = description.epoch
        self._next = {stream.number: CURRENT for stream in description.streams}
        if self.data is not None:
            self.data.close()
        host = self._url.rpartition(":")[0]
        endpoint = description.data_endpoint
        self.data = self._socket(f"{host}:{endpoint.rpartition(':')[2]}" if "*" in endpoint else endpoint)
        self.ask()

    def _take(self, event: Block | Gap) -> None:
        following = self._next[event.stream]
        self.frames += 1
        if following != CURRENT:
            self.missing += max(0, event.sequence - following)
        span = event.span if isinstance(event, Gap) else 1
        self._next[event.stream] = event.sequence + span
        # What the source itself slept through was never there to be received.
        if isinstance(event, Gap) and event.cause != SLEPT:
            self.missing += span
            self.causes.append(event.cause)


def main() -> None:
    url, count = sys.argv[1], int(sys.argv[2])
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    clients = [Client(context, url) for _ in range(count)]
    while not select.select([0], [], [], ASK_MS / 1000)[0]:
        for client in clients:
            client.ask()
            client.receive()
    told = {name: [getattr(c, name) for c in clients] for name in ("frames", "missing", "causes")}
    print(json.dumps(told), flush=True)
    context.destroy(linger=0)


if __name__ == "__main__":
    main()
