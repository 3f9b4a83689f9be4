"""Blocks from scans and back."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerd_core.errors import WireError
from powerd_core.model import Block, BlockBuilder, Column, Line, Provenance, ScaledConversion, Stream, columns


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


def test_numbers_are_consecutive():
    builder = BlockBuilder(stream_of(1, "H"), 1, 3)
    found = []
    for _ in range(3):
        builder.append(0, [0], [0], [[1]])
        found.append(builder.take())
    assert [b.sequence for b in found if b] == [3, 4, 5]


def test_a_column_that_is_too_short_is_not_sent():
    builder = BlockBuilder(stream_of(2, "H"), 1)
    builder.append(0, [0, 0], [0, 0], [[1]])
    with pytest.raises(ValueError, match="differ in length"):
        builder.take()


def test_a_block_of_another_stream_is_refused():
    stream, other = stream_of(2, "H"), stream_of(3, "H")
    with pytest.raises(WireError, match="layout"):
        columns(Block(0, 0, 0, 0, 0, 0, other.layout, b""), stream)
    with pytest.raises(WireError, match="bytes"):
        columns(Block(0, 0, 0, 0, 0, 1, stream.layout, b"x"), stream)
