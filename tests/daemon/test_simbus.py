"""The simulated chip keeps to the data sheet's rules: pointer, read-only bits, conversions, CNVR, OVF, NACK."""

import pytest

from powerd_daemon.ina.ina219 import CNVR, OVF, RESET_CONFIG, RST, Register, Settings
from powerd_daemon.sim.bus import SimBus
from powerd_daemon.sim.chip import ChipErrors, SimIna219, draw_errors
from powerd_daemon.sim.clock import VirtualClock

ONE_OHM_12V = Settings("12bit", "12bit")
MS = 1_000_000


def chip(mean_a=lambda t0, t1: 0.1, **more) -> SimIna219:
    return SimIna219(mean_a, **({"bus_v": 12.0, "shunt_ohm": 1.0} | more))


def read(chip: SimIna219, register: int, t_ns: int) -> int:
    chip.select(register)
    return chip.read_word(t_ns)


def signed(word: int) -> int:
    return word - 65536 if word & 0x8000 else word


def test_reset_values_and_read_only_registers():
    c = chip()
    assert [read(c, r, 0) for r in range(6)] == [RESET_CONFIG, 0, 0, 0, 0, 0]
    for register in (Register.SHUNT, Register.BUS, Register.POWER, Register.CURRENT):
        c.write_word(register, 0x1234, 0)
        assert read(c, register, 0) == 0
    c.write_word(Register.CALIBRATION, 0xFFFF, 0)
    assert read(c, Register.CALIBRATION, 0) == 0xFFFE
    c.write_word(Register.CONFIG, 0x7FFF, 0)
    assert read(c, Register.CONFIG, 0) == 0x3FFF


def test_rst_restores_everything_and_clears_itself():
    c = chip()
    c.write_word(Register.CALIBRATION, 0x1000, 0)
    c.write_word(Register.CONFIG, ONE_OHM_12V.word | RST, 0)
    assert read(c, Register.CONFIG, 0) == RESET_CONFIG
    assert read(c, Register.CALIBRATION, 0) == 0


def test_the_pointer_is_kept():
    c = chip()
    c.write_word(Register.CONFIG, ONE_OHM_12V.word, 0)
    c.select(Register.BUS)
    assert c.read_word(2 * MS) == c.read_word(2 * MS) == (3000 << 3) | CNVR
    c.write_word(Register.CALIBRATION, 8, 2 * MS)
    assert c.read_word(2 * MS) == 8


def test_the_shunt_holds_the_average_over_its_window_only():
    windows = []

    def mean_a(t0, t1):
        windows.append((t0, t1))
        return 0.05 * len(windows)

    c = chip(mean_a)
    c.write_word(Register.CONFIG, Settings("avg2", "9bit").word, 0)
    cycle = 1_060_000 + 84_000
    assert read(c, Register.SHUNT, 1_059_999) == 0
    assert read(c, Register.SHUNT, 1_060_000) == 5000
    assert read(c, Register.SHUNT, cycle + 1_059_999) == 5000
    assert read(c, Register.SHUNT, cycle + 1_060_000) == 10000
    assert windows == [(0, 1_060_000), (cycle, cycle + 1_060_000)]


def test_the_conversion_clock_may_be_off():
    c = chip(errors=ChipErrors(clock=0.1))
    c.write_word(Register.CONFIG, ONE_OHM_12V.word, 0)
    assert read(c, Register.SHUNT, 585_000) == 0
    assert read(c, Register.SHUNT, 586_000) == 10000


def test_cnvr_is_sticky_until_power_is_read_or_the_mode_is_written():
    c = chip()
    c.write_word(Register.CONFIG, ONE_OHM_12V.word, 0)
    assert read(c, Register.BUS, 1_063_999) & CNVR == 0
    for t_ns in (1_064_000, 1_100_000, 1_200_000):
        assert read(c, Register.BUS, t_ns) & CNVR
    read(c, Register.POWER, 1_300_000)
    assert read(c, Register.BUS, 1_400_000) & CNVR == 0
    assert read(c, Register.BUS, 2_200_000) & CNVR
    c.write_word(Register.CONFIG, ONE_OHM_12V.word, 2_300_000)
    assert read(c, Register.BUS, 2_400_000) & CNVR == 0


@pytest.mark.parametrize(("range_mv", "full_scale"), [(40, 4000), (80, 8000), (160, 16000), (320, 32000)])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_amplifier_clips_at_its_range(range_mv, full_scale, sign):
    c = chip(lambda t0, t1: sign * 0.5)
    c.write_word(Register.CONFIG, Settings("12bit", "12bit", range_mv).word, 0)
    assert signed(read(c, Register.SHUNT, 2 * MS)) == sign * full_scale


def test_the_bus_clips_at_its_range():
    c = chip(bus_v=20.0)
    c.write_word(Register.CONFIG, Settings("12bit", "12bit", bus_range_v=16).word, 0)
    assert read(c, Register.BUS, 2 * MS) >> 3 == 4000


