"""How often do the true joules lie inside the 95 % interval? 93 to 97 % of simulated runs, for phases of 2 ms to 10 s.

    python benchmarks/bench_coverage.py [--runs 400] [--seed 0] [--sensor NAME ...] [--lengths MS ...] [--jobs N]

Every run draws its own errors within the figures of a data sheet, as powerd states them of a line: gain, zero, shunt,
conversion clock, offset of the board's clock within its bound, sampling instants, noise. *Single*: share of single
phases whose own joules lie in their interval. *Mean*: share of runs in which the joules that a phase of the kind takes
(the mean over all runs) lie in the interval of the run's mean over its phases; *of these*: the same for the joules of
just these phases. Each share has its own 95 % interval, from the runs, which are independent (phases of a run are not).

A cell (a sensor, a phase length, a waveform) is judged where the model's parts are drawn as they are stated. Reported
apart, with the reason:
- power that moves faster than five reading distances: a pair of steps between readings looks like noise of the sensor
  and is counted as such (cautious), and a periodic one may leave no trace at all (known limit);
- means of phases that power knows nothing of: such repeats are no independent draws from one kind, and what they have
  in common lasts as long as the run (square, sine, wander, steps at random);
- single phases above 97 % only for what edges leave open, a model's bound that the waveform does not use.
Phases that the sensor does not resolve have no interval and are counted apart.

The last table pools everything for each phase length: a run draws its sensor, its waveform, its kind of phase and its
errors, all cells alike likely, those apart too; beside it the same less the cells apart. Exit status 1 when a judged
cell misses 93-97 % by more than its own interval, or when a length's single phases or means of all cells together lie
outside 93-97 %. Of hundreds of cells some exceed their own interval by chance: how many may, and how many are farther
off than chance takes any of so many, stands beside it and decides nothing.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, comb
from typing import Any
from zlib import crc32

import numpy as np
from common import machine, progress
from numpy.typing import NDArray

from powerd_analytics.energy.budget import Budget
from powerd_analytics.energy.devices import Part, PhaseColumns, interval_budget, interval_energies
from powerd_analytics.energy.uncertainty import MEAN_COLUMNS, factor, mean_of
from powerd_analytics.runs.run import RunClock, RunLine
from powerd_analytics.signals.signal import Signal
from powerd_core.model import Accuracy, CounterConversion, Provenance, ScaledConversion, ShuntConversion

MS = 1_000_000
Values = NDArray[np.float64]
Ints = NDArray[np.int64]

LENGTHS_MS = (2, 5, 10, 20, 50, 200, 1000, 10_000)
LOW, HIGH = 0.93, 0.97
ALONE = 0.05
"""The share of cells whose own interval may miss what is true, and of benchmarks that say so in `Verdict.together`."""
RESOLVED = 0.9
READINGS = 2_000_000
"""Of one line that are in memory at a time."""
MOST_READINGS, FEWEST_RUNS = 30_000_000, 60
"""Of one line in a cell: fast sensors and long phases get fewer runs, but so many at least."""
SLOW = {"steps+noise": 1.0, "square": 18.5, "random steps": 8.0, "rare steps": 60.0, "sine": 23.7, "wander": 100.0}
"""Milliseconds in which power that knows nothing of the phases moves."""
SLOWER = 5
"""Reading distances that this must exceed to be judged."""


# --- Power with exact joules, and what a low-pass makes of it


class Waveform:
    """Piecewise-linear power [W] over time [ns] with exact integrals [W ns] between any two moments."""

    def __init__(self, t_ns: Any, watts: Any) -> None:
        self.t = np.asarray(t_ns, float)
        self.p = np.asarray(watts, float)
        self.e = np.concatenate([[0], np.cumsum(np.diff(self.t) * (self.p[1:] + self.p[:-1]) / 2)])

    def energy(self, t_ns: Any) -> Values:
        t = np.clip(np.asarray(t_ns, float), self.t[0], self.t[-1])
        i = np.clip(np.searchsorted(self.t, t, "right") - 1, 0, len(self.t) - 2)
        into = t - self.t[i]
        share = into / (self.t[i + 1] - self.t[i])
        return self.e[i] + into * (self.p[i] + share * (self.p[i + 1] - self.p[i]) / 2)


LOW_PASS_PARTS = 32
"""Parts of a low-pass's weight, each with as much weight and even within itself."""


