"""What a running powerd says about itself: on stderr, as the answer to *stats*, and whether its memory will do."""

from __future__ import annotations

from collections.abc import Sequence

from powerd_core.model import Description, Stream
from powerd_core.protocol import Subscriber
from powerd_core.wire import HEADER_BYTES
from powerd_daemon.config import ServerConfig
from powerd_daemon.ring import FRAME_OVERHEAD_BYTES, Intake, Store
from powerd_daemon.server import Server
from powerd_daemon.spool import Spool
from powerd_daemon.supervisor import Sampler, Supervisor


def ring_seconds(stream: Stream, ring_bytes: int, block_ns: int) -> float:
    """For how long a ring holds a stream at its nominal rate."""
    return ring_bytes / _bytes_per_s(stream, block_ns, FRAME_OVERHEAD_BYTES)


def spool_seconds(streams: Sequence[Stream], spool_bytes: int, block_ns: int) -> float:
    """For how long a spool holds all streams at their nominal rates."""
    return spool_bytes / sum(_bytes_per_s(stream, block_ns, 0) for stream in streams)


def _bytes_per_s(stream: Stream, block_ns: int, overhead: int) -> float:
    """Of a stream's frames at its nominal rate, each with ``overhead`` bytes beside its own."""
    frame_ns = max(block_ns, stream.period_ns)
    return (HEADER_BYTES + overhead + stream.scan_bytes * frame_ns / stream.period_ns) / frame_ns * 1e9


def ready_lines(description: Description, listen: str, data: str, server: ServerConfig) -> list[str]:
    """Where powerd listens, what it measures, and for how long it keeps that."""
    rows = [f"powerd {description.version} on {description.board} listens on {listen} (data on {data})"]
    for stream in description.streams:
        held = duration(ring_seconds(stream, server.ring_bytes, server.block_ns))
        provenance = ", ".join(sorted({line.provenance.value for line in stream.lines}))
        rows += [
            f"  stream {stream.number} {stream.source}: {plural(len(stream.lines), 'line')} at "
            f"{1e9 / stream.period_ns:.6g} Hz, {provenance}, the ring lasts {held}",
            f"    {', '.join(line.name for line in stream.lines)}",
        ]
    rows += [f"  device {device.name} = {' + '.join(device.feeds)}" for device in description.devices]
    if server.spool is not None:
        held = duration(spool_seconds(description.streams, server.spool_bytes, server.block_ns))
        rows.append(
            f"  spool {server.spool}: {server.spool_mib:.6g} MiB last {held}, safe after {server.spool_sync_s:g} s"
        )
    return rows


class Status:
    """The state of one powerd, by what it consists of."""

    def __init__(self, store: Store, supervisor: Supervisor, server: Server, spool: Spool | None) -> None:
        self._store = store
        self._supervisor = supervisor
        self._server = server
        self._spool = spool

    def stats(self, description: Description, uptime_s: float, now_ns: int) -> dict[str, object]:
        """The body of the answer to *stats*; docs/protocol.md lists its keys."""
        server, delivery = self._server, self._server.delivery
        samplers = {stream.number: s for s in self._supervisor.samplers for stream in s.streams or ()}
        return {
            "board": description.board,
            "version": description.version,
            "uptime_s": uptime_s,
            "streams": [_stream(intake, samplers[number]) for number, intake in self._store.intakes.items()],
            "clients": [_client(s, now_ns) for s in delivery.subscribers.values()],
            "served_clients": delivery.served_clients,
            "sent_frames": delivery.sent_frames,
            "replayed_frames": delivery.replayed_frames,
            "spool": None if self._spool is None else self._spool.stats(),
            "denied": server.denied,
            "cut_off": server.flood.cut_off,
            "handshakes_failed": server.handshakes_failed,
            "garbage": {**server.garbage, "samplers": self._supervisor.garbage},
        }

    def line(self, uptime_s: float) -> str:
        """What a terminal shows while powerd runs."""
        scans = sum(intake.scans for intake in self._store.intakes.values())
        clients = plural(len(self._server.delivery.subscribers), "client")
        return f"powerd: {duration(uptime_s)}, {scans} scans, {self._troubles()}, {clients}"

    def summary(self, uptime_s: float) -> list[str]:
        """What powerd says when it ends."""
        delivery, streams = self._server.delivery, [(i, i.stream) for i in self._store.intakes.values()]
        return [
            f"powerd ran for {duration(uptime_s)}: {self._troubles()}",
            *(
                f"  stream {t.number} {t.source}: {plural(i.scans, 'scan')} in {plural(i.frames, 'frame')}"
                for i, t in streams
            ),
            f"  sent {plural(delivery.sent_frames, 'frame')} to {plural(delivery.served_clients, 'client')}",
        ]

    def _troubles(self) -> str:
        counts = (s.statistics.get("missed_deadlines") for s in self._supervisor.samplers)
        missed = sum(count for count in counts if isinstance(count, int))
        gaps = sum(intake.gaps for intake in self._store.intakes.values())
        restarts = sum(s.restarts for s in self._supervisor.samplers)
        return f"{plural(gaps, 'gap')}, {plural(missed, 'missed deadline')}, {plural(restarts, 'sampler restart')}"


def _stream(intake: Intake, sampler: Sampler) -> dict[str, object]:
    ring = intake.ring
    return {
        "number": intake.stream.number,
        "source": intake.stream.source,
        "frames": intake.frames,
        "scans": intake.scans,
        "gaps": intake.gaps,
        "lost_scans": intake.lost_scans,
        "duplicates": intake.duplicates,
        "holes": intake.holes,
        "ring_bytes": ring.size_bytes,
        "ring_frames": len(ring),
        "held_s": ring.held_ns / 1e9,
        "oldest": ring.oldest,
        "newest": ring.next - 1,
        "sampler": {
            "state": sampler.state,
            "pid": sampler.process.pid if sampler.process else None,
            "restarts": sampler.restarts,
            "failure": sampler.failure,
            **sampler.statistics,
        },
    }


def _client(subscriber: Subscriber, now_ns: int) -> dict[str, object]:
    return {
        "number": subscriber.number,
        "address": subscriber.address,
        "frames": subscriber.frames,
        "bytes": subscriber.bytes,
        "replayed": subscriber.replayed,
        "evicted": subscriber.evicted,
        "blocked": subscriber.retry_ns is not None,
        "idle_s": (now_ns - subscriber.active_ns) / 1e9,
        "streams": [
            {"epoch": epoch, "number": number, "next": f.next, "limit": f.limit}
            for (epoch, number), f in subscriber.cursors.items()
        ],
    }


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def duration(seconds: float) -> str:
    """A duration for a person: ``12.3 s``, ``4 min``, ``5.2 h``."""
    if seconds < 100:
        return f"{seconds:.3g} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.3g} h"
