"""How far all readings of a line may lie beside their stamps together: what no number of readings averages out."""

from __future__ import annotations

from powerd_analytics.edges.sensor import sensor_of
from powerd_analytics.signals.signal import Signal
from powerd_core.model import ShuntConversion

_LATCH_NS = 15_000.0
"""What a register's transfer adds to the moment of a reading: the part that is left where a chip's cycle is known."""
_CLOCKS = {"INA226": 0.10, "INA228": 0.01, "INA3221": 0.10}
"""Limits of the conversion clocks of chips whose cycle nobody measures (SBOS547, SLYS021, SBOS576)."""
_AT_ONCE = frozenset({"INA3221"})
"""Of these, those that renew a register when its own conversion ends. Of the others it is not stated when they do."""


def shared_place_ns(signal: Signal) -> float:
    """Limit of the part of ``centre_ns`` that is the same for all readings of a line.

    A sensor that is no chip on a bus always has the same delay: all of it. A chip converts freely and is read at any
    moment of its cycle: half a cycle of ``centre_ns`` averages out, and what its clock and the renewing of its register
    leave open does not. How long the cycle is follows from what ``centre_ns`` is made of (`docs/board.md`): for a cycle
    z, of which the window w is a part and the rest b is the bus voltage's, half a cycle, the clock's tolerance of
    what a code's age can be, and b where the register may be renewed earlier. The INA219's cycle is measured when its
    driver starts. Where the chip is not named, only what half a reading distance cannot be is shared.
    """
    centre = signal.centre_ns
    if signal.is_counter:
        return 0.0
    if not isinstance(signal.line.conversion, ShuntConversion):
        return centre
    chip = sensor_of(signal.line).get("chip", "")
    if chip not in _CLOCKS:
        named = _LATCH_NS if chip == "INA219" else 0.0
        return min(max(centre - signal.spacing_ns / 2, named), centre)
    window, tolerance = signal.window_ns, _CLOCKS[chip]
    # centre = z/2 + tolerance (age + z/2) + latch (+ b), with age = z/2 + w/2 (renewed at once) or 3z/2 - w/2.
    if chip in _AT_ONCE:
        bus = (centre - _LATCH_NS - window / 2 - 1.5 * tolerance * window) / (0.5 + tolerance)
    else:
        bus = (centre - _LATCH_NS - window / 2 - 1.5 * tolerance * window) / (1.5 + 2 * tolerance)
    return max(centre - (window + max(bus, 0.0)) / 2, 0.0)
