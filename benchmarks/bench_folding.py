"""Phases shorter than the sensor resolves, folded over many iterations, against their exact joules, in virtual time.

    python benchmarks/bench_folding.py [--runs 8] [--seed 0] [--seconds 60] [--waveform "as stated"] [--jobs N]

Each run draws what is stated as unknown, as it is stated: where in its limits the sensor's window lies, gain, zero, the
lag between phases and power (0 to the bound that folding takes), durations (5 % from iteration to iteration), the
moments of the readings, noise; and, for the waveform ``as stated``, levels, the time constant after an edge, how power
walks inside a phase, and what a longer phase has more of. The others are single shapes. A card states no tolerance of a
window's length: that is exact.

Prints, for each rate and length of phase, how many phases got a number and the share whose exact joules lie within U95,
with all that was drawn, and as if the gain were known (a gain of 5 % hides all else). Exit status 1 when a share
is outside 93 to 97 % by more than binomial scatter. That is counted in runs: the phases of a run share its gain, place
and lag.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from math import hypot, sqrt
from zlib import crc32

import numpy as np
from bench_coverage import FILTER_SHARE, HIGH, LOW, MS, Waveform, low_passed, steps_of
from common import machine, progress

from powerd_analytics.energy.uncertainty import Estimate
from powerd_analytics.folding.design import PhaseSequence
from powerd_analytics.folding.fold import as_normal, fold
from powerd_analytics.folding.posterior import DELAYS_MS, WALKS
from powerd_analytics.runs.run import Readings, RunLine
from powerd_analytics.signals.signal import Signal, make_signal
from powerd_core.model import Accuracy, Block, Provenance, ScaledConversion, ShuntConversion, Stream, columns
from powerd_core.wire import decode
from powerd_daemon.sampler import Outbox, Sampling
from powerd_daemon.sources.base import Start
from powerd_daemon.sources.sim.bus import VirtualClock
from powerd_daemon.sources.sim.source import SimOptions, SimSource
from powerd_daemon.sources.sim.waveforms import CardLoad, TrainingOptions

if __name__ == "__main__":
    # A process does a run alone, and its sums are the same however many there are.
    os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

LAG_MS = 2.0
"""Lags are drawn from 0 to this: the bound that folding takes when nothing else is set."""
LEVELS = np.array([250.0, 420.0, 150.0])
IDLE_W = 60.0
ITERATIONS = ((2.0, 5.0, 2.0), (5.0, 10.0, 3.0), (10.0, 20.0, 5.0), (22.0, 51.0, 2.0), (50.0, 50.0, 20.0))


# --- Power that follows the phases: shares of a phase [k] and watts there [k][phases]


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
        return shares, _relaxing(begin, end, [LEVELS[kind]] * len(shares), shares, (rise_ms, fall_ms))

    return shape


def _relaxing(begin, end, levels, shares, constant_ms):
    """Power at shares of phases that comes from where it was to ``levels`` with a time constant (rising, falling)."""
    length_ms = (end - begin) / MS
    jump, constant, watts = np.empty(len(begin)), np.empty(len(begin)), IDLE_W
    for i in range(len(begin)):
        jump[i] = watts - levels[0][i]
        constant[i] = constant_ms[0] if jump[i] < 0 else constant_ms[1]
        watts = levels[-1][i] + jump[i] * np.exp(-length_ms[i] / constant[i])
    return [level + jump * np.exp(-s * length_ms / constant) for s, level in zip(shares, levels, strict=True)]


def _stated(begin, end, kind, rng):
    # Uneven knots: early ones short, so that a short time constant is followed.
    knots = 25
    shares = np.linspace(0, 1, knots) ** 1.5
    kinds = int(kind.max()) + 1
    level = rng.uniform(60, 600, kinds)
    delay = float(np.exp(np.interp(rng.uniform(0, len(DELAYS_MS) - 1), range(len(DELAYS_MS)), np.log(DELAYS_MS))))
    walk = float(np.exp(np.interp(rng.uniform(0, len(WALKS) - 1), range(len(WALKS)), np.log(WALKS))))
    length = end - begin
    usual = np.bincount(kind, length, kinds) / np.bincount(kind, minlength=kinds)
    steps = rng.normal(0, 1, (kinds, knots - 1)) * np.sqrt(np.diff(shares)) * walk * np.average(level, weights=usual)
    path = level[:, None] + np.concatenate([np.zeros((kinds, 1)), np.cumsum(steps, axis=1)], axis=1)
    into = np.outer(shares, np.ones(len(begin)))
    if rng.random() < 0.5:  # a longer phase stays at its last level; else it is stretched
        into = into * (length / usual[kind])
    levels = np.empty((knots, len(begin)))
    for k in range(kinds):
        levels[:, kind == k] = np.interp(into[:, kind == k], shares, path[k])
    return shares, _relaxing(begin, end, levels, shares, (delay, delay))


def _capped(begin, end, kind, rng):
    """A controller that knows nothing of the phases takes power down in a sawtooth of 20 a second."""
    scale = 1 - 0.12 * (((begin + end) / 2 + rng.uniform(0, 50 * MS)) / (50 * MS) % 1)
    return [0.0, 1.0], [LEVELS[kind] * scale] * 2


SHAPES = {
    "as stated": _stated, "steps": _flat, "noise": _noise, "edge ramps": _edge_ramps, "inside": _inside,
    "decay": _decay(3, 3), "rise and fall": _decay(1, 6), "capped at 20 Hz": _capped,
}  # fmt: skip
"""Beside these, ``unrelated``: steps that know nothing of the phases."""


def draw(waveform: str, lengths, seconds: float, rng, jitter: float = 0.05, lag_ms: float = 0.0):
    """Phases back to back, and power that knows them (but for ``unrelated``)."""
    n = int(seconds * 1000 / sum(lengths))
    length = np.tile(lengths, n) * MS * (1 + jitter * (2 * rng.random(n * len(lengths)) - 1))
    edges = np.concatenate([[0], np.cumsum(length)]).astype(np.int64) + 200 * MS
    begin, end, kind = edges[:-1], edges[1:], np.tile(np.arange(len(lengths)), n)
    return begin, end, kind, wave_of(waveform, begin, end, kind, rng, lag_ms)


def wave_of(waveform: str, begin, end, kind, rng, lag_ms: float = 0.0) -> Waveform:
    stop = int(end[-1]) + 200 * MS
    if waveform == "unrelated":
        t = np.cumsum(rng.exponential(8 * MS, int(stop / (8 * MS) * 1.3)))
        return steps_of(t[:-1], rng.uniform(50, 300, len(t) - 1), np.diff(t))
    shares, watts = SHAPES[waveform](begin, end, kind, rng)
    at = [begin + ((end - begin - 1) * s).astype(np.int64) for s in shares]
    t, p = np.ravel(np.column_stack(at)), np.ravel(np.column_stack(watts))
    # Shares may coincide for a step: a ramp of a nanosecond.
    t = np.maximum.accumulate(t + np.tile(np.arange(len(shares)), len(begin)) * 1e-3) + round(lag_ms * MS)
    return Waveform(np.concatenate([[0], t, [stop]]), np.concatenate([[IDLE_W], p, [IDLE_W]]))


# --- Sensors and their readings


@dataclass(frozen=True)
class Sensor:
    """A card: readings every ``period_ms``; windows lie beside their timestamps by one draw within ± ``centre_ms`` a
    run. ``gain`` is a limit, or for chips (``is_chip``) a normal standard uncertainty; ``zero_w`` likewise."""

    name: str
    period_ms: float
    window_ms: float
    centre_ms: float = 0.0
    counter: bool = False
    gain: float = 0.0
    zero_w: float = 0.0
    is_chip: bool = False
    filter_ms: float = 0.0
    """Time constant of a low-pass of first order instead of the window, by up to `FILTER_SHARE` another in each run."""


SENSORS = (
    Sensor("10/s, mean of 100 ms", 100, 100, gain=0.05),
    Sensor("10/s, counter", 100, 100, counter=True, gain=0.05),
    Sensor("10/s, chip, 1.06 ms ± 0.3", 100, 1.06, 0.3, gain=0.005, zero_w=0.2, is_chip=True),
    Sensor("50/s, mean of 29 ms", 20, 29, gain=0.05),
    Sensor("50/s, 29 ms ± 1 ms", 20, 29, 1.0, gain=0.05),
    Sensor("50/s, low-pass of 13 ms ± 1", 20, 0, 1.0, gain=0.05, filter_ms=13),
    Sensor("50/s, chip, 1.06 ms ± 0.3", 20, 1.06, 0.3, gain=0.005, zero_w=0.2, is_chip=True),
    Sensor("500/s, chip, 1.06 ms", 2, 1.06, gain=0.005, zero_w=0.2, is_chip=True),
    Sensor("500/s, chip, 1.06 ms ± 0.3", 2, 1.06, 0.3, gain=0.005, zero_w=0.2, is_chip=True),
)


def readings(wave: Waveform, stop: int, s: Sensor, rng, gain: float = 0.0, zero_w: float = 0.0, place=None) -> Signal:
    """The sensor's signal, its windows all beside their timestamps by the same draw, or by ``place`` x the limit."""
    drawn = rng.uniform(-1, 1)
    beside = (drawn if place is None else place) * s.centre_ms * MS
    wave = Waveform(wave.t - beside, wave.p)
    period, n = s.period_ms * MS, int(stop / (s.period_ms * MS))
    t = (np.arange(n) * period + rng.uniform(0, period) + rng.normal(0, 0.03 * MS, n)).astype(np.int64)
    t = np.maximum.accumulate(t)
    rng.uniform(0, 0, n)  # further draws of a seed stay what they were
    if s.counter:
        value = (wave.energy(t) - wave.energy(t[0])) * 1e-9 * (1 + gain) + zero_w * (t - t[0]) * 1e-9
    else:
        window = max(s.window_ms * MS, 1e-3 * MS)
        watts = (wave.energy(t + window / 2) - wave.energy(t - window / 2)) / window + rng.normal(0, 1, n)
        if s.filter_ms:
            tau = s.filter_ms * (1 + FILTER_SHARE * rng.uniform(-1, 1))
            watts = low_passed(wave, t, tau * MS) + rng.normal(0, 1, n)
        value = watts * (1 + gain) + zero_w
    accuracy = Accuracy(
        u_gain=s.gain if s.is_chip else s.gain / sqrt(3), u_offset_w=s.zero_w, filter_ns=round(s.filter_ms * MS)
    )
    conversion = ShuntConversion(1.0, 1.0, 1.0) if s.is_chip else ScaledConversion("c", 1.0)
    line = RunLine(
        "l", "d", "s", "b", Provenance.SIMULATED, "power_w", "", round(period), conversion, accuracy, {}, "", n
    )
    none = np.zeros(n - 1, bool)
    window_ns = (0.0 if s.counter else s.window_ms * MS) + accuracy.reach_ns
    return Signal(line, t, value, s.counter, none, none, period, window_ns, s.centre_ms * MS, 0, None)


