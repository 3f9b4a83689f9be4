"""DDP and FSDP over gloo, each rank a process; what they import takes longest, and the forks share it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from powerd_client.training.ddp import Communication, mark_communication
from powerd_client.training.torch_hooks import TorchMarks
from support.tape import TapedMeter

TESTS = Path(__file__).parents[1]
RANKS = 3

PROGRAM = """
import atexit, copy, json, os, pickle, sys, warnings
warnings.simplefilter("ignore")  # what the framework says of itself
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP
from support.tape import TapedMeter

ranks, rendezvous = int(sys.argv[1]), sys.argv[2]
for rank in range(ranks):
    if os.fork() == 0:
        break
else:
    sys.exit(any([os.wait()[1] for _ in range(ranks)]))
dist.init_process_group("gloo", init_method="file://" + rendezvous, rank=rank, world_size=ranks)
pair = dist.new_group([0, 1])
x = torch.randn(4, 3) * (rank + 1)
found = {}

def network(width=64):
    torch.manual_seed(1)
    layers = nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width), nn.Linear(width, 2)
    return nn.Sequential(*layers)

def gradients(ddp):
    ddp.zero_grad()
    ddp(x).sum().backward()
    return [p.grad.clone() for p in ddp.parameters()]

def reduction(group):
    meter, same = TapedMeter(), []
    for in_place in (False, True):
        plain = DDP(network(600), process_group=group, gradient_as_bucket_view=in_place)
        gradients(plain)  # the buckets are cut after the first pass
        plain = gradients(plain)
        ddp = DDP(network(600), process_group=group, gradient_as_bucket_view=in_place)
        with meter.watch(ddp):
            gradients(ddp)
            same += [torch.equal(a, b) for a, b in zip(gradients(ddp), plain)]
    phases, names = meter.tape.phases()
    marks, spans = len(meter.tape.marks), list(zip(phases.begin_ns, phases.end_ns, phases.parent, phases.kind))
    gradients(ddp)
    beside = [span for span in spans if names[span[3]] == "communication:True"]
    backward = [span for span in spans if names[span[3]] == "backward"]
    return {
        "same": all(same),
        "tree": meter.tree(drop=["communication:True"]),
        "communication": len(beside),
        "outermost": all(parent == -1 for _, _, parent, _ in beside),
        "during backward": all(any(b < c < d < e for b, e, *_ in backward) for c, d, *_ in beside),
        "after": len(meter.tape.marks) - marks,
    }

def hooks():
    meter, ddp, used = TapedMeter(), DDP(network()), []
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    meter.watch(ddp, optimizer, layers=True)
    def users(state, bucket):
        used.append(state)
        future = torch.futures.Future()
        future.set_result(bucket.buffer() * 0)
        return future
    ddp.register_comm_hook("mine", users)
    with ddp.no_sync():
        ddp(x).sum().backward()
    optimizer.zero_grad()
    zero = all(float(g.abs().sum()) == 0 for g in gradients(ddp))
    optimizer.step()
    tree = meter.tree()
    late = DDP(nn.Linear(3, 2))
    late.register_comm_hook(None, users)
    meter.watch(late)
    notes = list(meter.tape.notes)
    try:
        ddp.register_comm_hook(None, 3)
    except TypeError as error:
        refused = str(error)
    return {"zero": zero, "used": used[0], "tree": tree, "notes": notes, "refused": refused}

def copies():
    meter, ddp, late = TapedMeter(), DDP(network()), DDP(network())
    before = pickle.dumps(ddp), pickle.dumps(late)
    meter.watch(ddp, layers=True)
    meter.watch(late)
    late.register_comm_hook(None, fp16_compress_hook)
    with_hook, copied = pickle.loads(pickle.dumps(late)), copy.deepcopy(ddp)
    marks = len(meter.tape.marks)
    gradients(copied)
    return {
        "same": pickle.dumps(ddp) == before[0],
        "powerd": b"powerd" in pickle.dumps([ddp, late]),
        "users": [hook.__name__ for hook, _ in with_hook._comm_hooks],
        "marks": len(meter.tape.marks) - marks,
    }

def sharded():
    model, mesh = network(), init_device_mesh("cpu", (ranks,))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    return model

def wrapped():
    model, cpu = network(), torch.device("cpu")
    inside = nn.Sequential(FSDP(model[0], device_id=cpu), model[1], FSDP(model[2], device_id=cpu), model[3])
    return FSDP(inside, device_id=cpu)

def trained(model):
    meter, optimizer = TapedMeter(), torch.optim.SGD(model.parameters(), lr=0.1)
    meter.watch(model, optimizer, layers=True)
    for _ in range(2):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return {"tree": meter.tree(), "notes": meter.tape.notes}

found = {
    "reductions": [reduction(None), *([reduction(pair)] if rank < 2 else [])],
    "hooks": hooks(),
    "copies": copies(),
    "fsdp": [trained(sharded()), trained(wrapped())],
}
with open(f"{rendezvous}-{rank}.json", "w") as file:
    json.dump(found, file)
