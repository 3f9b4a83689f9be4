"""Device-timed phases on a GPU: what they cost an iteration, against the plain loop, in pairs taken in turn in one run;
and how long phases come out beside those of a loop that waits for the GPU at every edge.

Needs CUDA; says so and ends with status 0 where there is none.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from common import machine, progress

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
from models import MODELS, synthetic_batch
from torch import nn

from powerd_client import Meter, open_run

PHASES = ("forward", "backward", "update")
TARGET = 1.0
"""Per cent of an iteration."""

Step = Callable[[], None]


def steps(name: str, batch: int, meter: Meter) -> tuple[Step, Step, Step]:
    """One iteration: plain, marked with the meter's phases, and timed by waiting for the GPU."""
    device = torch.device("cuda")
    make, _, _ = MODELS[name]
    model = make().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()
    images, labels = synthetic_batch(name, batch, device)
    iteration = meter.phase("iteration", model=name, batch_size=batch)
    forward, backward, update = (meter.phase(p) for p in PHASES)

    def plain() -> None:
        loss = loss_of(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def marked() -> None:
        with iteration:
            with forward:
                loss = loss_of(model(images), labels)
            with backward:
                loss.backward()
            with update:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)

    def waiting() -> None:
        times = [time.perf_counter()]

        def edge() -> None:
            torch.cuda.synchronize()
            times.append(time.perf_counter())

        loss = loss_of(model(images), labels)
        edge()
        loss.backward()
        edge()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        edge()
        waited.append([b - a for a, b in pairwise(times)])

    waited: list[list[float]] = []
    waiting.__dict__["times"] = waited
    return plain, marked, waiting


def ms_per_step(step: Step, count: int) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(count):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / count * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=25)
    parser.add_argument("--milliseconds", type=float, default=400.0, help="of each half of a pair")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("device-timed phases: no CUDA here, nothing was measured")
        return
    print(f"device-timed phases against the plain loop on one {torch.cuda.get_device_name()} ({machine()})")
    print(
        "  model     batch   plain        marked: median of pairs (least .. most)   "
        "forward, backward, update in ms: by events / by waiting"
    )
    missed = False
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "run.h5"
        rows = []
        with Meter(out=out) as meter:
            for name in ("resnet34", "alexnet"):
                for batch in (16, 64, 256):
                    progress(f"{name}, batch {batch}")
                    plain, marked, waiting = steps(name, batch, meter)
                    ms_per_step(plain, 20)
                    count = max(10, round(args.milliseconds / ms_per_step(plain, 10)))
                    ms_per_step(marked, 5)
                    pairs = []
                    for turn in range(args.pairs):
                        order = (plain, marked) if turn % 2 else (marked, plain)
                        took = {step: ms_per_step(step, count) for step in order}
                        pairs.append((took[plain], took[marked]))
                    for _ in range(20):
                        waiting()
                    rows.append((name, batch, pairs, waiting.__dict__["times"][5:]))
        progress("")
        with open_run(out) as file:
            import json

            import numpy as np

            kinds = [json.loads(k) for k in file["phases/kinds"].asstr()]
            kind, parent = file["phases/kind"][:], file["phases/parent"][:]
            length = (file["phases/end_ns"][:] - file["phases/begin_ns"][:]) / 1e6
            assert {k["timing"] for k in kinds} == {"device"}, "phases were not timed by the device"
            bounds = [c["map"][:] for n, c in file["clocks"].items() if torch.cuda.get_device_name() in n]
            half = np.concatenate([(b[:, 2] - b[:, 1]) / 2 for b in bounds])
            unresolved = [m for m in file["messages"].asstr() if "host's time only" in m]
        for name, batch, pairs, waited in rows:
            own = next(
                i for i, k in enumerate(kinds)
                if k["name"] == "iteration" and k["attributes"] == {"model": name, "batch_size": batch}
            )  # fmt: skip
            inside = np.isin(parent, np.flatnonzero(kind == own))
            events = [
                float(np.median(length[inside & (kind == next(i for i, k in enumerate(kinds) if k["name"] == p))]))
                for p in PHASES
            ]
            waits = [statistics.median(w[i] for w in waited) * 1e3 for i in range(3)]
            slower = [(b / a - 1) * 100 for a, b in pairs]
            missed |= statistics.median(slower) > TARGET
            print(
                f"  {name:9} {batch:4}  {statistics.median(a for a, _ in pairs):7.3f} ms  "
                f"{statistics.median(slower):+.2f} % ({min(slower):+.2f} .. {max(slower):+.2f})   "
                + ", ".join(f"{e:.3f}" for e in events) + " / " + ", ".join(f"{w:.3f}" for w in waits)
            )  # fmt: skip
        print(
            f"  guaranteed bound of the device's clock: ± {np.median(half) / 1e3:.1f} us (median), "
            f"± {half.max() / 1e3:.1f} us (largest) at its anchors; {len(unresolved)} messages of unresolved edges"
        )
    print(f"  target: at most {TARGET:g} % slower: {'MISSED' if missed else 'met'}")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
