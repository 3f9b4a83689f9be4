"""DDP and FSDP over gloo, each rank a process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from powerd_client.torch_hooks import TorchMarks
from support.tape import TapedMeter

TESTS = Path(__file__).parents[1]

PREAMBLE = """
import json, os, sys, warnings
warnings.simplefilter("ignore")  # what the framework says of itself
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from support.tape import TapedMeter
dist.init_process_group("gloo", init_method="file://" + sys.argv[3], rank=int(sys.argv[1]), world_size=int(sys.argv[2]))
torch.manual_seed(1)
meter = TapedMeter()
model = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 2))
x = torch.randn(4, 3) * (dist.get_rank() + 1)
found = {}
def gradients(ddp):
    ddp.zero_grad()
    ddp(x).sum().backward()
    return [p.grad.clone() for p in ddp.parameters()]
"""

REDUCTION = """
import copy
model = nn.Sequential(nn.Linear(3, 600), nn.ReLU(), nn.Linear(600, 600), nn.Linear(600, 600), nn.Linear(600, 2))
for name, in_place in [("same", False), ("same_in_place", True)]:
    plain = DDP(copy.deepcopy(model), gradient_as_bucket_view=in_place)
    gradients(plain)  # the buckets are cut after the first pass
    plain = gradients(plain)
    ddp = DDP(copy.deepcopy(model), gradient_as_bucket_view=in_place)
    with meter.watch(ddp):
        gradients(ddp)
        ours = gradients(ddp)
    found[name] = all(torch.equal(a, b) for a, b in zip(ours, plain))
found["tree"] = meter.tree(drop=["communication:True"])
phases, names = meter.tape.phases()
mean = [names[k] for k in phases.kind]
found["communication"] = mean.count("communication:True")
found["inside"] = [phases.parent[i] for i, n in enumerate(mean) if n == "communication:True"]
backward = [(phases.begin_ns[i], phases.end_ns[i]) for i, n in enumerate(mean) if n == "backward"]
found["during_backward"] = all(
    any(b < phases.begin_ns[i] < phases.end_ns[i] < e for b, e in backward)
    for i, n in enumerate(mean) if n == "communication:True"
)
marks = len(meter.tape.marks)
gradients(ddp)
found["after"] = len(meter.tape.marks) - marks
"""

HOOKS = """
ddp = DDP(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
meter.watch(ddp, optimizer, layers=True)
used = []
def users(state, bucket):
    used.append(state)
    future = torch.futures.Future()
    future.set_result(bucket.buffer() * 0)
    return future
ddp.register_comm_hook("mine", users)
with ddp.no_sync():
    ddp(x).sum().backward()
optimizer.zero_grad()
found["zero"] = all(float(g.abs().sum()) == 0 for g in gradients(ddp))
optimizer.step()
found["used"] = used[0]
found["tree"] = meter.tree()
late = DDP(nn.Linear(3, 2))
late.register_comm_hook(None, users)
meter.watch(late)
found["notes"] = meter.tape.notes
try:
    ddp.register_comm_hook(None, 3)
except TypeError as error:
    found["refused"] = str(error)
"""

SHARDED = """
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
for layer in (model[0], model[2]):
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
"""

WRAPPED = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
cpu = torch.device("cpu")
inside = nn.Sequential(FSDP(model[0], device_id=cpu), model[1], FSDP(model[2], device_id=cpu), model[3])
model = FSDP(inside, device_id=cpu)
"""

TRAINED = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
meter.watch(model, optimizer, layers=True)
for _ in range(2):
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
found["tree"] = meter.tree()
found["notes"] = meter.tape.notes
"""

# A worker thread of gloo wakes the rank before it drops the collective's tensors. Where it comes to that only while the
# interpreter ends, and a tensor is a Python object (FSDP's are, watched or not), it is refused the interpreter's lock
# and ends the process: "terminate called without an active exception". So exit functions are run by hand, the rest of
# an orderly exit is left out.
END = """
print("found " + json.dumps(found), flush=True)
dist.destroy_process_group()
import atexit
atexit._run_exitfuncs()
sys.stderr.flush()
os._exit(0)
"""


def run_ranks(tmp_path, script, ranks=2):
    """What each rank found."""
    program = f"{PREAMBLE}{script}{END}"
    paths = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(rank), str(ranks), str(tmp_path / "rendezvous")],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    found = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=100)
            assert process.returncode == 0, err
            found += [json.loads(line[6:]) for line in out.splitlines() if line.startswith("found ")]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return found


@pytest.mark.parametrize("ranks", [2, 3])
def test_reductions_lie_beside_backward_and_change_no_gradient(tmp_path, ranks):
    for found in run_ranks(tmp_path, REDUCTION, ranks):
        assert found["tree"] == " ".join(["forward backward"] * 4)
        assert (found["same"], found["same_in_place"]) == (True, True)
        assert found["communication"] >= 6  # several buckets a pass
        assert set(found["inside"]) == {-1}
        assert found["during_backward"]
        assert found["after"] == 0


def test_the_users_own_communication_hook_is_kept(tmp_path):
    layers = "[layer:3 layer:2 layer:1 layer:0]"
    forward = "forward[layer:0 layer:1 layer:2 layer:3]"
    for found in run_ranks(tmp_path, HOOKS):
        assert (found["used"], found["zero"]) == ("mine", True)
        words = found["tree"].replace(" communication:True", "")
        assert words == f"{forward} backward{layers} {forward} backward{layers} update"
        assert "communication:True" in found["tree"]
        assert len(found["notes"]) == 1
        assert "must be callable" in found["refused"]


@pytest.mark.parametrize("made", [SHARDED, WRAPPED])
def test_fsdp_is_marked(tmp_path, made):
    forward, backward = "forward[layer:0 layer:1 layer:2 layer:3]", "backward[layer:3 layer:2 layer:1 layer:0]"
    for found in run_ranks(tmp_path, made + TRAINED):
        assert found["tree"] == " ".join([f"{forward} {backward} update"] * 2)
        assert found["notes"] == []


class _Bucket:
    def __init__(self, index, *, on_gpu):
        self._index, self._on_gpu = index, on_gpu

    def index(self):
        return self._index

    def buffer(self):
        return SimpleNamespace(is_cuda=self._on_gpu)


@pytest.mark.parametrize(("on_gpu", "marked"), [(False, 70), (True, 3)])
def test_on_a_gpu_one_pass_of_many_is_marked(on_gpu, marked):
    torch = pytest.importorskip("torch")
    from powerd_client.ddp import Communication

    def done(state, bucket):
        future = torch.futures.Future()
        future.set_result(bucket.index())
        return future

    meter = TapedMeter()
    communication = Communication(SimpleNamespace(process_group=SimpleNamespace(size=lambda: 1)))
    communication.inner = done, None
    communication.mark_for(TorchMarks(meter._mark, meter.phase, meter._writer), {})
    for _ in range(70):
        assert [communication.reduce(_Bucket(i, on_gpu=on_gpu)).wait() for i in range(3)] == [0, 1, 2]
    phases, _ = meter.tape.phases()
    assert len(phases.kind) == marked * 3
