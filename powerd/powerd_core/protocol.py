"""Pull with resume: how every reading reaches every client once and in turn. No sockets, no clock.

The sampler numbers the frames of a stream without a hole: a block of readings takes one number, a gap takes as many as
it says (``span``). A receiver therefore always knows which number must come next.

The client asks, with a `Want`: "stream s of epoch e, from number n on, at most w frames, and (``reset``) forget what I
asked before". The server keeps two numbers for each client and stream, a `Cursor`: ``next``, the first frame that was
not yet sent, and ``limit``, the first that the client has not asked for. An ordinary want moves the limit alone; a
first want, or one with a reset, moves ``next`` too. Three properties follow.

* **Nothing is lost on the way.** A frame out of turn, a silence and a new connection have one answer: the client asks
  again, with a reset, from the number that it misses. What it has already got it drops. Wants are idempotent.
* **Nobody waits for a client.** Each want carries the client's own position, so that a server may forget a client at
  any time without losing it anything, and a client that does not read is left alone for 5 to 100 ms at a time.
* **A loss is told.** What the server no longer holds it sends as a gap that takes the missing numbers, with its cause.

A server that was started anew has a new *epoch*, and its numbers begin at 0. The client sends its old epoch, which
says that everything the server holds is news; it then asks for the new description. What it had not received of the
old epoch is lost with the server's memory, unless the server spools to disk: its answer to the message ``epochs``
tells, per stream, the oldest number and the number behind the newest that it still holds. The client pulls these
stretches beside the live ones (a `Backfill`); what nobody holds becomes a gap.

The server's half is `Cursor` and `Subscriber`, the client's `StreamReceiver`, `PastEpoch` and `Backfill`. Both are
driven with the time as an argument by the modules that own the sockets. A frame is *replayed* when the server had it
before the client said where it begins, and *live* when it came later, however late it is then sent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from powerd_core.errors import WireError
from powerd_core.model import UNKNOWN_TIME_NS, Block, Description, Gap, Stream
from powerd_core.serde import read_description, to_document
from powerd_core.wire import CURRENT, Event, Message, Want

WINDOW = 512
"""Frames that a server may send beyond the one that was asked for."""
SILENCE_NS = 1_000_000_000
"""A stream of which nothing came for so long is asked for again, and a question without an answer is repeated."""
MAX_SPAN = 2**32 - 1
"""A gap's span has 32 bits; a wider hole is told in several gaps."""

RING_LOST = "powerd ended; its ring is lost"
OTHER_BOARD = "another board answers at the address"
NO_ANSWER = "powerd did not send what it may hold of its earlier epoch before the run ended"

RETRY_MIN_NS, RETRY_MAX_NS = 5_000_000, 100_000_000
"""How long the server leaves a client alone that did not take a frame."""
_EXTEND_NS = 10_000_000
"""A window that is half used is extended at most that often."""
_RESET_MIN_NS, _RESET_MAX_NS = 100_000_000, 3_200_000_000
"""How long the client waits before it asks for the same hole again."""
_MAX_EPOCHS = 256
_MAX_KNOWN = 4096
"""A board that claims to have been started more often than this in one run is not believed."""


class Frames(Protocol):
    """One stream of one epoch as the server holds it, found by sequence number: a ring, or what a spool has kept.

    ``oldest`` is the first number that is held, ``next`` the one after the last; a client that wants only what is new
    begins at ``current``. `find` gives the frame that covers a number and begins there, and the number after it; None
    when it is yet to come.
    """

    @property
    def epoch(self) -> int: ...

    @property
    def oldest(self) -> int: ...

    @property
    def next(self) -> int: ...

    @property
    def current(self) -> int: ...

    def find(self, sequence: int) -> tuple[bytes, int] | None: ...


