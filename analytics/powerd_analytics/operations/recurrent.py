"""Recurrent layers of any length at the cost of a few steps.

On ``meta`` torch runs `nn.LSTM`, `nn.GRU` and `nn.RNN` step by step, some 20 kernels a step, layer and direction, and
the same ones in each. So a few short stretches of the input are run and recorded, and extended to the whole length
where all that ran follows from it in the same way. Where it does not, or where somebody would see the difference
(hooks on what is kept for backward, other modes), all steps run. Where only backward shows it, which is so with
derivatives of derivatives, the count begins again with all steps.

`torch.utils.checkpoint` without reentrance has such hooks too: it computes again, up to the last tensor that is kept.
What it wants to know of a recurrent layer is only that: what runs before the layer keeps its last one, and what after.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from powerd_analytics.operations.executed import ExecutedMode
from powerd_analytics.operations.record import Record, extended
from powerd_analytics.operations.recurrent_calls import (
    Call,
    Extent,
    Form,
    call_of,
    form_of,
    is_batch_first,
    longer,
    made,
    steps_first,
)
from powerd_analytics.operations.watched import is_watched

Key = tuple[Any, ...]
Run = Callable[[Extent, Record], Sequence[Tensor | None]]


@dataclass(frozen=True, slots=True)
class Stretch:
    """What runs over a whole length, and the results that it gives."""

    record: Record
    """Until the last tensor is kept for backward."""
    tail: Record
    """After it."""
    results: tuple[Form | None, ...]


class AllStepsError(Exception):
    """What was counted from a few steps is needed in full. The mode remembers it, should a model catch this."""


class Recurrent:
    """Runs recurrent layers for a mode that counts."""

    def __init__(self, mode: ExecutedMode) -> None:
        self.mode = mode
        self._known: dict[Key, Stretch | None] = {}

    def __call__(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What ``func``, one of `RECURRENT`, returns; counted."""
        if kwargs or self.mode.record is not None or is_watched():  # a short run is a call as well
            return func(*args, **kwargs)
        is_turned = is_batch_first(args)
        call = call_of(func, steps_first(args) if is_turned else args)
        results = self.counted(call, _key(call)) if call is not None else None
        if results is None:
            return func(*args)
        y, *states = results
        if is_turned:  # a view of it, or itself, as torch has it
            y = y.transpose(0, 1) if func is torch.lstm else y.transpose_(0, 1)
        return y, *states

    def counted(self, call: Call, key: Key) -> tuple[Any, ...] | None:
        """Results of a call that has been counted; None where it has to run in full.

        ``key``: all that decides what it runs.
        """
        ran = self.forward(call, key)
        if ran is None:
            return None
        place = self.mode.place()
        self.mode.add_record(ran.record, place)
        if torch.is_grad_enabled() and any(t.requires_grad for t in call.tensors):
            # A checkpoint that computes again may have enough here, and raise.
            results = Whole.apply(self, call, key, ran, *call.tensors)  # type: ignore[no-untyped-call, unused-ignore]
        else:
            results = made(ran.results)
        self.mode.add_record(ran.tail, place)
        return tuple(results)

    def forward(self, call: Call, key: Key) -> Stretch | None:
        """What runs forward; None where it has to run in full."""

        def run(extent: Extent, record: Record) -> tuple[Tensor, ...]:
            self.mode.record = record
            return call.run(call.short(extent), extent)

        return self._stretch((key, torch.is_grad_enabled()), call.extent, run)

    def backward(
        self, kept: Kept, tensors: Sequence[Tensor], gradients: Sequence[Tensor | None], needed: Sequence[bool]
    ) -> Stretch | None:
        """What runs backward, from those results that have a gradient to those tensors that need one."""

        def run(extent: Extent, record: Record) -> Sequence[Tensor | None]:
            # A checkpoint gives other tensors than it was given: without gradients, and one given twice as two.
            own = [t.detach().requires_grad_(n) for t, n in zip(tensors, needed, strict=True)]
            call = replace(kept.call, tensors=tuple(own[i] for i in kept.places))
            self.mode.record = Record()  # forward runs again, which does not count
            with torch.enable_grad():
                short = call.short(extent)
                results = call.run(short, extent)
            wanted = [g if g is None else call.part(g, extent, is_output=not i) for i, g in enumerate(gradients)]
            self.mode.record = record
            return gradients_of(results, wanted, short, needed)

        given = tuple(None if g is None else (g.shape, g.stride(), g.dtype) for g in gradients)
        return self._stretch((kept.key, given, needed), kept.call.extent, run)

    def _stretch(self, key: Key, extent: Extent, run: Run) -> Stretch | None:
        if key not in self._known:
            self._known[key] = self._measured(extent, run)
        return self._known[key]

    def _measured(self, extent: Extent, run: Run) -> Stretch | None:
        before, samples = self.mode.record, extent.samples()
        if not samples:
            return None
        records, tails, results = [Record() for _ in samples], [Record() for _ in samples], []
        try:
            for sample, record, tail in zip(samples, records, tails, strict=True):
                with Keeping(record, tail):
                    results.append([form_of(t) for t in run(sample, tail)])
        except RuntimeError:  # whatever it is, it is worded better by the whole call
            return None
        finally:
            self.mode.record = before
        features = [sample.features for sample in samples]
        whole, after = (extended(all_of, features, extent.features) for all_of in (records, tails))
        try:
            forms = tuple(longer(forms, samples, extent) for forms in zip(*results, strict=True))
        except ValueError:
            return None
        return None if whole is None or after is None else Stretch(whole, after, forms)