def test_coarse_resolution_makes_coarse_codes():
    c = chip(lambda t0, t1: 0.10003, bus_v=12.01)
    c.write_word(Register.CONFIG, Settings("9bit", "10bit").word, 0)
    assert read(c, Register.SHUNT, 2 * MS) == 10000
    assert read(c, Register.BUS, 2 * MS) >> 3 == 3004


def test_current_and_power_follow_the_equations():
    c = chip()
    c.write_word(Register.CALIBRATION, 4096, 0)
    c.write_word(Register.CONFIG, ONE_OHM_12V.word, 0)
    assert read(c, Register.CURRENT, 2 * MS) == 10000
    assert read(c, Register.POWER, 2 * MS) == 10000 * 3000 // 5000
    assert not read(c, Register.BUS, 2 * MS) & OVF


def test_overflow_concerns_current_and_power_alone():
    c = chip(lambda t0, t1: 0.3)
    c.write_word(Register.CALIBRATION, 0xFFFE, 0)
    c.write_word(Register.CONFIG, ONE_OHM_12V.word, 0)
    assert read(c, Register.BUS, 2 * MS) == (3000 << 3) | CNVR | OVF
    assert read(c, Register.SHUNT, 2 * MS) == 30000


@pytest.mark.parametrize("mode", [0, 4])
def test_a_chip_that_sleeps_keeps_its_registers(mode):
    c = chip()
    c.write_word(Register.CONFIG, ONE_OHM_12V.word & ~7 | mode, 0)
    assert read(c, Register.SHUNT, 5 * MS) == 0
    assert read(c, Register.BUS, 5 * MS) == 0


def test_a_triggered_conversion_happens_once():
    calls = []
    c = chip(lambda t0, t1: calls.append((t0, t1)) or 0.1)
    c.write_word(Register.CONFIG, ONE_OHM_12V.word & ~7 | 3, 0)
    for t_ms in (2, 4, 6):
        assert read(c, Register.SHUNT, t_ms * MS) == 10000
    assert calls == [(0, 532_000)]


def test_drawn_errors_stay_within_the_limits_and_follow_the_seed():
    from random import Random

    settings = Settings()
    drawn = [draw_errors(Random(seed), settings, shunt_tolerance=0.02) for seed in range(200)]
    assert draw_errors(Random(7), settings, shunt_tolerance=0.02) == drawn[7]
    assert 0.009 < max(abs(e.current_gain) for e in drawn) <= 0.01
    assert 180e-6 < max(abs(e.offset_v) for e in drawn) <= 200e-6
    assert 0.018 < max(abs(e.shunt_gain) for e in drawn) <= 0.02
    exact = draw_errors(Random(7), settings, exact=True)
    assert (exact.current_gain, exact.bus_gain, exact.offset_v, exact.shunt_gain) == (0, 0, 0, 0)
    assert exact.clock == drawn[7].clock != 0


class TestBus:
    def test_a_transaction_takes_its_clock_periods(self):
        clock = VirtualClock(0)
        bus = SimBus(clock, {0x40: chip()}, scl_hz=400_000)
        bus.prepare([(0x40, 0), (0x40, 5)])()
        assert clock.now_ns() == 2 * 48 * 2500
        bus.write_word(0x40, 5, 2)
        assert clock.now_ns() == (2 * 48 + 38) * 2500

    def test_words_come_most_significant_byte_first(self):
        bus = SimBus(VirtualClock(), {0x40: chip()})
        assert bytes(bus.prepare([(0x40, 0)])()) == b"\x39\x9f"

    def test_an_absent_address_is_not_acknowledged(self):
        bus = SimBus(VirtualClock(), {0x40: chip()})
        with pytest.raises(OSError, match="0x41"):
            bus.prepare([(0x40, 0), (0x41, 0)])()
        with pytest.raises(OSError, match="0x41"):
            bus.write_word(0x41, 0, 0)

    def test_a_fault_lasts_as_many_transfers_as_asked(self):
        bus = SimBus(VirtualClock(), {0x40: chip()})
        read = bus.prepare([(0x40, 0)])
        bus.fail(0x40, 2)
        for _ in range(2):
            with pytest.raises(OSError, match="acknowledge"):
                read()
        assert read()

    def test_a_busy_bus_delays_the_next_transaction(self):
        clock = VirtualClock(0)
        bus = SimBus(clock, {0x40: chip()}, wake_early_ns=100_000)
        ends = []
        bus._before = ends.append
        read = bus.prepare([(0x40, 0)])
        read()
        read()
        assert ends == [120_000, 240_000]
        assert clock.now_ns() == 240_000  # woken early, it has waited awake

    def test_a_brown_out_forgets_the_settings(self):
        bus = SimBus(VirtualClock(), {0x40: chip()})
        bus.write_word(0x40, Register.CONFIG, ONE_OHM_12V.word)
        bus.brown_out(0x40)
        assert bytes(bus.prepare([(0x40, 0)])()) == b"\x39\x9f"