def low_passed(wave: Waveform, t_ns: Values, tau_ns: Any) -> Values:
    """[n] power behind a low-pass of first order whose weight is centred at ``t_ns`` [n]; ``tau_ns`` for each."""
    age = np.append(-np.log1p(-np.arange(LOW_PASS_PARTS) / LOW_PASS_PARTS), 0.0)
    age[-1] = age[-2] + 2.0  # what is older than all has a mean age of one time constant more
    centre = np.mean((age[1:] + age[:-1]) / 2)
    watts, newer = np.zeros(len(t_ns)), wave.energy(t_ns + tau_ns * centre)
    for first, last in pairwise(age):
        older = wave.energy(t_ns + tau_ns * (centre - last))
        watts += (newer - older) / (tau_ns * (last - first))
        newer = older
    return watts / LOW_PASS_PARTS


# --- The sensors


FILTER_SHARE = 0.06


@dataclass(frozen=True, slots=True)
class Sensor:
    """What measures: limits are half-widths of rectangles from which each run and line draws its own error."""

    name: str
    period_ms: float = 2.0
    window_ms: float = 1.06
    shared_centre_ms: float = 0.03
    """The window's middle is off by up to this much, the same way all through a run: the conversion clock."""
    own_centre_ms: float = 0.70
    """And by up to this much from reading to reading: scans and conversions go past each other."""
    jitter_ms: float = 0.03
    gain_limits: tuple[float, ...] = ()
    u_gain: float = 0.0
    """Normal part of the gain: a calibration."""
    offset_limit_w: float = 0.0
    step_w: float = 0.0
    noise_w: float = 0.0
    bound_ms: float = 0.02
    counter: bool = False
    is_shunt: bool = True
    shares: tuple[float, ...] = (1.0,)
    """The part of the device's power that each of its lines carries."""
    chip: str = "INA219"
    """What the source names in the line's detail, where it is a shunt."""
    filter_ms: float = 0.0
    """Time constant of a low-pass of first order instead of the window, by up to `FILTER_SHARE` another in each run."""

    @property
    def accuracy(self) -> Accuracy:
        u_gain = float(np.sqrt(sum(g**2 for g in self.gain_limits) / 3 + self.u_gain**2))
        return Accuracy(
            u_gain, self.offset_limit_w / np.sqrt(3), self.step_w, round(self.window_ms * MS),
            round((self.shared_centre_ms + self.own_centre_ms) * MS), filter_ns=round(self.filter_ms * MS),
        )  # fmt: skip


SHEET: dict[str, Any] = {"gain_limits": (0.01, 0.01, 0.01), "offset_limit_w": 0.24, "step_w": 0.06}
SENSORS = (
    Sensor("INA219, data sheet", **SHEET),
    Sensor("INA219, calibrated", u_gain=0.001, offset_limit_w=0.02, step_w=0.06, noise_w=0.5),
    Sensor("8 rails, data sheet", shares=(0.1, 0.25, 0.25, 0.2, 0.05, 0.05, 0.05, 0.05), **SHEET),
    Sensor("counter, 500/s", window_ms=0.0, shared_centre_ms=0.0, own_centre_ms=0.1, counter=True,
           gain_limits=(0.005,), is_shunt=False),
    # One chip, shunt only, 84 us a conversion, pointer kept between reads: 29 clocks of 400 kHz and a call each.
    Sensor("INA219 alone, 9 bit, 4500/s", 1 / 4.5, 0.084, 0.008, 0.042, 0.02, u_gain=0.002, offset_limit_w=0.02,
           step_w=0.48, noise_w=0.5),
    # The next two as `powerd_daemon.sources.ina.sensor.accuracy` states them for 2 milliohm, 1 % and 12 V, shunt and
    # bus converted by turns and one reading a cycle. What all readings share: the clock's tolerance, when the
    # chip latches its register for a transfer, and, as no data sheet says when within a cycle that is renewed, one bus
    # conversion; what is a reading's own: half a cycle.
    # INA226 (SBOS547): 140 us each; +-0.1 % + 50 ppm/K, 10 uV + 0.1 uV/K, 60 K; 2.5 uV a code; clock +-10 %.
    Sensor("INA226 alone, 140 us, 3500/s", 1 / 3.5, 0.140, 0.204, 0.140, 0.02, gain_limits=(0.004, 0.004, 0.01),
           offset_limit_w=0.096, step_w=0.015, noise_w=0.5, chip="INA226"),
    # INA228 (SLYS021): 84 us each, three bytes a reading; +-0.05 % + 20 ppm/K, 1 uV + 10 nV/K; 312.5 nV a code; +-1 %.
    Sensor("INA228 alone, 84 us, 4000/s", 1 / 4.0, 0.084, 0.102, 0.084, 0.02, gain_limits=(0.0017, 0.0017, 0.01),
           offset_limit_w=0.0096, step_w=0.0019, noise_w=0.5, chip="INA228"),
    Sensor("NVML, 50/s", 20.0, 0.0, shared_centre_ms=0.9, own_centre_ms=0.1, jitter_ms=0.01, filter_ms=13.0,
           gain_limits=(0.05,), step_w=1e-3, is_shunt=False),
    Sensor("wall meter, 10/s", 100.0, 100.0, 1.0, 1.0, 1.0, gain_limits=(0.0015,), offset_limit_w=0.3, is_shunt=False),
)  # fmt: skip


