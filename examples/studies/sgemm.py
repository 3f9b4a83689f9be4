"""The reference beside the networks: products of square matrices, which is the best that a card can do.

    joules record -o sgemm.h5 -- python examples/studies/sgemm.py --precision tf32
    joules tables sgemm.h5 vgg19.h5 --format csv

It is a fully connected layer and nothing else: ``forward`` is one product, ``backward`` two, and a row of the matrix is
a sample. So its GFLOPS/W stand in the same columns as a network's, and the share of a network is the ratio of the two:

gflops_per_w           the paper's convention: a multiply-accumulate is one operation, backward counts as forward does
gflops_per_w_executed  a multiply-accumulate is two operations, and backward counts all that it runs
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from powerd_client import Meter
from powerd_core import PowerdError
from powerd_core.errors import ConfigError

PRODUCTS = {"forward": 1, "backward": 2}


def on_torch(size: int, precision: str, seed: int) -> Callable[[int], object]:
    """What multiplies so many times on the GPU, or on the processor where there is none."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    generator = torch.Generator(device).manual_seed(seed)
    a, b = (torch.randn(size, size, generator=generator, device=device).to(dtype) for _ in range(2))
    product = torch.empty_like(a)
    return lambda times: [torch.mm(a, b, out=product) for _ in range(times)]


def on_simulated(size: int, precision: str, on: str) -> Callable[[int], object]:
    """The same on the card of `powerd sim-gpu`. Raises `PowerdError`."""
    from simulated import card_here

    if precision != "fp32":
        raise ConfigError(f"--precision {precision}: the simulated card computes in single precision alone")
    gpu, _ = card_here(on)
    flops, bytes_ = 2.0 * size**3, 3.0 * 4 * size**2
    return lambda times: gpu.work(times * flops, times * bytes_)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=4096, help="rows and columns of the matrices")
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16"), default="fp32")
    parser.add_argument("--iterations", type=int, default=200, help="three products each")
    parser.add_argument("--warm-up", type=int, default=10, help="iterations before the measured ones")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--on", metavar="sim[:CARD]", help="let the card of `powerd sim-gpu` work; nothing is computed")
    options = parser.parse_args()
    n = options.size
    if min(n, options.iterations) < 1:
        parser.error("--size and --iterations are at least 1")
    try:
        if options.on:
            multiply = on_simulated(n, options.precision, options.on)
        else:
            multiply = on_torch(n, options.precision, options.seed)
        with Meter() as meter:
            if options.warm_up and not options.on:
                meter.record_kernels(lambda: multiply(sum(PRODUCTS.values())), options.warm_up)
            iteration = meter.phase(
                "iteration", model="sgemm", batch_size=n, precision=options.precision, size=n,
                operations_per_sample=n**2, operations_executed_per_sample=2 * n**2 * sum(PRODUCTS.values()),
            )  # fmt: skip
            for _ in range(options.iterations):
                with iteration:
                    for name, times in PRODUCTS.items():
                        with meter.phase(name):
                            multiply(times)
    except PowerdError as error:
        print(f"sgemm: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
