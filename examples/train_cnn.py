"""Train a CNN on synthetic images, with its phases marked for powerd.

    python examples/train_cnn.py --model resnet34 --batch 64 128 256
    python examples/train_cnn.py --model alexnet --url tcp://board:7360 --out alexnet.h5
    joules tables run.h5

On a GPU the work runs behind the host's back. With CUDA the edges of phases are events on the GPU's own stream, which
wait for nothing, and the run file says `device`; on other accelerators every edge waits for the device.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from models import MODELS, synthetic_batch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn

from powerd_analytics.operations import count_operations
from powerd_client import Meter
from powerd_core import PowerdError


def train(
    meter: Meter,
    name: str,
    batch_size: int,
    device: torch.device,
    *,
    seconds: float,
    warm_up: int,
    iterations: int | None = None,
    loader_s: float = 0.0,
    advance: Callable[[float], None],
) -> None:
    """Train ``name`` for about ``seconds``, or for so many ``iterations``; ``advance`` hears the share that is done.

    With ``loader_s`` each iteration first waits that long in a phase ``data``, as for a loader that is not in time.
    """
    make, shape, _ = MODELS[name]
    model = make().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()
    operations = count_operations(model, shape).total
    images, labels = synthetic_batch(name, batch_size, device)

    def forward() -> torch.Tensor:
        return loss_of(model(images), labels)

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    with meter.phase("warm-up"):
        for _ in range(warm_up):
            forward().backward()
            update()
    started, done = time.perf_counter(), 0

    def share() -> float:
        return (time.perf_counter() - started) / seconds if iterations is None else done / iterations

    with meter.phase("training", model=name, batch_size=batch_size, operations_per_sample=operations):
        while share() < 1:
            with meter.phase("iteration"):
                if loader_s:
                    with meter.phase("data"):
                        time.sleep(loader_s)
                with meter.phase("forward"):
                    loss = forward()
                with meter.phase("backward"):
                    loss.backward()
                with meter.phase("update"):
                    update()
            done += 1
            advance(min(share(), 1.0))


def run(args: argparse.Namespace) -> None:
    """Record one run with every batch size that was asked for."""
    device = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    timed_by = {"cpu": "host", "cuda": "cuda"}.get(device.type, "accelerator")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with (
        Meter(args.url, args.out, overwrite=args.overwrite, device=timed_by) as meter,
        Progress(*columns) as bar,
    ):
        for batch_size in args.batch:
            task = bar.add_task(f"{args.model}, batch {batch_size}", total=100)
            train(
                meter,
                args.model,
                batch_size,
                device,
                seconds=args.seconds,
                warm_up=args.warm_up,
                iterations=args.iterations,
                advance=lambda share, task=task: bar.update(task, completed=int(100 * share)),
            )


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(MODELS), default="resnet34")
    parser.add_argument("--batch", type=int, nargs="+", default=[64, 128, 256], metavar="N", help="batch sizes")
    parser.add_argument("--seconds", type=float, default=10.0, help="training time for each batch size")
    parser.add_argument(
        "--iterations",
        type=int,
        metavar="N",
        help="so many instead: runs of the same number are repeats in every table",
    )
    parser.add_argument("--warm-up", type=int, default=5, metavar="N", help="iterations before each training")
    parser.add_argument("--device", help="torch device (default: the GPU where there is one)")
    parser.add_argument("--url", help="the powerd to listen to (default: one of this machine's own)")
    parser.add_argument("--out", type=Path, default=Path("run.h5"), help="the run file")
    parser.add_argument("--overwrite", action="store_true", help="replace the run file if it exists")
    args = parser.parse_args()
    if min(args.batch) < 1 or args.seconds <= 0 or (args.iterations is not None and args.iterations < 1):
        parser.error("batch sizes, seconds and iterations must be positive")
    try:
        run(args)
    except PowerdError as error:
        print(f"train_cnn: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("train_cnn: interrupted; what was recorded is in the run file", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
