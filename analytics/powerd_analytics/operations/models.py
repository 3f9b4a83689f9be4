"""The model that is counted: the same modules as the one handed in, with shapes for values."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import batchnorm
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy

from powerd_analytics.operations.by_shape import ShapesMode
from powerd_analytics.operations.on_meta import MetaDevice
from powerd_analytics.operations.refusals import VALUES
from powerd_analytics.operations.shapes_layout import on_meta
from powerd_analytics.operations.stand_in import StandIn
from powerd_analytics.operations.values import Values
from powerd_core.errors import AnalysisError

ONE_SAMPLE = "batch of 1: normalisation counted as in evaluation, since torch does not train it on one value a channel"
COMPILED = "compiled modules counted as torch runs them without its compiler, which would move fewer bytes"
DISTRIBUTED = "DistributedDataParallel counted as one rank's model, without the communication"
MAKER = "give the function that makes the model instead, without wrappers"


def shadow_of(
    model: nn.Module | Callable[[], nn.Module], stand_in: StandIn | None = None
) -> tuple[nn.Module, list[str]]:
    """A model without values, and what has to be said about it; one that was handed in is copied, not changed.

    ``stand_in`` answers questions about values, and learns those of small buffers.

    Raises `AnalysisError`.
    """
    if not isinstance(model, nn.Module):
        try:
            with MetaDevice({}, stand_in), ShapesMode(stand_in) as mode:
                made = model()
        except Exception as error:
            raise AnalysisError(f"the model cannot be made: {type(error).__name__}: {_said(error)}") from error
        if mode.has_failed:
            raise AnalysisError(f"the model cannot be made on meta: {VALUES}")
        if not isinstance(made, nn.Module):
            raise AnalysisError(f"the model cannot be made: got a {type(made).__name__}, which is no torch.nn.Module")
        # What was made under torch.device("meta") is on it, unless it names another device or reads weights.
        return _unwrapped(made) if _is_meta(made) else shadow_of(made, stand_in)
    inner, notes = _unwrapped(model)
    if isinstance(inner, torch.jit.ScriptModule):
        raise AnalysisError(
            "a scripted or traced module cannot be counted as it is: give the one that it was made from, or the "
            "function that makes it"
        )
    try:
        made = copy.deepcopy(inner, _meta_memo(inner, stand_in.values if stand_in is not None else None))
        return made if _is_meta(made) else made.to("meta"), notes
    except Exception as error:
        raise AnalysisError(f"the model cannot be copied to be counted: {_said(error)}; {MAKER}") from error


def without_lazies(model: nn.Module, args: Any, kwargs: Any, stand_in: StandIn | None = None) -> None:
    """Let modules that wait for their first input make their parameters, before anything is counted."""
    if any(isinstance(m, LazyModuleMixin) for m in model.modules()):
        with MetaDevice({}, stand_in), torch.no_grad(), ShapesMode(stand_in):
            model(*args, **kwargs)


def in_evaluation_for_one(model: nn.Module) -> list[str]:
    """Put normalisation over the batch into evaluation: torch refuses to train it on one value a channel."""
    found = [m for m in model.modules() if isinstance(m, batchnorm._BatchNorm) and m.training]
    for module in found:
        module.eval()
    return [ONE_SAMPLE] if found else []


def _unwrapped(model: nn.Module) -> tuple[nn.Module, list[str]]:
    """What torch.compile and DistributedDataParallel wrap: layers have their names without them, as in a run."""
    notes = []
    while True:
        inner = getattr(model, "_orig_mod", None) or (getattr(model, "module", None) if _is_ddp(model) else None)
        if not isinstance(inner, nn.Module):
            break
        notes.append(DISTRIBUTED if _is_ddp(model) else COMPILED)
        model = inner
    if not notes and any(hasattr(m, "_orig_mod") or m._compiled_call_impl is not None for m in model.modules()):
        notes.append(COMPILED)
    return model, notes


def _is_meta(model: nn.Module) -> bool:
    return all(t.is_meta for t in (*model.parameters(), *model.buffers()))


def _is_ddp(model: nn.Module) -> bool:
    parallel = sys.modules.get("torch.nn.parallel.distributed")  # who has such a model has imported it
    return parallel is not None and isinstance(model, parallel.DistributedDataParallel)


def _meta_memo(model: nn.Module, values: Values | None = None) -> dict[int, Any]:
    """A memo with which deepcopy puts a shape in the place of each tensor of a module: nothing is allocated.

    ``values`` learns those of buffers and plain tensors; what parameters hold, training changes.
    """
    memo: dict[int, Any] = {}
    for p in model.parameters():
        own = nn.Parameter(on_meta(p), requires_grad=p.requires_grad) if not is_lazy(p) else _waiting(p)
        memo[id(p)] = own
    for b in model.buffers():
        memo[id(b)] = _shape_of(b, values) if not is_lazy(b) else _waiting(b)
    for module in model.modules():
        # Pruned and normalised weights are plain attributes, made again in each forward pass.
        for value in vars(module).values():
            if isinstance(value, Tensor) and id(value) not in memo:
                is_made = value.grad_fn is not None  # from parameters
                memo[id(value)] = _shape_of(value.detach(), None if is_made else values)
    return memo


def _shape_of(x: Tensor, values: Values | None) -> Tensor:
    made = on_meta(x)
    real = values.of(x) if values is not None else None
    if values is not None and real is not None:
        values.put(made, real)
    return made


def _waiting(x: Any) -> Any:
    return type(x)(requires_grad=x.requires_grad, device="meta", dtype=x.dtype)


def _said(error: Exception) -> str:
    return " ".join(str(error).split())
