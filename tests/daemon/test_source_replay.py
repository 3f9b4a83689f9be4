"""Journals replayed: the same codes at new times and numbers."""

import gzip
from dataclasses import replace
from pathlib import Path

import pytest
from conformance import EPOCH, Opened, SourceConformance

from powerd_core.errors import SensorError
from powerd_core.model import CLOCK_NAME, UNKNOWN_TIME_NS, ClockExchange, Description, Gap
from powerd_core.serde import to_document
from powerd_core.wire import Message, encode
from powerd_daemon.sources.base import Start
from powerd_daemon.sources.replay import ReplayOptions, ReplaySource
from powerd_daemon.sources.sim.bus import VirtualClock
from powerd_daemon.sources.sim.source import SimOptions, SimSource

RECORDED_EPOCH = 77


def record(directory: Path, scans: int = 500, *, epoch: int = RECORDED_EPOCH, t_ns: int = 9_000_000_000):
    """A journal of the simulated source; returns what was recorded and its frames."""
    clock = VirtualClock(t_ns)
    source = SimSource(SimOptions(), Start("rails", epoch, 5, clock))
    recorded = Opened(source, clock, *source.open())
    blocks = recorded.run(scans, every=20)
    description = Description("board", "0", epoch, CLOCK_NAME, "tcp://*:1", recorded.streams, recorded.devices)
    frames = [encode(Message("description", to_document(description), epoch)), *map(encode, blocks)]
    directory.mkdir(exist_ok=True)
    (directory / "journal.bin").write_bytes(b"".join(frames))
    return recorded, blocks, frames


def replay(path: Path, clock: VirtualClock | None = None, **options: object) -> Opened:
    clock = clock or VirtualClock()
    source = ReplaySource(ReplayOptions(path=str(path), **options), Start("again", EPOCH, 0, clock))
    return Opened(source, clock, *source.open())


class TestConformance(SourceConformance):
    polls = 60

    @pytest.fixture(scope="class", autouse=True)
    @staticmethod
    def _journal(request, tmp_path_factory):
        request.cls.path = tmp_path_factory.mktemp("journal")
        record(request.cls.path, 300)

    def make(self, start: Start) -> ReplaySource:
        return ReplaySource(ReplayOptions(path=str(self.path)), start)

    def fail(self, source):
        """What is read after the block that waits says that it is laid out otherwise."""
        source.start.clock.sleep_until(source._next.t_last_ns)

        def broken():
            raise ValueError("a block is not laid out as described")
            yield

        source._events = broken()


@pytest.mark.parametrize("name", ["", "journal.bin", "run.h5.journal.gz"])
def test_codes_and_flags_stay_and_times_move_to_now(tmp_path, name):
    recorded, blocks, frames = record(tmp_path)
    # As the client packs them: many gzip members one after the other.
    (tmp_path / "run.h5.journal.gz").write_bytes(b"".join(map(gzip.compress, frames)))
    o = replay(tmp_path / name)
    began_ns = o.clock.now_ns()
    made = o.run(150)
    assert [b.count for b in made] == [b.count for b in blocks]
    for line in ("gpu0.pcie_12v", "gpu0.ext_12v_6"):
        before, after = recorded.readings(blocks, line), o.readings(made, line)
        moved_ns = began_ns - blocks[0].t_first_ns
        assert after.pop("t_ns") == [t + moved_ns for t in before.pop("t_ns")]
        assert after == before


def test_blocks_come_when_they_are_due(tmp_path):
    _, blocks, _ = record(tmp_path)
    o = replay(tmp_path)
    half = o.run(50)
    assert 0.4 * len(blocks) < len(half) < 0.6 * len(blocks)
    o.run(100)
    assert o.run(50) == []


def test_a_loop_goes_on_with_times_that_increase(tmp_path):
    _, blocks, _ = record(tmp_path, 100)
    o = replay(tmp_path, loop=True)
    made = o.run(120)
    assert len(made) > 4 * len(blocks)
    assert [b.sequence for b in made] == list(range(len(made)))
    t_ns = o.readings(made, "gpu0.pcie_12v")["t_ns"]
    assert t_ns == sorted(set(t_ns))


def test_damage_and_foreign_frames_are_passed_over(tmp_path):
    _, blocks, frames = record(tmp_path)
    foreign = encode(replace(blocks[0], stream=99))
    frames[3:3] = [b"garbage" * 9, foreign, encode(Message("other", {}))]
    (tmp_path / "journal.bin").write_bytes(b"".join(frames) + frames[1][:40])
    assert len(replay(tmp_path).run(150)) == len(blocks)


def test_a_packed_journal_that_is_cut_off_is_refused(tmp_path):
    _, _, frames = record(tmp_path)
    packed = tmp_path / "run.h5.journal.gz"
    packed.write_bytes(gzip.compress(b"".join(frames))[:-100])
    with pytest.raises(SensorError, match=r"journal\.gz cannot be read"):
        replay(packed)


def test_a_gap_is_replayed_as_a_gap(tmp_path):
    _, blocks, frames = record(tmp_path)
    gaps = [
        Gap(5, RECORDED_EPOCH, 9, blocks[4].t_last_ns, blocks[5].t_first_ns, 7, 140, "evicted"),
        Gap(5, RECORDED_EPOCH, 9, UNKNOWN_TIME_NS, blocks[5].t_first_ns, 7, -1, "restart"),
    ]
    frames[6:6] = [encode(g) for g in gaps]
    (tmp_path / "journal.bin").write_bytes(b"".join(frames))
    o = replay(tmp_path)
    made = o.run(150)
    assert [(type(e) is Gap, e.sequence) for e in made[4:8]] == [(False, 4), (True, 5), (True, 6), (False, 7)]
    assert (made[5].span, made[5].lost, made[5].cause) == (1, 140, "evicted")
    assert made[5].t_last_ns == made[7].t_first_ns


def test_a_board_that_was_restarted_is_one_stream(tmp_path):
    """Two epochs whose clocks differ by an hour; their exchanges with one host put them on one time line."""
    _, first, frames = record(tmp_path, 200)
    _, second, more = record(tmp_path, 200, epoch=78, t_ns=3_600_000_000_000)
    gap_ns = 500_000_000
    host_ns = first[-1].t_last_ns + gap_ns - second[0].t_first_ns
    exchanges = [
        encode(ClockExchange(RECORDED_EPOCH, 100, 110, 120, 130)),
        encode(ClockExchange(78, 5_000 + host_ns, 5_010, 5_020, 5_030 + host_ns)),
        # In the middle of one the board's clock was set: it took less than no time, and tells nothing.
        encode(ClockExchange(78, 7_000 + host_ns, 7_010, 9_000_000_000, 7_030 + host_ns)),
    ]
    (tmp_path / "journal.bin").write_bytes(b"".join(frames + more + exchanges))
    o = replay(tmp_path)
    assert len(o.streams) == 1
    made = o.run(200)
    assert len(made) == len(first) + len(second)
    pause_ns = made[len(first)].t_first_ns - made[len(first) - 1].t_last_ns
    assert abs(pause_ns - gap_ns) < 1000
