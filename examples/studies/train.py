"""Train, or only run, a network of the published studies on generated pictures: the same work in every run.

    python examples/studies/train.py --model vgg19 --batch-size 128 --images 32000
    python examples/studies/train.py --model xception --images 10000 --epochs 40 --target 0.98     (a pilot)
    powerd sim-gpu --control -- joules record --power-cap 160 -o capped.h5 -- \\
        python examples/studies/train.py --model vgg19 --batch-size 128 --iterations 20 --on sim

It trains on the GPU where there is one. The phases are data, forward, backward and update, with the model, the batch
size, the precision, the algorithm and the operations of a sample as attributes. Some iterations before them warm up:
they are in no phase, and the kernels that they used stand in the run. After each epoch the run is told the loss.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from operations import OPERATIONS

from powerd_core import PowerdError

ALGORITHMS = {
    "deterministic": "the same bits in each run of a seed",
    "heuristic": "what cuDNN holds for the best",
    "benchmark": "the fastest of those that cuDNN tries at the beginning",
    "native": "those of torch itself, by matrix products: without cuDNN, and without oneDNN on a processor",
}
"""What torch lets one ask for. Which kernels then ran is in the run's event `kernels`."""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=(*OPERATIONS, "sgemm"), default="small", help="sgemm: see sgemm.py")
    parser.add_argument("--mode", choices=("train", "infer"), default="train", help="infer: forward passes alone")
    parser.add_argument("--batch-size", type=int, default=64, help="of all GPUs together")
    parser.add_argument("--images", type=int, default=2048, help="in an epoch")
    parser.add_argument("--iterations", type=int, help="in an epoch, instead of --images")
    parser.add_argument("--epochs", type=int, default=1, help="with --target: at most so many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16"), default="fp32")
    told = "; ".join(f"{name}: {what}" for name, what in ALGORITHMS.items())
    parser.add_argument("--algorithm", choices=ALGORITHMS, default="deterministic", help=f"of convolutions. {told}")
    parser.add_argument("--gpus", type=int, default=1, help="a process for each, by torchrun")
    parser.add_argument("--lr", type=float, default=0.01, help="learning rate of SGD with momentum 0.9")
    parser.add_argument("--warm-up", type=int, default=10, help="iterations before the measured ones")
    parser.add_argument("--validation", type=int, default=0, help="pictures for the accuracy after each epoch")
    parser.add_argument("--target", type=float, help="stop at this accuracy (0.98), and say after how many epochs")
    parser.add_argument("--patience", type=int, default=5, help="with --target: stop when so many epochs bring nothing")
    parser.add_argument("--on", metavar="sim[:CARD]", help="let the card of `powerd sim-gpu` work; nothing is computed")
    options = parser.parse_args()
    if options.iterations:
        options.images = options.iterations * options.batch_size
    if options.target and not options.validation:
        options.validation = 500
    if not 1 <= options.gpus <= options.batch_size <= options.images or options.epochs < 1:
        parser.error("give each GPU a picture of each batch, and each epoch a batch")
    if options.target and options.mode == "infer":
        parser.error("--target is for --mode train")
    return options


def run(options: argparse.Namespace) -> None:
    if options.model == "sgemm":  # so that a campaign has it among the networks
        words = [
            str(Path(__file__).with_name("sgemm.py")),
            "--precision",
            options.precision,
            "--seed",
            str(options.seed),
        ]
        os.execv(sys.executable, [sys.executable, *words, *(["--on", options.on] if options.on else [])])
    elif options.on:
        from simulated import train
    elif options.gpus > 1 and "RANK" not in os.environ:
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={options.gpus}"]
        os.execv(sys.executable, [sys.executable, *torchrun, *sys.argv])
    else:
        from training import train
    train(options)


def main() -> int:
    options = parse()
    try:
        run(options)
    except (PowerdError, MemoryError) as error:
        print(f"train: {error}", file=sys.stderr)
        return 1 if isinstance(error, MemoryError) else 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
