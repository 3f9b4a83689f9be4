"""One cap for all ranks of a job: two processes over gloo, each as a machine with a simulated GPU and a helper."""

import json
import os
import socket
import subprocess
import sys

import pytest

from powerd_analytics.runs.run import read_run

RANK = """
import json, os, signal, sys
import torch
import torch.distributed as dist
from torch import nn
from powerd_client import Meter
from powerd_client.knobs.control import Hold
from powerd_core.gpu_physics import NETWORKS
from powerd_daemon.sources.sim.gpu_socket import SimGpu

kind, act = sys.argv[1:]
torch.set_num_threads(1)
torch.manual_seed(1)
rank, network, gpu, full_s = int(os.environ["RANK"]), NETWORKS["vgg19"], SimGpu.here(), 0.02
kernels_s = (1 - network.waiting) * full_s
limit_w = lambda: gpu.call("nvmlDeviceGetPowerManagementLimit", [0]) / 1e3
with Meter(out="run.h5", quiet=True) as meter:
    dist.init_process_group("gloo")
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    if kind == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    else:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    somebody = Hold({"power_cap_w": 250}, name="somebody", settle_s=0.0)
    if act == "refuse" and rank:
        somebody.acquire()
    over, collectives = torch.zeros(1), []
    with meter.optimise_power("e", 0.5, window_s=0.2, settle_s=0.1) as chooser:
        for done in range(1500):
            with chooser.iteration():
                model(torch.randn(4, 8)).sum().backward()
                gpu.run(network.waiting * full_s, kernels_s * (1 - network.memory), kernels_s * network.memory, 187.0)
                optimizer.step()
                optimizer.zero_grad()
            is_looking = chooser._search is not None or chooser._is_joining
            over[:] = rank == 0 and done > 20 and not is_looking
            dist.broadcast(over, 0)
            if over:
                break
        while chooser._job is not None and not rank and not chooser._job.is_set:
            pass  # the last order is not waited for
        dist.barrier()
        decision = None if chooser.decision is None else chooser.decision.level
        print(json.dumps([decision, limit_w()]), flush=True)
        dist.barrier()
        if act == "kill" and rank:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()
    somebody.release()
    print(limit_w())
    dist.destroy_process_group()
"""
AFTER = "from powerd_daemon.sources.sim.gpu_socket import SimGpu as S; "
AFTER += "print(S.here().call('nvmlDeviceGetPowerManagementLimit', [0]) / 1e3)"


def train(folder, kind, act=""):
    """What each rank printed, and said; the last line is the limit of its card two seconds behind it."""
    (folder / "rank.py").write_text(RANK)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    unset = ("POWERD_RUN", "POWERD_CONTROL", "CUDA_VISIBLE_DEVICES")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    environment |= {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "OMP_NUM_THREADS": "1"}
    script = f'{sys.executable} rank.py {kind} "{act}"; sleep 2; {sys.executable} -c "{AFTER}"'
    sim = [sys.executable, "-m", "powerd_daemon", "sim-gpu", "--control", "--", "sh", "-c", script]
    ranks = [
        subprocess.Popen(
            sim, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
            env={**environment, "RANK": rank, "GROUP_RANK": rank},
        )
        for rank in "01"
    ]  # fmt: skip
    told = [process.communicate(timeout=150) for process in ranks]
    return [out.splitlines() for out, _ in told], [error for _, error in told]


def caps_of(folder):
    """What each rank has held in turn, by the runs of their machines."""
    runs = [read_run(folder / name) for name in ("run.h5", "run.node1.h5")]
    return [[e.values["asked"] for e in run.events if e.name == "setting" and e.values["asked"]] for run in runs]


@pytest.mark.timeout(170)
def test_rank_0_of_fsdp_chooses_and_all_ranks_hold_that_cap(tmp_path):
    printed, said = train(tmp_path, "fsdp")
    level = json.loads(printed[0][0])[0]
    assert 100 <= level < 260, said
    assert printed == [[f"[{level}, {level}]", "260.0", "260.0"], [f"[null, {level}]", "260.0", "260.0"]]
    assert "a power cap of" in said[0]
    assert "power cap" not in said[1]
    first, second = caps_of(tmp_path)
    assert first == second, "each cap was held on both machines"
    assert len(first) > 5
    follower = read_run(tmp_path / "run.node1.h5").events
    assert [e.values for e in follower if e.name == "power-choice"] == [{"decides": "rank 0"}]


@pytest.mark.timeout(170)
def test_where_a_rank_of_ddp_is_killed_nothing_stays_on_any(tmp_path):
    printed, said = train(tmp_path, "ddp", "kill")
    level = json.loads(printed[0][0])[0]
    assert 100 <= level < 260, said
    assert printed[1] == [f"[null, {level}]", "260.0"], "it held the cap, and was killed"
    assert printed[0][-1] == "260.0"


@pytest.mark.timeout(170)
def test_where_one_rank_is_refused_none_holds_and_one_line_says_so(tmp_path):
    printed, said = train(tmp_path, "ddp", "refuse")
    assert printed == [["[null, 260.0]", "260.0", "260.0"], ["[null, 250.0]", "260.0", "260.0"]], said
    lines = [line for line in "\n".join(said).splitlines() if "power" in line and "held" in line]
    assert len(lines) == 1, said
    assert lines[0].startswith("powerd: no power cap is chosen: rank 1: ")
    assert "somebody" in lines[0]
