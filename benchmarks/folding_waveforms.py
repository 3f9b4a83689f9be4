"""Power that follows the phases of a training in known ways, for `bench_folding.py`, with exact joules.

``as stated`` draws what folding says that it does not know: levels, the time constant after an edge, how power walks
inside a phase, and what a longer phase has more of. The others are single shapes. All come late by a lag drawn for each
run.
"""

from __future__ import annotations

import numpy as np
from energy_estimators import MS, Waveform

from powerd_analytics.folding.priors import DELAYS_MS, WALKS

LEVELS = np.array([250.0, 420.0, 150.0])
IDLE_W = 60.0
STATED = "as stated"
TUNED = (STATED, "steps", "noise", "edge ramps", "inside", "decay", "rise and fall", "unrelated")
UNTUNED = (
    "decay of 10 ms", "kernels of 1.3 ms", "peak at the begin", "waits at the end", "sine inside", "ringing",
    "longer takes less", "drifts", "capped at 20 Hz",
)  # fmt: skip
"""Waveforms that the method has no model of. They were looked at when the part of the edges was chosen."""
_KNOTS = 25


def draw(waveform: str, lengths, seconds: float, rng, jitter: float = 0.05, lag_ms: float = 0.0):
    """Phases back to back, and power that knows them (but for ``unrelated``)."""
    n = int(seconds * 1000 / sum(lengths))
    length = np.tile(lengths, n) * MS * (1 + jitter * (2 * rng.random(n * len(lengths)) - 1))
    edges = np.concatenate([[0], np.cumsum(length)]).astype(np.int64) + 200 * MS
    begin, end, kind = edges[:-1], edges[1:], np.tile(np.arange(len(lengths)), n)
    return begin, end, kind, wave_of(waveform, begin, end, kind, rng, lag_ms)


def wave_of(waveform: str, begin, end, kind, rng, lag_ms: float = 0.0):
    stop = int(end[-1]) + 200 * MS
    if waveform == "unrelated":
        t = np.cumsum(rng.exponential(8 * MS, int(stop / (8 * MS) * 1.3)))
        return Waveform(np.ravel(np.column_stack([t[:-1], t[1:] - 1])), np.repeat(rng.uniform(50, 300, len(t) - 1), 2))
    shares, watts = SHAPES[waveform](begin, end, kind, rng)
    at = [begin + ((end - begin - 1) * s).astype(np.int64) for s in shares]
    t, p = np.ravel(np.column_stack(at)), np.ravel(np.column_stack(watts))
    # Shares may coincide for a step: a ramp of a nanosecond.
    t = np.maximum.accumulate(t + np.tile(np.arange(len(shares)), len(begin)) * 1e-3) + round(lag_ms * MS)
    return Waveform(np.concatenate([[0], t, [stop]]), np.concatenate([[IDLE_W], p, [IDLE_W]]))


def _flat(begin, end, kind, rng):
    return [0.0, 1.0], [LEVELS[kind]] * 2


def _noise(begin, end, kind, rng):
    level = LEVELS[kind] + rng.normal(0, 40, len(begin))
    return [0.0, 1.0], [level] * 2


def _inside(begin, end, kind, rng):
    return [0.0, 0.5, 0.5, 1.0], [x * LEVELS[kind] for x in (0.8, 0.9, 1.1, 1.2)]


def _edge_ramps(begin, end, kind, rng):
    level = LEVELS[kind]
    ramp = np.minimum(0.8 * MS, 0.9 * (end - begin)) / (end - begin - 1)
    before = np.concatenate([[IDLE_W], level[:-1]])
    return [0.0, ramp, 1.0], [before, level, level]


def _decay(rise_ms: float, fall_ms: float):
    def shape(begin, end, kind, rng):
        shares = np.linspace(0, 1, 12)
        constant = np.array([rise_ms, fall_ms])
        return shares, _relaxing(begin, end, [LEVELS[kind]] * len(shares), shares, constant)

    return shape


def _relaxing(begin, end, levels, shares, constant_ms):
    """Power at shares of phases that comes from where it was to ``levels`` with a time constant (rising, falling)."""
    length_ms = (end - begin) / MS
    now, constant, p = np.empty(len(begin)), np.empty(len(begin)), IDLE_W
    for i in range(len(begin)):
        now[i] = p - levels[0][i]
        constant[i] = constant_ms[0] if now[i] < 0 else constant_ms[1]
        p = levels[-1][i] + now[i] * np.exp(-length_ms[i] / constant[i])
    return [level + now * np.exp(-s * length_ms / constant) for s, level in zip(shares, levels, strict=True)]


