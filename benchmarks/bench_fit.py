"""Cards fitted to synthetic sweeps: do the true constants lie in their intervals, and are other caps predicted?

Six cards of the form with constants of their own, two trainings each, at every third cap of 31; each point is the mean
of five runs with noise of energy and time. Counted are the constants that a fit says it tells. The caps between are
predicted and compared with the truth.

    python benchmarks/bench_fit.py

Targets: 90 to 97 % of the constants inside U95; time and watts at the caps between within 1 % and the noise. Exit
status 1 when one is missed.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
from common import machine, options, progress

from powerd_analytics.campaigns.card_fit import OF_CARD, OF_TRAINING, SweepPoint, fit_card
from powerd_core.gpu_physics import RTX_6000, Card, Network, operate

RUNS = 5


def card_of(rng: np.random.Generator) -> tuple[Card, dict[str, Network]]:
    least, greatest = float(rng.integers(100, 180)), float(rng.integers(260, 500))
    card = replace(
        RTX_6000, floor_w=float(rng.uniform(30, 90)), knee=float(rng.uniform(0.4, 0.65)),
        voltage=float(rng.uniform(0.8, 2.5)), wait_w=float(rng.uniform(20, 60)), limits_w=(least, greatest, greatest),
    )  # fmt: skip
    networks = {
        name: Network(
            float(rng.uniform(0.8, 1.3) * (greatest - card.floor_w)), float(rng.uniform(0.05, 0.5)),
            float(rng.uniform(0.2, 0.7)), float(rng.uniform(20, 300)),
        )
        for name in ("a", "b")
    }  # fmt: skip
    return card, networks


def one(
    card: Card, networks: dict[str, Network], noise: float, rng: np.random.Generator
) -> tuple[list[bool], list[float]]:
    """Of the constants that are told, whether they are inside; and how far off the caps between are, per cent."""
    caps = np.linspace(card.limits_w[0], card.limits_w[2], 31)
    points = {}
    for name, network in networks.items():
        own = []
        for cap in caps[::3]:
            at = operate(card, network, float(cap))
            e, t = np.exp(noise / np.sqrt(RUNS) * rng.standard_normal(2))
            own.append(SweepPoint(float(cap), at.time_s * t, at.power_w * e / t))
        points[name] = tuple(own)
    fit = fit_card(points, replace(RTX_6000, limits_w=card.limits_w))
    true = {("", name): getattr(card, name) for name in OF_CARD}
    true |= {(name, c): getattr(network, c) for name, network in networks.items() for c in OF_TRAINING}
    inside = [abs(c.value - true[c.training, c.name]) <= c.u95 for c in fit.constants if c.is_told]
    off = []
    for name, network in networks.items():
        for cap in (float(c) for i, c in enumerate(caps) if i % 3):
            truth, ours = operate(card, network, cap), operate(fit.card, fit.networks[name], cap)
            off += [100 * abs(ours.time_s / truth.time_s - 1), 100 * abs(ours.power_w / truth.power_w - 1)]
    return inside, off


def main() -> int:
    o = options(__doc__, cards=6, seeds=8, seed=1)
    print(machine())
    missed = []
    for noise in (0.003, 0.01, 0.02):
        inside: list[bool] = []
        off: list[float] = []
        for card_number in range(o.cards):
            card, networks = card_of(np.random.default_rng([o.seed, card_number]))
            for seed in range(o.seeds):
                progress(f"noise {100 * noise:g} %, card {card_number + 1}, seed {seed + 1}")
                found = one(
                    card, networks, noise, np.random.default_rng([o.seed, card_number, seed, round(1e4 * noise)])
                )
                inside += found[0]
                off += found[1]
        progress("")
        share, worst = 100 * float(np.mean(inside)), float(np.quantile(off, 0.99))
        print(
            f"noise {100 * noise:g} %: {share:.1f} % of {len(inside)} constants that are told lie in their U95 (90 to "
            f"97); caps between: 99 % within {worst:.2f} % (target {1 + 100 * noise:g}), worst {max(off):.2f} %"
        )
        missed += [f"coverage at {noise:g}"] * (not 90 <= share <= 97)
        missed += [f"prediction at {noise:g}"] * (worst > 1 + 100 * noise)
    print(f"missed: {', '.join(missed)}" if missed else "all targets met")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
