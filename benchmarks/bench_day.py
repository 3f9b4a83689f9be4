"""24 hours of the INA driver in virtual time with a fault of the bus every few seconds.

One chip of each type on one bus, a load that steps, and NACK, EIO, stuck bus, brown-outs, wrong devices, late transfers
and chips that are gone for seconds, on a seeded schedule. Checks that every reading given out is right or flagged, that
none is missing without a flag or a gap, and that the energy is the true one within the stated uncertainty. Exit status
1 when one of these is not so.
"""

from __future__ import annotations

import sys
import time
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import hypot, sqrt

from common import machine, options, progress

from powerd_core.model import BAD, Block, Device, Flag, Gap, ShuntConversion, Stream, columns
from powerd_core.wire import decode
from powerd_daemon.sampler import Outbox, Sampling
from powerd_daemon.sources.base import Start
from powerd_daemon.sources.ina.bus import RegisterBus
from powerd_daemon.sources.ina.sensor_accuracy import Sensor
from powerd_daemon.sources.sim.bus import Faults, SimBus, VirtualClock
from powerd_daemon.sources.sim.source import SimOptions, SimSource
from powerd_daemon.sources.sim.waveforms import CardLoad

LOW_W, HIGH_W, RATE_HZ = 20.0, 100.0, 10.0
SENSORS = (
    Sensor("ina219", 0x40, shunt_adc="avg32", bus_adc="12bit"),
    Sensor("ina226", 0x41, "INA226", shunt_ohm=0.01, averages=4),
    Sensor("ina228", 0x42, "INA228", shunt_ohm=0.01, averages=4, shunt_range="41mV"),
    Sensor("ina3221", 0x43, "INA3221", 2, shunt_ohm=0.05),
)


@dataclass
class Line:
    """What is known of one line so far."""

    good: int = 0
    wrong: list[str] = field(default_factory=list)
    flags: Counter[str] = field(default_factory=Counter)
    last: tuple[int, float] | None = None
    measured_j: float = 0.0
    true_j: float = 0.0
    covered_s: float = 0.0
    steps: int = 0