@dataclass(slots=True)
class Cursor:
    """The server's side of one stream of one client."""

    next: int
    """The first number that was not yet sent."""
    limit: int
    """The first number that the client has not asked for."""
    live: int = 0
    """The first number that is live; those below are replayed."""

    def upcoming(self, frames: Frames) -> tuple[bytes, int] | None:
        """The frame to send now and the number after it; None when the client has what it asked for or all there is."""
        return frames.find(self.next) if self.next < self.limit else None


@dataclass(slots=True)
class Subscriber:
    """A client of the server's data socket."""

    identity: bytes
    address: str
    number: int
    active_ns: int
    """When it last asked for something, or last took a frame."""
    badge: object = None
    """What tells the server its right, for the time until it asks again."""
    cursors: dict[tuple[int, int], Cursor] = field(default_factory=dict)
    """By epoch and stream."""
    frames: int = 0
    bytes: int = 0
    replayed: int = 0
    """Frames of these that were not live."""
    evicted: int = 0
    """Sequence numbers it asked for that were no longer held."""
    retry_ns: int | None = None
    """When it did not take a frame: the time of the next attempt."""
    _pause_ns: int = RETRY_MIN_NS

    def want(self, want: Want, frames: Frames) -> None:
        """Take a request into account. Idempotent."""
        key = frames.epoch, want.stream
        cursor = self.cursors.get(key)
        if want.epoch not in (0, frames.epoch):
            # The numbers of another life of powerd say nothing here: everything that is held is news to this client.
            if cursor is None or want.reset:
                self.cursors[key] = Cursor(frames.oldest, frames.oldest + want.window, frames.next)
            return
        begin = frames.current if want.sequence == CURRENT else want.sequence
        if cursor is None or want.reset:
            # Who asks for what is new takes the newest block as its beginning, not as a repetition.
            live = begin if want.sequence == CURRENT else frames.next
            self.cursors[key] = Cursor(begin, begin + want.window, live)
        else:
            cursor.limit = begin + want.window

    def took(self, cursor: Cursor, following: int, size: int, now_ns: int) -> None:
        """A frame of ``size`` bytes went out; ``following`` is the number after it."""
        self.replayed += cursor.next < cursor.live
        cursor.next = following
        self.frames += 1
        self.bytes += size
        self.active_ns = now_ns
        self.retry_ns, self._pause_ns = None, RETRY_MIN_NS

    def refused(self, now_ns: int) -> None:
        """Its queue is full: leave it alone for a while, longer each time."""
        self.retry_ns = now_ns + self._pause_ns
        self._pause_ns = min(self._pause_ns * 2, RETRY_MAX_NS)


