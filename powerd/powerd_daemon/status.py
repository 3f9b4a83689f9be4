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


def ring_seconds(stream: Stream, ring_bytes: int, block_ns: int, overhead: int = FRAME_OVERHEAD_BYTES) -> float:
    """For how long a ring holds a stream at its nominal rate. A frame takes ``overhead`` bytes beside its own."""
    frame_ns = max(block_ns, stream.period_ns)
    frame_bytes = HEADER_BYTES + overhead + stream.scan_bytes * frame_ns / stream.period_ns
    return ring_bytes / frame_bytes * frame_ns / 1e9


def spool_seconds(streams: Sequence[Stream], spool_bytes: int, block_ns: int) -> float:
    """For how long a spool holds all streams at their nominal rates."""
    return 1 / sum(1 / ring_seconds(stream, spool_bytes, block_ns, 0) for stream in streams)


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
        rows.append(f"  spool {server.spool}: {server.spool_mib:.6g} MiB last {held}")
    return rows


class Status:
    """The state of one powerd, by what it consists of."""

    def __init__(self, store: Store, supervisor: Supervisor, server: Server, spool: Spool | None) -> None:
        self._store = store
        self._supervisor = supervisor
        self._server = server
        self._spool = spool

    def stats(self, description: Description, uptime_s: float, now_ns: int) -> dict[str, object]:
        """The body of the answer to *stats*; docs/reference/protocol.md lists its keys."""
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
        """How it went so far, in one line."""
        intakes, samplers = self._store.intakes.values(), self._supervisor.samplers
        counts = (s.statistics.get("missed_deadlines") for s in samplers)
        missed = sum(count for count in counts if isinstance(count, int))
        restarts, clients = sum(s.restarts for s in samplers), len(self._server.delivery.subscribers)
        return (
            f"powerd ran for {duration(uptime_s)}: {sum(i.scans for i in intakes)} scans, "
            f"{plural(sum(i.gaps for i in intakes), 'gap')}, {plural(missed, 'missed deadline')}, "
            f"{plural(restarts, 'sampler restart')}, {plural(clients, 'client')}"
        )

    def summary(self, uptime_s: float) -> list[str]:
        """What powerd says when it ends."""
        return [self.line(uptime_s)] + [
            f"  stream {i.stream.number} {i.stream.source}: {plural(i.scans, 'scan')} in {plural(i.frames, 'frame')}"
            for i in self._store.intakes.values()
        ]


def _stream(intake: Intake, sampler: Sampler) -> dict[str, object]:
    ring, counters = intake.ring, ("frames", "scans", "gaps", "lost_scans", "duplicates", "holes")
    return {
        "number": intake.stream.number,
        "source": intake.stream.source,
        **{name: getattr(intake, name) for name in counters},
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
        **{name: getattr(subscriber, name) for name in ("number", "address", "frames", "bytes", "replayed", "evicted")},
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
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.3g} h"
