"""`powerd plan`: what a bus of INA sensors can do and how sure its lines are, by arithmetic alone.

`powerd run` refuses what the arithmetic shows to be impossible. The buses are read from the configuration without
building its sources: these would refuse what a plan explains.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import hypot, sqrt
from pathlib import Path
from typing import Any

from powerd_core.errors import ConfigError
from powerd_core.model import Accuracy
from powerd_core.serde import build_options
from powerd_core.text import did_you_mean, printable
from powerd_daemon.calibration_file import bus_number, calibrated_by
from powerd_daemon.config import NO_FILE, SamplerConfig, load_config, parse_document, read_text
from powerd_daemon.sources.base import find_source
from powerd_daemon.sources.ina.bus import BUS_FREE_PERIODS, Read, split
from powerd_daemon.sources.ina.chips import Grade, Settings
from powerd_daemon.sources.ina.scanner import VERIFY_NS, mean_periods, reads_of, wire_limit_hz
from powerd_daemon.sources.ina.sensor import Bank, Sensor, accuracy, make_bank
from powerd_daemon.sources.ina.source import RailsSource

COVERAGE_FACTOR = 2
"""Of expanded uncertainties: about 95 % of a normal distribution (GUM 6.3.3)."""


@dataclass(frozen=True, slots=True)
class Bus:
    """What is asked of one bus: a source's options, and its sensors with the settings of their chips."""

    source: str
    where: str
    """Begins every problem, such as ``powerd.toml: [[source]] 1 (ina)``."""
    number: int | None
    """Of /dev/i2c-N; None for a simulated bus."""
    scl_hz: float
    rate_hz: float
    device: str
    bank: Bank
    bus_every: int = 1
    """The bus voltage is read in every so many scans."""
    loads_w: Mapping[str, float] = field(default_factory=dict)
    """Expected power of lines, where the source itself knows it."""
    bus_hold: float = 0.0
    """How far (relative) a bus voltage may move while its code is held."""
    combined: bool | None = None
    """Whether the adapter combines reads; None where that is found by probing."""

    @property
    def period_ns(self) -> int:
        return round(1e9 / self.rate_hz)

    @property
    def check_periods(self) -> float:
        """SCL periods a second for reading the chips' configurations back."""
        chips = {
            s.address: len(settings.words) for s, settings in zip(self.bank.sensors, self.bank.settings, strict=True)
        }
        one = Read(0, 0).periods + 1 + BUS_FREE_PERIODS
        return sum(chips.values()) * one * 1e9 / VERIFY_NS


@dataclass(frozen=True, slots=True)
class Budget:
    """The error budget of one line: limits of the chip and the shunt, and the uncertainties that follow."""

    line: str
    device: str
    sensor: Sensor
    settings: Settings
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

    @property
    def shunt_w(self) -> float:
        """What the shunt itself turns into heat at the clipping limit."""
        return self.clip_a**2 * self.sensor.shunt_ohm

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
    """Scans a second that would fill the wire."""
    checked_hz: float
    """What the configurations' read-backs leave of them."""


@dataclass(frozen=True, slots=True)
class BusPlan:
    """The arithmetic of one bus."""

    bus: Bus
    modes: tuple[Mode, Mode]
    """Combined transactions, then single ones."""
    budgets: tuple[Budget, ...]
    problems: tuple[str, ...]
    """Why it cannot work; empty for a plan that does."""

    @property
    def conversion_hz(self) -> float:
        """New codes a second of the slowest chip, at the slow end of its clock."""
        return 1e9 / self.bus.bank.longest_cycle_ns

    @property
    def achievable_hz(self) -> float:
        """What bus and chips allow in the adapter's mode (the better one where it is not known)."""
        mode = self.modes[1 if self.bus.combined is False else 0]
        return min(mode.checked_hz, self.conversion_hz)


