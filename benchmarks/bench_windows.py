"""Do windows around the phases of a fast loop add up? Ours and Zeus' around the same work of one simulated GPU.

Each iteration waits for data, goes forward and backward, and each of these is a window of `ZeusMonitor`: that of
`powerd_client.compat.zeus`, and inside it that of the package zeus (with ``approx_instant_energy``, as its manual
advises for short windows), where ``--zeus DIR`` says it is installed. A window lies over all iterations, too. *Truth*
are the card's own joules; of a real GPU (``--cuda``, layers of bf16 in torch) its driver's counter, 0.1 s old at most.
*Sum* is that of all windows of phases; what lies between two windows belongs to none.

    python benchmarks/bench_windows.py
    python benchmarks/bench_windows.py --zeus DIR
    python benchmarks/bench_windows.py --zeus DIR --cuda --iterations 60

Target: the sum of ours within 5 % of their whole, and the whole within 2 % of the truth. Exit status 1 when missed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from common import machine, options

from powerd_core.gpu_physics import NETWORKS

PHASES = {"data": (0.02, 0.0), "forward": (0.0, 0.027), "backward": (0.0, 0.054)}
"""Seconds of waiting and of kernels."""
MEMORY = 0.25
WHOLE = "whole"
MOST_OFF_SUM, MOST_OFF_WHOLE = 0.05, 0.02


def monitors(zeus: str) -> dict[str, Any]:
    from powerd_client.compat.zeus import ZeusMonitor

    every: dict[str, Any] = {"powerd": ZeusMonitor([0])}
    if zeus:
        sys.path.append(zeus)
        import zeus.monitor  # type: ignore[import-not-found]

        every["zeus"] = zeus.monitor.ZeusMonitor([0], approx_instant_energy=True)
    return every


def simulated() -> tuple[dict[str, Callable[[], object]], Callable[[], float]]:
    """What each phase does on the simulated GPU, and its own joules."""
    from powerd_daemon.sources.sim.gpu_socket import SimGpu

    gpu, busy_w = SimGpu.here(), NETWORKS["vgg19"].busy_w
    work: dict[str, Callable[[], object]] = {
        name: partial(gpu.run, wait_s, kernels_s * (1 - MEMORY), kernels_s * MEMORY, busy_w)
        for name, (wait_s, kernels_s) in PHASES.items()
    }
    return work, lambda: float(gpu.truth()["energy_j"])


def on_cuda() -> tuple[dict[str, Callable[[], object]], Callable[[], float]]:
    """The same of 24 layers of 4096 values in bf16, batch 8192; the driver's counter."""
    import pynvml
    import torch

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    net = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096) for _ in range(24))).cuda().bfloat16()
    batch, losses = torch.randn(8192, 4096, device="cuda", dtype=torch.bfloat16), list[Any]()

    def forward() -> None:
        losses.append(net(batch).float().pow(2).mean())

    def backward() -> None:
        losses.pop().backward()

    for _ in range(5):
        forward()
        backward()

    def counted_j() -> float:
        torch.cuda.synchronize()
        time.sleep(0.15)
        return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3

    return {"data": partial(time.sleep, PHASES["data"][0]), "forward": forward, "backward": backward}, counted_j


def measure(iterations: int, zeus: str, *, cuda: bool) -> bool:
    """Print a row for each monitor; whether the targets are met."""
    every, (work, truth) = monitors(zeus), on_cuda() if cuda else simulated()
    is_waited_for = cuda
    parts: dict[str, dict[str, list[Any]]] = {who: {name: [] for name in PHASES} for who in every}

    def begin(name: str) -> None:
        for monitor in every.values():
            monitor.begin_window(name, sync_execution=is_waited_for)

    def end(name: str) -> dict[str, Any]:
        return {who: every[who].end_window(name, sync_execution=is_waited_for) for who in reversed(every)}

    before_j = truth()
    begin(WHOLE)
    for _ in range(iterations):
        for name, act in work.items():
            begin(name)
            act()
            for who, measurement in end(name).items():
                parts[who][name].append(measurement)
    wholes = end(WHOLE)
    truth_j = truth() - before_j
    names = "".join(f"{name:>10}" for name in (*PHASES, "sum", WHOLE))
    print(f"{'':8}{names}{'sum/whole':>11}  truth {truth_j:.0f} J")
    is_met = True
    for who, measurement in wholes.items():
        of_phases = [sum(m.total_energy for m in own) for own in parts[who].values()]
        whole_j = measurement.total_energy
        u95 = f"  ± {measurement.gpu_u95[0]:.2g} J" if who == "powerd" else ""
        joules = "".join(f"{j:10.0f}" for j in (*of_phases, sum(of_phases), whole_j))
        print(f"{who:8}{joules}{sum(of_phases) / whole_j:11.2f}{u95}", flush=True)
        if who == "powerd":
            is_met = abs(sum(of_phases) / whole_j - 1) < MOST_OFF_SUM and abs(whole_j / truth_j - 1) < MOST_OFF_WHOLE
    return is_met


def main() -> int:
    o = options(__doc__, iterations=20, zeus="", cuda=False)
    if o.cuda or "POWERD_SIM_GPU" in os.environ:
        return 0 if measure(o.iterations, o.zeus, cuda=o.cuda) else 1
    print(machine(), flush=True)
    words = [os.path.abspath(__file__), "--iterations", str(o.iterations), "--zeus", o.zeus]
    command = [sys.executable, "-m", "powerd_daemon", "sim-gpu", "--", sys.executable, *words]
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(command, check=False, cwd=folder).returncode


if __name__ == "__main__":
    sys.exit(main())
