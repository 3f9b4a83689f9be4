"""A DDP training of two ranks over gloo for the tests of ranks, a few iterations with phases: `ddp_training.py`.

Forks the ranks, told of it as by a launcher. What DDP imports takes longer than all the rest; the forks share it.
"""

import os
import sys
import time

import torch
import torch._dynamo  # of which DDP makes use
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from powerd_client import Meter


def train():
    torch.manual_seed(int(os.environ["RANK"]))
    with Meter(out="elsewhere.h5") as meter:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 8)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        meter.watch(model, optimizer)
        with meter.phase("training", batch_size=16):
            for _ in range(4):
                with meter.phase("iteration"):
                    model(torch.randn(16, 32)).square().mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    time.sleep(0.05)  # longer than the distance of the readings
    sys.stdout.write(f"rank {os.environ['RANK']} has trained\n")  # in one piece, whatever the buffering


def fork(ranks):
    pids = []
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                os.environ |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
                train()
                status = 0
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)  # torch's threads may abort a process that ends in order
        pids.append(pid)
    return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids)


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(fork(2))
