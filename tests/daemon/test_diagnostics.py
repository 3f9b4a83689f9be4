"""`powerd check` on machines that exist only as files, with chips that exist only as registers."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from fake_nvml import FakeNvml

from powerd_core.errors import SensorError
from powerd_daemon import diagnostics
from powerd_daemon.cli import main
from powerd_daemon.config import Config, ServerConfig, SourceConfig, parse_config
from powerd_daemon.diagnostics import (
    FAIL,
    OK,
    WARN,
    Finding,
    Machine,
    check_asked,
    check_bus_speed,
    check_nvml,
    check_ports,
    check_powercap,
    check_sensors,
    is_served,
)
from powerd_daemon.sources.ina.chips import ChipSettings
from powerd_daemon.sources.nvml.api import Nvml
from powerd_daemon.sources.sim.bus import Load, SimBus, SimChip, VirtualClock


def never(_path: Path, _mode: int) -> bool:
    return False


def config(kind: str = "ina", **options: object) -> Config:
    return Config(ServerConfig(), (SourceConfig(kind, kind, options, f"c.toml: [[source]] 1 ({kind})"),))


def machine(root: Path, **changes: Any) -> Machine:
    return Machine(root, **{"clock": VirtualClock(), "is_served": lambda _endpoint: False, **changes})


def make(root: Path, *paths: str, content: bytes = b"") -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)


def only(findings: Iterator[Finding]) -> Finding:
    (found,) = findings
    return found


def ports(area: str, machine: Machine, config: Config | None = None) -> list[Finding]:
    return [f for f in check_ports(machine, config) if f.area == area]


def test_i2c(tmp_path: Path) -> None:
    assert [f.verdict for f in ports("i2c", machine(tmp_path))] == [OK]
    (missing,) = ports("i2c", machine(tmp_path), config())
    assert missing.verdict == FAIL
    assert "docs/howto/board.md" in missing.remedy
    (tmp_path / "sys/bus/i2c/devices/i2c-1").mkdir(parents=True)
    assert "modprobe i2c-dev" in ports("i2c", machine(tmp_path), config())[0].remedy
    make(tmp_path, "dev/i2c-1", "dev/i2c-10")
    (found,) = ports("i2c", machine(tmp_path), config())
    assert (found.verdict, found.what) == (OK, "i2c-1, i2c-10: may be opened")
    closed = ports("i2c", machine(tmp_path, may=never), config())
    assert [f.verdict for f in closed] == [FAIL] * 2
    assert "60-powerd.rules" in closed[0].remedy
    assert "usermod -aG i2c" in closed[0].remedy
    assert [f.verdict for f in ports("i2c", machine(tmp_path, may=never))] == [WARN] * 2


@pytest.mark.parametrize(
    ("speed_khz", "asked_khz", "verdict"), [(400, 400, OK), (100, 400, FAIL), (400, 100, WARN), (100, 100, WARN)]
)
def test_bus_speed(tmp_path: Path, speed_khz: int, asked_khz: int, verdict: str) -> None:
    node = "sys/bus/i2c/devices/i2c-2/of_node/clock-frequency"
    make(tmp_path, "dev/i2c-2")
    make(tmp_path, node, content=(speed_khz * 1000).to_bytes(4, "big"))
    found = only(check_bus_speed(machine(tmp_path), config(bus=2, scl_hz=asked_khz * 1000)))
    assert found.verdict == verdict
    assert ("docs/howto/board.md" in found.remedy) == (verdict != OK)


def test_the_port_of_a_meter_and_rapl_must_be_there_and_open(tmp_path: Path) -> None:
    for port, area, other in (("usbtmc0", "usbtmc", "serial"), ("ttyUSB0", "serial", "usbtmc")):
        meter = config("wt310e", port=f"/dev/{port}")
        assert [f.verdict for f in ports(area, machine(tmp_path), meter)] == [FAIL]
        assert [f.verdict for f in ports(other, machine(tmp_path), meter)] == [OK]
        make(tmp_path, f"dev/{port}")
        assert [f.verdict for f in ports(area, machine(tmp_path), meter)] == [OK]
    assert only(check_powercap(machine(tmp_path), config("rapl"))).verdict == FAIL
    make(tmp_path, "sys/class/powercap/intel-rapl:0/energy_uj")
    standing = only(check_powercap(machine(tmp_path), None))
    assert (standing.verdict, "stand still" in standing.what) == (WARN, True)
    counter = tmp_path / "sys/class/powercap/intel-rapl:0/energy_uj"

    class Counting(VirtualClock):
        def sleep_until(self, t_ns: int) -> None:
            counter.write_text(f"{t_ns}")

    assert only(check_powercap(machine(tmp_path, clock=Counting()), None)).verdict == OK
    assert only(check_powercap(machine(tmp_path, may=never), None)).verdict == WARN


def chips(scl_hz: float = 400_000, **volts: float) -> SimBus:
    clock = VirtualClock()
    made = {int(a[1:], 16): SimChip("INA219", [Load(lambda _a, _b: 1.0, v, 0.05)]) for a, v in volts.items()}
    bus = SimBus(clock, made, scl_hz=scl_hz)
    for register, word in ChipSettings().words:
        bus.write_word(0x40, register, word)
    clock.sleep_until(clock.now_ns() + 1_000_000_000)
    return bus


SENSORS = [
    {"name": "good", "address": 0x40},
    {"name": "unset", "address": 0x41},
    {"name": "off", "address": 0x42},
    {"name": "absent", "address": 0x43},
    {"name": "other", "address": 0x44, "chip": "INA226"},
]


def test_sensors(tmp_path: Path) -> None:
    bus = chips(x40=12.0, x41=12.0, x42=1.0, x44=12.0, x45=12.0)
    here = machine(tmp_path, open_bus=lambda _number: nullcontext(bus))
    found = list(check_sensors(here, config(bus=2, sensors=SENSORS)))
    by_name = {s["name"]: next(f for f in found if f"({s['name']})" in f.what) for s in SENSORS}
    assert [f.verdict for f in by_name.values()] == [OK, OK, WARN, FAIL, FAIL]
    assert "as configured" in by_name["good"].what
    assert "not set up" in by_name["unset"].what
    assert "instead of 12 V" in by_name["off"].what
    assert by_name["other"].remedy == 'set chip = "INA219"'
    assert found[-1].what.endswith("not in the configuration")


@pytest.mark.parametrize(("scl_hz", "verdict"), [(400_000, OK), (20_000, FAIL)])
def test_a_bus_that_is_slower_than_configured(tmp_path: Path, scl_hz: int, verdict: str) -> None:
    bus = chips(scl_hz, x40=12.0)
    here = machine(tmp_path, open_bus=lambda _number: nullcontext(bus), clock=bus.clock)
    found = check_sensors(here, config(bus=2, sensors=SENSORS[:1]))
    (speed,) = [f for f in found if f.area == "bus speed"]
    assert speed.verdict == verdict
    assert ("set read_us = 3000" in speed.remedy) == (verdict == FAIL)
    (speed,) = [
        f for f in check_sensors(here, config(bus=2, read_us=3000, sensors=SENSORS[:1])) if f.area == "bus speed"
    ]
    assert speed.verdict == OK


def test_a_powerd_that_measures_is_not_disturbed(tmp_path: Path) -> None:
    here = machine(tmp_path, open_bus=None, is_served=lambda _endpoint: True)
    assert [f.verdict for f in check_sensors(here, config(bus=2, sensors=SENSORS))] == [OK]


def test_who_listens_is_noticed_without_being_asked(tmp_path: Path) -> None:
    """A powerd with keys answers nobody who has none, and one that listens on all addresses names none of them."""
    path = tmp_path / "a socket"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as ipc:
        ipc.bind(str(path))
        ipc.listen()
        port = tcp.getsockname()[1]
        for endpoint in (f"tcp://*:{port}", f"tcp://0.0.0.0:{port}", f"tcp://eth0:{port}", f"ipc://{path}"):
            assert is_served(endpoint)
    for endpoint in (f"tcp://*:{port}", "tcp://*:*", f"tcp://[::]:{port}", f"ipc://{path}", f"ipc://{tmp_path}/none"):
        assert not is_served(endpoint)


class NoNvml(Nvml):
    def start(self) -> None:
        raise SensorError("NVML does not start: install the NVIDIA driver")


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(diagnostics, "Machine", lambda: machine(tmp_path, nvml=NoNvml))
    assert main(["check", "--directory", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith(" 0 fail")
    assert main(["check", "--directory", str(tmp_path / "none"), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert next(f for f in found if f["verdict"] == "fail")["area"] == "disk"
    assert main(["check", str(tmp_path / "none.toml")]) == 2


def test_a_damaged_file_of_gpus_is_one_finding(tmp_path: Path) -> None:
    path = tmp_path / "gpus.toml"
    source = config("nvml", calibration=str(path))
    nvml = FakeNvml(VirtualClock())
    for text, verdicts in (("", [OK, OK]), ("[[response]]\n", [OK, FAIL])):
        path.write_text(text)
        assert [f.verdict for f in check_nvml(machine(tmp_path, nvml=lambda: Nvml(nvml)), source)] == verdicts


def test_sources_that_are_asked_are_opened_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    chip = tmp_path / "class/hwmon/hwmon0"
    chip.mkdir(parents=True)
    (chip / "power1_input").write_text("5000000")
    plug = f'[[source]]\nkind = "plug"\nurl = "http://127.0.0.1:{port}"\n'
    config = parse_config(f'{plug}name = "wall"\n{plug}optional = true\n'
                          f'[[source]]\nkind = "hwmon"\nroot = "{tmp_path}"\n', "f")  # fmt: skip
    found = list(check_asked(machine(tmp_path), config))
    assert [f.verdict for f in found] == [FAIL, WARN, OK]
    assert "wall (plug): " in found[0].what
    assert found[2].what == "hwmon (hwmon) answers: 1 line"
    assert not list(check_asked(machine(tmp_path, is_served=lambda _endpoint: True), config))
