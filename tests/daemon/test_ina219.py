"""The INA219 driver on simulated chips: values, times, flags, and what it does about faults."""

from array import array
from math import isclose, sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerd_core.blocks import BlockBuilder, columns
from powerd_core.errors import ConfigError, SensorError
from powerd_core.model import Column, Flag, Line, Provenance, Stream
from powerd_daemon.ina import Chip, Scanner, Settings, accuracy, conversion
from powerd_daemon.ina.ina219 import Register
from powerd_daemon.sim.bus import SimBus
from powerd_daemon.sim.chip import ChipErrors, SimIna219
from powerd_daemon.sim.clock import VirtualClock
from powerd_daemon.sim.shapes import Square

MS = 1_000_000
PERIOD = 2 * MS
SHUNT_OHM = 0.05
DEFAULT = Settings()


class Bench:
    """Eight chips at 12 V with a current each, the driver, and the readings it makes."""

    def __init__(self, currents_a=(1.0,) * 8, *, settings=DEFAULT, clocks=(0.0,) * 8, **chip):
        self.clock = VirtualClock()
        self.chips = {
            0x40 + i: SimIna219(
                a if callable(a) else lambda t0, t1, a=a: a,
                **({"bus_v": 12.0, "shunt_ohm": SHUNT_OHM, "errors": ChipErrors(clock=rate)} | chip),
                t_ns=self.clock.now_ns(),
            )
            for i, (a, rate) in enumerate(zip(currents_a, clocks, strict=True))
        }
        self.bus = SimBus(self.clock, self.chips)
        self.settings = settings
        self.scanner = Scanner(
            self.bus, self.clock, [Chip(a, settings) for a in self.chips], scl_hz=400_000, period_ns=PERIOD
        )
        lines = tuple(Line(f"l{i}", "d", conversion(SHUNT_OHM), Provenance.SIMULATED) for i in range(len(self.chips)))
        self.stream = Stream(0, "ina", (Column("shunt", "h"), Column("bus", "H")), lines, PERIOD)
        self.builder = BlockBuilder(self.stream, 1)

    def scan(self, count, period_ns=PERIOD):
        """Scans at deadlines, then (t_ns, flags, shunt, bus) rows of lines."""
        due = self.clock.now_ns()
        for _ in range(count):
            self.clock.sleep_until(due)
            self.scanner.scan()
            due += period_ns
        return self.take()

    def take(self):
        self.scanner.take(self.builder)
        block = self.builder.take()
        if block is None:
            return []
        views, n = columns(block, self.stream), len(self.stream.lines)
        t_ns = array("q", bytes(views["t_ns"]))
        dt, flags, shunt, bus = (
            array(c, bytes(views[name])) for name, c in (("dt_ns", "i"), ("flags", "H"), ("shunt", "h"), ("bus", "H"))
        )
        return [
            (
                [t_ns[k] + d for d in dt[k * n : k * n + n]],
                list(flags[k * n : k * n + n]),
                list(shunt[k * n : k * n + n]),
                [b >> 3 for b in bus[k * n : k * n + n]],
            )
            for k in range(len(t_ns))
        ]


def power_w(shunt, bus):
    return bus * 4e-3 * shunt * 1e-5 / SHUNT_OHM


class TestSettings:
    @pytest.mark.parametrize(
        ("settings", "word", "cycle_ns"),
        [
            (Settings("12bit", "12bit"), 0x399F, 1_064_000),
            (Settings("avg4", "10bit"), 0x38D7, 2_278_000),
            (Settings("avg128", "9bit", 40, 16), 0x007F, 68_184_000),
        ],
    )
    def test_the_config_word(self, settings, word, cycle_ns):
        assert (settings.word, settings.cycle_ns) == (word, cycle_ns)

    @pytest.mark.parametrize(
        "wrong", [{"shunt_adc": "13bit"}, {"bus_adc": ""}, {"shunt_range_mv": 100}, {"bus_range_v": 26}]
    )
    def test_what_the_chip_does_not_have_is_refused(self, wrong):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            Settings(**wrong)

    def test_the_accuracy_follows_the_data_sheet(self):
        found = accuracy(
            Settings("12bit", "12bit"),
            shunt_ohm=0.05,
            nominal_v=12.0,
            period_ns=PERIOD,
            grade="B",
            shunt_tolerance=0.01,
        )
        assert isclose(found.u_gain, sqrt(0.005**2 + 0.01**2 + 0.01**2) / sqrt(3), rel_tol=1e-3)
        assert isclose(found.u_offset_w, 100e-6 / 0.05 * 12 / sqrt(3))
        assert isclose(found.step_w, 10e-6 / 0.05 * 12)
        assert found.window_ns == 532_000
        assert found.update_ns == 0
        slow = accuracy(Settings("avg128"), shunt_ohm=0.05, nominal_v=12.0, period_ns=PERIOD)
        assert slow.update_ns == 68_248_000

    def test_an_unknown_grade_is_refused(self):
        with pytest.raises(ConfigError, match="grade"):
            accuracy(Settings(), shunt_ohm=0.05, nominal_v=12.0, period_ns=PERIOD, grade="C")


