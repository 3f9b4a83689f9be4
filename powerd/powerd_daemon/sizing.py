"""How long rings and spool last, whether that is enough, and whether this machine has the memory for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from powerd_core.model import Stream
from powerd_core.wire import HEADER_BYTES
from powerd_daemon.config import ServerConfig
from powerd_daemon.ring import FRAME_OVERHEAD_BYTES

ENOUGH_S = 600.0
"""A client that was cut off for so long misses nothing."""


def ring_seconds(stream: Stream, ring_bytes: int, block_ns: int) -> float:
    """For how long a ring holds a stream at its nominal rate."""
    return ring_bytes / _bytes_per_s(stream, block_ns, FRAME_OVERHEAD_BYTES)


def spool_seconds(streams: Sequence[Stream], spool_bytes: int, block_ns: int) -> float:
    """For how long a spool holds all streams at their nominal rates."""
    return spool_bytes / sum(_bytes_per_s(stream, block_ns, 0) for stream in streams)


def advice(streams: Sequence[Stream], server: ServerConfig) -> list[str]:
    """What to say of rings that are too short. A spool that lasts long enough makes up for them."""
    if server.spool is not None and spool_seconds(streams, server.spool_bytes, server.block_ns) >= ENOUGH_S:
        return []
    return short_rings(streams, server.ring_bytes, server.block_ns)


def short_rings(streams: Sequence[Stream], ring_bytes: int, block_ns: int) -> list[str]:
    """What to say of each stream whose ring lasts less than ten minutes."""
    said = []
    for stream in streams:
        rate = _bytes_per_s(stream, block_ns, FRAME_OVERHEAD_BYTES)
        if ring_bytes < ENOUGH_S * rate:
            enough_mib = math.ceil(ENOUGH_S * rate / (1 << 20))
            said.append(
                f"the ring of stream {stream.number} {stream.source} lasts {ring_bytes / rate:.3g} s, less than ten "
                f"minutes: set ring_mib = {enough_mib}, or give a spool that lasts"
            )
    return said


def large_rings(count: int, ring_bytes: int, available_bytes: int | None) -> str:
    """What to say when full rings would take more than half of the memory that is available; else nothing."""
    total = count * ring_bytes
    if available_bytes is None or total <= available_bytes / 2:
        return ""
    mib = 1 << 20
    fitting = available_bytes / 2 / count / mib
    return (
        f"{count} rings of {ring_bytes / mib:.6g} MiB may take {total / mib:.0f} MiB, more than half of the "
        f"{available_bytes / mib:.0f} MiB of memory that are available: set ring_mib = {max(math.floor(fitting), 1)}"
    )


def available_bytes(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Memory that processes can still get without swapping, as the kernel estimates it; None where it does not say."""
    try:
        for line in meminfo.read_text(encoding="ascii").splitlines():
            name, _, rest = line.partition(":")
            if name == "MemAvailable":
                return int(rest.split()[0]) << 10
    except (OSError, ValueError, IndexError):
        pass
    return None


def _bytes_per_s(stream: Stream, block_ns: int, overhead: int) -> float:
    """Of a stream's frames at its nominal rate, each with ``overhead`` bytes beside its own."""
    frame_ns = max(block_ns, stream.period_ns)
    return (HEADER_BYTES + overhead + stream.scan_bytes * frame_ns / stream.period_ns) / frame_ns * 1e9
