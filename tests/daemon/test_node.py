"""The node source against the firmware itself, in virtual time."""

from itertools import pairwise
from struct import pack

import pytest
from conformance import EPOCH, Opened, SourceConformance
from simulated_node import SimulatedNode

from powerd_core.errors import ConfigError, SensorError
from powerd_core.model import Flag, Gap
from powerd_daemon.config import parse_config
from powerd_daemon.sources.base import Start
from powerd_daemon.sources.node.protocol import Scan
from powerd_daemon.sources.node.source import NodeOptions, NodeSensor, NodeSource
from powerd_daemon.sources.sim.bus import VirtualClock

MS = 1_000_000


def options(count: int = 8, **more: object) -> NodeOptions:
    made = tuple(NodeSensor(f"rail{i}", 0x40 + i // 2, controller=i % 2) for i in range(count))
    return NodeOptions(**({"port": "/dev/fake", "sensors": made} | more))


def source_on(node: SimulatedNode, start: Start, **more: object) -> NodeSource:
    return NodeSource(options(len(node.pico.chips), **more), start, lambda _path, _baud: node)


class Case:
    """An opened source with the node behind it."""

    def __init__(self, clock: VirtualClock, sensors: int = 8, **more: object) -> None:
        self.clock = clock
        self.node = SimulatedNode(clock, sensors=sensors)
        self.source = source_on(self.node, Start("node", EPOCH, 0, clock), **more)
        self.o = Opened(self.source, clock, *self.source.open())

    def readings(self, made, sensor: int):
        return self.o.readings(made, f"gpu0.rail{sensor}")


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


def gaps(made, stream=0):
    return [e for e in made if isinstance(e, Gap) and e.stream == stream]


class TestConformance(SourceConformance):
    polls = 200

    def make(self, start: Start) -> NodeSource:
        node = self.node = SimulatedNode(start.clock)
        node.turns_us = [(node.node_us + 300_000 * k, k % 2) for k in range(1, 20)]
        return source_on(node, start)

    def fail(self, source):
        self.node.unplugged = "unplugged"


class TestReadings:
    def test_codes_are_the_chips_own_and_nothing_is_missing(self, clock):
        case = Case(clock)
        made = case.o.run(400)
        assert not gaps(made)
        for i in range(8):
            r = case.readings(made, i)
            assert len(r["t_ns"]) > 480
            assert set(r["shunt"]) == {1000 * (i + 1)}
            assert set(r["bus"]) == {(3000 + i) << 3 | 2}
            assert not any(r["flags"])

    @pytest.mark.parametrize("skew", [-60e-6, 60e-6])
    def test_times_are_right_within_the_bound_while_the_node_clock_drifts_and_wraps(self, clock, skew):
        case = Case(clock, 2)
        case.node.skew = skew
        made = case.o.run(1000, every=4)
        t_ns = case.readings(made, 0)["t_ns"]
        slot_ns = 240_000
        age_ns = case.source.bank.settings[0].age_ns()
        # Deadlines of the node are 4 ms of its own clock apart; each scan begins at one, to a turn of its loop.
        begins = [t + age_ns - slot_ns // 4 for t in t_ns]
        first_us = case.node.us_at(begins[0])
        for k, begin in enumerate(begins):
            assert abs(begin - case.node.t_ns(first_us + 4000 * k)) < 500_000
        assert case.source.health()["clock_half_us"] < 300
        assert all(3.5 * MS < b - a < 4.5 * MS for a, b in pairwise(t_ns))

    def test_a_failed_transfer_is_flagged_and_costs_the_others_nothing(self, clock):
        case = Case(clock)
        made = case.o.run(100)
        case.node.pico.chips[0, 0x40].is_there = False
        made += case.o.run(100)
        assert case.source.health()["left_out"] == ["rail0"]
        case.node.pico.chips[0, 0x40].is_there = True
        made += case.o.run(400)
        bad = case.readings(made, 0)
        assert {f for f in bad["flags"] if f} <= {Flag.IO_ERROR, Flag.RESET}
        assert bad["flags"].count(Flag.IO_ERROR) > 100
        assert case.source.health()["left_out"] == []
        assert case.source.health()["node"]["i2c_errors"] > 0
        assert not bad["flags"][-1]
        assert 1000 not in [s for s, f in zip(bad["shunt"], bad["flags"], strict=True) if f & Flag.IO_ERROR]
        assert not any(case.readings(made, 1)["flags"])

    @pytest.mark.parametrize("sensor", [0, 3, 7])
    def test_every_reading_since_a_brown_out_is_flagged(self, clock, sensor):
        case = Case(clock)
        made = case.o.run(100)
        t_ns = clock.now_ns()
        case.node.pico.chips[sensor % 2, 0x40 + sensor // 2].brown_out()
        made += case.o.run(100)
        r = case.readings(made, sensor)
        flagged = [t for t, f in zip(r["t_ns"], r["flags"], strict=True) if f]
        after = [t for t in r["t_ns"] if t > t_ns]
        assert flagged
        assert set(r["flags"]) == {0, Flag.RESET}
        assert len(flagged) <= 10
        # Whatever was read between the reset and its discovery is among them: they come in one piece.
        at = r["t_ns"].index(flagged[0])
        assert r["t_ns"][at : at + len(flagged)] == flagged
        assert flagged[0] <= after[0]
        case.o.run(100)
        assert case.source.health()["node"]["sensor_resets"] == 1
        for other in set(range(8)) - {sensor}:
            assert not any(case.readings(made, other)["flags"])


class TestLosses:
    def test_damaged_frames_are_a_gap_with_times_and_count(self, clock):
        case = Case(clock)
        made = case.o.run(100)
        case.node.mangle = lambda data: data.replace(b"\0", b"\1")
        made += case.o.run(20)
        case.node.mangle = lambda data: data
        made += case.o.run(100)
        (gap,) = gaps(made)
        assert "damaged" in gap.cause
        assert 22 <= gap.lost <= 28
        assert case.source.health()["lost_scans"] == gap.lost
        assert case.source.health()["damaged_frames"] > 0
        t_ns = case.readings(made, 0)["t_ns"]
        assert any(a <= gap.t_first_ns and b <= gap.t_last_ns + MS and b - a > 80 * MS for a, b in pairwise(t_ns))
        assert len(t_ns) + gap.lost == round((t_ns[-1] - t_ns[0]) / (4 * MS)) + 1

    def test_missed_deadlines_are_a_gap(self, clock):
        case = Case(clock)
        made = case.o.run(100)
        case.node.pico.us += 50_000
        made += case.o.run(100)
        assert [g.lost for g in gaps(made)] == [12]
        case.o.run(100)
        assert case.source.health()["node"]["missed_scans"] == 12

    def test_readings_at_times_that_are_not_guaranteed_are_a_gap(self, clock):
        case = Case(clock, clock_limit_us=400.0)
        made = case.o.run(100)
        case.node.deaf = True
        made += case.o.run(900)
        case.node.deaf = False
        made += case.o.run(200)
        (gap,) = gaps(made)
        assert "clock was not known" in gap.cause
        r = case.readings(made, 0)
        assert gap.lost + len(r["t_ns"]) == round((r["t_ns"][-1] - r["t_ns"][0]) / (4 * MS)) + 1


class TestMarker:
    def marker(self, case, made):
        return case.o.readings(made, "gpu0.marker")

    def test_edges_have_their_own_times(self, clock):
        case = Case(clock)
        made = case.o.run(150)
        begin_us = case.node.pico.us
        turns = [(begin_us + 50_000 + 7_777 * k, (k + 1) % 2) for k in range(100)]
        case.node.turns_us = list(turns)
        made += case.o.run(400)
        r = self.marker(case, made)
        edges = [i for i in range(1, len(r["edge"])) if r["edge"][i] != r["edge"][i - 1]]
        assert len(edges) == 100
        assert [r["level"][i] for i in edges] == [level for _, level in turns]
        for i, (us, _) in zip(edges, turns, strict=True):
            assert abs(r["t_ns"][i] - case.node.t_ns(us)) < 300_000
        assert not gaps(made, 1)

    def test_edges_too_fast_for_the_node_are_a_gap(self, clock):
        case = Case(clock)
        made = case.o.run(150)
        case.node.turns_us = [(case.node.pico.us + 10 * k / 100, k % 2) for k in range(200)]
        made += case.o.run(300)
        r = self.marker(case, made)
        lost = sum(g.lost for g in gaps(made, 1))
        assert 0 < lost == case.node.pico.edges.lost
        assert r["edge"][-1] == 200
        assert case.source.health()["lost_edges"] == case.source.health()["node"]["lost_edges"] == lost


@pytest.mark.parametrize("marker", ["marker", ""])
def test_the_bound_of_the_clock_is_told_after_each_echo(clock, marker):
    case = Case(clock, 2, marker=marker)
    made = case.o.run(300)
    r = case.o.readings(made, "gpu0.clock_bound")
    # Four times a second for one and a half.
    assert 5 <= len(r["t_ns"]) <= 6
    assert all(200 * MS < b - a < 300 * MS for a, b in pairwise(r["t_ns"]))
    assert r["bound_ns"][-1] == case.source.health()["clock_half_us"] * 1000
    assert all(0 < bound < 2 * MS for bound in r["bound_ns"])
    case.source._link.exchange = lambda wait_ns: None
    assert not [e for e in case.o.run(200) if e.stream == len(case.o.streams) - 1]


def be_unplugged(node: SimulatedNode) -> None:
    node.unplugged = "it was unplugged"


def fall_silent(node: SimulatedNode) -> None:
    node.mangle = lambda _: b""


def be_reset(node: SimulatedNode) -> None:
    node.pico.boot += 1


def step_its_clock(node: SimulatedNode) -> None:
    node.node_us += 5_000


def be_deaf(node: SimulatedNode) -> None:
    node.deaf = True


def lose_its_sensors(node: SimulatedNode) -> None:
    for chip in node.pico.chips.values():
        chip.is_there = False


class TestNodesThatFail:
    @pytest.mark.parametrize(
        ("fail", "what"),
        [(be_unplugged, "unplugged"), (fall_silent, "no readings"), (be_reset, "reset"), (step_its_clock, "stepped")],
    )
    def test_while_measuring(self, clock, fail, what):
        case = Case(clock, 2)
        case.o.run(10)
        fail(case.node)
        with pytest.raises(SensorError, match=what):
            case.o.run(1000)
        case.source.close()
        assert case.node.closed == 1

    @pytest.mark.parametrize(
        ("fail", "options", "what"),
        [
            (be_deaf, {}, "firmware"),
            (lose_its_sensors, {}, "no INA219"),
            (lambda node: None, {"clock_limit_us": 1.0}, "clock_limit_us"),
        ],
    )
    def test_when_opened(self, clock, fail, options, what):
        node = SimulatedNode(clock)
        fail(node)
        with pytest.raises(SensorError, match=what):
            source_on(node, Start("node", EPOCH, 0, clock), **options).open()

    def test_a_node_that_was_left_measuring_is_set_up_anew(self, clock):
        case = Case(clock, 4)
        case.o.run(10)
        again = NodeSource(options(8), Start("again", EPOCH, 0, clock), lambda _path, _baud: case.node)
        opened = Opened(again, clock, *again.open())
        assert opened.streams[0].detail["silent_at_start"] == [f"gpu0.rail{i}" for i in range(4, 8)]
        assert set(opened.readings(opened.run(50), "gpu0.rail7")["flags"]) == {Flag.IO_ERROR}

    def test_what_a_node_held_back_while_nobody_listened_is_not_delivered(self, clock):
        case = Case(clock)
        case.node.pico.room = 0
        clock.sleep_until(clock.now_ns() + 2_000 * MS)
        case.node.catch_up()
        case.node.pico.room = 1 << 30
        begin_ns = clock.now_ns()
        again = source_on(case.node, Start("again", EPOCH, 0, clock))
        opened = Opened(again, clock, *again.open())
        made = opened.run(100)
        assert not gaps(made)
        assert min(opened.readings(made, "gpu0.rail0")["t_ns"]) > begin_ns


def configured(options="", **sensors):
    tables = "".join(f'[[source.sensors]]\nname = "{n}"\naddress = {a}\n{more}\n' for n, (a, more) in sensors.items())
    return parse_config(f'[[source]]\nkind = "node"\nport = "/dev/ttyACM0"\n{options}\n{tables}', "x.toml")


@pytest.mark.parametrize(
    ("options", "sensors", "what"),
    [
        ("", {}, "sensors"),
        ("rate_hz = 5000", {"a": (0x40, "")}, "rate_hz"),
        ("rate_hz = 500", {chr(97 + i): (0x40 + i, "") for i in range(8)}, "at most 490"),
        ("", {"a": (0x40, "controller = 2")}, "controller"),
        ("", {"a": (0x40, 'chip = "INA226"')}, "INA219"),
        ("", {"a": (0x40, ""), "b": (0x40, "")}, "0x40"),
        ("", {"marker": (0x40, "")}, "gpu0.marker"),
        ("", {chr(97 + i): (0x40 + i, "") for i in range(9)}, "9 sensors"),
    ],
)
def test_bad_configurations(options, sensors, what):
    with pytest.raises(ConfigError, match=what):
        configured(options, **sensors)


def test_a_failed_check_counts_where_the_scan_that_tells_it_has_no_time(clock):
    case = Case(clock, 2)
    case.o.run(50)
    scans = case.source._scans
    last, us, words = scans._last, scans._last_us, pack("<hHhH", 1000, 24_002, 1000, 24_002)
    t_ns = clock.now_ns() + 100 * MS
    for k, (reset, is_timed) in enumerate([(0, True), (1, False), (1, True), (1, True)], 1):
        scan = Scan(last.sequence + k & 0xFFFF, 0, 0b11, last.reset ^ reset, 480, words)
        scans.add(scan, us + 4000 * k, t_ns + 4 * MS * k if is_timed else None, t_ns + 1000 * MS, "")
    before, gap = scans.take()[:2]
    assert isinstance(gap, Gap)
    r = case.readings([before], 0)
    assert r["flags"][-1] & Flag.RESET
    assert not case.readings([before], 1)["flags"][-1] & Flag.RESET