# --- Phases and power. All runs of a cell lie one behind the other on one time axis and each has classes of phases of
# its own, so that what phases of a kind share is estimated for every run by itself, in one pass over all.


KINDS = 3
LEVELS = np.array([80.0, 250.0, 150.0])
LENGTHS = np.array([1.0, 2.0, 1.0])
"""Phases of the second kind are twice as long."""
IDLE_W = 50.0
PAD_NS = 120 * MS


@dataclass(frozen=True, slots=True)
class Plan:
    """Phases of ``runs`` runs, in order of time: ``edges`` [runs, phases + 1]."""

    edges: Ints
    span_ns: int

    @property
    def runs(self) -> int:
        return len(self.edges)

    @property
    def begin(self) -> Ints:
        return self.edges[:, :-1].ravel()

    @property
    def end(self) -> Ints:
        return self.edges[:, 1:].ravel()

    @property
    def kind(self) -> Ints:
        return np.tile(np.arange(self.edges.shape[1] - 1) % KINDS, self.runs)

    @property
    def run(self) -> Ints:
        return np.repeat(np.arange(self.runs), self.edges.shape[1] - 1)

    @property
    def levels(self) -> Values:
        """[phases] of a run, in watts."""
        return LEVELS[np.arange(self.edges.shape[1] - 1) % KINDS]


def plan_of(rng: np.random.Generator, runs: int, repeats: int, length_ms: float) -> Plan:
    """Rounds of three kinds of phases back to back, each length ± 5 %."""
    lengths = np.tile(LENGTHS, repeats) * length_ms * MS * (1 + 0.1 * (rng.random((runs, KINDS * repeats)) - 0.5))
    edges = np.concatenate([np.zeros((runs, 1)), np.cumsum(lengths, axis=1)], axis=1) + PAD_NS
    span = int(edges.max()) + PAD_NS
    return Plan(edges.astype(np.int64) + np.arange(runs)[:, None] * span, span)


def steps_of(at: Any, watts: Values, length_ns: Any) -> Waveform:
    """Power that keeps the level ``watts`` [n] from ``at`` [n] for ``length_ns`` less a nanosecond."""
    return Waveform(np.ravel(np.column_stack([at, at + length_ns - 1])), np.repeat(watts, 2))


def _with_idle(plan: Plan, times: NDArray[Any], watts: Values) -> Waveform:
    """Idle power between the runs."""
    first = np.arange(plan.runs)[:, None] * plan.span_ns
    t = np.concatenate([first, times[:, :1] - 1, times, times[:, -1:] + 1, first + plan.span_ns - 1], axis=1)
    idle = np.full((plan.runs, 2), IDLE_W)
    return Waveform(t.ravel(), np.concatenate([idle, watts, idle], axis=1).ravel())


def _steps(rng: np.random.Generator, plan: Plan, tilt: float = 0.0) -> Waveform:
    levels = np.tile(plan.levels, (plan.runs, 1))
    watts = np.stack([levels * (1 - tilt), levels * (1 + tilt)], axis=2).reshape(plan.runs, -1)
    times = np.stack([plan.edges[:, :-1], plan.edges[:, 1:] - 1], axis=2).reshape(plan.runs, -1)
    return _with_idle(plan, times, watts)


def _edge_ramps(rng: np.random.Generator, plan: Plan) -> Waveform:
    """0.8 ms behind each edge until the new level is reached."""
    before = np.concatenate([[IDLE_W], plan.levels[:-1]])
    watts = np.tile(np.column_stack([before, plan.levels]).ravel(), (plan.runs, 1))
    times = np.stack([plan.edges[:, :-1], plan.edges[:, :-1] + round(0.8 * MS)], axis=2).reshape(plan.runs, -1)
    times = np.concatenate([times, plan.edges[:, -1:] - 1], axis=1)
    return _with_idle(plan, times, np.concatenate([watts, watts[:, -1:]], axis=1))


