"""How often do the true joules lie inside the 95 % interval? 93 to 97 % of simulated runs, for phases of 2 ms to 10 s.

    python benchmarks/bench_coverage.py [--runs 400] [--seed 0] [--sensor NAME ...] [--lengths MS ...] [--jobs N]

Every run draws its own errors: gain, zero, shunt, conversion clock, offset of the board's clock within its bound, the
moment of sampling, noise. *Single*: share of single phases whose own joules lie in their interval. *Mean*: share of
runs in which the joules that a phase of the kind takes (the mean over all runs) lie in the interval of the run's mean
over its phases; *of these*: the same for the joules of just these phases. With the 95 % interval of the share itself,
from the runs, which are independent (phases of a run are not).

A cell is judged where the model's parts are drawn as they are stated. Reported apart, with the reason:
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
from dataclasses import dataclass, field
from zlib import crc32

import numpy as np
from common import machine, progress
from coverage_runs import KINDS, LENGTHS, WAVEFORMS, part_of, plan_of, waveform
from coverage_sensors import SENSORS, Sensor
from coverage_shares import HEAD, Length, Share, Verdict, share_of

from powerd_analytics.energy.budget import Budget
from powerd_analytics.energy.coverage import factor
from powerd_analytics.energy.devices import PhaseColumns, interval_energies
from powerd_analytics.energy.uncertainty import MEAN_COLUMNS, mean_of

LENGTHS_MS = (2, 5, 10, 20, 50, 200, 1000, 10_000)
RESOLVED = 0.9
READINGS = 2_000_000
"""Of one line that are in memory at a time."""
AT_MOST = 30_000_000
"""Readings of one line in a cell: fast sensors and long phases get fewer runs,"""
FEWEST = 60
"""but so many at least."""
SLOW = {"steps+noise": 1.0, "square": 18.5, "random steps": 8.0, "rare steps": 60.0, "sine": 23.7, "wander": 100.0}
"""Milliseconds in which power that knows nothing of the phases moves."""
SLOWER = 5
"""Reading distances that this must exceed to be judged."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Of one sensor, phase length and waveform."""

    resolvable: float
    single: Share | None
    bare: Share | None
    """The same without the shared part of the edges."""
    mean: Share | None
    bare_mean: Share | None
    these: Share | None
    """The mean against the phases' own joules: their real differences are in the interval too, so it is wide."""


def repeats_of(length_ms: float) -> int:
    return 30 if length_ms <= 200 else 10


def measure(sensor: Sensor, kind: str, length_ms: float, runs: int, seed: int) -> Cell:
    """Simulate one cell in batches, and count."""
    number = list(WAVEFORMS).index(kind)
    in_run = length_ms * LENGTHS.sum() * repeats_of(length_ms) / sensor.period_ms
    runs = min(runs, max(FEWEST, round(AT_MOST / in_run)))
    batch = max(1, min(runs, round(READINGS / in_run)))
    singles, bare, means, exacts, resolvable = [], [], [], [], []
    for i, first in enumerate(range(0, runs, batch)):
        # Each sensor sees power of its own, or the cells of a length would be no independent draws.
        rng = np.random.default_rng([seed, crc32(sensor.name.encode()), number, round(length_ms), i])
        plan = plan_of(rng, min(batch, runs - first), repeats_of(length_ms), length_ms)
        wave = waveform(kind, rng, plan)
        part = part_of(wave, rng, plan, sensor)
        label = plan.run * KINDS + plan.kind
        budget = Budget(len(label), details=True)
        found = interval_energies(part, plan.begin, plan.end, label, plan.run, None, budget)
        exact = (wave.energy(plan.end) - wave.energy(plan.begin)) * 1e-9
        enough = (np.bincount(label, found.resolvable) >= RESOLVED * np.bincount(label))[label]
        good = enough & found.resolvable
        resolvable.append(float(good.mean()))
        inside = np.abs(found.energy_j - exact) <= found.u95_j
        singles.append(_shares(inside[good], plan.run[good]))
        bare.append(_shares((np.abs(found.energy_j - exact) <= _without_edges(found, budget))[good], plan.run[good]))
        exacts.append([exact[plan.kind == k].mean() for k in range(KINDS)])
        means += _means(found, budget, exact, good, label, first)
    if not means:
        return Cell(float(np.mean(resolvable)), None, None, None, None, None)
    expected = np.mean(exacts, axis=0)
    run, k, value, u95, u95_bare, own = (np.array(column) for column in zip(*means, strict=True))
    hits = np.abs(value - expected[k.astype(int)]) <= u95
    bare_hits = np.abs(value - expected[k.astype(int)]) <= u95_bare
    by_run = [share_of(_shares(h, run.astype(int))) for h in (hits, bare_hits, np.abs(value - own) <= u95)]
    return Cell(float(np.mean(resolvable)), *(share_of(np.concatenate(x)) for x in (singles, bare)), *by_run)


