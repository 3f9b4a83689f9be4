"""Simulated runs, many at once and in virtual time, of sensors whose errors are drawn and whose joules are known.

All runs of a cell lie one behind the other on one time axis and each has classes of phases of its own, so that
whatever phases of a kind share is estimated for every run by itself, as in a file of that run, in one pass over all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from coverage_sensors import FILTER_SHARE, MS, Sensor
from energy_estimators import Waveform, low_passed
from numpy.typing import NDArray

from powerd_analytics.energy.devices import Part
from powerd_analytics.runs.clock import RunClock
from powerd_analytics.runs.run import RunLine
from powerd_analytics.signals.signal import Signal
from powerd_core.model import CounterConversion, Provenance, ScaledConversion, ShuntConversion

KINDS = 3
LEVELS = np.array([80.0, 250.0, 150.0])
LENGTHS = np.array([1.0, 2.0, 1.0])
"""Phases of the second kind are twice as long."""
PAD_NS = 120 * MS

Values = NDArray[np.float64]
Ints = NDArray[np.int64]


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


def plan_of(rng: np.random.Generator, runs: int, repeats: int, length_ms: float) -> Plan:
    """Rounds of three kinds of phases back to back, each length ± 5 %."""
    lengths = np.tile(LENGTHS, repeats) * length_ms * MS * (1 + 0.1 * (rng.random((runs, KINDS * repeats)) - 0.5))
    edges = np.concatenate([np.zeros((runs, 1)), np.cumsum(lengths, axis=1)], axis=1) + PAD_NS
    span = int(edges.max()) + PAD_NS
    return Plan(edges.astype(np.int64) + np.arange(runs)[:, None] * span, span)


def waveform(kind: str, rng: np.random.Generator, plan: Plan) -> Waveform:
    """Power over all runs. ``steps`` to ``exponential`` follow the phases, the others know nothing of them."""
    return WAVEFORMS[kind](rng, plan)


def _steps(rng: np.random.Generator, plan: Plan, tilt: float = 0.0) -> Waveform:
    m = plan.edges.shape[1] - 1
    levels = np.tile(LEVELS[np.arange(m) % KINDS], (plan.runs, 1))
    watts = np.stack([levels * (1 - tilt), levels * (1 + tilt)], axis=2).reshape(plan.runs, -1)
    times = np.stack([plan.edges[:, :-1], plan.edges[:, 1:] - 1], axis=2).reshape(plan.runs, -1)
    return _with_idle(plan, times, watts)


def _ramped(rng: np.random.Generator, plan: Plan) -> Waveform:
    m = plan.edges.shape[1] - 1
    levels = LEVELS[np.arange(m) % KINDS]
    before = np.concatenate([[50.0], levels[:-1]])
    watts = np.tile(np.column_stack([before, levels]).ravel(), (plan.runs, 1))
    times = np.stack([plan.edges[:, :-1], plan.edges[:, :-1] + round(0.8 * MS)], axis=2).reshape(plan.runs, -1)
    times = np.concatenate([times, plan.edges[:, -1:] - 1], axis=1)
    return _with_idle(plan, times, np.concatenate([watts, watts[:, -1:]], axis=1))


def _exponential(rng: np.random.Generator, plan: Plan, tau_ms: float = 5.0) -> Waveform:
    """First-order lag behind each edge, as straight pieces."""
    knots = np.array([0, 0.25, 0.5, 1, 1.5, 2, 3, 4, 5, 6.5, 8, 10, 13, 17, 22, 30, 45]) * MS
    m = plan.edges.shape[1] - 1
    power = np.full(plan.runs, 50.0)
    times, watts = [], []
    for i in range(m):
        begin, end, level = plan.edges[:, i], plan.edges[:, i + 1], LEVELS[i % KINDS]
        into = np.minimum(knots[None, :], (end - begin - 1)[:, None])
        # Knots beyond the end fall on it; they are told apart by a nanosecond each.
        into = np.minimum(into, (end - begin)[:, None] - len(knots) + np.arange(len(knots))[None, :])
        now = level + (power[:, None] - level) * np.exp(-into / (tau_ms * MS))
        times.append(begin[:, None] + into)
        watts.append(now)
        power = level + (power - level) * np.exp(-(end - begin) / (tau_ms * MS))
    return _with_idle(plan, np.concatenate(times, axis=1), np.concatenate(watts, axis=1))


def _noisy(rng: np.random.Generator, plan: Plan) -> Waveform:
    """Steps, and another 15 W (rms) every millisecond."""
    base = _steps(rng, plan)
    grid = np.arange(0, plan.span_ns * plan.runs, MS)
    noise = np.repeat(rng.normal(0, 15, len(grid)), 2)
    at = np.ravel(np.column_stack([grid, grid + MS - 1]))
    both = np.union1d(base.t, at)
    return Waveform(both, np.interp(both, base.t, base.p) + np.interp(both, at, noise))


def _square(rng: np.random.Generator, plan: Plan) -> Waveform:
    half = round(18.5 * MS)
    grid = np.arange(0, plan.span_ns * plan.runs + half, half)
    # Every run meets another moment of the period: its span is no multiple of it.
    watts = np.repeat(100.0 + 150 * (np.arange(len(grid)) % 2), 2)
    return Waveform(np.ravel(np.column_stack([grid, grid + half - 1])), watts)


def _random(rng: np.random.Generator, plan: Plan, dwell_ms: float = 8.0) -> Waveform:
    stop, dwell = plan.span_ns * plan.runs, dwell_ms * MS
    t = np.cumsum(rng.exponential(dwell, int(stop / dwell * 1.1) + 50))
    return Waveform(np.ravel(np.column_stack([t[:-1], t[1:] - 1])), np.repeat(rng.uniform(50, 300, len(t) - 1), 2))


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


def _with_idle(plan: Plan, times: NDArray[np.generic], watts: Values) -> Waveform:
    """50 W between the runs."""
    first = np.arange(plan.runs)[:, None] * plan.span_ns
    t = np.concatenate([first, times[:, :1] - 1, times, times[:, -1:] + 1, first + plan.span_ns - 1], axis=1)
    idle = np.full((plan.runs, 2), 50.0)
    return Waveform(t.ravel(), np.concatenate([idle, watts, idle[:, :2]], axis=1).ravel())


WAVEFORMS: dict[str, Callable[[np.random.Generator, Plan], Waveform]] = {
    "steps": _steps,
    "steps+noise": _noisy,
    "edge ramps": _ramped,
    "ramps": lambda rng, plan: _steps(rng, plan, 0.2),
    "exponential": _exponential,
    "square": _square,
    "random steps": _random,
    "rare steps": lambda rng, plan: _random(rng, plan, 60.0),
    "sine": _sine,
    "wander": _wander,
}


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
    stamp = np.maximum.accumulate((t + offset[run]).astype(np.int64) * 1) if len(t) else t
    keep = np.concatenate([[True], np.diff(stamp) > 0])
    stamp, moment, run = stamp[keep], moment[keep], run[keep]
    n = len(stamp)
    if s.counter:
        true = share * wave.energy(moment) * 1e-9
        steps = np.diff(true) * (1 + gain[run[1:]]) + zero[run[1:]] * np.diff(moment) * 1e-9
        value = np.concatenate([[0.0], np.cumsum(steps)])
        conversion: object = CounterConversion("c", 1e-9, 64)
    else:
        clipped = np.clip(moment, window / 2, stop - window / 2)
        if s.filter_ms:
            tau = s.filter_ms * (1 + FILTER_SHARE * rng.uniform(-1, 1, plan.runs)) * MS
            value = share * low_passed(wave, clipped, tau[run])
        else:
            value = share * (wave.energy(clipped + window / 2) - wave.energy(clipped - window / 2)) / max(window, 1)
        value = value * (1 + gain[run]) + zero[run]
        if s.noise_w:
            value = value + rng.normal(0, s.noise_w, n)
        conversion = ShuntConversion(0.01, 1e-5, 1.0) if s.is_shunt else ScaledConversion("c", 1.0)
    if s.step_w and not s.counter:
        value = np.round(value / s.step_w) * s.step_w
    line = RunLine(
        f"gpu0.l{number}", "gpu0", "s", "b", Provenance.SIMULATED, "power_w", "", round(period), conversion, s.accuracy,
        {"sensors": [{"name": f"l{number}", "chip": s.chip, "shunt_tolerance": 0.01}]} if s.is_shunt else {}, "", n,
    )  # fmt: skip
    none = np.zeros(n - 1, bool)
    clock = RunClock("b", 0.0, np.array([0.0, float(stop)]), np.full(2, s.bound_ms * MS), 0)
    centre = (s.shared_centre_ms + s.own_centre_ms) * MS
    reach = 0.0 if s.counter else float(s.accuracy.reach_ns)
    return Signal(line, stamp, value, s.counter, none, none, period, reach, centre, 0, clock)
