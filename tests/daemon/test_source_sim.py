"""The simulated card: the real driver's joules against the waveform's exact ones."""

from itertools import pairwise
from math import isclose
from random import Random

import pytest
from conformance import EPOCH, Opened, SourceConformance

from powerd_core.model import BAD, Block, Flag, Provenance
from powerd_core.wire import decode
from powerd_daemon.sampler import Outbox, Sampling
from powerd_daemon.sources.base import Start
from powerd_daemon.sources.ina.sensor_accuracy import Sensor
from powerd_daemon.sources.sim.bus import VirtualClock
from powerd_daemon.sources.sim.source import MOST_LATE_NS, SimOptions, SimSource
from powerd_daemon.sources.sim.waveforms import NOMINAL_V, SHARES, waveform_from_detail

S = 1_000_000_000


def run(scans: int, **options: object) -> tuple[Opened, dict[str, tuple[list[int], list[float]]]]:
    """Times and powers of each line (by its short name)."""
    clock = VirtualClock()
    source = SimSource(SimOptions(**options), Start("sim", EPOCH, 0, clock))
    streams, devices = source.open()
    opened = Opened(source, clock, streams, devices)
    made = opened.run(scans)
    found = {}
    for line in streams[0].lines:
        r = opened.readings(made, line.name)
        assert not any(f & BAD for f in r["flags"])
        c = line.conversion
        watts = [
            (b >> c.bus_shift) * c.bus_lsb_v * s * c.shunt_lsb_v / c.shunt_ohm
            for s, b in zip(r["shunt"], r["bus"], strict=True)
        ]
        found[line.name.split(".")[1]] = r["t_ns"], watts
    return opened, found


def energy_j(t_ns: list[int], watts: list[float]) -> float:
    return sum((watts[i] + watts[i + 1]) / 2 * (t_ns[i + 1] - t_ns[i]) * 1e-9 for i in range(len(t_ns) - 1))


def test_eight_simulated_lines_feed_one_card():
    opened, _ = run(5)
    assert [line.name for line in opened.streams[0].lines] == [f"gpu0.{name}" for name in SHARES]
    assert {line.provenance for line in opened.streams[0].lines} == {Provenance.SIMULATED}
    assert opened.devices[0].feeds == tuple(line.name for line in opened.streams[0].lines)


@pytest.mark.parametrize("waveform", ["square", "training", "telegraph"])
def test_joules_without_errors(waveform):
    opened, found = run(1500, waveform=waveform, errors="none")
    load = waveform_from_detail(opened.streams[0].detail)
    measured_j = {name: energy_j(*series) for name, series in found.items()}
    exact_j = {name: load.energy_j(t_ns[0], t_ns[-1], name) for name, (t_ns, _) in found.items()}
    assert isclose(sum(measured_j.values()), sum(exact_j.values()), rel_tol=0.003)
    # One line's conversions may keep step with a load that repeats itself exactly, for a while.
    for name, joules in measured_j.items():
        assert isclose(joules, exact_j[name], rel_tol=0.015)


@pytest.mark.parametrize("seed", range(3))
def test_data_sheet_errors_stay_within_what_the_lines_say(seed):
    opened, found = run(1000, seed=seed)
    load = waveform_from_detail(opened.streams[0].detail)
    beyond = 0
    for line in opened.streams[0].lines:
        name = line.name.split(".")[1]
        t_ns, watts = found[name]
        true_j, seconds = load.energy_j(t_ns[0], t_ns[-1], name), (t_ns[-1] - t_ns[0]) * 1e-9
        u_j = ((line.accuracy.u_gain * true_j) ** 2 + (line.accuracy.u_offset_w * seconds) ** 2) ** 0.5
        error_j = energy_j(t_ns, watts) - true_j
        assert error_j != 0
        assert abs(error_j) < 3.5 * u_j
        beyond += abs(error_j) > 2 * u_j
    assert beyond <= 2


def test_a_simulation_that_this_machine_runs_late_is_whole():
    clock = VirtualClock()
    source = SimSource(SimOptions(waveform="square"), Start("sim", EPOCH, 0, clock))
    opened = Opened(source, clock, *source.open())
    made = opened.run(50)
    clock.sleep_until(clock.now_ns() + 300_000_000)  # others had the CPU
    made += opened.run(250) + source.finish()
    load = waveform_from_detail(opened.streams[0].detail)
    for line in opened.streams[0].lines:
        r = opened.readings(made, line.name)
        assert not any(r["flags"])
        assert all(abs(b - a - source.period_ns) < 10_000 for a, b in pairwise(r["t_ns"]))
        true_a = [load.power_w(t_ns, line.name[5:]) / NOMINAL_V[line.name[5:]] for t_ns in r["t_ns"]]
        near = [isclose(s * 10e-6 / 0.05, a, rel_tol=0.05) for s, a in zip(r["shunt"], true_a, strict=True)]
        assert sum(near) > 0.9 * len(near)  # but for those that average over a step of the load


class Oversleeping(VirtualClock):
    """A busy machine's clock: sleeps end late, by up to ``most_ns``, and once by 45 s; never where that is 0."""

    def __init__(self, most_ns: int) -> None:
        super().__init__()
        self.has_stood = False
        self._random, self._most_ns, self.late_ns = Random(4), most_ns, 0

    def sleep_until(self, t_ns: int) -> None:
        if self._most_ns and t_ns > self.t_ns:
            is_once = self.t_ns > 3 * S and not self.has_stood
            late_ns = 45 * S if is_once else round(self._most_ns * self._random.random() ** 8)
            self.has_stood |= is_once
            self.late_ns += late_ns
            t_ns += late_ns
        super().sleep_until(t_ns)


