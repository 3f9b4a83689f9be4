"""The wire format: round trips, damage, byte streams cut anywhere, and blocks from scans and back."""

import struct
from array import array
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerd_core import wire
from powerd_core.errors import VersionError, WireError
from powerd_core.model import Block, BlockBuilder, Column, Gap, Line, Provenance, ScaledConversion, Stream, columns
from powerd_core.wire import seal
from support.strategies import blocks, events

GOLDEN = Path(__file__).parent / "golden"


def read_all(pieces: list[bytes]) -> list[object]:
    reader = wire.FrameReader()
    found = [event for piece in pieces for event, _ in reader.feed(piece)]
    found += [event for event, _ in reader.close()]
    assert reader.pending == 0
    return found


@given(events)
def test_an_event_comes_back_as_it_was(event):
    assert wire.decode(wire.encode(event)) == event


@given(events, st.binary(max_size=80), st.data())
def test_a_header_is_read_where_a_frame_is_good_and_nowhere_else(event, junk, data):
    frame = wire.encode(event)
    header = wire.read_header(frame)
    assert header.length == len(frame) - wire.HEADER_BYTES
    if isinstance(event, Block | Gap):
        assert header[1:6] == (event.stream, event.epoch, event.sequence, event.t_first_ns, event.t_last_ns)
        assert header.following == event.sequence + (event.span if isinstance(event, Gap) else 1)
    at = data.draw(st.integers(0, len(frame)))
    damaged = frame[:at] + junk + frame[at + len(junk) :]
    if damaged != frame:
        for read in (wire.read_header, wire.decode):
            with pytest.raises(WireError):
                read(damaged)


@given(st.binary(max_size=300))
def test_garbage_is_an_error_of_ours(data):
    with pytest.raises(WireError):
        wire.decode(data)


@given(st.integers(1, 6), st.binary(max_size=40))
def test_a_good_checksum_over_bad_contents_is_an_error_of_ours(kind, payload):
    frame = seal(kind, payload, count=3)
    try:
        event = wire.decode(frame)
    except WireError:
        return
    if not isinstance(event, wire.Message):  # JSON has many spellings of one thing
        assert wire.decode(wire.encode(event)) == event


def test_deeply_nested_json_is_an_error_of_ours():
    body = b'{"subject":"x","body":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    with pytest.raises(WireError):
        wire.decode(seal(wire.MESSAGE, body))


@given(st.lists(events | st.binary(min_size=1, max_size=80), max_size=6), st.data())
def test_any_split_of_a_byte_stream_gives_the_same_events(items, data):
    stream = b"".join(item if isinstance(item, bytes) else wire.encode(item) for item in items)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert read_all(pieces) == read_all([stream])


@given(st.lists(blocks, min_size=1, max_size=4), st.binary(max_size=60), st.binary(max_size=60))
def test_frames_are_found_behind_garbage(frames, before, between):
    stream = before + between.join(wire.encode(b) for b in frames)
    found = read_all([stream])
    assert [e for e in found if isinstance(e, Block)] == frames
    lost = sum(e.count for e in found if isinstance(e, wire.Garbage))
    assert lost == len(before) + len(between) * (len(frames) - 1)


@given(blocks, blocks, st.data())
def test_a_cut_off_tail_loses_only_itself(first, second, data):
    tail = wire.encode(second)
    tail = tail[: data.draw(st.integers(0, len(tail) - 1))]
    found = read_all([wire.encode(first) + tail])
    assert found[0] == first
    assert sum(e.count for e in found[1:]) == len(tail)


def test_a_false_length_does_not_hide_the_frames_behind_it():
    good = wire.encode(Gap(1, 2, 3, 4, 5, 1, 1, "x"))
    head = wire.HEADER.pack(wire.MAGIC, wire.VERSION, wire.BLOCK, 0, 0, 0, 0, 0, 0, wire.MAX_PAYLOAD, 0, 0)
    found = read_all([head + bytes(4) + good])
    assert found[-1] == wire.decode(good)


