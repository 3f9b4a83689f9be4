"""Phases shorter than the sensor resolves, folded over many iterations, against their exact joules, in virtual time.

    python benchmarks/bench_folding.py [--runs 20] [--seed 0] [--seconds 60]

Each run draws durations (5 % from iteration to iteration), the moments of the readings, noise, and where in its limits
the sensor's window lies. For each sensor, iteration and waveform it prints: how many kinds of phase got a number, the
mean error and the mean stated U95 of these in % of their joules, and the share whose exact joules lie within U95.
The last rows are sensors whose period divides the iteration's: there must be no number at all.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
from common import machine, progress
from energy_estimators import MS, Waveform, sensor

from powerd_analytics.folding.folded import fold
from powerd_analytics.folding.segments import Phases

LEVELS = np.array([250.0, 420.0, 150.0])


@dataclass(frozen=True)
class Sensor:
    """Readings every ``period_ms``; windows lie beside their timestamps by one draw within ± ``centre_ms`` a run."""

    name: str
    period_ms: float
    window_ms: float
    centre_ms: float = 0.0
    counter: bool = False


SENSORS = (
    Sensor("10/s, mean of 100 ms", 100, 100),
    Sensor("10/s, counter", 100, 100, counter=True),
    Sensor("50/s, mean of 29 ms", 20, 29),
    Sensor("50/s, 29 ms ± 1 ms", 20, 29, 1.0),
    Sensor("500/s, mean of 1.06 ms", 2, 1.06),
)
ITERATIONS = ((2.0, 5.0, 2.0), (5.0, 10.0, 3.0), (10.0, 20.0, 5.0), (22.0, 51.0, 2.0), (50.0, 50.0, 20.0))
WAVEFORMS = ("steps", "noise", "edge ramps", "inside", "decay", "rise and fall", "unrelated")
UNTUNED = ("decay of 10 ms", "late by 1.5 ms")
"""Waveforms that played no part when the method's rules were made."""


def draw(waveform: str, lengths, seconds: float, rng, jitter: float = 0.05):
    """Phases back to back, and power that knows them (but for ``unrelated``)."""
    n = int(seconds * 1000 / sum(lengths))
    length = np.tile(lengths, n) * MS * (1 + jitter * (2 * rng.random(n * len(lengths)) - 1))
    edges = np.concatenate([[0], np.cumsum(length)]).astype(np.int64) + 200 * MS
    begin, end, kind = edges[:-1], edges[1:], np.tile(np.arange(len(lengths)), n)
    return begin, end, kind, wave_of(waveform, begin, end, kind, rng)


def wave_of(waveform: str, begin, end, kind, rng):
    stop = int(end[-1]) + 200 * MS
    level, before = LEVELS[kind], np.concatenate([[60.0], LEVELS[kind][:-1]])
    if waveform == "unrelated":
        t = np.cumsum(rng.exponential(8 * MS, int(stop / (8 * MS) * 1.3)))
        watts = rng.uniform(50, 300, len(t) - 1)
        return Waveform(np.ravel(np.column_stack([t[:-1], t[1:] - 1])), np.repeat(watts, 2))
    # Power at shares of each phase; a step is a ramp of a nanosecond.
    if waveform == "edge ramps":
        ramp = np.minimum(0.8 * MS, 0.9 * (end - begin))
        at, watts = [begin, begin + ramp, end - 1], [before, level, level]
    elif waveform == "inside":
        middle = (begin + end) // 2
        at, watts = [begin, middle, middle + 1, end - 1], [0.8 * level, 0.9 * level, 1.1 * level, 1.2 * level]
    elif (
        "decay" in waveform or waveform == "rise and fall"
    ):  # from the old level towards the new one, as far as the phase goes
        share = np.linspace(0, 1, 12)
        at = [begin + ((end - begin - 1) * s).astype(np.int64) for s in share]
        now, constant = np.empty(len(begin)), np.full(len(begin), (10.0 if waveform == "decay of 10 ms" else 3.0) * MS)
        p = 60.0
        for i in range(len(begin)):
            now[i] = p
            if waveform == "rise and fall":  # no single time constant
                constant[i] = (1.0 if level[i] > p else 6.0) * MS
            p = level[i] + (p - level[i]) * np.exp(-(end[i] - begin[i]) / constant[i])
        watts = [level + (now - level) * np.exp(-(a - begin) / constant) for a in at]
    else:
        of_each = rng.normal(0, 40, len(begin)) if waveform == "noise" else 0.0
        at, watts = [begin, end - 1], [level + of_each, level + of_each]
    t, p = np.ravel(np.column_stack(at)), np.ravel(np.column_stack(watts))
    if waveform == "late by 1.5 ms":
        t = t + round(1.5 * MS)
    return Waveform(np.concatenate([[0], t, [stop]]), np.concatenate([[60.0], p, [60.0]]))


