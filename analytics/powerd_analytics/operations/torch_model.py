"""`count_operations`: one batch through a model, forward and backward, and what is counted on its way.

The model runs on torch's ``meta`` device, where tensors have shapes and no values: no parameter is ever allocated and
nothing is computed. A model that asks for values (``.item()``, ``if mask.any()``, lengths of sequences) does not run
there. It is run once more, on a real batch on the CPU, and a note of the count says so.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

from powerd_analytics.operations.counts import OperationCount
from powerd_analytics.operations.paper import PaperHook
from powerd_client.host.log import install_hint
from powerd_client.training.layer_operations import has_equation
from powerd_core.errors import AnalysisError, ConfigError

if TYPE_CHECKING:
    import torch

    Model = torch.nn.Module | Callable[[], torch.nn.Module]

LARGEST_REAL_BYTES = 4 << 30
"""Of the parameters of a model that is run on a real batch."""


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
    """Count a model's operations, forward and backward.

    ``model``         a module, which stays as it is, or a function that makes one: then no parameter is ever allocated
    ``sample_shape``  shape of one sample, without the batch dimension
    ``inputs``        instead of ``sample_shape``: tensors of a whole batch, by place or by name. Only shapes are used,
                      unless the model asks for values
    ``dtype``         of the input made from ``sample_shape``, such as ``int64`` for tokens
    ``backward``      False counts forward alone

    Training mode counts as the model has it. The loss and the update of parameters are not in it.

    Raises `AnalysisError` when the model cannot be made or does not run on such a sample.
    """
    import torch

    if batch_size < 1 or (sample_shape is None) == (inputs is None):
        raise AnalysisError("give a batch size of 1 or more, and the shape of one sample or inputs, not both")
    if sample_shape is not None:
        try:
            inputs = [torch.empty(batch_size, *sample_shape, dtype=getattr(torch, dtype), device="meta")]
        except (RuntimeError, TypeError, AttributeError) as error:
            raise AnalysisError(f"{tuple(sample_shape)} of {dtype} is no shape of a sample: {error}") from error
    kwargs = dict(inputs) if isinstance(inputs, Mapping) else {}
    args = () if inputs is None or isinstance(inputs, Mapping) else tuple(inputs)
    first = _counted(model, args, kwargs, "meta", batch_size, backward)
    if isinstance(first, OperationCount):
        return replace(first, model=name or first.model)
    count = _counted(model, args, kwargs, "cpu", batch_size, backward)
    if isinstance(count, OperationCount):
        note = f"counted on one real batch on the CPU, as shapes alone do not suffice: {first}"
        return replace(count, notes=(note, *count.notes), model=name or count.model)
    raise AnalysisError(f"the model does not run on such a sample: {count}")


def _counted(
    model: Model, args: tuple[Any, ...], kwargs: dict[str, Any], device: str, batch_size: int, backward: bool
) -> OperationCount | str:
    """One batch through one copy of the model, on ``meta`` or on the CPU; else where it ended in which error."""
    import torch

    from powerd_analytics.operations.executed import BACKWARD, KernelCounter

    notes: list[str] = []
    where = "the model cannot be made"
    try:
        own = _copy(model, device, batch_size, notes)
        generator = torch.Generator().manual_seed(0)
        args = tuple(_on(device, a, generator) for a in args)
        kwargs = {k: _on(device, a, generator) for k, a in kwargs.items()}
        if any(isinstance(m, torch.nn.modules.lazy.LazyModuleMixin) for m in own.modules()):
            with torch.no_grad():  # they make their parameters of their first input: before anything is counted
                own(*args, **kwargs)
        notes.append(f"{sum(p.numel() for p in own.parameters()) / 1e6:.4g} million parameters")
    except AnalysisError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a model raises
        return _one_line(where, error)
    tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor) and a.dim()]
    paper = PaperHook(batch_size if batch_size > 1 or not tensors else tensors[0].shape[0])
    kernels = KernelCounter()
    modules: dict[str, torch.nn.Module] = dict(own.named_modules())

    def label(path: str) -> str:
        return path or type(own).__name__

    def named(path: str) -> str:
        return f"{label(path)} ({type(modules.get(path, own)).__name__})"

    for path, module in modules.items():
        if isinstance(module, torch.jit.ScriptModule):
            continue  # takes no hooks: its kernels are of the module around it, and it is listed
        if next(module.children(), None) is None or has_equation(module):
            module.register_forward_hook(paper.hook(label(path)))
        kernels.follow(path, module)
    # Compiled modules run without torch's compiler.
    eager: Any = torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
    try:
        with torch.enable_grad(), eager, kernels:
            outputs = own(*args, **kwargs)
            roots = [t for t in _tensors(outputs, set()) if t.requires_grad]
            kernels.current_pass = BACKWARD
            paper.is_open = False
            if roots and backward:
                torch.autograd.backward(roots, [torch.empty_like(t) for t in roots])
    except Exception as error:  # noqa: BLE001 - whatever a model raises
        return _one_line(f"{kernels.current_pass} in {named(kernels.current_module())}", error)
    if backward and not roots:
        notes.append("no output needs a gradient: torch runs no backward pass")
    if kernels.autocast:
        notes.append("autocast may do nothing here: operations are right, types and so bytes are those without it")
    for path, module in modules.items():
        is_relevant = path in kernels.worked or any(True for _ in module.parameters(recurse=False))
        if is_relevant and label(path) not in paper.seen:
            paper.not_counted.setdefault(named(path))
    unknown = [
        f"{named(path)}: {kernel}" + (f", {n} times" if n > 1 else "") for (path, kernel), n in kernels.unknown.items()
    ]
    return OperationCount(
        tuple(paper.layers),
        tuple(paper.not_counted),
        batch_size=batch_size,
        executed=kernels.counts(modules, label),
        executed_not_counted=tuple(unknown),
        notes=tuple(notes),
        model=type(own).__name__,
    )


def _copy(model: Model, device: str, batch_size: int, notes: list[str]) -> torch.nn.Module:
    """The model on ``device``; one that was handed in is copied, not changed. Raises `AnalysisError`."""
    import torch
    from torch.nn.modules.batchnorm import _BatchNorm

    if isinstance(model, torch.nn.Module):
        own = _unwrapped(model, notes)
        own = copy.deepcopy(own, _shapes_of(own) if device == "meta" else None)
    else:
        with torch.device(device):
            own = _unwrapped(model(), notes)
    parameters = list(own.parameters())
    if device == "cpu" and any(p.is_meta for p in parameters):
        raise AnalysisError("the model asks for values and has none: give the function that makes it")
    if device == "cpu" and sum(p.numel() * p.element_size() for p in parameters) > LARGEST_REAL_BYTES:
        raise AnalysisError("the model asks for values, and its parameters are too large to run it on the CPU")
    own = own.to(device)
    trained = [m for m in own.modules() if isinstance(m, _BatchNorm) and m.training] if batch_size == 1 else []
    for module in trained:
        module.eval()
    if trained:
        notes.append(
            "batch of 1: normalisation counted as in evaluation, since torch does not train it on one value a channel"
        )
    return own


def _unwrapped(model: Any, notes: list[str]) -> torch.nn.Module:
    """What torch.compile and DistributedDataParallel wrap: layers have their names without them, as in a run."""
    import torch

    if not isinstance(model, torch.nn.Module):
        raise AnalysisError(f"the model cannot be made: got a {type(model).__name__}, which is no torch.nn.Module")
    parallel = sys.modules.get("torch.nn.parallel.distributed")  # who has such a model has imported it
    if parallel is not None and isinstance(model, parallel.DistributedDataParallel):
        notes.append("DistributedDataParallel counted as one rank's model, without the communication")
        return _unwrapped(model.module, notes)
    if any(hasattr(m, "_orig_mod") or m._compiled_call_impl for m in model.modules()):
        notes.append("compiled modules counted as torch runs them without its compiler, which would move fewer bytes")
    return getattr(model, "_orig_mod", model)


def _shapes_of(model: torch.nn.Module) -> dict[int, Any]:
    """A memo with which deepcopy puts a shape in the place of each tensor of a module: nothing is allocated."""
    import torch

    memo: dict[int, Any] = {}
    for module in model.modules():
        # Pruned and normalised weights are plain attributes, made again in each forward pass.
        plain = [value for value in vars(module).values() if isinstance(value, torch.Tensor)]
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False), *plain):
            if torch.nn.parameter.is_lazy(tensor):
                continue  # holds nothing yet
            shape = tensor.detach().to("meta")
            if isinstance(tensor, torch.nn.Parameter):
                shape = torch.nn.Parameter(shape, requires_grad=tensor.requires_grad)
            memo[id(tensor)] = shape
    return memo


def _on(device: str, value: Any, generator: torch.Generator) -> Any:
    """An argument on ``device``; one without values gets random numbers, or zeros where it holds no numbers."""
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    own = value.detach()
    if device == "meta" or not value.is_meta:
        own = own.to(device)
    elif value.is_floating_point():
        own = torch.rand(value.shape, dtype=value.dtype, generator=generator)
    else:
        own = torch.zeros(value.shape, dtype=value.dtype)
    return own.requires_grad_(value.requires_grad)


def _tensors(output: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    """Every tensor in what a model returned: containers and objects are looked into."""
    import torch

    if isinstance(output, torch.Tensor):
        yield output
    elif id(output) not in seen and not isinstance(output, torch.nn.Module | type):
        seen.add(id(output))
        inner = output if isinstance(output, Mapping) else getattr(output, "__dict__", {})
        for value in output if isinstance(output, list | tuple | set) else inner.values():
            yield from _tensors(value, seen)


def _one_line(where: str, error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{where}: {type(error).__name__}: {text[:200]}{'…' if len(text) > 200 else ''}"


# -- models by name ----------------------------------------------------------------------------------------------------


def count_named(
    model: str, inputs: Sequence[str] = (), batch_size: int = 1, *, backward: bool = True
) -> OperationCount:
    """Count ``model``: a name of the zoo, or ``FILE.py:FUNCTION``, which is imported and called.

    ``inputs``: shapes of one sample such as ``3x224x224`` or ``128:int64``, one for each argument; the zoo knows its
    own. Raises `ConfigError` for what cannot be found or understood, `AnalysisError` for what does not run.
    """
    if batch_size < 1:
        raise ConfigError(f"--batch {batch_size}: must be at least 1")
    try:
        import torch
    except ImportError as error:
        raise ConfigError(f"counting needs torch: {install_hint('torch')}") from error
    file, colon, function = model.rpartition(":")
    shapes = [_shape(text) for text in inputs]
    make: Callable[[], Any]
    if colon:
        make = _from_file(Path(file), function)
        if not shapes:
            raise ConfigError(f"{model}: give the shape of one sample, such as --input 3x224x224")
    else:
        from powerd_analytics.operations.zoo import ZOO

        if model not in ZOO:
            raise ConfigError(f"no model {model!r}: one of {', '.join(sorted(ZOO))}, or FILE.py:FUNCTION")
        make = ZOO[model].make
        shapes = shapes or [(ZOO[model].sample_shape, ZOO[model].dtype)]
    tensors = [torch.empty(batch_size, *s, dtype=getattr(torch, d), device="meta") for s, d in shapes]
    return count_operations(make, inputs=tensors, batch_size=batch_size, backward=backward, name=model)


def _shape(text: str) -> tuple[tuple[int, ...], str]:
    """``3x224x224`` or ``128:int64``."""
    import torch

    numbers, _, dtype = text.partition(":")
    try:
        shape = tuple(int(n) for n in numbers.split("x"))
    except ValueError:
        shape = ()
    if min(shape, default=0) < 1 or not isinstance(getattr(torch, dtype or "float32", None), torch.dtype):
        raise ConfigError(f"--input {text}: a shape is lengths with x between them, such as 3x224x224 or 128:int64")
    return shape, dtype or "float32"


def _from_file(path: Path, function: str) -> Callable[[], Any]:
    spec = spec_from_file_location(path.stem, path) if path.is_file() else None
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is no Python file: a model is FILE.py:FUNCTION, or a name of the zoo")
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
        raise ConfigError(f"{path} has no function {function!r}")
    return make  # type: ignore[no-any-return]
