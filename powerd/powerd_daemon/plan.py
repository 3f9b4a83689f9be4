"""`powerd plan`: what a bus of INA sensors can do and how sure its lines are, by arithmetic alone.

`powerd run` refuses what the arithmetic shows to be impossible. The buses are read from the configuration without
building its sources: these would refuse what a plan explains.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import hypot, sqrt
from pathlib import Path
from textwrap import fill
from typing import Any

from powerd_core.errors import ConfigError, PowerdError
from powerd_core.model import Accuracy
from powerd_core.serde import build_options
from powerd_core.text import did_you_mean, printable
from powerd_daemon.commands import finite
from powerd_daemon.config import Document, SamplerConfig, load_config
from powerd_daemon.sources.base import find_source
from powerd_daemon.sources.ina.bus import FUNC_BLOCK, FUNC_I2C, OpenBus, open_bus, scan_periods, split
from powerd_daemon.sources.ina.chips import ChipSettings, Grade
from powerd_daemon.sources.ina.scanner import reads_of
from powerd_daemon.sources.ina.sensor_accuracy import Bank, Sensor, bus_number, calibrated_by, make_bank
from powerd_daemon.sources.ina.source import RailsOptions, RailsSource
from powerd_daemon.toml_files import read_document

COVERAGE_FACTOR = 2
"""Of expanded uncertainties: about 95 % of a normal distribution (GUM 6.3.3)."""
HEADROOM = 2
"""A line whose load is expected to be less than so many times below its clip is warned of: peaks are higher."""
MOST_SHUNT_OHM = 1.0
"""A shunt above this was probably given in milliohms."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Bus:
    """What is asked of one bus: a source's options, and its sensors with the settings of their chips."""

    source: str
    where: str
    """Begins every problem, such as ``powerd.toml: [[source]] 1 (ina)``."""
    number: int | None
    """Of /dev/i2c-N; None for a simulated bus."""
    options: RailsOptions
    bank: Bank
    loads_w: Mapping[str, float] = field(default_factory=dict)
    """Expected power of lines, where the source itself knows it."""
    combined: bool | None = None
    """Whether the adapter combines reads; None where that is not known here, and the slower way is assumed."""
    functions: int | None = None
    """What the adapter says that it can do (I2C_FUNCS), where it could be asked."""

    @property
    def is_smbus(self) -> bool:
        """Whether the adapter knows transfers of SMBus only."""
        return self.functions is not None and not self.functions & FUNC_I2C


@dataclass(frozen=True, slots=True)
class Budget:
    """The error budget of one line."""

    line: str
    device: str
    sensor: Sensor
    settings: ChipSettings
    accuracy: Accuracy
    """Standard uncertainties, calibration included."""

    @property
    def limits(self) -> Grade:
        """The chip's own, relative half-widths and volts."""
        return self.settings.grade(self.sensor.grade)

    @property
    def offset_a(self) -> float:
        """Limit of the zero."""
        return self.limits.offset_v[self.settings.shunt_range] / self.sensor.shunt_ohm

    @property
    def step_a(self) -> float:
        return self.accuracy.step_w / self.sensor.nominal_v

    @property
    def clip_a(self) -> float:
        return self.settings.clip_a(self.sensor.shunt_ohm)

    @property
    def clip_w(self) -> float:
        return self.clip_a * self.sensor.nominal_v

    def u_w(self, power_w: float) -> float:
        """Standard uncertainty of one reading of a steady power: gain, zero and quantisation."""
        a = self.accuracy
        return hypot(a.u_gain * power_w, a.u_offset_w, a.step_w / sqrt(12))


@dataclass(frozen=True, slots=True)
class Mode:
    """One way of reading the bus."""

    combined: bool
    periods: float
    """SCL periods of a scan, on average over ``bus_every`` scans."""
    transactions: float
    limit_hz: float
    """Scans a second that fill the wire."""