def _exponential(rng: np.random.Generator, plan: Plan, tau_ms: float = 5.0) -> Waveform:
    """First-order lag behind each edge, as straight pieces."""
    knots = np.array([0, 0.25, 0.5, 1, 1.5, 2, 3, 4, 5, 6.5, 8, 10, 13, 17, 22, 30, 45]) * MS
    power = np.full(plan.runs, IDLE_W)
    times, watts = [], []
    for i, level in enumerate(plan.levels):
        begin, end = plan.edges[:, i], plan.edges[:, i + 1]
        into = np.minimum(knots[None, :], (end - begin - 1)[:, None])
        # Knots beyond the end fall on it; they are told apart by a nanosecond each.
        into = np.minimum(into, (end - begin)[:, None] - len(knots) + np.arange(len(knots))[None, :])
        times.append(begin[:, None] + into)
        watts.append(level + (power[:, None] - level) * np.exp(-into / (tau_ms * MS)))
        power = level + (power - level) * np.exp(-(end - begin) / (tau_ms * MS))
    return _with_idle(plan, np.concatenate(times, axis=1), np.concatenate(watts, axis=1))


def _noisy(rng: np.random.Generator, plan: Plan) -> Waveform:
    """Steps, and another 15 W (rms) every millisecond."""
    base = _steps(rng, plan)
    grid = np.arange(0, plan.span_ns * plan.runs, MS)
    noise = steps_of(grid, rng.normal(0, 15, len(grid)), MS)
    both = np.union1d(base.t, noise.t)
    return Waveform(both, np.interp(both, base.t, base.p) + np.interp(both, noise.t, noise.p))


def _square(rng: np.random.Generator, plan: Plan) -> Waveform:
    half = round(18.5 * MS)
    grid = np.arange(0, plan.span_ns * plan.runs + half, half)
    # Every run meets another moment of the period: its span is no multiple of it.
    return steps_of(grid, 100.0 + 150 * (np.arange(len(grid)) % 2), half)


def _random(rng: np.random.Generator, plan: Plan, dwell_ms: float = 8.0) -> Waveform:
    stop, dwell = plan.span_ns * plan.runs, dwell_ms * MS
    t = np.cumsum(rng.exponential(dwell, int(stop / dwell * 1.1) + 50))
    return steps_of(t[:-1], rng.uniform(50, 300, len(t) - 1), np.diff(t))


def _sine(rng: np.random.Generator, plan: Plan) -> Waveform:
    t = np.arange(0, plan.span_ns * plan.runs, MS)
    return Waveform(t, 150 + 80 * np.sin(2 * np.pi * t / (23.7 * MS)))


def _wander(rng: np.random.Generator, plan: Plan) -> Waveform:
    """First-order autoregressive, 100 ms long, 42 W rms."""
    steps = plan.span_ns // MS + 1
    x, out = np.zeros(plan.runs), np.empty((plan.runs, steps))
    for i in range(steps):
        x = 0.99 * x + rng.normal(0, 6, plan.runs)
        out[:, i] = x
    t = np.arange(plan.runs)[:, None] * plan.span_ns + np.arange(steps)[None, :] * MS
    inside = np.arange(steps) * MS < plan.span_ns
    return Waveform(t[:, inside].ravel(), 160 + out[:, inside].ravel())


WAVEFORMS: dict[str, Callable[[np.random.Generator, Plan], Waveform]] = {
    "steps": _steps,
    "steps+noise": _noisy,
    "edge ramps": _edge_ramps,
    "ramps": lambda rng, plan: _steps(rng, plan, 0.2),
    "exponential": _exponential,
    "square": _square,
    "random steps": _random,
    "rare steps": lambda rng, plan: _random(rng, plan, 60.0),
    "sine": _sine,
    "wander": _wander,
}
"""Those from ``steps`` to ``exponential`` follow the phases, but for the noise; the others know nothing of them."""


def part_of(wave: Waveform, rng: np.random.Generator, plan: Plan, sensor: Sensor) -> Part:
    """The device as its sensor shows it, every line with errors of its own; the clock's offset is the board's."""
    offset = rng.uniform(-1, 1, plan.runs) * sensor.bound_ms * MS
    signals = tuple(_signal(wave, rng, plan, sensor, share, offset, i) for i, share in enumerate(sensor.shares))
    return Part("gpu0", "simulated", signals)


