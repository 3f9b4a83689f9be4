"""The INA driver on simulated chips: values, times, flags, and what it does about faults."""

import errno
from array import array
from itertools import count, pairwise, product
from math import isclose

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ina_bench import MS, PERIOD, SHUNT_OHM, Bench, HeldUpClock, eight

from powerd_core.errors import SensorError
from powerd_core.model import BAD, Flag
from powerd_daemon.clock import Deadlines
from powerd_daemon.sources.ina import scanner
from powerd_daemon.sources.ina.chips import CNVR, OVF, RST, ChipSettings
from powerd_daemon.sources.ina.scanner import Decoder, cycle_ratio
from powerd_daemon.sources.ina.sensor_accuracy import Sensor
from powerd_daemon.sources.sim.bus import ChipErrors, Load, SimBus, SimChip, VirtualClock
from powerd_daemon.sources.sim.waveforms import Square

MIXED = (
    Sensor("a", 0x40, shunt_ohm=0.05),
    Sensor("b", 0x41, "INA226", shunt_ohm=0.02),
    Sensor("c", 0x42, "INA228", shunt_ohm=0.02),
    Sensor("d1", 0x43, "INA3221", 1, shunt_ohm=0.05),
    Sensor("d3", 0x43, "INA3221", 3, shunt_ohm=0.05),
    Sensor("e", 0x44, "INA228", shunt_ohm=0.005, shunt_range="41mV"),
)
FAST = eight(shunt_adc="12bit", bus_adc="9bit")
NARROW = tuple(s for s in MIXED if s.chip != "INA228")


class TestValues:
    @pytest.mark.parametrize("sensors", [MIXED, NARROW])
    @pytest.mark.parametrize("bus_every", [1, 4])
    @pytest.mark.parametrize("combines", [True, False])
    @settings(max_examples=3, deadline=None)
    @given(currents=st.lists(st.floats(-3.0, 3.0), min_size=6, max_size=6))
    def test_mixed_types_on_one_bus(self, sensors, bus_every, combines, currents):
        bench = Bench(currents, sensors=sensors, bus_every=bus_every, period_ns=4 * MS, combines=combines).opened()
        assert bench.scanner.combined == combines
        assert bench.scanner.typecodes == (("i", "I") if sensors is MIXED else ("h", "H"))
        rows = bench.scan(2 * bus_every + 1)
        assert len(rows) == 2 * bus_every + 1
        for row in rows:
            assert not any(row.flags)
            for i, sensor in enumerate(sensors):
                step_a = {"INA219": 10e-6, "INA226": 2.5e-6, "INA228": 312.5e-9, "INA3221": 40e-6}[sensor.chip]
                bus_v = 0.0041 if sensor.chip == "INA3221" else 0.001
                error_w = 12.1 * step_a / sensor.shunt_ohm / 2 + bus_v * abs(currents[i])
                assert abs(bench.power_w(row, i) - 12 * currents[i]) <= error_w

    def test_times_are_those_of_the_windows_on_average(self):
        """A ramp's reading says when it was taken: the true middle of its window against the stated time."""
        ramp = [lambda t0, t1: ((t0 + t1) / 2 - 1e9) * 1e-9] * 8
        bench = Bench(ramp, clocks=[-0.09, -0.06, -0.03, -0.01, 0.01, 0.03, 0.06, 0.09]).opened()
        step_ns = 10e-6 / SHUNT_OHM * 1e9
        cycle_ns = bench.bank.settings[0].cycle_ns
        centre_ns = bench.stream.lines[0].accuracy.centre_ns
        rows = bench.scan(1500, 2 * MS + 137)
        errors = [
            [t - (1e9 + s * 1e-5 / SHUNT_OHM * 1e9) for t, s in zip(r.t_ns, r.shunt, strict=True)]
            for r in rows
            if not any(r.flags)
        ]
        assert len(errors) > 1490
        assert all(abs(e) <= centre_ns + step_ns for row in errors for e in row)
        means = [sum(row[i] for row in errors) / len(errors) for i in range(8)]
        assert all(abs(m) < 0.1 * cycle_ns for m in means)
        assert abs(sum(means) / 8) < 30_000

    @pytest.mark.parametrize(("chip", "averages"), [*product(("INA226", "INA228"), (1, 4)), ("INA3221", 1)])
    def test_times_of_the_other_types_are_those_of_their_windows_too(self, chip, averages):
        channels = (1, 2, 3) if chip == "INA3221" else (1,)
        sensors = [Sensor(f"l{c}", 0x40, chip, c, shunt_ohm=0.02, averages=averages) for c in channels]
        ramp = [lambda t0, t1: ((t0 + t1) / 2 - 1e9) * 1e-9] * len(channels)
        bench = Bench(ramp, sensors=sensors, period_ns=7 * MS + 1013).opened()
        rows = bench.scan(400)
        for i, line in enumerate(bench.stream.lines):
            lsb_a = line.conversion.shunt_lsb_v / 0.02
            errors = [r.t_ns[i] - (1e9 + r.shunt[i] * lsb_a * 1e9) for r in rows if not r.flags[i]]
            assert len(errors) > 390
            step_ns = lsb_a * 8e9 if chip == "INA3221" else lsb_a * 1e9
            assert all(abs(e) <= line.accuracy.centre_ns + step_ns for e in errors)
            assert abs(sum(errors) / len(errors)) < 0.12 * bench.bank.settings[0].cycle_ns

    def test_energy_of_a_changing_load(self):
        w = Square(1_000_000_000, low_w=2.0, high_w=30.0, period_ms=37.3, duty=0.4)
        bench = Bench([lambda t0, t1: w.energy_j(t0, t1) / (t1 - t0) * 1e9 / 12] * 8).opened()
        rows = bench.scan(2500)
        for i in range(8):
            t = [row.t_ns[i] for row in rows]
            p = [bench.power_w(row, i) for row in rows]
            measured = sum((p[k] + p[k + 1]) / 2 * (t[k + 1] - t[k]) * 1e-9 for k in range(len(t) - 1))
            assert isclose(measured, w.energy_j(t[0], t[-1]), rel_tol=0.005)


