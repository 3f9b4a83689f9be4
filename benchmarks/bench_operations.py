"""Time and memory of counting a model's operations, each in a fresh process, against torch's own counter.

    python benchmarks/bench_operations.py
    python benchmarks/bench_operations.py --runs 9

Thirteen models: the zoo's, and four of other kinds from `operation_models.py`. Time is from torch imported to the total
known, the model's making and all imports of either counter included; the CPU time of the process stands beside it,
which other work on the machine does not lengthen. Memory is the peak above that of a process that has imported torch.
Then a table of grouped convolutions, whose backward pass is known by hand: two products for each of forward's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from common import machine, progress

CHILD = """
import json, resource, sys, time
import torch
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before, started, cpu = peak(), time.perf_counter(), time.process_time()
way, model, shape, batch, folder = *sys.argv[1:4], int(sys.argv[4]), sys.argv[5]
if way == "ours":
    from powerd_analytics.operations.named import count_named
    name = f"{folder}/operation_models.py:{model}" if shape else model
    count = count_named(name, [shape] if shape else [], batch_size=batch)
    total = (count.forward + count.backward).operations
else:
    from torch.utils.flop_counter import FlopCounterMode
    if shape:
        sys.path.insert(0, folder)
        import operation_models
        make, (sizes, _, dtype) = getattr(operation_models, model), shape.partition(":")
        sample, dtype = [int(n) for n in sizes.split("x")], dtype or "float32"
    else:
        from powerd_analytics.operations.zoo import ZOO
        make, sample, dtype = ZOO[model].make, ZOO[model].sample_shape, ZOO[model].dtype
    with torch.device("meta"):
        made = make()
        x = torch.empty(batch, *sample, dtype=getattr(torch, dtype))
        with FlopCounterMode(display=False) as counter:
            made(x).sum().backward()
    total = counter.get_total_flops()
spent = {"s": time.perf_counter() - started, "cpu": time.process_time() - cpu}
heavy = [name for name in ("torch._dynamo", "torch._inductor", "sympy") if name in sys.modules]
print(json.dumps(spent | {"heavy": heavy, "mb": peak() - before, "total": total}))
"""
TARGET_S, TARGET_MB = 0.5, 100
LIMIT_S = 1.0
"""For any model."""
MODELS = {
    "resnet50": "", "resnet34": "", "resnet18": "", "alexnet": "", "caffenet": "", "2d-cnn": "", "resnet": "",
    "vgg16": "", "transformer": "", "vit": "3x224x224", "lstm": "35:int64", "unet": "1x256x256",
    "mobilenet": "3x224x224",
}  # fmt: skip
"""Shape of a sample of those in `operation_models.py`; the zoo knows its own."""


def measure(way: str, model: str, batch: int) -> dict[str, Any]:
    """One counting in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", CHILD, way, model, MODELS[model], str(batch), str(Path(__file__).parent)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


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
    parser.add_argument("--models", default=",".join(MODELS), help="some of them, with commas between")
    args = parser.parse_args()
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
    print("model".ljust(12), *(text.rjust(width) for text, width in header))
    is_met = True
    slowest, imported = 0.0, set[str]()
    for model in args.models.split(","):
        found: dict[str, list[dict[str, Any]]] = {"ours": [], "torch": []}
        for run in range(args.runs):
            progress(f"{model}, run {run + 1} of {args.runs}")
            for way, results in found.items():
                results.append(measure(way, model, args.batch))
        progress("")
        cells = [model.ljust(12)]
        for key, width in (("s", 16), ("cpu", 16), ("mb", 14)):
            for results in found.values():
                values = [r[key] for r in results]
                text = (
                    f"{median(values):.3f} ({max(values):.3f})"
                    if key != "mb"
                    else f"{median(values):.0f} ({max(values):.0f})"
                )
                cells.append(text.rjust(width))
        cells += [f"{found[w][0]['total'] / 1e9:.1f}".rjust(n) for w, n in (("ours", 12), ("torch", 10))]
        print(" ".join(cells), flush=True)
        slowest = max(slowest, median(r["s"] for r in found["ours"]))
        imported |= {name for r in found["ours"] for name in r["heavy"]}
        if model == "resnet50":
            time_s, mb = (median(r[k] for r in found["ours"]) for k in ("s", "mb"))
            is_met = time_s <= TARGET_S and mb <= TARGET_MB
            verdict = "met" if is_met else "MISSED"
            print(f"  target {TARGET_S} s and {TARGET_MB} MB above torch itself: {verdict}")
    verdict = "met" if slowest <= LIMIT_S else "MISSED"
    print(f"slowest of ours {slowest:.3f} s, limit {LIMIT_S} s: {verdict}")
    print(f"of torch's compiler ours imported {', '.join(sorted(imported)) or 'nothing'}")
    groups_table()
    return 0 if is_met and slowest <= LIMIT_S and not imported else 1


if __name__ == "__main__":
    sys.exit(main())
