"""Time and memory of counting a model's operations, each in a fresh process, against torch's own counter.

    python benchmarks/bench_operations.py
    python benchmarks/bench_operations.py --runs 9
    python benchmarks/bench_operations.py --runs 3 --models all --alone

Thirteen models: the zoo's, and four of other kinds from `operation_models.py`; with ``all`` 36 more from the files
beside it, those that are large at batches of their own. Time is from torch imported to the total known, the model's
making and all imports of either counter included; the CPU time of the process stands beside it, which other work on the
machine does not lengthen. Memory is the peak above that of a process that has imported torch. Then what a kernel costs
in a loop in Python; a table of grouped convolutions, whose backward pass is known by hand: two products for each of
forward's; and the worst of all models, by the best of their runs, against the limits. Exit status 1: one is missed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from common import machine, progress

CHILD = """
import json, resource, sys, time
import torch
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before, started, cpu = peak(), time.perf_counter(), time.process_time()
way, model, batch, folder, file, *shapes = *sys.argv[1:3], int(sys.argv[3]), *sys.argv[4:]
if way == "ours":
    from powerd_analytics.operations.named import count_named
    name = f"{folder}/{file}.py:{model}" if file else model
    count = count_named(name, shapes, batch_size=batch)
    total = (count.forward + count.backward).operations
else:
    from torch.utils.flop_counter import FlopCounterMode
    if file:
        sys.path.insert(0, folder)
        make = getattr(__import__(file), model)
        parts = [shape.partition(":") for shape in shapes]
        samples = [([int(n) for n in sizes.split("x")], dtype or "float32") for sizes, _, dtype in parts]
    else:
        from powerd_analytics.operations.zoo import ZOO
        make, samples = ZOO[model].make, [(ZOO[model].sample_shape, ZOO[model].dtype)]
    with torch.device("meta"):
        made = make()
        inputs = [torch.empty(batch, *sample, dtype=getattr(torch, dtype)) for sample, dtype in samples]
        with FlopCounterMode(display=False) as counter:
            y = made(*inputs)
            y = tuple(y.values()) if isinstance(y, dict) else y if isinstance(y, tuple) else (y,)
            sum(t.sum() for t in y).backward()
    total = counter.get_total_flops()