class TestValues:
    @settings(max_examples=30, deadline=None)
    @given(st.lists(st.floats(-6.0, 6.0), min_size=8, max_size=8))
    def test_codes_mean_the_current_within_half_a_step(self, currents):
        bench = Bench(currents)
        bench.scanner.open()
        for _, flags, shunt, bus in bench.scan(5):
            assert flags == [0] * 8
            for current, s, b in zip(currents, shunt, bus, strict=True):
                assert abs(power_w(s, b) - 12 * current) <= 12 * 0.5 * 10e-6 / SHUNT_OHM + 1e-9

    def test_times_are_those_of_the_windows_on_average(self):
        """A ramp's reading says when it was taken: the true middle of its window against the stated time."""
        ramp = [lambda t0, t1: ((t0 + t1) / 2 - 1e9) * 1e-9] * 8
        bench = Bench(ramp, clocks=[-0.09, -0.06, -0.03, -0.01, 0.01, 0.03, 0.06, 0.09])
        bench.scanner.open()
        centre_ns = accuracy(bench.settings, shunt_ohm=SHUNT_OHM, nominal_v=12.0, period_ns=PERIOD).centre_ns
        errors = []
        for t_ns, _, shunt, _ in bench.scan(1500, PERIOD + 137):
            errors.append([t - (1e9 + s * 1e-5 / SHUNT_OHM * 1e9) for t, s in zip(t_ns, shunt, strict=True)])
        step_ns = 10e-6 / SHUNT_OHM * 1e9
        assert all(abs(e) <= centre_ns + step_ns for row in errors for e in row)
        means = [sum(row[i] for row in errors) / len(errors) for i in range(8)]
        assert all(abs(m) < 0.1 * bench.settings.cycle_ns for m in means)
        assert abs(sum(means) / 8) < 30_000

    def test_energy_of_a_changing_load(self):
        w = Square(1_000_000_000, low_w=2.0, high_w=30.0, period_ms=37.3, duty=0.4)
        bench = Bench([lambda t0, t1: w.energy_j(t0, t1) / (t1 - t0) * 1e9 / 12] * 8)
        bench.scanner.open()
        rows = bench.scan(5000)
        for line in range(8):
            t = [row[0][line] for row in rows]
            p = [power_w(row[2][line], row[3][line]) for row in rows]
            measured = sum((p[i] + p[i + 1]) / 2 * (t[i + 1] - t[i]) * 1e-9 for i in range(len(t) - 1))
            assert isclose(measured, w.energy_j(t[0], t[-1]), rel_tol=0.003)


class TestFlags:
    @pytest.mark.parametrize("sign", [1, -1])
    def test_full_scale_is_saturated(self, sign):
        bench = Bench([1.0] * 7 + [sign * 6.5])
        bench.scanner.open()
        _, flags, shunt, _ = bench.scan(1)[0]
        assert flags == [0] * 7 + [Flag.SATURATED]
        assert shunt[7] == sign * 32000

    def test_a_smaller_range_saturates_earlier(self):
        bench = Bench([1.0] * 8, settings=Settings(shunt_range_mv=40))
        bench.scanner.open()
        assert bench.scan(1)[0][1] == [Flag.SATURATED] * 8

    def test_a_bus_voltage_at_the_end_of_its_range(self):
        bench = Bench(settings=Settings(bus_range_v=16), bus_v=18.0)
        bench.scanner.open()
        assert bench.scan(1)[0][1] == [Flag.SATURATED] * 8

    def test_overflow_leaves_the_codes_good(self):
        bench = Bench([3.0] * 8)
        bench.scanner.open()
        bench.bus.write_word(0x42, Register.CALIBRATION, 0xFFFE)
        _, flags, shunt, bus = bench.scan(3)[2]
        assert flags == [0, 0, Flag.OVERFLOW, 0, 0, 0, 0, 0]
        assert (shunt[2], bus[2]) == (15000, 3000)

    def test_scans_faster_than_conversions_are_stale(self):
        bench = Bench(settings=Settings("avg8", "12bit"))
        bench.scanner.open()
        flags = [row[1][0] for row in bench.scan(30)]
        # A conversion takes at most 5.27 ms: every third scan, 6 ms apart, has one of its own.
        assert flags == [0, Flag.STALE, Flag.STALE] * 10

    def test_readings_at_their_deadlines_are_not_stale_across_takes(self):
        bench = Bench()
        bench.scanner.open()
        assert not any(any(row[1]) for _ in range(5) for row in bench.scan(7))


