"""The sampler: its outbox, its loop on any clock, and real-time priority that is done, or said why not."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest
from daemon_harness import block, following
from hypothesis import given
from hypothesis import strategies as st
from steady_source import steady_stream

from powerd_core import Block, ConfigError, Device, Gap, Message, SensorError, Stream, decode, encode
from powerd_core.model import UNKNOWN_TIME_NS, BlockBuilder
from powerd_daemon.clock import Deadlines
from powerd_daemon.sampler import (
    OVERFLOW,
    REOPEN_MAX_NS,
    REOPEN_MIN_NS,
    Outbox,
    Resume,
    Sampling,
)
from powerd_daemon.sources.base import Source, Start
from powerd_daemon.sources.sim.bus import VirtualClock

STREAM = steady_stream()
FRAME_BYTES = len(encode(block(STREAM, 0)))


def drained(outbox: Outbox, limit: int = 10**9) -> list[object]:
    got: list[object] = []

    def send(frame: bytes) -> bool:
        if len(got) >= limit:
            return False
        got.append(decode(frame))
        return True

    outbox.drain(send)
    return got


def test_overflow_is_one_gap_with_all_that_was_lost() -> None:
    outbox = Outbox(2 * FRAME_BYTES)
    blocks = [block(STREAM, n) for n in range(6)]
    for b in blocks:
        outbox.put(b)
    gap, *rest = drained(outbox)
    assert gap == Gap(0, 7, 0, blocks[0].t_first_ns, blocks[3].t_last_ns, 4, 12, OVERFLOW)
    assert rest == blocks[4:]
    assert outbox.dropped_frames == 4


def test_messages_go_first_and_only_the_latest_statistics_last() -> None:
    outbox = Outbox(1 << 20)
    outbox.put(block(STREAM, 0))
    outbox.put_statistics(Message("statistics", {"polls": 1}))
    outbox.put_statistics(Message("statistics", {"polls": 2}))
    outbox.put_message(Message("streams"))
    assert drained(outbox) == [Message("streams"), block(STREAM, 0), Message("statistics", {"polls": 2})]


@given(
    st.integers(1, 10 * FRAME_BYTES),
    st.lists(st.tuples(st.sampled_from(["block", "gap", "drain"]), st.integers(1, 5)), max_size=60),
)
def test_no_number_and_no_scan_goes_missing(max_bytes: int, steps: list[tuple[str, int]]) -> None:
    outbox, put_in, got = Outbox(max_bytes), 0, []
    scans = 0
    for what, n in steps:
        if what == "drain":
            got += drained(outbox, n)
        else:
            event = block(STREAM, put_in) if what == "block" else Gap(0, 7, put_in, 0, 0, n, n, "cut")
            scans += event.count if isinstance(event, Block) else n
            outbox.put(event)
            put_in = following(event)
    got += drained(outbox)
    at = 0
    for event in got:
        assert isinstance(event, Block | Gap)
        assert event.sequence == at
        at = following(event)
    assert at == put_in
    assert scans == sum(e.count if isinstance(e, Block) else e.lost for e in got)  # type: ignore[union-attr]


MS = 1_000_000


@given(st.integers(1, 1000), st.lists(st.integers(0, 5000), max_size=50))
def test_deadlines_never_drift_and_none_is_forgotten(period_ns: int, delays: list[int]) -> None:
    d, now = Deadlines(0, period_ns), 0
    for delay in delays:
        now = max(now, d.next_ns) + delay
        d.meet(now)
        assert d.next_ns % period_ns == 0
        assert d.next_ns > now, "the next deadline lies ahead"
        assert d.lateness.count + d.missed == d.next_ns // period_ns, "each is met or missed"
        assert d.next_ns - now <= period_ns


@dataclass
class World:
    """What the scripted source below meets."""

    clock: VirtualClock = field(default_factory=VirtualClock)
    poll_ns: int = 0
    age_ns: int = 0
    """How long before a poll the reading that it takes was sampled."""
    open_errors: list[Exception] = field(default_factory=list)
    poll_errors: dict[int, Exception] = field(default_factory=dict)
    """Error of the n-th poll since the beginning."""
    lines: tuple[str, ...] = ("a",)
    is_mute: bool = False
    polled_at: list[int] = field(default_factory=list)
    opened: int = 0
    closed: int = 0


class Scripted(Source):
    """One line; every poll is one scan."""

    def __init__(self, world: World, start: Start) -> None:
        super().__init__(None, start)
        self.world = world

    @property
    def period_ns(self) -> int:
        return 2 * MS

    def open(self) -> tuple[tuple[Stream, ...], tuple[Device, ...]]:
        self.world.opened += 1
        if self.world.open_errors:
            raise self.world.open_errors.pop(0)
        self.lines = self.world.lines
        stream = steady_stream(self.start.first_stream, lines=self.lines)
        self.builders = [BlockBuilder(stream, self.start.epoch, self.start.next_sequence.get(stream.number, 0))]
        return (stream,), ()

    def poll(self) -> None:
        self.world.polled_at.append(self.world.clock.t_ns)
        if error := self.world.poll_errors.pop(len(self.world.polled_at), None):
            raise error
        n = len(self.lines)
        self.builders[0].append(self.world.clock.t_ns - self.world.age_ns, [0] * n, [0] * n, [[1] * n])
        self.world.clock.t_ns += self.world.poll_ns

    def take(self) -> list[Block | Gap]:
        return [] if self.world.is_mute else super().take()

    def health(self) -> dict[str, object]:
        return {"polls": len(self.world.polled_at), "closed": self.world.closed}

    def close(self) -> None:
        self.world.closed += 1


class Bench:
    """A loop over a scripted source, and all it has sent."""

    def __init__(self, world: World, resume: tuple[Resume, ...] = ()) -> None:
        self.world = world
        self.outbox = Outbox(1 << 20)
        self.events: list[Block | Gap] = []
        start = Start("s", 7, 0, world.clock)
        self.sampling = Sampling(
            lambda start: Scripted(world, start), start, self.outbox, block_ns=20 * MS, resume=resume
        )

    def run(self, duration_ns: int) -> list[Block | Gap]:
        """Let time pass; the events of it, whose numbers must follow each other."""
        end_ns = self.world.clock.t_ns + duration_ns
        while self.world.clock.t_ns < end_ns:
            self.sampling.step()
        return self.drain()

    def drain(self) -> list[Block | Gap]:
        def send(frame: bytes) -> bool:
            event = decode(frame)
            assert isinstance(event, Block | Gap)
            if self.events:
                assert event.sequence == following(self.events[-1])
            self.events.append(event)
            return True

        before = len(self.events)
        self.outbox.drain(send)
        return self.events[before:]


def test_polls_at_deadlines_and_a_block_every_20_ms() -> None:
    bench = Bench(World())
    t0 = bench.world.clock.t_ns
    bench.sampling.open()
    events = bench.run(100 * MS)
    assert bench.world.polled_at == [t0 + 2 * MS * n for n in range(51)]
    assert [e.count for e in events if isinstance(e, Block)] == [11, 10, 10, 10, 10]
    assert bench.sampling.statistics()["missed_deadlines"] == 0


def test_a_long_stall_is_skipped_and_counted() -> None:
    bench = Bench(World())
    bench.sampling.open()
    bench.run(10 * MS)
    polls = len(bench.world.polled_at)
    bench.world.clock.t_ns += 1000 * MS
    bench.run(10 * MS)
    assert bench.sampling.statistics()["missed_deadlines"] == 499
    assert len(bench.world.polled_at) - polls < 10, "no burst to catch up"


def test_a_source_that_catches_up_misses_no_deadline_also_when_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scripted, "catches_up", True)
    bench = Bench(World())
    bench.sampling.open()
    bench.world.clock.t_ns += 1000 * MS
    bench.run(10 * MS)
    bench.sampling.close()
    assert bench.sampling.statistics()["missed_deadlines"] == 0


def test_a_lost_source_is_reopened_with_a_gap_that_says_why() -> None:
    bench = Bench(World(poll_errors={8: SensorError("the bus hangs")}))
    bench.sampling.open()
    bench.run(300 * MS)
    block, gap, after, *_ = bench.events
    assert isinstance(block, Block)
    assert block.count == 7, "what was read before the error is not lost"
    assert isinstance(gap, Gap)
    assert (gap.cause, gap.lost, gap.t_first_ns) == ("the bus hangs", -1, block.t_last_ns)
    assert gap.t_last_ns == bench.world.polled_at[7] + REOPEN_MIN_NS
    assert isinstance(after, Block)
    assert after.t_first_ns >= gap.t_last_ns
    assert (bench.world.opened, bench.world.closed) == (2, 1)
    assert bench.sampling.statistics()["missed_deadlines"] == 0, "the gap accounts for the interruption"


def test_the_gap_of_a_reopening_ends_at_a_first_reading_that_is_older_than_the_opening() -> None:
    bench = Bench(World(age_ns=30 * MS, poll_errors={30: SensorError("reset")}))
    bench.sampling.open()
    bench.run(400 * MS)
    place = next(n for n, event in enumerate(bench.events) if isinstance(event, Gap))
    before, gap, after = bench.events[place - 1 : place + 2]
    assert isinstance(after, Block)
    assert before.t_last_ns == gap.t_first_ns < gap.t_last_ns == after.t_first_ns


def test_a_reopened_source_that_gives_no_reading_tells_its_gap_all_the_same() -> None:
    bench = Bench(World(poll_errors={3: SensorError("reset")}))
    bench.sampling.open()
    bench.run(20 * MS)
    bench.world.is_mute = True
    bench.run(3000 * MS)
    assert isinstance(bench.events[-1], Gap)
    assert bench.events[-1].cause == "reset"


def test_reopening_waits_longer_each_time_and_leaves_a_gap_each_time() -> None:
    world = World(poll_errors={1: SensorError("gone")})
    bench = Bench(world)
    bench.sampling.open()
    world.open_errors = [SensorError(f"still away {n}") for n in range(9)]
    bench.run(60_000 * MS)
    gaps = [e for e in bench.events if isinstance(e, Gap)]
    assert [g.cause for g in gaps] == ["gone", *(f"still away {n}" for n in range(9))]
    assert gaps[0].t_first_ns == UNKNOWN_TIME_NS
    assert all(b.t_first_ns == a.t_last_ns for a, b in itertools.pairwise(gaps)), "the gaps join"
    pauses = [b.t_last_ns - a.t_last_ns for a, b in itertools.pairwise(gaps)]
    assert pauses[0] == REOPEN_MIN_NS
    assert pauses == sorted(pauses)
    assert pauses[-1] == REOPEN_MAX_NS
    assert world.closed == world.opened - 1, "each source was closed, but the one in use"
    assert isinstance(bench.events[-1], Block)


def test_a_restarted_sampler_begins_with_a_gap_and_its_predecessor_s_numbers() -> None:
    bench = Bench(World(), resume=(Resume(0, 41, 123),))
    t0 = bench.world.clock.t_ns
    gap, block, *_ = bench.run(100 * MS)
    assert gap == Gap(0, 7, 41, 123, t0, 1, -1, "sampler restarted")
    assert isinstance(block, Block)
    assert block.sequence == 42


def test_other_lines_after_a_reopening_end_the_sampler() -> None:
    bench = Bench(World(poll_errors={3: SensorError("reset")}))
    bench.sampling.open()
    bench.world.lines = ("a", "b")
    with pytest.raises(ConfigError, match="other lines"):
        bench.run(300 * MS)


def test_lines_that_are_not_there_yet_are_waited_for() -> None:
    bench = Bench(World(lines=("a", "b"), poll_errors={3: SensorError("both chips are gone")}))
    bench.sampling.open()
    bench.world.lines = ("b",)
    bench.run(300 * MS)
    assert bench.sampling.statistics()["error"] == "1 of its 2 lines are there again: it waits for the others"
    bench.world.lines = ("a", "b")
    bench.run(2000 * MS)
    assert isinstance(bench.events[-1], Block)


def test_a_sampler_that_was_stopped_leaves_a_gap_and_goes_on() -> None:
    """SIGSTOP for three seconds: its clock goes on, and nothing is polled."""
    bench = Bench(World())
    bench.sampling.open()
    before = bench.run(100 * MS)
    stopped_ns, bench.world.clock.t_ns = bench.world.clock.t_ns, bench.world.clock.t_ns + 3000 * MS
    assert not any(stopped_ns < t < bench.world.clock.t_ns for t in bench.world.polled_at)
    events = bench.run(200 * MS)
    assert not any(isinstance(e, Gap) for e in before)
    (gap,) = (e for e in events if isinstance(e, Gap))
    last = max(e.t_last_ns for e in bench.events if e.sequence < gap.sequence)
    first = bench.world.clock.t_ns - 200 * MS
    assert (gap.t_first_ns, gap.span) == (last, 1)
    assert abs(gap.t_last_ns - first) <= 2 * MS
    assert abs(gap.lost - 3000) <= 4, "of a stream of 1 kHz"
    assert "was not run for 3 s" in gap.cause
    assert len(events) > 5


def test_a_short_stall_and_a_source_that_has_the_readings_leave_none(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(World())
    bench.sampling.open()
    for stall_ms in (900, 3000):
        bench.run(100 * MS)
        bench.world.clock.t_ns += stall_ms * MS
        bench.world.age_ns = (stall_ms - 10) * MS if stall_ms > 1000 else 0  # its buffer has what was sampled meanwhile
    assert bench.sampling.statistics()["missed_deadlines"] == 449
    bench.run(100 * MS)
    assert bench.sampling.statistics()["missed_deadlines"] > 1900, "it was held up for three seconds"
    assert not any(isinstance(e, Gap) for e in bench.events)


def test_a_sensor_that_is_lost_after_a_hold_up_goes_on_at_the_next_number() -> None:
    world = World()
    bench = Bench(world)
    bench.sampling.open()
    bench.run(100 * MS)
    world.clock.t_ns += 3000 * MS
    bench.run(100 * MS)
    world.poll_errors[len(world.polled_at) + 1] = SensorError("unplugged")
    bench.run(2000 * MS)  # `Bench.drain` compares the numbers
    causes = [e.cause for e in bench.events if isinstance(e, Gap)]
    assert [cause.partition(" for ")[0] for cause in causes] == ["the sampler was not run", "unplugged"]
    assert isinstance(bench.events[-1], Block)