@dataclass(frozen=True, slots=True)
class BusPlan:
    """The arithmetic of one bus."""

    bus: Bus
    modes: tuple[Mode, Mode]
    """Combined transactions, then single ones."""
    budgets: tuple[Budget, ...]
    achievable_hz: float
    """What wire and chips allow in the adapter's mode (the slower one where it is not known)."""
    problems: tuple[str, ...]
    """Why it cannot work, whatever the adapter is."""
    doubts: tuple[str, ...]
    """Why it cannot work if the adapter reads singly, where it is not known how the adapter reads."""

    @property
    def questions(self) -> tuple[str, ...]:
        """What looks like a mistake, and can be meant."""
        asked = (shunt_question(b.line, b.sensor.shunt_ohm) for b in self.budgets)
        return tuple(question for question in asked if question is not None)

    @property
    def verdict(self) -> str:
        """The one line on the rate: what is achievable, what is asked, and whether that is enough."""
        asked_hz, word = self.bus.options.rate_hz, "enough"
        if self.achievable_hz < asked_hz:
            word = "too slow, unless the adapter combines reads" if self.doubts else "too slow"
        return f"achievable {rate_text(self.achievable_hz)} Hz, asked {asked_hz:g} Hz: {word}"


def plan_bus(bus: Bus) -> BusPlan:
    """The plan of one bus."""
    o = bus.options
    modes = (_mode(bus, combined=True), _mode(bus, combined=False))
    budgets = []
    for sensor, settings in bus.bank:
        device = sensor.device or o.device
        budgets.append(Budget(f"{device}.{sensor.name}", device, sensor, settings, o.accuracy(sensor, settings)))
    best, problems, doubts = modes[0 if bus.combined else 1], list[str](), list[str]()
    if o.rate_hz > best.limit_hz:
        pace = f"{best.periods:g} SCL periods a scan at {o.scl_hz / 1000:g} kHz"
        if o.read_us:
            pace = f"{best.transactions:g} reads a scan of up to {o.read_us / 1000:g} ms"
        is_known = bus.combined is not None or o.rate_hz > modes[0].limit_hz
        (problems if is_known else doubts).append(
            f"rate_hz = {o.rate_hz:g} is more than the bus can carry: {pace} allow {best.limit_hz:.1f} scans a second"
        )
    slowest_ns = bus.bank.longest_cycle_ns
    if o.rate_hz * slowest_ns > 1e9:
        names = ", ".join(sensor.name for sensor, settings in bus.bank if settings.longest_cycle_ns == slowest_ns)
        problems.append(
            f"rate_hz = {o.rate_hz:g} is more than the chips of {names} convert: a cycle lasts up to "
            f"{slowest_ns / 1e6:.3f} ms, which allows {1e9 / slowest_ns:.0f} Hz"
        )
    problems += [
        f"{sensor.name}: nominal_v = {sensor.nominal_v:g} is more than its chip measures: {settings.clip_bus_v:g} V"
        for sensor, settings in bus.bank
        if sensor.nominal_v > settings.clip_bus_v
    ]
    if bus.is_smbus and not (bus.functions or 0) & FUNC_BLOCK:
        problems += [
            f"{sensor.name}: this adapter cannot read the {settings.type.code_bytes} bytes of a register, only words"
            for sensor, settings in bus.bank
            if settings.type.code_bytes != 2
        ]
    return BusPlan(bus, modes, tuple(budgets), min(best.limit_hz, 1e9 / slowest_ns), tuple(problems), tuple(doubts))


def _mode(bus: Bus, *, combined: bool) -> Mode:
    o, lines = bus.options, range(len(bus.bank.sensors))
    # One scan with the bus voltages, the others with what the pointers stand on.
    scans = [reads_of(bus.bank, lines, with_bus=k == 0) for k in range(o.bus_every)]
    if bus.is_smbus and not combined:  # SMBus sends the pointer each time
        scans = [[r if r.register is not None else r._replace(register=0) for r in reads] for reads in scans]
    periods = sum(scan_periods(reads, combined=combined) for reads in scans) / len(scans)
    transactions = sum(len(split(reads)) if combined else len(reads) for reads in scans) / len(scans)
    return Mode(combined, periods, transactions, o.pace_hz / periods)


def load_faults(plan: BusPlan, loads_w: Mapping[str, float]) -> list[str]:
    """The lines that would clip at their loads: their readings would be saturated, and no uncertainty holds for them.

    ``loads_w``: as of `line_loads_w`, of all lines.
    """
    return [
        f"{b.line}: {loads_w[b.line]:.1f} W is above {b.clip_w:.1f} W, where it clips: {_remedy(b, loads_w[b.line])}"
        for b in plan.budgets
        if loads_w[b.line] > b.clip_w
    ]


