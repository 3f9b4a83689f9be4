"""Networks for sequences that the zoo of `joules operations` does not have, for `bench_operations.py --models all`.

After Devlin et al. (2019, BERT), Radford et al. (2019, GPT-2), Touvron et al. (2023, LLaMA), Raffel et al. (2020, T5),
Lepikhin et al. (2021, GShard: experts chosen by gates) and Hochreiter and Schmidhuber (1997, LSTM).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

F = nn.functional


class Bert(nn.Module):
    """[n, s] tokens and what is padding to [n, s, tokens]: twelve layers of width 768."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(30522, 768), nn.Embedding(512, 768)
        layer = nn.TransformerEncoderLayer(768, 12, 3072, activation="gelu", batch_first=True)
        self.norm = nn.LayerNorm(768)
        self.encoder = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
        self.head = nn.Linear(768, 30522)
        self.head.weight = self.tokens.weight  # one table for both

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        y = self.norm(self.tokens(x) + self.places(torch.arange(x.shape[1])))
        made: Tensor = self.head(self.encoder(y, src_key_padding_mask=padding))
        return made


class Gpt(nn.Module):
    """[n, s] tokens to a dict with [n, s, tokens], each token seeing those before it: GPT-2, or one of another size."""

    def __init__(self, width: int = 768, layers: int = 12, heads: int = 12) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(50257, width), nn.Embedding(1024, width)
        self.layers = nn.ModuleList(GptLayer(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 50257, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = F.dropout(self.tokens(x) + self.places(torch.arange(x.shape[1])), 0.1, self.training)
        for layer in self.layers:
            y = layer(y)
        return {"logits": self.head(self.norm(y))}


class GptLayer(nn.Module):
    """Attention and a wide part, each behind a normalisation."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        made: Tensor = x + self.wide(self.norm2(x))
        return made


class Llama(nn.Module):
    """[n, s] tokens to [n, s, tokens]: 32 layers of width 4096, 6.7 thousand million parameters."""

    def __init__(self, width: int = 4096, layers: int = 32) -> None:
        super().__init__()
        self.tokens = nn.Embedding(32000, width)
        self.layers = nn.ModuleList(LlamaLayer(width, 32, 11008) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, 32000, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        angles = torch.outer(torch.arange(x.shape[1]).float(), 10000 ** -(torch.arange(0, 128, 2) / 128))
        y = self.tokens(x)
        turn = angles.cos().to(y.dtype), angles.sin().to(y.dtype)
        for layer in self.layers:
            y = layer(y, turn)
        made: Tensor = self.head(self.norm(y))
        return made


class LlamaLayer(nn.Module):
    """Attention with turned positions, and a wide part with a gate."""

    def __init__(self, width: int, heads: int, wide: int) -> None:
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up, self.down = (nn.Linear(a, b, bias=False) for a, b in (
            (width, wide), (width, wide), (wide, width)))  # fmt: skip

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        y = self.norm1(x)
        q, k, v = (f(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        seen = F.scaled_dot_product_attention(_turned(q, turn), _turned(k, turn), v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        made: Tensor = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return made


class T5(nn.Module):
    """[n, s] and [n, t] tokens to [n, t, tokens]: six layers of width 512 on each side, the second sees the first."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(32128, 512)
        self.near = nn.Embedding(32, 8)  # what a distance adds to attention, by head
        encoder = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, norm_first=True, bias=False)
        decoder = nn.TransformerDecoderLayer(512, 8, 2048, batch_first=True, norm_first=True, bias=False)
        self.encoder = nn.TransformerEncoder(encoder, 6, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(decoder, 6)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        far = (torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])).abs().clamp(max=31)
        bias = self.near(far).permute(2, 0, 1).repeat(x.shape[0], 1, 1)
        causal = nn.Transformer.generate_square_subsequent_mask(y.shape[1])
        seen = self.encoder(self.tokens(x), mask=bias)
        made = self.decoder(self.tokens(y), seen, tgt_mask=causal, tgt_is_causal=True)
        return F.linear(made, self.tokens.weight)


class Experts(nn.Module):
    """[n, s, width] to the same: each token goes to two experts of eight, each with room for so many."""

    def __init__(self, width: int = 512, experts: int = 8, room: float = 1.25) -> None:
        super().__init__()
        self.experts, self.room, self.gate = experts, room, nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.empty(experts, width, 4 * width))
        self.down = nn.Parameter(torch.empty(experts, 4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        room = int(self.room * 2 * len(tokens) / self.experts)
        weight, chosen = self.gate(tokens).softmax(-1).topk(2)
        goes = F.one_hot(chosen, self.experts).sum(1)
        place = goes.cumsum(0) - 1
        to = goes.unsqueeze(-1) * (place.unsqueeze(-1) == torch.arange(room)) * (place < room).unsqueeze(-1)
        gates = torch.zeros(len(tokens), self.experts).scatter(1, chosen, weight)
        inside = torch.einsum("tec,tw->ecw", to.to(x.dtype), tokens)
        made = torch.bmm(F.gelu(torch.bmm(inside, self.up)), self.down)
        return torch.einsum("tec,ecw->tw", to * gates.unsqueeze(-1), made).view_as(x)


class Moe(nn.Module):
    """[n, s] tokens to [n, s, tokens]: six layers with experts."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(32000, 512)
        self.attention = nn.ModuleList(nn.MultiheadAttention(512, 8, batch_first=True) for _ in range(6))
        self.experts = nn.ModuleList(Experts() for _ in range(6))
        self.head = nn.Linear(512, 32000)

    def forward(self, x: Tensor) -> Tensor:
        y = self.tokens(x)
        for attention, experts in zip(self.attention, self.experts, strict=True):
            y = y + attention(y, y, y, need_weights=False)[0]
            y = y + experts(y)
        made: Tensor = self.head(y)
        return made


class Cells(nn.Module):
    """[n, s, 64] to [n, 10], a cell called step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(64, 256), nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        steps = x.unbind(1)
        state = self.cell(steps[0])
        for step in steps[1:]:
            state = self.cell(step, state)
        made: Tensor = self.head(state[0])
        return made


class Long(nn.Module):
    """[n, s, 64] to [n, 10] by one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(64, 256, batch_first=True), nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.head(self.lstm(x)[0][:, -1])
        return made


def _turned(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    a, b = x.chunk(2, -1)
    cos, sin = turn
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


bert, gpt2, llama, t5, moe, cells, long_lstm = Bert, Gpt, Llama, T5, Moe, Cells, Long
"""What makes each of them."""
