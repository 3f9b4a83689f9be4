"""The simulated GPUs against what was published, and how long a whole campaign takes in virtual time.

Krzywaniak et al. (2022), Table 2: every cell and every printed minimum. Koszczal et al. (2024): best caps of a machine
with 1 to 8 cards at work. The public traces of Zeus (2023) on V100 and P100: four numbers a training, the card's
constants as they are. Tang et al. (2019), Table IV: what a lower clock saves.

    python benchmarks/bench_gpu_physics.py
"""

from __future__ import annotations

import csv
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from common import machine, options

from powerd_core.gpu_physics import (
    CARDS,
    EIGHT_CARDS,
    NETWORKS,
    P100,
    RTX_6000,
    V100,
    XCEPTION,
    Card,
    Network,
    Operation,
    operate,
    operate_machine,
    timed,
)
from powerd_daemon.sources.sim.gpu import SimulatedGpu

DATA = Path(__file__).parents[1] / "tests/data"
NAMES = {
    "Alexnet": "alexnet",
    "VGG-19": "vgg19",
    "Inception3": "inception3",
    "Inception4": "inception4",
    "Resnet50": "resnet50",
    "Resnet152": "resnet152",
}
"""A network's name in Table 2, and ours."""
CAPS = range(100, 261, 5)
METRICS: dict[str, Callable[[float, float], float]] = {
    "min E": lambda e, _: e,
    "min EDP": lambda e, t: e * t,
    "min EDS(k=2.0)": lambda e, t: (e + t) / 2,
    "min EDS(k=1.5)": lambda e, t: (0.5 * e + t) / 1.5,
}
"""Of energy and time relative to the default; 1 at the default."""
TANG = {
    "p100": (544, 683, 810, 936, 1063, 1202, 1328),
    "v100": (510, 652, 802, 945, 1087, 1237, 1380),
    "rtx2080ti": (950, 1150, 1350, 1550, 1750, 1950),
}
TANG_DEFAULT = {"p100": 1328, "v100": 1380, "rtx2080ti": 1350}


def table_2() -> dict[str, list[dict[str, str]]]:
    """The rows of Table 2 by network."""
    rows = defaultdict(list)
    with (DATA / "krzywaniak/table2_rtx6000_power_caps.csv").open() as file:
        for row in csv.DictReader(file):
            rows[row["model"]].append(row)
    return dict(rows)


def cells(model: str, rows: Sequence[dict[str, str]]) -> dict[int, tuple[float, float]]:
    """Relative errors of power and time at each cap that Table 2 prints for a network, whose time scale they decide."""
    printed = {int(r["power_cap_w"]): (float(r["avg_power_w"]), float(r["time_s"])) for r in rows}
    at = {cap: operate(RTX_6000, NETWORKS[NAMES[model]], cap) for cap in printed}
    scale_s = statistics.geometric_mean(time_s / at[cap].time_s for cap, (_, time_s) in printed.items())
    return {
        cap: (at[cap].power_w / power_w - 1, scale_s * at[cap].time_s / time_s - 1)
        for cap, (power_w, time_s) in printed.items()
    }


def best_caps(at: dict[int, Operation]) -> dict[str, int]:
    """The best cap by each metric; the greatest cap is the default."""
    reference = at[max(at)]

    def relative(cap: int) -> tuple[float, float]:
        return at[cap].energy_j / reference.energy_j, at[cap].time_s / reference.time_s

    return {name: min(at, key=lambda cap: metric(*relative(cap))) for name, metric in METRICS.items()}


def best_caps_of(name: str) -> dict[str, int]:
    return best_caps({cap: operate(RTX_6000, NETWORKS[name], cap) for cap in CAPS})


def node_at(cards: int) -> dict[int, Operation]:
    """Koszczal's training on some of eight cards, at each of its caps."""
    return {cap: operate_machine(EIGHT_CARDS, RTX_6000, XCEPTION, cap, cards=cards) for cap in range(100, 261, 10)}


def saving_pct(at: dict[int, Operation]) -> float:
    """The most energy that a cap saves."""
    return 100 * (1 - min(o.energy_j for o in at.values()) / at[max(at)].energy_j)


def traces(card: str) -> dict[str, list[tuple[float, float, float]]]:
    """Limit, seconds and mean watts of the trainings that Zeus traced, each at its greatest batch."""
    by_batch: dict[str, dict[int, list[tuple[float, float, float]]]] = defaultdict(lambda: defaultdict(list))
    with (DATA / f"zeus/{card}.csv").open() as file:
        for row in csv.DictReader(file):
            cell = tuple(float(row[name]) for name in ("power_limit_w", "s_per_epoch", "average_power_w"))
            by_batch[row["job"]][int(row["batch_size"])].append(cell)
    return {job: batches[max(batches)] for job, batches in by_batch.items()}


