"""How often the tables hold the truth: trainings of exactly known joules, in cases that differ by what is hard in them.

Iterations of a few milliseconds to seconds, with and without pauses, with missing readings, with power that lags
behind its marks, and in resonance with the readings. Figures of a run share its gain and its windows' place, so that a
sign test counts runs: of each sensor and kind of figure in how many runs the error is positive, and of the contrast of
forward and backward in how many it is too large.

``--only`` takes trainings with this text in the sensor's or the family's name, ``--list`` prints every figure beyond
1.5 U95, ``--jitter`` is the share by which lengths vary.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy import stats
from trainings.case import Case
from trainings.known import FAMILIES, MS, SENSORS, KnownRun, Scenario, Sensor, make

from powerd_analytics import phase_energies, phase_table, read_run
from powerd_analytics.views.compare import compare, run_samples

KINDS = ("single", "mean", "iteration", "total")


@dataclass(frozen=True)
class Figure:
    kind: str
    name: str
    error_j: float
    u95_j: float
    truth_j: float

    @property
    def off(self) -> float:
        return self.error_j / self.u95_j if self.u95_j > 0 else np.sign(self.error_j) * np.inf


def score(known: KnownRun, rng: np.random.Generator, singles: int = 12) -> tuple[list[Figure], int]:
    """The figures of a run's table against the truth, and how many were refused."""
    run = read_run(known.path)
    table, each = phase_table(run), phase_energies(run, "gpu0")
    names = np.array([p[0] for p in known.phases])
    begin, end = (np.round(np.array([p[k] for p in known.phases]) * 1e9) * 1e-9 for k in (1, 2))
    truth = known.power.joules(end) - known.power.joules(begin)
    found, refused = [], 0
    for row in table.phases:
        exact = float(truth[names == row.phase].mean())
        if row.j_per_batch is None or row.u95_j is None:
            refused += 1
            continue
        kind = "iteration" if row.phase == "iteration" else "mean"
        found.append(Figure(kind, row.phase, row.j_per_batch - exact, row.u95_j, exact))
        if kind == "mean":
            of_kind = np.flatnonzero((names == row.phase) & each.resolvable)
            # Some by chance, and the first one, which follows what no other does.
            for i in np.unique(np.append(rng.permutation(of_kind)[:singles], of_kind[:1])):
                u95 = float(each.u95_j[i])
                found.append(Figure("single", row.phase, float(each.energy_j[i] - truth[i]), u95, float(truth[i])))
    for row, exact in [(t, truth[0]) for t in table.totals] + [
        (r, float(np.diff(known.power.joules(np.array([0.0, known.end])))[0])) for r in table.runs
    ]:
        if row.energy_j is None or row.u95_j is None:
            refused += 1
        else:
            found.append(
                Figure("total", "run" if row in table.runs else "total", row.energy_j - exact, row.u95_j, float(exact))
            )
    told = {f.name: 1 + f.error_j / f.truth_j for f in found if f.kind == "mean"}
    if {"forward", "backward"} <= told.keys():  # forward has more power in all cases
        found.append(Figure("contrast", "contrast", told["forward"] / told["backward"] - 1, np.nan, 1.0))
    return found, refused


LENGTHS = (13.1 * MS, 31 * MS, 48 * MS, 74.3 * MS, 203 * MS, 0.71, 2.3, 7.1)


