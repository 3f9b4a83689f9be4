"""A training on the simulated GPU. Its kernels take as long as they would on the card, at its cap and clocks."""

import sys

from powerd_client import Meter
from powerd_core.gpu_physics import NETWORKS
from powerd_daemon.sources.sim.gpu_socket import SimGpu

model, iterations = sys.argv[1], int(sys.argv[2])
network, gpu = NETWORKS[model], SimGpu.here()


def kernels(seconds: float) -> None:
    in_memory_s = network.memory * seconds
    gpu.run(0.0, seconds - in_memory_s, in_memory_s, network.busy_w)


with Meter() as meter, meter.phase("training", model=model, batch_size=128):
    for _ in range(iterations):
        with meter.phase("iteration"):
            with meter.phase("data"):
                gpu.run(0.1, 0.0, 0.0, network.busy_w)  # the card waits
            with meter.phase("forward"):
                kernels(0.08)
            with meter.phase("backward"):
                kernels(0.16)
