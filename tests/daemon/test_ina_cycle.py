"""A chip's own conversion cycle, told by CNVR."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerd_daemon.sources.ina.chips import Settings
from powerd_daemon.sources.ina.scanner import cycle_ratio
from powerd_daemon.sources.sim.bus import SimBus, VirtualClock
from powerd_daemon.sources.sim.chip import ChipErrors, Load, SimChip

ADDRESS = 0x40


def ina219(shunt_adc, bus_adc):
    return Settings(shunt_adc=shunt_adc, bus_adc=bus_adc)


def bank(rate, chosen, clock):
    load = Load(lambda *_: 1.0, 12.0, 0.05)
    loads = [load] * len(chosen.type.channels)
    chip = SimChip(chosen.type, loads, errors=ChipErrors(clock=rate), t_ns=clock.now_ns())
    bus = SimBus(clock, {ADDRESS: chip})
    for register, word in chosen.words:
        bus.write_word(ADDRESS, register, word)
    return bus


@settings(max_examples=40, deadline=None)
@given(
    st.floats(-0.1, 0.1),
    st.sampled_from([ina219("avg2", "10bit"), ina219("12bit", "12bit"), ina219("12bit", "9bit")]),
)
def test_the_cycle_is_known_to_a_hundredth(rate, chosen):
    clock = VirtualClock()
    assert cycle_ratio(bank(rate, chosen, clock), clock, ADDRESS, chosen) == pytest.approx(1 + rate, abs=0.01)


class Sleepy:
    """A bus of which every so many reads are held up, as on a busy machine."""

    def __init__(self, bus, clock, hold_ns, every):
        self.bus, self.clock, self.hold_ns, self.every, self.reads = bus, clock, hold_ns, every, 0

    def prepare(self, reads):
        call = self.bus.prepare(reads)

        def held_up():
            found = call()
            self.reads += 1
            if self.reads % self.every == 0:
                self.clock.sleep_until(self.clock.now_ns() + self.hold_ns)
            return found

        return held_up


def test_a_process_that_is_held_up_gives_no_wrong_cycle():
    chosen = ina219("avg2", "10bit")
    for rate in (-0.08, 0.0, 0.08):
        clock = VirtualClock()
        ratio = cycle_ratio(Sleepy(bank(rate, chosen, clock), clock, 3_000_000, 101), clock, ADDRESS, chosen)
        assert ratio == pytest.approx(1 + rate, abs=0.02)


@pytest.mark.parametrize("chosen", [ina219("avg128", "12bit"), ina219("9bit", "9bit")])
def test_cycles_too_long_or_too_short_to_be_told_are_taken_as_nominal(chosen):
    clock = VirtualClock()
    begun_ns = clock.now_ns()
    assert cycle_ratio(bank(0.08, chosen, clock), clock, ADDRESS, chosen) == 1.0
    assert clock.now_ns() - begun_ns < 200_000_000


def test_other_types_are_taken_as_nominal():
    clock = VirtualClock()
    assert cycle_ratio(bank(0.05, Settings(chip="INA226"), clock), clock, ADDRESS, Settings(chip="INA226")) == 1.0
