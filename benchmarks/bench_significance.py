"""How often `joules compare` calls two series of iterations different that are not, at a stated 5 %.

Series of n iterations with the correlation r from one to the next; both sides of each pair are drawn alike. Beside it
the same test on the single iterations, as if they were independent.
"""

from __future__ import annotations

import argparse

import numpy as np

from powerd_analytics.comparison.significance import LEVEL, difference_p, mean_of_repeats, mean_of_series


def series(rng: np.random.Generator, n: int, r: float) -> np.ndarray:
    """A first-order process after it has forgotten its beginning."""
    noise, made = rng.normal(0, 1, n + 200), np.zeros(n + 200)
    for i in range(1, n + 200):
        made[i] = r * made[i - 1] + noise[i]
    return 100 + made[200:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=1000)
    pairs = parser.parse_args().pairs
    rng = np.random.default_rng(1)
    print(f"{pairs} pairs each; called different, stated {100 * LEVEL:g} %")
    print("   r     n   single iterations   joules compare")
    for r in (0.0, 0.5, 0.9, 0.97):
        for n in (40, 100, 600):
            wrong = np.zeros(2)
            for _ in range(pairs):
                a, b = series(rng, n, r), series(rng, n, r)
                for k, mean in enumerate((mean_of_repeats, mean_of_series)):
                    p = difference_p(mean(a), mean(b))
                    wrong[k] += p is not None and p < LEVEL
            naive, ours = 100 * wrong / pairs
            print(f"{r:5.2f} {n:5d} {naive:17.1f} % {ours:14.1f} %", flush=True)


if __name__ == "__main__":
    main()
