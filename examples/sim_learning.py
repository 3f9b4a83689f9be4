"""A small model that truly learns, on a simulated GPU: how many epochs it needs depends on its batch size.

powerd sim-gpu --control -- joules optimise run --batch-sizes 64,8,16,32 --power-caps 100,130,160,200,260 \
    --target 0.94 --metric accuracy -- python examples/sim_learning.py --batch {batch_size}
"""

import argparse
from collections.abc import Iterator

import numpy as np

SAMPLES, FEATURES, HIDDEN, KEPT = 64, 8, 16, 0.5
WAIT_S, SAMPLE_S, BUSY_W, MEMORY = 5e-3, 3e-3, 187.0, 0.5
"""What an iteration waits, what a sample takes at full clocks, what kernels add to the card's floor, and their share
that the memory bounds."""


def accuracies(batch: int, rate: float, seed: int | None) -> Iterator[float]:
    """Train two layers by stochastic gradient descent on samples that never come twice; after each epoch of `SAMPLES`
    the accuracy of the weights' moving average on other ones."""
    task, rng = np.random.default_rng(1), np.random.default_rng(seed)
    teacher, votes, new = task.normal(size=(FEATURES, 4)), task.normal(size=4), task.normal(size=(2048, FEATURES))
    weights = [
        task.normal(size=(FEATURES, HIDDEN)) / np.sqrt(FEATURES),
        task.normal(size=HIDDEN) / np.sqrt(HIDDEN),
    ]
    averages, kept = list(weights), KEPT ** (batch / SAMPLES)
    while True:
        for x in rng.normal(size=(SAMPLES // batch, batch, FEATURES)):
            first, last = weights
            hidden = np.tanh(x @ first)
            y = np.sign(np.tanh(x @ teacher) @ votes)
            error = -y / (1 + np.exp(y * (hidden @ last))) / batch
            gradients = x.T @ (np.outer(error, last) * (1 - hidden**2)), hidden.T @ error
            weights = [w - rate * g for w, g in zip(weights, gradients, strict=True)]
            averages = [kept * a + (1 - kept) * w for a, w in zip(averages, weights, strict=True)]
        first, last = averages
        yield float(np.mean(np.sign(np.tanh(new @ first) @ last) == np.sign(np.tanh(new @ teacher) @ votes)))


def main() -> None:
    from powerd_client import Meter
    from powerd_daemon.sources.sim.gpu_socket import SimGpu

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=0.5)
    parser.add_argument("--target", type=float, default=0.94)
    parser.add_argument("--epochs", type=int, default=60, help="at most")
    parser.add_argument("--seed", type=int)
    o = parser.parse_args()
    gpu, kernels_s = SimGpu.here(), SAMPLES * SAMPLE_S
    with Meter() as meter:
        for epoch, accuracy in enumerate(accuracies(o.batch, o.rate, o.seed), 1):
            with meter.phase("epoch", batch_size=o.batch):
                gpu.run(SAMPLES / o.batch * WAIT_S, kernels_s * (1 - MEMORY), kernels_s * MEMORY, BUSY_W)
            meter.result(epoch=epoch, accuracy=accuracy)
            if accuracy >= o.target or epoch == o.epochs:
                break


if __name__ == "__main__":
    main()
