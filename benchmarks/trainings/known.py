"""Trainings of exactly known joules: run files made from the text of docs/reference/run-file.md.

Power is straight between knots, so that every joule, every window's mean and every low-pass is exact. Nothing of
powerd makes the run files, neither its simulator nor its estimator. Twelve sensors and five families of waveforms;
gain, zero, the windows' place and noise are drawn as a line states them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path

import h5py
import numpy as np

MS = 1e-3


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
    """Seconds between the readings of its lines, which then are unlike parts of the power, each with its own place."""


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
class Scenario:
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
    own_jitter: float = 1.0
    """How much the length of each phase varies beside that of its iteration, as a multiple of that."""
    by_length: float = 0.0
    """By how much more power a phase takes that is longer, as a multiple of how much longer it is."""
    random_pause: float = 0.0
    """Seconds that are waited behind every second iteration, on average: between none and twice as many."""
    slopes: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)
    """By how much power rises from the begin of each phase to its end, as a share of its mean."""
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


def knots_of(family: str, length: float, level: float, before: float, rng: np.random.Generator, slope: float = 0.0):
    """Moments since the phase began and watts there; two at one moment are a step."""
    if family == "slopes":
        rise = min(0.5 * MS, length / 4)
        return [0.0, rise, length], [before, level * (1 - slope / 2), level * (1 + slope / 2)]
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
class KnownRun:
    path: Path
    scenario: Scenario
    power: Power
    phases: list[tuple[str, float, float, int]]
    """Name, begin, end, number of the phase around it."""
    end: float


def make(path: Path, scenario: Scenario) -> KnownRun:
    rng = np.random.default_rng(scenario.seed)
    at, first, last = [0.0], [], []
    phases: list[tuple[str, float, float, int]] = []

    def add(x, w, begin):
        for x0, x1, w0, w1 in zip(x[:-1], x[1:], w[:-1], w[1:], strict=True):
            if x1 - x0 > 1e-9:
                at.append(begin + x1)
                first.append(w0)
                last.append(w1)

    now, level = 0.5 + rng.uniform(0, 0.1), scenario.rest
    add([0.0, now], [level, level], 0.0)
    phases.append(("training", now, now, -1))
    began = now
    slow, has_waited = 1.0, False
    while now - began < scenario.seconds:
        outer = len(phases)
        phases.append(("iteration", now, now, 0))
        whole = scenario.iteration * (1 + scenario.jitter * rng.uniform(-1, 1))
        slow *= 1 + scenario.drift * rng.normal() if scenario.family == "restless" else 1.0
        of_kinds = zip(scenario.names, scenario.shares, scenario.watts, scenario.slopes, strict=False)
        for name, share, watts, slope in of_kinds:
            own = scenario.jitter * scenario.own_jitter
            length = round(whole * share * (1 + own * rng.uniform(-1, 1)), 9)
            longer = length / (scenario.iteration * share) - 1
            own_watts = watts * slow * (1 + scenario.by_length * longer)
            x, w = knots_of(scenario.family, length, own_watts, level, rng, slope)
            add(x, w, now)
            phases.append((name, now, now + length, outer))
            level, now = w[-1], now + length
        phases[outer] = ("iteration", phases[outer][1], now, 0)
        length = 0.0
        if scenario.pause:
            length = round(scenario.pause * whole * (1 + scenario.jitter * rng.uniform(-1, 1)), 9)
        elif scenario.random_pause and (has_waited := not has_waited):
            length = round(scenario.random_pause * rng.uniform(0, 2), 9)
        if length:
            x, w = knots_of(
                "steps" if scenario.family in ("restless", "bursts", "slopes") else scenario.family,
                length,
                scenario.rest,
                level,
                rng,
            )
            add(x, w, now)
            level, now = w[-1], now + length
    phases[0] = ("training", began, now, -1)
    end = now + 0.5
    add([0.0, 0.6], [scenario.rest, scenario.rest], now)
    t = np.array(at)
    t[1:-1] += scenario.lag
    power = Power(t, np.array(first), np.array(last))
    write(path, scenario, power, phases, end, rng)
    return KnownRun(path, scenario, power, phases, end)


def write(path: Path, scenario: Scenario, power: Power, phases, end: float, rng: np.random.Generator) -> None:
    s = scenario.sensor
    of_board = rng if scenario.board is None else np.random.default_rng(scenario.board)
    with h5py.File(path, "w") as f:
        f.attrs.update(
            {
                "format": "powerd-run", "format_version": 1, "run_id": f"{path.stem}-{scenario.seed}",
                "created_utc": "2026-01-01T12:00:00Z", "powerd_version": "0.1.0", "host_clock": "CLOCK_MONOTONIC_RAW",
                "t_start_ns": 0, "t_stop_ns": round(end * 1e9), "complete": 1, "rebuilt": 0, "command": "[]",
                "environment": json.dumps({"host": "truth"}),
            }
        )  # fmt: skip
        names = [f"gpu0.{'abcdefgh'[i]}" for i in range(s.lines)]
        if s.stagger:
            write_rails(f, names, s, power, end, scenario.missing, rng, of_board)
        else:
            write_lines(f, names, s, power, end, scenario.missing, rng, of_board)
        for beside in scenario.beside:
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


def write_rails(
    file: h5py.File, names: list[str], s: Sensor, power: Power, end: float, missing: float,
    rng: np.random.Generator, of_board: np.random.Generator,
) -> None:  # fmt: skip
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


def write_lines(
    file: h5py.File, names: list[str], s: Sensor, power: Power, end: float, missing: float,
    rng: np.random.Generator, of_board: np.random.Generator, offset_s: float | None = None,
) -> None:  # fmt: skip
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
        conversion = (
            {"kind": "counter", "column": "c", "j_per_code": 1e-6, "background_w": 0.0, "bits": 64}
            if s.counter
            else {"kind": "scaled", "column": "c", "w_per_code": 1e-3}
        )
        accuracy = {
            "u_gain": s.u_gain, "u_offset_w": s.u_offset / s.lines, "step_w": 1e-3,
            "window_ns": round(s.window * 1e9), "centre_ns": round(s.centre * 1e9),
            "filter_ns": round(s.low_pass * 1e9),
        }  # fmt: skip
        accuracy = {k: v for k, v in accuracy.items() if v or k != "filter_ns"}
        g.attrs.update(
            {
                "device": "gpu0", "source": "truth", "board": "b", "provenance": "simulated",
                "quantity": "energy_j" if s.counter else "power_w", "description": "",
                "period_ns": round(s.period * 1e9), "conversion": json.dumps(conversion),
                "accuracy": json.dumps(accuracy), "detail": "{}", "clock": "b",
            }
        )  # fmt: skip
        g["t_board_ns"], g["t_ns"], g["flags"] = t_ns, t_ns, np.where(keep, 0, 8).astype(np.uint16)
        g["c"] = np.rint(value).astype(np.int64)
