"""The simulated chips keep to the data sheets' rules: pointer, read-only bits, conversions, flags, NACK, faults."""

import errno

import pytest

from powerd_daemon.sources.ina.bus import Read
from powerd_daemon.sources.ina.chips import CHIPS, CNVR, ChipSettings
from powerd_daemon.sources.sim.bus import KINDS, Faults, Load, SimBus, SimChip, VirtualClock

CONFIG, SHUNT, BUS, POWER = range(4)
ONE_OHM_12V = 0x39C7
"""12 bits both, by the second code of the shunt converter."""
MS = 1_000_000


def chip(mean_a=lambda t0, t1: 0.1, *, kind="INA219", bus_v=12.0, **more) -> SimChip:
    return SimChip(kind, [Load(mean_a, bus_v, 1.0)] * len(CHIPS[kind].channels), **more)


def read(chip: SimChip, register: int, t_ns: int) -> int:
    chip.select(register)
    return chip.read_word(t_ns)


def write(chip: SimChip, settings: ChipSettings, t_ns: int = 0) -> SimChip:
    for register, word in settings.words:
        chip.write_word(register, word, t_ns)
    return chip


def signed(word: int, bits: int = 16) -> int:
    return word - (1 << bits) if word >> (bits - 1) else word


@pytest.mark.parametrize("kind", CHIPS)
def test_reset_values_identities_and_read_only_registers(kind):
    c = chip(kind=kind)
    for register, value in c.type.resets.items():
        assert read(c, register, 0) == value
    for register, value, _ in c.type.identity:
        c.write_word(register, 0x1234, 0)
        assert read(c, register, 0) == value
    for pair in c.type.channels:
        for register in pair:
            c.write_word(register, 0x1234, 0)
            assert read(c, register, 0) == 0


def test_the_shunt_holds_the_average_over_its_window_only():
    windows = []

    def mean_a(t0, t1):
        windows.append((t0, t1))
        return 0.05 * len(windows)

    c = write(chip(mean_a), ChipSettings("INA219", "avg2", "9bit"))
    cycle = 1_060_000 + 84_000
    assert read(c, SHUNT, 1_059_999) == 0
    assert read(c, SHUNT, 1_060_000) == 5000
    assert read(c, SHUNT, cycle + 1_059_999) == 5000
    assert read(c, SHUNT, cycle + 1_060_000) == 10000
    assert windows == [(0, 1_060_000), (cycle, cycle + 1_060_000)]


def test_the_others_average_over_the_sequence_and_renew_at_its_end():
    windows = []

    def mean_a(t0, t1):
        windows.append((t0, t1))
        return 0.01 * len(windows)

    c = write(chip(mean_a, kind="INA226"), ChipSettings("INA226", "140us", "204us", 4))
    assert read(c, SHUNT, 4 * 344_000 - 1) == 0
    assert read(c, SHUNT, 4 * 344_000) == 10000  # the mean of 10, 20, 30 and 40 mV
    assert windows == [(n * 344_000, n * 344_000 + 140_000) for n in range(4)]


def test_cnvr_is_sticky_until_power_is_read_or_the_mode_is_written():
    c = chip()
    c.write_word(CONFIG, ONE_OHM_12V, 0)
    assert read(c, BUS, 1_063_999) & CNVR == 0
    for t_ns in (1_064_000, 1_100_000, 1_200_000):
        assert read(c, BUS, t_ns) & CNVR
    read(c, POWER, 1_300_000)
    assert read(c, BUS, 1_400_000) & CNVR == 0
    assert read(c, BUS, 2_200_000) & CNVR
    c.write_word(CONFIG, ONE_OHM_12V, 2_300_000)
    assert read(c, BUS, 2_400_000) & CNVR == 0


@pytest.mark.parametrize("name", ["40mV", "320mV"])
def test_shunt_and_bus_clip_at_their_ranges(name):
    settings = ChipSettings("INA219", "12bit", "12bit", shunt_range=name, bus_range="16V")
    c = write(chip(lambda t0, t1: -0.5, bus_v=20.0), settings)
    assert signed(read(c, SHUNT, 2 * MS)) == -int(name[:-2]) * 100
    assert read(c, BUS, 2 * MS) >> 3 == 4000


class TestBus:
    def test_a_transaction_takes_its_clock_periods(self):
        clock = VirtualClock(0)
        bus = SimBus(clock, {0x40: chip()}, scl_hz=400_000)
        bus.prepare([Read(0x40, 0), Read(0x40, 5)])()
        assert (clock.now_ns(), bus.periods) == (95 * 2500, 95)
        bus.write_word(0x40, 5, 2)
        assert clock.now_ns() == (95.5 + 38) * 2500

    def test_a_kept_pointer_costs_29_periods_and_reads_where_it_stands(self):
        clock = VirtualClock(0)
        bus = SimBus(clock, {0x40: chip()}, scl_hz=400_000)
        bus.prepare([Read(0x40, 5)])()
        began = bus.periods
        assert bytes(bus.prepare([Read(0x40, None)])()) == b"\0\0"
        assert bus.periods - began == 29

    def test_an_absent_address_is_not_acknowledged_and_a_fault_lasts_as_long_as_asked(self):
        bus = SimBus(VirtualClock(), {0x40: chip()})
        absent, present = bus.prepare([Read(0x40, 0), Read(0x41, 0)]), bus.prepare([Read(0x40, 0)])
        for call in (absent, lambda: bus.write_word(0x41, 0, 0)):
            with pytest.raises(OSError, match="0x41"):
                call()
        bus.fail(0x40, 2, errno.EIO)
        for _ in range(2):
            with pytest.raises(OSError, match="0x40") as caught:
                present()
            assert caught.value.errno == errno.EIO
        assert present()

    def test_the_restriction_of_bcm2835(self):
        bus = SimBus(VirtualClock(), {0x40: chip()}, combines=False)
        assert bus.prepare([Read(0x40, 0)])()
        with pytest.raises(OSError, match="combine") as caught:
            bus.prepare([Read(0x40, 0), Read(0x40, 1)])()
        assert caught.value.errno == errno.EOPNOTSUPP

    def test_a_stuck_bus_times_out(self):
        clock = VirtualClock(0)
        bus = SimBus(clock, {0x40: chip()})
        bus.stuck_until_ns = 50 * MS
        for _ in range(3):
            with pytest.raises(TimeoutError):
                bus.prepare([Read(0x40, 0)])()
        assert clock.now_ns() == 60 * MS
        assert bus.prepare([Read(0x40, 0)])()


def test_the_schedule_of_faults_follows_the_seed_and_everything_happens():
    def run(seed):
        clock = VirtualClock()
        bus = SimBus(clock, {0x40 + i: chip() for i in range(4)})
        bus.trouble = faults = Faults(seed, every_s=1.0, t0_ns=clock.now_ns())
        calls, errors = [bus.prepare([Read(0x40 + i, 0)]) for i in range(4)], []
        for k in range(2000):
            clock.sleep_until(clock.now_ns() + 50 * MS)
            try:
                calls[k % 4]()
            except OSError as error:
                errors.append((k, error.errno))
        return faults, errors, bus

    faults, errors, bus = run(3)
    assert set(faults.counts) == set(KINDS)
    assert 70 < sum(faults.counts.values()) < 135
    assert errors == run(3)[1] != run(4)[1]
    assert len(bus.chips) >= 3
