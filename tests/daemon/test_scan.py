"""`powerd scan` on simulated chips: what they are, and that nothing is disturbed."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from powerd_core.errors import SensorError
from powerd_core.serde import build_options
from powerd_daemon import scan_command
from powerd_daemon.cli import main
from powerd_daemon.ina.bus import Read, ReadWords
from powerd_daemon.ina.chips import CHIPS
from powerd_daemon.ina.settings import Settings
from powerd_daemon.scan import Answer, buses, held_by_kernel, scan_bus, to_toml
from powerd_daemon.sim.bus import SimBus
from powerd_daemon.sim.chip import Load, SimChip
from powerd_daemon.sim.clock import VirtualClock
from powerd_daemon.sources.ina import InaOptions

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


def test_every_type_is_recognised_with_its_voltages(bus: Watched) -> None:
    answers = scan_bus(bus, 1)
    assert [(a.bus, a.address, a.chip) for a in answers] == [
        (1, 0x40, "INA219"),
        (1, 0x41, "INA226"),
        (1, 0x42, "INA228"),
        (1, 0x43, "INA3221"),
    ]
    assert [len(a.channels) for a in answers] == [1, 1, 1, 3]
    for answer in answers:
        for channel in answer.channels:
            assert channel.bus_v == pytest.approx(12.0, rel=0.02)
    assert answers[0].channels[0].shunt_v == pytest.approx(0.1, rel=0.02)
    assert answers[0].how == "reset value of CONFIG"


def test_nothing_is_written_and_power_is_never_read(bus: Watched) -> None:
    scan_bus(bus, 1)
    assert bus.written == 0
    assert (0x40, POWER) not in bus.asked
    assert {register for address, register in bus.asked if address > 0x43} == {0}, "silent addresses are asked once"


@pytest.mark.parametrize(
    "settings", [Settings(), Settings(shunt_adc="12bit", bus_adc="12bit"), Settings(shunt_adc="avg128")]
)
def test_an_ina219_that_was_set_up_is_still_recognised(bus: Watched, clock: VirtualClock, settings: Settings) -> None:
    for register, word in settings.words:
        bus.write_word(0x40, register, word)
    clock.sleep_until(clock.now_ns() + 1_000_000_000)
    (found,) = (a for a in scan_bus(bus, 1) if a.address == 0x40)
    assert found.chip == "INA219"
    assert found.config == settings.words[0][1]
    assert "probably" in found.how


class Imitation(SimChip):
    """Another device: answers every register with the same word."""

    word = 0xFFFF

    def read_word(self, t_ns: int) -> int:
        return self.word


@pytest.mark.parametrize(("word", "how"), [(0xFFFF, "not like"), (0x0000, "not like"), (0x5449, "Texas Instruments")])
def test_another_device_is_not_taken_for_one(clock: VirtualClock, word: int, how: str) -> None:
    other = Imitation("INA219", [Load(lambda _a, _b: 0.0, 0.0, 1.0)])
    other.word = word
    (found,) = scan_bus(SimBus(clock, {0x48: other}), 1)
    assert found.chip == ""
    assert how in found.how
    assert to_toml([found]) == ""


def test_what_the_kernel_holds_is_left_alone(bus: Watched, tmp_path: Path) -> None:
    devices = tmp_path / "sys/bus/i2c/devices"
    (devices / "1-0041").mkdir(parents=True)
    (tmp_path / "drivers/ina2xx").mkdir(parents=True)
    (devices / "1-0041/driver").symlink_to(tmp_path / "drivers/ina2xx")
    (devices / "1-0050").mkdir()
    assert held_by_kernel(1, tmp_path) == [(0x41, "ina2xx")]
    answers = {a.address: a for a in scan_bus(bus, 1, held_by_kernel(1, tmp_path))}
    assert answers[0x41].how == "held by the kernel's driver ina2xx"
    assert not {register for address, register in bus.asked if address == 0x41}


def test_buses_in_order(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    for name in ("i2c-10", "i2c-2", "i2c-x", "null"):
        (tmp_path / "dev" / name).touch()
    assert buses(tmp_path) == [2, 10]


def test_the_toml_is_ready_to_be_used(bus: Watched) -> None:
    sources = tomllib.loads(to_toml(scan_bus(bus, 1)))["source"]
    (source,) = sources
    assert (source.pop("kind"), source.pop("name")) == ("ina", "i2c-1")
    options = build_options(InaOptions, source, "")
    assert [(s.chip, s.address, s.channel, s.nominal_v) for s in options.sensors][-3:] == [
        ("INA3221", 0x43, 1, 12.0),
        ("INA3221", 0x43, 2, 12.0),
        ("INA3221", 0x43, 3, 12.0),
    ]
    assert len({s.name for s in options.sensors}) == 6


@pytest.mark.parametrize(("read_v", "nominal_v"), [(3.4, 3.3), (5.1, 5.0), (11.6, 12.0), (0.0, 12.0)])
def test_nominal_voltages_are_guessed(clock: VirtualClock, read_v: float, nominal_v: float) -> None:
    found = SimChip("INA219", [Load(lambda _a, _b: 1.0, read_v, 0.05)])
    bus = SimBus(clock, {0x40: found})
    clock.sleep_until(clock.now_ns() + 1_000_000_000)
    (source,) = tomllib.loads(to_toml(scan_bus(bus, 1)))["source"]
    assert source["sensors"][0]["nominal_v"] == nominal_v


def test_the_command(bus: Watched, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    @contextmanager
    def opened(number: int) -> Iterator[SimBus]:
        yield bus if number == 1 else SimBus(VirtualClock(), {})

    monkeypatch.setattr(scan_command, "open_bus", opened)
    assert main(["scan", "1", "2"]) == 0
    said = capsys.readouterr().out
    assert "0x43     INA3221" in said
    assert "nothing answers at 0x40 to 0x4f of i2c-2" in said
    assert main(["scan", "1", "--toml"]) == 0
    assert tomllib.loads(capsys.readouterr().out)["source"]


def test_a_bus_that_cannot_be_opened_is_not_called_silent(
    bus: Watched, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def opened(number: int) -> Iterator[SimBus]:
        if number == 9:
            raise SensorError("/dev/i2c-9 cannot be opened")
        yield bus

    monkeypatch.setattr(scan_command, "open_bus", opened)
    assert main(["scan", "9"]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "powerd: /dev/i2c-9 cannot be opened\n")
    assert main(["scan", "1", "9"]) == 2
    said = capsys.readouterr()
    assert "INA3221" in said.out
    assert "nothing answers" not in said.out


def test_no_bus_at_all(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(scan_command, "buses", list)
    assert main(["scan"]) == 2
    assert "there is no /dev/i2c-*" in capsys.readouterr().err


def test_answers_print_without_channels() -> None:
    from powerd_daemon.printing import answers

    assert "?" in answers([Answer(1, 0x48, "", "answers")], [1])
