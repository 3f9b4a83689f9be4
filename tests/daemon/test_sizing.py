"""How long rings last, what is said when that is too short, and when they could take too much memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from steady_source import steady_stream

from powerd_core import ConfigError
from powerd_core.model import Column, Line, Provenance, ShuntConversion, Stream
from powerd_daemon.config import ServerConfig, parse_config
from powerd_daemon.sizing import (
    ENOUGH_S,
    advice,
    available_bytes,
    large_rings,
    ring_seconds,
    short_rings,
    spool_seconds,
)

MIB = 1 << 20
SOURCE = '[[source]]\nkind = "sim"\n'


def rails(rate_hz: float, lines: int = 8) -> Stream:
    """A stream as sensors on I2C give it."""
    conversion = ShuntConversion(0.001, 1e-5, 4e-3)
    made = tuple(Line(f"l{i}", "gpu0", conversion, Provenance.MEASURED) for i in range(lines))
    return Stream(0, "rails", (Column("shunt", "h"), Column("bus", "H")), made, int(1e9 / rate_hz))


def test_eight_lines_at_a_kilohertz_last_ten_minutes_by_default() -> None:
    server = ServerConfig()
    seconds = ring_seconds(rails(1000), server.ring_bytes, server.block_ns)
    assert seconds == pytest.approx(666, abs=1)
    assert short_rings([rails(1000)], server.ring_bytes, server.block_ns) == []


def test_what_does_not_last_is_said_with_a_remedy() -> None:
    (line,) = short_rings([rails(100), rails(20_000)], 64 * MIB, 20_000_000)
    assert line == (
        "the ring of stream 0 rails lasts 37.9 s, less than ten minutes: set ring_mib = 1015, "
        "or give a spool that lasts"
    )


@given(st.floats(1, 50_000), st.integers(1, 16), st.floats(0.01, 4096), st.sampled_from([1, 20, 500]))
def test_the_remedy_is_one(rate_hz: float, lines: int, ring_mib: float, block_ms: int) -> None:
    stream = rails(rate_hz, lines)
    said = short_rings([stream], int(ring_mib * MIB), block_ms * 1_000_000)
    assert bool(said) == (ring_seconds(stream, int(ring_mib * MIB), block_ms * 1_000_000) < ENOUGH_S)
    for line in said:
        wanted = int(line.partition("ring_mib = ")[2].partition(",")[0])
        assert short_rings([stream], wanted * MIB, block_ms * 1_000_000) == []


def test_rings_that_could_fill_the_memory_are_warned_of() -> None:
    assert large_rings(3, 64 * MIB, 400 * MIB) == ""
    assert large_rings(3, 64 * MIB, None) == ""
    assert large_rings(4, 64 * MIB, 400 * MIB) == (
        "4 rings of 64 MiB may take 256 MiB, more than half of the 400 MiB of memory that are available: "
        "set ring_mib = 50"
    )


def test_available_memory_is_what_the_kernel_says(tmp_path: Path) -> None:
    path = tmp_path / "meminfo"
    path.write_text("MemTotal:        507904 kB\nMemAvailable:    409600 kB\n")
    assert available_bytes(path) == 400 * MIB
    path.write_text("MemTotal: 1 kB\n")
    assert available_bytes(path) is None
    path.write_text("MemAvailable: many\n")
    assert available_bytes(path) is None
    assert available_bytes(tmp_path / "none") is None


def test_a_spool_lasts_for_all_streams_together() -> None:
    one = spool_seconds([rails(1000)], 1 << 30, 20_000_000)
    assert spool_seconds([rails(1000), rails(1000)], 1 << 30, 20_000_000) == pytest.approx(one / 2)
    assert one > ring_seconds(rails(1000), 1 << 30, 20_000_000), "a file has no overhead for each frame"


def test_a_spool_that_lasts_makes_up_for_short_rings() -> None:
    fast = [rails(20_000)]
    assert len(advice(fast, ServerConfig())) == 1
    assert advice(fast, ServerConfig(spool=Path("d"))) == []
    assert len(advice(fast, ServerConfig(spool=Path("d"), spool_mib=900))) == 1


def test_options_of_the_spool() -> None:
    assert parse_config(SOURCE, "f").server.spool is None
    server = parse_config(f'[server]\nspool = "/a/b"\nspool_mib = 10\nspool_sync_s = 2\n{SOURCE}', "f").server
    assert (server.spool, server.spool_mib, server.spool_sync_s) == (Path("/a/b"), 10.0, 2.0)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("spool = 3", r"f: \[server\]: option 'spool': expected a path.*, found 3 \(line 2\)"),
        ("spool_mib = 0.5", r"option 'spool_mib': 0.5 MiB is not a size of at least 1"),
        ("spool_sync_s = 0", r"option 'spool_sync_s': 0.0 is not between 0.05 and 3600"),
    ],
)
def test_bad_options_of_the_spool(option: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(f"[server]\n{option}\n{SOURCE}", "f")


def test_names_in_the_harness_are_streams() -> None:
    assert ring_seconds(steady_stream(), 576_000, 20_000_000) == pytest.approx(20.0)
