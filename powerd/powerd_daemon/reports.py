"""What a running powerd says about itself: on stderr, and as the answer to *stats*."""

from __future__ import annotations

from collections.abc import Sequence

from powerd_core.model import Description, Stream
from powerd_core.protocol import Subscriber
from powerd_daemon.config import ServerConfig
from powerd_daemon.sampler_process import Sampler
from powerd_daemon.server import Server
from powerd_daemon.sizing import ring_seconds, spool_seconds
from powerd_daemon.store import Intake, Store
from powerd_daemon.supervisor import Supervisor


def ready_lines(description: Description, listen: str, data: str, ring_bytes: int, block_ns: int) -> list[str]:
    """Where powerd listens and what it measures."""
    said = [f"powerd {description.version} on {description.board} listens on {listen} (data on {data})"]
    for stream in description.streams:
        held = duration(ring_seconds(stream, ring_bytes, block_ns))
        provenance = ", ".join(sorted({line.provenance.value for line in stream.lines}))
        said += [
            f"  stream {stream.number} {stream.source}: {plural(len(stream.lines), 'line')} at "
            f"{1e9 / stream.period_ns:.6g} Hz, {provenance}, the ring lasts {held}",
            f"    {', '.join(line.name for line in stream.lines)}",
        ]
    said += [f"  device {device.name} = {' + '.join(device.feeds)}" for device in description.devices]
    return said


def spool_line(server: ServerConfig, streams: Sequence[Stream]) -> str:
    """Where readings are kept on disk, and for how long."""
    held = duration(spool_seconds(streams, server.spool_bytes, server.block_ns))
    return f"  spool {server.spool}: {server.spool_mib:.6g} MiB last {held}, safe after {server.spool_sync_s:g} s"


def stats(
    description: Description, store: Store, supervisor: Supervisor, server: Server, uptime_s: float, now_ns: int
) -> dict[str, object]:
    """The body of the answer to *stats*; docs/protocol.md lists its keys."""
    samplers = {stream.number: s for s in supervisor.samplers for stream in s.streams or ()}
    delivery = server.delivery
    return {
        "board": description.board,
        "version": description.version,
        "uptime_s": uptime_s,
        "streams": [_stream(intake, samplers[number]) for number, intake in store.intakes.items()],
        "clients": [_client(s, now_ns) for s in delivery.subscribers.values()],
        "served_clients": delivery.served_clients,
        "sent_frames": delivery.sent_frames,
        "replayed_frames": delivery.replayed_frames,
        "spool": None if store.spool is None else store.spool.stats(),
        "denied": server.denied,
        "cut_off": server.flood.cut_off,
        "handshakes_failed": server.handshakes_failed,
        "garbage": {
            "control": server.garbage.control,
            "data": server.garbage.data,
            "clock": server.garbage.clock,
            "samplers": supervisor.garbage,
        },
    }


def status_line(store: Store, supervisor: Supervisor, server: Server, uptime_s: float) -> str:
    """What a terminal shows while powerd runs."""
    intakes = store.intakes.values()
    said = f"powerd: {duration(uptime_s)}, {sum(i.scans for i in intakes)} scans, {_troubles(store, supervisor)}"
    return f"{said}, {plural(len(server.delivery.subscribers), 'client')}"


def summary_lines(store: Store, supervisor: Supervisor, server: Server, uptime_s: float) -> list[str]:
    """What powerd says when it ends."""
    said = [f"powerd ran for {duration(uptime_s)}: {_troubles(store, supervisor)}"]
    said += [
        f"  stream {i.stream.number} {i.stream.source}: {plural(i.scans, 'scan')} in {plural(i.frames, 'frame')}"
        for i in store.intakes.values()
    ]
    said.append(
        f"  sent {plural(server.delivery.sent_frames, 'frame')} to {plural(server.delivery.served_clients, 'client')}"
    )
    return said


def _troubles(store: Store, supervisor: Supervisor) -> str:
    missed = sum(_count(s.statistics.get("missed_deadlines")) for s in supervisor.samplers)
    gaps = sum(i.gaps for i in store.intakes.values())
    restarts = sum(s.restarts for s in supervisor.samplers)
    return f"{plural(gaps, 'gap')}, {plural(missed, 'missed deadline')}, {plural(restarts, 'sampler restart')}"


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0


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
