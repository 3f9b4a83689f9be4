"""How long a chip's conversion cycle really is: its clock may be 10 % off, which shifts the middle of its window.

A shift of 0.1 ms is no error of a steady power, but at the edge of a phase it moves joules to the wrong side: 0.1 ms
of the step, at every edge, the same way. CNVR tells when a cycle ends. Only reading POWER clears it; the value that is
read there is not used.
"""

from __future__ import annotations

from powerd_daemon.clock import Clock
from powerd_daemon.ina.bus import RegisterBus
from powerd_daemon.ina.ina219 import CLOCK_TOLERANCE, CNVR, Register, Settings

MEASURE_NS = 40_000_000
"""Time spent on each chip; a chip that needs longer for 16 cycles is taken at its nominal cycle."""
_LEAST_CYCLES = 16
_LOOKS_A_CYCLE = 3
"""A cycle must have room for this many looks, or its end cannot be told from the next one's."""


def cycle_ratio(bus: RegisterBus, clock: Clock, address: int, settings: Settings) -> float:
    """The chip's cycle over the nominal one, or 1.0 where it cannot be measured. Raises `OSError` as the bus does."""
    if settings.cycle_ns * _LEAST_CYCLES > MEASURE_NS:
        return 1.0
    clear, look = (bus.prepare([(address, register)]) for register in (Register.POWER, Register.BUS))
    first_ns = last_ns = longest_look_ns = cycles = 0
    deadline_ns = clock.now_ns() + MEASURE_NS
    clear()
    while (start_ns := clock.now_ns()) < deadline_ns:
        converted = bytes(look())[1] & CNVR
        now_ns = clock.now_ns()
        longest_look_ns = max(longest_look_ns, now_ns - start_ns)
        if not converted:
            continue
        if first_ns:
            # A process that was held up has slept through whole cycles.
            cycles += max(1, round((now_ns - last_ns) / settings.cycle_ns))
        else:
            first_ns = now_ns
        last_ns = now_ns
        clear()
    ratio = (last_ns - first_ns) / max(cycles, 1) / settings.cycle_ns
    unsure = cycles < _LEAST_CYCLES or longest_look_ns * _LOOKS_A_CYCLE > settings.cycle_ns
    return 1.0 if unsure or abs(ratio - 1) > 1.2 * CLOCK_TOLERANCE else ratio
