"""One powerd as its client sees it: description, clock exchanges, and the streams by pull and resume.

Nothing is lost while the daemon's ring holds it: every stream is asked for from the next number that is missing, and a
number out of turn, a silence or a reconnection only make the link ask again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain

import zmq

from powerd_client.connection import Connections
from powerd_client.exchanges import Exchanges
from powerd_client.hostclock import now_ns
from powerd_client.keys import credentials_for
from powerd_core import wire
from powerd_core.errors import PeerError, PeerTimeout, VersionError, WireError
from powerd_core.model import Block, ClockExchange, Description, Gap
from powerd_core.protocol import OTHER_BOARD, RING_LOST, SILENCE_NS, Backfill, PastEpoch, StreamReceiver
from powerd_core.serde import read_description

_DESCRIBE_AGAIN_NS = 100_000_000


@dataclass(slots=True)
class LinkMemory:
    """What an earlier recorder's journal knows of an address: the link goes on from there."""

    description: Description
    streams: dict[int, StreamReceiver]
    earlier: dict[int, PastEpoch] = field(default_factory=dict)
    known: set[int] = field(default_factory=set)


class BoardLink:
    """A connection to the powerd at ``url`` (its control endpoint, ``tcp://host:port`` or ``ipc://path``).

    With ``memory`` it need not be described before it asks for what is missing.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        url: str,
        *,
        client: str = "powerd_client",
        memory: LinkMemory | None = None,
        keys: str | os.PathLike[str] | None = None,
    ) -> None:
        self.url = url
        self.client = client
        self.description: Description | None = None
        self.streams: dict[int, StreamReceiver] = {}
        self.earlier = Backfill(url)
        self._refused = 0
        self.replayed = 0
        """Frames that came late: asked for again, or held back by a cut."""
        self._to = Connections(context, url, credentials_for(url, keys))
        self._described_ns = 0
        self._questions = 0
        """For the description, not answered yet."""
        self._unreadable = ""
        """What was wrong with the last description that could not be taken over."""
        self._exchanges = Exchanges()
        if memory is not None:
            self.description, self.streams = memory.description, memory.streams
            self.earlier.open, self.earlier.known = memory.earlier, memory.known
            self._to.lead_to(memory.description)

    @property
    def control(self) -> zmq.Socket[bytes]:
        """Questions and their answers: `receive_control` when something has come."""
        return self._to.control.socket

    @property
    def data(self) -> zmq.Socket[bytes] | None:
        """The streams, once it has been described: `receive` when something has come."""
        return self._to.data.socket if self._to.data is not None else None

    @property
    def clock(self) -> zmq.Socket[bytes] | None:
        """Clock exchanges, once it has been described: `late_exchanges` when something has come."""
        return self._to.clock.socket if self._to.clock is not None else None

    def describe(self, timeout_s: float = 3.0, give_up: Callable[[], bool] = lambda: False) -> Description:
        """Ask what the daemon measures, and connect to its streams.

        Raises `PeerTimeout` when nobody answers (or ``give_up``, asked now and then, is true), `PeerError` when our
        keys are refused or its description cannot be read, `VersionError` when it speaks another version of the wire
        format.
        """
        deadline_ns = now_ns() + int(timeout_s * 1e9)
        self.ask_description()
        while (left_ns := deadline_ns - now_ns()) > 0 and not give_up():
            if self.control.poll(min(left_ns // 1_000_000 + 1, 100)):
                event = self.receive_control()
                if isinstance(event, Description):
                    return event
            elif (reason := self.refusal()) is not None:
                raise PeerError(reason)
            elif now_ns() - self._described_ns > SILENCE_NS // 2:
                self.ask_description()  # the first may have gone to a powerd that was just ending
        if self._unreadable:
            raise PeerError(
                f"what the powerd at {self.url} says of itself cannot be read ({self._unreadable}): use the same "
                "release of powerd there and here"
            )
        raise PeerTimeout(
            f"no powerd answers at {self.url} within {timeout_s:g} s: is it running there, and is that its address?"
        )

    def refusal(self) -> str | None:
        """Why the board refuses this client's keys, and what to do; None when it does not."""
        return self._to.refusal()

    def ask_description(self) -> None:
        """Send a request whose answer `receive_control` will give."""
        self._described_ns = now_ns()
        self._questions += 1
        self._to.control.send(wire.encode(wire.Message("describe", {"client": self.client})))

    def receive_control(self) -> Description | None:
        """One message of the control socket: a description (taken over), or something else.

        Raises `VersionError` and, for what the daemon refuses, `PeerError`.
        """
        frame = self.control.recv(zmq.NOBLOCK)
        try:
            event = wire.decode(frame)
            if isinstance(event, wire.Message) and event.subject == "description":
                if not self._questions:
                    self._refused += 1  # nobody asked: epochs shall not come faster than we ask
                    return None
                self._questions -= 1
                try:
                    description = read_description(event.body)
                except WireError as error:
                    self._unreadable = str(error)
                    raise
                return self._take_description(description)
            if isinstance(event, wire.Message) and event.subject == "epochs" and self.description is not None:
                self.earlier.take_answer(event.body, self.description.epoch)
        except VersionError as error:
            raise VersionError(f"{self.url}: {error}") from error
        except WireError:
            self._refused += 1
            return None
        if isinstance(event, wire.Message) and event.subject == "error":
            reason = str(event.body.get("message", "no reason given"))
            if self.description is not None and reason.startswith("unknown subject 'epochs'"):
                with contextlib.suppress(WireError):  # a second answer of this kind says nothing new
                    self.earlier.take_answer({"ready": True, "epochs": []}, self.description.epoch)
                return None
            raise PeerError(f"the powerd at {self.url} refuses: {reason}")
        return None

    def _take_description(self, new: Description) -> Description:
        old = self.description
        if old is None or old.epoch != new.epoch:
            returned = self.earlier.take_back(new.epoch)
            same_board = old is not None and old.board == new.board
            if old is not None:
                cause = RING_LOST if same_board else OTHER_BOARD
                self.earlier.leave(PastEpoch(old, self.streams, self._exchanges.board_now_ns(old.epoch), cause))
            # A restarted daemon: everything that it holds is new to us. Of a strange board only what comes from now on.
            first = 0 if same_board else wire.CURRENT
            self.streams = returned or {s.number: StreamReceiver(s, new.epoch, first) for s in new.streams}
            for state in self.streams.values():
                state.end, state.asked_ns = None, 0
            self.description = new
            self.earlier.begin(new, live=True)
        self._to.lead_to(new)
        return new

    def exchange(self, timeout_ms: int = 3) -> ClockExchange | None:
        """One exchange of four timestamps, or None when the answer does not come at once: see `late_exchanges`."""
        return None if self.clock is None else self._exchanges.make(self.clock, timeout_ms)

    def late_exchanges(self) -> list[ClockExchange]:
        """Those whose answers took longer. Ask as soon as the clock socket has something."""
        return [] if self.clock is None else self._exchanges.late(self.clock)

    @property
    def refused(self) -> int:
        """Frames that were damaged or out of turn."""
        return self._refused + self._exchanges.refused

    @property
    def offset_ns(self) -> float | None:
        """Host minus board time, as well as it is known by now: good enough to know when to stop."""
        return None if self.description is None else self._exchanges.offset_ns(self.description.epoch)

    def ask(self) -> None:
        """Ask for what is missing wherever it is time to."""
        self._to.try_again()
        if self.description is None:
            return
        now = now_ns()
        slow_ns = min((5 * s.stream.period_ns for s in self.streams.values()), default=0)
        self._to.renew_deaf(now, slow_ns, self._exchanges.heard_ns)
        for state in chain(self.streams.values(), self.earlier.receivers()):
            self._ask_for(state, now)
        if self.earlier.open and self.earlier.question_is_due(now):
            self._to.control.send(wire.encode(wire.Message("epochs", {"client": self.client})))

    def _ask_for(self, state: StreamReceiver, now: int) -> None:
        if state.epoch in self.earlier.open and state.end is None:
            return  # it is not known yet whether anybody holds it
        want = state.due(now)
        if want is None or self._to.data is None:
            return
        silent = state.is_silent(now)
        if self._to.data.send(wire.encode(want)):
            state.asked(want, now)
        if silent:
            self._describe_again(now, SILENCE_NS)

    def _describe_again(self, now: int, pause_ns: int) -> None:
        if now - self._described_ns > pause_ns:
            self.ask_description()

    def receive(self, limit: int = 256) -> Iterator[tuple[Block | Gap, bytes]]:
        """Whatever has arrived in turn, at most ``limit`` frames, each with its bytes."""
        for _ in range(limit):
            if self._to.data is None:
                return
            try:
                frame = self._to.data.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._to.data.heard()
            try:
                event = wire.decode(frame)
            except WireError:
                self._refused += 1
                continue
            if isinstance(event, Block | Gap) and self._is_next(event):
                yield event, frame

    def _is_next(self, event: Block | Gap) -> bool:
        now = now_ns()
        live = self.description is not None and event.epoch == self.description.epoch
        state = self.streams.get(event.stream) if live else self.earlier.receiver(event.epoch, event.stream)
        if state is None:
            self._refused += live
            if not live and event.epoch not in self.earlier.known:
                self._describe_again(now, _DESCRIBE_AGAIN_NS)
            return False
        replayed = state.replayed
        if not state.take(event, now):
            self._refused += 1
            self._ask_for(state, now)  # a hole is asked for at once
            return False
        offset = self._exchanges.offset_ns(event.epoch)
        late = offset is not None and now - event.t_last_ns - offset > state.patience_ns
        self.replayed += late or state.replayed > replayed
        if state.is_over:
            self.earlier.settle()
        return True

    def take_notes(self) -> list[wire.Event]:
        """What the journal must be told beside what was received: new epochs, and what is lost of earlier ones."""
        notes, self.earlier.notes = self.earlier.notes, []
        return notes

    def close(self) -> None:
        self._to.close()