spent = {"s": time.perf_counter() - started, "cpu": time.process_time() - cpu}
heavy = [name for name in ("torch._dynamo", "torch._inductor", "sympy") if name in sys.modules]
print(json.dumps(spent | {"heavy": heavy, "mb": peak() - before, "total": total}))
"""
TARGET_S, TARGET_MB = 0.5, 100
LIMIT_S = 1.0
"""For any model."""
CELL_STEPS = 1000


@dataclass(frozen=True, slots=True)
class Model:
    """Where it is made, shapes of a sample of its inputs, and its batch where it is not that of all."""

    file: str = ""
    shapes: tuple[str, ...] = ()
    batch: int | None = None


_ZOO = ("resnet50", "resnet34", "resnet18", "alexnet", "caffenet", "2d-cnn", "resnet", "vgg16", "transformer")
_PICTURE = ("3x224x224",)
MODELS = {name: Model() for name in _ZOO} | {
    "vit": Model("operation_models", _PICTURE),
    "lstm": Model("operation_models", ("35:int64",)),
    "unet": Model("operation_models", ("1x256x256",)),
    "mobilenet": Model("operation_models", _PICTURE),
}
MORE = {
    **{n: Model("operation_models_vision", _PICTURE) for n in ("inception", "densenet", "efficientnet", "convnext")},
    "diffusion": Model("operation_models_vision", ("3x64x64", "1"), 16),
    "gan": Model("operation_models_vision", ("100x1x1", "3x64x64"), 64),
    "bert": Model("operation_models_language", ("128:int64", "128:bool"), 16),
    "gpt2": Model("operation_models_language", ("1024:int64",), 4),
    "llama": Model("operation_models_language", ("2048:int64",), 1),
    "t5": Model("operation_models_language", ("128:int64", "64:int64"), 8),
    "moe": Model("operation_models_language", ("128:int64",), 8),
    "long_lstm": Model("operation_models_language", ("1000x64",), 8),
    "cells": Model("operation_models_language", ("1000x64",), 8),
    "resnet50_channels_last": Model("operation_models_variants", _PICTURE),
    "resnet50_bfloat16": Model("operation_models_variants", _PICTURE),
    "llama_bfloat16": Model("operation_models_variants", ("2048:int64",), 1),
    "gpt2_checkpointed": Model("operation_models_variants", ("1024:int64",), 4),
    "gpt2_reentrant": Model("operation_models_variants", ("1024:int64",), 4),
    **{n: Model("operation_models_deep", _PICTURE) for n in ("resnet152", "densenet201", "vit_large", "swin")},
    "gpt2_xl": Model("operation_models_deep", ("1024:int64",), 4),
    "encoder96": Model("operation_models_deep", ("128x512",), 16),
    "wavenet": Model("operation_models_deep", ("16000:int64",), 4),
    "both_ways": Model("operation_models_loops", ("1000x64",), 8),
    "gru": Model("operation_models_loops", ("2000x64",), 8),
    "packed": Model("operation_models_loops", ("1000x64",), 8),
    "lstm_again": Model("operation_models_loops", ("1000x64",), 8),
    "translator": Model("operation_models_loops", ("200:int64", "200:int64"), 16),
    "mamba": Model("operation_models_loops", ("512:int64",), 4),
    "written": Model("operation_models_loops", ("1000x64",), 8),
    "any_order": Model("operation_models_values", ("1000x64",), 8),
    "switch": Model("operation_models_values", ("128:int64",), 8),
    "variational": Model("operation_models_values", ("3x64x64",), 64),
    "lstm_kept": Model("operation_models_values", ("1000x64",), 8),
}
ALL = MODELS | MORE


def measure(way: str, model: str, batch: int) -> dict[str, Any]:
    """One counting in a process of its own."""
    entry, folder = ALL[model], str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-P", "-c", CHILD, way, model, str(entry.batch or batch), folder, entry.file, *entry.shapes],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def kernel_cost() -> None:
    """A cell called step by step: counted, and run on ``meta`` without counting; CPU time, best of 3."""
    import torch
    from operation_models_language import Cells
    from operation_models_loops import Written
    from torch.utils._python_dispatch import TorchDispatchMode

    from powerd_analytics.operations import count_operations

    class Number(TorchDispatchMode):  # type: ignore[misc]
        ran = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.ran += 1
            return func(*args, **(kwargs or {}))

    def cpu_s(run: Any) -> float:
        begin = time.process_time()
        run()
        return time.process_time() - begin

    for make, what in ((Cells, "nn.LSTMCell"), (Written, "one by single operations")):

        def plain(make: Any = make) -> None:
            with torch.device("meta"):
                y = make()(torch.empty(8, CELL_STEPS, 64))
                y.backward(torch.empty_like(y))

        progress("what a kernel costs")
        with Number() as number:
            plain()
        ours = min(cpu_s(lambda make=make: count_operations(make, (CELL_STEPS, 64), batch_size=8)) for _ in range(3))
        theirs = min(cpu_s(plain) for _ in range(3))
        progress("")
        print(
            f"\nan LSTM cell, {what}, {CELL_STEPS} times in a loop, forward and backward: {number.ran:,} kernels,"
            " views among them"
        )
        for name, seconds in (("counted", ours), ("run on meta, not counted", theirs)):
            print(f"{name:>26} {seconds:>8.3f} s of CPU {1e6 * seconds / number.ran:>8.1f} µs a kernel")


def groups_table() -> None:
    """Backward over forward of a convolution of 64 to 64 channels, by hand 2."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from powerd_analytics.operations import count_operations

    print("\nbackward / forward of a 3x3 convolution, 64 to 64 channels, behind a 1x1 one (by hand: 2)")
    print(f"{'groups':>8} {'ours':>8} {'torch':>8}")
    for groups in (1, 2, 4, 16, 64):
        with torch.device("meta"):
            layer = torch.nn.Conv2d(64, 64, 3, padding=1, groups=groups)
            model = torch.nn.Sequential(torch.nn.Conv2d(64, 64, 1), layer)
            counted = next(e for e in count_operations(model, (64, 14, 14)).executed if e.name == "1")
            with FlopCounterMode(display=False) as forward:
                y = layer(torch.empty(1, 64, 14, 14, requires_grad=True))
            with FlopCounterMode(display=False) as backward:
                y.sum().backward()
        theirs = backward.get_total_flops() / forward.get_total_flops()
        print(f"{groups:>8} {counted.backward.operations / counted.forward.operations:>8.2f} {theirs:>8.2f}")


