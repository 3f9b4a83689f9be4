"""The plain loop again. The kernel kills it in the middle, as it does when memory runs out."""

import os
import signal

import torch
from torch import nn

from powerd_client import Meter

model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.Flatten(), nn.Linear(32 * 44 * 44, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
images, labels = torch.randn(32, 3, 48, 48), torch.randint(10, (32,))

with Meter(out="killed.h5") as meter, meter.phase("training", model="small-cnn", batch_size=32):
    for k in range(12):
        if k == 6:
            os.kill(os.getpid(), signal.SIGKILL)
        with meter.phase("iteration"):
            with meter.phase("forward"):
                loss = nn.functional.cross_entropy(model(images), labels)
            with meter.phase("backward"):
                loss.backward()
            with meter.phase("update"):
                optimizer.step()
                optimizer.zero_grad()