def _signal(
    wave: Waveform, rng: np.random.Generator, plan: Plan, s: Sensor, share: float, offset: Values, number: int
) -> Signal:
    period, window, stop = s.period_ms * MS, s.window_ms * MS, plan.span_ns * plan.runs
    per_run = max(int(plan.span_ns / period), 4)
    # Each run is read at a moment of its own within the reading distance.
    t = (np.arange(per_run)[None, :] + rng.random((plan.runs, 1)) * 0.98) * period
    t = t + rng.normal(0, s.jitter_ms * MS, t.shape)
    t = (t + np.arange(plan.runs)[:, None] * plan.span_ns).ravel()
    run = np.repeat(np.arange(plan.runs), per_run)
    order = np.argsort(t, kind="stable")
    t, run = t[order], run[order]
    gain = rng.normal(0, s.u_gain, plan.runs) if s.u_gain else np.zeros(plan.runs)
    for limit in s.gain_limits:
        gain = (1 + gain) * (1 + rng.uniform(-limit, limit, plan.runs)) - 1
    zero = rng.uniform(-1, 1, plan.runs) * s.offset_limit_w
    shift = rng.uniform(-1, 1, plan.runs) * s.shared_centre_ms * MS
    moment = t + shift[run] + rng.uniform(-1, 1, len(t)) * s.own_centre_ms * MS
    stamp = np.maximum.accumulate((t + offset[run]).astype(np.int64))
    keep = np.concatenate([[True], np.diff(stamp) > 0])
    stamp, moment, run = stamp[keep], moment[keep], run[keep]
    n = len(stamp)
    conversion: object
    if s.counter:
        joules = share * wave.energy(moment) * 1e-9
        steps = np.diff(joules) * (1 + gain[run[1:]]) + zero[run[1:]] * np.diff(moment) * 1e-9
        value = np.concatenate([[0.0], np.cumsum(steps)])
        conversion = CounterConversion("c", 1e-9, 64)
    else:
        middle = np.clip(moment, window / 2, stop - window / 2)
        if s.filter_ms:
            tau = s.filter_ms * (1 + FILTER_SHARE * rng.uniform(-1, 1, plan.runs)) * MS
            value = share * low_passed(wave, middle, tau[run])
        else:
            value = share * (wave.energy(middle + window / 2) - wave.energy(middle - window / 2)) / max(window, 1)
        value = value * (1 + gain[run]) + zero[run]
        if s.noise_w:
            value = value + rng.normal(0, s.noise_w, n)
        if s.step_w:
            value = np.round(value / s.step_w) * s.step_w
        conversion = ShuntConversion(0.01, 1e-5, 1.0) if s.is_shunt else ScaledConversion("c", 1.0)
    line = RunLine(
        f"gpu0.l{number}", "gpu0", "s", "b", Provenance.SIMULATED, "power_w", "", round(period), conversion, s.accuracy,
        {"sensors": [{"name": f"l{number}", "chip": s.chip, "shunt_tolerance": 0.01}]} if s.is_shunt else {}, "", n,
    )  # fmt: skip
    none = np.zeros(n - 1, bool)
    clock = RunClock("b", 0.0, np.array([0.0, float(stop)]), np.full(2, s.bound_ms * MS), 0)
    centre = (s.shared_centre_ms + s.own_centre_ms) * MS
    reach = 0.0 if s.counter else float(s.accuracy.reach_ns)
    return Signal(line, stamp, value, s.counter, none, none, period, reach, centre, 0, clock)


# --- Shares of hits


@dataclass(frozen=True, slots=True)
class Share:
    """A share of hits with its 95 % interval."""

    value: float
    low: float
    high: float
    variance: float = 0.0
    """Of ``value``, from how runs differ."""
    runs: int = 1

    @property
    def is_inside(self) -> bool:
        return LOW <= self.value <= HIGH

    def __str__(self) -> str:
        return f"{self.value:6.1%} ({self.low:5.1%}-{self.high:6.1%})"


def share_of(by_run: Values) -> Share:
    """From shares [runs]: Wilson's interval for as many independent trials as the scatter between runs amounts to."""
    n, p = len(by_run), float(np.mean(by_run))
    variance = float(np.var(by_run, ddof=1)) / n if n > 1 else 0.25
    trials = max(p * (1 - p) / variance, n) if variance > 0 else n
    z2 = 1.96**2
    middle, half = p + z2 / (2 * trials), 1.96 * np.sqrt(p * (1 - p) / trials + z2 / (4 * trials**2))
    low, high = float((middle - half) / (1 + z2 / trials)), float((middle + half) / (1 + z2 / trials))
    return Share(p, low, high, variance, n)


