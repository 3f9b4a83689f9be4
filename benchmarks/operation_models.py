"""Models that `bench_operations.py` counts and the zoo does not have."""

from __future__ import annotations

from torch import Tensor, nn


def grouped() -> nn.Module:
    """Convolutions of 3 x 3 with 16 groups, behind one of 1 x 1."""
    return nn.Sequential(nn.Conv2d(64, 64, 1), *(nn.Conv2d(64, 64, 3, padding=1, groups=16) for _ in range(3)))


class LSTM(nn.Module):
    """Two layers; the last step's output is used."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(64, 128, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0][:, -1]


def lstm() -> nn.Module:
    return LSTM()