class TestFaults:
    def test_one_failed_transfer_costs_one_reading(self):
        bench = Bench([0.5 + 0.5 * i for i in range(8)])
        bench.scanner.open()
        bench.scan(2)
        bench.bus.fail(0x43, 3)
        rows = bench.scan(6)
        bad = [(k, i) for k, row in enumerate(rows) for i, flag in enumerate(row[1]) if flag & Flag.IO_ERROR]
        # Combined and single read of the first scan fail, then the combined one of the second, whose retry works.
        assert bad == [(0, 3)]
        for k, row in enumerate(rows):
            for i in range(8):
                if (k, i) not in bad:
                    assert row[2][i] == 2500 * (i + 1)
        assert rows[0][2][3] == 0
        for i in range(8):
            t = [row[0][i] for row in rows]
            assert t == sorted(set(t))

    def test_a_dead_chip_does_not_slow_the_others_and_comes_back(self):
        bench = Bench()
        bench.scanner.open()
        bench.bus.fail(0x45, 10_000)
        bench.scan(20)
        began = bench.clock.now_ns()
        bench.scanner.scan()
        assert bench.clock.now_ns() - began < 8 * 2 * 48 * 2500
        assert bench.take()[0][1] == [0, 0, 0, 0, 0, Flag.IO_ERROR, 0, 0]
        bench.bus.fail(0x45, 0)
        rows = bench.scan(600)
        flags = [row[1][5] for row in rows]
        back = flags.index(next(f for f in flags if f != Flag.IO_ERROR))
        assert back < 510
        assert not any(flags[back + 2 :])
        assert not any(any(row[1][:5] + row[1][6:]) for row in rows)

    def test_an_absent_chip_at_the_start(self):
        bench = Bench()
        del bench.bus.chips[0x47]
        assert bench.scanner.open() == (0x47,)
        assert bench.scan(3)[-1][1] == [0] * 7 + [Flag.IO_ERROR]

    def test_no_chip_at_all(self):
        bench = Bench()
        bench.bus.chips.clear()
        with pytest.raises(SensorError, match="0x40, .*wiring"):
            bench.scanner.open()

    def test_a_bus_that_dies(self):
        bench = Bench()
        bench.scanner.open()
        bench.scan(5)
        bench.bus.chips.clear()
        with pytest.raises(SensorError, match="any more"):
            bench.scan(20)
        assert [row[1] for row in bench.take()] == [[Flag.IO_ERROR] * 8] * 3

    def test_a_brown_out_is_found_flagged_and_repaired(self):
        bench = Bench()
        bench.scanner.open()
        bench.scan(3)
        bench.bus.brown_out(0x46)
        rows = bench.scan(600)
        flagged = [k for k, row in enumerate(rows) if row[1][6] & Flag.RESET]
        assert flagged
        assert flagged[-1] <= 510
        assert bench.chips[0x46].read_word(bench.clock.now_ns())
        bench.chips[0x46].select(Register.CONFIG)
        assert bench.chips[0x46].read_word(bench.clock.now_ns()) == bench.settings.word
        assert not any(any(row[1][:6] + row[1][7:]) for row in rows)

    def test_a_chip_without_a_conversion_is_reset_and_looked_at_at_once(self):
        bench = Bench(settings=Settings("avg8", "9bit"))
        bench.scanner.open()
        bench.scan(3, 6 * MS)
        bench.bus.write_word(0x41, Register.CONFIG, Settings("avg128", "12bit").word)
        first = bench.scan(1)
        assert first[0][1][1] & Flag.RESET
        bench.clock.sleep_until(bench.clock.now_ns() + 6 * MS)
        bench.scan(1)
        assert bench.bus.prepare([(0x41, Register.CONFIG)])() == bench.settings.word.to_bytes(2, "big")
        assert bench.scan(3, 6 * MS)[-1][1] == [0] * 8

    @settings(max_examples=25, deadline=None)
    @given(st.lists(st.tuples(st.integers(0, 7), st.integers(1, 5)), max_size=12))
    def test_faults_never_make_a_wrong_value(self, faults):
        bench = Bench([0.5 + 0.5 * i for i in range(8)])
        bench.scanner.open()
        for address, transfers in faults:
            bench.bus.fail(0x40 + address, transfers)
            for _, flags, shunt, bus in bench.scan(4):
                for i in range(8):
                    assert flags[i] or (shunt[i], bus[i]) == (2500 * (i + 1), 3000)
