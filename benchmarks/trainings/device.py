"""Phases on a GPU: what they cost an iteration, and whether their joules are right, beside Zeus in the same run.

ResNet-34 and AlexNet at three batch sizes. Rounds of the plain loop, of powerd's phases (by hand, by `Meter.watch`,
with every layer) and of Zeus's windows around the same three phases take turns, in an order that chance sets anew each
time; each is held against the plain round of its turn. Then one stretch between two renewals of the driver's energy
counter says what phases + rest miss of it, and pairs without any powerd running say what Zeus costs alone.

Zeus 0.16 waits for the GPU at both edges of a window and reads the energy counter there, which the driver renews about
every 100 ms on an H200. Needs CUDA, and Zeus (pip install zeus) for its half; says so where one is missing. Target: at
most 1 % of an iteration by hand and by `watch()`. Exit status 1 when it is missed.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import median_interval
from trainings.case import Case
from trainings.training import PHASES, UNTIMED, WARM_UP_S, Step, Training, say

from powerd_analytics import read_run
from powerd_analytics.energy.devices import interval_energies, load_parts, part_phase_energies
from powerd_client import Meter
from powerd_client.host.hostclock import now_ns

try:
    from zeus.monitor import ZeusMonitor
except ImportError:
    ZeusMonitor = None

MODES = {"phases": "phases by hand, 8 marks", "watch": "watch(), 6 marks", "layers": "with layers", "zeus": "Zeus"}
TARGET = 1.0
"""Per cent of an iteration."""
ALONE_TURNS = 5
STRETCH_S = 5.0
"""Of training against the counter."""


# --- The driver's energy counter, and Zeus


class EnergyCounter:
    """The driver's counter of the joules of the GPU with this UUID (``GPU-…`` or without that)."""

    def __init__(self, uuid: str) -> None:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
        self.read_mj: Callable[[], int] = lambda: int(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle))

    def renewed(self, times: int = 2, timeout_s: float = 4.0) -> tuple[int, int]:
        """Host time and millijoules where the counter was renewed so often. Raises `TimeoutError`.

        It may be late by one renewal: behind the second, all that was counted was drawn by an idle GPU.
        """
        deadline = time.monotonic() + timeout_s
        last_mj, before = self.read_mj(), now_ns()
        while True:
            counted_mj, after = self.read_mj(), now_ns()
            if counted_mj != last_mj:
                times -= 1
                if not times:
                    return (before + after) // 2, counted_mj
            if time.monotonic() > deadline:
                raise TimeoutError("the energy counter stands still")
            last_mj, before = counted_mj, after


class ZeusWindows:
    """Windows of a `ZeusMonitor`, their seconds and joules by name, and what the counter said of the same rounds."""

    def __init__(self, monitor: Any) -> None:
        self.monitor = monitor
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.joules: dict[str, list[float]] = defaultdict(list)
        self.counter_j = 0.0
        self.is_counting = False

    def end(self, name: str) -> None:
        measurement = self.monitor.end_window(name)
        if self.is_counting:
            self.seconds[name].append(measurement.time)
            self.joules[name].append(float(sum(measurement.gpu_energy.values())))

    @property
    def share(self) -> float:
        """Of the counter's joules that the windows have."""
        return sum(map(sum, self.joules.values())) / self.counter_j


# --- One training that is timed in several ways


def windowed(training: Training, zeus: ZeusWindows) -> Step:
    """One iteration with Zeus's windows around the same three phases, as its documentation shows them."""
    begin, end = zeus.monitor.begin_window, zeus.end

    def step() -> None:
        begin("forward")
        loss = training.loss()
        end("forward")
        begin("backward")
        loss.backward()
        end("backward")
        begin("update")
        training.update()
        end("update")

    return step


@contextmanager
def marked(meter: Meter, training: Training, mode: str) -> Iterator[Step]:
    """The step of a mode, inside a phase that names model, batch size and mode, with its hooks."""
    with meter.phase("training", model=training.name, batch_size=training.batch, mode=mode):
        if mode in ("watch", "layers"):
            with meter.watch(training.model, training.optimizer, layers=mode == "layers"):
                yield training.plain
        else:
            yield training.phased(meter)
        training.wait()