class TestHeldBusVoltage:
    def test_takes_in_between_change_nothing(self):
        bench = Bench([0.5 * i for i in range(1, 9)], bus_every=7).opened()
        rows = []
        for _ in range(200):
            bench.poll(1)
            rows += bench.take()
        assert [row.age[0] for row in rows[:9]] == [0, 1, 2, 3, 4, 5, 6, 0, 1]
        assert len(rows) > 130
        assert all(row.shunt == [2500 * i for i in range(1, 9)] for row in rows)
        assert all(code >> 3 == 3000 for row in rows for code in row.bus)

    def test_a_pointer_that_a_reset_moved_never_gives_a_value(self):
        bench = Bench(bus_every=100).opened()
        bench.poll(3)
        bench.bus.brown_out(0x42)
        rows = bench.scan(1000)
        # CONFIG in the place of SHUNT would be 0x399f or 14751.
        assert all(row.flags[2] & BAD or row.shunt[2] == 5000 for row in rows)
        assert rows[-1].flags[2] == 0


class TestFlags:
    @pytest.mark.parametrize("sign", [1, -1])
    def test_every_type_saturates_at_its_own_range(self, sign):
        bench = Bench([sign * a for a in (6.41, 4.1, 8.2, 3.3, 0.1, 8.2)], sensors=MIXED, period_ns=4 * MS).opened()
        row = bench.scan(1)[0]
        assert row.flags == [Flag.SATURATED] * 4 + [0, Flag.SATURATED]
        assert row.shunt[0] == sign * 32000

    def test_overflow_leaves_the_codes_good(self):
        decoder, flags = Decoder([ChipSettings()]), array("H", [0])
        raw = (3000 << 3 | CNVR | OVF).to_bytes(2, "big") + (15_000).to_bytes(2, "big")
        shunt, bus = decoder.codes(raw)
        decoder.flag(flags, shunt, bus)
        assert (flags[0], shunt[0], bus[0] >> 3) == (Flag.OVERFLOW, 15_000, 3000)

    def test_scans_faster_than_conversions_are_stale(self):
        bench = Bench(sensors=eight(shunt_adc="avg8", bus_adc="12bit")).opened()
        flags = [row.flags[0] for row in bench.scan(30)]
        # A conversion takes at most 5.27 ms: every third scan, 6 ms apart, has one of its own.
        assert flags == [0, Flag.STALE, Flag.STALE] * 10

    def test_scans_that_did_not_take_place_are_missing_readings(self):
        bench = Bench().opened()
        bench.poll(3)
        bench.clock.sleep_until(bench.clock.now_ns() + 8 * MS)
        rows = bench.scan(3)
        assert [row.flags[0] for row in rows] == [0, 0, 0, *[Flag.MISSING] * 4, 0, 0, 0]
        for i in range(8):
            times = [row.t_ns[i] for row in rows]
            assert all(1.5 * MS < b - a < 2.5 * MS for a, b in pairwise(times))

    def test_times_never_go_back_where_the_first_scan_was_held_up(self):
        bench = Bench().opened()
        bench.bus.delay_ns = 12 * MS
        bench.poll(1)
        bench.bus.delay_ns = 0
        bench.clock.sleep_until(bench.clock.now_ns() + MS)
        rows = bench.scan(4)
        assert Flag.MISSING in [row.flags[0] for row in rows]
        for i in range(8):
            assert all(a < b for a, b in pairwise(row.t_ns[i] for row in rows))

    @pytest.mark.parametrize("scans_before", [0, 5])
    def test_a_transfer_of_unknown_moment_is_no_reading(self, scans_before):
        bench = Bench().opened()
        bench.poll(scans_before)
        bench.bus.delay_ns = MS
        assert [row.flags[0] for row in bench.scan(2)] == [0] * scans_before + [Flag.MISSING, 0]

    def test_a_reading_is_given_out_when_its_chip_was_read_back_after_it(self):
        bench = Bench().opened()
        bench.poll(5)
        assert bench.take() == []
        bench.poll(100)
        assert 50 <= len(bench.take()) < 105


