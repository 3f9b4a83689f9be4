"""What the sensors leave open about a difference: what both sides share cancels."""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot, sqrt

import numpy as np

from powerd_analytics.comparison.samples import Sample, Sensor
from powerd_analytics.records.columns import number_of

_ROUNDING = 1e-12
"""Joules are sums of many numbers: differences below this share of them are the arithmetic's."""


def same_sensors(a: Sequence[Sample], b: Sequence[Sample]) -> bool:
    """Whether all of both sides comes from the same lines with the same calibration."""
    every = [sorted(sensor.identity for sensor in s.sensors) for s in [*a, *b]]
    return bool(every[0]) and all(found == every[0] for found in every)


def u_systematic_j(side: Sequence[Sample]) -> float:
    """Systematic standard uncertainty of one side's mean joules a batch."""
    return float(np.mean([_u_of(s) for s in side]))


def _u_of(sample: Sample) -> float:
    """Systematic standard uncertainty of a record's joules a batch."""
    u, n = number_of(sample.record, "u_systematic_j") or 0.0, number_of(sample.record, "iterations")
    return u / n if sample.record["kind"] == "total" and n else u


def u_difference_j(a: Sequence[Sample], b: Sequence[Sample], *, same: bool) -> float:
    """Systematic standard uncertainty of ``b - a``.

    Different sensors are off independently. The same sensor is off by the same gain and zero on both sides, so that
    only their difference counts; what else is systematic (edges, clocks, quantisation, missing readings) comes from
    each side's own signal and is taken as independent.
    """
    u_a, u_b = u_systematic_j(a), u_systematic_j(b)
    rounding = _ROUNDING * max(number_of(s.record, "j_per_batch") or 0.0 for s in [*a, *b])
    if not same:
        return hypot(u_a, u_b, rounding)
    of_a, of_b = _lines(a), _lines(b)
    shared = [
        hypot(of_a[name].u_gain * (of_b[name].joules - of_a[name].joules),
              of_a[name].u_offset_w * (of_b[name].seconds - of_a[name].seconds))
        for name in of_a
    ]  # fmt: skip
    own = [max(0.0, u**2 - sum(s.u_shared_j**2 for s in lines.values())) for u, lines in ((u_a, of_a), (u_b, of_b))]
    return sqrt(sum(u**2 for u in shared) + sum(own) + rounding**2)


def _lines(side: Sequence[Sample]) -> dict[str, Sensor]:
    """Mean part of each line in the joules a batch of one side."""
    found: dict[str, list[Sensor]] = {}
    for sample in side:
        n = number_of(sample.record, "iterations") if sample.record["kind"] == "total" else 1.0
        for s in sample.sensors:
            found.setdefault(s.identity, []).append(
                Sensor(s.identity, s.joules / (n or 1.0), s.seconds / (n or 1.0), s.u_gain, s.u_offset_w)
            )
    return {
        name: Sensor(
            name, float(np.mean([s.joules for s in same])), float(np.mean([s.seconds for s in same])), same[0].u_gain,
            same[0].u_offset_w,
        )
        for name, same in found.items()
    }  # fmt: skip
