"""What a line beside power and energy shows over a run, in words."""

from __future__ import annotations

import numpy as np

from powerd_analytics.runs.quantities import good_pieces
from powerd_analytics.runs.run import Run
from powerd_core.errors import AnalysisError
from powerd_core.model import QuantityConversion


def describe_beside(run: Run, name: str) -> str:
    """One line of text for `joules info`: range and mean of a quantity, or how often each of its bits was set."""
    line = run.line(name)
    c = line.conversion
    if not isinstance(c, QuantityConversion):
        raise AnalysisError(f"line {name!r} is {line.quantity}: it is shown with the energies")
    names = line.detail.get("bits", {}) if c.quantity.endswith("_bits") else {}
    named = names.get(name, {}) if isinstance(names, dict) else {}
    times = dict.fromkeys(named, 0)
    good, bad, total, low, high = 0, 0, 0.0, np.inf, -np.inf
    for piece in good_pieces(run, name, c.column):
        codes = piece.codes[c.column]
        good, bad = good + len(codes), bad + piece.bad
        if not len(codes):
            continue
        unsigned = codes.astype(np.int64).view(np.uint64)
        for n, bit in named.items():
            times[n] += int(np.count_nonzero(unsigned & np.uint64(int(bit))))
        values = codes.astype(np.float64) * c.per_code
        total += float(values.sum())
        low, high = min(low, float(values.min())), max(high, float(values.max()))
    text = f"  {name} ({line.provenance.value}, {line.source}): "
    if not good:
        return f"{text}{c.quantity}, no good reading"
    count = f"{good} good readings, {bad} bad"
    if c.quantity.endswith("_bits"):
        said = ", ".join(f"{n} in {k / good:.1%}" for n, k in times.items() if k)
        return f"{text}{c.quantity}: {said or 'none set'}; {count}"
    return f"{text}{c.quantity} {low:.6g} to {high:.6g}, mean of the readings {total / good:.6g}; {count}"
