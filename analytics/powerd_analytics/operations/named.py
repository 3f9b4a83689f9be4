"""From what is typed on a command line to a count: a name of the zoo, or a function in somebody's file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from powerd_analytics.operations.count import count_operations
from powerd_analytics.operations.counts import OperationCount
from powerd_core.errors import ConfigError


def count_named(
    model: str,
    inputs: Sequence[str] = (),
    batch_size: int = 1,
    *,
    backward: bool = True,
    progress: Callable[[float, str], None] | None = None,
) -> OperationCount:
    """Count ``model``: a name of the zoo, or ``FILE.py:FUNCTION``, which is imported and called.

    ``inputs``: shapes of one sample such as ``3x224x224`` or ``128:int64``, one for each argument;
    the zoo knows its own. ``progress`` as for `count_operations`.
    Raises `ConfigError` for what cannot be found or understood, `AnalysisError` for what does not run.
    """
    if batch_size < 1:
        raise ConfigError(f"--batch {batch_size}: must be at least 1")
    file, colon, function = model.rpartition(":")
    try:
        if colon:
            make, shapes = _from_file(Path(file), function), [_parse(text) for text in inputs]
            if not shapes:
                raise ConfigError(f"{model}: give the shape of one sample, such as --input 3x224x224")
        else:
            from powerd_analytics.operations.zoo import ZOO

            if model not in ZOO:
                raise ConfigError(f"no model {model!r}: one of {', '.join(sorted(ZOO))}, or FILE.py:FUNCTION")
            entry = ZOO[model]
            make = entry.make
            shapes = [_parse(text) for text in inputs] or [(entry.sample_shape, entry.dtype)]
        import torch
    except ImportError as error:
        if error.name != "torch":
            raise
        raise ConfigError("counting needs torch: pip install 'powerd[torch]'") from error
    if len(shapes) == 1:
        shape, dtype = shapes[0]
        return count_operations(
            make, shape, batch_size=batch_size, dtype=dtype, backward=backward, name=model, progress=progress
        )
    tensors = []
    for shape, dtype in shapes:
        tensors.append(torch.empty(batch_size, *shape, dtype=getattr(torch, dtype), device="meta"))
    return count_operations(
        make, inputs=tensors, batch_size=batch_size, backward=backward, name=model, progress=progress
    )


def _parse(text: str) -> tuple[tuple[int, ...], str]:
    """``3x224x224`` or ``128:int64``."""
    import torch

    numbers, _, dtype = text.partition(":")
    dtype = dtype or "float32"
    try:
        shape = tuple(int(n) for n in numbers.split("x"))
    except ValueError as error:
        raise ConfigError(f"--input {text}: a shape is numbers with x between them, such as 3x224x224") from error
    if min(shape) < 1:
        raise ConfigError(f"--input {text}: lengths are at least 1; the batch is --batch")
    if not isinstance(getattr(torch, dtype, None), torch.dtype):
        raise ConfigError(f"--input {text}: {dtype!r} is no type of torch's values, such as float32 or int64")
    return shape, dtype


def _from_file(path: Path, function: str) -> Callable[[], Any]:
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; a model is FILE.py:FUNCTION, or a name of the zoo")
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is no Python file: a model is FILE.py:FUNCTION")
    module = module_from_spec(spec)
    sys.path.insert(0, str(path.absolute().parent))  # as for a script: it may import what lies beside it
    sys.modules.setdefault(path.stem, module)  # where its dataclasses look themselves up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(path.absolute().parent))
    make = getattr(module, function, None)
    if not callable(make):
        there = sorted(n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == path.stem)
        raise ConfigError(f"{path} has no function {function!r}; it has {', '.join(there) or 'none'}")
    return make  # type: ignore[no-any-return]