def random_scenario(seed: int) -> Scenario:
    rng = np.random.default_rng([seed, 17])
    length = float(rng.choice(LENGTHS)) * rng.uniform(0.85, 1.15)
    return Scenario(
        sensor=SENSORS[seed % len(SENSORS)],
        family=FAMILIES[(seed // len(SENSORS)) % len(FAMILIES)],
        iteration=length,
        pause=float(rng.choice([0.0, 0.0, 0.02, 0.05, 0.09])),
        missing=float(rng.choice([0.0, 0.0, 0.0, 0.07])),
        lag=float(rng.choice([0.0, 0.0, 0.3 * MS, 1.0 * MS])),
        seed=seed,
        seconds=float(np.clip(60 * length, 8, 60)),
    )


def sensor_named(name: str) -> Sensor:
    return next(s for s in SENSORS if s.name == name)


def grid_scenarios() -> list[Scenario]:
    """Iterations 0.07 and 1.3 % beside half multiples of the distance of readings."""
    of_phases = {"shares": (0.3, 0.7), "watts": (450.0, 250.0), "names": ("forward", "backward")}
    sensors = (
        replace(sensor_named(name), centre=0.0, noise=0.1)
        for name in ("point 100/s", "window 25 of 100 ms", "chip 500/s", "point 1000/s")
    )
    return [
        Scenario(
            s, family, s.period * half / 2 * (1 + off), jitter=0.02 if half % 2 else 0.0, seed=half, seconds=20,
            **of_phases,
        )
        for s in sensors
        for half in ((1, 2, 3, 4, 6, 7) if s.period > 5 * MS else (3, 4, 6, 7, 10))
        for off in (0.0007, 0.013)
        for family in ("steps", "ramps")
    ]  # fmt: skip


def in_step_scenarios() -> list[Scenario]:
    alone = next(s for s in SENSORS if s.low_pass)
    counter = Sensor("counter", 1.0, counter=True, centre=100 * MS, noise=0.0)
    # An H200's lies 14 ms early for 9 s and 7 ms late from then on, or jumps by 10 ms now and then.
    instant = Sensor("instant", 100 * MS, low_pass=13.3 * MS, centre=13 * MS, noise=2.0, stays=8.0)
    of_phases = {"shares": (0.35, 0.65), "watts": (450.0, 300.0), "names": ("forward", "backward")}
    lines = {"alone": (), "instant power": (instant,), "counter": (counter,), "all": (instant, counter)}
    return [
        Scenario(
            replace(alone, name=f"{alone.name}, {about}"), FAMILIES[seed % 5], length, jitter=0.0, seed=seed,
            seconds=30, beside=beside, **of_phases,
        )
        for about, beside in lines.items()
        for length in (20 * MS, 30 * MS, 40 * MS, 60 * MS, 80 * MS, 20.002 * MS)
        for seed in range(100, 110)
    ]  # fmt: skip


def short_scenarios() -> list[Scenario]:
    chip = sensor_named("chip 500/s")
    return [
        Scenario(replace(chip, name=f"T = {length / MS:g} ms"), family, length, lag=lag, seed=seed, seconds=4.0)
        for length in (1 * MS, 2 * MS, 2.03 * MS, 3 * MS, 4 * MS, 4.13 * MS, 6 * MS, 6.13 * MS)
        for family in FAMILIES
        for lag in (0.0, 0.3 * MS)
        for seed in range(5000, 5004)
    ]


def update_scenario(seed: int) -> Scenario:
    """Points without noise or with little, exact in time, and updates of 6 to 20 ms."""
    rng = np.random.default_rng([seed, 23])
    sensor = Sensor("point 500/s", 2 * MS, noise=float(rng.choice([0.0, 0.3])))
    update, whole = rng.uniform(6, 20) * MS, float(rng.choice([74.3 * MS, 203 * MS, 0.71])) * rng.uniform(0.85, 1.15)
    others = np.array([0.10, 0.32, 0.48]) / 0.90 * (1 - update / whole)
    return Scenario(
        sensor, f"response {rng.uniform(0.3, 3):.2f}", whole, jitter=float(rng.choice([0.02, 0.1])),
        lag=float(rng.uniform(0, 1.2) * MS), seed=seed, shares=(*map(float, others), float(update / whole)),
    )  # fmt: skip


def rails_scenario(seed: int) -> Scenario:
    eight = Sensor("eight rails 500/s", 2 * MS, 1.06 * MS, centre=0.1 * MS, u_gain=0.005, lines=8, stagger=0.2 * MS)
    scenario = random_scenario(seed)
    return replace(scenario, sensor=eight, seconds=min(scenario.seconds, 10.0))


def pause_scenarios() -> list[Scenario]:
    of_phase = {"shares": (1.0,), "watts": (300.0,), "names": ("forward",)}
    return [
        Scenario(sensor_named(name), "steps", length, pause, 0.05, seed=int(pause * 100), seconds=20, **of_phase)
        for name in ("counter 10/s", "low-pass 50/s", "chip 500/s", "window 100 of 100 ms", "point 100/s")
        for length in (10 * MS, 20 * MS, 50 * MS)
        for pause in (0.02, 0.05, 0.09)
    ]


CLASS_SENSORS = tuple(
    replace(sensor, u_gain=0.002, u_offset=0.1)
    for sensor in (
        Sensor("point 500/s", 2 * MS),
        Sensor("chip 59/s, window 8.5 ms", 17 * MS, 8.5 * MS),
        *map(sensor_named, ("low-pass 50/s", "window 100 of 100 ms", "counter 10/s")),
    )
)


def class_scenario(seed: int) -> Scenario:
    """Four phases of 6 to 110 ms whose power settles in its own time, behind one of five sensors."""
    rng = np.random.default_rng([seed, 29])
    lengths = np.array([rng.uniform(*ends) for ends in ((6, 20), (30, 80), (50, 110), (6, 20))]) * MS
    whole = float(lengths.sum())
    return Scenario(
        CLASS_SENSORS[seed % len(CLASS_SENSORS)], f"response {rng.uniform(0.3, 3):.2f}", whole, jitter=0.03, seed=seed,
        seconds=20.0, shares=tuple(map(float, lengths / whole)),
    )  # fmt: skip


def corr_scenario(seed: int) -> Scenario:
    """Lengths that vary, by iteration and in half of the runs by phase, and power that goes with them: 20 % longer
    draws 10 % more."""
    rng = np.random.default_rng([seed, 37])
    jitter, own = rng.uniform(0.1, 0.4), float(rng.choice([0.1, 1.0]))
    return replace(class_scenario(seed), jitter=jitter, own_jitter=own, by_length=0.5)


def vary_scenario(seed: int) -> Scenario:
    """Lengths that vary as much, and power that does not."""
    return replace(corr_scenario(seed), by_length=0.0)


def ramp_scenario(seed: int) -> Scenario:
    """Power that rises or falls by 20 to 50 % from a phase's begin to its end."""
    rng = np.random.default_rng([seed, 31])
    slopes = tuple(map(float, rng.uniform(0.2, 0.5, 4) * rng.choice([-1, 1], 4)))
    return replace(class_scenario(seed), family="slopes", slopes=slopes)


def alt3_scenario(seed: int) -> Scenario:
    """Two phases of 3 ms, and random pauses of 2 ms behind every second iteration."""
    scenario = class_scenario(seed)
    return replace(
        scenario, iteration=6 * MS, random_pause=2 * MS, seconds=8.0, shares=(0.5, 0.5), watts=(330.0, 250.0),
        names=("forward", "backward"),
    )  # fmt: skip


def pair_scenarios(count: int) -> list[tuple[Scenario, Scenario]]:
    """Two short runs of the same training on the same sensor each."""
    fast = [s for s in SENSORS if s.name in ("chip 500/s", "point 100/s", "counter 10/s", "low-pass 50/s")]
    pairs = []
    for i in range(count):
        sensor, length, pause = fast[i % 4], (13.1 * MS, 31 * MS, 48 * MS)[i // 4 % 3], (0.0, 0.02, 0.05)[i // 12 % 3]
        scenario = Scenario(
            sensor, FAMILIES[i // 36 % 5], length, pause, 0.05, seconds=4.0, shares=(0.4, 0.6), watts=(330.0, 250.0),
            names=("forward", "backward"), drift=0.0, board=i,
        )  # fmt: skip
        pairs.append((replace(scenario, seed=2 * i), replace(scenario, seed=2 * i + 1)))
    return pairs


# --- Figures by sensor, and what they are told beside


Figures = dict[tuple[str, str], list[Figure]]
"""By sensor and family."""


def show(figures: Figures, by: int, title: str) -> None:
    """By sensor or family: share inside U95, the farthest in U95, and root mean square error and median U95 in %."""
    print(f"\n{title:28} " + "".join(f"{k:>34}" for k in KINDS))
    for name in dict.fromkeys(key[by] for key in figures):
        cells = []
        for kind in KINDS:
            some = [f for key, fs in figures.items() if key[by] == name for f in fs if f.kind == kind]
            if not some:
                cells.append(f"{'–':>34}")
                continue
            off = np.array([f.off for f in some])
            u = np.median([f.u95_j / abs(f.truth_j) for f in some])
            rms = np.sqrt(np.mean([(f.error_j / f.truth_j) ** 2 for f in some]))
            text = f"{100 * np.mean(np.abs(off) <= 1):5.1f}% of {len(some):5} max {np.abs(off).max():5.2f}"
            cells.append(f"{text} {100 * rms:4.1f}/{100 * u:4.1f}".rjust(34))
        print(f"{name!s:28} " + "".join(cells), flush=True)


def show_families(figures: Figures) -> None:
    show(figures, 1, "family")


def show_phases(figures: Figures) -> None:
    """Means of each kind of phase: the share inside U95 and the mean error."""
    print()
    for name in ("data", "forward", "backward", "update"):
        some = [f for fs in figures.values() for f in fs if (f.kind, f.name) == ("mean", name)]
        inside, error = np.mean([abs(f.off) <= 1 for f in some]), np.mean([f.error_j / f.truth_j for f in some])
        print(f"{name:10} {inside:7.1%} of {len(some)} means inside, mean error {error:+.3%}")


def show_sizes(figures: Figures) -> None:
    """By sensor and figure: the share inside U95, the mean error, the median U95, what 95 % of the errors need, and U95
    as a multiple of 1.96 times the root mean square error, each error being taken in its own U95."""
    print(f"\n{'':28}{'':11}{'inside':>15}{'mean error':>12}{'U95':>8}{'needed':>8}{'size':>6}{'farthest':>10}")
    for sensor in dict.fromkeys(key[0] for key in figures):
        every = [f for key, fs in figures.items() if key[0] == sensor for f in fs if f.kind in KINDS[1:]]
        for name in dict.fromkeys(f.name for f in every):
            some = [f for f in every if f.name == name]
            off, error = np.array([f.off for f in some]), np.array([f.error_j / f.truth_j for f in some])
            u95 = np.median([f.u95_j / f.truth_j for f in some])
            size = 1 / (1.96 * np.sqrt(np.mean(off**2)))
            inside = f"{np.mean(np.abs(off) <= 1):.1%} of {len(some)}"
            print(
                f"{sensor:28}{name:11}{inside:>15}{error.mean():>+12.2%}{u95:8.2%}"
                f"{np.quantile(np.abs(error), 0.95):8.2%}{size:6.2f}{np.abs(off).max():10.2f}"
            )


def show_signs(errors: dict[tuple[str, str], list[float]]) -> None:
    """By sensor and figure: errors [run], and how likely so many of one sign are by chance."""
    rows = []
    for (sensor, name), of_runs in errors.items():
        above = int(np.sum(np.array(of_runs) > 0))
        rows.append((stats.binomtest(above, len(of_runs)).pvalue, sensor, name, above, len(of_runs)))
    limit = 0.05 / max(len(rows), 1)
    beyond = [r for r in rows if r[0] < limit]
    of_all = f"{len(beyond)} of {len(rows)} classes of sensor and figure"
    print(f"\nsigns: {of_all} beyond chance (p < 0.05 / {len(rows)}); least:")
    for p, sensor, name, above, n in sorted(rows)[:5]:
        print(f"  {sensor:22} {name:10} positive in {above} of {n} runs, p = {p:.2g}")


def list_far(scenario: Scenario, figures: Iterable[Figure]) -> None:
    """Every figure of a run that is beyond 1.5 U95."""
    for f in figures:
        if abs(f.off) > 1.5 and f.kind in KINDS:
            print(
                f"{scenario.sensor.name:22} {scenario.family:12} T={scenario.iteration * 1e3:8.3f} ms "
                f"pause {scenario.pause:.2f} lag {scenario.lag * 1e3:.1f} miss {scenario.missing:.2f} "
                f"seed {scenario.seed:4} {f.kind:9} {f.name:9} {f.off:+7.2f} U95  "
                f"{100 * f.error_j / f.truth_j:+8.3f} %",
                flush=True,
            )


# --- The cases


def scored(
    scenarios: Callable[[argparse.Namespace], Iterable[Scenario]], show_more: Callable[[Figures], None] = show_families
) -> Callable[[argparse.Namespace, Path], bool]:
    """A case whose figures are counted inside U95, by sensor and by something more."""

    def judge(args: argparse.Namespace, folder: Path) -> bool:
        figures: Figures = defaultdict(list)
        errors: dict[tuple[str, str], list[float]] = defaultdict(list)
        began, refused, rng = time.perf_counter(), 0, np.random.default_rng(1)
        for scenario in scenarios(args):
            if args.only not in f"{scenario.sensor.name} {scenario.family}":
                continue
            of_run, none = score(make(folder / "run.h5", scenario), rng)
            refused += none
            figures[scenario.sensor.name, scenario.family] += of_run
            for f in of_run:
                if f.kind != "single":
                    errors[scenario.sensor.name, f.name].append(f.error_j)
            if args.list:
                list_far(scenario, of_run)
        if not figures:
            raise SystemExit(f"no training of this case has {args.only!r} in its sensor's or its family's name")
        show(figures, 0, "sensor")
        show_more(figures)
        show({("all", "all"): [f for of_run in figures.values() for f in of_run]}, 0, "")
        show_signs(errors)
        print(f"{refused} figures refused; {time.perf_counter() - began:.0f} s")
        return True

    return judge


def called_different(pair: tuple[Scenario, Scenario], folder: Path) -> dict[str, bool]:
    """For each phase whether its joules of two runs differ by more than the 95 % interval of the difference."""
    a, b = (run_samples(make(folder / f"{name}.h5", one).path)[0] for name, one in zip("ab", pair, strict=True))
    rows = compare(a, b)
    phase = rows.names.index("phase")
    return {str(d.key[phase]): abs(d.change) > d.u95 for d in rows.rows if d.figure == "j_per_batch" and d.u95}


def judge_pairs(args: argparse.Namespace, folder: Path) -> bool:
    """By sensor and phase: how often two runs of equal joules are called different."""
    different: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for pair in pair_scenarios(args.seed + args.runs)[args.seed :]:
        for name, is_different in called_different(pair, folder).items():
            for sensor in ("", pair[0].sensor.name):
                different[sensor, name].append(is_different)
    for (sensor, name), all_of in sorted(different.items()):
        n, k = len(all_of), sum(all_of)
        low, high = stats.binomtest(k, n).proportion_ci()
        interval = f"95 % interval {low:.1%} to {high:.1%}"
        print(f"{sensor:14}{name:12} called different in {k} of {n} pairs, {k / n:.1%} ({interval})")
    return True


def judge_missing(args: argparse.Namespace, folder: Path) -> bool:
    """By sensor and kind of figure: how wide U95 is, each figure's error being taken in its own U95."""
    off: dict[tuple[str, str, float], list[float]] = defaultdict(list)
    for scenario in seeded(random_scenario)(args):
        for share in (0.0, 0.07):
            run = make(folder / "run.h5", replace(scenario, missing=share))
            for f in score(run, np.random.default_rng(1))[0]:
                off[scenario.sensor.name, f.kind, share].append(f.off)
    print("U95 as a multiple of 1.96 times the root mean square error, 7 % of readings missing (none missing)")
    print(f"{'':24}" + "".join(f"{kind:>16}" for kind in KINDS))
    for name in dict.fromkeys(key[0] for key in off):
        wide = [
            [1 / (1.96 * np.sqrt(np.mean(np.square(off[name, kind, share])))) for share in (0.07, 0.0)]
            for kind in KINDS
        ]
        print(f"{name:24}" + "".join(f"{a:10.2f} ({b:.2f})" for a, b in wide), flush=True)
    return True


def seeded(scenario_of: Callable[[int], Scenario]) -> Callable[[argparse.Namespace], list[Scenario]]:
    """So many scenarios as ``--runs`` says, from ``--seed`` on."""
    return lambda args: [scenario_of(args.seed + i) for i in range(args.runs)]


def random_scenarios(args: argparse.Namespace) -> list[Scenario]:
    return [replace(scenario, jitter=args.jitter) for scenario in seeded(random_scenario)(args)]


_SCORED = {"only": "", "list": False}
CASES = {
    "random": Case(
        "shares inside U95 of random trainings", scored(random_scenarios),
        {"runs": 120, "seed": 0, "jitter": 0.02, **_SCORED},
    ),
    "grid": Case("resonance of iterations and readings", scored(lambda _: grid_scenarios()), _SCORED),
    "pauses": Case("short pauses between iterations", scored(lambda _: pause_scenarios()), _SCORED),
    "short": Case(
        "iterations of a few readings of a chip, in step or nearly so", scored(lambda _: short_scenarios()), _SCORED
    ),
    "in-step": Case(
        "exactly in step with a GPU's samples, with its other lines and without",
        scored(lambda _: in_step_scenarios()), _SCORED,
    ),
    "updates": Case(
        "short updates at exact points, power that settles over milliseconds",
        scored(seeded(update_scenario), show_phases), {"runs": 60, "seed": 0, **_SCORED},
    ),
    **{
        name: Case(title, scored(seeded(scenario_of), show_sizes), {"runs": 60, "seed": 0, **_SCORED})
        for name, title, scenario_of in (
            ("plain", "four phases of 6 to 110 ms behind five sensors", class_scenario),
            ("corr", "lengths that vary, and power that goes with them", corr_scenario),
            ("vary", "lengths that vary, and power that does not", vary_scenario),
            ("ramp", "power that changes by 20 to 50 % within a phase", ramp_scenario),
            ("alt3", "iterations of 6 ms with random pauses of 2 ms", alt3_scenario),
        )
    },
    "rails": Case(
        "eight rails of unlike shares, read one after the other",
        scored(seeded(rails_scenario)), {"runs": 60, "seed": 0, **_SCORED},
    ),
    "pairs": Case("how often two runs of equal joules are called different", judge_pairs, {"runs": 200, "seed": 0}),
    "missing": Case(
        "how wide U95 is with 7 % of the readings missing, and with none", judge_missing, {"runs": 24, "seed": 0}
    ),
}  # fmt: skip