def one(s: Sensor, lengths, waveform: str, seconds: float, seed: int, lag_ms=None, place=None):
    """By kind: error and U95 in % of the exact joules, both again as if the gain were known; NaN without a number; and
    the reasons. Lag and place are drawn unless they are given."""
    # Draws of cells are independent.
    cell = crc32(f"{s.name} {lengths} {waveform}".encode())
    rng = np.random.default_rng([seed, cell])
    drawn_ms, gain, zero_w = rng.uniform(0, LAG_MS), rng.uniform(-1, 1) * s.gain, 0.0
    if s.is_chip:
        gain, zero_w = rng.normal(0, s.gain), rng.normal(0, s.zero_w)
    begin, end, kind, wave = draw(waveform, lengths, seconds, rng, lag_ms=drawn_ms if lag_ms is None else lag_ms)
    signal = readings(wave, int(end[-1]) + 100 * MS, s, rng, gain, zero_w, place)
    exact = (wave.energy(end) - wave.energy(begin)) * 1e-9
    folded = fold([signal], PhaseSequence(begin, end, kind, len(lengths)))
    rows = []
    for k, f in enumerate(folded):
        joules = exact[kind == k].mean()
        if f.per_s is None:
            rows.append((np.nan,) * 4)
            continue
        time_s = float((end - begin)[kind == k].mean()) * 1e-9
        drawn = f.per_s.scaled(time_s)
        # Folding's limits as they would be without the gain, and all other parts.
        u = dict(f.parts_w)
        others = sqrt(sum(x**2 for x in u.values()) - f.limit_u_w**2 - u["gain"] ** 2)
        others = hypot(others, as_normal(f.limit_w, hypot(others, f.per_s.u_statistical_j)))
        limit = 0.0 if s.is_chip else u["gain"]
        rectangle = max(f.per_s.rectangle_j**8 - limit**8, 0.0) ** 0.125
        watts = f.per_s.energy_j / (1 + gain)
        known = Estimate(watts, f.per_s.u_statistical_j, others, rectangle, f.per_s.degrees).scaled(time_s)
        errors = (drawn.energy_j - joules, drawn.u95_j, known.energy_j - joules, known.u95_j)
        rows.append([100 * x / joules for x in errors])
    return np.array(rows), [f.why for f in folded]


