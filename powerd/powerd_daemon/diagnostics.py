"""`powerd check`: looks at this machine, and says what is wrong with the narrowest remedy.

Each check looks at one area and yields findings. Nothing here changes anything but `check_disk`, which writes a file
and removes it; sensors are probed as `powerd scan` does, unless the configuration's powerd is running.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import Any

import zmq

from powerd_core.calibration import GpuFile
from powerd_core.errors import ConfigError, PowerdError, SensorError
from powerd_core.model import FAULT_REMEDIES
from powerd_core.serde import read_description
from powerd_core.text import printable
from powerd_daemon.auth import Guard
from powerd_daemon.clock import Clock, SystemClock
from powerd_daemon.commands import add_format_option, add_keys_option
from powerd_daemon.config import (
    DEFAULT_LISTEN,
    NOTHING,
    Config,
    ServerConfig,
    SourceConfig,
    load_config,
    make_source,
)
from powerd_daemon.daemon import allow_files, plural
from powerd_daemon.peer import ask
from powerd_daemon.plan import (
    BusPlan,
    line_loads_w,
    load_faults,
    plan_file,
    plan_here,
    read_bus,
    shunt_question,
    smbus_note,
)
from powerd_daemon.scan import FoundChip, buses, held_by_kernel, open_simulated, scan_bus
from powerd_daemon.sensor_watch import GOOD, states_of
from powerd_daemon.sockets import bind_sockets
from powerd_daemon.sources.base import Start, find_source
from powerd_daemon.sources.ina.bus import READ_PERIODS, OpenBus, Read, RegisterBus, open_bus
from powerd_daemon.sources.ina.chips import CONFIG, ChipSettings
from powerd_daemon.sources.ina.scanner import MOST_SLOW
from powerd_daemon.sources.ina.sensor_accuracy import Sensor, bus_number
from powerd_daemon.sources.ina.source import RailsOptions
from powerd_daemon.sources.nvml.api import Nvml
from powerd_daemon.sources.nvml.gpu_file import gpu_file_path, load_gpus
from powerd_daemon.sources.port import is_usbtmc, missing
from powerd_daemon.sources.sim.source import SIMULATED_BUS, SimOptions
from powerd_daemon.spool import SpoolDirectory

WIDTH = 80
_TCP_LISTENS, _UNIX_LISTENS = "0A", "00010000"
SLEEPS, SLEEP_NS = 200, 1_000_000
LOOK_NS = 100_000_000
PROBE_BYTES = 8 << 20
SMALL_BYTES = 1 << 30
SLOW_BYTES_PER_S = 2e6
FAST_HZ = 400_000
READS = 50
LOW_SHARE = 0.5
"""A supply below half of its nominal voltage is off, or its sensor's bus pin is not connected."""
ASKED = ("hwmon", "iio", "amd", "ipmi", "redfish", "plug", "mqtt", "command")
"""Kinds of source that are opened to see whether they answer; that sets nothing."""
RULES = "powerd/deploy/60-powerd.rules"
BOOT = "switch the bus on, at 400 kHz, in the boot settings: docs/howto/board.md names the line"
_LOG = "whether its meter, program or driver is there; the log of powerd says since when"
ROOM = "make room: eight lines at 500 Hz take about 160 MB an hour"


OK, WARN, FAIL = "ok", "warn", "fail"
"""How a finding is meant. Only the last makes the command fail."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. ``remedy`` is empty where nothing has to be done."""

    area: str
    verdict: str
    what: str
    remedy: str = ""


def is_served(endpoint: str) -> bool:
    """Whether a process of this machine listens there, by the kernel's lists of sockets (proc_net(5)).

    Nothing is asked: a powerd that measures may have keys that are unknown here, or listen on an interface's name.
    """
    place = endpoint.removeprefix("ipc://")
    if place != endpoint:
        return any(row[3] == _UNIX_LISTENS and row[7:] == [place] for row in _kernel_sockets("unix"))
    rows = [*_kernel_sockets("tcp"), *_kernel_sockets("tcp6")]
    ports = {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == _TCP_LISTENS}
    return endpoint.rpartition(":")[2] in map(str, ports)


