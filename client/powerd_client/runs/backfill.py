"""`joules journal recover --from`: into a journal that nobody writes any more, what it misses and a powerd holds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import zmq

from powerd_client.host.hostclock import now_ns
from powerd_client.journals import journal as journals
from powerd_client.journals.journal_writer import JournalWriter, read_past
from powerd_client.journals.link import BoardLink
from powerd_client.runs.build import Contents, phases_of, read_contents
from powerd_client.signals.board_times import to_host_ns
from powerd_core.clock_comparison import ClockPiece, map_clock
from powerd_core.errors import ClockError
from powerd_core.model import Block
from powerd_core.protocol import PastEpoch, StreamReceiver

_PATIENCE_NS = 3_000_000_000
"""When nothing has come for so long, nothing more will come."""
_WAIT_MS = 20


def backfill(journal: Path, url: str, keys: str | os.PathLike[str] | None) -> None:
    """Fetch the blocks that the journal misses up to the run's end, from the ring and the spool of the powerd at
    ``url``. The end of a run that nobody closed is its last mark or reading.

    Raises `RunFileError`, `PeerError` or `ConfigError`.
    """
    held = journals.lock(journal)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        contents = read_contents(journal, needs_run=False)
        link = BoardLink(context, url, client="recover", keys=keys)
        writer = JournalWriter(journal, read_past(journal))
        try:
            link.describe()
            for frame in _missing_frames(link, contents):
                writer.add(*frame)
                writer.flush()
        finally:
            writer.close()
            link.close()
    finally:
        context.destroy(linger=0)
        os.close(held)


def _missing_frames(link: BoardLink, contents: Contents) -> Iterator[tuple[Block, bytes]]:
    """Blocks of the run that the journal has not, each with its bytes, as they come."""
    clocks = {epoch: clock for epoch in contents.descriptions if (clock := _clock(contents, epoch))}
    end_ns = _end_ns(contents, clocks)
    assert link.description is not None
    live = link.description.epoch
    wanted = {epoch: _receivers(contents, epoch) for epoch in clocks}
    link.streams = wanted.get(live, {})
    link.earlier.open = {
        epoch: PastEpoch(contents.descriptions[epoch], streams) for epoch, streams in wanted.items() if epoch != live
    }
    link.earlier.known = set(contents.descriptions)
    heard_ns = now_ns()
    while (link.earlier.open or any(not s.is_over for s in link.streams.values())) and (
        now_ns() - heard_ns < _PATIENCE_NS
    ):
        link.ask()
        if link.control.poll(0):
            link.receive_control()
            # What began and ended since has nothing of this run.
            link.earlier.open = {epoch: past for epoch, past in link.earlier.open.items() if epoch in wanted}
        if link.data is None or not link.data.poll(_WAIT_MS):
            continue
        for event, frame in link.receive():
            heard_ns = now_ns()
            if not isinstance(event, Block) or event.epoch not in clocks:
                continue
            if _host_ns(event.t_first_ns, clocks[event.epoch]) > end_ns:
                _finish(link, event)
            elif event.sequence not in contents.streams[event.epoch, event.stream].blocks:
                yield event, frame


def _receivers(contents: Contents, epoch: int) -> dict[int, StreamReceiver]:
    """One for each stream of an epoch, from its first missing number on."""
    receivers = {}
    for stream in contents.descriptions[epoch].streams:
        if frames := contents.streams.get((epoch, stream.number)):
            first, behind = frames.numbers
            missing = next((n for n in range(first, behind) if n not in frames.blocks), behind)
            receivers[stream.number] = StreamReceiver(stream, epoch, missing)
    return receivers


def _finish(link: BoardLink, event: Block) -> None:
    """Ask no more of a stream: what comes now was taken behind the end of the run."""
    is_live = link.description is not None and event.epoch == link.description.epoch
    receiver = link.streams.get(event.stream) if is_live else link.earlier.receiver(event.epoch, event.stream)
    if receiver is not None:
        receiver.end = receiver.next
        link.earlier.settle()


def _clock(contents: Contents, epoch: int) -> tuple[ClockPiece, ...]:
    try:
        return map_clock(contents.exchanges.get(epoch, []))
    except ClockError:
        return ()  # readings of this epoch would have no place in time


def _end_ns(contents: Contents, clocks: dict[int, tuple[ClockPiece, ...]]) -> int:
    """The end of the run on the host's clock."""
    if contents.stopped:
        return contents.t_stop_ns
    phases, _, _ = phases_of(contents)
    readings = [
        _host_ns(max(place.t_last_ns for place in frames.blocks.values()), clocks[epoch])
        for (epoch, _), frames in contents.streams.items()
        if epoch in clocks and frames.blocks
    ]
    return max([0, *phases.begin_ns, *phases.end_ns, *readings])


def _host_ns(t_board_ns: int, clock: tuple[ClockPiece, ...]) -> int:
    return int(to_host_ns(np.array([t_board_ns], np.int64), clock)[0])