class PlayedChip(SimChip):
    """A chip that another processor plays: it shows RST until that one gets to it, ``late_ns`` after it was asked."""

    def __init__(self, late_ns: int) -> None:
        super().__init__("INA219", [Load(lambda _begin, _end: 1.0, 12.0, SHUNT_OHM)], t_ns=0)
        self.late_ns = late_ns
        self.asked_ns: int | None = None
        self.looks = 0

    def write_word(self, register: int, word: int, t_ns: int) -> None:
        if register == 0 and word & RST:
            self.select(register)
            self.asked_ns = t_ns
        else:
            super().write_word(register, word, t_ns)

    def read_word(self, t_ns: int) -> int:
        if self.asked_ns is not None and t_ns >= self.asked_ns + self.late_ns:
            pointer, self.asked_ns = self._pointer, None
            self.reset(t_ns)
            self.select(pointer)
        if self.asked_ns is None or self._pointer != 0:
            return super().read_word(t_ns)
        self.looks += 1
        return RST


class TestOpening:
    """What passes by itself within a second is no reason not to begin."""

    def test_a_chip_whose_reset_is_late_is_waited_for(self):
        bench = Bench(sensors=eight()[:1])
        bench.bus.chips[0x40] = chip = PlayedChip(20 * MS)
        bench.opened()
        assert chip.looks > 10, "its reset was late"
        assert not bench.scanner.troubles
        assert not any(any(row.flags) for row in bench.scan(3))

    def test_a_chip_that_never_resets_is_said_within_two_seconds(self):
        bench = Bench(sensors=eight()[:1])
        bench.bus.chips[0x40] = PlayedChip(60_000 * MS)
        began_ns = bench.clock.now_ns()
        with pytest.raises(SensorError, match="is no INA219: register 0x00 is 0x8000"):
            bench.opened()
        assert bench.clock.now_ns() - began_ns < 2000 * MS

    @pytest.mark.parametrize("combines", [True, False])
    def test_a_bus_that_another_master_has_is_asked_again(self, combines, monkeypatch):
        """Two transfers fail, wherever in the opening: it begins, with all its chips."""
        monkeypatch.setattr(scanner, "CYCLES", 1)  # one more is read as the one before
        errors = errno.EAGAIN, errno.EREMOTEIO, errno.ETIMEDOUT
        first, failed = 0, 2
        while failed:
            transfers, failed = count(), 0

            def before(_end_ns, transfers=transfers, first=first):
                nonlocal failed
                if first <= next(transfers) < first + 2:
                    failed += 1
                    raise OSError(errors[first % 3], "lost to another master")

            bench = Bench(sensors=eight()[:2], before=before, combines=combines).opened()
            assert bench.scanner.combined == combines
            assert not bench.scanner.troubles, f"transfers {first} and {first + 1} failed"
            first += 1
        assert first > 10, "each transfer of the opening failed once"


