"""The serial line of the node, host side: frames from any pieces, bodies pinned by golden frames, the clock."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import powerd_daemon.sources.node.protocol as p
from powerd_core.errors import VersionError
from powerd_daemon.sources.node.protocol import MAX_BODY, MAX_ENCODED, Deframer, crc16, decode_frame, encode_frame
from powerd_daemon.sources.node.source import NodeTime

GOLDEN = dict(
    line.split() for line in (Path(__file__).parents[1] / "firmware/golden/frames.txt").read_text().splitlines()
)
bodies = st.binary(min_size=1, max_size=MAX_BODY)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({0, len(data), *(c % (len(data) + 1) for c in cuts)})
    return [data[a:b] for a, b in pairwise(at)]


class TestFraming:
    def test_check_value(self):
        assert crc16(b"123456789") == 0x29B1

    @given(bodies)
    def test_round_trip(self, body):
        frame = encode_frame(body)
        assert frame.index(0) == len(frame) - 1
        assert len(frame) <= MAX_ENCODED + 1
        assert decode_frame(frame[:-1]) == body

    @given(st.lists(bodies | st.just(b"\0") | st.just(bytes(MAX_BODY))), st.lists(st.integers(0, 10_000)))
    def test_any_split_of_the_stream_gives_the_same_bodies(self, made, cuts):
        deframer = Deframer()
        stream = b"".join(map(encode_frame, made))
        assert [b for piece in pieces(stream, cuts) for b in deframer.feed(piece)] == made
        assert (deframer.damaged, deframer._tail) == (0, b"")

    @given(st.binary(max_size=2000), st.lists(st.integers(0, 10_000)))
    def test_garbage_in_any_split_gives_the_same_and_is_bounded(self, noise, cuts):
        whole, split = Deframer(), Deframer()
        expected = whole.feed(noise)
        found = []
        for piece in pieces(noise, cuts):
            found += split.feed(piece)
            assert len(split._tail) <= MAX_ENCODED
        assert (found, split.damaged) == (expected, whole.damaged)

    @given(st.binary(max_size=600), bodies)
    def test_the_first_frame_behind_garbage_and_a_zero_is_found(self, noise, body):
        assert Deframer().feed(noise + b"\0" + encode_frame(body))[-1] == body


def golden(name: str) -> bytes:
    return decode_frame(bytes.fromhex(GOLDEN[name])[:-1])


class TestProtocol:
    @pytest.mark.parametrize(
        ("name", "event"),
        [
            ("data", p.Scan(65535, 0xFFFFFFFE, 1, 2, 480, bytes.fromhex("2efbc25dff7c0000"))),
            ("description", p.NodeDescription(7, 1000, "1.0.0", 0xDEADBEEF, bytes(range(8)).hex(), "watchdog", 15, 1)),
            ("echo_answer", p.EchoAnswer(8, 2000, 1990)),
            ("edge", p.Edge(9, 3000, 1)),
            ("status", p.Status(10, 4000, 0xDEADBEEF, True, 0, 12, dict(zip(p.COUNTERS, range(1, 7), strict=True)))),
            ("answer", p.Answer(11, 5000, p.Kind.CONFIGURE, 2)),
        ],
    )
    def test_what_the_node_says(self, name, event):
        assert p.decode_body(golden(name)) == event

    def test_another_version_says_what_to_do(self):
        with pytest.raises(VersionError, match="firmware"):
            p.decode_body(b"\x02" + golden("edge")[1:])


class TestNodeTime:
    @given(st.lists(st.integers(-1_000_000, 2_000_000_000), max_size=50))
    def test_unwrapping_follows_any_steps_below_half_the_range(self, steps):
        time, true_us = NodeTime(), 1 << 33
        first = time.unwrapped_us(true_us & 0xFFFFFFFF) - true_us
        latest = true_us
        for step in steps:
            true_us = latest + step
            latest = max(latest, true_us)
            assert time.unwrapped_us(true_us & 0xFFFFFFFF) - true_us == first

    @given(
        st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 3_000)), min_size=1, max_size=80),
        st.floats(-90e-6, 90e-6),
    )
    def test_the_bound_holds_the_truth_whatever_the_delays(self, delays, skew):
        time = NodeTime()

        def node_ns(board_ns: float) -> float:
            return 5e9 + board_ns * (1 + skew)

        for k, (out_us, back_us) in enumerate(delays):
            t1 = k * 250_000_000
            received = t1 + out_us * 1000
            sent = received + 100_000
            time.add(t1, int(node_ns(received) // 1000), int(node_ns(sent) // 1000), sent + back_us * 1000)
            for later_ns in (0, 100_000_000, 250_000_000):
                board_ns = sent + later_ns
                found_ns, half_ns = time.board_ns(round(node_ns(board_ns)))
                assert abs(found_ns - board_ns) <= half_ns + 2

    def test_the_rate_is_carried_on_beyond_the_last_exchange(self):
        time = NodeTime()
        for k in range(40):
            board_ns = k * 250_000_000
            node_us = round(board_ns * (1 + 50e-6) / 1000)
            half_ns = 100_000 + k * 7_919 % 50_000
            time.add(board_ns - half_ns, node_us, node_us, board_ns + half_ns)
        board_ns = 40 * 250_000_000
        found_ns, _ = time.board_ns(round(board_ns * (1 + 50e-6)))
        assert abs(found_ns - board_ns) < 3_000
