"""How often does the interval of a mean of few repeats hold that go up and down together? The target is 93 to 97 %.

    python benchmarks/bench_repeats.py [--draws 1500] [--seed 1]

Each repeat is a share of the one before and something new, normal; besides, means of three, slow movement with as much
independent scatter, independent repeats that are exponentially distributed, and some that come and go with a period,
with a fifth of its height as noise and steps of 1 % in its phase. Beside what powerd does: the sum of
correlations alone, batch means with Student's factor (which batches are taken only where the first correlation stands
out), and the median and the ninth tenth of the half-widths of each, in standard deviations of a repeat.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import numpy as np
from common import machine, progress

from powerd_analytics.energy.coverage import NORMAL, student
from powerd_analytics.energy.uncertainty import Estimate, _windowed, mean_of

RHOS = (0.0, 0.3, 0.5, 0.8, 0.92)


def as_powerd_does(x: np.ndarray) -> float:
    none = np.zeros(len(x))
    return mean_of(x, none, none).u95_j


def with_the_sum_alone(x: np.ndarray) -> float:
    away = x - x.mean()
    u, degrees = _windowed(away, float(away @ away))
    return Estimate(0.0, u, 0.0, degrees=degrees).u95_j


def with_batches(x: np.ndarray, batches: int) -> float:
    away, n = x - x.mean(), len(x)
    u, degrees = float(np.std(x, ddof=1) / np.sqrt(n)), n - 1
    if float(away[1:] @ away[:-1]) >= float(away @ away) / np.sqrt(n):
        means = [part.mean() for part in np.array_split(x, batches)]
        u, degrees = float(np.std(means, ddof=1) / np.sqrt(batches)), batches - 1
    return NORMAL * student(degrees) * u


WAYS: dict[str, Callable[[np.ndarray], float]] = {
    "powerd": as_powerd_does,
    "sum alone": with_the_sum_alone,
    "6 batches": lambda x: with_batches(x, 6),
    "4 batches": lambda x: with_batches(x, 4),
}


def first_order(rng: np.random.Generator, draws: int, n: int, rho: float) -> np.ndarray:
    x = np.empty((draws, n))
    x[:, 0] = rng.normal(size=draws)
    for i in range(1, n):
        x[:, i] = rho * x[:, i - 1] + np.sqrt(1 - rho**2) * rng.normal(size=draws)
    return x


def periodic(rng: np.random.Generator, draws: int, n: int, period: float) -> np.ndarray:
    times = np.cumsum(1 + 0.01 * rng.normal(size=(draws, n)), axis=1) + period * rng.random((draws, 1))
    return np.sin(2 * np.pi * times / period) + 0.2 * rng.normal(size=(draws, n))


def cases(rng: np.random.Generator, draws: int) -> dict[str, np.ndarray]:
    found = {f"{n} repeats, each {r:g} of the last": first_order(rng, draws, n, r) for n in (16, 30, 60) for r in RHOS}
    three = rng.normal(size=(draws, 32))
    found["30, means of three"] = (three[:, :-2] + three[:, 1:-1] + three[:, 2:]) / np.sqrt(3)
    for n, rho in ((30, 0.9), (200, 0.95)):
        found[f"{n}, {rho:g} and as much scatter"] = first_order(rng, draws, n, rho) + rng.normal(size=(draws, n))
    found["30, independent, exponential"] = rng.exponential(size=(draws, 30)) - 1
    for n, period in ((16, 2.2), (30, 2.2), (30, 6.2), (60, 2.2), (60, 6.2)):
        found[f"{n}, period of {period:g}"] = periodic(rng, draws, n, period)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    print(f"Share of intervals that hold (and their width), {args.draws} draws, seed {args.seed} ({machine()})")
    print(" " * 32 + "".join(f"{name:>24}" for name in WAYS))
    missed = False
    for name, draws in cases(np.random.default_rng(args.seed), args.draws).items():
        progress(name)
        row = f"{name:32}"
        for way, half_width in WAYS.items():
            wide = np.array([half_width(x) for x in draws])
            held = float(np.mean(np.abs(draws.mean(axis=1)) <= wide))
            row += f"{held:9.1%} ({np.median(wide):5.2f} {np.quantile(wide, 0.9):5.2f})"
            missed |= way == "powerd" and not 0.93 <= held <= 0.97
        print(row, flush=True)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
