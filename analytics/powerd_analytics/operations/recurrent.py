"""Recurrent layers of any length at the cost of a few steps.

On ``meta`` torch runs `nn.LSTM`, `nn.GRU` and `nn.RNN` step by step, some 20 kernels a step, layer and direction, and
the same ones in each. So a few short stretches of the input are run and recorded, and extended to the whole length
where all that ran follows from it in the same way. Where it does not, or where somebody would see the difference
(checkpoints that follow what is kept for backward, other modes), all steps run. Where only backward shows it, which is
so with derivatives of derivatives, the count begins again with all steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

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

Run = Callable[[Extent, Record], Sequence[Tensor | None]]


@dataclass(frozen=True, slots=True)
class Stretch:
    """What runs over a whole length, and the results that it gives."""

    record: Record
    results: tuple[Form | None, ...]


def is_watched() -> bool:
    """Whether somebody follows single kernels, or what they keep for backward."""
    try:
        return (
            torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
            or torch._C._len_torch_dispatch_stack() > 1
            or torch._C._are_functorch_transforms_active()
            or torch.autograd.forward_ad._current_level >= 0
        )
    except (AttributeError, TypeError):
        return True  # a torch that cannot be asked: then all steps run


class AllStepsError(Exception):
    """What was counted from a few steps is needed in full. The mode remembers it, should a model catch this."""


class Recurrent:
    """Runs recurrent layers for a mode that counts."""

    def __init__(self, mode: ExecutedMode) -> None:
        self.mode = mode
        self._known: dict[tuple[Any, ...], Stretch | None] = {}

    def __call__(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What ``func``, one of `RECURRENT`, returns; counted."""
        if kwargs or self.mode.record is not None or is_watched():  # a short run is a call as well
            return func(*args, **kwargs)
        is_turned = is_batch_first(args)
        call = call_of(func, steps_first(args) if is_turned else args)
        ran = self.forward(call) if call is not None else None
        if call is None or ran is None:
            return func(*args)
        self.mode.add_record(ran.record, self.mode.place())
        if torch.is_grad_enabled() and any(t.requires_grad for t in call.tensors):
            y, *states = Whole.apply(self, replace(call, tensors=()), ran, *call.tensors)  # type: ignore[no-untyped-call, unused-ignore]
        else:
            y, *states = made(ran.results)
        if is_turned:  # a view of it, or itself, as torch has it
            y = y.transpose(0, 1) if func is torch.lstm else y.transpose_(0, 1)
        return y, *states

    def forward(self, call: Call) -> Stretch | None:
        """What runs forward; None where it has to run in full."""

        def run(extent: Extent, record: Record) -> tuple[Tensor, ...]:
            self.mode.record = record
            return call.run(call.short(extent), extent)

        return self._stretch(call, (torch.is_grad_enabled(),), run)

    def backward(self, call: Call, gradients: Sequence[Tensor | None], needed: Sequence[bool]) -> Stretch | None:
        """What runs backward, from those results that have a gradient to those tensors that need one."""

        def run(extent: Extent, record: Record) -> Sequence[Tensor | None]:
            self.mode.record = Record()  # forward runs again, which does not count
            with torch.enable_grad():
                tensors = call.short(extent)
                results = call.run(tensors, extent)
            short = [g if g is None else call.part(g, extent, is_output=not i) for i, g in enumerate(gradients)]
            self.mode.record = record
            return gradients_of(results, short, tensors, needed)

        given = tuple(None if g is None else (g.shape, g.stride(), g.dtype) for g in gradients)
        return self._stretch(call, (given, tuple(needed)), run)

    def _stretch(self, call: Call, situation: tuple[Any, ...], run: Run) -> Stretch | None:
        tensors = tuple((t.shape, t.stride(), t.dtype, t.requires_grad) for t in call.tensors)
        key = call.func, call.settings, call.states, call.extent, tensors, tuple(_places(call.tensors)), situation
        if key not in self._known:
            self._known[key] = self._measured(call.extent, run)
        return self._known[key]

    def _measured(self, extent: Extent, run: Run) -> Stretch | None:
        before, samples = self.mode.record, extent.samples()
        if not samples:
            return None
        records, results = [Record() for _ in samples], []
        try:
            for sample, record in zip(samples, records, strict=True):
                results.append([form_of(t) for t in run(sample, record)])
        except RuntimeError:  # whatever it is, it is worded better by the whole call
            return None
        finally:
            self.mode.record = before
        whole = extended(records, [sample.features for sample in samples], extent.features)
        try:
            forms = tuple(longer(forms, samples, extent) for forms in zip(*results, strict=True))
        except ValueError:
            return None
        return None if whole is None else Stretch(whole, forms)


class Whole(torch.autograd.Function):
    """A call over all steps: its results, and gradients, without the steps."""

    @staticmethod
    def forward(ctx: Any, runner: Recurrent, call: Call, ran: Stretch, *tensors: Tensor) -> tuple[Tensor | None, ...]:
        ctx.runner, ctx.call = runner, call
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        return made(ran.results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        runner: Recurrent = ctx.runner
        call, needed = replace(ctx.call, tensors=ctx.saved_tensors), ctx.needs_input_grad[3:]
        place = runner.mode.place()
        can_be_short = not torch.is_grad_enabled() and not is_watched()
        ran = runner.backward(call, gradients, needed) if can_be_short else None
        if ran is None:
            runner.mode.needs_all_steps = True
            raise AllStepsError
        runner.mode.add_record(ran.record, place)
        return (None, None, None, *made(ran.results))


def gradients_of(
    results: Sequence[Tensor], gradients: Sequence[Tensor | None], tensors: Sequence[Tensor], needed: Sequence[bool]
) -> list[Tensor | None]:
    """Gradients of those tensors that need one, each tensor once."""
    given = [(r, g) for r, g in zip(results, gradients, strict=True) if g is not None]
    first = _places(tensors)
    wanted = [i for i, n in enumerate(needed) if n and first[i] == i]
    found: list[Tensor | None] = [None] * len(tensors)
    made = torch.autograd.graph._engine_run_backward(
        tuple(r for r, _ in given), tuple(g for _, g in given), False, False,
        tuple(tensors[i] for i in wanted), allow_unreachable=True, accumulate_grad=False,
    )  # fmt: skip
    for i, gradient in zip(wanted, made, strict=True):
        found[i] = gradient
    return found


def _places(tensors: Sequence[Tensor]) -> list[int]:
    """For each the place at which the same tensor first stands."""
    ids = [id(t) for t in tensors]
    return [ids.index(i) for i in ids]