def pooled(shares: list[Share]) -> Share:
    """Of runs that draw their cell too, each as likely as any other; the cells are strata, so that only the scatter
    within them counts."""
    value = float(np.mean([s.value for s in shares]))
    variance = sum(s.variance for s in shares) / len(shares) ** 2
    half = 1.96 * float(np.sqrt(variance))
    return Share(value, max(value - half, 0.0), min(value + half, 1.0), variance)


def binomial_cdf(hits: float, n: int, p: float) -> float:
    """Probability of so many hits (rounded up) or fewer in ``n`` independent trials with ``p`` each."""
    return sum(comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(ceil(hits - 1e-9) + 1))


@dataclass(slots=True)
class Verdict:
    """The judged shares, and how many of them are beyond a limit by more than their own interval."""

    shares: list[Share] = field(default_factory=list)
    below: int = 0
    above: int = 0
    cautious: int = 0

    @property
    def by_chance(self) -> float:
        """Cells that would be beyond a limit by their own interval if all were right at it."""
        return ALONE / 2 * len(self.shares)

    def together(self) -> tuple[int, int]:
        """How many are so far below and above a limit that, were all cells right at it, a share `ALONE` of benchmarks
        would have any (Bonferroni).

        A run counts as one trial. Its phases share gain, zero and clock, so that one run in thirty misses altogether;
        runs without such a one hardly differ, and an interval from how they differ is too narrow then.
        """
        rare = ALONE / 2 / max(len(self.shares), 1)
        below = sum(binomial_cdf(s.value * s.runs, s.runs, LOW) < rare for s in self.shares)
        return below, sum(binomial_cdf((1 - s.value) * s.runs, s.runs, 1 - HIGH) < rare for s in self.shares)

    def add(self, share: Share, bare: Share | None = None) -> str:
        """Count one share; the text to print behind it. ``bare`` is the same without the bound of the edges."""
        self.shares.append(share)
        if share.high < LOW:
            self.below += 1
            return f"<-- below by {LOW - share.value:.1%}"
        if share.low <= HIGH:
            return ""
        if bare is not None and bare.low <= HIGH:
            self.cautious += 1
            return f"cautious: edges are a bound ({bare.value:.1%} without)"
        self.above += 1
        return f"<-- above by {share.value - HIGH:.1%}"

    def show(self, name: str) -> None:
        if not self.shares:
            return
        values, (below, above) = [s.value for s in self.shares], self.together()
        inside = sum(s.is_inside for s in self.shares)
        print(f"\n{name}: {len(values)} cells judged, {inside} in 93-97 %, {min(values):.1%} to {max(values):.1%};")
        print(f"  beyond by more than their interval: {self.below} below, {self.above} above", end="")
        print(f", {self.cautious} above for the bound of the edges" if self.cautious else "")
        print(f"  (by chance {self.by_chance:.0f} of as many that lie right at a limit); each run as one trial, by")
        print(f"  more than chance does to any of {len(values)} cells: {below} below, {above} above")


@dataclass(slots=True)
class Length:
    """What came of all cells of one phase length that have a number, those apart as well."""

    single: list[Share] = field(default_factory=list)
    mean: list[Share] = field(default_factory=list)
    judged_single: list[Share] = field(default_factory=list)
    judged_mean: list[Share] = field(default_factory=list)
    resolvable: list[float] = field(default_factory=list)
    """Shares of phases with a number [cells], 0 where a cell has none."""

    @property
    def is_missed(self) -> bool:
        """Whether single phases or means of all cells together lie outside 93-97 %, or no sensor resolves them."""
        return not self.single or not (pooled(self.single).is_inside and pooled(self.mean).is_inside)

    def row(self, length_ms: float) -> str:
        cells = []
        for group in (self.single, self.judged_single, self.mean, self.judged_mean):
            share = pooled(group) if group else None
            text = f"{share!s:24}{' ' if share.is_inside else '!'}" if share else f"{'':25}"
            cells.append(f"{len(group):5} {text}")
        none = 1 - float(np.mean(self.resolvable)) if self.resolvable else 1.0
        return f"  {length_ms:6g} ms {none:15.1%} {' '.join(cells)}"


# --- Cells


@dataclass(frozen=True, slots=True)
class Cell:
    """Of one sensor, phase length and waveform."""

    resolvable: float
    single: Share | None = None
    bare: Share | None = None
    """The same without the shared part of the edges."""
    mean: Share | None = None
    bare_mean: Share | None = None
    these: Share | None = None
    """The mean against the phases' own joules: their real differences are in the interval too, so it is wide."""


