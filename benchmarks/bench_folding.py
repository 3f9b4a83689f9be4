"""Phases shorter than the sensor resolves, folded over many iterations, against their exact joules, in virtual time.

    python benchmarks/bench_folding.py [--runs 8] [--seed 0] [--seconds 60] [--untuned] [--jobs 2]

Each run draws what is stated as unknown, as it is stated: where in its limits the sensor's window lies, gain, zero, the
lag between phases and power (0 to the bound that folding takes), durations (5 % from iteration to iteration), the
moments of the readings, noise; and, for the waveform ``as stated``, levels and shapes. A card states no tolerance of a
window's length: that is exact. For each sensor, iteration and waveform it prints how many kinds of phase got a number,
mean error and mean U95 of these in % of their joules, and the share whose exact joules lie within U95; then the pooled
shares for each rate and length of phase, with all that was drawn, and as if the gain were known (a gain of 5 % hides
all else). The last rows are sensors whose period divides the iteration's: there must be no number at all. Exit status 1
when a pooled share of ``as stated`` is outside 93 to 97 %, or a cell is below 93 %, by more than binomial scatter. That
is counted in runs: the phases of a run share its gain, place and lag.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import starmap
from math import sqrt
from zlib import crc32

import numpy as np
from common import machine, progress
from energy_estimators import MS, Waveform, sensor
from folding_waveforms import STATED, TUNED, UNTUNED, draw

from powerd_analytics.energy.uncertainty import Estimate
from powerd_analytics.folding.folded import fold
from powerd_analytics.folding.segments import Phases
from powerd_core.model import Accuracy, ScaledConversion, ShuntConversion

LAG_MS = 2.0
"""Lags are drawn from 0 to this: the bound that folding takes when nothing else is set."""
LOW, HIGH = 0.93, 0.97


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


SENSORS = (
    Sensor("10/s, mean of 100 ms", 100, 100, gain=0.05),
    Sensor("10/s, counter", 100, 100, counter=True, gain=0.05),
    Sensor("10/s, chip, 1.06 ms ± 0.3", 100, 1.06, 0.3, gain=0.005, zero_w=0.2, is_chip=True),
    Sensor("50/s, mean of 29 ms", 20, 29, gain=0.05),
    Sensor("50/s, 29 ms ± 1 ms", 20, 29, 1.0, gain=0.05),
    Sensor("50/s, chip, 1.06 ms ± 0.3", 20, 1.06, 0.3, gain=0.005, zero_w=0.2, is_chip=True),
    Sensor("500/s, chip, 1.06 ms", 2, 1.06, gain=0.005, zero_w=0.2, is_chip=True),
    Sensor("500/s, chip, 1.06 ms ± 0.3", 2, 1.06, 0.3, gain=0.005, zero_w=0.2, is_chip=True),
)
ITERATIONS = ((2.0, 5.0, 2.0), (5.0, 10.0, 3.0), (10.0, 20.0, 5.0), (22.0, 51.0, 2.0), (50.0, 50.0, 20.0))


def readings(wave: Waveform, stop: int, s: Sensor, rng, drift: float = 0.0, gain: float = 0.0, zero_w: float = 0.0):
    """The sensor of `energy_estimators`, its windows all beside their timestamps by the same draw."""
    beside = rng.uniform(-s.centre_ms, s.centre_ms) * MS
    moved = Waveform(wave.t - beside, wave.p)
    made = sensor(
        moved, rng, stop, s.period_ms * (1 + drift), s.window_ms, 0.0, counter=s.counter,
        noise_w=0.0 if s.counter else 1.0,
    )  # fmt: skip
    zero = zero_w * (made.t_ns - made.t_ns[0]) * 1e-9 if s.counter else zero_w
    accuracy = Accuracy(u_gain=s.gain if s.is_chip else s.gain / sqrt(3), u_offset_w=s.zero_w)
    line = replace(
        made.line,
        accuracy=accuracy,
        conversion=ShuntConversion(1.0, 1.0, 1.0) if s.is_chip else ScaledConversion("c", 1.0),
    )
    return replace(made, centre_ns=s.centre_ms * MS, line=line, value=made.value * (1 + gain) + zero)


def one(s: Sensor, lengths, waveform: str, seconds: float, seed: int):
    """By kind: error and U95 in % of the exact joules, both again as if the gain were known; NaN without a number; and
    the reasons."""
    # Draws of cells are independent.
    cell = crc32(f"{s.name} {lengths} {waveform}".encode())
    rng = np.random.default_rng([seed, cell])
    lag_ms, gain, zero_w = rng.uniform(0, LAG_MS), rng.uniform(-1, 1) * s.gain, 0.0
    if s.is_chip:
        gain, zero_w = rng.normal(0, s.gain), rng.normal(0, s.zero_w)
    begin, end, kind, wave = draw(waveform, lengths, seconds, rng, lag_ms=lag_ms)
    signal = readings(wave, int(end[-1]) + 100 * MS, s, rng, gain=gain, zero_w=zero_w)
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
        others = sqrt(sum(u**2 for name, u in f.parts_w if name != "gain"))
        limit = 0.0 if s.is_chip else dict(f.parts_w)["gain"]
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


def scatter(share: float, n: int) -> float:
    """How far a share over ``n`` runs may be off, 95 %; with the target's scatter at least, so that it is never 0."""
    return 1.96 * sqrt(max(share * (1 - share), LOW * (1 - LOW)) / max(n, 1))


