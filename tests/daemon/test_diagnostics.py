"""`powerd check` on machines that exist only as files, with chips that exist only as registers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from powerd_core.errors import SensorError
from powerd_daemon import diagnostics
from powerd_daemon.cli import main
from powerd_daemon.config import Config, ServerConfig, SourceConfig
from powerd_daemon.diagnostics import (
    Finding,
    Machine,
    Verdict,
    check_bus_speed,
    check_clock,
    check_i2c,
    check_nvml,
    check_powercap,
    check_scheduler,
    check_serial,
    check_usbtmc,
    probe_disk,
    sensor_checks,
)
from powerd_daemon.sources.ina.bus import RegisterBus
from powerd_daemon.sources.ina.chips import Settings
from powerd_daemon.sources.nvml.api import Nvml
from powerd_daemon.sources.sim.bus import SimBus, VirtualClock
from powerd_daemon.sources.sim.chip import Load, SimChip


def never(_path: Path, _mode: int) -> bool:
    return False


def config(kind: str = "ina", **options: object) -> Config:
    return Config(ServerConfig(), (SourceConfig(kind, kind, options, f"c.toml: [[source]] 1 ({kind})"),))


def machine(root: Path, **changes: Any) -> Machine:
    return Machine(root, clock=VirtualClock(), **changes)


def make(root: Path, *paths: str, content: bytes = b"") -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)


def only(findings: Iterator[Finding]) -> Finding:
    (found,) = findings
    return found


def test_i2c_permissions(tmp_path: Path) -> None:
    make(tmp_path, "dev/i2c-1", "dev/i2c-10")
    found = only(check_i2c(machine(tmp_path), config()))
    assert (found.verdict, found.what) == (Verdict.OK, "i2c-1, i2c-10: may be opened")
    closed = list(check_i2c(machine(tmp_path, may=never), config()))
    assert [f.verdict for f in closed] == [Verdict.FAIL] * 2
    assert "60-powerd.rules" in closed[0].remedy
    assert "usermod -aG i2c" in closed[0].remedy
    assert [f.verdict for f in check_i2c(machine(tmp_path, may=never), None)] == [Verdict.WARN] * 2


def test_no_bus_where_one_is_wanted(tmp_path: Path) -> None:
    assert only(check_i2c(machine(tmp_path), None)).verdict is Verdict.OK
    make(tmp_path, "proc/device-tree/model", content=b"TI AM335x BeagleBone Black\0")
    found = only(check_i2c(machine(tmp_path), config()))
    assert found.verdict is Verdict.FAIL
    assert "uboot_overlay_addr7" in found.remedy
    (tmp_path / "sys/bus/i2c/devices/i2c-1").mkdir(parents=True)
    assert "modprobe i2c-dev" in only(check_i2c(machine(tmp_path), config())).remedy


@pytest.mark.parametrize(
    ("speed_hz", "scl_hz", "verdict", "said"),
    [
        (400_000, 400_000, Verdict.OK, "i2c-2: 400 kHz"),
        (100_000, 400_000, Verdict.FAIL, "counts on 400 kHz"),
        (400_000, 100_000, Verdict.WARN, "counts on 100 kHz"),
        (100_000, 100_000, Verdict.WARN, "takes 400 kHz"),
    ],
)
def test_bus_speed(tmp_path: Path, speed_hz: int, scl_hz: int, verdict: Verdict, said: str) -> None:
    make(tmp_path, "dev/i2c-2", "proc/device-tree/model", content=b"Raspberry Pi 3 Model B\0")
    node = "sys/class/i2c-adapter/i2c-2/of_node/clock-frequency"
    make(tmp_path, node, content=speed_hz.to_bytes(4, "big"))
    found = only(check_bus_speed(machine(tmp_path), config(bus=2, scl_hz=scl_hz)))
    assert found.verdict is verdict
    assert said in found.what
    if verdict is not Verdict.OK and speed_hz < 400_000:
        assert "i2c_arm_baudrate=400000" in found.remedy


def test_meters_and_counters(tmp_path: Path) -> None:
    assert only(check_usbtmc(machine(tmp_path), None)).verdict is Verdict.OK
    assert only(check_usbtmc(machine(tmp_path), config("wt310e", port="/dev/usbtmc0"))).verdict is Verdict.FAIL
    assert only(check_usbtmc(machine(tmp_path), config("wt310e", port="/dev/ttyUSB0"))).verdict is Verdict.OK
    assert only(check_serial(machine(tmp_path), config("wt310e", port="/dev/ttyUSB0"))).verdict is Verdict.FAIL
    assert only(check_serial(machine(tmp_path), config("wt310e", port="/dev/usbtmc0"))).verdict is Verdict.OK
    make(tmp_path, "dev/usbtmc0")
    verdicts = [f.verdict for f in check_usbtmc(machine(tmp_path, may=never), config("wt310e", port="/dev/usbtmc0"))]
    assert verdicts == [Verdict.FAIL]
    assert only(check_powercap(machine(tmp_path), config("rapl"))).verdict is Verdict.FAIL
    make(tmp_path, "sys/class/powercap/intel-rapl:0/energy_uj")
    assert only(check_powercap(machine(tmp_path), None)).verdict is Verdict.OK
    closed = only(check_powercap(machine(tmp_path, may=never), None))
    assert closed.verdict is Verdict.WARN
    assert "usermod -aG powerd" in closed.remedy


def chips(**volts: float) -> SimBus:
    clock = VirtualClock()
    made = {int(a[1:], 16): SimChip("INA219", [Load(lambda _a, _b: 1.0, v, 0.05)]) for a, v in volts.items()}
    bus = SimBus(clock, made)
    for register, word in Settings().words:
        bus.write_word(0x40, register, word)
    clock.sleep_until(clock.now_ns() + 1_000_000_000)
    return bus


def opener(bus: SimBus) -> Callable[[int], AbstractContextManager[RegisterBus]]:
    return lambda _number: nullcontext(bus)


SENSORS = [
    {"name": "good", "address": 0x40},
    {"name": "unset", "address": 0x41},
    {"name": "off", "address": 0x42},
    {"name": "absent", "address": 0x43},
    {"name": "other", "address": 0x44, "chip": "INA226"},
]


def test_sensors(tmp_path: Path) -> None:
    check = sensor_checks(opener(chips(x40=12.0, x41=12.0, x42=1.0, x44=12.0, x45=12.0)), lambda _endpoint: False)
    found = list(check(machine(tmp_path), config(bus=2, sensors=SENSORS)))
    by_name = {s["name"]: next(f for f in found if f"({s['name']})" in f.what) for s in SENSORS}
    assert {name: f.verdict.value for name, f in by_name.items()} == {
        "good": "ok",
        "unset": "ok",
        "off": "warn",
        "absent": "fail",
        "other": "fail",
    }
    assert "as configured" in by_name["good"].what
    assert "the reset value" in by_name["unset"].what
    assert "instead of 12 V" in by_name["off"].what
    assert by_name["other"].remedy == 'set chip = "INA219"'
    assert found[-1].what.endswith("not in the configuration")


def test_a_powerd_that_measures_is_not_disturbed(tmp_path: Path) -> None:
    def refuse(_number: int) -> AbstractContextManager[RegisterBus]:
        raise AssertionError("the bus was touched")

    check = sensor_checks(refuse, lambda _endpoint: True)
    found = list(check(machine(tmp_path), config(bus=2, sensors=SENSORS)))
    assert [f.verdict for f in found] == [Verdict.OK]


class Ticking(VirtualClock):
    """Every reading costs some time."""

    def __init__(self, cost_ns: int) -> None:
        super().__init__()
        self.cost_ns = cost_ns

    def now_ns(self) -> int:
        self.t_ns += self.cost_ns
        return self.t_ns


def test_clock(tmp_path: Path) -> None:
    current = "sys/devices/system/clocksource/clocksource0/current_clocksource"
    make(tmp_path, current, content=b"dmtimer\n")
    found = only(check_clock(Machine(tmp_path, clock=Ticking(80), resolution_ns=lambda: 42.0), None))
    assert found.verdict is Verdict.OK
    assert found.what == "CLOCK_MONOTONIC_RAW: resolution 42 ns, 80 ns a reading, from dmtimer"
    assert only(check_clock(Machine(tmp_path, clock=Ticking(9000)), None)).verdict is Verdict.WARN
    coarse = Machine(tmp_path, clock=Ticking(80), resolution_ns=lambda: 4e6)
    assert only(check_clock(coarse, None)).verdict is Verdict.FAIL


class Late(VirtualClock):
    """Wakes up late."""

    late_ns = 0

    def sleep_until(self, t_ns: int) -> None:
        super().sleep_until(t_ns + self.late_ns)


@pytest.mark.parametrize(("late_ns", "verdict"), [(50_000, Verdict.OK), (3_000_000, Verdict.WARN)])
def test_scheduler(tmp_path: Path, late_ns: int, verdict: Verdict) -> None:
    clock = Late()
    clock.late_ns = late_ns
    found = only(check_scheduler(Machine(tmp_path, clock=clock), None))
    assert found.verdict is verdict
    assert f"{late_ns // 1000} us late (median)" in found.what


def test_disk(tmp_path: Path) -> None:
    found = only(probe_disk(tmp_path)(Machine(tmp_path, clock=Ticking(1000)), None))
    assert found.verdict is Verdict.OK
    assert list(tmp_path.iterdir()) == []
    slow = only(probe_disk(tmp_path)(Machine(tmp_path, clock=Ticking(10_000_000_000)), None))
    assert slow.verdict is Verdict.WARN
    assert only(probe_disk(tmp_path / "none")(machine(tmp_path), None)).verdict is Verdict.FAIL
    closed = only(probe_disk(tmp_path)(machine(tmp_path, may=never), None))
    assert "not writable" in closed.what


class NoNvml(Nvml):
    def start(self) -> None:
        raise SensorError("NVML does not start: install the NVIDIA driver")


def test_nvml(tmp_path: Path) -> None:
    assert only(check_nvml(machine(tmp_path, nvml=NoNvml), None)).verdict is Verdict.OK
    found = only(check_nvml(machine(tmp_path, nvml=NoNvml), config("nvml")))
    assert (found.verdict, found.remedy) == (Verdict.FAIL, "install the NVIDIA driver")


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(diagnostics, "Machine", lambda: machine(tmp_path, nvml=NoNvml))
    assert main(["check", "--directory", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith(" 0 fail")
    assert main(["check", "--directory", str(tmp_path / "none"), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert next(f for f in found if f["verdict"] == "fail")["area"] == "disk"
    assert main(["check", str(tmp_path / "none.toml")]) == 2