def aliased(s: Sensor, seed: int, lengths=(10.0, 25.0, 5.0)) -> list[str]:
    """Why there is no number where iterations keep in step with the sensor."""
    rng = np.random.default_rng(seed)
    begin, end, kind, wave = draw("steps", lengths, 60, rng, jitter=0.0)
    signal = readings(wave, int(end[-1]) + 100 * MS, s, rng)
    return [f.why for f in fold([signal], PhaseSequence(begin, end, kind, len(lengths)))]


# --- Readings of powerd's own source `sim`, in virtual time

NAMES = ("forward", "backward", "update")
"""The phases that are marked; the wait behind them is not, as in a training."""
TRAININGS = (TrainingOptions(forward_ms=5.113, backward_ms=10.331, update_ms=3.157, idle_ms=1.291),)


def record(options: SimOptions, seconds: float) -> tuple[list[Signal], CardLoad, int, int]:
    """Signals of all lines of the simulated card, its load, and from when to when it was read."""
    clock, outbox = VirtualClock(), Outbox(1 << 30)
    sources: list[SimSource] = []
    streams: list[Stream] = []
    blocks: list[Block] = []

    def source(start: Start) -> SimSource:
        sources.append(SimSource(options, start))
        return sources[-1]

    def keep(frame: bytes) -> bool:
        event = decode(frame)
        assert isinstance(event, Block), event
        blocks.append(event)
        return True

    start = Start("sim", 1, 0, clock)
    sampling = Sampling(source, start, outbox, block_ns=500_000_000, on_open=lambda opened, _: streams.extend(opened))
    sampling.open()
    begin_ns = clock.now_ns()
    end_ns = begin_ns + round(seconds * 1e9)
    while clock.now_ns() < end_ns:
        sampling.step()
    sampling.close()
    outbox.drain(keep)
    load = sources[0].load
    assert load is not None
    return _signals(streams[0], blocks), load, begin_ns, end_ns