def readings(wave: Waveform, stop: int, s: Sensor, rng, drift: float = 0.0):
    """The sensor of `energy_estimators`, its windows all beside their timestamps by the same draw."""
    beside = rng.uniform(-s.centre_ms, s.centre_ms) * MS
    moved = Waveform(wave.t - beside, wave.p)
    made = sensor(
        moved, rng, stop, s.period_ms * (1 + drift), s.window_ms, 0.0, counter=s.counter,
        noise_w=0.0 if s.counter else 1.0,
    )  # fmt: skip
    return type(made)(**{f: getattr(made, f) for f in made.__dataclass_fields__} | {"centre_ns": s.centre_ms * MS})


def one(s: Sensor, lengths, waveform: str, seconds: float, seed: int):
    """By kind: error and U95 in % of the exact joules, NaN without a number; the reasons."""
    rng = np.random.default_rng(seed)
    begin, end, kind, wave = draw(waveform, lengths, seconds, rng)
    signal = readings(wave, int(end[-1]) + 100 * MS, s, rng)
    exact = (wave.energy(end) - wave.energy(begin)) * 1e-9
    found = fold([signal], Phases(begin, end, kind, len(lengths)))
    rows = []
    for k, f in enumerate(found):
        joules = exact[kind == k].mean()
        if f.per_s is None:
            rows.append((np.nan, np.nan))
            continue
        got = f.per_s.scaled(float((end - begin)[kind == k].mean()) * 1e-9)
        rows.append((100 * (got.energy_j / joules - 1), 100 * got.u95_j / joules))
    return np.array(rows), [f.why for f in found]


def aliased(s: Sensor, seed: int, lengths=(10.0, 25.0, 5.0)):
    rng = np.random.default_rng(seed)
    begin, end, kind, wave = draw("steps", lengths, 60, rng, jitter=0.0)
    signal = readings(wave, int(end[-1]) + 100 * MS, s, rng)
    return [f.why for f in fold([signal], Phases(begin, end, kind, len(lengths)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="draws of each cell")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0, help="virtual time of a run")
    parser.add_argument("--only", default="", help="only waveforms with this in their name")
    parser.add_argument(
        "--untuned", action="store_true", help="the waveforms that played no part in the method instead"
    )
    args = parser.parse_args()
    waveforms = [w for w in (UNTUNED if args.untuned else WAVEFORMS) if args.only in w]
    print(machine())
    print(f"{args.runs} runs of {args.seconds:.0f} s each; |error| and U95 are means over kinds with a number, in %")
    total, inside = 0, 0
    for s in SENSORS:
        print(f"\n{s.name}\n{'phases (ms)':14s}" + "".join(f"{w:>27s}" for w in waveforms))
        print(f"{'':14s}" + "".join(f"{'given |err|  U95  covered':>27s}" for w in waveforms))
        for lengths in ITERATIONS:
            cells = []
            for waveform in waveforms:
                progress(f"{s.name} {lengths} {waveform}")
                runs = [one(s, lengths, waveform, args.seconds, args.seed + i)[0] for i in range(args.runs)]
                error, u95 = np.concatenate(runs).T
                there = ~np.isnan(error)
                if not there.any():
                    cells.append(f"{'0 %':>9s}{'-':>18s}")
                    continue
                within = np.abs(error[there]) <= u95[there]
                total, inside = total + there.sum(), inside + within.sum()
                cells.append(
                    f"{there.mean():9.0%}{np.abs(error[there]).mean():6.2f}{u95[there].mean():6.2f}{within.mean():6.0%}"
                )
            print(f"{'/'.join(f'{x:g}' for x in lengths):14s}" + "".join(cells), flush=True)
    print(f"\nof {total} numbers, {inside / max(total, 1):.1%} hold the exact joules within their U95")
    print("iterations of 40 ms without jitter, sensors in step with them:")
    for s in (Sensor("every 20 ms, mean of 29", 20, 29), Sensor("every 40 ms, mean of 29", 40, 29), SENSORS[0]):
        whys = aliased(s, args.seed)
        print(f"  {s.name}: {sum(not w for w in whys)} of {len(whys)} numbers; {whys[0]}")


if __name__ == "__main__":
    main()