def _kernel_sockets(kind: str) -> list[list[str]]:
    with suppress(OSError):  # without IPv6 there is no list of it
        return [row.split(maxsplit=7) for row in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]]
    return []


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine that is looked at; tests put another in its place."""

    root: Path = Path("/")
    may: Callable[[Path, int], bool] = os.access
    clock: Clock = field(default_factory=SystemClock)
    nvml: Callable[[], Nvml] = Nvml
    open_bus: OpenBus = open_bus
    is_served: Callable[[str], bool] = is_served

    def has(self, path: str) -> bool:
        """Whether a file is there."""
        return (self.root / path.lstrip("/")).exists()

    def paths(self, *patterns: str) -> list[Path]:
        """What matches below the root, in the order of the numbers in the names."""
        return sorted((p for pattern in patterns for p in self.root.glob(pattern)), key=lambda p: (len(p.name), p.name))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `powerd check`."""
    parser.description = (
        "Looks at the configuration, devices, buses, sensors, RAPL, GPUs, scheduler and disk. Status 1 when something "
        "fails. Probes sensors as `powerd scan` does, unless the configuration's powerd is running."
    )
    parser.epilog = "powerd check powerd.toml"
    given = "a configuration to check against, or the address of a running powerd, whose sensors alone are looked at"
    parser.add_argument("file", nargs="?", metavar="FILE|URL", help=given)
    running = "look at the sensors of the running powerd (of FILE, or the usual address): status 1 when one has a fault"
    parser.add_argument("--running", action="store_true", help=running)
    parser.add_argument("--file-only", action="store_true", help="look at the file alone: it is for another machine")
    parser.add_argument("--directory", type=Path, default=Path(), metavar="DIR", help="where runs go (default: here)")
    add_keys_option(parser)
    add_format_option(parser)


def run(arguments: argparse.Namespace) -> int:
    """Status 0, or 1 when something fails."""
    is_url = arguments.file is not None and "://" in arguments.file
    path = None if arguments.file is None or is_url else Path(arguments.file)
    config = None if path is None else load_config(path)
    if config is None and arguments.file_only:
        raise ConfigError("check --file-only: name the file")
    if is_url or arguments.running:
        if arguments.file_only:
            raise ConfigError("check --file-only: a running powerd is no file")
        url = config.server.listen.replace("*", "127.0.0.1") if config else arguments.file or DEFAULT_LISTEN
        return _show(list(check_running(url, arguments.keys)), arguments.format)
    machine = Machine()
    findings = []
    if path is not None and config is not None:
        plans = plan_file(path) if arguments.file_only else plan_here(path, open_bus=machine.open_bus)
        shunts = list(check_shunts(config))
        findings = [check_config(path, config, is_good=not shunts), *check_plans(path, plans), *shunts]
    if not arguments.file_only:
        devices = (check_ports, check_bus_speed, check_sensors, check_powercap, check_nvml, check_asked)
        for one in (check_server, *devices, check_scheduler):
            findings += one(machine, config)
        findings.append(check_disk(machine, arguments.directory))
    return _show(findings, arguments.format)


def _show(findings: list[Finding], form: str) -> int:
    """Print what was found; the command's status."""
    if form == "json":
        print(json.dumps([asdict(f) for f in findings], indent=2))
    else:
        for f in findings:
            print(_folded(f"{f.verdict:<4}  {f.area}: {f.what}"))
            if f.remedy:
                print(_folded(f"-> {f.remedy}", first="      "))
        counts = Counter(f.verdict for f in findings)
        print(", ".join(f"{counts[verdict]} {verdict}" for verdict in (OK, WARN, FAIL)))
    return int(any(f.verdict == FAIL for f in findings))


