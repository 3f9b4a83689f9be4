"""Rounds of one training in turn: plain, with powerd's phases, hooks and layers, with Zeus's windows; then a stretch
between two renewals of the driver's energy counter."""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from gpu_energy import account
from gpu_training import UNTIMED, Step, Training, marked
from gpu_zeus import Account, EnergyCounter, Reading, SteppedCounter, SteppedMonitor, Windows, not_measured

from powerd_client import Meter

OURS = ("phases", "watch", "layers")
LEAST_TURNS = 5

Writer = Callable[[dict[str, Any]], None]


def say(text: str) -> None:
    print(text, flush=True)


@dataclass(slots=True)
class Tools:
    """What a case needs of the machine."""

    device: torch.device
    counter: EnergyCounter | None
    windows: Windows | None
    lacking: dict[str, str] = field(default_factory=dict)
    """What could not be had, and why."""

    @classmethod
    def of_gpu(cls) -> Tools:
        found = cls(torch.device("cuda"), None, None)
        try:
            found.counter = EnergyCounter.of_gpu(str(torch.cuda.get_device_properties(0).uuid))
            found.counter.read_j()
        except Exception as error:  # noqa: BLE001  (the rest can be measured without it)
            found.counter = None
            found.lacking["counter"] = f"{type(error).__name__}: {error}"
        try:
            found.windows = Windows.of_gpu(torch.cuda.current_device())
            found.windows.begin("try")
            found.windows.end("try")
            found.windows.take()
        except Exception as error:  # noqa: BLE001  (as above)
            found.windows = None
            found.lacking["zeus"] = f"{type(error).__name__}: {error}"
        return found

    @classmethod
    def stand_ins(cls) -> Tools:
        read = SteppedCounter()
        return cls(torch.device("cpu"), EnergyCounter(read), Windows(SteppedMonitor(read)))


def rounds(
    training: Training,
    meter: Meter | None,
    tools: Tools,
    modes: list[str],
    turns: int,
    milliseconds: float,
    end_s: float,
) -> tuple[dict[str, list[float]], dict[str, int], Account]:
    """Milliseconds a step of each mode, turn by turn; steps a round; what Zeus's windows added up to."""
    found: dict[str, list[float]] = {mode: [] for mode in modes}
    count = {mode: training.count_for(training.plain, milliseconds) for mode in modes}
    zeus, order = Account(), random.Random(5)
    if "zeus" in modes and tools.windows is not None:
        # Zeus's iterations can be ten times as long: fewer of them take as long.
        count["zeus"] = training.count_for(training.windowed(tools.windows), milliseconds)
        tools.windows.take()
    for turn in range(turns):
        if turn >= LEAST_TURNS and time.monotonic() > end_s:
            break
        for mode in order.sample(modes, len(modes)):
            found[mode].append(_round(training, meter, tools, mode, count[mode], zeus))
    return found, count, zeus


def _round(training: Training, meter: Meter | None, tools: Tools, mode: str, count: int, zeus: Account) -> float:
    """Milliseconds a step of one round."""
    if mode == "zeus":
        assert tools.windows is not None
        step = training.windowed(tools.windows)
        repeat(step, UNTIMED)
        tools.windows.take()
        training.wait()
        before_j = tools.counter.read_j() if tools.counter else 0.0
        ms = training.ms_per_step(step, count)
        after_j = tools.counter.read_j() if tools.counter else 0.0
        zeus.add(tools.windows.take(), after_j - before_j)
        return ms
    if mode == "plain":
        repeat(training.plain, UNTIMED)
        return training.ms_per_step(training.plain, count)
    assert meter is not None
    with marked(meter, training, mode) as step:
        repeat(step, UNTIMED)
        return training.ms_per_step(step, count)


def repeat(step: Step, count: int) -> None:
    for _ in range(count):
        step()


def stretch(
    training: Training, meter: Meter, counter: EnergyCounter, seconds: float, count: int
) -> tuple[Reading, Reading]:
    """Train with phases for so long, ``count`` steps at a time, between two readings of the counter on an idle GPU."""
    training.wait()
    first = counter.renewed()
    with marked(meter, training, "energy") as step:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            training.ms_per_step(step, count)
    last = counter.renewed()
    time.sleep(0.3)  # readings behind the last moment that is asked for
    return first, last


def case(
    name: str, batch: int, tools: Tools, args: argparse.Namespace, turns_s: float, write: Writer
) -> dict[str, Any]:
    """Everything about one model at one batch size."""
    result: dict[str, Any] = {"model": name, "batch": batch, "lacking": tools.lacking}
    training = Training(name, batch, tools.device)
    training.warm_up(args.warm_up)
    modes = ["plain", *OURS, *(["zeus"] if tools.windows else [])]
    first = last = None
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "run.h5"
        with Meter(out=out) as meter:
            say(f"    powerd runs; turns of {', '.join(modes)}")
            result["ms"], result["steps"], zeus = rounds(
                training, meter, tools, modes, args.pairs, args.milliseconds, time.monotonic() + turns_s
            )
            if tools.counter is not None:
                say("    stretch between two renewals of the counter")
                try:
                    first, last = stretch(training, meter, tools.counter, args.stretch, result["steps"]["plain"])
                except TimeoutError as error:
                    result["lacking"] = {**tools.lacking, "stretch": str(error)}
        say("    reading the run file")
        try:
            result["ours"] = account(out, first, last)
        except Exception:
            if args.out is not None:
                shutil.copy(out, args.out / f"{name}-{batch}.h5")
                write(result | {"zeus": zeus.document()})
            raise
    result["zeus"] = zeus.document() if tools.windows else not_measured(tools.lacking.get("zeus", ""))
    turns = len(result["ms"]["layers"])
    steps = turns * (result["steps"]["layers"] + UNTIMED)
    result["marks_with_layers"] = 2 * result["ours"]["layer_phases"] / steps
    if tools.windows is not None:
        say("    Zeus and the plain loop without powerd")
        alone = rounds(training, None, tools, ["plain", "zeus"], LEAST_TURNS, args.milliseconds, time.monotonic())
        result["alone_ms"], result["alone_zeus"] = alone[0], alone[2].document()
    return result