def measure(sensor: Sensor, kind: str, length_ms: float, runs: int, seed: int) -> Cell:
    """Simulate one cell in batches, and count."""
    number, repeats = list(WAVEFORMS).index(kind), 30 if length_ms <= 200 else 10
    readings_a_run = length_ms * LENGTHS.sum() * repeats / sensor.period_ms
    runs = min(runs, max(FEWEST_RUNS, round(MOST_READINGS / readings_a_run)))
    batch = max(1, min(runs, round(READINGS / readings_a_run)))
    singles, bare, means, exacts, resolvable = [], [], [], [], []
    for i, first in enumerate(range(0, runs, batch)):
        # Each sensor sees power of its own, or the cells of a length would be no independent draws.
        rng = np.random.default_rng([seed, crc32(sensor.name.encode()), number, round(length_ms), i])
        plan = plan_of(rng, min(batch, runs - first), repeats, length_ms)
        wave = WAVEFORMS[kind](rng, plan)
        part = part_of(wave, rng, plan, sensor)
        label = plan.run * KINDS + plan.kind
        budget, _ = interval_budget(part, plan.begin, plan.end, label, plan.run)
        columns = interval_energies(part, plan.begin, plan.end, label, plan.run)
        exact = (wave.energy(plan.end) - wave.energy(plan.begin)) * 1e-9
        enough = (np.bincount(label, columns.resolvable) >= RESOLVED * np.bincount(label))[label]
        good = enough & columns.resolvable
        resolvable.append(float(good.mean()))
        error = np.abs(columns.energy_j - exact)
        edges2 = _edges2(budget)
        singles.append(_by_run((error <= columns.u95_j)[good], plan.run[good]))
        bare.append(_by_run((error <= _u95_without(columns, edges2))[good], plan.run[good]))
        exacts.append([exact[plan.kind == k].mean() for k in range(KINDS)])
        means += _means(columns, edges2, exact, good, label, first)
    if not means:
        return Cell(float(np.mean(resolvable)))
    run, k, value, u95, u95_bare, own = (np.array(column) for column in zip(*means, strict=True))
    error = np.abs(value - np.mean(exacts, axis=0)[k.astype(int)])
    by_run = [_by_run(h, run.astype(int)) for h in (error <= u95, error <= u95_bare, np.abs(value - own) <= u95)]
    shares = (share_of(x) for x in (np.concatenate(singles), np.concatenate(bare), *by_run))
    return Cell(float(np.mean(resolvable)), *shares)


def _edges2(budget: Budget) -> Any:
    """[phases] the variance that phases share of their edges; a part that no phase has is not there."""
    parts = (budget.part("edges"), budget.part("left over"))
    return sum((u**2 for u in parts if u is not None), 0.0)


def _u95_without(columns: PhaseColumns, edges2: Any) -> Values:
    """Half-widths of single phases, did the shared part of the edges not count."""
    u = np.sqrt(np.maximum(columns.u_random_j**2 + columns.u_inner_j**2 + columns.u_systematic_j**2 - edges2, 0))
    return factor(u, np.minimum(columns.rectangle_j, u)) * u


def _by_run(hits: NDArray[np.bool_], run: Ints) -> Values:
    """Shares of hits [runs], of each run that has any."""
    count = np.bincount(run)
    return np.bincount(run, hits)[count > 0] / count[count > 0]


