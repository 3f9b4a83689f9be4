"""A training on a simulated GPU: `powerd sim-gpu` lets it take as long as the card would, at its caps and clocks.

powerd sim-gpu --control -- joules record --power-cap 120,180,max -o caps.h5 -- python examples/sim_training.py
"""

import argparse

from powerd_client import Meter
from powerd_core.gpu_physics import NETWORKS
from powerd_daemon.sources.sim.gpu_socket import SimGpu

FORWARD, BACKWARD = 0.32, 0.64
"""Shares of an iteration's kernels; the rest is the update."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=sorted(NETWORKS), default="resnet50")
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--iteration-ms", type=float, default=300.0, help="at full clocks")
    options = parser.parse_args()
    network, gpu = NETWORKS[options.network], SimGpu.here()
    full_s = options.iteration_ms / 1e3
    kernels_s = (1.0 - network.waiting) * full_s

    def kernels(share: float) -> None:
        memory_s = share * kernels_s * network.memory
        gpu.run(0.0, share * kernels_s - memory_s, memory_s, network.busy_w)

    with Meter() as meter:
        step = meter.phase("iteration", model=options.network, batch_size=options.batch)
        data, forward, backward = meter.phase("data"), meter.phase("forward"), meter.phase("backward")
        update = meter.phase("update")
        for _ in range(options.iterations):
            with step:
                with data:
                    gpu.run(network.waiting * full_s, 0.0, 0.0, network.busy_w)
                with forward:
                    kernels(FORWARD)
                with backward:
                    kernels(BACKWARD)
                with update:
                    kernels(1.0 - FORWARD - BACKWARD)


if __name__ == "__main__":
    main()