def _folded(text: str, first: str = "") -> str:
    """Lines for people. Paths and options stay whole, so that they can be copied."""
    return fill(
        printable(text), WIDTH, initial_indent=first, subsequent_indent="      ", break_on_hyphens=False,
        break_long_words=False,
    )  # fmt: skip


def _uses(config: Config | None, *kinds: str) -> bool:
    """Whether a configuration uses a source of one of these kinds."""
    return config is not None and any(source.kind in kinds for source in config.sources)


def check_config(path: Path, config: Config, *, is_good: bool = True) -> Finding:
    """What a good file says: where powerd will listen, and what it will measure."""
    if not config.sources:
        return Finding("config", FAIL, f"{path}: {NOTHING}", "paste them into it, and name the lines")
    sources = ", ".join(f"{source.name} ({source.kind})" for source in config.sources)
    read = "is good" if is_good else "can be read"
    return Finding("config", OK, f"{path} {read}: listens on {config.server.listen}, measures {sources}")


def check_server(machine: Machine, config: Config | None) -> Iterator[Finding]:
    """Whether `powerd run` may listen where the file says, with its keys, open as many files, and write its spool."""
    if config is None:
        return
    server = config.server
    if machine.is_served(server.listen):
        yield Finding("server", OK, f"{server.listen} is served already: keys, addresses and spool are not tried")
        return
    for attempt in (partial(allow_files, config), partial(_try_sockets, server), partial(_try_spool, server)):
        try:
            attempt()
        except ConfigError as error:
            yield Finding("server", FAIL, str(error))
            return
    yield Finding("server", OK, f"may listen on {server.listen}" + (", may write its spool" if server.spool else ""))


def _try_sockets(server: ServerConfig) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        guard = Guard(context, server)
        try:
            bind_sockets(context, server.listen, server.data, server.clock, guard.keys).release()
        finally:
            guard.close()
    finally:
        context.destroy(linger=0)


def _try_spool(server: ServerConfig) -> None:
    """Nothing is made: the directory would belong to whoever checks."""
    spool = server.spool
    if spool is None:
        return
    if spool.is_dir():
        SpoolDirectory(spool).release()
    elif spool.exists() or not spool.parent.is_dir():
        raise ConfigError(f"spool {spool}: it cannot be made there: name a directory whose parent exists")
    if not os.access(spool if spool.is_dir() else spool.parent, os.W_OK):
        raise ConfigError(f"spool {spool}: this user may not write to it: name another, or check as powerd's user")


def check_plans(path: Path, plans: Iterable[BusPlan]) -> Iterator[Finding]:
    """The verdict of `powerd plan` on every bus. `powerd run` refuses what fails here."""
    more = f"the arithmetic: powerd plan {path}"
    for plan in plans:
        source = plan.bus.source
        yield from (Finding("plan", FAIL, f"{source}: {problem}", more) for problem in plan.problems)
        if plan.problems:
            continue
        # Of a real bus nobody has said here what its lines carry.
        faults = load_faults(plan, line_loads_w(plan.budgets, plan.bus.loads_w))
        yield from (Finding("plan", FAIL, f"{source}: {fault}", more) for fault in faults)
        what = f"{source}: {plan.verdict}"
        if plan.bus.is_smbus:
            what += f"; {smbus_note(plan)}"
        yield Finding("plan", WARN, what, more) if plan.doubts else Finding("plan", OK, what)


def check_shunts(config: Config) -> Iterator[Finding]:
    """Shunts that seem to be given in milliohms, of whatever kind of source."""
    for source in config.sources:
        sensors = source.options.get("sensors", ())
        tables = [s for s in sensors if isinstance(s, Mapping)] if isinstance(sensors, list | tuple) else []
        for table in ({"name": "shunt_ohm", **source.options}, *tables):
            question = shunt_question(f"{source.name}, {table.get('name')}", table.get("shunt_ohm"))
            if question is not None:
                yield Finding("plan", FAIL, question, "shunt_ohm is in ohms")


