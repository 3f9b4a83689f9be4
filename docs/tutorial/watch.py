"""The same training without a mark: `watch` marks forward, backward and update by PyTorch's own hooks."""

import torch
from torch import nn

from powerd_client import Meter

model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.Flatten(), nn.Linear(32 * 44 * 44, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
images, labels = torch.randn(32, 3, 48, 48), torch.randint(10, (32,))

with Meter(out="watch.h5") as meter, meter.watch(model, optimizer, batch_size=32):
    for _ in range(12):
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