def load_warnings(plan: BusPlan, loads_w: Mapping[str, float]) -> list[str]:
    """The lines whose expected loads leave little room for peaks. What a simulated bus says of itself is its peak."""
    return [
        f"{b.line}: {loads_w[b.line]:.1f} W leaves little room below {b.clip_w:.1f} W, where it clips: "
        f"{_remedy(b, loads_w[b.line])}"
        for b in plan.budgets
        if loads_w[b.line] <= b.clip_w < HEADROOM * loads_w[b.line] * (1 - 1e-9)
    ]


def _remedy(b: Budget, load_w: float) -> str:
    shunt_ohm = b.sensor.shunt_ohm * b.clip_w / (HEADROOM * load_w)
    return f"use a smaller shunt, of at most {shunt_ohm:.2g} ohm"


def shunt_question(name: str, shunt_ohm: object) -> str | None:
    """What is asked about a sensor whose shunt seems to be given in milliohms."""
    if not isinstance(shunt_ohm, int | float) or shunt_ohm <= MOST_SHUNT_OHM:
        return None
    return f"{name}: shunt_ohm = {shunt_ohm:g} is much for a shunt: did you mean {shunt_ohm / 1000:g}?"


def rate_text(hz: float) -> str:
    """Hertz for people: whole, or with three digits where they are few."""
    return f"{hz:.0f}" if hz >= 100 else f"{hz:.3g}"


def plan_text(plan: BusPlan, loads_w: Mapping[str, float]) -> str:
    """The arithmetic of one bus. ``loads_w`` gives a line's or a device's expected power: of these alone it is warned,
    not of peaks that the source itself knows."""
    bus, o = plan.bus, plan.bus.options
    where = "simulated bus" if bus.number is None else f"/dev/i2c-{bus.number}"
    loads = line_loads_w(plan.budgets, loads_w or bus.loads_w)
    pace = f"{where} at {o.scl_hz / 1000:g} kHz" + (f", {o.read_us / 1000:g} ms a read" if o.read_us else "")
    rows = [f"{bus.source}: {pace}, {len(plan.budgets)} lines, {o.rate_hz:g} Hz asked"]
    rows += ["", "  on the wire   SCL periods/scan transactions  scans/s"]
    for mode in plan.modes:
        name, note = "combined" if mode.combined else "single reads", ""
        if bool(bus.combined) is mode.combined:
            note = "  <- this adapter" if bus.combined is not None else "  <- assumed (--adapter)"
        rows.append(f"  {name:<13} {mode.periods:16.1f} {mode.transactions:12.1f} {mode.limit_hz:8.1f}{note}")
    if bus.is_smbus:
        rows.append(f"  {smbus_note(plan)}")
    rows += ["", "  conversions      shunt us  bus us  averages  cycle us (most)  codes/s  covered"]
    for s in dict.fromkeys(b.settings for b in plan.budgets):
        count = sum(b.settings == s for b in plan.budgets)
        rows.append(
            f"  {f'{count} x {s.chip}':<15} {s.shunt_adc_ns / 1000:>9.0f} {s.bus_adc_ns / 1000:>7.0f} {s.averages:>9}"
            f"  {f'{s.cycle_ns / 1000:.0f} ({s.longest_cycle_ns / 1000:.0f})':>15}  {1e9 / s.longest_cycle_ns:7.0f}"
            f"  {s.coverage:7.1%}"
        )
    rows += ["", f"  {plan.verdict}", ""]
    rows.append("  limits                I gain V gain shunt  zero mA  step mA clips at A       W")
    rows += [
        f"  {b.line:<21} {b.limits.current_gain:6.2%} {b.limits.bus_gain:6.2%} {b.sensor.shunt_tolerance:5.2%}"
        f" {b.offset_a * 1000:8.3f} {b.step_a * 1000:8.4f} {b.clip_a:10.3f} {b.clip_w:7.1f}"
        for b in plan.budgets
    ]
    rows += ["", f"  one reading, U = {COVERAGE_FACTOR} u            W    u W     U W     U %"]
    rows += [_uncertainty(b.line, [b], loads) for b in plan.budgets]
    for device in dict.fromkeys(b.device for b in plan.budgets):
        fed_by = [b for b in plan.budgets if b.device == device]
        if len(fed_by) > 1:
            rows.append(_uncertainty(f"{device}, {len(fed_by)} lines", fed_by, loads))
    rows += [f"  refused: {problem}" for problem in (*plan.problems, *plan.doubts)]
    rows += [f"  fault: {fault}" for fault in load_faults(plan, loads)]
    rows += [f"  warning: {warning}" for warning in (load_warnings(plan, loads) if loads_w else ())]
    rows += [f"  question: {question}" for question in plan.questions]
    return "\n".join(map(_folded, rows)) + "\n"


