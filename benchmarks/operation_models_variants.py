"""Known networks as they are often trained: channels last, short types, checkpoints. For `bench_operations.py`."""

from __future__ import annotations

from typing import Any

import torch
from operation_models_language import Gpt, Llama
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from powerd_analytics.operations.zoo_resnet import resnet50


class ChannelsLast(nn.Module):
    """Pictures turned to the layout that tensor cores prefer."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        to: Any = inner.to
        self.inner = to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Any:
        return self.inner(x.to(memory_format=torch.channels_last))


class Short(nn.Module):
    """A model of a short type, fed with values of that type."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner.to(torch.bfloat16)

    def forward(self, x: Tensor) -> Any:
        return self.inner(x.to(torch.bfloat16) if x.is_floating_point() else x)


class Checkpointed(nn.Module):
    """A layer that is computed again in backward."""

    def __init__(self, inner: nn.Module, *, reentrant: bool = False) -> None:
        super().__init__()
        self.inner, self.is_reentrant = inner, reentrant

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.inner, x, use_reentrant=self.is_reentrant)


def resnet50_channels_last() -> nn.Module:
    """25.6 million parameters."""
    return ChannelsLast(resnet50())


def resnet50_bfloat16() -> nn.Module:
    """25.6 million parameters."""
    return Short(resnet50())


def llama_bfloat16() -> nn.Module:
    """6.7 thousand million parameters."""
    return Short(Llama())


def gpt2_checkpointed() -> nn.Module:
    """124 million parameters."""
    return _checkpointed(reentrant=False)


def gpt2_reentrant() -> nn.Module:
    """The same with the older kind of checkpoint."""
    return _checkpointed(reentrant=True)


def _checkpointed(*, reentrant: bool) -> nn.Module:
    made = Gpt()
    made.layers = nn.ModuleList(Checkpointed(layer, reentrant=reentrant) for layer in made.layers)
    return made
