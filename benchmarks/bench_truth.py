# ruff: noqa: E501, PERF401
"""How often the tables hold the truth: runs of exactly known energy, made here from the text of docs/reference/run-file.md.

Power is straight between knots, so that every joule, every window's mean and every low-pass is exact. Nothing of
powerd makes the run files, neither its simulator nor its estimator. Twelve sensors, five families of waveforms, iterations of
a few milliseconds to seconds, with and without pauses, with missing readings, with power that lags behind its marks, and
a grid of iterations in resonance with the readings. Gain, zero, the windows' place and noise are drawn as a line states
them.

    python benchmarks/bench_truth.py --runs 120            # random cases: shares inside U95 by kind of figure
    python benchmarks/bench_truth.py --grid                # resonance of iterations and readings
    python benchmarks/bench_truth.py --pauses              # short pauses between iterations
    python benchmarks/bench_truth.py --short               # iterations of a few readings of a chip, in step or nearly so
    python benchmarks/bench_truth.py --in-step             # exactly in step with a GPU's samples, with its other lines and without
    python benchmarks/bench_truth.py --pairs 1000          # how often two runs of equal joules are called different
    python benchmarks/bench_truth.py --missing 240         # how wide U95 is with 7 % of the readings missing, and with none
    python benchmarks/bench_truth.py --updates 240         # short updates at exact points, power that settles over milliseconds
    python benchmarks/bench_truth.py --rails 60            # eight rails of unlike shares, read one after the other

Figures of a run share its gain and its windows' place, so that a sign test counts runs: of each sensor and kind of figure
in how many runs the error is positive, and of the contrast of forward and backward in how many it is too large.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path

import h5py
import numpy as np
from scipy import stats

MS = 1e-3
KINDS = ("single", "mean", "iteration", "total")


@dataclass(frozen=True)
class Sensor:
    """What a line states, in seconds, watts and shares; what it really does is drawn from that."""

    name: str
    period: float
    window: float = 0.0
    low_pass: float = 0.0
    counter: bool = False
    centre: float = 0.0
    noise: float = 0.3
    u_gain: float = 0.003
    u_offset: float = 0.1
    lines: int = 1
    update: float = 0.0
    stays: float = 0.0
    """How long its readings lie at one place within ``centre``, on average; 0 for a whole run."""
    stagger: float = 0.0
    """Seconds between the readings of its lines, which then are unlike parts of the power, each with a place of its own."""


SENSORS = (
    Sensor("point 1000/s", 1 * MS),
    Sensor("chip 500/s", 2 * MS, 1.06 * MS, centre=0.3 * MS, u_gain=0.005, noise=1.0),
    Sensor("two rails 500/s", 2 * MS, 1.06 * MS, centre=0.1 * MS, u_gain=0.005, lines=2),
    Sensor("counter 500/s", 2 * MS, counter=True, noise=0.0),
    Sensor("point 100/s", 10 * MS),
    Sensor("counter 10/s", 100 * MS, counter=True, centre=0.2 * MS, noise=0.0, u_gain=0.003),
    Sensor("low-pass 50/s", 20 * MS, low_pass=13.3 * MS, centre=1.0 * MS, u_gain=0.003, noise=2.0),
    Sensor("window 20 of 20 ms", 20 * MS, 20 * MS, centre=0.5 * MS, u_gain=0.003),
    Sensor("window 100 of 100 ms", 100 * MS, 100 * MS, centre=1.0 * MS, u_gain=0.003),
    Sensor("window 25 of 100 ms", 100 * MS, 25 * MS, centre=1.0 * MS, u_gain=0.003),
    Sensor("average of 1 s, 10/s", 100 * MS, 1000 * MS, centre=5 * MS, u_gain=0.003, noise=0.5),
    Sensor("wall 10/s", 100 * MS, 100 * MS, centre=0.5 * MS, u_gain=0.001, u_offset=0.2, noise=0.2),
)
FAMILIES = ("steps", "ramps", "exponential", "restless", "bursts")


@dataclass(frozen=True)
class Case:
    sensor: Sensor
    family: str
    iteration: float
    """Seconds of an iteration."""
    pause: float = 0.0
    """Share of the iteration that is waited after it."""
    jitter: float = 0.02
    missing: float = 0.0
    lag: float = 0.0
    seed: int = 0
    seconds: float = 12.0
    shares: tuple[float, ...] = (0.10, 0.32, 0.48, 0.10)
    watts: tuple[float, ...] = (110.0, 330.0, 250.0, 140.0)
    names: tuple[str, ...] = ("data", "forward", "backward", "update")
    rest: float = 60.0
    drift: float = 0.001
    """Of restless power, from one iteration to the next; two runs that drift do not have equal joules."""
    board: int | None = None
    """Runs with the same number have the same sensor with the same errors."""
    beside: tuple[Sensor, ...] = ()
    """Other lines of the same power, which feed nothing, as a GPU's driver has them."""


