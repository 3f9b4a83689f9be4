"""Which edge rule gives the best joules per phase? Simulated sensors and waveforms with exactly known energies.

    python benchmarks/energy_estimators.py [--runs 5] [--seed 0]

Prints for each waveform the error of the mean over 200 phases of a kind, and how often the exact joules of a single
phase lie inside its stated 95 % interval, for: straight lines only, power held at edges, the mixture that powerd uses.
"""

from __future__ import annotations

import argparse
from itertools import pairwise

import numpy as np

from powerd_analytics.edges.edges import phase_line_energies
from powerd_analytics.runs.run import RunLine
from powerd_analytics.signals.signal import Signal
from powerd_core.model import Accuracy, Provenance, ScaledConversion, ShuntConversion

MS = 1_000_000


class Waveform:
    """Piecewise-linear power on a fine grid with exact integrals between any two moments."""

    def __init__(self, t_ns, watts):
        self.t = np.asarray(t_ns, float)
        self.p = np.asarray(watts, float)
        self.e = np.concatenate([[0], np.cumsum(np.diff(self.t) * (self.p[1:] + self.p[:-1]) / 2)])

    def energy(self, t_ns):
        t = np.clip(np.asarray(t_ns, float), self.t[0], self.t[-1])
        i = np.clip(np.searchsorted(self.t, t, "right") - 1, 0, len(self.t) - 2)
        into = t - self.t[i]
        share = into / (self.t[i + 1] - self.t[i])
        return self.e[i] + into * (self.p[i] + share * (self.p[i + 1] - self.p[i]) / 2)


def phases(rng, n, lengths_ms, jitter=0.1):
    """n rounds of phases of the given lengths back to back: begins, ends, labels."""
    lengths = np.tile(np.array(lengths_ms), n) * MS * (1 + jitter * (rng.random(n * len(lengths_ms)) - 0.5))
    edges = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64) + 100 * MS
    return edges[:-1], edges[1:], np.tile(np.arange(len(lengths_ms)), n)


def make_waveform(kind, rng, begin, end, label):
    stop = end[-1] + 100 * MS
    levels = np.array([80.0, 250.0, 150.0])
    if kind == "edge ramps":  # 0.8 ms after each edge until the new level is reached
        before = np.concatenate([[50.0], levels[label][:-1]])
        t = np.ravel(np.column_stack([begin, begin + 0.8 * MS]))
        return Waveform(
            np.concatenate([[0], t, [stop]]),
            np.concatenate([[50], np.ravel(np.column_stack([before, levels[label]])), [50]]),
        )
    if kind in ("steps", "steps+noise", "ramps", "rc"):
        t = np.ravel(np.column_stack([begin, end - 1]))
        p = np.repeat(levels[label], 2)
        if kind == "ramps":
            p = p * np.tile([0.8, 1.2], len(begin))
        if kind == "rc":
            grid = np.arange(0, stop, 0.1 * MS)
            target = levels[label[np.clip(np.searchsorted(begin, grid, "right") - 1, 0, None)]]
            p, out, a = 80.0, np.empty(len(grid)), 0.1 / 5
            for i, x in enumerate(target):
                p += a * (x - p)
                out[i] = p
            return Waveform(grid, out)
        t, p = np.concatenate([[0], t, [stop]]), np.concatenate([[50], p, [50]])
        w = Waveform(t, p)
        if kind == "steps+noise":
            grid = np.arange(0, stop, 1 * MS)
            noise = Waveform(
                np.ravel(np.column_stack([grid, grid + 1 * MS - 1])), np.repeat(rng.normal(0, 15, len(grid)), 2)
            )
            both = np.union1d(t, noise.t)
            return Waveform(both, np.interp(both, w.t, w.p) + np.interp(both, noise.t, noise.p))
        return w
    if kind == "square":  # 37 ms period, knows nothing of the phases
        t = np.arange(0, stop, 18.5 * MS)
        return Waveform(
            np.ravel(np.column_stack([t, t + 18.5 * MS - 1])), np.repeat(100 + 150 * (np.arange(len(t)) % 2), 2)
        )
    if kind == "random steps":
        t = np.cumsum(rng.exponential(8 * MS, int(stop / (8 * MS) * 1.3)))
        return Waveform(np.ravel(np.column_stack([t[:-1], t[1:] - 1])), np.repeat(rng.uniform(50, 300, len(t) - 1), 2))
    if kind == "sine":
        t = np.arange(0, stop, 0.1 * MS)
        return Waveform(t, 150 + 80 * np.sin(2 * np.pi * t / (23.7 * MS)))
    if kind == "wander":
        t = np.arange(0, stop, 1 * MS)
        x, out = 0.0, np.empty(len(t))
        for i, r in enumerate(rng.normal(0, 6, len(t))):
            x = 0.99 * x + r
            out[i] = x
        return Waveform(t, 160 + out)
    raise ValueError(kind)


PARTS = 32
"""Of a low-pass, each with as much weight and even within itself."""


def low_passed(wave, t_ns, tau_ns):
    """[n] power behind a low-pass of first order whose weight is centred at ``t_ns`` [n]; ``tau_ns`` for each."""
    age = np.append(-np.log1p(-np.arange(PARTS) / PARTS), 0.0)
    age[-1] = age[-2] + 2.0  # what is older than all has a mean age of one time constant more
    centre = np.mean((age[1:] + age[:-1]) / 2)
    made, newer = np.zeros(len(t_ns)), wave.energy(t_ns + tau_ns * centre)
    for first, last in pairwise(age):
        older = wave.energy(t_ns + tau_ns * (centre - last))
        made += (newer - older) / (tau_ns * (last - first))
        newer = older
    return made / PARTS