def _signals(stream: Stream, blocks: list[Block]) -> list[Signal]:
    types = {"t_ns": np.int64, "dt_ns": np.int32, "flags": np.uint16}
    types |= {c.name: np.dtype(c.typecode) for c in stream.columns}
    parts: dict[str, list[np.ndarray]] = {name: [] for name in types}
    for block in blocks:
        for name, view in columns(block, stream).items():
            parts[name].append(np.frombuffer(view, types[name]))
    whole = {name: np.concatenate(arrays) for name, arrays in parts.items() if arrays}
    n, signals = len(stream.lines), []
    for i, line in enumerate(stream.lines):
        codes = {c.name: whole[c.name].reshape(-1, n)[:, i] for c in stream.columns}
        t_ns = whole["t_ns"] + whole["dt_ns"].reshape(-1, n)[:, i]
        of_run = RunLine(
            line.name, line.device, "sim", "board", line.provenance, "power_w", line.description, stream.period_ns,
            line.conversion, line.accuracy, {}, "", len(t_ns),
        )  # fmt: skip
        signals.append(make_signal(of_run, Readings(t_ns, whole["flags"].reshape(-1, n)[:, i], codes)))
    return signals


# --- The table of shares


def in_parallel(workers: ProcessPoolExecutor, work, asked: list[tuple]) -> Iterator:
    """Results in the order in which they were asked for."""
    return workers.map(work, *zip(*asked, strict=True))