class Rounds:
    """Rounds of one training in turn."""

    def __init__(self, training: Training, counter: EnergyCounter, zeus: ZeusWindows | None, ms: float) -> None:
        self.training, self.counter, self.zeus, self.milliseconds = training, counter, zeus, ms
        self.ms: dict[str, list[float]] = defaultdict(list)
        """A step's, of each mode, turn by turn."""
        self.count: dict[str, int] = {}

    def run(self, meter: Meter | None, modes: list[str], turns: int) -> None:
        plain, order = self.training.count_for(self.training.plain, self.milliseconds), random.Random(5)
        self.count = dict.fromkeys(modes, plain)
        if self.zeus is not None:
            # Zeus's iterations can be ten times as long: fewer of them take as long.
            self.count["zeus"] = self.training.count_for(windowed(self.training, self.zeus), self.milliseconds)
        for _ in range(turns):
            for mode in order.sample(modes, len(modes)):
                self.ms[mode].append(self._round(meter, mode))

    def _round(self, meter: Meter | None, mode: str) -> float:
        """Milliseconds a step."""
        training, count = self.training, self.count[mode]
        if mode == "zeus":
            assert self.zeus is not None
            step = windowed(training, self.zeus)
            training.steps(step, UNTIMED)
            before_mj, self.zeus.is_counting = self.counter.read_mj(), True
            ms = training.ms_per_step(step, count)
            self.zeus.is_counting = False
            self.zeus.counter_j += (self.counter.read_mj() - before_mj) / 1e3
            return ms
        with nullcontext(training.plain) if mode == "plain" or meter is None else marked(meter, training, mode) as step:
            training.steps(step, UNTIMED)
            return training.ms_per_step(step, count)

    def slower(self, mode: str) -> list[float]:
        """Per cent that each round of a mode took longer than the plain one of its turn."""
        return [(b / a - 1) * 100 for a, b in zip(self.ms["plain"], self.ms[mode], strict=True)]

    def show(self, mode: str, text: str) -> None:
        values = self.slower(mode)
        middle, low, high = median_interval(values)
        say(
            f"    {text:24} {middle:+8.2f} % (95 %: {low:+.2f} .. {high:+.2f}; "
            f"all: {min(values):+.2f} .. {max(values):+.2f})"
        )


# --- One model at one batch size


def judge_one(
    path: Path, name: str, batch: int, counter: EnergyCounter, zeus: ZeusWindows | None, args: argparse.Namespace
) -> bool:
    """Everything about it in words; whether its phases cost no more than the target."""
    training = Training(name, batch, torch.device("cuda"))
    training.warm_up(WARM_UP_S)
    rounds = Rounds(training, counter, zeus, args.milliseconds)
    alone = Rounds(training, counter, ZeusWindows(zeus.monitor) if zeus else None, args.milliseconds)
    modes = [mode for mode in ("plain", *MODES) if mode != "zeus" or zeus]
    with Meter(out=path, overwrite=True) as meter:
        rounds.run(meter, modes, args.pairs)
        training.wait()
        first = counter.renewed()
        with marked(meter, training, "energy") as step:
            end = time.perf_counter() + STRETCH_S
            while time.perf_counter() < end:
                training.steps(step, rounds.count["plain"])
        last = counter.renewed()
        time.sleep(0.3)  # readings behind the last moment that is asked for
    plain = statistics.median(rounds.ms["plain"])
    say(f"  {name}, batch {batch}: plain {plain:.3f} ms an iteration, {args.pairs} pairs")
    for mode in modes[1:]:
        rounds.show(mode, MODES[mode])
    layer_phases = show_run(path, first, last)
    marks = 2 * layer_phases / (args.pairs * (rounds.count["layers"] + UNTIMED))
    more_us = [(b - a) * 1e3 for a, b in zip(rounds.ms["plain"], rounds.ms["layers"], strict=True)]
    middle, low, high = median_interval(more_us)
    say(
        f"    {marks:.0f} marks of layers with their hooks: {middle:+.1f} us an iteration (95 %: {low:+.1f} .. "
        f"{high:+.1f}), {1e3 * middle / marks:.0f} ns a mark ({1e3 * low / marks:.0f} .. {1e3 * high / marks:.0f})"
    )
    if zeus is not None and alone.zeus is not None:
        alone.run(None, ["plain", "zeus"], ALONE_TURNS)
        alone.show("zeus", "Zeus without powerd")
        waited = " / ".join(f"{1e3 * statistics.mean(zeus.seconds[p]):.3f}" for p in PHASES)
        zeros = ", ".join(f"{p} {zeus.joules[p].count(0.0)} of {len(zeus.joules[p])}" for p in PHASES)
        say(f"    Zeus: windows of 0 J: {zeros}; {' / '.join(PHASES)} in ms by its waiting: {waited}")
        say(
            f"    Zeus: sum of its phases = {zeus.share:.4f} of the counter's {zeus.counter_j:.1f} J over the same "
            f"rounds; without powerd {alone.zeus.share:.4f}"
        )
    return max(statistics.median(rounds.slower(mode)) for mode in ("phases", "watch")) <= TARGET


