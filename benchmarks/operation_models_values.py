"""Networks that ask for values, for `bench_operations.py --models all`.

Sequences in any order (packed and padded again), experts that take their tokens by a mask (after Fedus et al. 2021,
Switch), a variational autoencoder whose distributions check their arguments (Kingma and Welling 2014), and a LSTM in a
checkpoint without reentrance.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint


class AnyOrder(nn.Module):
    """[n, s, 64] to [n, s, 10]; of lengths that the model makes itself, the shortest first."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(64, 256, batch_first=True), nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        n, s, _ = x.shape
        lengths = torch.tensor([s - s * i // (2 * n) for i in range(n)][::-1], device=x.device)
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        made: Tensor = self.head(pad_packed_sequence(self.lstm(packed)[0], batch_first=True)[0])
        return made


class Experts(nn.Module):
    """[n, s, width] to the same: each token to the best of eight networks, by a mask."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, 8, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(8)
        )

    def forward(self, x: Tensor) -> Tensor:
        weight, best = self.gate(x).softmax(-1).max(-1)
        y = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            mine = best == i
            if mine.any():
                y[mine] = expert(x[mine]) * weight[mine].unsqueeze(-1)
        return y


class Switch(nn.Module):
    """[n, s] tokens to [n, s, 30000]: twelve layers of width 768, every other one with experts."""

    def __init__(self, width: int = 768) -> None:
        super().__init__()
        self.tokens = nn.Embedding(30000, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 12, 4 * width, batch_first=True, norm_first=True) for _ in range(12)
        )
        self.experts = nn.ModuleList(Experts(width) for _ in range(6))
        self.head = nn.Linear(width, 30000)

    def forward(self, x: Tensor) -> Tensor:
        y = self.tokens(x)
        for i, layer in enumerate(self.layers):
            y = layer(y)
            y = y + self.experts[i // 2](y) if i % 2 else y
        made: Tensor = self.head(y)
        return made


class Variational(nn.Module):
    """[n, 3, 64, 64] to the evidence bound of each picture."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 32, 64, 128, 256)
        down = [(nn.Conv2d(a, b, 4, 2, 1), nn.ReLU()) for a, b in pairwise(widths)]
        up = [(nn.ConvTranspose2d(b, a, 4, 2, 1), nn.ReLU()) for a, b in pairwise(widths)][::-1]
        self.encoder = nn.Sequential(*(m for pair in down for m in pair), nn.Flatten(), nn.Linear(4096, 256))
        self.start = nn.Linear(128, 4096)
        self.decoder = nn.Sequential(*[m for pair in up for m in pair][:-1])

    def forward(self, x: Tensor) -> Tensor:
        mean, scale = self.encoder(x).chunk(2, -1)
        latent = torch.distributions.Normal(mean, nn.functional.softplus(scale))
        prior = torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
        drawn = self.start(latent.rsample()).view(-1, 256, 4, 4)
        pixels = torch.distributions.Bernoulli(logits=self.decoder(drawn))
        made: Tensor = pixels.log_prob(x.sigmoid().round()).sum((1, 2, 3)) - torch.distributions.kl_divergence(
            latent, prior
        ).sum(-1)
        return made


class Kept(nn.Module):
    """[n, s, 64] to [n, 10]: an LSTM that runs again in backward, up to the last tensor that is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.lstm = nn.Linear(64, 64), nn.LSTM(64, 256, batch_first=True)
        self.head = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        read = checkpoint(self.lstm, self.first(x), use_reentrant=False)[0]
        made: Tensor = self.head(read[:, -1])
        return made


any_order, switch, variational, lstm_kept = AnyOrder, Switch, Variational, Kept
"""What makes each of them."""
