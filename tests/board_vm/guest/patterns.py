"""The kernel's ina2xx-adc and powerd's source `ina` read the same registers of i2c-stub: volts and amperes, to the last
code. Arguments: the bus, an address, the number of patterns. Ends with status 1 where they differ.
"""

import random
import struct
import sys
import threading
import time
from pathlib import Path

from stub import Stub, play, prepare

from powerd_core.model import BAD, Flag
from powerd_daemon.clock import SystemClock
from powerd_daemon.sources.base import Start
from powerd_daemon.sources.ina.chips import CNVR
from powerd_daemon.sources.ina.sensor_accuracy import Sensor
from powerd_daemon.sources.ina.source import InaOptions, InaSource

SHUNT_OHM = 0.01
"""The kernel driver's own."""
ROUNDING = 1e-9
"""Of doubles, in volts and amperes; the finest code is 2.5 uV or 0.25 mA."""
CURRENT, CALIBRATION = 4, 5
CURRENT_DIVIDER = {"INA219": 4096, "INA226": 2048}
"""CURRENT = SHUNT * CALIBRATION / this, by the data sheets."""
Values = tuple[float, float, float]
"""Volts across the shunt, volts of the bus, amperes."""


def draw(random_: random.Random, kind: str) -> tuple[int, int]:
    """Codes of SHUNT and BUS, now and then at their ends."""
    shunt_end, bus_end = (32000, 8000) if kind == "INA219" else (32767, 32767)
    shunt = random_.choice([*[random_.randint(-shunt_end, shunt_end) for _ in range(9)], -shunt_end, shunt_end, -1])
    bus = random_.choice([*[random_.randint(0, bus_end) for _ in range(9)], 0, 1, bus_end])
    return shunt, bus << 3 | CNVR if kind == "INA219" else bus


def by_kernel(stub: Stub, bus: int, kind: str, address: int, patterns: list[tuple[int, int]]) -> list[Values]:
    """As the IIO driver gives them: raw times scale, in thousandths."""
    prepare(stub, kind, 0, 0)
    adapter = Path(f"/sys/bus/i2c/devices/i2c-{bus}")
    (adapter / "new_device").write_text(f"{kind.lower()} {address:#04x}\n")
    (iio,) = (adapter / f"{bus}-{address:04x}").glob("iio:device*")
    channels = ("in_voltage0", "in_voltage1", "in_current3")
    scales = [float((iio / f"{channel}_scale").read_text()) / 1000 for channel in channels]
    calibration = stub.read(CALIBRATION)
    values = []
    for shunt, word in patterns:
        stub.write(1, shunt)
        stub.write(2, word)
        stub.write(CURRENT, int(shunt * calibration / CURRENT_DIVIDER[kind]))
        shunt_v, bus_v, current_a = (
            int((iio / f"{channel}_raw").read_text()) * scale for channel, scale in zip(channels, scales, strict=True)
        )
        values.append((shunt_v, bus_v, current_a))
    (adapter / "delete_device").write_text(f"{address:#04x}\n")
    return values


def by_powerd(stub: Stub, bus: int, kind: str, address: int, patterns: list[tuple[int, int]]) -> list[Values]:
    """As the source's stream gives them, with the scales of its own description."""
    reset, is_open = prepare(stub, kind, 0, CNVR if kind == "INA219" else 0), threading.Event()
    player = threading.Thread(target=play, args=([(stub, reset)], is_open))
    player.start()
    options = InaOptions(bus=bus, rate_hz=1, sensors=(Sensor("line", address, kind, shunt_ohm=SHUNT_OHM),))
    source = InaSource(options, Start("i2c", 1, 0, SystemClock()))
    try:
        (stream,), _ = source.open()
    finally:
        is_open.set()
        player.join()
    for shunt, word in patterns:
        stub.write(1, shunt)
        stub.write(2, word)
        source.poll()
        time.sleep(0.002)
    c, values, bad = stream.lines[0].conversion, [], 0
    for block in source.finish():
        n = block.count
        begins = (12 * n, 14 * n, 16 * n)
        columns = zip("HhH", begins, strict=True)
        flags, shunts, words = (struct.unpack_from(f"<{n}{t}", block.payload, at) for t, at in columns)
        bad += sum(bool(flag & BAD & ~Flag.SATURATED) for flag in flags)
        for shunt, word in zip(shunts, words, strict=True):
            current_a = (shunt * c.shunt_lsb_v / c.shunt_ohm + c.offset_a) * c.gain
            values.append((shunt * c.shunt_lsb_v, (word >> c.bus_shift) * c.bus_lsb_v, current_a))
    source.close()
    print(f"powerd flagged {bad} of {len(values)} (late in this machine)")
    return values


def main() -> None:
    bus, address, count = int(sys.argv[1]), int(sys.argv[2], 0), int(sys.argv[3])
    stub, random_, differ = Stub(bus, address), random.Random(1), 0
    for kind in ("INA219", "INA226"):
        patterns = [draw(random_, kind) for _ in range(count)]
        theirs = by_kernel(stub, bus, kind, address, patterns)
        ours = by_powerd(stub, bus, kind, address, patterns)
        assert len(theirs) == len(ours) == count, (len(theirs), len(ours))
        bad = 0
        for pattern, a, b in zip(patterns, theirs, ours, strict=True):
            if any(abs(x - y) > ROUNDING for x, y in zip(a, b, strict=True)):
                print(f"differ: {pattern}: kernel {a}, powerd {b}")
                bad += 1
        span = [f"{min(v):g} to {max(v):g}" for v in zip(*ours, strict=True)]
        print(f"{kind}: {count} patterns, {bad} differ; shunt {span[0]} V, bus {span[1]} V, {span[2]} A")
        differ += bad
    sys.exit(differ > 0)


if __name__ == "__main__":
    main()