def _without_edges(found: PhaseColumns, budget: Budget) -> np.ndarray:
    """Half-widths of single phases, did the shared part of the edges not count."""
    u = np.sqrt(np.maximum(found.u_random_j**2 + found.u_inner_j**2 + found.u_systematic_j**2 - _edges2(budget), 0))
    return factor(u, np.minimum(found.rectangle_j, u)) * u


def _edges2(budget: Budget) -> np.ndarray | float:
    """What phases share of their edges, squared; a part that no phase has is not there."""
    found = [u for u in (budget.part("edges"), budget.part("left over")) if u is not None]
    return sum((u**2 for u in found), 0.0)


def _shares(hits: np.ndarray, run: np.ndarray) -> np.ndarray:
    """Of each run that has any."""
    count = np.bincount(run)
    return np.bincount(run, hits)[count > 0] / count[count > 0]


def _means(
    found: PhaseColumns, budget: Budget, exact: np.ndarray, good: np.ndarray, label: np.ndarray, first: int
) -> list[tuple[float, ...]]:
    """For each run and kind: run, kind, mean, its U95, that without the bound of the edges, the phases' own mean.

    Runs are numbered from ``first``.
    """
    at = np.flatnonzero(good)
    at = at[np.argsort(label[at], kind="stable")]
    columns = [getattr(found, name) for name in MEAN_COLUMNS]
    systematic = np.sqrt(np.maximum(found.u_systematic_j**2 - _edges2(budget), 0))
    bare = [
        systematic if name == "u_systematic_j" else column for name, column in zip(MEAN_COLUMNS, columns, strict=True)
    ]
    made = []
    for of_kind in np.split(at, np.flatnonzero(np.diff(label[at])) + 1) if len(at) else []:
        e, without = (mean_of(*(column[of_kind] for column in c)) for c in (columns, bare))
        i = int(label[of_kind[0]])
        made.append((first + i // KINDS, i % KINDS, e.energy_j, e.u95_j, without.u95_j, float(exact[of_kind].mean())))
    return made


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
        todo = [(*group, kind) for group in groups if first[group].single is not None for kind in kinds[1:]]
        others = pool.imap(_measured, [(s, kind, ms, args.runs, args.seed) for s, ms, kind in todo])
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
    return _verdict(summary)


def _verdict(summary: Summary) -> int:
    """Print what came of all cells; the exit status."""
    singles, means, apart, lengths = summary.singles, summary.means, summary.apart, summary.lengths
    for name, v in (("single phases", singles), ("means", means)):
        if v.judged:
            print(f"\n{name}: {v.judged} cells judged, {v.inside} in 93-97 %, {v.worst_low:.1%} to {v.worst_high:.1%};")
            print(f"  beyond by more than their interval: {v.below} below, {v.above} above", end="")
            print(f", {v.cautious} above for the bound of the edges" if v.cautious else "")
            below, above = v.together()
            print(f"  (by chance {v.by_chance:.0f} of as many that lie right at a limit); each run as one trial, by")
            print(f"  more than chance does to any of {v.judged} cells: {below} below, {above} above")
    for name, values in apart.items():
        if values:
            print(f"apart, {name}: {len(values)} cells, {min(values):.1%} to {max(values):.1%}")
    print(f"\nBy phase length, each run drawing sensor, waveform, kind and errors (! = outside 93-97 %)\n{HEAD}")
    for length_ms, length in lengths.items():
        print(length.row(length_ms))
    cells_missed = singles.below + singles.above + means.below + means.above
    return int(cells_missed > 0 or any(length.is_missed for length in lengths.values()))


if __name__ == "__main__":
    sys.exit(main())
