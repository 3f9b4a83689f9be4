"""`powerd check`: looks at this machine, and says what is wrong with the narrowest remedy.

Each check looks at one area and yields findings. Nothing here changes anything but `probe_disk`, which writes a file
and removes it; sensors are probed as `powerd scan` does, unless the configuration's powerd is running.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from textwrap import fill

from powerd_core.errors import PowerdError, SensorError
from powerd_core.text import printable
from powerd_daemon.calibration_file import bus_number
from powerd_daemon.clock import Clock, SystemClock
from powerd_daemon.config import Config, load_config
from powerd_daemon.peer import ask
from powerd_daemon.plan import plan_file, read_bus
from powerd_daemon.scan import Answer, buses, held_by_kernel, open_bus, scan_bus
from powerd_daemon.sources.ina.bus import RegisterBus
from powerd_daemon.sources.ina.chips import Settings
from powerd_daemon.sources.ina.sensor import Sensor
from powerd_daemon.sources.nvml.api import Nvml
from powerd_daemon.sources.port import is_usbtmc

WIDTH = 100
ASK_MS = 500
CLOCK_READS = 2000
SLEEPS, SLEEP_NS = 200, 1_000_000
PROBE_BYTES = 8 << 20
SMALL_BYTES = 1 << 30
SLOW_BYTES_PER_S = 2e6
FAST_HZ = 400_000
LOW_SHARE = 0.5
"""A supply below half of its nominal voltage is off, or its sensor's bus pin is not connected."""
RULES = "powerd/deploy/60-powerd.rules"
ROOM = "make room: eight lines at 500 Hz take about 160 MB an hour"


class Verdict(StrEnum):
    """How a finding is meant. Only ``FAIL`` makes the command fail."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


OK, WARN, FAIL = Verdict


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. ``remedy`` is empty where nothing has to be done."""

    area: str
    verdict: Verdict
    what: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine that is looked at; tests put another in its place."""

    root: Path = Path("/")
    may: Callable[[Path, int], bool] = os.access
    clock: Clock = field(default_factory=SystemClock)
    resolution_ns: Callable[[], float] = lambda: time.clock_getres(time.CLOCK_MONOTONIC_RAW) * 1e9
    nvml: Callable[[], Nvml] = Nvml

    def paths(self, pattern: str) -> list[Path]:
        """What matches below the root, in the order of the numbers in the names."""
        return sorted(self.root.glob(pattern), key=lambda p: (len(p.name), p.name))

    def text(self, path: str) -> str:
        """The contents of a small file; empty where there is none to read."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace").strip("\0\n ")
        except OSError:
            return ""

    def boot_remedy(self) -> str:
        """How this board's I2C bus is switched on and made fast."""
        model = self.text("proc/device-tree/model")
        if "BeagleBone" in model:
            return "add to /boot/uEnv.txt and boot: uboot_overlay_addr7=/lib/firmware/BB-I2C2-FAST-00A0.dtbo"
        if "Raspberry Pi" in model:
            return "add to /boot/firmware/config.txt and boot: dtparam=i2c_arm=on,i2c_arm_baudrate=400000"
        return "set clock-frequency = <400000> of the adapter in the device tree"


Check = Callable[[Machine, Config | None], Iterable[Finding]]


def check(arguments: argparse.Namespace) -> int:
    """Status 0, or 1 when something fails."""
    config = None if arguments.file is None else load_config(arguments.file)
    checks: list[Check] = [
        check_i2c,
        check_bus_speed,
        sensor_checks(open_bus, is_served),
        check_serial,
        check_usbtmc,
        check_powercap,
        check_nvml,
        check_clock,
        check_scheduler,
        probe_disk(arguments.directory),
    ]
    if arguments.file is not None:
        checks.insert(0, plan_check(arguments.file))
    machine = Machine()
    findings = [finding for one in checks for finding in one(machine, config)]
    if arguments.json:
        print(json.dumps([asdict(f) for f in findings], indent=2))
    else:
        for f in findings:
            print(fill(printable(f"{f.verdict.value:<4}  {f.area}: {f.what}"), WIDTH, subsequent_indent="      "))
            if f.remedy:
                remedy = printable(f"-> {f.remedy}")
                print(fill(remedy, WIDTH, initial_indent="      ", subsequent_indent="      "))
        counts = Counter(f.verdict for f in findings)
        print(", ".join(f"{counts[verdict]} {verdict.value}" for verdict in Verdict))
    return int(any(f.verdict is FAIL for f in findings))