class Day:
    """A sampler in virtual time whose simulated board outlives every reopening, and the judge of what it gives."""

    def __init__(self, seed: int) -> None:
        self.options = SimOptions(
            waveform="square", idle_w=LOW_W, peak_w=HIGH_W, period_ms=7310.7, duty=0.43, sensors=SENSORS,
            rate_hz=RATE_HZ, seed=seed, fault_every_s=4.0,
        )  # fmt: skip
        self.clock = VirtualClock()
        self.outbox = Outbox(1 << 28)
        self.lines = {s.name: Line() for s in SENSORS}
        self.stream: Stream | None = None
        self.bus: SimBus | None = None
        self.load: CardLoad | None = None
        self.detail: Mapping[str, object] = {}
        self.gaps = self.scans = self.unexplained = 0
        self._sequence = 0
        self._previous_ns: int | None = None
        day = self

        class Board(SimSource):
            def connect(self) -> tuple[RegisterBus, Mapping[str, object]]:
                if day.bus is None:
                    super().connect()
                    day.bus, day.load = self.bus, self.load
                assert day.bus is not None
                day.bus.clock = self.start.clock
                return day.bus, {}

        def opened(streams: tuple[Stream, ...], _devices: tuple[Device, ...]) -> None:
            self.stream = streams[0]

        self.sampling = Sampling(
            lambda start: Board(self.options, start),
            Start("rails", 1, 0, self.clock),
            self.outbox,
            block_ns=500_000_000,
            on_open=opened,
        )
        self.sampling.open()

    @property
    def faults(self) -> Counter[str]:
        assert self.bus is not None
        assert isinstance(self.bus.trouble, Faults)
        return self.bus.trouble.counts

    def run(self, until_ns: int) -> None:
        """Go on until a time of the virtual clock and judge what came."""
        while self.clock.now_ns() < until_ns:
            self.sampling.step()
        self.outbox.drain(self._judge)

    def finish(self) -> None:
        self.sampling.close()
        self.outbox.drain(self._judge)

    def _judge(self, frame: bytes) -> bool:
        event = decode(frame)
        assert isinstance(event, Block | Gap)
        if event.sequence != self._sequence:
            self.unexplained += 1
        if isinstance(event, Gap):
            self.gaps += 1
            self._sequence = event.sequence + event.span
            self._previous_ns = None
            for line in self.lines.values():
                line.last = None
            return True
        self._sequence = event.sequence + 1
        self._judge_block(event)
        return True

    def _judge_block(self, block: Block) -> None:
        stream = self.stream
        assert stream is not None
        views = columns(block, stream)
        starts = array("q", bytes(views["t_ns"]))
        types = {"dt_ns": "i", "flags": "H"} | {c.name: c.typecode for c in stream.columns}
        arrays = {name: array(c, bytes(views[name])) for name, c in types.items()}
        count = len(stream.lines)
        for k, start_ns in enumerate(starts):
            self.scans += 1
            if self._previous_ns is not None and start_ns - self._previous_ns > 1.8 * stream.period_ns:
                self.unexplained += 1
            self._previous_ns = start_ns
            for i, known in enumerate(self.lines.values()):
                at = k * count + i
                if flags := arrays["flags"][at]:
                    known.flags.update(f.name or "" for f in Flag if f & flags)
                if not flags & BAD:
                    t_ns = start_ns + arrays["dt_ns"][at]
                    self._judge_reading(known, i, t_ns, arrays["shunt"][at], arrays["bus"][at])

    def _judge_reading(self, known: Line, i: int, t_ns: int, shunt: int, bus: int) -> None:
        assert self.stream is not None
        assert self.load is not None
        line, name = self.stream.lines[i], SENSORS[i].name
        c, a = line.conversion, line.accuracy
        assert isinstance(c, ShuntConversion)
        power_w = (bus >> c.bus_shift) * c.bus_lsb_v * shunt * c.shunt_lsb_v / c.shunt_ohm
        # A transfer that began late is noticed when it is late by more than the bound once more.
        half_ns = a.window_ns // 2 + 2 * a.centre_ns
        ends_w = [self.load.power_w(t_ns + d, name) for d in (-half_ns, half_ns)]
        # Between the ends, no more than one step: a window is shorter than any level lasts.
        allowed_w = 3 * hypot(a.u_gain * max(ends_w), a.u_offset_w) + a.step_w
        known.good += 1
        if not min(ends_w) - allowed_w <= power_w <= max(ends_w) + allowed_w:
            known.wrong.append(f"{name} at {t_ns}: {power_w:.3f} W, not {ends_w[0]:.3f} to {ends_w[1]:.3f} W")
        if known.last is not None and t_ns - known.last[0] < 3.5 * self.stream.period_ns:
            seconds = (t_ns - known.last[0]) * 1e-9
            known.measured_j += (power_w + known.last[1]) / 2 * seconds
            known.true_j += self.load.energy_j(known.last[0], t_ns, name)
            known.covered_s += seconds
            known.steps += abs(power_w - known.last[1]) > 0.2 * (HIGH_W - LOW_W) / len(SENSORS)
        known.last = t_ns, power_w

    def energy_u_j(self, i: int) -> float:
        """Standard uncertainty of a line's energy: gain, zero, and the place of each step between two readings."""
        assert self.stream is not None
        a, known = self.stream.lines[i].accuracy, list(self.lines.values())[i]
        step_w = (HIGH_W - LOW_W) / len(SENSORS)
        reach_s = (self.stream.period_ns + 2 * a.centre_ns) * 1e-9
        return hypot(
            a.u_gain * known.true_j, a.u_offset_w * known.covered_s, step_w * reach_s / sqrt(12) * sqrt(known.steps)
        )

    @property
    def wrong(self) -> list[str]:
        return [text for line in self.lines.values() for text in line.wrong]


def main() -> int:
    args = options(__doc__, hours=24.0, seed=1)
    begin = time.monotonic()
    day = Day(args.seed)
    t0_ns = day.clock.now_ns()
    for minute in range(1, round(args.hours * 60) + 1):
        day.run(t0_ns + minute * 60_000_000_000)
        progress(f"{minute / 60:.1f} of {args.hours:g} h, {len(day.wrong)} wrong, {sum(day.faults.values())} faults")
    day.finish()
    progress("")
    print(f"{args.hours:g} h in virtual time, 4 types of chips at {RATE_HZ:g} Hz ({machine()})")
    print(f"  took {time.monotonic() - begin:.0f} s; faults: {', '.join(f'{n} {k}' for k, n in day.faults.items())}")
    print(f"  scans {day.scans}, gaps {day.gaps}, missing without a flag or gap {day.unexplained}")
    is_good = not day.unexplained and not day.wrong
    for i, (name, line) in enumerate(day.lines.items()):
        u_j, error_j = day.energy_u_j(i), line.measured_j - line.true_j
        is_inside = abs(error_j) <= 2 * u_j
        is_good &= is_inside
        flags = ", ".join(f"{flag} {n}" for flag, n in sorted(line.flags.items()))
        print(f"  {name:8} good {line.good}, wrong {len(line.wrong)}; flags: {flags}")
        print(
            f"           energy {line.measured_j:.0f} J, true {line.true_j:.0f} J: off by {error_j / line.true_j:+.3%} "
            f"= {error_j / u_j:+.2f} standard uncertainties ({'inside' if is_inside else 'OUTSIDE'} U95)"
        )
    for text in day.wrong[:5]:
        print(f"  WRONG {text}")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
