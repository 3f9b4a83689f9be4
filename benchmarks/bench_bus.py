"""Eight INA219, shunt and bus each, on a simulated 400 kHz bus, in both adapter modes.

The bus keeps a time of its own, so this is what driver and wire allow; a process that wakes up late does not show.
Target: at least 95 % of the wire limit, which follows from SCL periods alone, and no conversion given out twice as new:
every conversion of the simulated chips has a code of its own, so two good readings with the same code would show it.
Exit status 1 when it is missed.
"""

from __future__ import annotations

import sys
import time
from array import array
from collections.abc import Callable
from itertools import pairwise

from common import machine, options, progress

from powerd_core.model import BAD, Block, Gap, Stream, columns
from powerd_core.wire import decode
from powerd_daemon.clock import SystemClock
from powerd_daemon.sampler import Outbox, Sampling, make_realtime, sharpen_timers
from powerd_daemon.sources.base import Start
from powerd_daemon.sources.ina.scanner import wire_limit_hz
from powerd_daemon.sources.ina.sensor_accuracy import Sensor
from powerd_daemon.sources.sim.bus import Load
from powerd_daemon.sources.sim.source import SimOptions, SimSource
from powerd_daemon.sources.sim.waveforms import CardLoad

TARGET, SHARE = 0.95, 0.975


class CountingSource(SimSource):
    """Each conversion that is looked at has the next of a thousand codes."""

    @staticmethod
    def _load(load: CardLoad, sensor: Sensor) -> Load:
        return Load(_counter(sensor.shunt_ohm), sensor.nominal_v, sensor.shunt_ohm)


def _counter(shunt_ohm: float) -> Callable[[int, int], float]:
    count = 0

    def mean_a(_t0_ns: int, _t1_ns: int) -> float:
        nonlocal count
        count = count % 1000 + 1
        return count * 10e-6 / shunt_ohm

    return mean_a


def measure(adapter: str, seconds: float) -> bool:
    """Scan at `SHARE` of the wire limit and print what came; whether the target is met."""
    quiet = {"adapter": adapter, "errors": "none", "waveform": "constant", "rate_hz": 1.0}
    probe = SimSource(SimOptions(**quiet), Start("bus", 1, 0, SystemClock()))  # type: ignore[arg-type]
    combined, scl_hz = adapter == "combined", 400_000.0
    limit_hz = wire_limit_hz(probe.bank, scl_hz, combined=combined)
    options = SimOptions(**quiet | {"rate_hz": limit_hz * SHARE})  # type: ignore[arg-type]
    outbox, clock = Outbox(1 << 30), SystemClock()
    sources: list[CountingSource] = []

    def make(start: Start) -> CountingSource:
        sources.append(CountingSource(options, start))
        return sources[-1]

    described: list[Stream] = []
    start = Start("bus", 1, 0, clock)
    sampling = Sampling(make, start, outbox, block_ns=20_000_000, on_open=lambda streams, _: described.extend(streams))
    sampling.open()
    source = sources[0]
    assert source.bus is not None
    begin_ns, periods = clock.now_ns(), source.bus.periods
    while (spent := clock.now_ns() - begin_ns) < seconds * 1e9:
        sampling.step()
        progress(f"{adapter}: {spent * 1e-9:.0f} of {seconds:.0f} s")
    end_ns, periods = clock.now_ns(), source.bus.periods - periods
    sampling.close()
    progress("")
    events: list[object] = []

    def keep(frame: bytes) -> bool:
        events.append(decode(frame))
        return True

    outbox.drain(keep)
    (stream,) = described
    blocks = [e for e in events if isinstance(e, Block)]
    gaps = sum(isinstance(e, Gap) for e in events)
    lines = len(stream.lines)
    flags, shunt = array("H"), array("h")
    for block in blocks:
        views = columns(block, stream)
        flags.frombytes(views["flags"])
        shunt.frombytes(views["shunt"])
    repeated = 0
    for line in range(lines):
        good = [s for s, f in zip(shunt[line::lines], flags[line::lines], strict=True) if not f & BAD]
        repeated += sum(a == b for a, b in pairwise(good))
    whole = sum(not any(f & BAD for f in flags[k : k + lines]) for k in range(0, len(flags), lines))
    rate_hz = whole / ((end_ns - begin_ns) * 1e-9)
    d = sampling.statistics()
    print(
        f"  {adapter:8}: {scl_hz / limit_hz:.1f} SCL periods a scan, limit {limit_hz:.1f} "
        f"scans/s, reached {rate_hz:.1f} with all 8 readings good = {rate_hz / limit_hz:.1%} "
        f"({'at least' if rate_hz >= TARGET * limit_hz else 'BELOW'} {TARGET:.0%})"
    )
    print(
        f"            bus busy {periods / scl_hz / ((end_ns - begin_ns) * 1e-9):.1%} of the time with read-backs; "
        f"flagged readings {sum(1 for f in flags if f & BAD)} of {len(flags)}, gaps {gaps}, "
        f"repeated conversions given as new {repeated}; polls: lateness mean "
        f"{d['lateness_mean_us']:.0f} us, 99 % {d['lateness_p99_us']:.0f} us, max {d['lateness_max_us']:.0f} us, "
        f"jitter {d['jitter_us']:.0f} us"
    )
    return rate_hz >= TARGET * limit_hz and not repeated


def main() -> int:
    args = options(__doc__, seconds=20.0)
    print(f"8 INA219 on a simulated 400 kHz bus, {args.seconds:g} s each ({machine()})")
    sharpen_timers()
    for refused in make_realtime(50, True):
        print(f"  {refused}")
    is_met = True
    for adapter in ("combined", "single"):
        is_met &= measure(adapter, args.seconds)
        time.sleep(0.1)
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
