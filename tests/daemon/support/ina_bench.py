"""Chips on a simulated bus in virtual time, the real driver, and its readings as rows of lines."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from powerd_core.model import Block, BlockBuilder, Column, Provenance, Stream, columns
from powerd_daemon.sources.ina.scanner import Scanner
from powerd_daemon.sources.ina.sensor_accuracy import Sensor, accuracy, line, make_bank
from powerd_daemon.sources.sim.bus import ChipErrors, Load, SimBus, SimChip, VirtualClock

MS = 1_000_000
PERIOD = 2 * MS
SHUNT_OHM = 0.05
Current = float | Callable[[int, int], float]


def eight(**options: object) -> tuple[Sensor, ...]:
    return tuple(Sensor(f"l{i}", 0x40 + i, shunt_ohm=SHUNT_OHM, **options) for i in range(8))


@dataclass(frozen=True)
class Row:
    """One scan: each line's time, flags, codes, and age of the bus code."""

    t_ns: list[int]
    flags: list[int]
    shunt: list[int]
    bus: list[int]
    age: list[int]


class HeldUpClock(VirtualClock):
    """The clock of a process that others hold up: so many looks from now at a time, by so many nanoseconds each."""

    def __init__(self) -> None:
        super().__init__()
        self.holds_ns: list[tuple[int, int]] = []
        """Looks until the next hold, and how long it is; the first is next."""

    def now_ns(self) -> int:
        if self.holds_ns:
            looks, hold_ns = self.holds_ns[0]
            if looks:
                self.holds_ns[0] = looks - 1, hold_ns
            else:
                self.t_ns += self.holds_ns.pop(0)[1]
        return self.t_ns


class Bench:
    """Sensors at 12 V with a current each (1 A unless given)."""

    def __init__(
        self,
        currents_a: Sequence[Current] = (),
        *,
        sensors: Sequence[Sensor] = (),
        clocks: Sequence[float] = (),
        bus_v: float = 12.0,
        bus_every: int = 1,
        period_ns: int = PERIOD,
        clock: VirtualClock | None = None,
        read_ns: int = 0,
        **bus: object,
    ) -> None:
        self.clock = clock or VirtualClock()
        self.bank = make_bank(sensors or eight())
        self.period_ns = period_ns
        loads: dict[int, dict[int, Load]] = {}
        errors: dict[int, ChipErrors] = {}
        for i, s in enumerate(self.bank.sensors):
            a = currents_a[i] if currents_a else 1.0
            load = Load(a if callable(a) else lambda t0, t1, a=a: a, bus_v, s.shunt_ohm)
            loads.setdefault(s.address, {})[s.channel] = load
            errors[s.address] = ChipErrors(clock=clocks[i] if clocks else 0.0)
        types = {s.address: settings.type for s, settings in zip(self.bank.sensors, self.bank.settings, strict=True)}
        off = Load(lambda t0, t1: 0.0, 0.0, 1.0)
        self.chips = {
            address: SimChip(
                kind,
                [loads[address].get(c, off) for c in range(1, len(kind.channels) + 1)],
                errors=errors[address],
                t_ns=self.clock.now_ns(),
            )
            for address, kind in types.items()
        }
        self.bus = SimBus(self.clock, self.chips, **bus)
        self.scanner = Scanner(
            self.bus,
            self.clock,
            self.bank,
            scl_hz=400_000,
            period_ns=period_ns,
            bus_every=bus_every,
            read_ns=read_ns,
        )
        lines = tuple(
            line(*pair, "d", Provenance.SIMULATED, accuracy(*pair, period_ns=period_ns, read_ns=read_ns))
            for pair in self.bank
        )
        made = [Column(n, c) for n, c in zip(("shunt", "bus"), self.scanner.typecodes, strict=True)]
        if bus_every > 1:
            made.append(Column("bus_age", "B"))
        self.stream = Stream(0, "ina", tuple(made), lines, period_ns)
        self.builder = BlockBuilder(self.stream, 1)

    def opened(self) -> Bench:
        self.scanner.open()
        return self

    def poll(self, count: int, period_ns: int = 0) -> None:
        """Scans at deadlines."""
        due = self.clock.now_ns()
        for _ in range(count):
            self.clock.sleep_until(due)
            self.scanner.scan()
            due += period_ns or self.period_ns

    def scan(self, count: int, period_ns: int = 0) -> list[Row]:
        """Scans at deadlines, and everything that was read."""
        self.poll(count, period_ns)
        self.scanner.finish(self.builder)
        return self.rows()

    def take(self) -> list[Row]:
        self.scanner.take(self.builder)
        return self.rows()

    def rows(self) -> list[Row]:
        block = self.builder.take()
        return [] if block is None else rows_of(block, self.stream)

    def power_w(self, row: Row, i: int) -> float:
        return power_w(self.stream, row, i)


def power_w(stream: Stream, row: Row, i: int) -> float:
    c = stream.lines[i].conversion
    current_a = (row.shunt[i] * c.shunt_lsb_v / c.shunt_ohm + c.offset_a) * c.gain
    return (row.bus[i] >> c.bus_shift) * c.bus_lsb_v * current_a


def rows_of(block: Block, stream: Stream) -> list[Row]:
    views, n = columns(block, stream), len(stream.lines)
    starts = array("q", bytes(views["t_ns"]))
    types = {"dt_ns": "i", "flags": "H"} | {c.name: c.typecode for c in stream.columns}
    found = {name: array(c, bytes(views[name])) for name, c in types.items()}
    ages = found.get("bus_age", array("B", bytes(len(starts) * n)))
    return [
        Row(
            [t + d for d in found["dt_ns"][k * n : k * n + n]],
            *(list(found[name][k * n : k * n + n]) for name in ("flags", "shunt", "bus")),
            list(ages[k * n : k * n + n]),
        )
        for k, t in enumerate(starts)
    ]