def plan_bus(bus: Bus) -> BusPlan:
    """The plan of one bus."""
    modes = (_mode(bus, combined=True), _mode(bus, combined=False))
    budgets = tuple(_budget(bus, *pair) for pair in zip(bus.bank.sensors, bus.bank.settings, strict=True))
    return BusPlan(bus, modes, budgets, _judge(bus, modes))


def _mode(bus: Bus, *, combined: bool) -> Mode:
    lines = range(len(bus.bank.sensors))
    # One scan with the bus voltages, the others with what the pointers stand on.
    scans = [reads_of(bus.bank, lines, with_bus=k == 0) for k in range(bus.bus_every)]
    periods = mean_periods(bus.bank, combined=combined, bus_every=bus.bus_every)
    transactions = sum(len(split(reads)) if combined else len(reads) for reads in scans) / len(scans)
    limit_hz = wire_limit_hz(bus.bank, bus.scl_hz, combined=combined, bus_every=bus.bus_every)
    checked_hz = limit_hz * max(1 - bus.check_periods / bus.scl_hz, 0.0)
    return Mode(combined, periods, transactions, limit_hz, checked_hz)


def _budget(bus: Bus, sensor: Sensor, settings: Settings) -> Budget:
    hold = bus.bus_hold if bus.bus_every > 1 else 0.0
    uncertainty = accuracy(sensor, settings, period_ns=bus.period_ns, bus_hold=hold)
    device = sensor.device or bus.device
    return Budget(f"{device}.{sensor.name}", device, sensor, settings, uncertainty)


def _judge(bus: Bus, modes: tuple[Mode, Mode]) -> tuple[str, ...]:
    problems = []
    best = modes[1 if bus.combined is False else 0]
    if bus.rate_hz > best.limit_hz:
        problems.append(
            f"rate_hz = {bus.rate_hz:g} is more than the bus can carry: {best.periods:g} SCL periods a scan at "
            f"{bus.scl_hz / 1000:g} kHz allow {best.limit_hz:.0f} scans a second"
        )
    alike: dict[Settings, list[str]] = {}
    for sensor, settings in zip(bus.bank.sensors, bus.bank.settings, strict=True):
        alike.setdefault(settings, []).append(sensor.name)
        if sensor.nominal_v > settings.clip_bus_v:
            problems.append(
                f"{sensor.name}: nominal_v = {sensor.nominal_v:g} is more than its chip measures: "
                f"{settings.clip_bus_v:g} V"
            )
    for settings, names in alike.items():
        longest_ns = settings.longest_cycle_ns
        if bus.rate_hz * longest_ns > 1e9:
            problems.append(
                f"rate_hz = {bus.rate_hz:g} is more than the {settings.chip} of {', '.join(names)} converts: a cycle "
                f"lasts up to {longest_ns / 1e6:.3f} ms, which allows {1e9 / longest_ns:.0f} Hz"
            )
    return tuple(problems)


def plan_text(plan: BusPlan, loads_w: Mapping[str, float]) -> str:
    """The arithmetic of one bus. ``loads_w`` gives a line's or a device's expected power."""
    bus = plan.bus
    where = "simulated bus" if bus.number is None else f"/dev/i2c-{bus.number}"
    loads = line_loads_w(plan.budgets, loads_w or bus.loads_w)
    rows = [f"{bus.source}: {where} at {bus.scl_hz / 1000:g} kHz, {len(plan.budgets)} lines, {bus.rate_hz:g} Hz asked"]
    rows += ["", "  on the wire      SCL periods/scan  transactions  wire limit  with read-backs"]
    rows += [_mode_row(mode, chosen=bus.combined) for mode in plan.modes]
    rows.append(f"  configurations are read back with {bus.check_periods:.0f} of {bus.scl_hz:.0f} SCL periods a second")
    if bus.bus_every > 1:
        rows.append(
            f"  bus voltages are read in every {bus.bus_every}th scan; the others read shunts behind kept pointers"
        )
    rows += ["", "  conversions             shunt us  bus us  averages  cycle us (at most)  codes/s  current covered"]
    rows += _conversions(plan.budgets)
    verdict = "enough" if plan.achievable_hz >= bus.rate_hz else "too slow"
    rows += ["", f"  achievable {plan.achievable_hz:.0f} Hz, asked {bus.rate_hz:g} Hz: {verdict}", ""]
    rows.append("  limits                  I gain  V gain  shunt   zero mA   step mA  clips at A       W  shunt W")
    rows += [_limits(b) for b in plan.budgets]
    k = COVERAGE_FACTOR
    rows += [
        "",
        f"  uncertainty of one reading (u standard, U = {k} u)      at load W  u W     U W     U %"
        "    at full W  u W     U W     U %",
    ]
    rows += [_uncertainty(b.line, [b], loads) for b in plan.budgets]
    for device in dict.fromkeys(b.device for b in plan.budgets):
        fed_by = [b for b in plan.budgets if b.device == device]
        if len(fed_by) > 1:
            rows.append(_uncertainty(f"{device}, sum of {len(fed_by)} lines", fed_by, loads))
    rows += [f"  refused: {problem}" for problem in plan.problems]
    return "\n".join(map(printable, rows)) + "\n"