def fitted(card: Card, rows: Sequence[tuple[float, float, float]]) -> list[float]:
    """Relative errors of time and power that are left when u, w, m and T of a training are fitted."""
    from scipy.optimize import least_squares

    def errors(x: Sequence[float]) -> list[float]:
        at = [operate(card, Network(*x), cap_w) for cap_w, _, _ in rows]
        of_time = [math.log(s / o.time_s) for (_, s, _), o in zip(rows, at, strict=True)]
        middle = statistics.fmean(of_time)
        of_power = [math.log(w / o.power_w) for (_, _, w), o in zip(rows, at, strict=True)]
        return [*(e - middle for e in of_time), *of_power]

    starts = [(u, w, 0.5) for u in (80.0, 200.0) for w in (0.1, 0.5)]
    bounds = ((5.0, 0.0, 0.0), (900.0, 0.97, 0.98))
    return list(min((least_squares(errors, x, bounds=bounds) for x in starts), key=lambda found: found.cost).fun)


def clock_saving_pct(name: str, network: Network) -> float:
    """What the best of Tang's clocks saves against the default one."""
    card = CARDS[name]
    joules = {
        mhz: operate(card, network, card.limits_w[1], f_most=mhz / card.core_mhz[-1]).energy_j for mhz in TANG[name]
    }
    return 100 * (1 - min(joules.values()) / joules[TANG_DEFAULT[name]])


def campaign(noise: float, repeats: int = 5) -> tuple[int, float]:
    """Krzywaniak's 33 caps x 6 networks x ``repeats`` runs in virtual time on one card: how many, and their hours."""
    gpu, runs, seconds = SimulatedGpu(RTX_6000, seed=1), 0, 0.0
    for model, rows in table_2().items():
        network = timed(NETWORKS[NAMES[model]], float(rows[0]["time_s"]) / 250)
        for cap_w in CAPS:
            gpu.change("limit_w", float(cap_w))
            gpu.advance(gpu.now_s + 5.0)
            for _ in range(repeats):
                seconds += gpu.train(network, 250, time_noise=noise, noise=noise).time_s
                runs += 1
    return runs, seconds / 3600


def main() -> None:
    arguments = options(__doc__, noise=0.01)
    print(machine())
    worst = []
    print("\nKrzywaniak et al., Table 2, Quadro RTX 6000: errors of power and time in per cent")
    for model, rows in table_2().items():
        errors = cells(model, rows)
        worst += [abs(e) for pair in errors.values() for e in pair]
        print(f"{model:<11}" + "  ".join(f"{c} W {100 * p:+.2f} {100 * t:+.2f}" for c, (p, t) in errors.items()))
    rms = math.sqrt(statistics.fmean(e * e for e in worst))
    print(f"{len(worst)} figures of {len(worst) // 2} cells: {100 * rms:.2f} % rms, {100 * max(worst):.2f} % at worst")
    print("\nIts printed minima, and the model's")
    for model, rows in table_2().items():
        found = best_caps_of(NAMES[model])
        texts = [f"{r['target']} {r['power_cap_w']}/{found[r['target']]}" for r in rows if r["target"] in found]
        print(f"{model:<11}" + "  ".join(texts))
    print("\nKoszczal et al.: best caps on n of 8 cards, energy saved (printed about 3, 5.5, 11.5, 25 %), seconds")
    for n in (1, 2, 4, 8):
        at = node_at(n)
        times = f"{at[260].time_s:.1f} s at 260 W, {at[170].time_s:.1f} at 170"
        print(f"{n}: {best_caps(at)}  {saving_pct(at):.1f} %  {times}")
    for name, card in (("v100", V100), ("p100", P100)):
        errors = [e for rows in traces(name).values() for e in fitted(card, rows)]
        rms, half = math.sqrt(statistics.fmean(e * e for e in errors)), statistics.median(map(abs, errors))
        print(f"\nZeus' traces on {name}: {100 * rms:.1f} % rms, half within {100 * half:.1f} %", end="")
    print("\n\nTang et al., Table IV: what the best clock saves, for trainings of 60 to 200 W, m 0.0 to 0.4; printed")
    for name, printed in (("p100", "23.1 to 25.1"), ("v100", "11.3 to 14.0"), ("rtx2080ti", "3.1 to 11.0")):
        saved = [clock_saving_pct(name, Network(u, 0.05, m)) for u in (60, 100, 200) for m in (0, 0.2, 0.4)]
        print(f"{name}: {min(saved):.1f} to {max(saved):.1f} %; {printed} %")
    begin_s = time.process_time()
    runs, hours = campaign(arguments.noise)
    print(f"\n{runs} runs of {hours:.1f} hours in virtual time: {time.process_time() - begin_s:.1f} s of one core")


if __name__ == "__main__":
    main()
