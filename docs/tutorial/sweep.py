"""One run of a campaign: `python sweep.py BATCH_SIZE RUN_FILE` trains a small CNN with that batch size."""

import sys

import torch
from torch import nn

from powerd_analytics import count_operations
from powerd_client import Meter

batch_size, out = int(sys.argv[1]), sys.argv[2]
model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.Flatten(), nn.Linear(32 * 44 * 44, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
images, labels = torch.randn(batch_size, 3, 48, 48), torch.randint(10, (batch_size,))
operations = count_operations(model, (3, 48, 48)).total  # of one sample's forward pass, for GFLOPS/W


def train(meter: Meter, iterations: int) -> None:
    for _ in range(iterations):
        with meter.phase("iteration"):
            with meter.phase("forward"):
                loss = nn.functional.cross_entropy(model(images), labels)
            with meter.phase("backward"):
                loss.backward()
            with meter.phase("update"):
                optimizer.step()
                optimizer.zero_grad()


with Meter(out=out) as meter:
    with meter.phase("warm-up"):
        train(meter, 5)
    with meter.phase("training", model="small-cnn", batch_size=batch_size, operations_per_sample=operations):
        train(meter, 25)
