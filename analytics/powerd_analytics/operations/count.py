"""`count_operations`: a model's operations by both conventions, without its memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from powerd_analytics.operations.counts import OperationCount
from powerd_core.errors import AnalysisError

if TYPE_CHECKING:
    import torch

    Model = torch.nn.Module | Callable[[], torch.nn.Module]


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
    ``inputs``        instead of ``sample_shape``: tensors of a whole batch, by place or by name. Only shapes are used,
                      and, where the model asks for values, those of small tensors on a CPU
    ``dtype``         of the input made from ``sample_shape``, such as ``int64`` for tokens
    ``backward``      False counts forward alone
    ``progress``      called now and then with the share done (0 to 1; 0 all through forward) and what is being done

    Training mode counts as the model has it. The loss and the update of parameters are not in it.

    Where the model asks for values that nobody knows, ``assumed`` of the result says what was taken for them, and
    ``stopped`` why it was not counted to its end.
    Raises `AnalysisError` when the model cannot be made or does not run on such a sample.
    """
    from powerd_analytics.operations.attempt import Job
    from powerd_analytics.operations.counting import counted
    from powerd_analytics.operations.no_compiler import without_compiler
    from powerd_analytics.operations.releases import with_meta_module

    if batch_size < 1:
        raise AnalysisError(f"batch size {batch_size}: must be at least 1")
    args, kwargs, said = _inputs(sample_shape, inputs, batch_size, dtype)
    with without_compiler(), with_meta_module():
        return counted(Job(model, args, kwargs, said, batch_size, backward, name, progress))


def _inputs(
    sample_shape: Sequence[int] | None, inputs: Sequence[Any] | Mapping[str, Any] | None, batch_size: int, dtype: str
) -> tuple[tuple[Any, ...], dict[str, Any], str]:
    """Arguments for the model, and what to call them in a message."""
    import torch

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

    if isinstance(inputs, Mapping):
        return (), dict(inputs), "these inputs"
    return tuple(inputs), {}, "these inputs"