def _folded(row: str) -> str:
    """A row of at most 80 columns; names and options stay whole."""
    return fill(printable(row), 80, subsequent_indent="      ", break_on_hyphens=False, break_long_words=False,
                drop_whitespace=len(row) > 80)  # fmt: skip


def smbus_note(plan: BusPlan) -> str:
    """By how much an adapter is slower that knows SMBus only."""
    combined, single = plan.modes
    return (
        f"the adapter of /dev/i2c-{plan.bus.number} knows SMBus only and cannot combine reads: "
        f"{1 - single.limit_hz / combined.limit_hz:.1%} slower on the wire, and {single.transactions:g} system calls a "
        f"scan instead of {combined.transactions:g}"
    )


def _uncertainty(name: str, budgets: Sequence[Budget], loads: Mapping[str, float]) -> str:
    """The sum of some lines: the errors of different chips and shunts are independent."""
    power_w = sum(loads[b.line] for b in budgets)
    if any(loads[b.line] > b.clip_w for b in budgets):
        return f"  {name:<22}  {power_w:9.1f}  clips: no uncertainty holds"
    u_w = COVERAGE_FACTOR * hypot(*(b.u_w(loads[b.line]) for b in budgets))
    share = f"{u_w / power_w:7.2%}" if power_w > 0 else "      -"
    return f"  {name:<22}  {power_w:9.1f}  {u_w / COVERAGE_FACTOR:5.3f}  {u_w:6.3f} {share}"


def line_loads_w(budgets: Iterable[Budget], loads_w: Mapping[str, float]) -> dict[str, float]:
    """The expected power of each line: as given, or its part of what is given for its device, or half of full load.

    Parts are in proportion to what the lines can carry.
    """
    powers_w: dict[str, float] = {}
    budgets = list(budgets)
    for b in budgets:
        mates = [o for o in budgets if o.device == b.device]
        if b.line in loads_w:
            powers_w[b.line] = loads_w[b.line]
        elif b.device in loads_w:
            rest_w = loads_w[b.device] - sum(loads_w.get(o.line, 0.0) for o in mates)
            powers_w[b.line] = rest_w * b.clip_w / sum(o.clip_w for o in mates if o.line not in loads_w)
        else:
            powers_w[b.line] = b.clip_w / 2
    return powers_w


def plan_file(path: Path, *, combined: bool | None = None) -> list[BusPlan]:
    """The plan of every bus in a configuration file; ``combined`` says what adapters can do of which the file does not
    tell. Raises `ConfigError`."""
    tables = build_options(Document, read_document(path), str(path)).source
    buses = [read_bus(table, f"{path}: [[source]] {i} ({table.get('kind')})") for i, table in enumerate(tables, 1)]
    return [plan_bus(b if b.combined is not None else replace(b, combined=combined)) for b in buses if b is not None]


def plan_here(path: Path, *, combined: bool | None = None, open_bus: OpenBus = open_bus) -> list[BusPlan]:
    """The same with what the adapters of this machine say. Raises `ConfigError`."""
    return [ask_adapter(plan, open_bus) for plan in plan_file(path, combined=combined)]