def _uses(config: Config | None, *kinds: str) -> bool:
    """Whether a configuration uses a source of one of these kinds."""
    return config is not None and any(source.kind in kinds for source in config.sources)


def check_clock(machine: Machine, _: Config | None) -> Iterator[Finding]:
    """Resolution and cost of the clock of all timestamps, and what it is made from."""
    resolution_ns = machine.resolution_ns()
    begin_ns = machine.clock.now_ns()
    for _i in range(CLOCK_READS):
        machine.clock.now_ns()
    cost_ns = (machine.clock.now_ns() - begin_ns) / (CLOCK_READS + 1)
    sources = "sys/devices/system/clocksource/clocksource0"
    source = machine.text(f"{sources}/current_clocksource")
    what = f"CLOCK_MONOTONIC_RAW: resolution {resolution_ns:g} ns, {cost_ns:.0f} ns a reading"
    what += f", from {source}" if source else ""
    if resolution_ns > 1000:
        yield Finding("clock", FAIL, what, "the kernel has no fine clock: boot one with high-resolution timers")
    elif cost_ns > 5000 or source in ("hpet", "acpi_pm", "jiffies"):
        yield Finding("clock", WARN, what, f"choose a faster clock source at boot: /{sources}/available_clocksource")
    else:
        yield Finding("clock", OK, what)


