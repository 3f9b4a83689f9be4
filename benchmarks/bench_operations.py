"""Seconds and memory of counting a model's operations in a fresh process, against torch's own `FlopCounterMode`.

Time is from torch imported to the total known, with the model's making and all imports of either counter; memory is the
peak above that of a process that has imported torch. Both count forward and backward of the same model on the device
``meta``. Where the two totals differ, it is said.

Targets: 3 s, and no more memory than torch's own counter. Exit status 1 when one is missed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from statistics import median

from common import machine, options, progress

MODELS = ("resnet50", "transformer")
TARGET_S = 3.0
CHILD = """
import json, resource, sys, time
import torch
peak_mb = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before, begin = peak_mb(), time.perf_counter()
counter, model, batch = *sys.argv[1:3], int(sys.argv[3])
if counter == "ours":
    from powerd_analytics.operations.torch_model import count_named
    count = count_named(model, [], batch)
    total = (count.forward + count.backward).operations
else:
    from torch.utils.flop_counter import FlopCounterMode
    from powerd_analytics.operations.zoo import ZOO
    make, sample, dtype = ZOO[model].make, ZOO[model].sample_shape, ZOO[model].dtype
    with torch.device("meta"), FlopCounterMode(display=False) as mode:
        make()(torch.empty(batch, *sample, dtype=getattr(torch, dtype))).sum().backward()
    total = mode.get_total_flops()
print(json.dumps({"s": time.perf_counter() - begin, "mb": peak_mb() - before, "total": total}))
"""


def count(counter: str, model: str, batch: int) -> dict[str, float]:
    """Seconds, MB and operations of one counting in a process of its own."""
    command = [sys.executable, "-P", "-c", CHILD, counter, model, str(batch)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{model}, counted by {counter}: {done.stderr[-2000:]}")
    return dict(json.loads(done.stdout))


def main() -> int:
    args = options(__doc__, runs=5, batch=256)
    print(f"Counting operations, batch {args.batch}, forward and backward, median of {args.runs} ({machine()})")
    print(f"{'':12} {'s':>7} {'torch s':>8} {'ratio':>6} {'MB':>6} {'torch MB':>9} {'GFLOP':>10} {'torch':>10}")
    missed = []
    for model in MODELS:
        results: dict[str, list[dict[str, float]]] = {"ours": [], "torch": []}
        for run in range(args.runs):
            progress(f"{model}, run {run + 1} of {args.runs}")
            for counter, counts in results.items():
                counts.append(count(counter, model, args.batch))
        progress("")
        ours, torch = ({key: median(c[key] for c in counts) for key in counts[0]} for counts in results.values())
        ratio = ours["total"] / torch["total"] if torch["total"] else float("inf")
        print(
            f"{model:12} {ours['s']:7.2f} {torch['s']:8.2f} {ours['s'] / torch['s']:6.2f} {ours['mb']:6.0f} "
            f"{torch['mb']:9.0f} {ours['total'] / 1e9:10.2f} {torch['total'] / 1e9:10.2f}"
            f"{'' if ratio == 1 else f'   they disagree: ours is {ratio:.4f} of torch'}",
            flush=True,
        )
        if ours["s"] > TARGET_S or ours["mb"] > torch["mb"]:
            missed.append(model)
    print(f"target {TARGET_S:g} s and torch's own memory: {'MISSED by ' + ', '.join(missed) if missed else 'met'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