@dataclass(slots=True)
class StreamReceiver:
    """The client's side of one stream in one epoch: what to ask for, and what is next in turn.

    Whatever the network does to the frames (loss, repetition, another order), `take` accepts each number once and in
    turn, as long as `due` is asked and its requests are answered now and then.
    """

    stream: Stream
    epoch: int
    next: int = CURRENT
    end: int | None = None
    """The number behind the last of an epoch that is over; None for the one that goes on."""
    t_last_board_ns: int = 0
    asked_ns: int = 0
    heard_ns: int = 0
    granted: int = 0
    """The first number that was not asked for."""
    replayed: int = 0
    """Frames that came in turn only because they were asked for again."""
    _ahead: int = 0
    """The number behind the highest that was ever seen."""
    _hole: int | None = None
    _hole_ns: int = 0
    _reset_ns: int = -_RESET_MIN_NS
    _pause_ns: int = _RESET_MIN_NS

    @property
    def patience_ns(self) -> int:
        """How long silence is nothing to wonder about."""
        return max(SILENCE_NS, 5 * self.stream.period_ns)

    @property
    def is_over(self) -> bool:
        """Whether all that this epoch has was received."""
        return self.end is not None and self.next >= self.end

    def is_silent(self, now_ns: int) -> bool:
        return self.asked_ns > 0 and now_ns - max(self.heard_ns, self.asked_ns) > self.patience_ns

    def due(self, now_ns: int) -> Want | None:
        """What to ask for now; when it could be sent, say so with `asked`."""
        if self.is_over:
            return None
        # At once for a hole that is the first for a while; then ever more rarely: the server starts over each time.
        hole_is_due = self._hole == self.next and now_ns >= self._hole_ns
        reset = self.asked_ns == 0 or hole_is_due or self.is_silent(now_ns)
        half_used = self.next != CURRENT and self.granted - self.next < WINDOW // 2
        if reset or (half_used and now_ns - self.asked_ns > _EXTEND_NS):
            return Want(self.stream.number, self.epoch, self.next, WINDOW, reset)
        return None

    def asked(self, want: Want, now_ns: int) -> None:
        """The request was sent."""
        self.asked_ns = now_ns
        if self.next != CURRENT:
            self.granted = self.next + WINDOW
        if want.reset:
            self._reset_ns = now_ns
            self._hole_ns = now_ns + self._pause_ns
            self._pause_ns = min(2 * self._pause_ns, _RESET_MAX_NS)

    def take(self, event: Block | Gap, now_ns: int) -> bool:
        """Whether a frame is the next in turn. One that is ahead shows that something was lost on the way."""
        self.heard_ns = now_ns
        if self.next == CURRENT:
            self.next = event.sequence
            self.granted = event.sequence + WINDOW
        if event.sequence != self.next:
            if event.sequence > self.next:
                self._ahead = max(self._ahead, event.sequence + 1)
                if self._hole != self.next:
                    self._hole, self._hole_ns = self.next, max(now_ns, self._reset_ns + _RESET_MIN_NS)
            return False
        self.replayed += event.sequence < self._ahead
        self.next = event.following
        self.t_last_board_ns = event.t_last_ns
        self._hole, self._pause_ns = None, _RESET_MIN_NS
        return True


@dataclass(slots=True)
class PastEpoch:
    """An epoch that is over, and how far the client has received each of its streams."""

    description: Description
    streams: dict[int, StreamReceiver]
    t_left_board_ns: int = UNKNOWN_TIME_NS
    """When it was certainly over, on its own clock, as well as that is known."""
    cause: str = RING_LOST
    """Why what it held is lost, if it is."""

    @property
    def is_settled(self) -> bool:
        return all(receiver.is_over for receiver in self.streams.values())

    @property
    def is_known(self) -> bool:
        """Whether the powerd has said how far each of its streams goes."""
        return all(receiver.end is not None for receiver in self.streams.values())

    def bound(self, ends: Mapping[int, tuple[int, int]]) -> None:
        """Take over what is held: stream number to the oldest number and the one behind the newest."""
        for number, receiver in self.streams.items():
            if number in ends:
                oldest, receiver.end = ends[number]
                if receiver.next == CURRENT:
                    # As if it had been asked for while it was the newest.
                    receiver.next = max(oldest, receiver.end - 1)

    def give_up(self, cause: str, held: Collection[int] = ()) -> list[Gap]:
        """The gaps that stand for what was not received of the streams that are not ``held``."""
        gaps = []
        for number, receiver in self.streams.items():
            if receiver.is_over or number in held:
                continue
            if receiver.next == CURRENT:
                receiver.next = 0  # nothing was ever received: there is no place for a gap
            else:
                span = 1 if receiver.end is None else min(receiver.end - receiver.next, MAX_SPAN)
                t_first = receiver.t_last_board_ns or UNKNOWN_TIME_NS
                t_last = max(t_first, self.t_left_board_ns)
                gaps.append(Gap(number, receiver.epoch, receiver.next, t_first, t_last, span, -1, cause))
                receiver.next += span
            receiver.end = receiver.next
        return gaps


Held = tuple[Description, dict[int, tuple[int, int]]]
"""What a powerd holds of an earlier epoch: oldest number and the one behind the newest, by stream."""