def main() -> int:
    """Measure in turn, and print both beside the target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="processes for each figure; the median is shown")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--models", default=",".join(MODELS), help="some of them, with commas between, or all")
    parser.add_argument("--alone", action="store_true", help="leave torch's own counter out")
    args = parser.parse_args()
    ways = ("ours",) if args.alone else ("ours", "torch")
    print(machine())
    import torch

    print(f"torch {torch.__version__}; batch {args.batch}, forward and backward; median (worst) of {args.runs}")
    header = (
        ("ours s", 16),
        ("torch s", 16),
        ("ours CPU s", 16),
        ("torch CPU s", 16),
        ("ours MB", 14),
        ("torch MB", 14),
        ("GFLOP ours", 12),
        ("torch", 10),
    )
    print("model".ljust(23), *(text.rjust(width) for text, width in header if "ours" in text or not args.alone))
    is_met = True
    slowest, imported = 0.0, dict[str, list[str]]()
    best = dict[str, tuple[float, float]]()
    for model in list(ALL) if args.models == "all" else args.models.split(","):
        found: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
        for run in range(args.runs):
            progress(f"{model}, run {run + 1} of {args.runs}")
            for way, results in found.items():
                results.append(measure(way, model, args.batch))
        progress("")
        cells = [model.ljust(23)]
        for key, width in (("s", 16), ("cpu", 16), ("mb", 14)):
            for results in found.values():
                values = [r[key] for r in results]
                text = (
                    f"{median(values):.3f} ({max(values):.3f})"
                    if key != "mb"
                    else f"{median(values):.0f} ({max(values):.0f})"
                )
                cells.append(text.rjust(width))
        cells += [f"{found[w][0]['total'] / 1e9:.1f}".rjust(n) for w, n in zip(ways, (12, 10), strict=False)]
        print(" ".join(cells), flush=True)
        slowest = max(slowest, median(r["s"] for r in found["ours"]))
        if heavy := sorted({name for r in found["ours"] for name in r["heavy"]}):
            imported[model] = heavy
        cpu_s, mb = (min(r[k] for r in found["ours"]) for k in ("cpu", "mb"))
        best[model] = cpu_s, mb
        if model == "resnet50":
            time_s, mb = (median(r[k] for r in found["ours"]) for k in ("s", "mb"))
            is_met = time_s <= TARGET_S and mb <= TARGET_MB
            verdict = "met" if is_met else "MISSED"
            print(f"  target {TARGET_S} s and {TARGET_MB} MB above torch itself: {verdict}")
    verdict = "met" if slowest <= LIMIT_S else "MISSED"
    print(f"slowest of ours {slowest:.3f} s, limit {LIMIT_S} s: {verdict}")
    said = "; ".join(f"{model}: {', '.join(names)}" for model, names in imported.items())
    print(f"of torch's compiler ours imported {said or 'nothing'}")
    kernel_cost()
    groups_table()
    longest, largest = (max(best, key=lambda model, i=i: best[model][i]) for i in (0, 1))
    cpu_s, mb = best[longest][0], best[largest][1]
    is_small = cpu_s <= LIMIT_S and mb <= TARGET_MB
    print(
        f"\nworst of {len(best)} models, best of {args.runs} runs each: {cpu_s:.2f} s of CPU ({longest}), {mb:.0f} MB"
        f" ({largest}); limits {LIMIT_S} s and {TARGET_MB} MB: {'met' if is_small else 'MISSED'}"
    )
    return 0 if is_met and is_small and slowest <= LIMIT_S and not imported else 1


if __name__ == "__main__":
    sys.exit(main())
