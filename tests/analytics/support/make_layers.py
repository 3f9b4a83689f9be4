"""A run file whose layers are phases and whose power is constant."""

import numpy as np
from make_run import MS, LineSpec, PhaseSpec, make_run

ITERATIONS = 12
BATCH = 8


def write_run(path, provenance="simulated", batch=BATCH, layers=True):
    """Forward: conv 20 ms, relu 10 ms, norm 1 ms, relu again 10 ms; backward: the same in reverse, twice as long."""
    plan = [("conv", 20), ("relu", 10), ("norm", 1), ("relu", 10)]
    phases, t = [], 100 * MS
    outer = PhaseSpec("training", t, t, {"batch_size": batch} if batch else {})
    phases.append(outer)
    for _ in range(ITERATIONS):
        iteration = PhaseSpec("iteration", t, t, {}, 0)
        at = len(phases)
        phases.append(iteration)
        for name, factor, order in (("forward", 1, plan), ("backward", 2, plan[::-1])):
            around = PhaseSpec(name, t, t, {}, at)
            parent = len(phases)
            phases.append(around)
            for layer, ms in order:
                length = factor * ms * MS
                if layers:
                    phases.append(PhaseSpec("layer", t, t + length, {"layer": layer}, parent))
                t += length
            around.end_ns = t
        iteration.end_ns = t
    outer.end_ns = t
    line = LineSpec("gpu0.a", lambda t: np.full(len(t), 100.0), provenance=provenance, accuracy={"u_gain": 0.005})
    return make_run(path, [line], phases, end_ns=t + 100 * MS)