def line_loads_w(budgets: Iterable[Budget], loads_w: Mapping[str, float]) -> dict[str, float]:
    """The expected power of each line: as given, or its part of what is given for its device, or half of full load.

    Parts are in proportion to what the lines can carry.
    """
    powers_w: dict[str, float] = {}
    budgets = list(budgets)
    for b in budgets:
        if b.line in loads_w:
            powers_w[b.line] = loads_w[b.line]
        elif b.device in loads_w:
            others = [o for o in budgets if o.device == b.device and o.line not in loads_w]
            rest_w = loads_w[b.device] - sum(
                loads_w[o.line] for o in budgets if o.device == b.device and o.line in loads_w
            )
            powers_w[b.line] = rest_w * b.clip_w / sum(o.clip_w for o in others)
        else:
            powers_w[b.line] = b.clip_w / 2
    return powers_w


def _mode_row(mode: Mode, *, chosen: bool | None) -> str:
    name = "combined" if mode.combined else "single reads"
    note = "  <- this adapter" if chosen is mode.combined else ""
    return (
        f"  {name:<16} {mode.periods:16.1f}  {mode.transactions:12.1f}  {mode.limit_hz:7.1f} Hz  "
        f"{mode.checked_hz:11.1f} Hz{note}"
    )


def _conversions(budgets: Iterable[Budget]) -> list[str]:
    """One row for all lines that convert alike."""
    alike: dict[Settings, list[str]] = {}
    for b in budgets:
        alike.setdefault(b.settings, []).append(b.line)
    return [
        f"  {f'{len(lines)} x {s.chip}' if len(lines) > 1 else f'{lines[0]} ({s.chip})':<22} "
        f"{s.shunt_adc_ns / 1000:>9.0f} {s.bus_adc_ns / 1000:>7.0f} {s.averages:>9}  {s.cycle_ns / 1000:>8.0f} "
        f"({s.longest_cycle_ns / 1000:.0f})  {1e9 / s.longest_cycle_ns:7.0f}  {s.coverage:.1%}"
        for s, lines in alike.items()
    ]


def _limits(b: Budget) -> str:
    gains = f"{b.limits.current_gain:6.2%}  {b.limits.bus_gain:6.2%}  {b.sensor.shunt_tolerance:5.2%}"
    return (
        f"  {b.line:<22} {gains}  {b.offset_a * 1000:8.3f}  {b.step_a * 1000:8.4f}  {b.clip_a:10.3f}  {b.clip_w:6.1f}"
        f"  {b.shunt_w:7.2f}"
    )