class TestFaults:
    def test_one_failed_transfer_costs_one_reading(self):
        bench = Bench([0.5 + 0.5 * i for i in range(8)]).opened()
        bench.poll(2)
        bench.bus.fail(0x43, 3)
        rows = bench.scan(6)
        bad = [(k, i) for k, row in enumerate(rows) for i, flag in enumerate(row.flags) if flag & Flag.IO_ERROR]
        # Combined and single read of the first scan fail, then the combined one of the second, whose retry works.
        assert bad == [(2, 3)]
        for k, row in enumerate(rows):
            assert all(row.shunt[i] == 2500 * (i + 1) or (k, i) in bad for i in range(8))
        assert rows[2].shunt[3] == 0
        for i in range(8):
            t = [row.t_ns[i] for row in rows]
            assert t == sorted(set(t))

    def test_a_dead_chip_does_not_slow_the_others_and_comes_back(self):
        bench = Bench().opened()
        bench.bus.fail(0x45, 10_000)
        bench.scan(20)
        began = bench.clock.now_ns()
        bench.scanner.scan()
        assert bench.clock.now_ns() - began < 8 * 2 * 48 * 2500
        assert 0x45 in bench.scanner.troubles
        assert bench.scanner.counts.given_up == 1
        assert bench.scanner.counts.failed_scans == 3
        assert bench.scanner.counts.failed_reads == 3
        assert bench.scan(1)[0].flags == [0, 0, 0, 0, 0, Flag.IO_ERROR, 0, 0]
        bench.bus.fail(0x45, 0)
        rows = bench.scan(900)
        flags = [row.flags[5] for row in rows]
        back = flags.index(next(f for f in flags if f != Flag.IO_ERROR))
        assert back < 620
        assert not any(flags[back + 3 :])
        assert not bench.scanner.troubles
        assert bench.scanner.counts.set_up_again == 1
        assert not any(any(row.flags[:5] + row.flags[6:]) for row in rows)

    def test_absent_and_wrong_chips_at_the_start(self):
        sensors = [Sensor("a", 0x40, "INA226"), Sensor("b", 0x41, "INA228"), Sensor("c", 0x42), Sensor("d", 0x43)]
        bench = Bench(sensors=sensors)
        bench.bus.chips[0x41], bench.bus.chips[0x42] = SimChip("INA3221", []), SimChip("INA226", [])
        assert bench.scanner.open() == (0x41, 0x42)
        assert "INA219" in bench.scanner.troubles[0x42]
        assert bench.scan(3)[-1].flags == [0, Flag.IO_ERROR, Flag.IO_ERROR, 0]
        bench.bus.chips.clear()
        with pytest.raises(SensorError, match="0x40"):
            Bench.opened(bench)

    def test_a_bus_that_dies_and_one_that_is_stuck(self):
        bench = Bench().opened()
        bench.scan(5)
        bench.bus.chips.clear()
        with pytest.raises(SensorError):
            bench.scan(20)
        assert [row.flags for row in bench.take()] == [[Flag.IO_ERROR] * 8] * 3
        bench = Bench().opened()
        began = bench.clock.now_ns()
        bench.bus.stuck_until_ns = began + 60_000 * MS
        with pytest.raises(SensorError):
            bench.scan(100)
        assert bench.clock.now_ns() - began < 2000 * MS

    @pytest.mark.parametrize("address", [s.address for s in MIXED if s.channel == 1])
    def test_a_brown_out_is_flagged_from_its_moment_on_and_repaired(self, address):
        bench = Bench([0.5] * 6, sensors=MIXED, period_ns=4 * MS).opened()
        bench.poll(103)
        bench.bus.brown_out(address)
        rows = bench.scan(100)
        rows = rows[-100:]
        lines = [i for i, s in enumerate(MIXED) if s.address == address]
        flagged = [k for k, row in enumerate(rows) if row.flags[lines[0]] & Flag.RESET]
        assert flagged == list(range(len(flagged)))
        assert 0 < len(flagged) < 45
        for row in rows:
            for i in lines:
                assert row.flags[i] & BAD or abs(bench.power_w(row, i) - 6.0) < 0.02
            assert not any(f for i, f in enumerate(row.flags) if i not in lines)
        assert bench.scanner.counts.set_up_again == bench.scanner.counts.lost_settings == 1

    @settings(max_examples=15, deadline=None)
    @given(
        st.lists(
            st.tuples(st.integers(0, 4), st.integers(1, 5), st.sampled_from([errno.EIO, errno.EREMOTEIO, 0])),
            max_size=12,
        ),
        st.sampled_from([1, 3]),
        st.booleans(),
    )
    def test_faults_never_make_a_wrong_value(self, faults, bus_every, combines):
        bench = Bench([1.0] * 6, sensors=MIXED, bus_every=bus_every, combines=combines, period_ns=4 * MS).opened()
        made = []
        for address, transfers, error in faults:
            if error:
                bench.bus.fail(0x40 + address, transfers, error)
            else:
                bench.bus.brown_out(0x40 + address)
            bench.poll(4)
            made += bench.take()
        made += bench.scan(30)
        assert len(made) == 4 * len(faults) + 30
        for row in made:
            for i in range(6):
                assert row.flags[i] & BAD or abs(bench.power_w(row, i) - 12.0) < 0.03
                assert row.age[i] < bus_every


