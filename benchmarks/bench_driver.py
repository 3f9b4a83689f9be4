"""What the INA driver itself costs per scan of eight sensors: CPU time on a bus that answers at once.

Target: at most 60 us of CPU a scan on this machine, from the deadline to the encoded frame. A BeagleBone's core is 15
to 20 times slower and has 1.9 ms.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from common import machine

from powerd_core.model import Block, BlockBuilder, Column, Provenance, Stream
from powerd_core.wire import encode
from powerd_daemon.i2c.linux import I2C_RDWR
from powerd_daemon.ina.bus import Read, ReadWords
from powerd_daemon.ina.scanner import Scanner
from powerd_daemon.ina.sensor import Sensor, line, make_bank
from powerd_daemon.sim.bus import SimBus
from powerd_daemon.sim.chip import Load, SimChip
from powerd_daemon.sim.clock import VirtualClock

TARGET_US = 60.0
PERIOD_NS = 2_000_000
SCANS_A_BLOCK = 10


class Answers:
    """A bus that gives what it gave once, at once; the rest of the time is the driver's."""

    def __init__(self, bus: SimBus, clock: VirtualClock) -> None:
        self._bus, self._clock, self.is_frozen = bus, clock, False

    def prepare(self, reads: Sequence[Read]) -> ReadWords:
        call = self._bus.prepare(reads)
        known = b""

        def answer() -> bytes:
            nonlocal known
            if not self.is_frozen or not known:
                known = bytes(call())
            return known

        return answer

    def write_word(self, address: int, register: int, word: int) -> None:
        self._bus.write_word(address, register, word)


def cpu_us(work: Callable[[], object], times: int) -> float:
    """CPU time of one call, the best of five rounds."""
    best = float("inf")
    for _ in range(5):
        begin = time.process_time_ns()
        for _ in range(times):
            work()
        best = min(best, (time.process_time_ns() - begin) / times / 1000)
    return best


def measure(label: str, sensors: Sequence[Sensor], *, bus_every: int, combines: bool, scans: int) -> float:
    """Print one line with the breakdown; returns the sum."""
    clock, bank = VirtualClock(), make_bank(sensors)
    chips = {
        s.address: SimChip(settings.type, [Load(lambda a, b: 1.0, s.nominal_v, s.shunt_ohm)] * 3, t_ns=clock.now_ns())
        for s, settings in zip(bank.sensors, bank.settings, strict=True)
    }
    bus = Answers(SimBus(clock, chips, combines=combines), clock)
    scanner = Scanner(bus, clock, bank, scl_hz=400_000, period_ns=PERIOD_NS, bus_every=bus_every)
    scanner.open()
    lines = tuple(
        line(s, settings, device="gpu0", provenance=Provenance.SIMULATED, period_ns=PERIOD_NS)
        for s, settings in zip(bank.sensors, bank.settings, strict=True)
    )
    columns = [Column(n, c) for n, c in zip(("shunt", "bus"), scanner.typecodes, strict=True)]
    if bus_every > 1:
        columns.append(Column("bus_age", "B"))
    stream = Stream(0, "rails", tuple(columns), lines, PERIOD_NS)
    builder = BlockBuilder(stream, 1)
    for _ in range(200):
        clock.t_ns += PERIOD_NS
        scanner.scan()
    scanner.take(builder)
    builder.take()
    bus.is_frozen = True
    spent = dict.fromkeys(("scan", "decode", "frame"), 0)
    made = 0
    cpu = time.process_time_ns
    for _ in range(scans // SCANS_A_BLOCK):
        t0 = cpu()
        for _ in range(SCANS_A_BLOCK):
            clock.t_ns += PERIOD_NS
            scanner.scan()
        t1 = cpu()
        scanner.take(builder)
        t2 = cpu()
        block = builder.take()
        if isinstance(block, Block):
            made += block.count
            encode(block)
        t3 = cpu()
        spent["scan"] += t1 - t0
        spent["decode"] += t2 - t1
        spent["frame"] += t3 - t2
    each = {name: ns / scans / 1000 for name, ns in spent.items()}
    total = sum(each.values())
    parts = ", ".join(f"{name} {us:.2f}" for name, us in each.items())
    print(f"  {label:44}: {total:6.2f} us a scan ({parts}); {made} of {scans} scans given out")
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scans", type=int, default=100_000)
    args = parser.parse_args()
    print(f"The driver's own CPU time per scan of 8 sensors, blocks of {SCANS_A_BLOCK} scans ({machine()})")
    plain = [Sensor(f"l{i}", 0x40 + i) for i in range(8)]
    wide = [Sensor(f"l{i}", 0x40 + i, ("INA219", "INA226", "INA228")[i % 3], shunt_ohm=0.01) for i in range(8)]
    totals = [
        measure("8 INA219, combined reads", plain, bus_every=1, combines=True, scans=args.scans),
        measure("8 INA219, single reads (with the bus's part)", plain, bus_every=1, combines=False, scans=args.scans),
        measure("8 INA219, bus voltage every 8th scan", plain, bus_every=8, combines=True, scans=args.scans),
        measure("8 of INA219, INA226 and INA228", wide, bus_every=1, combines=True, scans=args.scans),
    ]
    fd = os.open(os.devnull, os.O_RDWR)
    try:
        import smbus2.smbus2 as library

        message = library.i2c_rdwr_ioctl_data.create(library.i2c_msg.read(0x40, 2))

        def refused() -> None:
            with suppress(OSError):
                fcntl.ioctl(fd, I2C_RDWR, message)

        print(f"  a prepared ioctl that the kernel refuses      : {cpu_us(refused, 100_000):6.2f} us")
    except ImportError:
        print("  smbus2 is not installed: the ioctl was not measured")
    finally:
        os.close(fd)
    worst, verdict = max(totals), "within" if max(totals) <= TARGET_US else "BEYOND"
    print(f"  worst {worst:.1f} us: {verdict} {TARGET_US:g} us; 20 times as much is {worst / 50:.2f} ms")


if __name__ == "__main__":
    main()