def _read_held(body: Mapping[str, Any]) -> list[Held] | None:
    """The epochs of an answer to ``epochs``, oldest first; None when powerd is still looking. Raises `WireError`."""
    held = []
    try:
        if not body["ready"]:
            return None
        for entry in body["epochs"][-_MAX_EPOCHS:]:
            description = read_description(entry["description"])
            ends = {int(s["number"]): (int(s["oldest"]), int(s["next"])) for s in entry["streams"]}
            is_sound = all(0 <= oldest <= end < CURRENT for oldest, end in ends.values())
            if description.epoch != int(entry["epoch"]) or not is_sound:
                raise WireError(f"epoch {description.epoch} with numbers that cannot be")
            held.append((description, ends))
    except (KeyError, TypeError, AttributeError) as error:
        raise WireError(f"an unusable list of epochs: {error}") from error
    except ValueError as error:
        raise WireError(str(error)) from error
    return held


@dataclass(slots=True)
class Backfill:
    """What is still to come of the past epochs of one address. ``notes`` collects what the journal must be told."""

    url: str
    open: dict[int, PastEpoch] = field(default_factory=dict)
    """Those that are not settled."""
    known: set[int] = field(default_factory=set)
    """Every epoch that was ever seen at the address."""
    notes: list[Event] = field(default_factory=list)
    _asked_ns: int = 0

    def begin(self, description: Description, *, live: bool) -> None:
        """An epoch was seen for the first time, or is the one that goes on from now."""
        self.known.add(description.epoch)
        self.notes.append(Message("description", to_document(description), description.epoch))
        self._note("live" if live else "over", description.epoch)

    def leave(self, past: PastEpoch) -> None:
        """An epoch is over."""
        self.open[past.description.epoch] = past
        self._asked_ns = 0

    def take_back(self, epoch: int) -> dict[int, StreamReceiver] | None:
        """The streams of an epoch that goes on after all: a board that came back."""
        past = self.open.pop(epoch, None)
        return past.streams if past else None

    def receiver(self, epoch: int, number: int) -> StreamReceiver | None:
        past = self.open.get(epoch)
        return past.streams.get(number) if past else None

    def receivers(self) -> Iterator[StreamReceiver]:
        return (receiver for past in self.open.values() for receiver in past.streams.values())

    def question_is_due(self, now_ns: int) -> bool:
        """Whether to ask (again) what is held."""
        if now_ns - self._asked_ns < SILENCE_NS:
            return False
        due = any(not past.is_known for past in self.open.values())
        due = due or any(not receiver.is_over and receiver.is_silent(now_ns) for receiver in self.receivers())
        if due:
            self._asked_ns = now_ns
        return due

    def take_answer(self, body: Mapping[str, Any], current: int) -> None:
        """What the powerd of epoch ``current`` says that it holds. Raises `WireError`."""
        held = _read_held(body)
        if held is None:
            return
        ends_of = {description.epoch: ends for description, ends in held}
        for epoch, past in self.open.items():
            ends = ends_of.get(epoch, {})
            past.bound(ends)
            self.notes += past.give_up(past.cause, ends)
        first_known = next((i for i, epoch in enumerate(ends_of) if epoch in self.known), len(held))
        for description, ends in held[first_known:]:
            epoch = description.epoch
            if epoch in self.known or epoch == current or len(self.known) >= _MAX_KNOWN:
                continue
            # It began and ended between two looks: all of it is news.
            streams = {
                s.number: StreamReceiver(s, epoch, *ends[s.number]) for s in description.streams if s.number in ends
            }
            self.begin(description, live=False)
            self.open[epoch] = PastEpoch(description, streams)
        self.settle()

    def settle(self) -> None:
        """Let go of the epochs of which everything was received or given up."""
        for epoch in [epoch for epoch, past in self.open.items() if past.is_settled]:
            del self.open[epoch]
            self._note("settled", epoch)

    def give_up(self) -> None:
        """The run ends: what has not come by now is a gap."""
        for past in self.open.values():
            self.notes += past.give_up(NO_ANSWER)
        self.settle()

    def _note(self, state: str, epoch: int) -> None:
        self.notes.append(Message("epoch", {"url": self.url, "state": state}, epoch))