def check_running(url: str, keys: str | None = None) -> Iterator[Finding]:
    """The sensors of a powerd that measures, by what it counts of their readings. Raises `PeerError`."""
    description = read_description(ask(url, "describe", keys=keys).body)
    feeds = {name for device in description.devices for name in device.feeds}
    on_i2c = {stream.source for stream in description.streams if "scl_hz" in stream.detail}
    # The streams of one source each have what its sampler says.
    yield from dict.fromkeys(judge_stats(ask(url, "stats", keys=keys).body, feeds, on_i2c))


def judge_stats(
    stats: Mapping[str, Any], feeds: Collection[str], on_i2c: Collection[str] = frozenset()
) -> Iterator[Finding]:
    """What an answer to *stats* says of sensors: one that feeds a device must be good, others may be missed. ``on_i2c``
    are the sources whose sensors `powerd scan` sees."""
    for stream in stats.get("streams", ()):
        sampler, source = stream["sampler"], stream["source"]
        see = "the wiring, its supply and its address; then: powerd scan" if source in on_i2c else _LOG
        if trouble := sampler.get("failure") or sampler.get("error"):
            yield Finding("sensors", FAIL, f"source {source}: {trouble}", see)
            continue
        states = states_of(sampler.get("lines"))
        bad = {name: state for name, state in states.items() if state != GOOD}
        for name, state in bad.items():
            remedy = FAULT_REMEDIES.get(state, see)  # type: ignore[call-overload]
            yield Finding("sensors", FAIL if name in feeds else WARN, f"{name}: {state}", remedy)
        if not bad:
            yield Finding("sensors", OK, f"source {source}: all lines are read well")
        for name, zero in stream.get("calibration", {}).items():
            if zero.get("zero_drifted"):
                what = f"{name}: its zero had moved by {zero['zero_moved_a'] * 1000:+.3g} mA when it was last taken"
                yield Finding("calibration", WARN, what, "calibrate the zero more often: powerd calibrate --zero")


def check_ports(machine: Machine, config: Config | None) -> Iterator[Finding]:
    """The device files of buses, nodes and meters: there, and open to this user."""
    meters = [str(source.options.get("port")) for source in config.sources if source.kind == "wt310e"] if config else []
    on_usb = any(map(is_usbtmc, meters))
    bus_remedy = BOOT
    if machine.paths("sys/bus/i2c/devices/i2c-[0-9]*"):
        bus_remedy = "load its module: modprobe i2c-dev; echo i2c-dev > /etc/modules-load.d/i2c.conf"
    for area, patterns, group, must, remedy in (
        ("i2c", ("dev/i2c-[0-9]*",), "i2c", _uses(config, "ina"), bus_remedy),
        (
            "serial",
            ("dev/ttyACM[0-9]*", "dev/ttyUSB[0-9]*"),
            "dialout",
            _uses(config, "node", "serial-line") or any(not is_usbtmc(meter) for meter in meters),
            "plug it in and look at: dmesg | tail",
        ),
        ("usbtmc", ("dev/usbtmc[0-9]*",), "powerd", on_usb, "switch the meter on and look at: dmesg | tail"),
    ):
        ports = machine.paths(*patterns)
        yield from (
            Finding(area, FAIL, f"{port} of the configuration is not there", missing(port, machine.root / "dev"))
            for port in (_ports_of(config) if ports else ())
            if is_usbtmc(port) == (area == "usbtmc") and area != "i2c" and not machine.has(port)
        )
        if not ports:
            what = f"there is no {', '.join(f'/{p.partition(chr(91))[0]}*' for p in patterns)} here"
            yield Finding(area, FAIL, what, remedy) if must else Finding(area, OK, f"{what}, and none is asked for")
        allowed = [p.name for p in ports if machine.may(p, os.R_OK | os.W_OK)]
        if allowed:
            yield Finding(area, OK, f"{', '.join(allowed)}: may be opened")
        for path in (p for p in ports if p.name not in allowed):
            rules = f"install {RULES} in /etc/udev/rules.d, and: sudo usermod -aG {group} $USER; then log in again"
            yield Finding(area, FAIL if must else WARN, f"/dev/{path.name}: this user may not open it", rules)


