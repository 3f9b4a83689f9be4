"""Cells that a loop in Python calls again and again: worked out once, and counted as often as they are called.

`nn.LSTMCell` and its kind are one function of torch each, so what one runs follows from the shapes, types and strides
of its tensors, from which of them need gradients, and from whether one is given twice. The third call that is the same
in all of that, and further ones, run no kernel but those with which autograd adds up gradients. In a checkpoint the
first one too: what it computes again has to keep as many tensors as the first time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from powerd_analytics.operations.executed import ExecutedMode
from powerd_analytics.operations.record import Record
from powerd_analytics.operations.recurrent import (
    Keeping,
    Key,
    Recurrent,
    Run,
    Stretch,
    places,
)
from powerd_analytics.operations.recurrent_calls import Call, Extent, form_of
from powerd_analytics.operations.watched import is_checkpointed, is_watched

CELLS = (torch.lstm_cell, torch.gru_cell, torch.rnn_tanh_cell, torch.rnn_relu_cell)
OFTEN = 3
"""Calls from which on one is counted without its kernels."""
_PLAIN = frozenset((Tensor, nn.Parameter))
_ONE = Extent(1)


@dataclass(frozen=True, slots=True)
class CellCall(Call):
    """One call of a cell: input, states, and weights."""

    def run(self, tensors: Sequence[Tensor], extent: Extent) -> tuple[Tensor, ...]:
        """The same with other tensors."""
        x, *rest = tensors
        states = tuple(rest[: self.states]) if self.func is torch.lstm_cell else rest[0]
        made: Any = self.func(x, states, *rest[self.states :])
        return made if isinstance(made, tuple) else (made,)

    def part(self, x: Tensor, extent: Extent, *, is_output: bool) -> Tensor:
        """All of it: there is only one step."""
        return x


class Repeated(Recurrent):
    """Runs cells for a mode that counts."""

    def __init__(self, mode: ExecutedMode) -> None:
        super().__init__(mode)
        self._times: dict[tuple[Any, ...], int] = {}

    def __call__(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What ``func``, one of `CELLS`, returns; counted."""
        if kwargs or self.mode.record is not None or len(args) < 2:
            return func(*args, **kwargs)
        states = tuple(args[1]) if func is torch.lstm_cell else (args[1],)
        tensors = (args[0], *states, *args[2:])
        if any(type(t) not in _PLAIN for t in tensors):  # without a bias, or of somebody's own type
            return func(*args)
        key: Key = (func, *((t.shape, t.stride(), t.dtype, t.requires_grad) for t in tensors), *places(tensors))
        times = self._times[key] = self._times.get(key, 0) + 1
        if not all(t.is_meta for t in tensors) or is_watched() or (times < OFTEN and not is_checkpointed()):
            return func(*args)
        call = CellCall(func, (), len(states), _ONE, tensors)
        results = self.counted(call, key)
        if results is None:
            return func(*args)
        return results if func is torch.lstm_cell else results[0]

    def _measured(self, extent: Extent, run: Run) -> Stretch | None:
        before, record, tail = self.mode.record, Record(), Record()
        try:
            with Keeping(record, tail):
                forms = tuple(form_of(t) for t in run(extent, tail))
        except RuntimeError:  # the call itself words it better
            return None
        finally:
            self.mode.record = before
        return Stretch(record, tail, forms)