def show_run(path: Path, first: tuple[int, int], last: tuple[int, int]) -> int:
    """Print what powerd's run file says, and its joules against the counter's between two readings of that.

    Iterations with joules are those of the mode ``energy``, which lie between the readings; durations are of the mode
    ``phases``. Returns how many phases of layers there are.
    """
    run = read_run(path)
    part = next(p for p in load_parts(run) if p.device.startswith("gpu"))
    columns, p = part_phase_energies(run, part), run.phases
    modes = np.array([p.classes[label].attributes.get("mode", "") for label in p.label])
    names = np.array([p.classes[label].name for label in p.label])
    of_energy, of_time = (modes == "energy") & ~p.cut, (modes == "phases") & ~p.cut
    resolved = []
    for name in ("iteration", *PHASES):
        of_name = of_energy & (names == name)
        resolved.append(f"{name} {int((of_name & columns.resolvable).sum())} of {int(of_name.sum())}")
    timing = ", ".join(sorted({c.timing for c in p.classes}))
    say(f"    powerd: phases with joules: {', '.join(resolved)} (timed by {timing})")
    ms = [1e3 * float(np.median(columns.duration_s[of_time & (names == name)])) for name in PHASES]
    say(f"    powerd: {' / '.join(PHASES)} in ms by events: {' / '.join(f'{x:.3f}' for x in ms)}")

    begin, end = np.array([first[0]]), np.array([last[0]])
    whole = interval_energies(part, begin, end, is_whole=True)
    u95_j = 2 * float(np.hypot(whole.u_random_j[0], whole.u_systematic_j[0]))
    chosen = of_energy & (names == "iteration") & columns.resolvable & (p.begin_ns >= begin[0]) & (p.end_ns <= end[0])
    counted_j = (last[1] - first[1]) / 1e3
    if chosen.any():
        phases_j = float(columns.energy_j[chosen].sum())
        rest_j = float(whole.energy_j[0]) - phases_j
        say(
            f"    powerd: {int(chosen.sum())} iterations {phases_j:.1f} J + rest {rest_j:.1f} J = "
            f"{(phases_j + rest_j) / counted_j:.4f} of the counter's {counted_j:.1f} J in "
            f"{(end[0] - begin[0]) * 1e-9:.2f} s (± {u95_j:.0f} J stated)"
        )
    for name, clock in run.clocks.items():
        if len(clock.half_width_ns):
            median_us, largest_us = np.median(clock.half_width_ns) / 1e3, clock.half_width_ns.max() / 1e3
            say(f"    clock {name}: ± {median_us:.1f} us (median), ± {largest_us:.1f} us (largest)")
    for message in run.messages:
        if message.get("level") in ("warning", "error"):
            say(f"    the run says: {message['text']}")
    return int(((modes == "layers") & (names != "training")).sum())


def judge(args: argparse.Namespace, folder: Path) -> bool:
    """Every model at every batch size; whether all phases cost no more than the target."""
    if ZeusMonitor is None:
        say("  no Zeus here (pip install zeus)")
    # Said once a window of 0 J; they are counted here.
    warnings.filterwarnings("ignore", message="The energy consumption of one or more GPUs was measured as zero")
    counter, missed = EnergyCounter(str(torch.cuda.get_device_properties(0).uuid)), []
    for name in args.models:
        for batch in args.batch:
            zeus = None
            if ZeusMonitor is not None:
                zeus = ZeusWindows(ZeusMonitor([torch.cuda.current_device()], cpu_indices=[]))
            if not judge_one(folder / "run.h5", name, batch, counter, zeus, args):
                missed.append(f"{name} {batch}")
    say(f"  target: all phases at most {TARGET:g} % slower: {'MISSED: ' + '; '.join(missed) if missed else 'met'}")
    return not missed


CASES = {
    "device": Case(
        "phases against the plain loop", judge,
        {"models": ["resnet34", "alexnet"], "batch": [16, 64, 256], "pairs": 15, "milliseconds": 400.0}, on_gpu=True,
    )
}  # fmt: skip
