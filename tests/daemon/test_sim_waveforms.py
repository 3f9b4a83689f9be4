"""Loads whose joules are exact: additive over any split, equal to the numeric integral, the same everywhere."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerd_daemon.sources.sim.waveforms import (
    SHARES,
    CardLoad,
    Constant,
    Host,
    Square,
    Telegraph,
    Training,
    waveform_from_detail,
)

T0 = 5_000_000_000_000
MS = 1_000_000
WAVEFORMS = {
    "constant": Constant(T0, level_w=120.0),
    "square": Square(T0, low_w=30.0, high_w=250.0, period_ms=101.3, duty=0.4),
    "training": Training(T0, idle_w=30.0, peak_w=250.0),
    "telegraph": Telegraph(T0, low_w=20.0, high_w=250.0, dwell_ms=35.0, seed=3),
}
times = st.integers(T0 - 3_000 * MS, T0 + 3_000 * MS)


@pytest.mark.parametrize("name", WAVEFORMS)
@settings(max_examples=40)
@given(times, times, times)
def test_energy_is_additive_over_any_split(name, a, b, c):
    w = WAVEFORMS[name]
    assert math.isclose(w.energy_j(a, c), w.energy_j(a, b) + w.energy_j(b, c), abs_tol=1e-8)


@pytest.mark.parametrize("name", WAVEFORMS)
@settings(max_examples=10)
@given(times, st.integers(1, 40 * MS))
def test_energy_is_the_integral_of_the_power(name, begin, length):
    w = WAVEFORMS[name]
    steps = 4000
    middles = (w.power_w(begin + (2 * i + 1) * length // (2 * steps)) for i in range(steps))
    # A jump of the power may lie anywhere within its step.
    jumps_w = 230.0 * 4
    assert math.isclose(
        w.energy_j(begin, begin + length),
        sum(middles) / steps * length * 1e-9,
        abs_tol=jumps_w * length * 1e-9 / steps + 1e-9,
        rel_tol=1e-6,
    )


@pytest.mark.parametrize("name", ["square", "training"])
def test_days_from_the_anchor_cost_no_precision(name):
    w = WAVEFORMS[name]
    cycle_ns = w.cycle_ns
    near = w.energy_j(T0, T0 + 7 * MS)
    cycles = 30 * 86_400 * 1000 * MS // cycle_ns
    assert math.isclose(w.energy_j(T0 + cycles * cycle_ns, T0 + cycles * cycle_ns + 7 * MS), near, abs_tol=1e-9)


def test_a_training_cycle_by_hand():
    w = Training(
        0, idle_w=100, peak_w=200, forward_ms=10, backward_ms=20, update_ms=5, idle_ms=5, ramp_ms=2, forward_level=0.5
    )
    assert w.power_w(1 * MS) == 125
    assert w.power_w(9 * MS) == 150
    assert math.isclose(w.energy_j(0, 10 * MS), 0.002 * 125 + 0.008 * 150)
    assert list(w.phases(0, 40 * MS)) == [
        ("forward", 0, 10 * MS),
        ("backward", 10 * MS, 30 * MS),
        ("update", 30 * MS, 35 * MS),
        ("idle", 35 * MS, 40 * MS),
    ]
    assert next(iter(w.phases(15 * MS, 60 * MS)))[0] == "update"


def test_a_telegraph_is_the_same_in_any_order_of_asking():
    make = {"low_w": 20.0, "high_w": 250.0, "dwell_ms": 35.0, "seed": 9}
    there, back = Telegraph(T0, **make), Telegraph(T0, **make)
    moments = [T0 + k * 137 * MS for k in range(-40, 80)]
    forward = [(there.power_w(t), there.energy_j(T0, t)) for t in moments]
    backward = [(back.power_w(t), back.energy_j(T0, t)) for t in reversed(moments)]
    assert forward == backward[::-1]
    assert Telegraph(T0, **(make | {"seed": 10})).power_w(T0) != there.power_w(T0)


@pytest.mark.parametrize("name", WAVEFORMS)
def test_a_load_is_made_again_from_its_detail(name):
    load = CardLoad(WAVEFORMS[name], SHARES)
    again = waveform_from_detail(json.loads(json.dumps(load.detail(T0))))
    for t in (T0 - 400 * MS, T0 + 33 * MS, T0 + 1999 * MS):
        assert again.power_w(t) == load.power_w(t)
        assert again.energy_j(T0, t, "pcie_12v") == load.energy_j(T0, t, "pcie_12v")
    lines = sum(again.energy_j(T0, T0 + 777 * MS, line) for line in SHARES)
    assert math.isclose(lines, again.energy_j(T0, T0 + 777 * MS))


class TestHost:
    def make(self, **more):
        self.cpu_ns = 0
        options = {"idle_w": 20.0, "peak_w": 120.0, "cores": 2.0, "smooth_ns": 4 * MS} | more
        return Host(T0, cpu_ns=lambda: self.cpu_ns, **options)

    def follow(self, w, steps, busy_ns, first=0):
        for k in range(first, first + steps):
            self.cpu_ns += busy_ns
            w.advance(T0 + (k + 1) * 2 * MS)

    def test_idle_half_busy_and_busy(self):
        w = self.make()
        self.follow(w, 50, 0)
        assert w.power_w(T0 + 50 * MS) == 20
        self.follow(w, 50, 2 * MS, first=50)
        assert math.isclose(w.power_w(T0 + 199 * MS), 70, rel_tol=0.01)
        self.follow(w, 50, 8 * MS, first=100)
        assert w.power_w(T0 + 299 * MS) == 120

    def test_lumps_of_cpu_time_are_spread_and_complete(self):
        w = self.make()
        for k in range(200):
            self.cpu_ns += 16 * MS if k % 8 == 0 else 0
            w.advance(T0 + (k + 1) * 2 * MS)
        self.follow(w, 50, 0, first=200)
        # 400 ms of CPU time on two cores: 100 W above idle for 200 ms.
        assert math.isclose(w.energy_j(T0, T0 + 500 * MS), 0.5 * 20 + 0.2 * 100, rel_tol=1e-3)

    def test_what_was_not_generated_is_not_known(self):
        w = self.make()
        self.follow(w, 5, MS)
        with pytest.raises(ValueError, match="known from"):
            w.energy_j(T0, T0 + 11 * MS)
        with pytest.raises(ValueError, match="known from"):
            w.power_w(T0 - 1)