def sensor(
    wave, rng, stop, period_ms=2.0, window_ms=1.06, centre_ms=0.73, counter=False, late_ms=0.0, noise_w=0.0, step_w=0.0
):
    n = int(stop / (period_ms * MS))
    t = (np.arange(n) * period_ms * MS + rng.uniform(0, period_ms * MS) + rng.normal(0, 0.03 * MS, n)).astype(np.int64)
    t = np.maximum.accumulate(t)
    line = RunLine(
        "l",
        "d",
        "s",
        "b",
        Provenance.SIMULATED,
        "power_w",
        "",
        int(period_ms * MS),
        # A chip that converts freely, or a sensor that always has the same delay.
        ShuntConversion(1.0, 1.0, 1.0) if window_ms <= period_ms else ScaledConversion("c", 1.0),
        Accuracy(),
        {},
        "",
        n,
    )
    if counter:
        moment = t + rng.uniform(-late_ms, late_ms, n) * MS
        value = (wave.energy(moment) - wave.energy(moment[0])) * 1e-9
        return Signal(
            line,
            t,
            value,
            True,
            np.zeros(n - 1, bool),
            np.zeros(n - 1, bool),
            period_ms * MS,
            0.0,
            late_ms * MS,
            0,
            None,
        )
    centre = t + rng.uniform(-centre_ms, centre_ms, n) * MS
    w = window_ms * MS
    seen = max(w, 1e-3 * MS)  # what has no window of its own is looked at for a microsecond
    p = (wave.energy(centre + seen / 2) - wave.energy(centre - seen / 2)) / seen + rng.normal(0, noise_w, n)
    if step_w:
        p = np.round(p / step_w) * step_w
    return Signal(
        line, t, p, False, np.zeros(n - 1, bool), np.zeros(n - 1, bool), period_ms * MS, w, centre_ms * MS, 0, None
    )


def one(kind, seed, lengths, rules, **options):
    rng = np.random.default_rng(seed)
    begin, end, label = phases(rng, 200, lengths)
    wave = make_waveform(kind, rng, begin, end, label)
    signal = sensor(wave, rng, end[-1] + 80 * MS, **options)
    exact = (wave.energy(end) - wave.energy(begin)) * 1e-9
    out = {}
    for name, kw in rules.items():
        got = phase_line_energies(signal, begin, end, label, np.zeros(len(begin), np.int64), **kw)
        good = got.resolvable
        error = got.energy_j - exact
        u = np.sqrt(got.u_random_j**2 + got.u_inner_j**2 + got.u_edge_j**2 + got.u_left_j**2 + got.u_clock_j**2)
        means, covers = [], []
        for c in range(len(lengths)):
            k = good & (label == c)
            if k.any():
                means.append(100 * error[k].sum() / exact[k].sum())
                covers.append(np.mean(np.abs(error[k]) <= 2 * u[k] + 1e-6 * exact[k]))
        rms = np.sqrt(np.mean(error[good] ** 2)) / np.mean(exact[good]) if good.any() else np.nan
        out[name] = (max(means, key=abs, default=np.nan), min(covers, default=np.nan), 100 * rms, good.mean())
    return out


RULES = {
    "linear": {"weight": 0.0, "use_slope": False},
    "hold": {"weight": 1.0, "use_slope": False, "use_late": False},
    "hold+slope": {"weight": 1.0, "use_late": False},
    "+left over": {"weight": 1.0},
    "as used": {},
}
KINDS = ("steps", "steps+noise", "edge ramps", "ramps", "rc", "square", "random steps", "sine", "wander")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="simulated runs for each cell")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first run")
    args = parser.parse_args()
    for title, lengths, options in (
        ("500/s, phases 20/40/20 ms", (20, 40, 20), {}),
        ("500/s noisy sensor (2 W)", (20, 40, 20), {"noise_w": 2.0}),
        ("500/s, counter", (20, 40, 20), {"counter": True}),
        ("500/s, counter read at moments unsure by 0.5 ms", (20, 40, 20), {"counter": True, "late_ms": 0.5}),
        ("500/s, window 2 ms", (20, 40, 20), {"window_ms": 2.0, "centre_ms": 0.5}),
        (
            "50/s, window 29 ms, phases 200/400/200 ms",
            (200, 400, 200),
            {"period_ms": 20.0, "window_ms": 29.0, "centre_ms": 1.0},
        ),
    ):
        print(f"\n{title}: worst error of a mean of 200 in %, worst coverage in %, rms error of single phases in %")
        print(f"{'':14s}" + "".join(f"{r:>24s}" for r in RULES))
        for kind in KINDS:
            runs = [one(kind, seed, lengths, RULES, **options) for seed in range(args.seed, args.seed + args.runs)]
            cells = []
            for rule in RULES:
                x = np.array([r[rule] for r in runs])
                cells.append(f"{np.abs(x[:, 0]).max():8.2f}{100 * x[:, 1].mean():8.1f}{x[:, 2].mean():8.2f}")
            print(f"{kind:14s}" + "".join(cells))


if __name__ == "__main__":
    main()
