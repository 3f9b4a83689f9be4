"""`count_operations`: one batch through a model, forward and backward, and what is counted on its way.

The model runs on torch's ``meta`` device, where tensors have shapes and no values: no parameter is ever allocated and
nothing is computed. A model that asks for values (``.item()``, ``if mask.any()``, lengths of sequences) does not run
there. It is run once more, on a real batch on the CPU, and a note of the count says so.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

from powerd_analytics.operations.counts import OperationCount
from powerd_core.errors import AnalysisError, ConfigError

if TYPE_CHECKING:
    import torch

    Model = torch.nn.Module | Callable[[], torch.nn.Module]

LARGEST_REAL_BYTES = 4 << 30
"""Of the parameters of a model that is run on a real batch."""

ONE_SAMPLE = "batch of 1: normalisation counted as in evaluation, since torch does not train it on one value a channel"
COMPILED = "compiled modules counted as torch runs them without its compiler, which would move fewer bytes"
DISTRIBUTED = "DistributedDataParallel counted as one rank's model, without the communication"
NO_BACKWARD = "no output needs a gradient: torch runs no backward pass"
AUTOCAST = "autocast may do nothing here: operations are right, types and so bytes are those without it"
REAL_BATCH = "counted on one real batch on the CPU, as shapes alone do not suffice: {}"


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
    """Count a model's operations, forward and backward.

    ``model``         a module, which stays as it is, or a function that makes one: then no parameter is ever allocated
    ``sample_shape``  shape of one sample, without the batch dimension
    ``inputs``        instead of ``sample_shape``: tensors of a whole batch, by place or by name. Only shapes are used,
                      unless the model asks for values
    ``dtype``         of the input made from ``sample_shape``, such as ``int64`` for tokens
    ``backward``      False counts forward alone
    ``progress``      called now and then with the share done (0 to 1) and what is being done

    Training mode counts as the model has it. The loss and the update of parameters are not in it.

    Raises `AnalysisError` when the model cannot be made or does not run on such a sample.
    """
    import torch

    if batch_size < 1:
        raise AnalysisError(f"batch size {batch_size}: must be at least 1")
    if (sample_shape is None) == (inputs is None):
        raise AnalysisError("give the shape of one sample, or inputs, and not both")
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    if isinstance(inputs, Mapping):
        kwargs = dict(inputs)
    elif inputs is not None:
        args = tuple(inputs)
    else:
        assert sample_shape is not None
        value_type = getattr(torch, dtype, None)
        if not isinstance(value_type, torch.dtype):
            raise AnalysisError(f"{dtype!r} is no type of torch's values: float32 or int64, for example")
        try:
            args = (torch.empty(batch_size, *sample_shape, dtype=value_type, device="meta"),)
        except (RuntimeError, TypeError) as error:
            raise AnalysisError(f"{tuple(sample_shape)} is no shape of a sample: {error}") from error

    def one_batch(device: str) -> OperationCount:
        return _Batch(model, args, kwargs, device, batch_size, progress).count(name, backward=backward)

    try:
        return one_batch("meta")
    except _Stopped as first:
        reason = f"{first.where or 'making it'}: {_one_line(first.error)}"
    try:
        count = one_batch("cpu")
    except _Stopped as second:
        shape = "these inputs" if sample_shape is None else f"a sample of shape {tuple(sample_shape)}"
        what = f"does not run on {shape}: {second.where}" if second.where else "cannot be made"
        raise AnalysisError(f"the model {what}: {_one_line(second.error)}") from second.error
    return replace(count, notes=(REAL_BATCH.format(reason), *count.notes))


class _Stopped(Exception):
    """A model that ended in an error, and where."""

    def __init__(self, where: str, error: Exception) -> None:
        super().__init__(where)
        self.where, self.error = where, error


class _Batch:
    """One batch through one copy of the model, on ``meta`` or on the CPU."""

    def __init__(
        self, model: Model, args: tuple[Any, ...], kwargs: dict[str, Any], device: str, batch_size: int,
        progress: Callable[[float, str], None] | None,
    ) -> None:  # fmt: skip
        import torch

        from powerd_analytics.operations.executed import KernelCounter
        from powerd_analytics.operations.paper import PaperHook, has_equation

        self.notes: list[str] = []
        self.batch_size = batch_size
        tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor) and a.dim()]
        samples = batch_size if batch_size > 1 or not tensors else tensors[0].shape[0]
        self.paper, self.kernels = PaperHook(samples), KernelCounter(progress)
        try:
            self.model = self._copy(model, device)
            generator = torch.Generator().manual_seed(0)
            self.args = tuple(_on(device, a, generator) for a in args)
            self.kwargs = {k: _on(device, a, generator) for k, a in kwargs.items()}
            self._make_lazy_parameters()
        except AnalysisError:
            raise
        except Exception as error:
            raise _Stopped("", error) from error
        self.modules: dict[str, torch.nn.Module] = dict(self.model.named_modules())
        for path, module in self.modules.items():
            if isinstance(module, torch.jit.ScriptModule):
                continue  # takes no hooks: its kernels are of the module around it, and it is listed
            if next(module.children(), None) is None or has_equation(module):
                module.register_forward_hook(self.paper.hook(self._label(path)))
            self.kernels.follow(path, module)

    def count(self, name: str, *, backward: bool) -> OperationCount:
        """Run the batch and count it. Raises `_Stopped`."""
        import torch

        from powerd_analytics.operations.executed import BACKWARD

        kernels, paper = self.kernels, self.paper
        try:
            with torch.enable_grad(), _eager(), kernels:
                outputs = self.model(*self.args, **self.kwargs)
                roots = [t for t in _tensors(outputs) if t.requires_grad]
                kernels.current_pass = BACKWARD
                paper.is_open = False
                if roots and backward:
                    torch.autograd.backward(roots, [torch.empty_like(t) for t in roots])
        except Exception as error:
            raise _Stopped(f"{kernels.current_pass} in {self._named(kernels.current_module())}", error) from error
        if backward and not roots:
            self.notes.append(NO_BACKWARD)
        if kernels.autocast:
            self.notes.append(AUTOCAST)
        for path, module in self.modules.items():
            is_relevant = path in kernels.worked or any(True for _ in module.parameters(recurse=False))
            if is_relevant and self._label(path) not in paper.seen:
                paper.not_counted.setdefault(self._named(path))
        unknown = [
            f"{self._named(path)}: {kernel}" + (f", {n} times" if n > 1 else "")
            for (path, kernel), n in kernels.unknown.items()
        ]
        return OperationCount(
            tuple(paper.layers),
            tuple(paper.not_counted),
            batch_size=self.batch_size,
            executed=kernels.counts(self.modules, self._label),
            executed_not_counted=tuple(unknown),
            notes=tuple(self.notes),
            model=name or type(self.model).__name__,
        )

    def _copy(self, model: Model, device: str) -> torch.nn.Module:
        """The model on ``device``; one that was handed in is copied, not changed. Raises `AnalysisError`."""
        import torch
        from torch.nn.modules import batchnorm

        if isinstance(model, torch.nn.Module):
            model = self._unwrapped(model)
            if isinstance(model, torch.jit.ScriptModule):
                raise AnalysisError("a scripted or traced module cannot be counted: give the one that it was made from")
            own = copy.deepcopy(model, _shapes_of(model) if device == "meta" else None)
        else:
            with torch.device(device):
                own = model()
            if not isinstance(own, torch.nn.Module):
                kind = type(own).__name__
                raise AnalysisError(f"the model cannot be made: got a {kind}, which is no torch.nn.Module")
            own = self._unwrapped(own)
        parameters = list(own.parameters())
        if device == "cpu":
            if any(p.is_meta for p in parameters):
                raise AnalysisError("the model asks for values and has none: give the function that makes it")
            size = sum(p.numel() * p.element_size() for p in parameters)
            if size > LARGEST_REAL_BYTES:
                raise AnalysisError(
                    f"the model asks for values, and its parameters ({size / 2**30:.0f} GiB) are too large to run it "
                    "on the CPU: count a smaller one of the same kind"
                )
        own = own.to(device)
        if self.batch_size == 1:
            single = [m for m in own.modules() if isinstance(m, batchnorm._BatchNorm) and m.training]
            for module in single:
                module.eval()
            self.notes += [ONE_SAMPLE] if single else []
        return own

    def _unwrapped(self, model: torch.nn.Module) -> torch.nn.Module:
        """What torch.compile and DistributedDataParallel wrap: layers have their names without them, as in a run."""
        import torch

        parallel = sys.modules.get("torch.nn.parallel.distributed")  # who has such a model has imported it
        while True:
            is_ddp = parallel is not None and isinstance(model, parallel.DistributedDataParallel)
            inner = getattr(model, "_orig_mod", None) or (model.module if is_ddp else None)
            if not isinstance(inner, torch.nn.Module):
                break
            self.notes.append(DISTRIBUTED if is_ddp else COMPILED)
            model = inner
        if not self.notes and any(hasattr(m, "_orig_mod") or m._compiled_call_impl for m in model.modules()):
            self.notes.append(COMPILED)
        return model

    def _make_lazy_parameters(self) -> None:
        """Let modules that wait for their first input make their parameters, before anything is counted."""
        import torch
        from torch.nn.modules.lazy import LazyModuleMixin

        if any(isinstance(m, LazyModuleMixin) for m in self.model.modules()):
            with torch.no_grad():
                self.model(*self.args, **self.kwargs)

    def _label(self, path: str) -> str:
        return path or type(self.model).__name__

    def _named(self, path: str) -> str:
        return f"{self._label(path)} ({type(self.modules.get(path, self.model)).__name__})"


def _shapes_of(model: torch.nn.Module) -> dict[int, Any]:
    """A memo with which deepcopy puts a shape in the place of each tensor of a module: nothing is allocated."""
    import torch
    from torch.nn.parameter import is_lazy

    memo: dict[int, Any] = {}
    tensors: list[Any] = [*model.parameters(), *model.buffers()]
    for tensor in tensors:
        if is_lazy(tensor):
            lazy: Any = type(tensor)
            own: Any = lazy(requires_grad=tensor.requires_grad, device="meta", dtype=tensor.dtype)
        elif isinstance(tensor, torch.nn.Parameter):
            own = torch.nn.Parameter(tensor.detach().to("meta"), requires_grad=tensor.requires_grad)
        else:
            own = tensor.to("meta")
        memo[id(tensor)] = own
    for module in model.modules():
        # Pruned and normalised weights are plain attributes, made again in each forward pass.
        for value in vars(module).values():
            if isinstance(value, torch.Tensor):
                memo.setdefault(id(value), value.detach().to("meta"))
    return memo


def _on(device: str, value: Any, generator: torch.Generator) -> Any:
    """An argument on ``device``; one without values gets random numbers, or zeros where it holds no numbers."""
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    if device == "meta" or not value.is_meta:
        return value.detach().to(device).requires_grad_(value.requires_grad)
    if value.is_floating_point():
        return torch.rand(value.shape, dtype=value.dtype, generator=generator).requires_grad_(value.requires_grad)
    return torch.zeros(value.shape, dtype=value.dtype)


def _tensors(output: Any, seen: set[int] | None = None) -> Iterator[torch.Tensor]:
    """Every tensor in what a model returned: containers and objects are looked into."""
    import torch

    seen = set() if seen is None else seen
    if isinstance(output, torch.Tensor):
        yield output
    elif id(output) not in seen and not isinstance(output, str | bytes | int | float | torch.nn.Module | type):
        seen.add(id(output))
        inner: Any = getattr(output, "__dict__", {})
        if isinstance(output, Mapping):
            inner = output
        elif isinstance(output, list | tuple | set):
            inner = dict(enumerate(output))
        elif hasattr(output, "__dataclass_fields__"):
            inner = {name: getattr(output, name) for name in output.__dataclass_fields__}
        for value in inner.values():
            yield from _tensors(value, seen)


def _eager() -> AbstractContextManager[Any]:
    """Run compiled modules without torch's compiler, which is imported where there are any."""
    import torch

    stance: Any = getattr(torch.compiler, "set_stance", None)
    return stance("force_eager") if stance is not None and "torch._dynamo" in sys.modules else nullcontext()


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}{'…' if len(text) > 200 else ''}"


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
    tensors = [torch.empty(batch_size, *s, dtype=getattr(torch, d), device="meta") for s, d in shapes]
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
