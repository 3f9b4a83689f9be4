"""Times of the NVML samples while the wall clock, which the driver stamps them with, is slewed and set."""

from bisect import bisect
from collections.abc import Callable
from itertools import pairwise

import pytest
from conformance import EPOCH, Opened
from fake_nvml import MS, FakeNvml

from powerd_core.errors import SensorError
from powerd_core.model import QuantityConversion
from powerd_daemon.sources.base import Start
from powerd_daemon.sources.nvml.samples import JITTER_NS, tie_clocks
from powerd_daemon.sources.nvml.source import NvmlOptions, NvmlSource
from powerd_daemon.sources.sim.bus import VirtualClock

S = 1_000 * MS
AGE_NS = 16_500_000
NOT_SUPPORTED = 3


class WallClock(VirtualClock):
    """``ahead_ns`` says how far the wall clock is ahead at a board time; a look at a clock takes ``look_ns``."""

    def __init__(self, look_ns: int = 0) -> None:
        super().__init__(3 * S)
        self.look_ns = look_ns
        self.ahead_ns: Callable[[int], int] = lambda t_ns: self.wall_offset_ns

    def now_ns(self) -> int:
        self.t_ns += self.look_ns
        return self.t_ns

    def wall_ns(self) -> int:
        self.t_ns += self.look_ns
        return self.t_ns + self.ahead_ns(self.t_ns)


@pytest.fixture
def clock() -> WallClock:
    return WallClock()


def opened(nvml: FakeNvml, **options: object) -> Opened:
    chosen = {"scope_ms": 0.0, "side_ms": 0.0, "instant_ms": 0.0, "energy_ms": 1000.0} | options
    source = NvmlSource(NvmlOptions(**chosen), Start("nvml", EPOCH, 0, nvml.clock), nvml)
    return Opened(source, nvml.clock, *source.open())


def follows_at_once(nvml: FakeNvml) -> Callable[[int], int]:
    return lambda t_ns: nvml.clock.ahead_ns(nvml.clock.t_ns)


