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
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch
from bench_hooks import interval
from common import machine
from gpu_rounds import LEAST_TURNS, Tools, Writer, case, say
from gpu_show import show, slower

TARGET = 1.0
"""Per cent of an iteration."""
CASES = [(name, batch) for name in ("resnet34", "alexnet") for batch in (16, 64, 256)]
AFTER_TURNS_S = 20.0
"""What a case takes beside its turns, from its model to its run file."""


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
    found = "MISSED: " + "; ".join(missed) if missed else "not measured in full" if failed else "met"
    say(f"  target: all phases at most {TARGET:g} % slower: {found}")
    for text in failed:
        say(f"  FAILED: {text}")
    sys.exit(2 if failed else 1 if missed else 0)


if __name__ == "__main__":
    main()