def _stated(begin, end, kind, rng):
    # Uneven knots: early ones short, so that a short time constant is followed.
    shares = np.linspace(0, 1, _KNOTS) ** 1.5
    kinds = int(kind.max()) + 1
    level = rng.uniform(60, 600, kinds)
    delay = float(np.exp(np.interp(rng.uniform(0, len(DELAYS_MS) - 1), range(len(DELAYS_MS)), np.log(DELAYS_MS))))
    walk = float(np.exp(np.interp(rng.uniform(0, len(WALKS) - 1), range(len(WALKS)), np.log(WALKS))))
    length = end - begin
    usual = np.bincount(kind, length, kinds) / np.bincount(kind, minlength=kinds)
    steps = rng.normal(0, 1, (kinds, _KNOTS - 1)) * np.sqrt(np.diff(shares)) * walk * np.average(level, weights=usual)
    path = level[:, None] + np.concatenate([np.zeros((kinds, 1)), np.cumsum(steps, axis=1)], axis=1)
    into = np.outer(shares, np.ones(len(begin)))
    if rng.random() < 0.5:  # a longer phase stays at its last level; else it is stretched
        into = into * (length / usual[kind])
    levels = np.empty((_KNOTS, len(begin)))
    for k in range(kinds):
        levels[:, kind == k] = np.interp(into[:, kind == k], shares, path[k])
    return shares, _relaxing(begin, end, levels, shares, np.array([delay, delay]))


def _kernels(begin, end, kind, rng):
    """Kernels of 0.8 ms with pauses of 0.5 ms, at least one."""
    n = np.maximum(1, np.round((end - begin) / (1.3 * MS)))
    most = int(n.max())
    shares, watts = [], []
    for i in range(most):
        for edge, x in ((i, 1.25), (i + 0.6, 1.25), (i + 0.6, 0.6), (i + 1, 0.6)):
            shares.append(np.minimum(edge / n, 1.0))
            watts.append(np.where(i < n, x, 0.6) * LEVELS[kind])
    return shares, watts


def _peak(begin, end, kind, rng):
    x = np.minimum(0.7 * MS / (end - begin), 0.5)
    return [0.0, x, x, 1.0], [f * LEVELS[kind] for f in (1.6, 1.6, 1.0, 1.0)]


def _waits(begin, end, kind, rng):
    return [0.0, 0.85, 0.85, 1.0], [LEVELS[kind]] * 2 + [np.full(len(kind), 70.0)] * 2


def _sine(begin, end, kind, rng):
    shares = np.linspace(0, 1, 25)
    return shares, [LEVELS[kind] * (1 + 0.25 * np.sin(3 * np.pi * s)) for s in shares]


def _ringing(begin, end, kind, rng):
    """A step that overshoots and rings at 400 Hz, gone after a few milliseconds."""
    level = LEVELS[kind]
    jump = level - np.concatenate([[IDLE_W], level[:-1]])
    shares = np.concatenate([np.linspace(0, 1, 60) ** 2])
    into = [(end - begin) / MS * s for s in shares]
    return shares, [level - jump * np.exp(-u / 1.5) * np.cos(2 * np.pi * 0.4 * u) for u in into]


def _constant_work(begin, end, kind, rng):
    """The same joules whatever the duration: above an idle power, power falls as the phase gets longer."""
    usual = np.bincount(kind, end - begin) / np.bincount(kind)
    level = 80 + (LEVELS[kind] - 80) * usual[kind] / (end - begin)
    return [0.0, 1.0], [level] * 2


def _drifts(begin, end, kind, rng):
    """All levels wander together by some per cent, over seconds."""
    at = np.arange(0, end[-1] + 3e9, 2e9)
    scale = 1 + np.interp(begin, at, rng.normal(0, 0.06, len(at)))
    return [0.0, 1.0], [LEVELS[kind] * scale] * 2


def _capped(begin, end, kind, rng):
    """A controller that knows nothing of the phases takes power down in a sawtooth of 20 a second."""
    scale = 1 - 0.12 * (((begin + end) / 2 + rng.uniform(0, 50 * MS)) / (50 * MS) % 1)
    return [0.0, 1.0], [LEVELS[kind] * scale] * 2


SHAPES = {
    STATED: _stated, "steps": _flat, "noise": _noise, "edge ramps": _edge_ramps, "inside": _inside,
    "decay": _decay(3, 3), "rise and fall": _decay(1, 6), "decay of 10 ms": _decay(10, 10),
    "kernels of 1.3 ms": _kernels, "peak at the begin": _peak, "waits at the end": _waits, "sine inside": _sine,
    "ringing": _ringing, "longer takes less": _constant_work, "drifts": _drifts, "capped at 20 Hz": _capped,
}  # fmt: skip