def sampled(clock: Oversleeping, until_ns: int, **options: object) -> tuple[Sampling, dict[str, dict[str, list[int]]]]:
    """A sampler on a clock, and what it has sent of each line up to a moment."""
    outbox, streams = Outbox(1 << 30), []
    sampling = Sampling(
        lambda start: SimSource(SimOptions(**options), start),
        Start("sim", EPOCH, 0, clock),
        outbox,
        block_ns=20_000_000,
        on_open=lambda described, _devices: streams.extend(described),
    )
    sampling.open()
    made: list[Block] = []
    while not made or made[-1].t_last_ns < until_ns:
        sampling.step()
        outbox.drain(lambda frame: made.append(decode(frame)) or True)
    opened = Opened(SimSource(SimOptions(**options), Start("sim", EPOCH, 0, clock)), clock, tuple(streams[:1]), ())
    found = {line.name: opened.readings(made, line.name) for line in streams[0].lines}
    counts = {name: sum(t_ns < until_ns for t_ns in r["t_ns"]) for name, r in found.items()}
    return sampling, {name: {key: list(x)[: counts[name]] for key, x in r.items()} for name, r in found.items()}


@pytest.mark.parametrize("waveform", ["training", "telegraph"])
def test_readings_are_the_same_on_a_busy_machine(waveform):
    options = {"waveform": waveform, "rate_hz": 10.0, "seed": 3}
    until_ns = 1_000_000_000 + 60 * S
    _, punctual = sampled(Oversleeping(0), until_ns, **options)
    clock = Oversleeping(2 * S)
    late, busy = sampled(clock, until_ns, **options)
    assert late.deadlines is not None
    assert late.deadlines.missed > 400  # it was late
    assert clock.late_ns > 45 * S
    assert late.statistics()["missed_deadlines"] == 0
    assert busy == punctual
    for readings in punctual.values():
        assert len(readings["t_ns"]) > 580
        assert not any(readings["flags"])
        assert all(abs(b - a - S // 10) < 10_000 for a, b in pairwise(readings["t_ns"]))


def test_what_a_machine_that_stood_too_long_has_missed_is_a_hole():
    clock = VirtualClock()
    source = SimSource(SimOptions(rate_hz=50.0), Start("sim", EPOCH, 0, clock))
    opened = Opened(source, clock, *source.open())
    made = opened.run(20)
    clock.sleep_until(clock.now_ns() + MOST_LATE_NS + S)
    made += opened.run(20) + source.finish()
    r = opened.readings(made, "gpu0.pcie_12v")
    assert sum(bool(f & Flag.MISSING) for f in r["flags"]) > 20


MIXED = (
    Sensor("slot", 0x40),
    Sensor("cable", 0x41, "INA226", shunt_ohm=0.005),
    Sensor("fine", 0x42, "INA228", shunt_ohm=0.01),
    Sensor("board", 0x43, "INA3221", 1, nominal_v=5.0),
    Sensor("disk", 0x43, "INA3221", 2, nominal_v=5.0),
)
MIXED_OPTIONS = {"sensors": MIXED, "rate_hz": 250.0, "peak_w": 40.0, "idle_w": 10.0}


class TestConformanceOfMixedTypes(SourceConformance):
    def make(self, start: Start) -> SimSource:
        return SimSource(SimOptions(**MIXED_OPTIONS, bus_every=4), start)

    def fail(self, source):
        for sensor, _ in source.bank:
            source.bus.fail(sensor.address, 1 << 30)


def test_faults_on_a_schedule_are_flagged_and_counted():
    clock = VirtualClock()
    options = SimOptions(
        waveform="constant", errors="none", peak_w=200.0, fault_every_s=0.5, faults=("nack", "brown-out")
    )
    source = SimSource(options, Start("sim", EPOCH, 0, clock))
    opened = Opened(source, clock, *source.open())
    made = opened.run(2000) + source.finish()
    flagged = 0
    for name in SHARES:
        r = opened.readings(made, f"gpu0.{name}")
        assert len(r["flags"]) >= 2000  # a scan that took long is followed by a missing one
        good = {s for s, f in zip(r["shunt"], r["flags"], strict=True) if not f & BAD}
        true = 200.0 * SHARES[name] / NOMINAL_V[name] * options.shunt_ohm / 10e-6
        assert all(abs(s - true) <= 1 for s in good)
        flagged += sum(1 for f in r["flags"] if f & BAD)
    assert 0 < flagged < 1600
    health = source.health()
    assert health["left_out"] == {}
    assert health["combined_reads"] is True
    assert health["failed_scans"] > 0
    assert health["failed_reads"] > 0
    assert 0 < health["lost_settings"] <= health["set_up_again"]
    assert health["set_up_again"] <= health["lost_settings"] + health["given_up"]


def test_times_increase_where_the_bus_is_stuck_and_transfers_are_late():
    clock, outbox, streams = VirtualClock(), Outbox(1 << 28), []
    options = SimOptions(waveform="constant", fault_every_s=0.3, faults=("stuck", "latency"))
    sampling = Sampling(
        lambda start: SimSource(options, start),
        Start("sim", EPOCH, 0, clock),
        outbox,
        block_ns=20_000_000,
        on_open=lambda described, _devices: streams.extend(described),
    )
    sampling.open()
    while clock.now_ns() < 6_000_000_000:
        sampling.step()
    sampling.close()
    made = []
    outbox.drain(lambda frame: made.append(decode(frame)) or True)
    opened = Opened(SimSource(options, Start("sim", EPOCH, 0, clock)), clock, tuple(streams[:1]), ())
    for line in streams[0].lines:
        r = opened.readings(made, line.name)
        assert sum(bool(f & Flag.MISSING) for f in r["flags"]) > 20
        assert all(a < b for a, b in pairwise(r["t_ns"]))
