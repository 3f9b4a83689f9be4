"""A plain training loop: the iteration and its three phases are marked by hand."""

import torch
from torch import nn

from powerd_client import Meter

model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.Flatten(), nn.Linear(32 * 44 * 44, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
images, labels = torch.randn(32, 3, 48, 48), torch.randint(10, (32,))

with Meter(out="plain_loop.h5") as meter, meter.phase("training", model="small-cnn", batch_size=32):
    for _ in range(50):
        with meter.phase("iteration"):
            with meter.phase("forward"):
                loss = nn.functional.cross_entropy(model(images), labels)
            with meter.phase("backward"):
                loss.backward()
            with meter.phase("update"):
                optimizer.step()
                optimizer.zero_grad()
