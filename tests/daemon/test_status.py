"""How long rings last, what is said when that is too short."""

from __future__ import annotations

import pytest

from powerd_core.model import Column, Line, Provenance, ShuntConversion, Stream
from powerd_daemon.config import ServerConfig
from powerd_daemon.daemon import ring_seconds, spool_seconds


def rails(rate_hz: float, lines: int = 8) -> Stream:
    """A stream as sensors on I2C give it."""
    conversion = ShuntConversion(0.001, 1e-5, 4e-3)
    made = tuple(Line(f"l{i}", "gpu0", conversion, Provenance.MEASURED) for i in range(lines))
    return Stream(0, "rails", (Column("shunt", "h"), Column("bus", "H")), made, int(1e9 / rate_hz))


def test_eight_lines_at_a_kilohertz_last_ten_minutes_by_default() -> None:
    server = ServerConfig()
    seconds = ring_seconds(rails(1000), server.ring_bytes, server.block_ns)
    assert seconds == pytest.approx(666, abs=1)


def test_a_spool_lasts_for_all_streams_together() -> None:
    one = spool_seconds([rails(1000)], 1 << 30, 20_000_000)
    assert spool_seconds([rails(1000), rails(1000)], 1 << 30, 20_000_000) == pytest.approx(one / 2)
    assert one > ring_seconds(rails(1000), 1 << 30, 20_000_000), "a file has no overhead for each frame"
