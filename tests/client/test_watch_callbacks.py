"""The callbacks under the real trainers, where these are installed."""

import logging
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from support.tape import TapedMeter

pytestmark = pytest.mark.filterwarnings("ignore")  # what the frameworks say of themselves


@pytest.fixture
def meter():
    original = torch.autograd.backward
    with TapedMeter() as meter:
        yield meter
    assert torch.autograd.backward is original


def loader(items=4):
    return DataLoader(TensorDataset(torch.randn(2 * items, 3), torch.randn(2 * items, 2)), batch_size=2)


def lightning_module(pl, manual=False, error=None):
    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(3, 2)
            self.automatic_optimization = not manual

        def training_step(self, batch, index):
            if error and index == 1:
                raise error
            loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
            if manual:
                self.manual_backward(loss)
                self.optimizers().step()
            return loss

        def validation_step(self, batch, index):
            self.net(batch[0])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.1)

    return Module()


def fit(pl, tmp_path, meter, module, callback=None, **options):
    from powerd_client.callbacks.lightning import PowerdCallback

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    trainer = pl.Trainer(
        max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu", devices=1,
        enable_model_summary=False, default_root_dir=tmp_path, num_sanity_val_steps=0,
        callbacks=[callback or PowerdCallback(meter)], **options,
    )  # fmt: skip
    trainer.fit(module, loader(), loader(2) if "limit_val_batches" not in options else None)


def without_data(meter):
    return " ".join(meter.tree(drop=["data"]).split())


@pytest.fixture
def pl():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("lightning.pytorch")


def test_lightning(pl, meter, tmp_path):
    fit(pl, tmp_path, meter, lightning_module(pl))
    assert without_data(meter) == "forward backward update " * 4 + "evaluation evaluation"
    assert meter.tree().count("data") >= 3  # a batch may be fetched before anybody listens
    assert meter.tape.notes == []


def test_lightning_with_accumulation_and_clipping(pl, meter, tmp_path):
    fit(
        pl, tmp_path, meter, lightning_module(pl),
        accumulate_grad_batches=2, gradient_clip_val=1.0, limit_val_batches=0,
    )  # fmt: skip
    assert without_data(meter) == " ".join(["forward backward forward backward update"] * 2)


def test_lightning_under_manual_optimization(pl, meter, tmp_path):
    fit(pl, tmp_path, meter, lightning_module(pl, manual=True), limit_val_batches=0)
    assert without_data(meter) == " ".join(["iteration[backward update]"] * 4)


def test_lightning_after_an_exception(pl, meter, tmp_path):
    with pytest.raises(ValueError, match="broken"):
        fit(pl, tmp_path, meter, lightning_module(pl, error=ValueError("broken")), limit_val_batches=0)
    assert without_data(meter) == "forward backward update forward!"


def test_lightning_layers(pl, meter, tmp_path):
    from powerd_client.callbacks.lightning import PowerdCallback

    callback = PowerdCallback(meter, layers=True, model="tiny")
    fit(pl, tmp_path, meter, lightning_module(pl), callback, limit_val_batches=0, max_steps=1)
    layers = "forward:tiny[layer:net:tiny] backward:tiny[layer:net:tiny] update:tiny"
    assert meter.tree(drop=["data:tiny"]).strip() == layers


def test_lightning_when_nothing_is_recorded(pl, meter, tmp_path):
    meter.close()
    fit(pl, tmp_path, meter, lightning_module(pl))
    assert meter.tree() == ""


class Regression(nn.Module):
    """A model in the form that a Trainer calls."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 2)

    def forward(self, x, labels):
        y = self.net(x)
        return {"loss": nn.functional.mse_loss(y, labels), "logits": y}


def run_trainer(tmp_path, meter, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers = pytest.importorskip("transformers")
        from powerd_client.callbacks.transformers import PowerdCallback

        data = [{"x": torch.randn(3), "labels": torch.randn(2)} for _ in range(8)]
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path), per_device_train_batch_size=2, num_train_epochs=1, report_to=[], use_cpu=True,
            save_strategy="no", logging_strategy="no", disable_tqdm=True, **options,
        )  # fmt: skip
        trainer = transformers.Trainer(
            model=Regression(),
            args=arguments,
            train_dataset=data,
            eval_dataset=data[:2],
            callbacks=[PowerdCallback(meter)],
        )
        trainer.train()


def test_transformers(meter, tmp_path):
    run_trainer(tmp_path, meter)
    assert meter.tree() == " ".join(["data iteration[forward backward update]"] * 4)
    assert meter.tape.notes == []


def test_transformers_with_accumulation_and_evaluation(meter, tmp_path):
    run_trainer(tmp_path, meter, gradient_accumulation_steps=2, eval_strategy="epoch")
    step = "data data iteration[forward backward forward backward update]"
    assert meter.tree() == f"{step} {step} evaluation"