def test_another_version_is_named():
    frame = bytearray(wire.encode(wire.Message("describe")))
    frame[4] = 9
    with pytest.raises(VersionError):
        wire.decode(bytes(frame))


def test_a_huge_length_is_refused_before_anything_is_allocated():
    head = wire.HEADER.pack(wire.MAGIC, wire.VERSION, wire.BLOCK, 0, 0, 0, 0, 0, 0, 2**32 - 1, 0, 0)
    with pytest.raises(WireError):
        wire.decode(head + wire.CRC.pack(crc32(head)))
    with pytest.raises(WireError):
        wire.encode(Block(0, 0, 0, 0, 0, 0, 0, bytes(wire.MAX_PAYLOAD + 1)))


def test_the_header_is_where_the_documentation_says():
    frame = wire.encode(Block(7, 0x0102030405060708, 9, -1, 2, 3, 0xABCD, b"xyz"))
    assert struct.unpack("<4sBBHQQqqIIHHI", frame[:56])[:-1] == (
        b"pwrd", 1, 1, 7, 0x0102030405060708, 9, -1, 2, 3, 3, 0xABCD, 0,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["block", "gap", "clock", "want"])
def test_golden_frames_are_still_read_and_written(name):
    """Frames written by the first release. A change here is a new version of the wire format."""
    frame = bytes.fromhex((GOLDEN / f"{name}.hex").read_text())
    event = wire.decode(frame)
    assert wire.encode(event) == frame
    assert repr(event) == (GOLDEN / f"{name}.txt").read_text().strip()


def stream_of(lines: int, *codes: str) -> Stream:
    made = tuple(Line(f"gpu0.{i}", "gpu0", ScaledConversion("c0", 1.0), Provenance.SIMULATED) for i in range(lines))
    return Stream(5, "test", tuple(Column(f"c{i}", c) for i, c in enumerate(codes)), made, 1000)


@given(st.data(), st.integers(1, 8), st.lists(st.sampled_from("bBhHiIqQ"), max_size=3))
def test_scans_come_back_column_by_column(data, lines, codes):
    stream = stream_of(lines, *codes)
    builder = BlockBuilder(stream, 99, first_sequence=7)
    scans = data.draw(st.integers(1, 5))
    want = {"t_ns": array("q"), "dt_ns": array("i"), "flags": array("H")} | {
        c.name: array(c.typecode) for c in stream.columns
    }
    for k in range(scans):
        row = [[data.draw(st.integers(0, 127)) for _ in range(lines)] for _ in range(2 + len(codes))]
        builder.append(1000 * k, *row[:2], row[2:])
        want["t_ns"].append(1000 * k)
        for name, values in zip(("dt_ns", "flags", *(c.name for c in stream.columns)), row, strict=True):
            want[name].extend(values)
    block = builder.take()
    assert block is not None
    assert (block.sequence, block.epoch, block.count) == (7, 99, scans)
    assert {k: bytes(v) for k, v in columns(block, stream).items()} == {k: v.tobytes() for k, v in want.items()}
    assert block.t_first_ns == min(want["dt_ns"][:lines])
    assert block.t_last_ns == 1000 * (scans - 1) + max(want["dt_ns"][-lines:])
    assert builder.take() is None


def test_a_column_that_is_too_short_is_not_sent():
    builder = BlockBuilder(stream_of(2, "H"), 1)
    builder.append(0, [0, 0], [0, 0], [[1]])
    with pytest.raises(ValueError, match="test"):
        builder.take()


def test_a_block_of_another_stream_is_refused():
    stream, other = stream_of(2, "H"), stream_of(3, "H")
    with pytest.raises(WireError):
        columns(Block(0, 0, 0, 0, 0, 0, other.layout, b""), stream)
    with pytest.raises(WireError):
        columns(Block(0, 0, 0, 0, 0, 1, stream.layout, b"x"), stream)