def share_text(rows: list[tuple[int, np.ndarray]]) -> tuple[str, bool]:
    """Numbers of phases and the shares within U95, of rows with the number of their run; whether these are as they
    should be."""
    numbers = [(run, row) for run, row in rows if not np.isnan(row[0])]
    text = f"{f'{len(numbers)} of {len(rows)}':>12s}"
    if not numbers:
        return f"{text}{'-':>14s}", True
    table, runs = np.array([row for _, row in numbers]), len({run for run, _ in numbers})
    shares = [float(np.mean(np.abs(table[:, i]) <= table[:, i + 1])) for i in (0, 2)]
    # Binomial, with the target's scatter at least, so that it is never 0.
    scatter = [1.96 * sqrt(max(x * (1 - x), LOW * (1 - LOW)) / runs) for x in shares]
    is_good = all(LOW - s <= x <= HIGH + s for x, s in zip(shares, scatter, strict=True))
    return f"{text}{shares[0]:7.1%}{shares[1]:7.1%}{' ' if is_good else '!'}", is_good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=8, help="draws of each sensor and iteration")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0, help="virtual time of a run")
    parser.add_argument("--waveform", choices=[*SHAPES, "unrelated"], default="as stated")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes; the results are the same")
    args = parser.parse_args()
    print(f"Folded phases, {args.waveform}, {args.runs} runs of {args.seconds:g} s a cell, seed {args.seed}")
    print(f"({machine()})\nnumbers of phases | share within U95 | the same, gain known")
    cells = [(s, lengths) for s in SENSORS for lengths in ITERATIONS]
    asked = [(s, x, args.waveform, args.seconds, args.seed + i) for s, x in cells for i in range(args.runs)]
    pools: dict[tuple[float, float], list[tuple[int, np.ndarray]]] = defaultdict(list)
    with ProcessPoolExecutor(args.jobs) as workers:
        results = in_parallel(workers, one, asked)
        for run, ((s, lengths, *_), (rows, _)) in enumerate(zip(asked, results, strict=True)):
            progress(f"{s.name}, {lengths} ms")
            for length, row in zip(lengths, rows, strict=True):
                pools[1000 / s.period_ms, length].append((run, row))
    rates, lengths = sorted({rate for rate, _ in pools}), sorted({length for _, length in pools})
    progress("")
    print(f"{'phases (ms)':12s}" + "".join(f"{name:>27s}" for name in (*(f"{r:g}/s" for r in rates), "all rates")))
    is_met = True
    for some_lengths in (*([x] for x in lengths), lengths):
        texts = []
        for some_rates in (*([r] for r in rates), rates):
            pool = [row for r in some_rates for x in some_lengths for row in pools[r, x]]
            text, is_good = share_text(pool)
            if len(some_rates) > 1 or len(some_lengths) > 1:
                is_met &= is_good
            texts.append(f"{text:>27s}")
        print(f"{f'{some_lengths[0]:g}' if len(some_lengths) == 1 else 'all':12s}" + "".join(texts))
    print(f"target: pooled shares 93 to 97 %, give or take scatter: {'met' if is_met else 'MISSED'}")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
