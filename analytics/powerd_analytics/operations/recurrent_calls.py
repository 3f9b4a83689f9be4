"""Calls of torch's recurrent layers: which tensors get shorter with fewer steps, and which results get longer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
SHORTEST = 24
"""Steps below which a layer simply runs."""
_ARGUMENTS = 9
"""input [t, n, c], first states, weights, has_biases, num_layers, dropout, train, bidirectional, batch_first; packed:
data [rows, c], batch sizes, and the others without batch_first"""
_PLAIN = (3, 4, 6)
"""Steps of the short runs. The first two steps differ from others: nothing is added to their gradients yet."""
_MORE = ((0, 0), (1, 0), (0, 1), (2, 1), (1, 3), (3, 2))
"""Steps more in the longest stretch of one batch size, and in the next longest."""
_STEADY = 3
_PACKED = (
    "5432", "6543", "5421", "6421", "65432", "54321", "66543", "55432", "54432", "5543321", "6663211", "43211111",
)  # fmt: skip
"""Batch sizes of short runs, where there are many. Nine say what follows from what, the others have to agree."""
_FEW = 4

Form = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
"""Shape, strides and type."""


@dataclass(frozen=True)
class Extent:
    """How long a call is: steps, or the batch size of each step of packed sequences, which never grows."""

    steps: int
    batch_sizes: tuple[int, ...] = ()

    @cached_property
    def features(self) -> tuple[int, ...]:
        """What every sum over the kernels of a call is made of.

        A kernel runs once a call, a step, or a step at which sequences end, on a whole state, the rows of a step, or
        all rows: a gradient of a step's rows is put among zeros for all of them.
        """
        if not self.batch_sizes:
            return 1, self.steps
        ends = [a for a, b in zip(self.batch_sizes, self.batch_sizes[1:], strict=False) if b < a]
        rows, first, last = sum(self.batch_sizes), self.batch_sizes[0], self.batch_sizes[-1]
        return 1, self.steps, rows, self.steps * rows, first, last, len(ends), len(ends) * first, sum(ends)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths of dimensions that depend on it: steps, or all rows and the largest batch."""
        return (sum(self.batch_sizes), self.batch_sizes[0]) if self.batch_sizes else (self.steps,)

    def samples(self) -> list[Extent]:
        """Short ones like it."""
        if not self.batch_sizes:
            return [Extent(n) for n in _PLAIN]
        runs = [(size, len(list(same))) for size, same in groupby(self.batch_sizes)]
        if len(runs) > _FEW + 1:
            return [Extent(len(text), tuple(map(int, text))) for text in _PACKED]
        # Stretches of one or two steps stay as they are: their steps are at once the first or the last of their size.
        longest = sorted((i for i, (_, n) in enumerate(runs) if n >= _STEADY), key=lambda i: -runs[i][1])[:2]
        found = []
        for more in _MORE if longest else ():
            counts = [min(n, _STEADY) for _, n in runs]
            for i, n in zip(longest, more, strict=False):
                counts[i] += n
            sizes = tuple(size for (size, _), n in zip(runs, counts, strict=True) for _ in range(n))
            found.append(Extent(len(sizes), sizes))
        return found


@dataclass(frozen=True, slots=True)
class Call:
    """One call with its tensors apart: input or packed data, then first states and weights."""

    func: Callable[..., Any]
    settings: tuple[Any, ...]
    states: int
    extent: Extent
    tensors: tuple[Tensor, ...]

    def run(self, tensors: Sequence[Tensor], extent: Extent) -> tuple[Tensor, ...]:
        """The same with other tensors of another length."""
        states = list(tensors[1 : 1 + self.states])
        sizes = [torch.tensor(extent.batch_sizes, device="cpu")] if extent.batch_sizes else []
        first = states if self.func is torch.lstm else states[0]
        made: tuple[Tensor, ...] = self.func(
            tensors[0], *sizes, first, list(tensors[1 + self.states :]), *self.settings
        )
        return made

    def short(self, extent: Extent) -> tuple[Tensor, ...]:
        """The same tensors with fewer steps, cut off from what made them."""
        first: dict[int, Tensor] = {}  # one that is given twice is one here too
        for i, t in enumerate(self.tensors):
            if id(t) not in first:
                part = t.detach()
                part = self.part(part, extent, is_output=not i) if i <= self.states else part
                first[id(t)] = part.requires_grad_() if t.requires_grad and torch.is_grad_enabled() else part
        return tuple(first[id(t)] for t in self.tensors)

    def part(self, x: Tensor, extent: Extent, *, is_output: bool) -> Tensor:
        """What a shorter call has of its input or output, or of a state."""
        if is_output:
            return x.narrow(0, 0, extent.lengths[0])
        return x.narrow(1, 0, extent.batch_sizes[0]) if extent.batch_sizes else x