US = 1000
HOLDS = st.lists(st.tuples(st.integers(0, 60), st.one_of(st.integers(0, 3 * PERIOD), st.just(30 * MS))), max_size=25)
COMINGS_AND_GOINGS = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 7)), max_size=12)


@settings(max_examples=20, deadline=None)
@given(HOLDS, COMINGS_AND_GOINGS, st.booleans(), st.sampled_from([1, 4]), st.sampled_from([0, 400 * US]))
def test_times_increase_and_no_scan_is_missing_in_silence(holds_ns, comings_and_goings, combines, bus_every, read_ns):
    """Whatever holds the process up, between transfers or in the middle of one, while chips come and go; also where
    each read is timed by itself."""
    ramp = [lambda t0, t1: ((t0 + t1) / 2 - 1e9) * 1e-9] * 8
    clock = HeldUpClock()
    bench = Bench(ramp, clock=clock, combines=combines, bus_every=bus_every, read_ns=read_ns).opened()
    clock.holds_ns, rows, scans = holds_ns, [], 0
    deadlines = Deadlines(clock.now_ns(), PERIOD)
    for pause, at in [*comings_and_goings, (20, 0)]:
        for _ in range(pause):
            clock.sleep_until(deadlines.next_ns)
            deadlines.meet(clock.now_ns())
            bench.scanner.scan()
            rows, scans = rows + bench.take(), scans + 1
        if (chip := bench.bus.chips.pop(0x40 + at, None)) is None:
            bench.chips[0x40 + at].reset(clock.now_ns())
            bench.bus.chips[0x40 + at] = bench.chips[0x40 + at]
        else:
            assert chip is bench.chips[0x40 + at]
    bench.scanner.finish(bench.builder)
    rows += bench.rows()
    assert len(rows) == scans + bench.scanner.counts.missing_scans
    accuracy = bench.stream.lines[0].accuracy
    most_ns = 2 * accuracy.centre_ns + 200 * US  # what a code's step and a late transfer may add
    for i in range(8):
        times = [row.t_ns[i] for row in rows]
        assert all(0 < b - a < 2 * PERIOD or (bus_every > 1 and b > a) for a, b in pairwise(times))
        for row in rows:
            assert row.flags[i] & BAD or abs(row.t_ns[i] - (1e9 + row.shunt[i] * 1e-5 / SHUNT_OHM * 1e9)) <= most_ns