class Keeping(saved_tensors_hooks):  # type: ignore[misc, unused-ignore]
    """Sees every tensor that is kept for backward, in the place of hooks around it.

    ``tail`` is what ran since the last one; ``record`` all before it.
    """

    def __init__(self, record: Record, tail: Record) -> None:
        def pack(x: Tensor) -> Tensor:
            record.take(tail)
            return x

        super().__init__(pack, lambda x: x)  # type: ignore[no-untyped-call, unused-ignore]


@dataclass(frozen=True, slots=True)
class Kept:
    """What backward has to know of a call, besides its tensors."""

    call: Call
    key: Key
    places: list[int]
    """For each tensor the place at which the same one first stood."""


_OTHERS = 4
"""Arguments of `Whole` before its tensors."""


class Whole(torch.autograd.Function):
    """A call over all steps: its results, and gradients, without the steps."""

    @staticmethod
    def forward(
        ctx: Any, runner: Recurrent, call: Call, key: Key, ran: Stretch, *tensors: Tensor
    ) -> tuple[Tensor | None, ...]:
        ctx.runner, ctx.kept = runner, Kept(replace(call, tensors=()), key, places(call.tensors))
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        return made(ran.results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        runner: Recurrent = ctx.runner
        tensors, needed = ctx.saved_tensors, ctx.needs_input_grad[_OTHERS:]
        place = runner.mode.place()
        with torch._C.DisableTorchFunction():  # shapes are asked for, and nothing is made that has no device
            can_be_short = not torch.is_grad_enabled() and not is_watched()
            ran = runner.backward(ctx.kept, tensors, gradients, needed) if can_be_short else None
            if ran is None:
                runner.mode.needs_all_steps = True
                raise AllStepsError
            runner.mode.add_record(ran.record, place)
            runner.mode.add_record(ran.tail, place)
            return (*[None] * _OTHERS, *made(ran.results))


def gradients_of(
    results: Sequence[Tensor], gradients: Sequence[Tensor | None], tensors: Sequence[Tensor], needed: Sequence[bool]
) -> list[Tensor | None]:
    """Gradients of those tensors that need one, each tensor once."""
    given = [(r, g) for r, g in zip(results, gradients, strict=True) if g is not None]
    first = places(tensors)
    wanted = [i for i, n in enumerate(needed) if n and first[i] == i]
    found: list[Tensor | None] = [None] * len(tensors)
    made = torch.autograd.graph._engine_run_backward(
        tuple(r for r, _ in given), tuple(g for _, g in given), False, False,
        tuple(tensors[i] for i in wanted), allow_unreachable=True, accumulate_grad=False,
    )  # fmt: skip
    for i, gradient in zip(wanted, made, strict=True):
        found[i] = gradient
    return found


def _key(call: Call) -> Key:
    tensors = tuple((t.shape, t.stride(), t.dtype, t.requires_grad) for t in call.tensors)
    return call.func, call.settings, call.states, call.extent, tensors, tuple(places(call.tensors))


def places(tensors: Sequence[Tensor]) -> list[int]:
    """For each the place at which the same tensor first stands."""
    ids = [id(t) for t in tensors]
    return [ids.index(i) for i in ids]
