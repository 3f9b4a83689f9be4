"""Reading a journal while it grows: any pieces, torn appends, restarts of powerd, steps of its clock."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerd_client.pmlib.readings import JournalReader
from powerd_core import wire
from powerd_core.model import ClockExchange
from powerd_core.serde import to_document
from support.fake_daemon import PERIOD_NS, make_block, make_description, make_stream

STREAM = make_stream()
NAMES = [line.name for line in STREAM.lines]
S = 1_000_000_000
AHEAD_NS = 7 * S
"""Host minus board."""


def described(epoch=5):
    return wire.Message("description", to_document(make_description(STREAM, epoch)), epoch)


def exchange(t_board_ns, epoch=5, ahead_ns=AHEAD_NS):
    return ClockExchange(epoch, t_board_ns + ahead_ns - 40_000, t_board_ns, t_board_ns, t_board_ns + ahead_ns + 40_000)


def block(sequence, t_board_ns, epoch=5, milliwatts=2000):
    return make_block(STREAM, epoch, sequence, t_board_ns, [milliwatts] * 20)


def events(count=10):
    """A second of readings in blocks of 20 ms from board time 1 s on."""
    found = [described(), exchange(S)]
    for i in range(count):
        found += [block(i, S + i * 20 * PERIOD_NS), exchange(S + (i + 1) * 20 * PERIOD_NS)]
    return found


def frames(parts):
    return b"".join(wire.encode(event) for event in parts)


def reader_of(tmp_path, parts):
    (tmp_path / "journal.bin").write_bytes(frames(parts))
    reader = JournalReader(tmp_path)
    reader.update()
    return reader


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 12_000), max_size=5))
def test_any_pieces_give_the_same_readings(tmp_path_factory, cuts):
    path = tmp_path_factory.mktemp("journal")
    data = frames(events())
    reader = None
    edges = sorted({0, len(data), *(min(c, len(data)) for c in cuts)})
    for low, high in itertools.pairwise(edges):
        with (path / "journal.bin").open("ab") as file:
            file.write(data[low:high])
        reader = reader or JournalReader(path)
        reader.update()
    found = reader.readings(NAMES, [(0, 100 * S)])[0]
    for j, name in enumerate(NAMES):
        t = S + AHEAD_NS + PERIOD_NS * np.arange(200) + 10_000 * j
        assert np.abs(found[name].t_ns - t).max() < 100
        assert found[name].watts_at(found[name].t_ns) == pytest.approx(np.full(200, 2.0))


def test_a_powerd_that_was_started_anew(tmp_path):
    ahead = AHEAD_NS + 2 * S
    anew = [described(6), exchange(100, 6, ahead), block(0, 1000, 6, 3000), exchange(40 * PERIOD_NS, 6, ahead)]
    of_nobody = block(0, 50 * S, epoch=99)  # a life that was never described
    found = reader_of(tmp_path, [*events(), *anew, of_nobody]).readings(NAMES, [(0, 100 * S)])[0][NAMES[0]]
    assert found.watts_at(found.t_ns) == pytest.approx([2.0] * 200 + [3.0] * 20)
    between_ns = 1000 + ahead - (S + AHEAD_NS + 199 * PERIOD_NS)
    missing_s = found.missing_s(int(found.t_ns[0]), int(found.t_ns[-1]))
    assert missing_s == pytest.approx((between_ns - PERIOD_NS) * 1e-9, rel=1e-4)
