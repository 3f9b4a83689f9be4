"""All boards of a recording: what comes from them goes into the logbook."""

from __future__ import annotations

import os
from collections.abc import Callable

import zmq

from powerd_client.hostclock import now_ns
from powerd_client.link import BoardLink, LinkMemory
from powerd_client.logbook import Logbook
from powerd_client.reception import Reception
from powerd_core.errors import PowerdError
from powerd_core.model import Block, Gap
from powerd_core.protocol import StreamReceiver

_FAST_EXCHANGES = 100
_FAST_NS, _SLOW_NS = 20_000_000, 100_000_000
_FAST_PERIOD_NS = 1_000_000_000
"""A slower stream is not waited for; its last reading is as old as it is."""
_WAIT_MS = 10
_ANSWERS = 64
"""At one go: a powerd that answers without end keeps nobody from the readings."""


class Boards:
    """The links to every powerd of a run, and how well they do."""

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._links: list[BoardLink] = []
        self._reception = Reception()
        self._exchanges = 0
        self._exchange_ns = 0

    def add(self, url: str, memory: LinkMemory | None) -> None:
        """Raises `ConfigError`."""
        self._links.append(BoardLink(self._context, url, client=f"recorder {os.getpid()}", memory=memory))

    def describe(self, log: Logbook, timeout_s: float, give_up: Callable[[], bool]) -> None:
        """Ask those who have not been described before. Raises what `BoardLink.describe` does."""
        for link in self._links:
            if link.description is None:
                link.describe(timeout_s, give_up)
            _keep_notes(link, log)

    def ask(self) -> None:
        """Ask for what is missing wherever it is time to."""
        for link in self._links:
            link.ask()

    def wait(self, descriptor: int | None) -> None:
        """Until something comes, there or on ``descriptor``, but not for long."""
        poller = zmq.Poller()
        if descriptor is not None:
            poller.register(descriptor, zmq.POLLIN)
        for link in self._links:
            for socket in (link.control, link.data, link.clock):
                if socket is not None:
                    poller.register(socket, zmq.POLLIN)
        poller.poll(_WAIT_MS)

    def receive(self, log: Logbook, stop_ns: int | None) -> bool:
        """Whether anything came that was taken before ``stop_ns``. Takes nothing while the logbook is full: it stays in
        the daemons' rings.
        """
        needed = False
        for link in self._links:
            if log.is_full:
                break
            for event, frame in link.receive():
                log.add(event, frame)
                needed = needed or _is_needed(event, link, stop_ns)
                if isinstance(event, Block) and (offset := link.offset_ns) is not None:
                    self._reception.add(len(frame), now_ns() - event.t_first_ns - offset)
            try:
                for _ in range(_ANSWERS):
                    if not link.control.poll(0):
                        break
                    link.receive_control()
            except PowerdError as error:
                log.warn(str(error))
            for exchange in link.late_exchanges():
                log.add(exchange)
            _keep_notes(link, log)
        return needed

    def exchange_clocks(self, log: Logbook) -> None:
        """Compare the clocks when it is time to: fast at first, then slowly."""
        now = now_ns()
        if now < self._exchange_ns:
            return
        self._exchanges += 1
        self._exchange_ns = now + (_FAST_NS if self._exchanges < _FAST_EXCHANGES else _SLOW_NS)
        for link in self._links:
            # The first of a pair finds both processes asleep, and its way there takes longer than the way back: half of
            # the difference would be an error of the offset. The quicker one is kept.
            made = [exchange for _ in range(2) if (exchange := link.exchange()) is not None]
            if made:
                log.add(min(made, key=lambda e: e.delay_ns))

    def _fast(self, link: BoardLink) -> list[StreamReceiver]:
        return [s for s in link.streams.values() if s.stream.period_ns < _FAST_PERIOD_NS]

    def flow(self) -> bool:
        """Whether every fast stream has sent something and the clocks are roughly known."""
        return self._exchanges >= 10 and all(s.t_last_board_ns for link in self._links for s in self._fast(link))

    def have_reached(self, stop_ns: int) -> bool:
        """Whether everything up to ``stop_ns`` was received."""
        for link in self._links:
            offset = link.offset_ns
            if offset is None or link.earlier.open:
                return False
            if any(s.t_last_board_ns + offset < stop_ns for s in self._fast(link)):
                return False
        return True

    def silent(self, stop_ns: int) -> list[str]:
        """What to say of each board that sent nothing of the run's end."""
        found = []
        for link in self._links:
            lasts = [s.t_last_board_ns + link.offset_ns for s in self._fast(link) if link.offset_ns is not None]
            late_s = (stop_ns - min(lasts)) * 1e-9 if lasts else 0.0
            if late_s > 0:
                found.append(f"powerd at {link.url} sent nothing of the last {late_s:.3g} s of the run: is it running?")
        return found

    def give_up(self, log: Logbook) -> None:
        """The run ends: what has not come of earlier epochs is a gap."""
        for link in self._links:
            link.earlier.give_up()
            _keep_notes(link, log)

    def summary(self) -> dict[str, float]:
        """How well readings came in."""
        refused = sum(link.refused for link in self._links)
        return self._reception.summary(refused=refused, replayed=sum(link.replayed for link in self._links))

    def lines(self) -> list[str]:
        """The names of all lines."""
        return [line.name for link in self._links for s in link.streams.values() for line in s.stream.lines]

    def close(self) -> None:
        for link in self._links:
            link.close()
        self._context.destroy(linger=0)


def _keep_notes(link: BoardLink, log: Logbook) -> None:
    for event in link.take_notes():
        log.add(event)


def _is_needed(event: Block | Gap, link: BoardLink, stop_ns: int | None) -> bool:
    """Whether it was worth waiting for: taken before the end of the run."""
    is_live = link.description is not None and link.description.epoch == event.epoch
    if stop_ns is None or link.offset_ns is None or not is_live:
        return True
    return event.t_last_ns + link.offset_ns < stop_ns
