"""`powerd plan`: what a bus of INA sensors can do and how sure its lines are, by arithmetic alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import hypot, sqrt

from powerd_core.model import Accuracy
from powerd_daemon.ina.bus import BUS_FREE_PERIODS, Read, split
from powerd_daemon.ina.plan import mean_periods, reads_of, wire_limit_hz
from powerd_daemon.ina.scanner import VERIFY_NS
from powerd_daemon.ina.sensor import Bank, Sensor, accuracy
from powerd_daemon.ina.settings import Settings

COVERAGE_FACTOR = 2
"""Of expanded uncertainties: about 95 % of a normal distribution (GUM 6.3.3)."""
IOCTL_NS = 100_000
"""What a system call for one transaction costs on a BeagleBone, about: driver, interrupt and scheduling."""


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
    """The error budget of one line, in relative limits, amperes and watts at its nominal voltage."""

    line: str
    device: str
    sensor: Sensor
    settings: Settings
    current_gain: float
    """Limit of the chip's current gain (relative half-width), likewise the next two."""
    bus_gain: float
    shunt: float
    offset_a: float
    """Limit of the zero."""
    step_a: float
    clip_a: float
    accuracy: Accuracy
    """Standard uncertainties, calibration included."""

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
    practical_hz: float
    """The same with `IOCTL_NS` a transaction."""


@dataclass(frozen=True, slots=True)
class BusPlan:
    """The arithmetic of one bus."""

    bus: Bus
    modes: tuple[Mode, Mode]
    """Combined transactions, then single ones."""
    budgets: tuple[Budget, ...]
    problems: tuple[str, ...]
    """Why it cannot work; empty for a plan that does."""
    notes: tuple[str, ...]
    """What may disappoint."""

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
    return BusPlan(bus, modes, budgets, *_judge(bus, modes, budgets))


def _mode(bus: Bus, *, combined: bool) -> Mode:
    lines = range(len(bus.bank.sensors))
    # One scan with the bus voltages, the others with what the pointers stand on.
    scans = [reads_of(bus.bank, lines, with_bus=k == 0) for k in range(bus.bus_every)]
    periods = mean_periods(bus.bank, combined=combined, bus_every=bus.bus_every)
    transactions = sum(len(split(reads)) if combined else len(reads) for reads in scans) / len(scans)
    limit_hz = wire_limit_hz(bus.bank, bus.scl_hz, combined=combined, bus_every=bus.bus_every)
    checked_hz = limit_hz * max(1 - bus.check_periods / bus.scl_hz, 0.0)
    practical_hz = checked_hz / (1 + checked_hz * transactions * IOCTL_NS * 1e-9)
    return Mode(combined, periods, transactions, limit_hz, checked_hz, practical_hz)


def _budget(bus: Bus, sensor: Sensor, settings: Settings) -> Budget:
    limits = settings.grade(sensor.grade)
    hold = bus.bus_hold if bus.bus_every > 1 else 0.0
    found = accuracy(sensor, settings, period_ns=bus.period_ns, bus_hold=hold)
    device = sensor.device or bus.device
    return Budget(
        line=f"{device}.{sensor.name}",
        device=device,
        sensor=sensor,
        settings=settings,
        current_gain=limits.current_gain,
        bus_gain=limits.bus_gain,
        shunt=sensor.shunt_tolerance,
        offset_a=limits.offset_v[settings.shunt_range] / sensor.shunt_ohm,
        step_a=found.step_w / sensor.nominal_v,
        clip_a=settings.clip_a(sensor.shunt_ohm),
        accuracy=found,
    )


def _judge(bus: Bus, modes: tuple[Mode, Mode], budgets: Sequence[Budget]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    problems, notes = [], []
    combined, single = modes
    best = single if bus.combined is False else combined
    if bus.rate_hz > best.limit_hz:
        problems.append(
            f"rate_hz = {bus.rate_hz:g} is more than the bus can carry: {best.periods:g} SCL periods a scan at "
            f"{bus.scl_hz / 1000:g} kHz allow {best.limit_hz:.0f} scans a second"
        )
    elif bus.rate_hz > best.checked_hz:
        notes.append(
            f"reading the chips' configurations back takes {bus.check_periods / bus.scl_hz:.1%} of the bus: "
            f"{best.checked_hz:.0f} Hz are left, the rest are missed deadlines"
        )
    elif bus.combined is None and bus.rate_hz > single.checked_hz:
        notes.append(f"an adapter that cannot combine reads (Raspberry Pi) reaches {single.checked_hz:.0f} Hz")
    elif bus.rate_hz > best.practical_hz:
        notes.append(
            f"the wire allows {bus.rate_hz:g} Hz, but with {IOCTL_NS // 1000} us of overhead a transaction "
            f"{best.practical_hz:.0f} Hz are left: watch missed deadlines in `powerd stats`"
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
        if settings.coverage < 0.75:
            notes.append(
                f"the current of {', '.join(names)} is looked at for {settings.coverage:.0%} of the time: "
                "a longer shunt_adc or a shorter bus_adc covers more"
            )
    hottest_w = max(b.shunt_w for b in budgets)
    if hottest_w > 1:
        notes.append(f"at the clipping limit a shunt turns up to {hottest_w:.2f} W into heat: mind its rating")
    return tuple(problems), tuple(dict.fromkeys(notes))