dist.destroy_process_group()
# A worker thread of gloo wakes the rank before it drops the collective's tensors. Where it comes to that only while the
# interpreter ends, and a tensor is a Python object (FSDP's are, watched or not), it is refused the interpreter's lock
# and ends the process: "terminate called without an active exception". So exit functions are run by hand, the rest of
# an orderly exit is left out.
atexit._run_exitfuncs()
sys.stderr.flush()
os._exit(0)
"""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each rank found."""
    rendezvous = tmp_path_factory.mktemp("ddp") / "rendezvous"
    paths = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-c", PROGRAM, str(RANKS), str(rendezvous)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    return [json.loads(Path(f"{rendezvous}-{rank}.json").read_text()) for rank in range(RANKS)]


def test_reductions_lie_beside_backward_and_change_no_gradient(ranks):
    assert [len(found["reductions"]) for found in ranks] == [2, 2, 1]  # of three ranks, and of two
    for found in (reduction for rank in ranks for reduction in rank["reductions"]):
        assert found["communication"] >= 6  # several buckets a pass
        assert found["tree"] == " ".join(["forward backward"] * 4)
        assert (found["same"], found["outermost"], found["during backward"], found["after"]) == (True, True, True, 0)


def test_the_users_own_communication_hook_is_kept(ranks):
    layers, forward = "[layer:3 layer:2 layer:1 layer:0]", "forward[layer:0 layer:1 layer:2 layer:3]"
    for found in (rank["hooks"] for rank in ranks):
        assert (found["used"], found["zero"]) == ("mine", True)
        words = found["tree"].replace(" communication:True", "")
        assert words == f"{forward} backward{layers} {forward} backward{layers} update"
        assert "communication:True" in found["tree"]
        assert len(found["notes"]) == 1
        assert "must be callable" in found["refused"]


def test_copies_and_pickles_have_the_users_hook_and_none_of_powerd(ranks):
    users = {"same": True, "powerd": False, "users": ["fp16_compress_hook"]}
    for found in (rank["copies"] for rank in ranks):
        # A copy of DDP has the parameters of a model of its own: its backward is of none that is watched.
        assert found == {**users, "marks": 0}


def test_fsdp_is_marked(ranks):
    forward, backward = "forward[layer:0 layer:1 layer:2 layer:3]", "backward[layer:3 layer:2 layer:1 layer:0]"
    for found in (trained for rank in ranks for trained in rank["fsdp"]):
        assert found == {"tree": " ".join([f"{forward} {backward} update"] * 2), "notes": []}


def test_on_a_gpu_no_hook_is_registered_unless_asked_and_ddps_own_timers_are_told(monkeypatch):
    class OnGpu(torch.nn.parallel.DistributedDataParallel):
        def __init__(self):
            pass

        def parameters(self):
            return [SimpleNamespace(is_cuda=True)]

        def register_comm_hook(self, state, hook):
            registered.append(hook)

        def _get_ddp_logging_data(self):
            times = ("comm", 4_000_000), ("compute_comm_overlap", 3_000_000), ("compute", 9_000_000)
            return {f"avg_backward_{name}_time": ns for name, ns in times}

    registered = []
    model = OnGpu()
    object.__setattr__(model, "process_group", SimpleNamespace(size=lambda: 2))
    object.__setattr__(model, "_comm_hooks", [])
    meter = TapedMeter()
    marks = TorchMarks(meter._mark, meter.phase, meter._writer)
    end = mark_communication(marks, model, {}, is_asked=False)
    end()
    assert not registered
    ((name, values),) = meter.tape.events
    assert name == "ddp-timers"
    assert values == pytest.approx({"communication_s": 4e-3, "overlap_s": 3e-3, "backward_s": 9e-3})
    mark_communication(marks, model, {}, is_asked=True)()
    assert registered
    marks.close()


@pytest.mark.parametrize(("on_gpu", "marked"), [(False, 70), (True, 3)])
def test_on_a_gpu_one_pass_of_many_is_marked(on_gpu, marked):
    def done(state, bucket):
        future = torch.futures.Future()
        future.set_result(bucket.index())
        return future

    def bucket(index):
        return SimpleNamespace(index=lambda: index, buffer=lambda: SimpleNamespace(is_cuda=on_gpu))

    meter = TapedMeter()
    communication = Communication(SimpleNamespace(process_group=SimpleNamespace(size=lambda: 1)))
    communication.inner = done, None
    marks = TorchMarks(meter._mark, meter.phase, meter._writer)
    communication.mark_for(marks, {})
    for _ in range(70):
        assert [communication.reduce(bucket(i)).wait() for i in range(3)] == [0, 1, 2]
    marks.close()
    phases, _ = meter.tape.phases()
    assert len(phases.kind) == marked * 3