def _means(
    columns: PhaseColumns, edges2: Any, exact: Values, good: NDArray[np.bool_], label: Ints, first: int
) -> list[tuple[float, ...]]:
    """For each run and kind: run, kind, mean, its U95, that without the bound of the edges, the phases' own mean.

    Runs are numbered from ``first``.
    """
    at = np.flatnonzero(good)
    at = at[np.argsort(label[at], kind="stable")]
    whole = {name: getattr(columns, name) for name in MEAN_COLUMNS}
    bare = whole | {"u_systematic_j": np.sqrt(np.maximum(columns.u_systematic_j**2 - edges2, 0))}
    rows = []
    for of_kind in np.split(at, np.flatnonzero(np.diff(label[at])) + 1) if len(at) else []:
        e, without = (mean_of(*(column[of_kind] for column in c.values())) for c in (whole, bare))
        i = int(label[of_kind[0]])
        rows.append((first + i // KINDS, i % KINDS, e.energy_j, e.u95_j, without.u95_j, float(exact[of_kind].mean())))
    return rows


@dataclass(slots=True)
class Summary:
    """All cells so far."""

    lengths: dict[float, Length]
    singles: Verdict = field(default_factory=Verdict)
    means: Verdict = field(default_factory=Verdict)
    apart: dict[str, list[float]] = field(default_factory=lambda: {"single": [], "mean": []})

    def add(self, sensor: Sensor, length_ms: float, kind: str, cell: Cell) -> None:
        """Count one cell and print it."""
        length = self.lengths[length_ms]
        length.resolvable.append(cell.resolvable)
        where = f"  {length_ms:6g} ms {kind:13} {cell.resolvable:8.0%}"
        if cell.single is None or cell.mean is None or cell.these is None:
            print(f"{where}  not resolvable")
            return
        length.single.append(cell.single)
        length.mean.append(cell.mean)
        if SLOW.get(kind, np.inf) <= SLOWER * sensor.period_ms:
            self.apart["single"].append(cell.single.value)
            notes = ["apart: faster than the sensor"]
        else:
            length.judged_single.append(cell.single)
            notes = [self.singles.add(cell.single, cell.bare)]
        if kind in SLOW:
            self.apart["mean"].append(cell.mean.value)
        else:
            length.judged_mean.append(cell.mean)
            notes.append(self.means.add(cell.mean, cell.bare_mean).replace("<--", "<-- mean"))
        text = "; ".join(n for n in notes if n)
        print(f"{where}  {cell.single} {cell.mean} {cell.these.value:6.1%}  {text}", flush=True)

    def show(self) -> int:
        """Print what came of all cells; the exit status."""
        self.singles.show("single phases")
        self.means.show("means")
        for name, values in self.apart.items():
            if values:
                print(f"apart, {name}: {len(values)} cells, {min(values):.1%} to {max(values):.1%}")
        print("\nBy phase length, each run drawing sensor, waveform, kind and errors (! = outside 93-97 %)")
        heads = ("single phases, all", "less those apart", "means, all", "less those apart")
        print(f"  {'phase':>9} {'not resolvable':>15} " + " ".join(f"{'cells':>5} {name:25}" for name in heads))
        for length_ms, length in self.lengths.items():
            print(length.row(length_ms))
        cells_missed = self.singles.below + self.singles.above + self.means.below + self.means.above
        return int(cells_missed > 0 or any(length.is_missed for length in self.lengths.values()))


def _measured(cell: tuple[Sensor, str, float, int, int]) -> Cell:
    return measure(*cell)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=400, help="simulated runs for each cell")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sensor", nargs="+", default=[s.name for s in SENSORS], help="part of the names of sensors")
    parser.add_argument("--lengths", type=float, nargs="+", default=LENGTHS_MS, help="phase lengths in ms")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes; results do not depend on it")
    args = parser.parse_args()
    print(f"Coverage of 95 % intervals over {args.runs} simulated runs a cell, seed {args.seed} ({machine()})")
    sensors = [s for s in SENSORS if any(name in s.name for name in args.sensor)]
    groups = [(sensor, length_ms) for sensor in sensors for length_ms in args.lengths]
    kinds, summary = list(WAVEFORMS), Summary({length_ms: Length() for length_ms in args.lengths})
    with multiprocessing.get_context("spawn").Pool(max(args.jobs, 1)) as pool:
        # Whether phases have an interval does not depend on the waveform: the first one tells for all.
        firsts = pool.imap(_measured, [(s, kinds[0], ms, args.runs, args.seed) for s, ms in groups])
        first = {}
        for group in groups:
            progress(f"{kinds[0]}: {group[0].name}, {group[1]:g} ms")
            first[group] = next(firsts)
        rest = [(*group, kind) for group in groups if first[group].single is not None for kind in kinds[1:]]
        others = pool.imap(_measured, [(s, kind, ms, args.runs, args.seed) for s, ms, kind in rest])
        for sensor, length_ms in groups:
            if length_ms == args.lengths[0]:
                print(f"\n{sensor.name}")
                print(f"  {'phase':>8} {'waveform':13} resolved  {'single phases':23} {'mean of the kind':23} of these")
            cell = first[sensor, length_ms]
            if cell.single is None:
                print(f"  {length_ms:6g} ms {'':13} {cell.resolvable:8.0%}  not resolvable, whatever the waveform")
                summary.lengths[length_ms].resolvable += [cell.resolvable] * len(kinds)
                continue
            for kind in kinds:
                progress(f"{sensor.name}, {length_ms:g} ms, {kind}")
                summary.add(sensor, length_ms, kind, cell if kind == kinds[0] else next(others))
    return summary.show()


if __name__ == "__main__":
    sys.exit(main())
