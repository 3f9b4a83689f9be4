"""`powerd scan` on simulated chips: what they are, and that nothing is disturbed."""

from __future__ import annotations

import tomllib
from contextlib import nullcontext

import pytest

from powerd_core.serde import build_options
from powerd_daemon import scan as scan_module
from powerd_daemon.cli import main
from powerd_daemon.scan import scan_bus
from powerd_daemon.sources.ina.bus import Read, ReadWords
from powerd_daemon.sources.ina.chips import CHIPS, ChipSettings
from powerd_daemon.sources.ina.source import InaOptions
from powerd_daemon.sources.sim.bus import Load, SimBus, SimChip, VirtualClock

POWER = 3


class Watched(SimBus):
    """Counts what is written and which registers are read."""

    def __init__(self, clock: VirtualClock, chips: dict[int, SimChip]) -> None:
        super().__init__(clock, chips)
        self.asked: set[tuple[int, int | None]] = set()
        self.written = 0

    def prepare(self, reads: object) -> ReadWords:
        made = [Read(*r) for r in reads]  # type: ignore[attr-defined]
        self.asked |= {(r.address, r.register) for r in made}
        return super().prepare(made)

    def write_word(self, address: int, register: int, word: int) -> None:
        self.written += 1
        super().write_word(address, register, word)


def chip(name: str) -> SimChip:
    return SimChip(name, [Load(lambda _a, _b: 2.0, 12.0, 0.05)] * len(CHIPS[name].channels))


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def bus(clock: VirtualClock) -> Watched:
    names = ("INA219", "INA226", "INA228", "INA3221")
    made = Watched(clock, {0x40 + i: chip(name) for i, name in enumerate(names)})
    clock.sleep_until(clock.now_ns() + 1_000_000_000)
    return made


def test_every_type_is_recognised_and_nothing_is_disturbed(bus: Watched) -> None:
    answers = scan_bus(bus, 1)
    types = ("INA219", "INA226", "INA228", "INA3221")
    assert [(a.bus, a.address, a.chip) for a in answers] == [(1, 0x40 + i, name) for i, name in enumerate(types)]
    assert [len(a.channels) for a in answers] == [1, 1, 1, 3]
    assert all(c.bus_v == pytest.approx(12.0, rel=0.02) for a in answers for c in a.channels)
    assert answers[0].channels[0].shunt_v == pytest.approx(0.1, rel=0.02)
    assert bus.written == 0
    assert (0x40, POWER) not in bus.asked
    assert {register for address, register in bus.asked if address > 0x43} == {0}, "silent addresses are asked once"


@pytest.mark.parametrize("settings", [ChipSettings(), ChipSettings(shunt_adc="12bit", bus_adc="12bit")])
def test_an_ina219_that_was_set_up_is_still_recognised(
    bus: Watched, clock: VirtualClock, settings: ChipSettings
) -> None:
    for register, word in settings.words:
        bus.write_word(0x40, register, word)
    clock.sleep_until(clock.now_ns() + 1_000_000_000)
    (found,) = (a for a in scan_bus(bus, 1) if a.address == 0x40)
    assert found.chip == "INA219"
    assert found.config == settings.words[0][1]
    assert "probably" in found.how


def test_the_command_and_its_toml(
    bus: Watched, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    buses = {1: bus, 2: SimBus(VirtualClock(), {})}
    monkeypatch.setattr(scan_module, "open_bus", lambda number: nullcontext(buses[number]))
    assert main(["scan", "1", "2"]) == 0
    said = capsys.readouterr().out
    assert "0x43     INA3221" in said
    assert "nothing answers at 0x40 to 0x4f of i2c-2" in said
    assert main(["scan", "1", "--toml"]) == 0
    (source,) = tomllib.loads(capsys.readouterr().out)["source"]
    assert (source.pop("kind"), source.pop("name")) == ("ina", "i2c-1")
    sensors = build_options(InaOptions, source, "").sensors
    assert [(s.chip, s.address, s.channel) for s in sensors[-3:]] == [("INA3221", 0x43, n) for n in (1, 2, 3)]
    assert {s.nominal_v for s in sensors} == {12.0}
    assert len({s.name for s in sensors}) == 6
