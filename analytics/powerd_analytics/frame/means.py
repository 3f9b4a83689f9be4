"""The mean of several runs, with its uncertainty: of repeats, of ratios block by block, and after looks.

What is statistical is known by the spread of n runs, with n - 1 degrees of freedom. What is systematic, such as the
gain of a sensor, is shared by all of them and does not average out. Within a block the ratio of a cell to its reference
knows neither that nor what drifts from block to block: ratios are taken block by block, and averaged.

An interval that was looked at after every repeat, and ended them when it was narrow, holds the mean less often than it
says. `looked` makes it the one of t(0.985), which holds it in 95 to 97 % (`powerd_analytics.campaigns.stopping`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, hypot, inf, sqrt

import numpy as np

from powerd_analytics.energy.uncertainty import beyond_rounding, student
from powerd_analytics.frame.figure import Figure

QUANTILE_AFTER_LOOKS = 0.985
"""Of Student's t, for 95 % where the repeats ended by a look at the interval."""


def mean_of_repeats(figures: Sequence[Figure], *, looked: bool = False) -> Figure:
    """The mean of n >= 1 repeats.

    Repeats that agree to the last digit tell nothing of chance: then what each is known to be unsure of counts.
    """
    n = len(figures)
    if n == 1:
        return figures[0]
    values = np.array([f.value for f in figures])
    mean, systematic = float(values.mean()), [f.u_systematic for f in figures if f.u_systematic is not None]
    u, freedom = beyond_rounding(float(np.std(values, ddof=1) / np.sqrt(n)), mean), n - 1.0
    if u == 0:
        u, freedom = hypot(*(f.u_statistical or 0.0 for f in figures)) / n, inf
    elif looked:
        from scipy.special import stdtrit  # takes longer to import than a table of runs to make

        u *= float(stdtrit(freedom, QUANTILE_AFTER_LOOKS) / student(freedom))
    return Figure(
        mean,
        u,
        float(np.mean(systematic)) if systematic else None,
        float(np.mean([f.rectangle for f in figures])),
        freedom,
        any(f.is_lower_bound for f in figures),
    )


def mean_of_numbers(values: Sequence[float], *, looked: bool = False) -> Figure:
    """The same of n >= 1 plain numbers, of each of which nothing is known."""
    return mean_of_repeats([Figure(float(value)) for value in values], looked=looked)


def mean_of_ratios(ratios: Sequence[float]) -> Figure:
    """The geometric mean of n >= 1 ratios, one a block; one alone says nothing of chance."""
    logs = np.log(ratios)
    value, n = exp(float(np.mean(logs))), len(logs)
    if n < 2:
        return Figure(value)
    return Figure(value, value * float(np.std(logs, ddof=1)) / sqrt(n), degrees_of_freedom=n - 1.0)
