"""`count_operations`: a model's operations by both conventions, without its memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from powerd_analytics.operations.counts import OperationCount
from powerd_core.errors import AnalysisError

if TYPE_CHECKING:
    import torch

    Model = torch.nn.Module | Callable[[], torch.nn.Module]

NO_BACKWARD = "no output needs a gradient: torch runs no backward pass"
FUSED = (
    "attention counted as its products, two in forward and four in backward; a fused kernel computes the first again"
    " in backward: {:,} operations more in all"
)
AUTOCAST = "autocast does nothing on meta: operations are right, types and so bytes are those without it"


def count_operations(
    model: Model,
    sample_shape: Sequence[int] | None = None,
    *,
    batch_size: int = 1,
    inputs: Sequence[Any] | Mapping[str, Any] | None = None,
    dtype: str = "float32",
    backward: bool = True,
    name: str = "",
    progress: Callable[[float, str], None] | None = None,
) -> OperationCount:
    """Count a model's operations, forward and backward, on torch's ``meta`` device.

    ``model``         a module, which stays as it is, or a function that makes one: then no parameter is ever allocated
    ``sample_shape``  shape of one sample, without the batch dimension
    ``inputs``        instead of ``sample_shape``: tensors of a whole batch, by place or by name; only shapes are used
    ``dtype``         of the input made from ``sample_shape``, such as ``int64`` for tokens
    ``backward``      False counts forward alone
    ``progress``      called now and then with the share done (0 to 1; 0 all through forward) and what is being done

    Training mode counts as the model has it. The loss and the update of parameters are not in it.
    Raises `AnalysisError` when the model cannot be made or does not run on such a sample.
    """
    from powerd_analytics.operations.no_compiler import without_compiler

    if batch_size < 1:
        raise AnalysisError(f"batch size {batch_size}: must be at least 1")
    args, kwargs, said = _inputs(sample_shape, inputs, batch_size, dtype)
    with without_compiler():
        count = partial(_count, model, args, kwargs, said, batch_size, backward=backward, name=name, progress=progress)
        found = count() or count(all_steps=True)
        assert found is not None
        return found


def _count(
    model: Model,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    said: str,
    batch_size: int,
    *,
    backward: bool,
    name: str,
    progress: Callable[[float, str], None] | None,
    all_steps: bool = False,
) -> OperationCount | None:
    """`count_operations` with arguments for the model; ``said`` is what messages call them.

    None where all steps of recurrent layers are needed and were not asked for.
    """
    import torch

    from powerd_analytics.operations.causal import without_asking
    from powerd_analytics.operations.executed import BACKWARD, ExecutedMode, Told
    from powerd_analytics.operations.models import in_evaluation_for_one, shadow_of, without_lazies
    from powerd_analytics.operations.no_compiler import run_backward
    from powerd_analytics.operations.on_meta import MetaDevice
    from powerd_analytics.operations.outputs import NO_TENSOR, let_go, tensors_of
    from powerd_analytics.operations.paper import PaperHook, has_equation
    from powerd_analytics.operations.recurrent import Recurrent
    from powerd_analytics.operations.recurrent_calls import RECURRENT
    from powerd_analytics.operations.refusals import why

    shadow, notes = shadow_of(model)
    notes += in_evaluation_for_one(shadow) if batch_size == 1 else []

    def label(path: str) -> str:
        return path or type(shadow).__name__

    paper, executed = PaperHook(), ExecutedMode()
    if progress is not None:
        executed.tick = Told(executed, progress)
    modules: dict[str, torch.nn.Module] = {}
    found: list[torch.Tensor] = []
    roots: list[torch.Tensor] = []
    held: list[Any] = []
    try:
        without_asking(shadow, notes)
        without_lazies(shadow, args, kwargs)
        modules = dict(shadow.named_modules())
        for path, module in modules.items():
            if next(module.children(), None) is None or has_equation(module):
                module.register_forward_hook(paper.hook(label(path)))
            executed.watch(path, module)
        device = MetaDevice({} if all_steps else dict.fromkeys(RECURRENT, Recurrent(executed)))
        with device, torch.enable_grad(), _eager(), executed:
            outputs = shadow(*args, **kwargs)
            found = list(tensors_of(outputs))
            roots = [t for t in found if t.requires_grad]
            executed.current_pass, device.in_backward = BACKWARD, True
            paper.is_open = False  # a checkpoint calls modules again
            if roots and backward:
                run_backward(roots, [t.detach().new_empty(t.shape) for t in roots])
    except Exception as error:
        if executed.needs_all_steps:
            return None
        what = "does not run" if executed.current_pass != BACKWARD else "has a backward pass that does not run"
        raise AnalysisError(f"the model {what} on {said}, on torch's meta device: {why(error)}") from error
    if executed.needs_all_steps:
        return None
    has_roots = bool(roots)
    if backward and not has_roots:
        notes.append(NO_BACKWARD if found else NO_TENSOR.format(type(outputs).__name__))
    held += [outputs, *found]
    del outputs, found, roots
    let_go(held)
    notes += [AUTOCAST] if executed.saw_autocast else []
    notes += [FUSED.format(device.again)] if backward and has_roots and device.again else []
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


def _eager() -> AbstractContextManager[Any]:
    """Run compiled modules without torch's compiler, which is imported where there are any."""
    import torch

    stance: Any = getattr(torch.compiler, "set_stance", None)
    return stance("force_eager") if stance is not None and "torch._dynamo" in sys.modules else nullcontext()


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
