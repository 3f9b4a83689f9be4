"""A power cap chosen inside a training: by `Meter.optimise_power`, by Zeus, and not at all, on the same simulated GPU.

Each row is a training of as many iterations on a simulated GPU of its own, which tells its exact joules. Zeus is the
GlobalPowerLimitOptimizer of the package zeus 0.16 (``--zeus DIR`` says where it is installed; without it there is no
such row), with its default windows (10 + 40 iterations a limit, 25 W apart) and its default cost, eta 0.5. Ours is told
the same steps, by ``--metric`` with ``--max-slowdown``. Excess is by how much the metric at the cap that was left is
above its best at any whole watt, by the physics of the card; Zeus' by Zeus' cost, ours by ours. Then each training is
killed by SIGKILL after its search: what limit does the card have two seconds later?

    python benchmarks/bench_power_choice.py --zeus /tmp/zeus
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import machine, options

from powerd_core.gpu_physics import NETWORKS, RTX_6000, operate

LEAST_W, DEFAULT_W, _ = RTX_6000.limits_w


def value(name: str, metric: str, cap_w: float) -> float:
    """What a chooser makes least, of an iteration."""
    at = operate(RTX_6000, NETWORKS[name], cap_w)
    by = {
        "zeus": 0.5 * at.energy_j + 0.5 * DEFAULT_W * at.time_s,
        "e": at.energy_j,
        "edp": at.energy_j * at.time_s,
        "ed2p": at.energy_j * at.time_s**2,
    }
    return by[metric]


def excess(name: str, metric: str, cap_w: float, max_slowdown: float) -> float:
    slowest_s = operate(RTX_6000, NETWORKS[name], DEFAULT_W).time_s * (1 + max_slowdown)
    caps = range(int(LEAST_W), int(DEFAULT_W) + 1)
    fast = [cap for cap in caps if operate(RTX_6000, NETWORKS[name], cap).time_s <= slowest_s]
    return value(name, metric, cap_w) / min(value(name, metric, cap) for cap in fast) - 1


def train(arguments: dict) -> None:
    """The training, in the environment of the simulated GPU. Prints what the card truly took."""
    from powerd_daemon.sources.sim.gpu_socket import SimGpu

    gpu, network, full_s = SimGpu.here(), NETWORKS[arguments["network"]], arguments["iteration_s"]
    kernels_s, begin_s = (1 - network.waiting) * full_s, time.monotonic()

    def iterate() -> None:
        gpu.run(network.waiting * full_s, kernels_s * (1 - network.memory), kernels_s * network.memory, network.busy_w)

    def tell(searched: int) -> None:
        limit_w = gpu.call("nvmlDeviceGetPowerManagementLimit", [0]) / 1e3
        row = {"searched": searched, "cap_w": limit_w, "energy_j": gpu.truth()["energy_j"] - begin_j}
        print(json.dumps(row | {"time_s": time.monotonic() - begin_s}), flush=True)

    def loop(step, is_over) -> None:
        searched = 0
        for n in range(arguments["iterations"]):
            iterate() if step is None else step()
            if not searched and is_over():
                searched = n + 1
                if arguments["is_killed"]:
                    os.kill(os.getpid(), 9)
        tell(searched)

    begin_j = gpu.truth()["energy_j"]
    if arguments["who"] == "default":
        loop(None, lambda: False)
    elif arguments["who"] == "zeus":
        sys.path.append(arguments["zeus"])
        import zeus.monitor.energy
        from zeus.monitor import ZeusMonitor
        from zeus.optimizer.power_limit import Done, GlobalPowerLimitOptimizer

        zeus.monitor.energy.sync_execution_fn = lambda *_, **__: None  # there is no CUDA
        optimizer = GlobalPowerLimitOptimizer(ZeusMonitor(gpu_indices=[0]))

        def zeus_step() -> None:
            optimizer.on_step_begin()
            iterate()

        loop(zeus_step, lambda: isinstance(optimizer.state, Done))
    else:
        from powerd_client import Meter

        with (
            tempfile.TemporaryDirectory() as folder,
            Meter(out=Path(folder) / "run.h5", quiet=True) as meter,
            meter.optimise_power(arguments["metric"], arguments["max_slowdown"]) as chooser,
        ):

            def our_step() -> None:
                with chooser.iteration():
                    iterate()

            loop(our_step, lambda: chooser.decision is not None)


def on_a_gpu(folder: Path, **arguments) -> tuple[dict, float]:
    """What the training printed, and the limit of its card two seconds behind its end."""
    command = [sys.executable, "-m", "powerd_daemon", "sim-gpu", "--control", "--", "sh", "-c"]
    after = "from powerd_daemon.sources.sim.gpu_socket import SimGpu as S; "
    after += "print(S.here().call('nvmlDeviceGetPowerManagementLimit', [0]) / 1e3)"
    script = f'{sys.executable} {__file__} --train "$0"; sleep 2; {sys.executable} -c "{after}"'
    done = subprocess.run(
        [*command, script, json.dumps(arguments)], stdout=subprocess.PIPE, text=True, check=True, cwd=folder
    )
    *told, limit_w = done.stdout.splitlines()
    return json.loads(told[-1]) if told else {}, float(limit_w)


def main() -> None:
    chosen = options(
        __doc__,
        network=["vgg19"],
        who=["default", "ours", "zeus"],
        iterations=1600,
        iteration_s=0.06,
        metric="edp",
        max_slowdown=0.5,
        zeus="",
        train="",
    )
    if chosen.train:
        train(json.loads(chosen.train))
        return
    print(machine())
    people = [who for who in chosen.who if who != "zeus" or chosen.zeus]
    for network in chosen.network:
        before: dict = {}
        for who in people:
            arguments = {"who": who, "network": network, "is_killed": False, "zeus": chosen.zeus}
            arguments |= {name: getattr(chosen, name) for name in ("iterations", "metric", "max_slowdown")}
            arguments |= {"iteration_s": chosen.iteration_s}
            with tempfile.TemporaryDirectory() as folder:
                row, _ = on_a_gpu(Path(folder), **arguments)
                left_w = (
                    on_a_gpu(Path(folder), **(arguments | {"is_killed": True}))[1] if who != "default" else DEFAULT_W
                )
            before = before or row
            joules, seconds = row["energy_j"], row["time_s"]
            metric, slowdown = ("zeus", 9.0) if who == "zeus" else (chosen.metric, chosen.max_slowdown)
            print(
                f"{network} {who}: {joules:.0f} J ({joules / before['energy_j']:.3f} of the first), "
                f"{seconds:.1f} s ({seconds / before['time_s']:.3f}), searched {row['searched']} iterations, "
                f"cap {row['cap_w']:g} W, excess {100 * excess(network, metric, row['cap_w'], slowdown):.2f} %, "
                f"left by SIGKILL: {left_w:g} W",
                flush=True,
            )


if __name__ == "__main__":
    main()
