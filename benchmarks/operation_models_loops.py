"""Recurrent networks and loops in Python over many steps, for `bench_operations.py --models all`.

After Hochreiter and Schmidhuber (1997, LSTM), Cho et al. (2014, GRU), Bahdanau et al. (2015, attention in each step)
and Gu and Dao (2023, Mamba: a scan, here step by step).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint


class Both(nn.Module):
    """[n, s, 64] to [n, 10] by two LSTM layers in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(64, 256, 2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(512, 10)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.head(self.lstm(x)[0][:, -1])
        return made


class Gru(nn.Module):
    """[n, s, 64] to [n, s, 10] by three layers."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(64, 256, 3, batch_first=True, dropout=0.2), nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.head(self.gru(x)[0])
        return made


class Packed(nn.Module):
    """[n, s, 64] to [n, s, 10]; each sequence is shorter than the one before it."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(64, 256, batch_first=True), nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        n, s, _ = x.shape
        packed = pack_padded_sequence(x, [s - s * i // (2 * n) for i in range(n)], batch_first=True)
        made: Tensor = self.head(pad_packed_sequence(self.lstm(packed)[0], batch_first=True)[0])
        return made


class Translator(nn.Module):
    """[n, s] and [n, t] tokens to [n, t, tokens]: a GRU reads, a cell writes, and looks at what was read each step."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.read, self.written = nn.Embedding(30000, width), nn.Embedding(30000, width)
        self.encoder = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.keys, self.query, self.score = nn.Linear(2 * width, width), nn.Linear(width, width), nn.Linear(width, 1)
        self.cell, self.head = nn.GRUCell(3 * width, width), nn.Linear(width, 30000)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        memory, last = self.encoder(self.read(x))
        keys, state, tokens = self.keys(memory), last[0], self.written(y)
        made = []
        for t in range(y.shape[1]):
            weights = self.score(torch.tanh(keys + self.query(state)[:, None])).softmax(1)
            state = self.cell(torch.cat([tokens[:, t], (weights * memory).sum(1)], -1), state)
            made.append(state)
        found: Tensor = self.head(torch.stack(made, 1))
        return found


class Scanned(nn.Module):
    """[n, s, c] to the same: a state of 16 numbers a channel, whose decay the input chooses, in a loop over s."""

    def __init__(self, width: int = 512, states: int = 16) -> None:
        super().__init__()
        self.wide, self.out = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.local = nn.Conv1d(width, width, 4, padding=3, groups=width)
        self.choice, self.pace = nn.Linear(width, 2 * states), nn.Linear(width, width)
        self.decay = nn.Parameter(torch.zeros(width, states))

    def forward(self, x: Tensor) -> Tensor:
        y, gate = self.wide(x).chunk(2, -1)
        y = nn.functional.silu(self.local(y.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        pace = nn.functional.softplus(self.pace(y))
        into, outof = self.choice(y).chunk(2, -1)
        kept = torch.exp(pace[..., None] * -self.decay.exp())
        added = (pace * y)[..., None] * into[:, :, None]
        state = torch.zeros_like(added[:, 0])
        seen = []
        for t in range(x.shape[1]):
            state = kept[:, t] * state + added[:, t]
            seen.append((state * outof[:, t, None]).sum(-1))
        made: Tensor = self.out(torch.stack(seen, 1) * nn.functional.silu(gate))
        return made


class Mamba(nn.Module):
    """[n, s] tokens to [n, s, tokens]: four such layers."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(32000, 512), nn.Linear(512, 32000)
        self.norms = nn.ModuleList(nn.LayerNorm(512) for _ in range(4))
        self.layers = nn.ModuleList(Scanned() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.tokens(x)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            y = y + layer(norm(y))
        made: Tensor = self.head(y)
        return made


class Again(nn.Module):
    """[n, s, 64] to [n, 10]: an LSTM that runs again in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.lstm = nn.Linear(64, 64), nn.LSTM(64, 256, batch_first=True)
        self.head = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        read = checkpoint(self.lstm, self.first(x), use_reentrant=True)[0]
        made: Tensor = self.head(read[:, -1])
        return made


class Written(nn.Module):
    """[n, s, 64] to [n, 10]: the cell of an LSTM by single operations, step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.h, self.head = nn.Linear(64, 1024), nn.Linear(256, 1024), nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(len(x), 256)
        for step in x.unbind(1):
            into, forget, new, out = (self.x(step) + self.h(h)).chunk(4, 1)
            c = forget.sigmoid() * c + into.sigmoid() * new.tanh()
            h = out.sigmoid() * c.tanh()
        made: Tensor = self.head(h)
        return made


both_ways, gru, packed, translator, mamba, lstm_again = Both, Gru, Packed, Translator, Mamba, Again
written = Written
"""What makes each of them."""
