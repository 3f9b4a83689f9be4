"""What a journal already holds, so that a recorder can go on where one that died has stopped."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from powerd_client.journalfile import check_version, read_events
from powerd_client.link import LinkMemory
from powerd_client.tails import Copied
from powerd_core.errors import WireError
from powerd_core.marks import Marks
from powerd_core.model import Block, Description, Gap
from powerd_core.protocol import PastEpoch, StreamReceiver
from powerd_core.serde import read_description
from powerd_core.wire import CURRENT, Event, Garbage, Message


@dataclass(slots=True)
class _Address:
    """What the epoch messages say of one address."""

    epochs: list[int] = field(default_factory=list)
    """In the order in which they were first seen."""
    live: int | None = None
    settled: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Past:
    """The contents of a journal, as far as a recorder must know them."""

    size: int = 0
    """Bytes up to the end of the last good frame."""
    has_run: bool = False
    has_start: bool = False
    has_stop: bool = False
    notes: set[str] = field(default_factory=set)
    copied: Copied = field(default_factory=Copied)
    _places: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    """By epoch and stream: the next number, and the board time of the last reading."""
    _descriptions: dict[int, Description] = field(default_factory=dict)
    _addresses: dict[str, _Address] = field(default_factory=dict)

    def memory(self, url: str) -> LinkMemory | None:
        """What a link to ``url`` goes on from; None when it had not been described."""
        address = self._addresses.get(url)
        if address is None or address.live not in self._descriptions:
            return None
        live = self._descriptions[address.live]
        earlier = {
            epoch: PastEpoch(self._descriptions[epoch], self._states(epoch, address))
            for epoch in address.epochs
            if epoch != address.live and epoch not in address.settled and epoch in self._descriptions
        }
        return LinkMemory(live, self._states(address.live, address), earlier, set(address.epochs))

    def _states(self, epoch: int, address: _Address) -> dict[int, StreamReceiver]:
        description = self._descriptions[epoch]
        before = [
            self._descriptions[e] for e in address.epochs[: address.epochs.index(epoch)] if e in self._descriptions
        ]
        # As the link began them: a board's second life is read from its oldest reading on.
        first = 0 if any(d.board == description.board for d in before) else CURRENT
        found = {}
        for stream in description.streams:
            number, t_last_ns = self._places.get((epoch, stream.number), (first, 0))
            found[stream.number] = StreamReceiver(stream, epoch, number, t_last_board_ns=t_last_ns)
        return found

    def take(self, event: Event | Garbage) -> None:
        match event:
            case Block():
                self._reach(event, event.sequence + 1)
            case Gap():
                self._reach(event, event.sequence + event.span)
            case Marks():
                self.copied.add(event)
            case Message():
                self._take_message(event.subject, event.body, event.epoch)

    def _reach(self, event: Block | Gap, following: int) -> None:
        key = event.epoch, event.stream
        if following > self._places.get(key, (0, 0))[0]:
            self._places[key] = following, event.t_last_ns

    def _take_message(self, subject: str, body: Mapping[str, Any], epoch: int) -> None:
        match subject:
            case "run":
                self.has_run = True
            case "start":
                self.has_start = True
            case "stop":
                self.has_stop = True
            case "note":
                self.notes.add(str(body.get("text")))
            case "phase-names":
                process = int(body["process"])
                self.copied.documents[process] = self.copied.documents.get(process, 0) + 1
            case "description":
                with contextlib.suppress(WireError):  # a damaged one is asked for again
                    self._descriptions[epoch] = read_description(body)
            case "epoch":
                address = self._addresses.setdefault(str(body["url"]), _Address())
                if epoch not in address.epochs:
                    address.epochs.append(epoch)
                if body["state"] == "live":
                    address.live = epoch
                    address.settled.discard(epoch)
                elif body["state"] == "settled":
                    address.settled.add(epoch)


def read_past(journal: Path) -> Past:
    """Read a journal's file, if there is one. Raises `RunFileError`."""
    past, file = Past(), journal / "journal.bin"
    if not file.exists():
        return past
    check_version(file)
    for event, at, size in read_events(file):
        if not isinstance(event, Garbage):
            past.take(event)
            past.size = at + size
    return past