def _uncertainty(name: str, budgets: Sequence[Budget], loads: Mapping[str, float]) -> str:
    """The sum of some lines: the errors of different chips and shunts are independent."""
    row = f"  {name:<54}"
    for width, powers_w in ((9, [loads[b.line] for b in budgets]), (11, [b.clip_w for b in budgets])):
        power_w, u_w = sum(powers_w), hypot(*(b.u_w(p) for b, p in zip(budgets, powers_w, strict=True)))
        share = f"{COVERAGE_FACTOR * u_w / power_w:7.2%}" if power_w > 0 else "      -"
        row += f"  {power_w:{width}.1f}  {u_w:6.3f}  {COVERAGE_FACTOR * u_w:6.3f} {share}"
    return row


def plan_file(path: Path) -> list[BusPlan]:
    """The plan of every bus in a configuration file. Raises `ConfigError`."""
    tables = parse_document(read_text(path, NO_FILE), str(path)).get("source", [])
    if not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
        raise ConfigError(f"{path}: 'source' is a list of tables: write [[source]]")
    buses = [read_bus(table, f"{path}: [[source]] {i}") for i, table in enumerate(tables, 1)]
    return [plan_bus(bus) for bus in buses if bus is not None]


def refuse(path: Path) -> None:
    """Raise `ConfigError` for a configuration that asks for more than a bus or its chips can do.

    What is wrong with it otherwise is left to `load_config`, which tells it better.
    """
    try:
        plans = plan_file(path)
    except ConfigError:
        return
    for plan in plans:
        for problem in plan.problems:
            raise ConfigError(f"{plan.bus.where}: {problem}; the arithmetic: powerd plan {path}")


def read_bus(table: Mapping[str, Any], where: str) -> Bus | None:
    """The bus of a ``[[source]]``, or None for a kind that has none. Raises `ConfigError`."""
    kind = table.get("kind")
    if not isinstance(kind, str):
        return None
    cls = find_source(kind)
    if not issubclass(cls, RailsSource):
        return None
    if not where.endswith(f"({kind})"):
        where = f"{where} ({kind})"
    common = {"kind", "name", *(f.name for f in fields(SamplerConfig))}
    given = {name: value for name, value in table.items() if name not in common}
    options: Any = build_options(cls.Options, given, where)
    try:
        if hasattr(options, "adapter"):  # a simulated bus
            number, sensors, combined = None, options.all_sensors(), options.adapter == "combined"
            loads_w = {f"{options.device}.{n}": share * options.peak_w for n, share in options.shares().items()}
        else:
            # Where an adapter combines reads is found by probing.
            number, combined, loads_w = bus_number(options.bus), None, {}
            sensors, _ = calibrated_by(getattr(options, "calibration", ""), options.sensors, bus=options.bus)
        return Bus(
            source=str(table.get("name", kind)),
            where=where,
            number=number,
            scl_hz=options.scl_hz,
            rate_hz=options.rate_hz,
            device=options.device,
            bank=make_bank(sensors),
            bus_every=options.bus_every,
            bus_hold=options.bus_hold,
            combined=combined,
            loads_w=loads_w,
        )
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def plan(arguments: argparse.Namespace) -> None:
    """Raises `ConfigError` after printing when a bus or its chips cannot do what is asked of them."""
    plans = plan_file(arguments.file)
    loads_w = dict(arguments.load)
    names = {name for p in plans for b in p.budgets for name in (b.line, b.device)}
    for name in loads_w:
        if name not in names:
            raise ConfigError(f"--load: unknown line or device {name!r}{did_you_mean(name, names)}")
    for p in plans:
        for line, power_w in line_loads_w(p.budgets, loads_w).items():
            if power_w < 0:
                raise ConfigError(f"--load: single lines add up to more than their device: nothing is left for {line}")
        print(plan_text(p, loads_w))
    problems = [f"{p.bus.where}: {problem}" for p in plans for problem in p.problems]
    if problems:
        more = f" (and {len(problems) - 1} more, see above)" if len(problems) > 1 else ""
        raise ConfigError(problems[0] + more)
    load_config(arguments.file)
    if not plans:
        print(f"{arguments.file}: no source reads a bus of sensors (kinds ina and sim): nothing to plan")