def is_batch_first(args: Sequence[Any]) -> bool:
    """Whether a call says so."""
    return len(args) == _ARGUMENTS and isinstance(args[3], bool) and args[-1] is True and args[0].dim() == 3


def steps_first(args: Sequence[Any]) -> list[Any]:
    """The same call as torch itself turns it: its output is to be turned back."""
    return [args[0].transpose(0, 1), *args[1:-1], False]


def call_of(func: Any, args: Sequence[Any]) -> Call | None:
    """A call that can be shortened; None for what is not plain. Steps come first."""
    if len(args) != _ARGUMENTS:
        return None
    is_packed = isinstance(args[3], list | tuple)
    given = args[2] if is_packed else args[1]
    states = [given] if isinstance(given, Tensor) else list(given)
    weights, settings = (args[3], args[4:]) if is_packed else (args[2], args[3:])
    tensors = (args[0], *states, *weights)
    if not all(type(t) in (Tensor, nn.Parameter) and t.is_meta and t.layout is torch.strided for t in tensors):
        return None
    is_shaped = tensors[0].dim() == (2 if is_packed else 3) and all(s.dim() == 3 for s in states)
    if not is_shaped or any(t is tensors[0] for t in tensors[1:]):
        return None
    if is_packed:
        sizes = tuple(args[1].tolist()) if args[1].device.type == "cpu" else ()
        extent = Extent(len(sizes), sizes)
        is_whole = sum(sizes) == len(args[0]) and all(s.shape[1] == sizes[0] for s in states)
        if not sizes or sizes[-1] < 1 or list(sizes) != sorted(sizes, reverse=True) or not is_whole:
            return None
    else:
        extent = Extent(len(args[0]))
    return Call(func, tuple(settings), len(states), extent, tensors) if extent.steps >= SHORTEST else None


def form_of(x: Tensor | None) -> Form | None:
    """What `made` needs."""
    return None if x is None else (tuple(x.shape), x.stride(), x.dtype)


def longer(forms: Sequence[Form | None], extents: Sequence[Extent], extent: Extent) -> Form | None:
    """The same tensor in a call of another length. Raises `ValueError` where it does not follow from those given."""
    given = [form for form in forms if form is not None]
    if not given:
        return None
    shapes = [shape for shape, _, _ in given]
    order = sorted(range(len(shapes[0])), key=lambda d: -given[0][1][d])
    if len(given) < len(forms) or len(set(map(len, shapes))) > 1:
        raise ValueError("not always the same tensor")
    for shape, strides, _ in given:
        if any(a != b for a, b, n in zip(strides, _packed(shape, order), shape, strict=True) if n > 1):
            raise ValueError("its dimensions are not packed")
    whole = tuple(_length(same, extents, extent) for same in zip(*shapes, strict=True))
    return whole, _packed(whole, order), given[0][2]


def _length(sizes: Sequence[int], extents: Sequence[Extent], extent: Extent) -> int:
    if len(set(sizes)) == 1:
        return sizes[0]
    for i, length in enumerate(extent.lengths):
        if all(n == e.lengths[i] for n, e in zip(sizes, extents, strict=True)):
            return length
    raise ValueError("a length of its own")


def _packed(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    strides, step = [0] * len(shape), 1
    for dimension in reversed(order):
        strides[dimension] = step
        step *= max(1, shape[dimension])
    return tuple(strides)


def made(forms: Sequence[Form | None]) -> tuple[Tensor | None, ...]:
    """New tensors."""
    return tuple(
        None if form is None else torch.empty_strided(form[0], form[1], dtype=form[2], device="meta") for form in forms
    )
