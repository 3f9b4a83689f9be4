"""How long an INA219's conversion cycle really is: its clock may be 10 % off, which shifts the middle of its window.

A shift of 0.1 ms is no error of a steady power, but at the edge of a phase it moves joules to the wrong side: 0.1 ms
of the step, at every edge, the same way. CNVR tells when a cycle ends. Only reading POWER clears it; the value that is
read there is not used.
"""

from __future__ import annotations

from powerd_daemon.clock import Clock
from powerd_daemon.ina.bus import Read, RegisterBus
from powerd_daemon.ina.chips import CNVR
from powerd_daemon.ina.settings import Settings

CYCLES = 32
"""How many are timed; their ends are told to a look or two, so the mean is good to about half a per cent."""
LIMIT_NS = 150_000_000
"""Time after which a chip is taken at its nominal cycle."""
_BUS, _POWER = 2, 3
_LOOKS_A_CYCLE = 3
"""A cycle must have room for this many looks, or its end cannot be told from the next one's."""


def cycle_ratio(bus: RegisterBus, clock: Clock, address: int, settings: Settings) -> float:
    """The chip's cycle over the nominal one, or 1.0 where it cannot be measured. Raises `OSError` as the bus does."""
    if settings.chip != "INA219" or settings.cycle_ns * CYCLES * 2 > LIMIT_NS:
        return 1.0  # the other types' ready flags are cleared by what would be read anyway
    clear, look = (bus.prepare([Read(address, register)]) for register in (_POWER, _BUS))
    timed_ns = cycles = 0
    last_ns: int | None = None
    deadline_ns = clock.now_ns() + LIMIT_NS
    clear()
    while cycles < CYCLES and (start_ns := clock.now_ns()) < deadline_ns:
        converted = bytes(look())[1] & CNVR
        now_ns = clock.now_ns()
        if (now_ns - start_ns) * _LOOKS_A_CYCLE > settings.cycle_ns:
            last_ns = None  # the process was held up: cycles may have gone by unseen
        elif not converted:
            continue
        else:
            if last_ns is not None:
                timed_ns, cycles = timed_ns + now_ns - last_ns, cycles + 1
            last_ns = now_ns
        clear()
        if clock.now_ns() - now_ns > settings.cycle_ns // _LOOKS_A_CYCLE:
            last_ns = None
    ratio = timed_ns / max(cycles, 1) / settings.cycle_ns
    return 1.0 if cycles < CYCLES // 2 or abs(ratio - 1) > 1.2 * settings.type.clock_tolerance else ratio