def check_scheduler(machine: Machine, _: Config | None) -> Iterator[Finding]:
    """How late this process wakes up for deadlines 1 ms apart."""
    clock = machine.clock
    late_ns = []
    due_ns = clock.now_ns()
    for _i in range(SLEEPS):
        due_ns = max(due_ns + SLEEP_NS, clock.now_ns())
        clock.sleep_until(due_ns)
        late_ns.append(clock.now_ns() - due_ns)
    late_ns.sort()
    median_us, p99_us = late_ns[SLEEPS // 2] / 1000, late_ns[SLEEPS * 99 // 100] / 1000
    what = f"wakes up {median_us:.0f} us late (median), {p99_us:.0f} us (99 %), of 1 ms deadlines"
    if p99_us <= 1000:
        yield Finding("scheduler", OK, what)
        return
    remedy = "leave the CPU alone, set its governor to performance, or give the source a real-time priority (deploy/)"
    yield Finding("scheduler", WARN, what, remedy)


def probe_disk(directory: Path) -> Check:
    """A check of free space and of writing and syncing in the directory where a run or a spool would go."""

    def check_disk(machine: Machine, _: Config | None) -> Iterator[Finding]:
        if not directory.is_dir():
            remedy = "make it, or name another with --directory"
            yield Finding("disk", FAIL, f"{directory} is not a directory", remedy)
            return
        if not machine.may(directory, os.W_OK | os.X_OK):
            remedy = "chown it to the user that measures, or name another with --directory"
            yield Finding("disk", FAIL, f"{directory} is not writable for this user", remedy)
            return
        space = os.statvfs(directory)
        free_bytes = space.f_bavail * space.f_frsize
        if free_bytes < 4 * PROBE_BYTES:
            yield Finding("disk", FAIL, f"{directory}: {free_bytes / 1e6:.0f} MB free", ROOM)
            return
        speed = PROBE_BYTES / max(_write_s(directory, machine.clock), 1e-9)
        what = f"{directory}: {free_bytes / 1e9:.1f} GB free, writes {speed / 1e6:.0f} MB/s"
        if free_bytes < SMALL_BYTES:
            yield Finding("disk", WARN, what, ROOM)
        elif speed < SLOW_BYTES_PER_S:
            remedy = "use a faster medium (a worn SD card writes like this), or record on the training host"
            yield Finding("disk", WARN, what, remedy)
        else:
            yield Finding("disk", OK, what)

    return check_disk


def _write_s(directory: Path, clock: Clock) -> float:
    """Seconds that writing and syncing takes."""
    path = directory / f".powerd-check-{os.getpid()}"
    begin_ns = clock.now_ns()
    try:
        with path.open("wb") as file:
            file.write(os.urandom(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    finally:
        path.unlink(missing_ok=True)
    return (clock.now_ns() - begin_ns) / 1e9


def check_nvml(machine: Machine, config: Config | None) -> Iterator[Finding]:
    """Whether NVML can be asked, and about how many GPUs."""
    must = _uses(config, "nvml")
    nvml = machine.nvml()
    try:
        nvml.start()
    except SensorError as error:
        what, _, remedy = str(error).partition(": ")
        none = Finding("nvml", OK, "no NVIDIA GPU can be asked here, and none is asked for")
        yield Finding("nvml", FAIL, what, remedy) if must else none
        return
    count, driver = nvml.ask("nvmlDeviceGetCount"), nvml.ask("nvmlSystemGetDriverVersion")
    nvml.stop()
    what = f"{count or 0} GPU(s), driver {driver}"
    if must and not count:
        yield Finding("nvml", FAIL, what, "see whether nvidia-smi lists a GPU, or leave the source 'nvml' out")
    else:
        yield Finding("nvml", OK, what)


def check_i2c(machine: Machine, config: Config | None) -> Iterator[Finding]:
    """/dev/i2c-*: there, and open to this user."""
    remedy = f"switch it on at boot: {machine.boot_remedy()}"
    if machine.paths("sys/bus/i2c/devices/i2c-[0-9]*"):
        remedy = "load the module, now and at every boot: modprobe i2c-dev; echo i2c-dev > /etc/modules-load.d/i2c.conf"
    yield from _ports(machine, "i2c", ["i2c-[0-9]*"], "i2c", remedy, must=_uses(config, "ina"))


def check_bus_speed(machine: Machine, config: Config | None) -> Iterator[Finding]:
    """The clock of each bus as the device tree sets it, against what the configuration counts on."""
    asked_hz: dict[int | None, float] = {}
    for source in config.sources if config else ():
        bus, scl_hz = source.options.get("bus"), source.options.get("scl_hz", FAST_HZ)
        if source.kind == "ina" and isinstance(bus, int | str) and isinstance(scl_hz, int | float):
            asked_hz[bus_number(bus)] = float(scl_hz)
    for path in machine.paths("dev/i2c-[0-9]*"):
        number = int(path.name.removeprefix("i2c-"))
        asked, speed_hz = asked_hz.get(number), bus_speed_hz(machine, number)
        if speed_hz is None:
            if asked is not None:
                what = f"{path.name}: its clock cannot be read here; the configuration counts on {asked / 1000:g} kHz"
                yield Finding("bus speed", WARN, what, "compare with the rate that `powerd stats` shows")
            continue
        what = f"{path.name}: {speed_hz / 1000:g} kHz"
        if asked is not None and abs(speed_hz / asked - 1) > 0.01:
            what += f", but the configuration counts on {asked / 1000:g} kHz"
            remedy = f"set scl_hz = {speed_hz} in its [[source]], or {machine.boot_remedy()}"
            yield Finding("bus speed", FAIL if speed_hz < asked else WARN, what, remedy)
        elif speed_hz < FAST_HZ:
            yield Finding("bus speed", WARN, f"{what}: the INA family takes 400 kHz", machine.boot_remedy())
        else:
            yield Finding("bus speed", OK, what)


def bus_speed_hz(machine: Machine, number: int) -> int | None:
    """``clock-frequency`` of the adapter's node in the device tree (4 bytes, most significant first), or None."""
    for base in ("sys/class/i2c-adapter", "sys/bus/i2c/devices", "sys/class/i2c-dev"):
        for node in ("of_node", "device/of_node"):
            try:
                frequency = (machine.root / base / f"i2c-{number}" / node / "clock-frequency").read_bytes()
            except OSError:
                continue
            if len(frequency) == 4:
                return int.from_bytes(frequency, "big")
    return None


def check_serial(machine: Machine, config: Config | None) -> Iterator[Finding]:
    """/dev/ttyACM* and ttyUSB*: nodes and meters."""
    must = _uses(config, "node", "serial-line") or _uses_meter(config, on_usb=False)
    patterns, remedy = ["ttyACM[0-9]*", "ttyUSB[0-9]*"], "plug the node in and look at: dmesg | tail"
    yield from _ports(machine, "serial", patterns, "dialout", remedy, must=must)


def check_usbtmc(machine: Machine, config: Config | None) -> Iterator[Finding]:
    """/dev/usbtmc*: wall meters on USB."""
    remedy = "switch the meter on, plug it in and look at: dmesg | tail"
    must = _uses_meter(config, on_usb=True)
    yield from _ports(machine, "usbtmc", ["usbtmc[0-9]*"], "powerd", remedy, must=must)


def check_powercap(machine: Machine, config: Config | None) -> Iterator[Finding]:
    """RAPL's energy counters, readable by root alone unless a rule says otherwise."""
    counters, must = machine.paths("sys/class/powercap/intel-rapl:*/energy_uj"), _uses(config, "rapl")
    closed = [p for p in counters if not machine.may(p, os.R_OK)]
    if not counters:
        remedy = "modprobe intel_rapl_msr, or leave the source 'rapl' out" if must else ""
        yield Finding("powercap", FAIL if must else OK, "no RAPL counters here", remedy)
    elif closed:
        what = f"{len(closed)} of {len(counters)} RAPL counters cannot be read by this user"
        remedy = f"install {RULES} (group powerd may read them), and: sudo usermod -aG powerd $USER"
        yield Finding("powercap", FAIL if must else WARN, what, remedy)
    else:
        yield Finding("powercap", OK, f"{len(counters)} RAPL counters can be read")


def _uses_meter(config: Config | None, *, on_usb: bool) -> bool:
    """Whether the configuration has a WT310E on USBTMC, or one on a serial port."""
    meters = [source for source in config.sources if source.kind == "wt310e"] if config else []
    return any(is_usbtmc(str(source.options.get("port"))) == on_usb for source in meters)


def _ports(
    machine: Machine, area: str, patterns: Sequence[str], group: str, missing: str, *, must: bool
) -> Iterator[Finding]:
    """The devices of one kind: there, and open to this user. ``missing`` is the remedy where a wanted one is not."""
    ports = [path for pattern in patterns for path in machine.paths(f"dev/{pattern}")]
    if not ports:
        what = f"there is no /dev/{' or /dev/'.join(pattern.partition('[')[0] for pattern in patterns)}* here"
        yield Finding(area, FAIL, what, missing) if must else Finding(area, OK, f"{what}, and none is asked for")
    allowed = [p for p in ports if machine.may(p, os.R_OK | os.W_OK)]
    if allowed:
        yield Finding(area, OK, f"{', '.join(p.name for p in allowed)}: may be opened")
    for path in (p for p in ports if p not in allowed):
        remedy = f"install {RULES} in /etc/udev/rules.d, and: sudo usermod -aG {group} $USER; then log in again"
        yield Finding(area, FAIL if must else WARN, f"/dev/{path.name}: this user may not open it", remedy)


def sensor_checks(
    open_bus: Callable[[int], AbstractContextManager[RegisterBus]], is_served: Callable[[str], bool]
) -> Check:
    """A check of the INA chips that a configuration names, or of all that answer.

    ``is_served`` says whether a powerd answers at an endpoint: it is not disturbed.
    """

    def check_sensors(machine: Machine, config: Config | None) -> Iterator[Finding]:
        if config is not None and is_served(config.server.listen):
            what = f"a powerd is measuring at {config.server.listen}: its sensors are left alone"
            yield Finding("sensors", OK, what, "to have them looked at, stop it first; else see: powerd stats")
            return
        wanted: dict[int, list[tuple[Sensor, Settings]]] = {} if config else {n: [] for n in buses(machine.root)}
        for source in config.sources if config else ():
            bus = read_bus({"kind": source.kind, "name": source.name, **source.options}, source.where)
            if bus is not None and bus.number is not None:
                pairs = zip(bus.bank.sensors, bus.bank.settings, strict=True)
                wanted.setdefault(bus.number, []).extend(pairs)
        for number in sorted(wanted):
            try:
                with open_bus(number) as opened:
                    answers = scan_bus(opened, number, held_by_kernel(number, machine.root))
            except (PowerdError, OSError) as error:
                yield Finding("sensors", FAIL if config else WARN, f"i2c-{number}: {error}")
                continue
            yield from _compare(number, wanted[number], answers)

    return check_sensors


def _compare(number: int, wanted: list[tuple[Sensor, Settings]], answers: Iterable[Answer]) -> Iterator[Finding]:
    at = {answer.address: answer for answer in answers}
    for sensor, settings in wanted:
        where = f"i2c-{number} {sensor.address:#04x} ({sensor.name})"
        answer = at.get(sensor.address)
        if answer is None:
            remedy = "check its supply, SDA and SCL, and its address pins; `powerd scan` shows what answers"
            yield Finding("sensors", FAIL, f"{where}: nothing answers", remedy)
        elif answer.chip != settings.chip:
            remedy = f'set chip = "{answer.chip}"' if answer.chip else "free the address for the sensor"
            yield Finding("sensors", FAIL, f"{where}: is no {settings.chip}: {_identity(answer)}", remedy)
        else:
            yield _state(where, sensor, settings, answer)
    named = {sensor.address for sensor, _ in wanted}
    for answer in at.values():
        if answer.address not in named and answer.chip:
            what = f"i2c-{number} {answer.address:#04x}: {_identity(answer)}"
            yield Finding("sensors", OK, what + (", not in the configuration" if wanted else ""))


def _state(where: str, sensor: Sensor, settings: Settings, answer: Answer) -> Finding:
    """What a sensor that is the right chip has in its registers."""
    config, register = answer.config or 0, settings.type.config
    if config == dict(settings.words)[register]:
        state = "as configured"
    elif config == settings.type.resets[register]:
        state = "the reset value: powerd has not set it up yet"
    else:
        state = "set up by something else: powerd will set it up anew"
    what = f"{where}: {settings.chip}, CONFIG {config:#06x}, {state}"
    bus_v = next((c.bus_v for c in answer.channels if c.number == sensor.channel), None)
    if bus_v is None:
        return Finding("sensors", WARN, f"{what}, but its voltage could not be read", "check the wiring of the bus")
    what += f", {bus_v:.2f} V"
    if bus_v < LOW_SHARE * sensor.nominal_v:
        remedy = "switch the supply on, or connect the sensor's bus pin (IN-) to the load's side of the shunt"
        return Finding("sensors", WARN, f"{what} instead of {sensor.nominal_v:g} V", remedy)
    return Finding("sensors", OK, what)


def _identity(answer: Answer) -> str:
    return f"{answer.chip} by its {answer.how}" if answer.chip else answer.how


def plan_check(path: Path) -> Check:
    """Whether every bus and its chips can do what the file asks of them: `powerd run` refuses what they cannot."""

    def check_plan(_machine: Machine, _config: Config | None) -> Iterator[Finding]:
        for plan in plan_file(path):
            name, arithmetic = plan.bus.source, f"the arithmetic: powerd plan {path}"
            if plan.problems:
                yield Finding("plan", FAIL, f"{name}: {plan.problems[0]}", arithmetic)
            else:
                what = f"{name}: {plan.bus.rate_hz:g} Hz asked, {plan.achievable_hz:.0f} Hz achievable"
                yield Finding("plan", OK, what)

    return check_plan


def is_served(endpoint: str) -> bool:
    """Whether a powerd answers there."""
    try:
        ask(endpoint, "describe", ASK_MS)
    except PowerdError:
        return False
    return True