class Pools:
    """Errors and intervals of all kinds of phases, by what they are pooled over."""

    def __init__(self) -> None:
        self.of: dict[tuple[str, str, float], list[np.ndarray]] = {}
        self.runs = 0

    def add(self, waveform: str, s: Sensor, lengths, runs) -> None:
        for k, length in enumerate(lengths):
            rows = np.array([[*r[k], self.runs + i] for i, r in enumerate(runs)])
            self.of.setdefault((waveform, f"{1000 / s.period_ms:g}/s", length), []).append(rows)
        self.runs += len(runs)

    def select(self, keep) -> np.ndarray:
        found = [rows for key, group in self.of.items() if keep(*key) for rows in group]
        return np.concatenate(found) if found else np.zeros((0, 5))

    @staticmethod
    def share(rows: np.ndarray, first: int = 0) -> tuple[int, float]:
        there = ~np.isnan(rows[:, 0])
        within = np.abs(rows[there, first]) <= rows[there, first + 1]
        return int(there.sum()), float(within.mean()) if there.any() else float("nan")


def print_pools(pools: Pools, waveforms) -> bool:
    """Pooled shares by rate and length; whether those of ``as stated`` are all in 93 to 97 %."""
    rates = list(dict.fromkeys(key[1] for key in pools.of))
    lengths = sorted({key[2] for key in pools.of})
    is_good = True
    groups = [("all waveforms", lambda w: True)]
    if STATED in waveforms:
        groups = [(STATED, lambda w: w == STATED), ("single shapes", lambda w: w != STATED)]
    for title, belongs in groups:
        if not any(belongs(key[0]) for key in pools.of):
            continue
        print(f"\npooled, {title}: numbers of phases | share within U95 | the same, gain known")
        print(f"{'phases (ms)':14s}" + "".join(f"{r:>26s}" for r in (*rates, "all rates")))
        for length in (*lengths, None):
            cells = []
            for rate in (*rates, None):
                rows = pools.select(
                    lambda w, r, x, rate=rate, length=length, belongs=belongs: (
                        belongs(w) and rate in (None, r) and length in (None, x)
                    )
                )
                (n, share), (_, known) = Pools.share(rows), Pools.share(rows, 2)
                cells.append(f"{f'{n} of {len(rows)}':>12s}{share:7.1%}{known:7.1%}")
                if title == STATED and (rate is None or length is None):
                    off = scatter(share, len(np.unique(rows[~np.isnan(rows[:, 0]), 4]))) if n else 1.0
                    is_good &= LOW - off <= share <= HIGH + off
            print(f"{'all' if length is None else f'{length:g}':14s}" + "".join(cells))
    return is_good


def cell_text(runs) -> str:
    rows = np.concatenate(runs)
    there = ~np.isnan(rows[:, 0])
    if not there.any():
        return f"{'0 %':>9s}{'-':>18s}"
    _, share = Pools.share(rows)
    seen = sum(not np.isnan(r[:, 0]).all() for r in runs)
    mark = "!" if share < LOW - scatter(share, seen) else ""
    error, u95 = np.abs(rows[there, 0]).mean(), rows[there, 1].mean()
    return f"{there.mean():9.0%}{error:6.2f}{u95:6.2f}{f'{share:.0%}{mark}':>6s}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=8, help="draws of each cell")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0, help="virtual time of a run")
    parser.add_argument("--only", default="", help="only waveforms with this in their name")
    parser.add_argument("--sensors", default="", help="only sensors with this in their name")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument(
        "--untuned", action="store_true", help="the waveforms that played no part in the method instead"
    )
    args = parser.parse_args()
    waveforms = [w for w in (UNTUNED if args.untuned else TUNED) if args.only in w]
    print(machine())
    print(f"{args.runs} runs of {args.seconds:.0f} s each; |error| and U95 are means over kinds with a number, in %")
    pools, low = Pools(), 0
    with ProcessPoolExecutor(args.jobs) as workers:
        for s in (s for s in SENSORS if args.sensors in s.name):
            print(f"\n{s.name}\n{'phases (ms)':14s}" + "".join(f"{w:>27s}" for w in waveforms))
            print(f"{'':14s}" + "".join(f"{'given |err|  U95  covered':>27s}" for w in waveforms))
            for lengths in ITERATIONS:
                progress(f"{s.name} {lengths}")
                asked = [
                    (s, lengths, w, args.seconds, args.seed + i) for w in waveforms for i in range(args.runs)
                ]  # fmt: skip
                columns = list(zip(*asked, strict=True))
                made = list(workers.map(one, *columns) if args.jobs > 1 else starmap(one, asked))
                cells = []
                for i, waveform in enumerate(waveforms):
                    runs = [rows for rows, _ in made[i * args.runs : (i + 1) * args.runs]]
                    pools.add(waveform, s, lengths, runs)
                    cells.append(cell_text(runs))
                low += sum("!" in c for c in cells)
                print(f"{'/'.join(f'{x:g}' for x in lengths):14s}" + "".join(cells), flush=True)
    is_good = print_pools(pools, waveforms)
    print(f"\n{low} cells are below {LOW:.0%} by more than their scatter")
    print("iterations of 40 ms without jitter, sensors in step with them:")
    for s in (Sensor("every 20 ms, mean of 29", 20, 29), Sensor("every 40 ms, mean of 29", 40, 29), SENSORS[0]):
        whys = aliased(s, args.seed)
        print(f"  {s.name}: {sum(not w for w in whys)} of {len(whys)} numbers; {whys[0]}")
    return 0 if is_good and not low else 1


if __name__ == "__main__":
    sys.exit(main())
