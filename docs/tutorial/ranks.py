"""Two ranks train together: one run file, and every joule is counted once."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from powerd_client import Meter

with Meter(out="ranks.h5") as meter:  # in every rank, before anything that waits for other ranks
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    net = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.Flatten(), nn.Linear(32 * 44 * 44, 10))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, labels = torch.randn(32, 3, 48, 48), torch.randint(10, (32,))
    with meter.watch(model, optimizer, batch_size=32):
        for _ in range(12):
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
    dist.destroy_process_group()
