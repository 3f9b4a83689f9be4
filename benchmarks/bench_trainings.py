"""Are the joules of trainings right? A case is a kind of trainings and the truth that they are held against.

    python benchmarks/bench_trainings.py                        every case with its defaults
    python benchmarks/bench_trainings.py CASE [options]         one
    python benchmarks/bench_trainings.py CASE --help            what it does, and its options

Made here, with exactly known joules: random, grid, pauses, short, in-step, updates, plain, corr, vary, ramp, alt3,
rails, pairs, missing. On the simulated board in real time, against the joules of its load: board. On a GPU: device
(cost of marks, joules against the driver's counter), edges (against torch.profiler), magnify and turns (against blocks
of the same phase alone), ranks (of DDP, also on the CPU; against the sums). Exit status 1 when a target is
missed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path

from common import machine, options
from trainings.case import Case

_EXACT = "random grid pauses short in-step updates plain corr vary ramp alt3 rails pairs missing"
CASES = {
    **dict.fromkeys(_EXACT.split(), "trainings.truth"),
    **{name: f"trainings.{name}" for name in ("board", "device", "edges", "magnify", "turns", "ranks")},
}
"""The module of each case; only that of the one that runs is loaded."""


def load(name: str) -> tuple[Case, str | None]:
    """A case, and the documentation of its module."""
    module = import_module(CASES[name])
    return module.CASES[name], module.__doc__


def place(case: Case, device: str) -> str | None:
    """What the trainings run on, in words; None where they need a GPU and there is none."""
    if not case.on_gpu and device != "cuda":
        return machine()
    import torch

    if not torch.cuda.is_available():
        return None
    return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}, {machine()}, PyTorch {torch.__version__}"


def run(name: str, words: list[str]) -> int:
    """Exit status of one case."""
    case, about = load(name)
    args = options(about, words, f"{Path(__file__).name} {name}", **case.options)
    where = place(case, getattr(args, "device", ""))
    if where is None:
        print(f"{case.title}: no CUDA here, nothing was measured")
        return 0
    print(f"{case.title} ({where})", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        is_met = case.judge(args, Path(getattr(args, "directory", "") or folder))
    return 0 if is_met else 1


def main() -> int:
    name, words = (sys.argv[1], sys.argv[2:]) if sys.argv[1:] else ("", [])
    if name in CASES:
        return run(name, words)
    if name:
        print(__doc__ if name in ("-h", "--help") else f"unknown case {name!r}: one of {', '.join(CASES)}")
        return 0 if name in ("-h", "--help") else 2
    # Each in a process of its own: one that fails keeps no other from running.
    return max(subprocess.call([sys.executable, __file__, name]) != 0 for name in CASES)


if __name__ == "__main__":
    sys.exit(main())