def compares_now_and_then(nvml: FakeNvml) -> Callable[[int], int]:
    """As the driver seems to: every seven seconds, for the whole buffer."""
    return lambda t_ns: nvml.clock.ahead_ns(nvml.clock.t_ns // (7 * S) * 7 * S)


def stamps_once(nvml: FakeNvml) -> Callable[[int], int]:
    def ahead_ns(t_ns: int) -> int:
        return nvml.clock.ahead_ns(t_ns)

    return ahead_ns


def never_follows(nvml: FakeNvml) -> Callable[[int], int]:
    return lambda t_ns: nvml.clock.ahead_ns(0)


WAYS = (follows_at_once, compares_now_and_then, stamps_once, never_follows)


def steps_at(clock: WallClock, t_ns: int, by_ns: int) -> None:
    first_ns = clock.wall_offset_ns
    clock.ahead_ns = lambda t: first_ns + (by_ns if t >= t_ns else 0)


def times(o: Opened, made: list) -> list[int]:
    r = o.readings(made, "gpu0.nvml_samples")
    return [t + AGE_NS for t, flags in zip(r["t_ns"], r["flags"], strict=True) if not flags]


def bounds(o: Opened, made: list) -> list[tuple[int, int]]:
    r = o.readings(made, "gpu0.clock_bound")
    return list(zip(r["t_ns"], r["ns"], strict=True))


class TestLines:
    def test_both_lines_in_seconds_about_once_a_second(self, clock):
        o = opened(FakeNvml(clock, gpus=2))
        assert [line.name for s in opened(FakeNvml(clock), samples_ms=0.0).streams for line in s.lines] == [
            "gpu0.nvml_energy"
        ]
        lines = {line.name: line for s in o.streams for line in s.lines}
        assert lines["gpu1.clock_bound"].conversion == QuantityConversion("ns", "clock_bound_s", 1e-9)
        assert lines["gpu1.wall_offset"].conversion == QuantityConversion("ns", "clock_offset_s", 1e-9)
        assert {d.feeds for d in o.devices} == {("gpu0.nvml_samples",), ("gpu1.nvml_samples",)}
        made = o.run(100)
        bound, offset = (o.readings(made, f"gpu1.{n}") for n in ("clock_bound", "wall_offset"))
        assert bound["t_ns"] == offset["t_ns"]
        assert len(bound["t_ns"]) == 5
        assert set(bound["ns"]) == {JITTER_NS}
        assert set(offset["ns"]) == {1_700_000_000_000_000_000}

    def test_the_bound_holds_half_the_width_of_the_look(self):
        clock = WallClock(look_ns=4_001)
        clock.ahead_ns = lambda t_ns: 1_700_000_000_123_456_789
        tie = tie_clocks(clock)
        assert tie.half_ns == 4_001
        assert abs(tie.wall_ahead_ns - 1_700_000_000_123_456_789) <= tie.half_ns
        o = opened(FakeNvml(clock))
        assert {b for _, b in bounds(o, o.run(60))} == {JITTER_NS + 4_001}


class TestSteps:
    @pytest.mark.parametrize("by_ns", [10 * S, -10 * S, 300 * MS, -120 * MS])
    @pytest.mark.parametrize("way", WAYS)
    def test_a_step_is_in_the_offset_and_costs_no_sample(self, clock, way, by_ns):
        nvml = FakeNvml(clock)
        nvml.stamp_ahead_ns = way(nvml)
        steps_at(clock, 8 * S + 7 * MS, by_ns)
        o = opened(nvml)
        begin_ns = clock.now_ns()
        made = o.run(320)
        offsets = o.readings(made, "gpu0.wall_offset")["ns"]
        assert [b - a for a, b in pairwise(offsets) if b != a] == [by_ns]
        found = times(o, made)
        true = nvml.sample_times_ns(begin_ns, found[-1])
        assert set(found) <= set(true)
        assert found[-1] > clock.now_ns() - 100 * MS
        # Stamps that are not moved later are of one clock before the step, of another after it.
        lost = set(true) - set(found)
        assert not lost or (way is stamps_once and all(abs(t - 8 * S) <= abs(by_ns) + 200 * MS for t in lost))
        assert len(lost) <= 15
        if way is not stamps_once and abs(by_ns) == 10 * S:
            assert {b for _, b in bounds(o, made)} == {JITTER_NS}, "a plain step does not widen the bound"

    @pytest.mark.parametrize("by_ns", [-60 * MS, 20 * MS, 4 * MS])
    @pytest.mark.parametrize("way", WAYS)
    def test_a_small_step_is_in_the_bound_as_long_as_it_cannot_be_told(self, clock, way, by_ns):
        nvml = FakeNvml(clock)
        nvml.stamp_ahead_ns = way(nvml)
        steps_at(clock, 8 * S + 507 * MS, by_ns)
        o = opened(nvml)
        made = o.run(400)
        true = nvml.sample_times_ns(0, clock.t_ns)
        told = bounds(o, made)
        assert len(times(o, made)) > 900
        for t_ns in times(o, made):
            off_ns = min(abs(t_ns - t) for t in true[max(0, bisect(true, t_ns) - 1) :][:2])
            # The bound is told once a second: the one before or the one after has the step.
            assert off_ns <= max(b for t, b in told if abs(t - t_ns) <= 1100 * MS)
        if way in (follows_at_once, compares_now_and_then) and abs(by_ns) > 4 * MS:
            assert told[-1][1] == JITTER_NS
            assert set(times(o, made)[-50:]) <= set(true)

    @pytest.mark.parametrize("by_ns", [10 * S, -1 * S])
    def test_a_step_in_the_middle_of_a_read(self, clock, by_ns):
        nvml = FakeNvml(clock)
        o = opened(nvml)
        begin_ns = clock.now_ns()

        def step():
            if clock.t_ns > 6 * S and clock.wall_offset_ns == 1_700_000_000 * S:
                clock.wall_offset_ns += by_ns

        nvml.in_read = step
        made = o.run(150)
        assert times(o, made) == nvml.sample_times_ns(begin_ns, times(o, made)[-1])

    @pytest.mark.parametrize(("by_ms", "still_ms", "back_ms"), [(-300, 450, 0), (-120, 100, 110)])
    def test_neither_a_buffer_that_stands_still_nor_one_late_sample_makes_a_step(self, clock, by_ms, still_ms, back_ms):
        nvml = FakeNvml(clock)
        nvml.stamp_ahead_ns = never_follows(nvml)
        steps_at(clock, 5 * S, by_ms * MS)
        o = opened(nvml)
        made = o.run(60)
        nvml.silent_from_ns = clock.t_ns - back_ms * MS
        made += o.run(still_ms // 50)
        nvml.silent_from_ns = 1 << 62
        made += o.run(40)
        assert times(o, made) == nvml.sample_times_ns(3 * S, times(o, made)[-1])


class TestSlewing:
    @pytest.mark.parametrize("ppm", [500, -500])
    @pytest.mark.parametrize("way", [follows_at_once, compares_now_and_then])
    def test_what_the_driver_has_not_seen_yet_is_in_the_bound(self, clock, way, ppm):
        nvml = FakeNvml(clock)
        first_ns = clock.wall_offset_ns
        clock.ahead_ns = lambda t_ns: first_ns + max(0, t_ns - 8 * S) * ppm // 1_000_000
        nvml.stamp_ahead_ns = way(nvml)
        o = opened(nvml)
        made = o.run(600)
        true = nvml.sample_times_ns(0, clock.t_ns)
        told = bounds(o, made)
        found = times(o, made)
        assert len(found) > 1300
        for t_ns in found:
            off_ns = min(abs(t_ns - t) for t in true[max(0, bisect(true, t_ns) - 1) :][:2])
            assert off_ns <= max(b for t, b in told if abs(t - t_ns) <= 1100 * MS)
        assert max(b for _, b in told) <= JITTER_NS + abs(ppm) * 11_000


def test_stamps_of_another_clock_are_no_samples(clock):
    nvml = FakeNvml(clock)
    nvml.stamp_ahead_ns = lambda t_ns: 0
    o = opened(nvml)
    assert "another clock" in o.streams[0].detail["not_supported"]["gpu0.nvml_samples"]
    with pytest.raises(SensorError, match="neither"):
        opened(nvml, energy_ms=0.0)