@pytest.mark.parametrize("read_ns", [0, 12 * MS])
def test_a_slow_adapter_is_usable_where_its_reads_are_timed(read_ns):
    """Reads of 8.6 ms and now and then 3 ms more: a whole scan's moment is not known to a millisecond, one read's is to
    half of what it may take."""
    clock = HeldUpClock()
    bench = Bench(clock=clock, scl_hz=5639, period_ns=200 * MS, read_ns=read_ns)
    bench.scanner.open()
    clock.holds_ns = [(7, 3 * MS)] * 60
    rows = bench.scan(12)
    bad = sum(bool(flags & BAD) for row in rows for flags in row.flags)
    assert bad > 80 if read_ns == 0 else bad == 0
    assert bench.stream.lines[0].accuracy.shared_centre_ns == read_ns // 2


def test_an_unfinished_confirmation_is_not_given_out_as_good():
    bench = Bench().opened()
    bench.poll(3)
    bench.bus.fail(0x44, 1)
    bench.scanner.finish(bench.builder)
    assert [row.flags[4] for row in bench.rows()] == [Flag.IO_ERROR] * 3


def ratio(clock_error, chosen, hold_ns=0, every=1):
    """What is measured of a chip's cycle while every so many reads are held up, as on a busy machine."""
    clock = VirtualClock()
    load = Load(lambda *_: 1.0, 12.0, 0.05)
    chip = SimChip(chosen.type, [load], errors=ChipErrors(clock=clock_error), t_ns=clock.now_ns())
    bus, reads = SimBus(clock, {0x40: chip}), count(1)
    for register, word in chosen.words:
        bus.write_word(0x40, register, word)
    prepare = bus.prepare

    def held_up(wanted):
        call = prepare(wanted)

        def read():
            words = call()
            if next(reads) % every == 0:
                clock.sleep_until(clock.now_ns() + hold_ns)
            return words

        return read

    bus.prepare = held_up
    begun_ns = clock.now_ns()
    measured = cycle_ratio(bus, clock, 0x40, chosen)
    assert clock.now_ns() - begun_ns < 200_000_000
    return measured


@settings(max_examples=15, deadline=None)
@given(st.floats(-0.1, 0.1), st.sampled_from([("avg2", "10bit"), ("12bit", "12bit"), ("12bit", "9bit")]))
def test_the_cycle_is_known_to_a_hundredth(error, adcs):
    assert ratio(error, ChipSettings("INA219", *adcs)) == pytest.approx(1 + error, abs=0.01)


def test_a_process_that_is_held_up_gives_no_wrong_cycle():
    for error in (-0.08, 0.0, 0.08):
        assert ratio(error, ChipSettings(), 3_000_000, 101) == pytest.approx(1 + error, abs=0.02)


@pytest.mark.parametrize("chosen", [("INA219", "avg128", "12bit"), ("INA219", "9bit", "9bit"), ("INA226",)])
def test_a_cycle_that_cannot_be_told_is_taken_as_nominal(chosen):
    assert ratio(0.08, ChipSettings(*chosen)) == 1.0
