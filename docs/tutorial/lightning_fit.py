"""Lightning: a callback marks the waits for data, forward, backward and update."""

import logging

import lightning
import torch
from torch import nn

from powerd_client import Meter
from powerd_client.callbacks.lightning import PowerdCallback


class SmallCnn(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.Flatten(), nn.Linear(32 * 44 * 44, 10)
        )

    def training_step(self, batch, index):
        images, labels = batch
        return nn.functional.cross_entropy(self.layers(images), labels)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


data = torch.utils.data.TensorDataset(torch.randn(12 * 32, 3, 48, 48), torch.randint(10, (12 * 32,)))
loader = torch.utils.data.DataLoader(data, batch_size=32)
quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
with Meter(out="lightning_fit.h5") as meter:
    callback = PowerdCallback(meter, model="small-cnn", batch_size=32)
    lightning.Trainer(max_epochs=1, accelerator="cpu", callbacks=[callback], **quiet).fit(SmallCnn(), loader)
