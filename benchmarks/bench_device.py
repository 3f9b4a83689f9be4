"""Phases on a GPU: what they cost an iteration, and whether their joules are right, beside Zeus in the same run.

ResNet-34 and AlexNet at three batch sizes. Rounds of the plain loop, of powerd's phases (by hand, by `Meter.watch`,
with every layer) and of Zeus's windows around the same three phases take turns, in an order that chance sets anew each
time; each is held against the plain round of its turn. Then one stretch between two renewals of the driver's energy
counter says what phases + rest miss of it, and pairs without any powerd running say what Zeus costs alone.

Needs CUDA, and Zeus (pip install zeus) for its half; says so where one is missing. `--dry-run` tries everything on the
CPU with a stand-in for the counter and for Zeus: its figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from bench_hooks import interval
from common import machine
from gpu_energy import account
from gpu_training import PHASES, UNTIMED, Step, Training, marked
from gpu_zeus import Account, EnergyCounter, Reading, SteppedCounter, SteppedMonitor, Windows, not_measured

from powerd_client import Meter

TARGET = 1.0
"""Per cent of an iteration."""
OURS = ("phases", "watch", "layers")
LEAST_TURNS = 5
CASES = [(name, batch) for name in ("resnet34", "alexnet") for batch in (16, 64, 256)]
AFTER_TURNS_S = 20.0
"""What a case takes beside its turns, from its model to its run file."""


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


Writer = Callable[[dict[str, Any]], None]


def say(text: str) -> None:
    print(text, flush=True)


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


def slower(ms: dict[str, list[float]], mode: str) -> list[float]:
    """Per cent that each round of a mode took longer than the plain one of its turn."""
    return [(b / a - 1) * 100 for a, b in zip(ms["plain"], ms[mode], strict=True)]


def spread(values: list[float], unit: str = " %") -> str:
    middle, low, high = interval(values)
    return f"{middle:+8.2f}{unit} (95 %: {low:+.2f} .. {high:+.2f}; all: {min(values):+.2f} .. {max(values):+.2f})"


def show(result: dict[str, Any]) -> None:
    """One case in words."""
    ms, ours, zeus = result["ms"], result["ours"], result["zeus"]
    plain = statistics.median(ms["plain"])
    say(f"  {result['model']}, batch {result['batch']}: plain {plain:.3f} ms an iteration, {len(ms['plain'])} pairs")
    for mode, text in (("phases", "phases by hand, 8 marks"), ("watch", "watch(), 6 marks"), ("layers", "with layers")):
        say(f"    {text:24} {spread(slower(ms, mode))}")
    marks = result["marks_with_layers"]
    more_us = [(b - a) * 1e3 for a, b in zip(ms["plain"], ms["layers"], strict=True)]
    middle, low, high = interval(more_us)
    say(
        f"    {'':24} {middle:+.1f} us an iteration (95 %: {low:+.1f} .. {high:+.1f}) for {marks:.0f} marks with their "
        f"hooks: {1e3 * middle / marks:.0f} ns a mark ({1e3 * low / marks:.0f} .. {1e3 * high / marks:.0f})"
    )
    if "zeus" in ms:
        _show_zeus(result, plain)
    else:
        say(f"    {'Zeus':24} not measured: {zeus['not_measured']}")
    phases = ours["phases"]
    said = ", ".join(f"{n} {p['resolvable']} of {p['count']}" for n, p in phases.items())
    say(f"    powerd: phases with joules: {said} (timed by {', '.join(ours['timing'])})")
    if ours.get("sum_per_counter") is not None:
        count = phases["iteration"]["count"]
        say(
            f"    powerd: {count} iterations {ours['phases_j']:.1f} J + rest {ours['rest_j']:.1f} J = "
            f"{ours['sum_per_counter']:.4f} of the counter's {ours['counter_j']:.1f} J in {ours['stretch_s']:.2f} s "
            f"(± {ours['u95_j']:.0f} J stated)"
        )
    by_events = " / ".join(_ms(phases[n]["ms"]) for n in PHASES)
    by_waiting = "–" if "zeus" not in ms else " / ".join(_ms(_mean_ms(zeus, n)) for n in PHASES)
    say(f"    forward / backward / update in ms: {by_events} by events; {by_waiting} by Zeus's waiting")
    for name, bound in ours["clocks"].items():
        say(f"    clock {name}: ± {bound['median_us']:.1f} us (median), ± {bound['largest_us']:.1f} us (largest)")
    for text in (*ours["host_only"], *ours["warnings"]):
        say(f"    the run says: {text}")


def _show_zeus(result: dict[str, Any], plain_ms: float) -> None:
    zeus, alone = result["zeus"], result["alone_ms"]
    say(f"    {'Zeus, 3 windows':24} {spread(slower(result['ms'], 'zeus'))}")
    middle = statistics.median(alone["plain"])
    say(
        f"    {'  without powerd':24} {spread(slower(alone, 'zeus'))}; the plain loop takes {middle:.3f} ms there, "
        f"{(plain_ms / middle - 1) * 100:+.2f} % with powerd's readings beside it (not in pairs)"
    )
    zeros = ", ".join(f"{n} {zeus['zeros'].get(n, 0)} of {zeus['windows'][n]}" for n in PHASES)
    say(f"    Zeus: windows of 0 J: {zeros}")
    if zeus["sum_per_counter"] is not None:
        say(
            f"    Zeus: sum of its phases {zeus['sum_j']:.1f} J = {zeus['sum_per_counter']:.4f} of the counter's "
            f"{zeus['counter_j']:.1f} J over the same rounds; "
            f"without powerd {result['alone_zeus']['sum_per_counter']:.4f}"
        )


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _mean_ms(zeus: dict[str, Any], name: str) -> float | None:
    return zeus["time_s"][name] / zeus["windows"][name] * 1e3 if zeus["windows"].get(name) else None


def writer(directory: Path | None, name: str) -> Writer:
    """Appends a result to ``DIRECTORY/name``, at once."""
    if directory is None:
        return lambda result: None
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name

    def write(result: dict[str, Any]) -> None:
        with path.open("a") as file:
            file.write(json.dumps(result) + "\n")

    return write


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=15, help=f"turns of each case, {LEAST_TURNS} at least")
    parser.add_argument("--milliseconds", type=float, default=400.0, help="of each round")
    parser.add_argument("--stretch", type=float, default=5.0, help="seconds of training against the counter")
    parser.add_argument("--warm-up", type=float, default=1.5, help="seconds before each case")
    parser.add_argument("--seconds", type=float, default=3600.0, help="for all cases: later ones take fewer turns")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write bench_device.jsonl there, a line for each case")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, with stand-ins; its figures mean nothing")
    return parser.parse_args()


def main() -> None:
    args, cases = arguments(), CASES
    if args.dry_run:
        tools, cases = Tools.stand_ins(), [("small-cnn", 4), ("small-cnn", 8)]
    elif torch.cuda.is_available():
        tools = Tools.of_gpu()
    else:
        print("device-timed phases: no CUDA here, nothing was measured")
        return
    what = "stand-ins, nothing is measured" if args.dry_run else f"one {torch.cuda.get_device_name()}"
    say(f"phases against the plain loop: {what} ({machine()}, PyTorch {torch.__version__})")
    for name, reason in tools.lacking.items():
        say(f"  no {name}: {reason}")
    write, end_s = writer(args.out, "bench_device.jsonl"), time.monotonic() + args.seconds
    missed, failed = [], []
    for number, (name, batch) in enumerate(cases):
        say(f"  case {number + 1} of {len(cases)}: {name}, batch {batch}")
        turns_s = (end_s - time.monotonic()) / (len(cases) - number) - AFTER_TURNS_S
        try:
            result = case(name, batch, tools, args, turns_s, write)
        except Exception as error:  # noqa: BLE001  (the other cases are still worth their time)
            traceback.print_exc()
            failed.append(f"{name} {batch}: {type(error).__name__}: {error}")
            say(f"  FAILED: {failed[-1]}")
            continue
        write(result)
        show(result)
        for mode in ("phases", "watch"):
            middle, low, high = interval(slower(result["ms"], mode))
            if middle > TARGET:
                missed.append(f"{name} {batch} {mode} {middle:+.2f} % ({low:+.2f} .. {high:+.2f})")
    say(f"  target: all phases at most {TARGET:g} % slower: {'MISSED: ' + '; '.join(missed) if missed else 'met'}")
    for text in failed:
        say(f"  FAILED: {text}")
    sys.exit(2 if failed else 1 if missed else 0)


if __name__ == "__main__":
    main()
