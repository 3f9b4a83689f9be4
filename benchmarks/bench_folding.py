"""Phases shorter than the sensor resolves, folded over many iterations, against their exact joules, in virtual time.

    python benchmarks/bench_folding.py [--runs 8] [--seed 0] [--seconds 60] [--untuned | --ends | --sim] [--jobs N]

Each run draws what is stated as unknown, as it is stated: where in its limits the sensor's window lies, gain, zero, the
lag between phases and power (0 to the bound that folding takes), durations (5 % from iteration to iteration), the
moments of the readings, noise; and, for the waveform ``as stated``, levels and shapes. A card states no tolerance of a
window's length: that is exact. For each sensor, iteration and waveform it prints how many kinds of phase got a number,
mean error and mean U95 of these in % of their joules, and the share whose exact joules lie within U95; then the pooled
shares for each rate and length of phase, with all that was drawn, and as if the gain were known (a gain of 5 % hides
all else). The last rows are sensors whose period divides the iteration's: there must be no number at all. Exit status 1
when a pooled share of ``as stated`` is outside 93 to 97 %, or a cell is below 93 %, by more than binomial scatter. That
is counted in runs: the phases of a run share its gain, place and lag.

``--ends`` prints instead how often intervals hold where the lag is exactly 0 or at its bound, or the window's place is
at either end of its limits. Exit status 1 when a share is below 93 % by more than scatter.

``--sim`` prints instead watts of powerd's own source ``sim``, folded, beside the exact ones, at 10, 50 and 500 scans a
second. Exit status 1 when fewer than 93 % of the numbers at a rate are inside, by more than scatter.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from math import hypot, sqrt
from zlib import crc32

if __name__ == "__main__":
    # A process does a run alone, and its sums are the same however many there are.
    os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
from common import machine, progress
from energy_estimators import MS, Waveform, low_passed, sensor
from folding_pools import END_SHAPES, LOW, Pools, cell_text, end_text, print_pools
from folding_sim import print_sim
from folding_waveforms import TUNED, UNTUNED, draw

from powerd_analytics.energy.uncertainty import Estimate
from powerd_analytics.folding.folded import fold
from powerd_analytics.folding.limits import as_normal
from powerd_analytics.folding.segments import Phases
from powerd_core.model import Accuracy, ScaledConversion, ShuntConversion

FILTER_SHARE = 0.06
LAG_MS = 2.0
"""Lags are drawn from 0 to this: the bound that folding takes when nothing else is set."""


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
ITERATIONS = ((2.0, 5.0, 2.0), (5.0, 10.0, 3.0), (10.0, 20.0, 5.0), (22.0, 51.0, 2.0), (50.0, 50.0, 20.0))


ENDS = {"no lag": (0.0, None), "all lag": (LAG_MS, None), "windows early": (None, -1.0), "windows late": (None, 1.0)}
"""What is not drawn at the ends: lag (ms), and place (share of its limit)."""


def readings(wave: Waveform, stop: int, s: Sensor, rng, gain: float = 0.0, zero_w: float = 0.0, place=None):
    """The sensor of `energy_estimators`, its windows all beside their timestamps by the same draw, or by ``place`` x
    the limit."""
    drawn = rng.uniform(-1, 1)
    beside = (drawn if place is None else place) * s.centre_ms * MS
    moved = Waveform(wave.t - beside, wave.p)
    made = sensor(
        moved, rng, stop, s.period_ms, s.window_ms, 0.0, counter=s.counter,
        noise_w=0.0 if s.counter else 1.0,
    )  # fmt: skip
    if s.filter_ms:
        tau = s.filter_ms * (1 + FILTER_SHARE * rng.uniform(-1, 1))
        made = replace(made, value=low_passed(moved, made.t_ns, tau * MS) + rng.normal(0, 1, len(made)))
    zero = zero_w * (made.t_ns - made.t_ns[0]) * 1e-9 if s.counter else zero_w
    accuracy = Accuracy(
        u_gain=s.gain if s.is_chip else s.gain / sqrt(3), u_offset_w=s.zero_w, filter_ns=round(s.filter_ms * MS)
    )
    line = replace(
        made.line,
        accuracy=accuracy,
        conversion=ShuntConversion(1.0, 1.0, 1.0) if s.is_chip else ScaledConversion("c", 1.0),
    )
    reach_ns = made.window_ns + accuracy.reach_ns
    return replace(
        made, centre_ns=s.centre_ms * MS, window_ns=reach_ns, line=line, value=made.value * (1 + gain) + zero
    )


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
    found = fold([signal], Phases(begin, end, kind, len(lengths)))
    rows = []
    for k, f in enumerate(found):
        joules = exact[kind == k].mean()
        if f.per_s is None:
            rows.append((np.nan,) * 4)
            continue
        time_s = float((end - begin)[kind == k].mean()) * 1e-9
        got = f.per_s.scaled(time_s)
        # Folding's limits as they would be without the gain, and all other parts.
        u = dict(f.parts_w)
        others = sum(x**2 for x in u.values()) - f.limit_u_w**2 - u["gain"] ** 2
        others = hypot(sqrt(others), as_normal(f.limit_w, sqrt(others + f.per_s.u_statistical_j**2)))
        limit = 0.0 if s.is_chip else u["gain"]
        rectangle = max(f.per_s.rectangle_j**8 - limit**8, 0.0) ** 0.125
        watts = f.per_s.energy_j / (1 + gain)
        known = Estimate(watts, f.per_s.u_statistical_j, others, rectangle, f.per_s.degrees).scaled(time_s)
        rows.append(
            [100 * x / joules for x in (got.energy_j - joules, got.u95_j, known.energy_j - joules, known.u95_j)]
        )
    return np.array(rows), [f.why for f in found]


def aliased(s: Sensor, seed: int, lengths=(10.0, 25.0, 5.0)):
    rng = np.random.default_rng(seed)
    begin, end, kind, wave = draw("steps", lengths, 60, rng, jitter=0.0)
    signal = readings(wave, int(end[-1]) + 100 * MS, s, rng)
    return [f.why for f in fold([signal], Phases(begin, end, kind, len(lengths)))]


def in_parallel(workers: ProcessPoolExecutor, work, asked: list[tuple]) -> Iterator:
    """Results in the order in which they were asked for."""
    return workers.map(work, *zip(*asked, strict=True))


def print_cells(args, workers, waveforms) -> bool:
    """Every sensor, iteration and waveform; then pools and aliased sensors."""
    print(f"{args.runs} runs of {args.seconds:.0f} s each; |error| and U95 are means over kinds with a number, in %")
    pools, low = Pools(), 0
    for s in (s for s in SENSORS if args.sensors in s.name):
        print(f"\n{s.name}\n{'phases (ms)':14s}" + "".join(f"{w:>27s}" for w in waveforms))
        print(f"{'':14s}" + "".join(f"{'given |err|  U95  covered':>27s}" for w in waveforms))
        for lengths in ITERATIONS:
            progress(f"{s.name} {lengths}")
            asked = [(s, lengths, w, args.seconds, args.seed + i) for w in waveforms for i in range(args.runs)]
            made = [rows for rows, _ in in_parallel(workers, one, asked)]
            cells = []
            for i, waveform in enumerate(waveforms):
                runs = made[i * args.runs : (i + 1) * args.runs]
                pools.add(waveform, 1000 / s.period_ms, lengths, runs)
                cells.append(cell_text(runs))
            low += sum("!" in c for c in cells)
            print(f"{'/'.join(f'{x:g}' for x in lengths):14s}" + "".join(cells), flush=True)
    is_good = print_pools(pools, waveforms)
    print(f"\n{low} cells are below {LOW:.0%} by more than their scatter")
    print("iterations of 40 ms without jitter, sensors in step with them:")
    for s in (Sensor("every 20 ms, mean of 29", 20, 29), Sensor("every 40 ms, mean of 29", 40, 29), SENSORS[0]):
        whys = aliased(s, args.seed)
        print(f"  {s.name}: {sum(not w for w in whys)} of {len(whys)} numbers; {whys[0]}")
    return is_good and not low


def print_ends(args, workers) -> bool:
    """Shares where lag and place are not drawn but at an end, for each waveform, sensor and end."""
    print(f"at the ends, {args.runs} runs of {args.seconds:.0f} s for each of {len(ITERATIONS)} iterations:")
    print("numbers of phases | share within U95 | the same, gain known")
    is_good = True
    for waveform in (w for w in END_SHAPES if args.only in w):
        print(f"\n{waveform:28s}" + "".join(f"{name:>27s}" for name in ENDS))
        every: dict[str, list[np.ndarray]] = {name: [] for name in ENDS}
        for s in [s for s in SENSORS if args.sensors in s.name] + [None]:
            cells = []
            for name, (lag_ms, place) in ENDS.items():
                if s is not None and not (place and not s.centre_ms):
                    progress(f"{waveform}, {s.name}, {name}")
                    asked = [
                        (s, lengths, waveform, args.seconds, args.seed + i, lag_ms, place)
                        for lengths in ITERATIONS for i in range(args.runs)
                    ]  # fmt: skip
                    runs = [rows for rows, _ in in_parallel(workers, one, asked)]
                    every[name] += runs
                else:
                    runs = every[name] if s is None else []
                text, is_held = end_text(runs) if runs else ("", True)
                is_good &= is_held
                cells.append(f"{text:>27s}")
            print(f"{'all sensors' if s is None else s.name:28s}" + "".join(cells), flush=True)
    return is_good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=8, help="draws of each cell")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0, help="virtual time of a run")
    parser.add_argument("--only", default="", help="only waveforms with this in their name")
    parser.add_argument("--sensors", default="", help="only sensors with this in their name")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes; the results are the same")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--untuned", action="store_true", help="other waveforms, to which nothing is fitted, instead")
    what.add_argument("--ends", action="store_true", help="lag and place at the ends of their limits instead")
    what.add_argument("--sim", action="store_true", help="powerd's source sim instead")
    args = parser.parse_args()
    print(machine())
    with ProcessPoolExecutor(args.jobs) as workers:
        if args.ends:
            is_good = print_ends(args, workers)
        elif args.sim:
            is_good = print_sim(partial(in_parallel, workers), args.runs, args.seed, args.seconds)
        else:
            is_good = print_cells(args, workers, [w for w in (UNTUNED if args.untuned else TUNED) if args.only in w])
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
