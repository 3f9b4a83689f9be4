"""`count_operations`: a model's operations by both conventions, without its memory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from powerd_analytics.operations.counts import OperationCount
from powerd_core.errors import AnalysisError

if TYPE_CHECKING:
    import torch

    Model = torch.nn.Module | Callable[[], torch.nn.Module]

NO_BACKWARD = "no output needs a gradient: torch runs no backward pass"
ONE_SAMPLE = "batch of 1: normalisation counted as in evaluation, since torch does not train it on one value a channel"


def count_operations(
    model: Model,
    sample_shape: Sequence[int] | None = None,
    *,
    batch_size: int = 1,
    inputs: Sequence[Any] | Mapping[str, Any] | None = None,
    dtype: str = "float32",
    backward: bool = True,
    name: str = "",
) -> OperationCount:
    """Count a model's operations, forward and backward, on torch's ``meta`` device.

    ``model``         a module, which stays as it is, or a function that makes one: then no parameter is ever allocated
    ``sample_shape``  shape of one sample, without the batch dimension
    ``inputs``        instead of ``sample_shape``: tensors of a whole batch, by place or by name; only shapes are used
    ``dtype``         of the input made from ``sample_shape``, such as ``int64`` for tokens
    ``backward``      False counts forward alone

    Training mode counts as the model has it. The loss and the update of parameters are not in it.
    Raises `AnalysisError` when the model cannot be made or does not run on such a sample.
    """
    import torch

    from powerd_analytics.operations.executed import BACKWARD, ExecutedMode
    from powerd_analytics.operations.paper import PaperHook

    if batch_size < 1:
        raise AnalysisError(f"batch size {batch_size}: must be at least 1")
    args, kwargs, said = _inputs(sample_shape, inputs, batch_size, dtype)
    shadow = _shadow(model)
    notes = _one_sample(shadow) if batch_size == 1 else []
    modules = dict(shadow.named_modules())

    def label(path: str) -> str:
        return path or type(shadow).__name__

    paper, executed = PaperHook(), ExecutedMode()
    roots: list[torch.Tensor] = []
    try:
        for path, module in modules.items():
            if next(module.children(), None) is None:
                module.register_forward_hook(paper.hook(label(path)))
            executed.watch(path, module)
        with torch.device("meta"), torch.enable_grad(), executed:
            outputs = shadow(*args, **kwargs)
            roots = [t for t in _tensors(outputs) if t.requires_grad]
            executed.current_pass = BACKWARD
            if roots and backward:
                _run_backward(roots)
    except Exception as error:
        what = "does not run" if executed.current_pass != BACKWARD else "has a backward pass that does not run"
        reason = " ".join(str(error).split()) or type(error).__name__
        raise AnalysisError(f"the model {what} on {said}, on torch's meta device: {reason}") from error
    if backward and not roots:
        notes.append(NO_BACKWARD)
    for path, module in modules.items():
        if label(path) in paper.seen:
            continue
        if executed.kernels.get(path) or any(True for _ in module.parameters(recurse=False)):
            paper.not_counted.setdefault(f"{label(path)} ({type(module).__name__})")
    unknown = [
        f"{label(path)} ({type(modules[path]).__name__}): {kernel}" + (f", {n} times" if n > 1 else "")
        for (path, kernel), n in executed.unknown.items()
    ]
    return OperationCount(
        tuple(paper.layers),
        tuple(paper.not_counted),
        batch_size=batch_size,
        executed=executed.counts(modules, label),
        executed_not_counted=tuple(unknown),
        notes=tuple(notes),
        model=name or type(shadow).__name__,
    )


def _run_backward(roots: list[torch.Tensor]) -> None:
    import torch

    gradients = [t.detach().new_empty(t.shape) for t in roots]
    engine = getattr(torch.autograd.graph, "_engine_run_backward", None)
    if engine is None:
        torch.autograd.backward(roots, gradients)
        return
    # What `torch.autograd.backward` ends in; before that it imports a computer algebra system (0.3 s, 40 MB).
    engine(tuple(roots), tuple(gradients), False, False, (), allow_unreachable=True, accumulate_grad=True)


def _inputs(
    sample_shape: Sequence[int] | None, inputs: Sequence[Any] | Mapping[str, Any] | None, batch_size: int, dtype: str
) -> tuple[tuple[Any, ...], dict[str, Any], str]:
    """Arguments for the model, on ``meta``, and what to call them in a message."""
    import torch

    from powerd_analytics.operations.shapes_layout import on_meta

    if (sample_shape is None) == (inputs is None):
        raise AnalysisError("give the shape of one sample, or inputs, and not both")
    if inputs is None:
        assert sample_shape is not None
        kind = getattr(torch, dtype, None)
        if not isinstance(kind, torch.dtype):
            raise AnalysisError(f"{dtype!r} is no type of torch's values: float32 or int64, for example")
        try:
            made = torch.empty(batch_size, *sample_shape, dtype=kind, device="meta")
        except (RuntimeError, TypeError) as error:
            raise AnalysisError(f"{tuple(sample_shape)} is no shape of a sample: {error}") from error
        return (made,), {}, f"a sample of shape {tuple(sample_shape)}"

    def shape_of(value: Any) -> Any:
        return on_meta(value) if isinstance(value, torch.Tensor) else value

    if isinstance(inputs, Mapping):
        return (), {k: shape_of(v) for k, v in inputs.items()}, "these inputs"
    return tuple(shape_of(v) for v in inputs), {}, "these inputs"


def _shadow(model: Model) -> torch.nn.Module:
    """The same modules with shapes for parameters; a model that was handed in is copied, not changed."""
    import torch

    from powerd_analytics.operations.executed import ShapesMode

    if not isinstance(model, torch.nn.Module):
        try:
            with torch.device("meta"), ShapesMode():  # type: ignore[no-untyped-call, unused-ignore]
                made = model()
        except Exception as error:
            raise AnalysisError(f"the model cannot be made: {type(error).__name__}: {error}") from error
        if not isinstance(made, torch.nn.Module):
            raise AnalysisError(f"the model cannot be made: got a {type(made).__name__}, which is no torch.nn.Module")
        # What was made under torch.device("meta") is on it, unless it names another device or reads weights.
        return made if all(t.is_meta for t in (*made.parameters(), *made.buffers())) else _shadow(made)
    try:
        return copy.deepcopy(model, _meta_memo(model)).to("meta")
    except Exception as error:
        raise AnalysisError(f"the model cannot be copied to count its operations: {error}") from error


def _meta_memo(model: torch.nn.Module) -> dict[int, Any]:
    """A memo with which deepcopy puts a shape in the place of each parameter and buffer: nothing is allocated."""
    import torch

    from powerd_analytics.operations.shapes_layout import on_meta

    memo: dict[int, Any] = {}
    for p in model.parameters():
        memo[id(p)] = torch.nn.Parameter(on_meta(p), requires_grad=p.requires_grad)
    for b in model.buffers():
        memo[id(b)] = on_meta(b)
    return memo


def _one_sample(model: torch.nn.Module) -> list[str]:
    """Put normalisation over the batch into evaluation: torch refuses to train it on one value a channel."""
    from torch.nn.modules import batchnorm

    found = [m for m in model.modules() if isinstance(m, batchnorm._BatchNorm) and m.training]
    for module in found:
        module.eval()
    return [ONE_SAMPLE] if found else []


def _tensors(output: Any) -> Iterator[torch.Tensor]:
    import torch

    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from _tensors(value)
    elif isinstance(output, tuple | list):
        for value in output:
            yield from _tensors(value)