@dataclass
class Power:
    """Straight between knots: from ``first[i]`` at ``at[i]`` to ``last[i]`` at ``at[i + 1]``."""

    at: np.ndarray
    first: np.ndarray
    last: np.ndarray
    _sum: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        joules = np.diff(self.at) * (self.first + self.last) / 2
        self._sum = np.concatenate([[0.0], np.cumsum(joules)])

    def _piece(self, t: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        i = np.clip(np.searchsorted(self.at, t, "right") - 1, 0, len(self.first) - 1)
        slope = (self.last[i] - self.first[i]) / (self.at[i + 1] - self.at[i])
        return i, t - self.at[i], slope

    def watts(self, t: np.ndarray) -> np.ndarray:
        i, x, slope = self._piece(t)
        return self.first[i] + slope * x

    def joules(self, t: np.ndarray) -> np.ndarray:
        """Since the first knot."""
        i, x, slope = self._piece(t)
        return self._sum[i] + self.first[i] * x + slope * x * x / 2

    def filtered(self, t: np.ndarray, tau: float) -> np.ndarray:
        """Behind a low-pass of first order, exactly: on a piece a + b x it is c exp(-x / tau) + a + b (x - tau)."""
        length = np.diff(self.at)
        slope = (self.last - self.first) / length
        away = np.exp(-length / tau)
        level, offset = self.first[0], np.zeros(len(length))
        for i in range(len(length)):
            offset[i] = level - self.first[i] + slope[i] * tau
            level = offset[i] * away[i] + self.first[i] + slope[i] * (length[i] - tau)
        i, x, b = self._piece(t)
        return offset[i] * np.exp(-x / tau) + self.first[i] + b * (x - tau)


def knots_of(family: str, length: float, level: float, before: float, rng: np.random.Generator):
    """Moments since the phase began and watts there; two at one moment are a step."""
    if family == "ramps":
        rise = min(0.8 * MS, length / 2)
        return [0.0, rise, length], [before, level, level]
    if family == "exponential":
        x = np.concatenate([[0.0], np.geomspace(0.2 * MS, max(length, 0.3 * MS), 14)])
        x = np.concatenate([x[x < length], [length]])
        return list(x), list(level + (before - level) * np.exp(-x / (5 * MS)))
    if family.startswith("response"):  # of first order, with a time constant in milliseconds
        tau = float(family.split()[1]) * MS
        x = np.concatenate([[0.0], np.geomspace(0.05 * tau, max(length, 0.3 * MS), 40)])
        x = np.concatenate([x[x < length], [length]])
        return list(x), list(level + (before - level) * np.exp(-x / tau))
    if family == "restless":
        n = int(np.clip(length / (3 * MS), 2, 40))
        x = np.linspace(0, length, n + 1)
        return list(x), list(
            level * (1 + 0.03 * rng.normal()) + 0.05 * level * np.cumsum(rng.normal(size=n + 1)) / np.sqrt(n)
        )
    if family == "bursts":
        x = [0.0, 0.1 * length, 0.1 * length, 0.85 * length, 0.85 * length, length]
        return x, [1.25 * level] * 2 + [level] * 2 + [0.7 * level] * 2
    return [0.0, length], [level, level]


@dataclass
class Made:
    path: Path
    case: Case
    power: Power
    phases: list[tuple[str, float, float, int]]
    """Name, begin, end, number of the phase around it."""
    end: float


def make(path: Path, case: Case) -> Made:
    rng = np.random.default_rng(case.seed)
    at, first, last = [0.0], [], []
    phases: list[tuple[str, float, float, int]] = []

    def add(x, w, begin):
        for x0, x1, w0, w1 in zip(x[:-1], x[1:], w[:-1], w[1:], strict=True):
            if x1 - x0 > 1e-9:
                at.append(begin + x1)
                first.append(w0)
                last.append(w1)

    now, level = 0.5 + rng.uniform(0, 0.1), case.rest
    add([0.0, now], [level, level], 0.0)
    phases.append(("training", now, now, -1))
    began = now
    slow = 1.0
    while now - began < case.seconds:
        outer = len(phases)
        phases.append(("iteration", now, now, 0))
        whole = case.iteration * (1 + case.jitter * rng.uniform(-1, 1))
        slow *= 1 + case.drift * rng.normal() if case.family == "restless" else 1.0
        for name, share, watts in zip(case.names, case.shares, case.watts, strict=True):
            length = round(whole * share * (1 + case.jitter * rng.uniform(-1, 1)), 9)
            x, w = knots_of(case.family, length, watts * slow, level, rng)
            add(x, w, now)
            phases.append((name, now, now + length, outer))
            level, now = w[-1], now + length
        phases[outer] = ("iteration", phases[outer][1], now, 0)
        if case.pause:
            length = round(case.pause * whole * (1 + case.jitter * rng.uniform(-1, 1)), 9)
            x, w = knots_of(
                "steps" if case.family in ("restless", "bursts") else case.family, length, case.rest, level, rng
            )
            add(x, w, now)
            level, now = w[-1], now + length
    phases[0] = ("training", began, now, -1)
    end = now + 0.5
    add([0.0, 0.6], [case.rest, case.rest], now)
    t = np.array(at)
    t[1:-1] += case.lag
    power = Power(t, np.array(first), np.array(last))
    write(path, case, power, phases, end, rng)
    return Made(path, case, power, phases, end)


def write(path: Path, case: Case, power: Power, phases, end: float, rng: np.random.Generator) -> None:
    s = case.sensor
    of_board = rng if case.board is None else np.random.default_rng(case.board)
    with h5py.File(path, "w") as f:
        f.attrs.update({
            "format": "powerd-run", "format_version": 1, "run_id": f"{path.stem}-{case.seed}", "created_utc": "2026-01-01T12:00:00Z",
            "powerd_version": "0.1.0", "host_clock": "CLOCK_MONOTONIC_RAW", "t_start_ns": 0, "t_stop_ns": round(end * 1e9),
            "complete": 1, "rebuilt": 0, "command": "[]", "environment": json.dumps({"host": "truth"}),
        })  # fmt: skip
        names = [f"gpu0.{'abcdefgh'[i]}" for i in range(s.lines)]
        if s.stagger:
            write_rails(f, names, s, power, end, case.missing, rng, of_board)
        else:
            write_lines(f, names, s, power, end, case.missing, rng, of_board)
        for beside in case.beside:
            write_lines(f, [f"gpu0.{beside.name}"], beside, power, end, 0.0, rng, of_board)
        f.create_group("devices/gpu0").attrs.update(
            {"feeds": np.array(names, dtype=h5py.string_dtype()), "description": ""}
        )
        kinds = list(dict.fromkeys(p[0] for p in phases))
        g = f.create_group("phases")
        g["begin_ns"] = np.array([round(p[1] * 1e9) for p in phases], np.int64)
        g["end_ns"] = np.array([round(p[2] * 1e9) for p in phases], np.int64)
        g["kind"] = np.array([kinds.index(p[0]) for p in phases], np.int32)
        g["parent"] = np.array([p[3] for p in phases], np.int64)
        g["process"], g["cut"] = np.zeros(len(phases), np.int32), np.zeros(len(phases), np.uint8)
        texts = [json.dumps({"name": k, "attributes": {}, "timing": "host"}) for k in kinds]
        g.create_dataset("kinds", data=texts, dtype=h5py.string_dtype())
        clock = f.create_group("clocks/b")
        clock.attrs.update({"board": "b", "epoch": 1, "drift_ppm": 0.0})
        clock["exchanges"], clock["map_piece"] = np.zeros((2, 4), np.int64), np.zeros(2, np.int32)
        clock["map"] = np.tile([0.0, -1000.0, 1000.0], (2, 1))
        clock["map_t_board_ns"] = np.array([0, round(end * 1e9)])
        gaps = f.create_group("gaps")
        for name in ("begin_ns", "end_ns", "lost"):
            gaps[name] = np.zeros(0, np.int64)
        for name in ("stream", "lines", "cause"):
            gaps.create_dataset(name, (0,), h5py.string_dtype())
        f.create_dataset("processes", data=['{"pid": 1}'], dtype=h5py.string_dtype())
        f.create_dataset("messages", (0,), h5py.string_dtype())


def write_rails(file: h5py.File, names: list[str], s: Sensor, power: Power, end: float, missing: float,
                rng: np.random.Generator, of_board: np.random.Generator) -> None:  # fmt: skip
    """One rail that hardly changes, one that gives no more than 60 W, and the rest in unlike parts; all together the
    power."""
    one, parts = replace(s, lines=1, u_offset=s.u_offset / len(names)), of_board.dirichlet(np.full(len(names) - 2, 4.0))

    def steady(w):
        return 3 + 0.01 * w

    def limited(w):
        return 60 * (1 - np.exp(-w / 120))

    def rest(part):
        return lambda w: part * (w - steady(w) - limited(w))

    begin = rng.uniform(0, s.period) + 0.02
    for i, (name, of) in enumerate(zip(names, [steady, limited, *map(rest, parts)], strict=True)):
        rail = Power(power.at, of(power.first), of(power.last))
        write_lines(file, [name], one, rail, end, missing, rng, of_board, begin + i * s.stagger)


def write_lines(file: h5py.File, names: list[str], s: Sensor, power: Power, end: float, missing: float,
                rng: np.random.Generator, of_board: np.random.Generator, offset_s: float | None = None) -> None:  # fmt: skip
    place, tau = of_board.uniform(-1, 1) * s.centre, s.low_pass * (1 + 0.05 * of_board.uniform(-1, 1))
    begin = rng.uniform(0, s.period) + 0.02
    for name in names:
        offset = begin + rng.uniform(0, s.period) / 3 if offset_s is None else offset_s
        t_ns = np.round((offset + np.arange(int((end - offset) / s.period)) * s.period) * 1e9).astype(np.int64)
        at = t_ns * 1e-9 + place
        if s.stays:
            stay = np.cumsum(rng.random(len(at)) < s.period / s.stays)
            at = np.maximum.accumulate(t_ns * 1e-9 + s.centre * rng.uniform(-1, 1, stay[-1] + 1)[stay])
        if s.counter:
            watts = None
        elif s.low_pass:
            watts = power.filtered(at + s.low_pass, tau)
        elif s.window:
            early = at - s.window / 2  # before the run power is what it is at its begin
            watts = (power.joules(at + s.window / 2) - power.joules(early)) / (at + s.window / 2 - early)
        else:
            watts = power.watts(at)
        gain, zero = (
            1 + np.sqrt(3) * s.u_gain * of_board.uniform(-1, 1),
            np.sqrt(3) * s.u_offset * of_board.uniform(-1, 1),
        )
        if watts is None:
            value = (power.joules(at) * gain + zero * at) / s.lines * 1e6
        else:
            value = ((watts * gain + zero) / s.lines + s.noise * rng.normal(size=len(at))) * 1e3
        keep = rng.random(len(at)) >= missing
        g = file.create_group(f"lines/{name}")
        conversion = {"kind": "counter", "column": "c", "j_per_code": 1e-6, "background_w": 0.0, "bits": 64} if s.counter \
            else {"kind": "scaled", "column": "c", "w_per_code": 1e-3}  # fmt: skip
        accuracy = {"u_gain": s.u_gain, "u_offset_w": s.u_offset / s.lines, "step_w": 1e-3, "window_ns": round(s.window * 1e9),
                    "centre_ns": round(s.centre * 1e9), "filter_ns": round(s.low_pass * 1e9)}  # fmt: skip
        accuracy = {k: v for k, v in accuracy.items() if v or k != "filter_ns"}
        g.attrs.update({
            "device": "gpu0", "source": "truth", "board": "b", "provenance": "simulated",
            "quantity": "energy_j" if s.counter else "power_w", "description": "", "period_ns": round(s.period * 1e9),
            "conversion": json.dumps(conversion), "accuracy": json.dumps(accuracy), "detail": "{}", "clock": "b",
        })  # fmt: skip
        g["t_board_ns"], g["t_ns"], g["flags"] = t_ns, t_ns, np.where(keep, 0, 8).astype(np.uint16)
        g["c"] = np.rint(value).astype(np.int64)


@dataclass(frozen=True)
class Figure:
    kind: str
    name: str
    error_j: float
    u95_j: float
    truth_j: float
    without_gain: float = 1.0

    @property
    def off(self) -> float:
        return self.error_j / self.u95_j if self.u95_j > 0 else np.sign(self.error_j) * np.inf


def score(made: Made, rng: np.random.Generator, singles: int = 12) -> tuple[list[Figure], int]:
    """The figures of a run's table against the truth, and how many were refused."""
    from powerd_analytics import phase_energies, phase_table, read_run

    run = read_run(made.path)
    table, each = phase_table(run), phase_energies(run, "gpu0")
    names = np.array([p[0] for p in made.phases])
    begin, end = (np.round(np.array([p[k] for p in made.phases]) * 1e9) * 1e-9 for k in (1, 2))
    truth = made.power.joules(end) - made.power.joules(begin)
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
        (r, float(np.diff(made.power.joules(np.array([0.0, made.end])))[0])) for r in table.runs
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


def random_case(seed: int) -> Case:
    rng = np.random.default_rng([seed, 17])
    length = float(rng.choice(LENGTHS)) * rng.uniform(0.85, 1.15)
    return Case(
        sensor=SENSORS[seed % len(SENSORS)],
        family=FAMILIES[(seed // len(SENSORS)) % len(FAMILIES)],
        iteration=length,
        pause=float(rng.choice([0.0, 0.0, 0.02, 0.05, 0.09])),
        missing=float(rng.choice([0.0, 0.0, 0.0, 0.07])),
        lag=float(rng.choice([0.0, 0.0, 0.3 * MS, 1.0 * MS])),
        seed=seed,
        seconds=float(np.clip(60 * length, 8, 60)),
    )


def grid_cases() -> list[Case]:
    cases = []
    for sensor in ("point 100/s", "window 25 of 100 ms", "chip 500/s", "point 1000/s"):
        s = replace(next(s for s in SENSORS if s.name == sensor), centre=0.0, noise=0.1)
        for half in (1, 2, 3, 4, 6, 7) if s.period > 5 * MS else (3, 4, 6, 7, 10):
            for off in (0.0007, 0.013):
                for family in ("steps", "ramps"):
                    cases.append(Case(s, family, s.period * half / 2 * (1 + off), 0.0, 0.02 if half % 2 else 0.0, seed=half, seconds=20,
                                      shares=(0.3, 0.7), watts=(450.0, 250.0), names=("forward", "backward")))  # fmt: skip
    return cases


def in_step_cases() -> list[Case]:
    alone = next(s for s in SENSORS if s.low_pass)
    counter = Sensor("counter", 1.0, counter=True, centre=100 * MS, noise=0.0)
    # An H200's lies 14 ms early for 9 s and 7 ms late from then on, or jumps by 10 ms now and then.
    instant = Sensor("instant", 100 * MS, low_pass=13.3 * MS, centre=13 * MS, noise=2.0, stays=8.0)
    return [
        Case(replace(alone, name=f"{alone.name}, {about}"), FAMILIES[seed % 5], length, jitter=0.0, seed=seed, seconds=30, shares=(0.35, 0.65),
             watts=(450.0, 300.0), names=("forward", "backward"), beside=beside)
        for about, beside in (("alone", ()), ("instant power", (instant,)), ("counter", (counter,)), ("all", (instant, counter)))
        for length in (20 * MS, 30 * MS, 40 * MS, 60 * MS, 80 * MS, 20.002 * MS)
        for seed in range(100, 110)
    ]  # fmt: skip


def short_cases() -> list[Case]:
    chip = next(s for s in SENSORS if s.name == "chip 500/s")
    return [
        Case(replace(chip, name=f"T = {length / MS:g} ms"), family, length, lag=lag, seed=seed, seconds=4.0)
        for length in (1 * MS, 2 * MS, 2.03 * MS, 3 * MS, 4 * MS, 4.13 * MS, 6 * MS, 6.13 * MS)
        for family in FAMILIES
        for lag in (0.0, 0.3 * MS)
        for seed in range(5000, 5004)
    ]


def update_case(seed: int) -> Case:
    """Points without noise or with little, exact in time, and updates of 6 to 20 ms."""
    rng = np.random.default_rng([seed, 23])
    sensor = Sensor("point 500/s", 2 * MS, noise=float(rng.choice([0.0, 0.3])))
    update, whole = rng.uniform(6, 20) * MS, float(rng.choice([74.3 * MS, 203 * MS, 0.71])) * rng.uniform(0.85, 1.15)
    others = np.array([0.10, 0.32, 0.48]) / 0.90 * (1 - update / whole)
    return Case(
        sensor, f"response {rng.uniform(0.3, 3):.2f}", whole, jitter=float(rng.choice([0.02, 0.1])),
        lag=float(rng.uniform(0, 1.2) * MS), seed=seed, shares=(*map(float, others), float(update / whole)),
    )  # fmt: skip


def rails_case(seed: int) -> Case:
    eight = Sensor("eight rails 500/s", 2 * MS, 1.06 * MS, centre=0.1 * MS, u_gain=0.005, lines=8, stagger=0.2 * MS)
    case = random_case(seed)
    return replace(case, sensor=eight, seconds=min(case.seconds, 10.0))


def pause_cases() -> list[Case]:
    cases = []
    for sensor in ("counter 10/s", "low-pass 50/s", "chip 500/s", "window 100 of 100 ms", "point 100/s"):
        s = next(s for s in SENSORS if s.name == sensor)
        for length in (10 * MS, 20 * MS, 50 * MS):
            for pause in (0.02, 0.05, 0.09):
                cases.append(Case(s, "steps", length, pause, 0.05, seed=int(pause * 100), shares=(1.0,), watts=(300.0,), names=("forward",),
                                  seconds=20))  # fmt: skip
    return cases


def pair_cases(count: int) -> list[tuple[Case, Case]]:
    """Two short runs of the same training on the same sensor each."""
    fast = [s for s in SENSORS if s.name in ("chip 500/s", "point 100/s", "counter 10/s", "low-pass 50/s")]
    pairs = []
    for i in range(count):
        sensor, length, pause = fast[i % 4], (13.1 * MS, 31 * MS, 48 * MS)[i // 4 % 3], (0.0, 0.02, 0.05)[i // 12 % 3]
        case = Case(sensor, FAMILIES[i // 36 % 5], length, pause, 0.05, seconds=4.0, shares=(0.4, 0.6), watts=(330.0, 250.0),
                    names=("forward", "backward"), drift=0.0, board=i)  # fmt: skip
        pairs.append((replace(case, seed=2 * i), replace(case, seed=2 * i + 1)))
    return pairs


def called_different(pair: tuple[Case, Case], folder: Path) -> dict[str, bool]:
    """For each phase whether its joules of two runs differ by more than the 95 % interval of the difference."""
    from powerd_analytics.compare import compare, run_samples

    a, b = (run_samples(make(folder / f"{name}.h5", case).path)[0] for name, case in zip("ab", pair, strict=True))
    rows = compare(a, b)
    phase = rows.names.index("phase")
    return {str(d.key[phase]): abs(d.change) > d.u95 for d in rows.rows if d.figure == "j_per_batch" and d.u95}


def report_pairs(count: int, first: int, folder: Path) -> None:
    different: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for pair in pair_cases(first + count)[first:]:
        for name, is_different in called_different(pair, folder).items():
            for sensor in ("", pair[0].sensor.name):
                different[sensor, name].append(is_different)
    for (sensor, name), all_of in sorted(different.items()):
        n, k = len(all_of), sum(all_of)
        low, high = stats.binomtest(k, n).proportion_ci()
        print(
            f"{sensor:14}{name:12} called different in {k} of {n} pairs, {k / n:.1%} (95 % interval {low:.1%} to {high:.1%})"
        )


def report_missing(count: int, first: int, folder: Path) -> None:
    """By sensor and kind of figure: how wide U95 is, each figure's error being taken in its own U95."""
    off: dict[tuple[str, str, float], list[float]] = defaultdict(list)
    for case in map(random_case, range(first, first + count)):
        for share in (0.0, 0.07):
            for f in score(make(folder / "run.h5", replace(case, missing=share)), np.random.default_rng(1))[0]:
                off[case.sensor.name, f.kind, share].append(f.off)
    print("U95 as a multiple of 1.96 times the root mean square error, 7 % of readings missing (none missing)")
    print(f"{'':24}" + "".join(f"{kind:>16}" for kind in KINDS))
    for name in dict.fromkeys(key[0] for key in off):
        wide = [
            [1 / (1.96 * np.sqrt(np.mean(np.square(off[name, kind, share])))) for share in (0.07, 0.0)]
            for kind in KINDS
        ]
        print(f"{name:24}" + "".join(f"{a:10.2f} ({b:.2f})" for a, b in wide), flush=True)


def report_signs(errors: dict[tuple[str, str], list[float]]) -> None:
    """By sensor and figure: errors [run], and how likely so many of one sign are by chance."""
    rows = []
    for (sensor, name), of_runs in errors.items():
        above = int(np.sum(np.array(of_runs) > 0))
        rows.append((stats.binomtest(above, len(of_runs)).pvalue, sensor, name, above, len(of_runs)))
    limit = 0.05 / max(len(rows), 1)
    beyond = [r for r in rows if r[0] < limit]
    print(
        f"\nsigns: {len(beyond)} of {len(rows)} classes of sensor and figure beyond chance (p < 0.05 / {len(rows)}); least:"
    )
    for p, sensor, name, above, n in sorted(rows)[:5]:
        print(f"  {sensor:22} {name:10} positive in {above} of {n} runs, p = {p:.2g}")


def report_updates(figures: dict[tuple[str, str], list[Figure]]) -> None:
    """Means of each kind of phase: the share inside U95 and the mean error."""
    print()
    for name in ("data", "forward", "backward", "update"):
        some = [f for fs in figures.values() for f in fs if (f.kind, f.name) == ("mean", name)]
        inside, error = np.mean([abs(f.off) <= 1 for f in some]), np.mean([f.error_j / f.truth_j for f in some])
        print(f"{name:10} {inside:7.1%} of {len(some)} means inside, mean error {error:+.3%}")


def report(figures: dict[tuple[str, str], list[Figure]], by: int, title: str) -> None:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="text in the sensor's or the family's name")
    parser.add_argument("--jitter", type=float, default=0.02, help="share by which lengths vary in the --runs")
    parser.add_argument("--grid", action="store_true")
    parser.add_argument("--pauses", action="store_true")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--in-step", action="store_true")
    parser.add_argument("--pairs", type=int, default=0)
    parser.add_argument("--missing", type=int, default=0)
    parser.add_argument("--updates", type=int, default=0)
    parser.add_argument("--rails", type=int, default=0)
    parser.add_argument("--list", action="store_true", help="every figure beyond 1.5 U95")
    args = parser.parse_args()
    cases = [replace(random_case(args.seed + i), jitter=args.jitter) for i in range(args.runs)]
    cases += grid_cases() if args.grid else []
    cases += pause_cases() if args.pauses else []
    cases += short_cases() if args.short else []
    cases += in_step_cases() if args.in_step else []
    cases += [update_case(args.seed + i) for i in range(args.updates)]
    cases += [rails_case(args.seed + i) for i in range(args.rails)]
    figures: dict[tuple[str, str], list[Figure]] = defaultdict(list)
    errors: dict[tuple[str, str], list[float]] = defaultdict(list)
    began, refused, rng = time.perf_counter(), 0, np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            if args.only not in case.sensor.name + " " + case.family:
                continue
            made = make(Path(folder) / "run.h5", case)
            found, none = score(made, rng)
            refused += none
            figures[case.sensor.name, case.family] += found
            for f in found:
                if f.kind != "single":
                    errors[case.sensor.name, f.name].append(f.error_j)
            if args.list:
                for f in found:
                    if abs(f.off) > 1.5 and f.kind in KINDS:
                        print(f"{case.sensor.name:22} {case.family:12} T={case.iteration * 1e3:8.3f} ms pause {case.pause:.2f} lag {case.lag * 1e3:.1f} "
                              f"miss {case.missing:.2f} seed {case.seed:4} {f.kind:9} {f.name:9} {f.off:+7.2f} U95  "
                              f"{100 * f.error_j / f.truth_j:+8.3f} %", flush=True)  # fmt: skip
    if figures:
        report(figures, 0, "sensor")
        if args.updates:
            report_updates(figures)
        else:
            report(figures, 1, "family")
        every = {("all", "all"): [f for fs in figures.values() for f in fs]}
        report(every, 0, "")
        report_signs(errors)
        print(f"{refused} figures refused; {time.perf_counter() - began:.0f} s")
    if args.pairs:
        with tempfile.TemporaryDirectory() as folder:
            report_pairs(args.pairs, args.seed, Path(folder))
    if args.missing:
        with tempfile.TemporaryDirectory() as folder:
            report_missing(args.missing, args.seed, Path(folder))


if __name__ == "__main__":
    main()