def ask_adapter(plan: BusPlan, open_bus: OpenBus = open_bus) -> BusPlan:
    """The same plan with what the adapter of its bus says, where that bus is here and may be opened."""
    if plan.bus.number is None:
        return plan
    try:
        with open_bus(plan.bus.number) as adapter:
            functions = adapter.functions
    except (PowerdError, OSError):
        return plan
    # One that makes transfers of any form need not take several reads at once: that shows when it is tried.
    combined = plan.bus.combined if functions & FUNC_I2C else False
    return plan_bus(replace(plan.bus, functions=functions, combined=combined))


def refuse(path: Path) -> None:
    """Raise `ConfigError` for a configuration that asks for more than any bus or its chips can do: which adapter it is
    is found when the bus is opened. What looks like a mistake is logged."""
    for plan in plan_file(path, combined=True):
        for problem in plan.problems:
            raise ConfigError(f"{plan.bus.where}: {problem}; the arithmetic: powerd plan {path}")
        for question in plan.questions:
            _log.warning("%s: %s", plan.bus.where, question)


def read_bus(table: Mapping[str, Any], where: str) -> Bus | None:
    """The bus of a ``[[source]]``, or None for a kind that has none. Raises `ConfigError`."""
    kind = table.get("kind")
    cls = find_source(kind) if isinstance(kind, str) else None
    if cls is None or not issubclass(cls, RailsSource):
        return None
    common = {"kind", "name", *(f.name for f in fields(SamplerConfig))}
    options: Any = build_options(cls.Options, {k: v for k, v in table.items() if k not in common}, where)
    try:
        if hasattr(options, "adapter"):  # a simulated bus
            number, sensors = None, options.all_sensors()
            combined: bool | None = options.adapter == "combined" and not options.read_us
            loads_w = {f"{options.device}.{n}": share * options.peak_w for n, share in options.shares().items()}
        else:
            # Where an adapter combines reads is found by probing.
            number, combined, loads_w = bus_number(options.bus), False if options.read_us else None, {}
            sensors, _ = calibrated_by(options.calibration, options.sensors, bus=options.bus)
        return Bus(str(table.get("name", kind)), where, number, options, make_bank(sensors), loads_w, combined)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `powerd plan`."""
    parser.epilog = "powerd plan powerd.toml --load gpu0=250"
    parser.add_argument("file", type=Path, metavar="FILE", help="a configuration")
    loads = "expected power of a line or a device, in watts"
    parser.add_argument("--load", type=_load, action="append", default=[], metavar="NAME=W", help=loads)
    adapters = "how I2C adapters read: combined, as a BeagleBone's, or single, as a Raspberry Pi's (default)"
    parser.add_argument("--adapter", choices=("combined", "single"), help=adapters)


def _load(text: str) -> tuple[str, float]:
    name, _, watts = text.rpartition("=")
    power_w = finite(watts)
    if not name or power_w < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=WATTS, such as gpu0=250")
    return name, power_w


def run(arguments: argparse.Namespace) -> None:
    """Raises `ConfigError` after printing when a bus or its chips cannot do what is asked of them, or would clip."""
    adapter = None if arguments.adapter is None else arguments.adapter == "combined"
    plans = plan_here(arguments.file, combined=adapter)
    loads_w = dict(arguments.load)
    names = {name for p in plans for b in p.budgets for name in (b.line, b.device)}
    for name in loads_w.keys() - names:
        raise ConfigError(f"--load: unknown line or device {name!r}{did_you_mean(name, names)}")
    for p in plans:
        if min(line_loads_w(p.budgets, loads_w).values()) < 0:
            raise ConfigError("--load: single lines add up to more than their device")
        print(plan_text(p, loads_w))
    for p in plans:
        for problem in p.problems:
            raise ConfigError(f"{p.bus.where}: {problem}")
        for doubt in p.doubts:
            raise ConfigError(f"{p.bus.where}: {doubt} (if your adapter combines reads: --adapter combined)")
        faults = load_faults(p, line_loads_w(p.budgets, loads_w or p.bus.loads_w))
        if faults:
            more = f" (and {len(faults) - 1} more lines)" if len(faults) > 1 else ""
            raise ConfigError(f"{p.bus.where}: {faults[0]}{more}")
    load_config(arguments.file)
    if not plans:
        print(f"{arguments.file}: no source reads a bus of sensors (kinds ina and sim): nothing to plan")
