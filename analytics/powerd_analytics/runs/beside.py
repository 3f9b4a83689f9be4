"""Lines that are neither power nor energy, in words: temperatures, clocks, limits, reasons for slowing down."""

from __future__ import annotations

import numpy as np

from powerd_analytics.runs.run import Run
from powerd_core.errors import AnalysisError
from powerd_core.model import BAD, QuantityConversion


def describe_beside(run: Run, name: str) -> str:
    """One line of text for `joules info`: range and mean of a quantity, or how often each of its bits was set."""
    line, readings = run.line(name), run.readings(name)
    c = line.conversion
    if not isinstance(c, QuantityConversion):
        raise AnalysisError(f"line {name!r} is {line.quantity}: it is shown with the energies")
    if c.column not in readings.codes:
        raise AnalysisError(f"line {name!r} has no column {c.column!r}, which its conversion needs")
    good = (readings.flags & np.uint16(int(BAD))) == 0
    codes = readings.codes[c.column][good]
    text = f"  {name} ({line.provenance.value}, {line.source}): "
    if not len(codes):
        return f"{text}{c.quantity}, no good reading"
    count = f"{len(codes)} good readings, {len(good) - len(codes)} bad"
    if c.quantity.endswith("_bits"):
        names = line.detail.get("bits", {})
        named = names.get(name, {}) if isinstance(names, dict) else {}
        unsigned = codes.astype(np.int64).view(np.uint64)
        shares = {n: float(np.mean((unsigned & np.uint64(int(bit))) != 0)) for n, bit in named.items()}
        said = ", ".join(f"{n} in {share:.1%}" for n, share in shares.items() if share)
        return f"{text}{c.quantity}: {said or 'none set'}; {count}"
    values = codes.astype(np.float64) * c.per_code
    low, mean, high = float(values.min()), float(values.mean()), float(values.max())
    return f"{text}{c.quantity} {low:.6g} to {high:.6g}, mean of the readings {mean:.6g}; {count}"
