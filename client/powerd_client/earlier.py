"""The epochs of a powerd that are over: what it still holds of them, and what is lost for good.

A powerd that was started anew, or another board behind the same address, begins a new epoch. Readings of the one before
that had not been received are gone, unless the powerd spools to disk; its answer to ``epochs`` tells.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from powerd_client.pull import SILENCE_NS, StreamState
from powerd_core.errors import WireError
from powerd_core.model import UNKNOWN_TIME_NS, Description, Gap
from powerd_core.serde import read_description, to_document
from powerd_core.wire import CURRENT, Event, Message

RING_LOST = "powerd ended; its ring is lost"
OTHER_BOARD = "another board answers at the address"
NO_ANSWER = "powerd did not send what it may hold of its earlier epoch before the run ended"

_MAX_SPAN = 2**32 - 1
_MAX_EPOCHS = 256
_MAX_KNOWN = 4096
"""A board that claims to have been started more often than this in one run is not believed."""


@dataclass(slots=True)
class Earlier:
    """An epoch that is over, and how far each of its streams was received."""

    description: Description
    streams: dict[int, StreamState]
    t_left_board_ns: int = UNKNOWN_TIME_NS
    """When it was certainly over, on its own clock, as well as that is known."""
    cause: str = RING_LOST
    """Why what it held is lost, if it is."""

    @property
    def is_settled(self) -> bool:
        return all(state.is_over for state in self.streams.values())

    @property
    def is_known(self) -> bool:
        """Whether the powerd has said how far each of its streams goes."""
        return all(state.end is not None for state in self.streams.values())

    def bound(self, ends: Mapping[int, tuple[int, int]]) -> None:
        """Take over what is held: stream number to the oldest number and the one behind the newest."""
        for number, state in self.streams.items():
            if number in ends:
                oldest, state.end = ends[number]
                if state.next == CURRENT:
                    state.next = max(oldest, state.end - 1)  # as if it had been asked for while it was the newest

    def give_up(self, cause: str, held: Collection[int] = ()) -> list[Gap]:
        """The gaps that stand for what was not received of the streams that are not ``held``."""
        gaps = []
        for number, state in self.streams.items():
            if state.is_over or number in held:
                continue
            if state.next == CURRENT:
                state.next = 0  # nothing was ever received: there is no place for a gap
            else:
                span = 1 if state.end is None else min(state.end - state.next, _MAX_SPAN)
                t_first = state.t_last_board_ns or UNKNOWN_TIME_NS
                t_last = max(t_first, self.t_left_board_ns)
                gaps.append(Gap(number, state.epoch, state.next, t_first, t_last, span, -1, cause))
                state.next += span
            state.end = state.next
        return gaps


@dataclass(frozen=True, slots=True)
class Held:
    """What a powerd holds of one earlier epoch."""

    description: Description
    ends: Mapping[int, tuple[int, int]]
    """Oldest number and the one behind the newest, by stream."""


def read_held(body: Mapping[str, Any]) -> list[Held] | None:
    """The epochs of an answer, oldest first; None when the powerd is still looking. Raises `WireError`."""
    try:
        if not body["ready"]:
            return None
        found = []
        for entry in body["epochs"][-_MAX_EPOCHS:]:
            description = read_description(entry["description"])
            if description.epoch != int(entry["epoch"]):
                raise WireError(f"epoch {entry['epoch']} with the description of {description.epoch}")
            ends = {int(s["number"]): (int(s["oldest"]), int(s["next"])) for s in entry["streams"]}
            if any(not 0 <= oldest <= end < CURRENT for oldest, end in ends.values()):
                raise WireError(f"epoch {description.epoch} with numbers that cannot be")
            found.append(Held(description, ends))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, WireError):
            raise
        raise WireError(f"an unusable list of epochs: {error}") from error
    return found


@dataclass(slots=True)
class EarlierEpochs:
    """All epochs of one address but the one that goes on. ``notes`` collects what the journal must be told."""

    url: str
    open: dict[int, Earlier] = field(default_factory=dict)
    """Those that are not settled."""
    known: set[int] = field(default_factory=set)
    """Every epoch that was ever seen at the address."""
    notes: list[Event] = field(default_factory=list)
    _asked_ns: int = 0
    _is_waiting: bool = False

    def begin(self, description: Description, *, live: bool) -> None:
        """An epoch was seen for the first time, or is the one that goes on from now."""
        self.known.add(description.epoch)
        self.notes.append(Message("description", to_document(description), description.epoch))
        self._note("live" if live else "over", description.epoch)

    def leave(self, earlier: Earlier) -> None:
        self.open[earlier.description.epoch] = earlier
        self._asked_ns = 0

    def take_back(self, epoch: int) -> dict[int, StreamState] | None:
        """The streams of an epoch that goes on after all: a board that came back."""
        earlier = self.open.pop(epoch, None)
        return earlier.streams if earlier else None

    def state(self, epoch: int, number: int) -> StreamState | None:
        earlier = self.open.get(epoch)
        return earlier.streams.get(number) if earlier else None

    def states(self) -> Iterator[StreamState]:
        return (state for earlier in self.open.values() for state in earlier.streams.values())

    def question_is_due(self, now_ns: int) -> bool:
        """Whether to ask (again) what is held."""
        if now_ns - self._asked_ns < SILENCE_NS:
            return False
        due = any(not earlier.is_known for earlier in self.open.values())
        due = due or any(not state.is_over and state.is_silent(now_ns) for state in self.states())
        if due:
            self._asked_ns, self._is_waiting = now_ns, True
        return due

    def take_answer(self, body: Mapping[str, Any], current: int) -> None:
        """What the powerd of epoch ``current`` says that it holds. Raises `WireError`, also when nobody asked."""
        if not self._is_waiting:
            raise WireError("a list of epochs that nobody asked for")
        self._is_waiting = False
        found = read_held(body)
        if found is None:
            return
        held = {h.description.epoch: h for h in found}
        for epoch, earlier in self.open.items():
            ends = held[epoch].ends if epoch in held else {}
            earlier.bound(ends)
            self.notes += earlier.give_up(earlier.cause, ends.keys())
        first = next((i for i, epoch in enumerate(held) if epoch in self.known), len(held))
        for h in list(held.values())[first:]:
            description = h.description
            if description.epoch in self.known or description.epoch == current or len(self.known) >= _MAX_KNOWN:
                continue
            # It began and ended between two looks: all of it is news.
            streams = {
                s.number: StreamState(s, description.epoch, *h.ends[s.number])
                for s in description.streams
                if s.number in h.ends
            }
            self.begin(description, live=False)
            self.open[description.epoch] = Earlier(description, streams)
        self.settle()

    def settle(self) -> None:
        """Let go of the epochs of which everything was received or given up."""
        for epoch in [epoch for epoch, earlier in self.open.items() if earlier.is_settled]:
            del self.open[epoch]
            self._note("settled", epoch)

    def give_up(self) -> None:
        """The run ends: what has not come by now is a gap."""
        for earlier in self.open.values():
            self.notes += earlier.give_up(NO_ANSWER)
        self.settle()

    def _note(self, state: str, epoch: int) -> None:
        self.notes.append(Message("epoch", {"url": self.url, "state": state}, epoch))
