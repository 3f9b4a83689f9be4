"""Hugging Face's Trainer: a callback marks the iteration, the waits for data, forward, backward and update."""

import torch
from torch import nn
from transformers import Trainer, TrainingArguments

from powerd_client import Meter
from powerd_client.callbacks.transformers import PowerdCallback


class SmallCnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.Flatten(), nn.Linear(32 * 44 * 44, 10)
        )

    def forward(self, images, labels):
        logits = self.layers(images)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


dataset = [{"images": torch.randn(3, 48, 48), "labels": k % 10} for k in range(12 * 32)]
arguments = TrainingArguments(
    "trainer", per_device_train_batch_size=32, num_train_epochs=1, use_cpu=True, report_to=[], disable_tqdm=True
)
with Meter(out="trainer.h5") as meter:
    callback = PowerdCallback(meter, model="small-cnn", batch_size=32)
    Trainer(model=SmallCnn(), args=arguments, train_dataset=dataset, callbacks=[callback]).train()