def _ports_of(config: Config | None) -> list[str]:
    """The device files that a configuration names, but for those of a network (``socket://``)."""
    ports = [source.options.get("port") for source in config.sources] if config else []
    return [port for port in ports if isinstance(port, str) and port.startswith("/")]


def check_bus_speed(machine: Machine, config: Config | None) -> Iterator[Finding]:
    """The clock of each bus as the device tree sets it, against what the configuration counts on."""
    asked_hz: dict[int | None, float] = {}
    for source in config.sources if config else ():
        bus, scl_hz = source.options.get("bus"), source.options.get("scl_hz", FAST_HZ)
        if source.kind == "ina" and isinstance(bus, int | str) and isinstance(scl_hz, int | float):
            asked_hz[bus_number(bus)] = float(scl_hz)
    for path in machine.paths("dev/i2c-[0-9]*"):
        try:
            node = machine.root / "sys/bus/i2c/devices" / path.name / "of_node/clock-frequency"
            speed_hz = int.from_bytes(node.read_bytes(), "big")
        except OSError:
            continue
        what = f"{path.name}: {speed_hz / 1000:g} kHz"
        asked = asked_hz.get(int(path.name.removeprefix("i2c-")), speed_hz)
        if abs(speed_hz / asked - 1) > 0.01:
            what += f", but the configuration counts on {asked / 1000:g} kHz"
            remedy = f"set scl_hz = {speed_hz} in its [[source]], or {BOOT}"
            yield Finding("bus speed", FAIL if speed_hz < asked else WARN, what, remedy)
        elif speed_hz < FAST_HZ:
            yield Finding("bus speed", WARN, f"{what}: the INA family takes 400 kHz", BOOT)
        else:
            yield Finding("bus speed", OK, what)


def check_sensors(machine: Machine, config: Config | None) -> Iterator[Finding]:
    """The INA chips that a configuration names, or all that answer. A powerd that measures is not disturbed."""
    if config is not None and machine.is_served(config.server.listen):
        what = f"a powerd listens on {config.server.listen}: its sensors are left alone"
        yield Finding("sensors", OK, what, "to have them looked at, stop it first; else see: powerd stats")
        return
    wanted: dict[int, list[tuple[Sensor, ChipSettings]]] = {} if config else {n: [] for n in buses(machine.root)}
    options: dict[int, RailsOptions] = {}
    for source in config.sources if config else ():
        bus = read_bus({"kind": source.kind, "name": source.name, **source.options}, source.where)
        if bus is not None and bus.number is not None:
            wanted.setdefault(bus.number, []).extend(bus.bank)
            options[bus.number] = bus.options
        elif bus is not None and isinstance(bus.options, SimOptions):
            with open_simulated(bus.options) as simulated:
                yield from _compare(source.name, list(bus.bank), scan_bus(simulated, SIMULATED_BUS))
    for number in sorted(wanted):
        try:
            with machine.open_bus(number) as opened:
                answers = scan_bus(opened, number, held_by_kernel(number, machine.root))
                found = [a.address for a in answers if a.config is not None]
                reads_ns = _reads_ns(machine.clock, opened, found[0]) if found else []
        except (PowerdError, OSError) as error:
            yield Finding("sensors", FAIL if config else WARN, f"i2c-{number}: {error}")
            continue
        if reads_ns:
            yield _compare_speed(
                f"i2c-{number}", reads_ns, options.get(number, RailsOptions()), must=config is not None
            )
        yield from _compare(f"i2c-{number}", wanted[number], answers)


def _reads_ns(clock: Clock, bus: RegisterBus, address: int) -> list[int]:
    """How long reads of a register take, the fastest first. Raises `OSError`."""
    read, durations_ns = bus.prepare([Read(address, CONFIG)]), []
    for _ in range(READS):
        begin_ns = clock.now_ns()
        read()
        durations_ns.append(clock.now_ns() - begin_ns)
    return sorted(durations_ns)


