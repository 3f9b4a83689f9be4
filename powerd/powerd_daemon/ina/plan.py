"""A prepared read of some lines of a bank, and when each of its words is on the wire."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from powerd_daemon.ina.bus import BUS_FREE_PERIODS, Read, RegisterBus, scan_periods, singly, split
from powerd_daemon.ina.sensor import Bank

_NEVER = 1 << 62


def reads_of(bank: Bank, lines: Iterable[int], *, with_bus: bool = True) -> list[Read]:
    """BUS, then SHUNT of each line, so that the pointer is left at SHUNT; or SHUNT alone where it was left so.

    A chip of several channels has one pointer for all of them, which is written each time.
    """
    reads = []
    for i in lines:
        sensor, settings = bank.sensors[i], bank.settings[i]
        size = settings.type.code_bytes
        shunt, bus = settings.type.channels[sensor.channel - 1]
        if with_bus:
            reads.append(Read(sensor.address, bus, size))
        kept = not with_bus and len(settings.channels) == 1
        reads.append(Read(sensor.address, None if kept else shunt, size))
    return reads


class Plan:
    """``call`` reads the lines. ``offsets_ns`` are those of all lines of the bank, relative to the call's start."""

    def __init__(
        self,
        bus: RegisterBus,
        bank: Bank,
        lines: Sequence[int],
        *,
        with_bus: bool,
        scl_hz: float,
        combined: bool,
        cycle_ratios: Mapping[int, float],
    ) -> None:
        """``cycle_ratios`` has what was measured of chips' cycles by address, relative to the nominal ones."""
        self.lines = tuple(lines)
        self.with_bus = with_bus
        self.reads = reads_of(bank, lines, with_bus=with_bus)
        self.call = bus.prepare(self.reads) if combined else singly(bus, self.reads)
        self._nominal_ns = scan_periods(self.reads, combined=combined) * 1e9 / scl_hz
        self._shortest_ns = _NEVER
        self._calls = 0
        self._ages_ns = [
            round(s.age_ns(sensor.channel) * cycle_ratios.get(sensor.address, 1.0))
            for sensor, s in zip(bank.sensors, bank.settings, strict=True)
        ]
        middles = [0.0] * len(bank.sensors)
        lines_of_reads = [i for i in self.lines for _ in range(2 if with_bus else 1)]
        at, k = 0.0, 0
        for transaction in split(self.reads) if combined else [[r] for r in self.reads]:
            for read in transaction:
                # SHUNT comes last of a line's reads, so its middle is what stays.
                middles[lines_of_reads[k]] = (at + read.periods / 2) * 1e9 / scl_hz
                at += read.periods
                k += 1
            at += 1 + BUS_FREE_PERIODS
        self._middles_ns = middles

    def took(self, elapsed_ns: int) -> float:
        """A call lasted so long. Returns by how much that is longer than it has to be."""
        # The first call has only the bus clock to be compared with: it may itself be the late one.
        usual_ns = self._nominal_ns if self._shortest_ns == _NEVER else max(self._nominal_ns, self._shortest_ns)
        self._shortest_ns = min(self._shortest_ns, elapsed_ns)
        self._calls += 1
        return elapsed_ns - usual_ns

    def offsets_ns(self) -> list[int]:
        """Each line's time: the middle of its SHUNT transfer less the mean age of what the register holds.

        The call's end is late by however long the process took to wake up, its beginning is not. So the transfer is
        taken to last as long as the bus clock says, or the shortest call so far when the bus is slower than that. One
        call alone does not tell a slow bus from a late call: readings behind it would lie before those it gave.
        """
        shortest_ns = self._shortest_ns if self._calls > 1 else 0
        slower = max(1.0, shortest_ns / self._nominal_ns) if self.reads else 1.0
        return [round(m * slower) - a for m, a in zip(self._middles_ns, self._ages_ns, strict=True)]


def mean_periods(bank: Bank, *, combined: bool, bus_every: int = 1) -> float:
    """SCL periods of a scan, averaged over those with and without bus voltages."""
    lines = range(len(bank.sensors))
    full = scan_periods(reads_of(bank, lines), combined=combined)
    cached = scan_periods(reads_of(bank, lines, with_bus=False), combined=combined)
    return (full + (bus_every - 1) * cached) / bus_every


def wire_limit_hz(bank: Bank, scl_hz: float, *, combined: bool, bus_every: int = 1) -> float:
    """Scans a second that fill the bus without any pause, read-backs of the configuration apart."""
    return scl_hz / mean_periods(bank, combined=combined, bus_every=bus_every)