def _compare_speed(bus: str, reads_ns: list[int], o: RailsOptions, *, must: bool) -> Finding:
    """The times of reads against what the configuration says: adapters on USB take many times longer than the wire."""
    wire_ms, most_ns, verdict = (
        READ_PERIODS / o.scl_hz * 1e3,
        reads_ns[len(reads_ns) * 19 // 20],
        FAIL if must else WARN,
    )
    what = f"{bus}: reading a register takes {reads_ns[0] / 1e6:.2f} to {most_ns / 1e6:.2f} ms"
    # A quarter more than 95 % of the reads take, with two digits: what is beyond has been held up by this machine.
    read_us = float(f"{1.25 * most_ns / 1000:.1e}")
    if o.read_us:
        what += f", of which read_us = {o.read_us:g} allows {o.read_us / 1e3:g} ms"
        if most_ns > o.read_ns:
            return Finding("bus speed", verdict, what, f"set read_us = {read_us:g} in its [[source]]")
        return Finding("bus speed", OK, f"{what}: readings are known to +- {o.read_us / 2e3:g} ms")
    what += f", of which the wire at {o.scl_hz / 1000:g} kHz has {wire_ms:.2f} ms"
    if reads_ns[0] <= MOST_SLOW * wire_ms * 1e6:
        return Finding("bus speed", OK, what)
    remedy = f"set read_us = {read_us:g} in its [[source]], or powerd flags its readings as missing"
    return Finding("bus speed", verdict, what, remedy)


def _compare(bus: str, wanted: list[tuple[Sensor, ChipSettings]], answers: Iterable[FoundChip]) -> Iterator[Finding]:
    at = {answer.address: answer for answer in answers}
    for sensor, settings in wanted:
        where = f"{bus} {sensor.address:#04x} ({sensor.name})"
        answer = at.get(sensor.address)
        if answer is None:
            remedy = "check its supply, SDA and SCL, and its address pins; `powerd scan` shows what answers"
            yield Finding("sensors", FAIL, f"{where}: nothing answers", remedy)
        elif answer.chip != settings.chip:
            remedy = f'set chip = "{answer.chip}"' if answer.chip else "free the address for the sensor"
            what = f"{where}: is no {settings.chip}: {answer.chip or 'unknown'} by {answer.how}"
            yield Finding("sensors", FAIL, what, remedy)
        else:
            is_set_up = answer.config == dict(settings.words)[settings.type.config]
            state = "as configured" if is_set_up else "not set up by powerd yet"
            bus_v = next((c.bus_v for c in answer.channels if c.number == sensor.channel), 0.0)
            what = f"{where}: {settings.chip}, {state}, {bus_v:.2f} V"
            if bus_v < LOW_SHARE * sensor.nominal_v:
                remedy = "switch the supply on, or connect the sensor's bus pin (IN-) to the load's side of the shunt"
                yield Finding("sensors", WARN, f"{what} instead of {sensor.nominal_v:g} V", remedy)
            else:
                yield Finding("sensors", OK, what)
    named = {sensor.address for sensor, _ in wanted}
    for answer in at.values():
        if answer.address not in named and answer.chip:
            what = f"{bus} {answer.address:#04x}: {answer.chip} by {answer.how}"
            yield Finding("sensors", OK, what + (", not in the configuration" if wanted else ""))


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
    elif not _any_moves(machine, counters):
        what = f"{len(counters)} RAPL counters can be read and stand still, as in virtual machines: they count nothing"
        yield Finding("powercap", WARN, what, "leave the source 'rapl' out; kind = \"cpu-model\" models the processor")
    else:
        yield Finding("powercap", OK, f"{len(counters)} RAPL counters can be read")


def _any_moves(machine: Machine, counters: list[Path]) -> bool:
    """Whether any counter moves within a tenth of a second: they do each millisecond, about."""

    def values() -> list[bytes]:
        read = []
        for path in counters:
            with suppress(OSError):  # some kernels list zones that they cannot read
                read.append(path.read_bytes())
        return read

    before = values()
    machine.clock.sleep_until(machine.clock.now_ns() + LOOK_NS)
    return values() != before


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
    uuids = [nvml.ask("nvmlDeviceGetUUID", nvml.ask("nvmlDeviceGetHandleByIndex", i)) for i in range(count or 0)]
    nvml.stop()
    verdict = FAIL if must and not count else OK
    remedy = "see whether nvidia-smi lists a GPU, or leave the source 'nvml' out" if verdict == FAIL else ""
    yield Finding("nvml", verdict, f"{count or 0} GPU(s), driver {driver}", remedy)
    given = [s.options.get("calibration", "") for s in (config.sources if config else ()) if s.kind == "nvml"]
    try:
        file = load_gpus(gpu_file_path(str(given[0]) if given else ""))
    except ConfigError as error:
        yield Finding("nvml", FAIL if must else WARN, str(error), "mend the file, or remove it and identify again")
        return
    for i, uuid in enumerate(uuids):
        yield _response_of(f"gpu{i}", file.of(str(uuid), str(driver)))


def _response_of(name: str, known: GpuFile) -> Finding:
    """Whether somebody has identified how the driver sees this GPU's power, and calibrated it."""
    gain = f"gain calibrated {known.gain[0].taken[:10]}" if known.gain else "gain as published, within 5 %"
    if not known.response:
        return Finding("nvml", OK, f"{name}: response assumed, {gain}", f"powerd identify {name}")
    response = known.response[0]
    return Finding("nvml", OK, f"{name}: response identified {response.taken[:10]} ({response.text}), {gain}")


def check_asked(machine: Machine, config: Config | None) -> Iterator[Finding]:
    """Sources that ask a driver, a BMC, a plug or a program, each opened once: nothing else tells that it answers."""
    if config is None or machine.is_served(config.server.listen):
        return
    for source in config.sources:
        if source.kind in ASKED:
            yield _open_once(source, machine.clock)


def _open_once(source: SourceConfig, clock: Clock) -> Finding:
    opened = make_source(source, find_source(source.kind), Start(source.name, 1, 0, clock))
    try:
        streams, _ = opened.open()
    except PowerdError as error:
        verdict = WARN if source.sampler.optional else FAIL
        return Finding("sources", verdict, f"{source.name} ({source.kind}): {error}")
    finally:
        with suppress(PowerdError):
            opened.close()
    count = sum(len(stream.lines) for stream in streams)
    return Finding("sources", OK, f"{source.name} ({source.kind}) answers: {plural(count, 'line')}")


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
    else:
        remedy = "leave the CPU alone, set its governor to performance, or give the source a real-time priority"
        yield Finding("scheduler", WARN, what, remedy)


def check_disk(machine: Machine, directory: Path) -> Finding:
    """Free space, writing and syncing in the directory where a run or a spool would go."""
    begin_ns = machine.clock.now_ns()
    try:
        space = os.statvfs(directory)
        free_bytes = space.f_bavail * space.f_frsize
        if free_bytes < 4 * PROBE_BYTES:
            return Finding("disk", FAIL, f"{directory}: {free_bytes / 1e6:.0f} MB free", ROOM)
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(os.urandom(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        remedy = "make it, chown it to the user that measures, or name another with --directory"
        return Finding("disk", FAIL, f"{directory} cannot be written: {error.strerror}", remedy)
    speed = PROBE_BYTES * 1e9 / max(machine.clock.now_ns() - begin_ns, 1)
    what = f"{directory}: {free_bytes / 1e9:.1f} GB free, writes {speed / 1e6:.0f} MB/s"
    if free_bytes < SMALL_BYTES:
        return Finding("disk", WARN, what, ROOM)
    if speed < SLOW_BYTES_PER_S:
        return Finding("disk", WARN, what, "use a faster medium (a worn SD card writes like this)")
    return Finding("disk", OK, what)
