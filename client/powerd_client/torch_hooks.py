"""`Meter.watch`: forward, backward, update, layers and communication, marked by PyTorch's own hooks.

The outermost module's hooks mark its forward passes, each layer's hooks its forward and its backward. Where a backward
pass begins and ends, what a `GradScaler` does, and what a checkpoint computes again, is marked by `torch_marks`.

A hook object stays out of copies and pickles of its module: a copy (as for an average of weights) is not watched, and a
saved model does not need powerd to be loaded.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.distributed import is_available as has_distributed

from powerd_client.phase import Attribute
from powerd_client.torch_marks import (
    PhaseCodes,
    TorchMarks,
    UpdateMarks,
    calls_of,
    graph_task,
)
from powerd_core.errors import ConfigError

_WRAPPERS = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod")


class Hook:
    """A callable that is copied and pickled as one that does nothing. What it fails at is told, not raised."""

    __slots__ = ("_call", "_marks")

    def __init__(self, call: Callable[..., Any], marks: TorchMarks) -> None:
        self._call = call
        self._marks = marks

    def __call__(self, *args: Any) -> None:
        # Traced by torch.compile, this is a constant: no graph break, no guard, no mark.
        if is_compiling():
            return
        try:
            self._call(*args)
        except Exception as error:  # noqa: BLE001  (a training step must not fail for its measurement)
            self._marks.note(f"a hook failed, and phases may be missing: {type(error).__name__}: {error}")

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


def _hook_around(
    module: nn.Module, marks: TorchMarks, enter: Callable[..., Any], leave: Callable[..., Any]
) -> list[Callable[[], None]]:
    """Call ``enter(module, args)`` before everything else that hooks the module, and ``leave(module, args, output)``
    also when it raises. Returns what undoes it."""
    if isinstance(module, torch.jit.ScriptModule):
        marks.note("scripted modules take no hooks: their forward is not marked (mark it with meter.phase)")
        return []
    return [
        module.register_forward_pre_hook(Hook(enter, marks), prepend=True).remove,
        module.register_forward_hook(Hook(leave, marks), always_call=True).remove,
    ]


class ForwardPasses:
    """The forward passes of one model: ``forward`` in training, ``evaluation`` without gradients or in eval mode."""

    def __init__(self, marks: TorchMarks, attributes: Mapping[str, Attribute]) -> None:
        self._marks = marks
        self._forward = marks.codes("forward", attributes)
        self._evaluation = marks.codes("evaluation", attributes)
        self._open: dict[int, list[PhaseCodes | bool]] = {}
        """By thread: what each call of the module that has not returned has begun; True for a recomputation."""

    def enter(self, module: nn.Module) -> None:
        """The module is called."""
        stack = self._open.setdefault(get_ident(), [])
        if stack and calls_of(module, "_call_impl") > 1:
            stack.append(False)
            return
        while stack:  # an interrupt left it: only exceptions that are an Exception reach a hook
            self._close(stack, failed=True)
        if graph_task() != -1:
            stack.append(self._marks.begin_recompute())
            return
        is_training = module.training and torch.is_grad_enabled()
        codes = self._forward if is_training else self._evaluation
        self._marks.begin(codes)
        stack.append(codes)

    def leave(self, *, failed: bool) -> None:
        """The module has returned or raised."""
        stack = self._open.get(get_ident())
        if stack:
            self._close(stack, failed=failed)

    def _close(self, stack: list[PhaseCodes | bool], *, failed: bool) -> None:
        begun = stack.pop()
        if isinstance(begun, PhaseCodes):
            self._marks.mark(begun.cut if failed else begun.end)
        elif begun:
            self._marks.end_recompute()

    def hook(self, model: nn.Module) -> list[Callable[[], None]]:
        """Hook the model; returns what undoes it."""
        if model._compiled_call_impl is not None:
            return self._hook_compiled(model)
        return _hook_around(
            model,
            self._marks,
            lambda module, _args: self.enter(module),
            lambda _module, _args, output: self.leave(failed=_has_failed(output)),
        )

    def _hook_compiled(self, model: nn.Module) -> list[Callable[[], None]]:
        """A model compiled in place runs its hooks inside the compiled code; its call is what lies outside."""
        compiled: Callable[..., Any] = model._compiled_call_impl  # type: ignore[assignment]

        def marked(*args: Any, **kwargs: Any) -> Any:
            owner = weak()
            if owner is not None:
                self.enter(owner)
            failed = True
            try:
                result = compiled(*args, **kwargs)
                failed = False
            finally:
                self.leave(failed=failed)
            return result

        def undo() -> None:
            owner = weak()
            if owner is not None and owner._compiled_call_impl is marked:
                owner._compiled_call_impl = compiled

        weak = weakref.ref(model)
        model._compiled_call_impl = marked
        return [undo]


def _has_failed(output: object) -> bool:
    """Whether a forward hook was called because forward raised: it then has no output, in an exception's handler."""
    return output is None and sys.exc_info()[1] is not None


class Layer:
    """One module without modules inside, marked as ``layer`` in the pass around it.

    Its backward begins when its output's gradient is complete and the engine reaches the node that made the output. It
    ends where the next layer's begins (or the whole pass ends). What lies between layers (a sum of two branches, a
    gradient being added to its parameter, DDP's reduction) counts for the layer that backward came to before it, and
    the layers fill the pass but for its beginning (the loss).
    """

    def __init__(self, marks: TorchMarks, codes: PhaseCodes) -> None:
        self._marks = marks
        self._codes = codes
        self._input: Any = None
        """The node that made what the layer was called with."""
        self._backward = Hook(lambda _gradients: marks.begin_layer(codes), marks)

    def enter(self, _module: nn.Module, args: tuple[Any, ...]) -> None:
        """Forward pre-hook."""
        self._marks.mark(self._codes.begin, self._marks.caller())
        self._input = args[0].grad_fn if args and isinstance(args[0], Tensor) else None

    def leave(self, _module: nn.Module, _args: Any, output: Any) -> None:
        """Forward hook."""
        self._marks.mark(self._codes.cut if _has_failed(output) else self._codes.end, self._marks.caller())
        node = _node_of(output)
        # A layer that hands its input on (Identity, Dropout in eval mode) has no node, and no backward.
        if node is not None and node is not self._input:
            node.register_prehook(self._backward)
        self._input = None


def _node_of(output: Any) -> Any:
    """The autograd node that made the first tensor with a gradient in a module's output, None for none."""
    if isinstance(output, Tensor):
        return output.grad_fn
    if isinstance(output, Mapping):
        output = output.values()
    elif not isinstance(output, tuple | list):
        return None
    return next((node for item in output if (node := _node_of(item)) is not None), None)


def _name_of_layer(path: str) -> str:
    """A module's name in the model that the user wrote. DDP's ``module`` is only in front."""
    parts = [part for part in path.split(".") if part not in _WRAPPERS]
    return ".".join(parts[1:] if parts[:1] == ["module"] else parts)


class Watch:
    """What `Meter.watch` returns. The watch goes on when this is dropped; it ends with `remove`, at the end of a
    ``with``, when the meter is closed, and when the model is garbage-collected."""

    def __init__(self, loader: Iterable[Any] | None = None) -> None:
        self.loader = loader
        """The loader that was given, with its waits marked as ``data``."""
        self._undo: list[Callable[[], object]] = []
        self._model: Callable[[], nn.Module | None] = lambda: None

    def on_remove(self, *undo: Callable[[], object]) -> None:
        """What `remove` shall do, in the reverse order."""
        self._undo += undo

    def end_with(self, model: nn.Module, marks: TorchMarks) -> None:
        """End when the model is collected. The watch itself does not keep it alive."""
        name = type(model).__name__

        def collected(_: object) -> None:
            if self._undo:
                marks.note(f"the watched {name} was garbage-collected: its phases end there", "info")
                self.remove()

        self._model = weakref.ref(model, collected)

    @property
    def is_active(self) -> bool:
        """Whether it still marks."""
        return bool(self._undo)

    def watches(self, model: nn.Module) -> bool:
        """Whether it marks this model."""
        return self.is_active and self._model() is model

    def remove(self) -> None:
        """Take all hooks away; again does nothing. A phase that is open is ended by what runs, or cut."""
        while self._undo:
            self._undo.pop()()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def watch(
    marks: TorchMarks | None,
    model: nn.Module,
    *optimizers: Any,
    attributes: Mapping[str, Attribute],
    layers: bool = False,
    loader: Iterable[Any] | None = None,
    communication: bool = True,
    passes: bool = True,
) -> Watch:
    """See `Meter.watch`. Without ``passes`` the caller marks forward and evaluation itself.

    Without ``marks`` nothing is recorded: the training runs as if it were not watched.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(f"watch() wants a torch.nn.Module first, not {type(model).__name__}")
    unwrapped = [_unwrapped(optimizer) for optimizer in optimizers]
    watch = Watch(loader)
    if marks is None:
        return watch
    for earlier in [w for w in list(marks.watches) if w.watches(model)]:
        earlier.remove()
    marks.watches[watch] = dict(attributes)
    watch.on_remove(lambda: marks.watches.pop(watch, None))
    if layers:  # first, so that the hooks of the model itself lie around those of a model that is one layer
        watch.on_remove(*_hook_layers(marks, model, attributes))
    if passes:
        watch.on_remove(*ForwardPasses(marks, attributes).hook(model))
    if communication and has_distributed():
        from powerd_client.ddp import mark_communication

        watch.on_remove(*mark_communication(marks, getattr(model, "_orig_mod", model), attributes))
    for number, optimizer in enumerate(unwrapped):
        own = {**attributes, "optimizer": number} if len(unwrapped) > 1 else attributes
        watch.on_remove(UpdateMarks(marks, marks.codes("update", own), optimizer).close)
    watch.end_with(model, marks)
    return watch


def _unwrapped(optimizer: Any) -> Any:
    """The `torch.optim.Optimizer` inside what wraps it, as Accelerate does. Raises `ConfigError` for none."""
    while not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        if not (hasattr(optimizer, "param_groups") and hasattr(optimizer, "optimizer")):
            raise ConfigError(f"watch() wants torch.optim optimizers after the model, not {type(optimizer).__name__}")
        optimizer = optimizer.optimizer
    return optimizer


def _hook_layers(marks: TorchMarks, model: nn.Module, attributes: Mapping[str, Attribute]) -> list[Callable[[], None]]:
    """Hook every module without modules inside; returns what undoes it. A shared one has the first of its names."""
    if hasattr(model, "_orig_mod") or model._compiled_call_impl is not None or isinstance(model, nn.DataParallel):
        # They are fused, with hooks compiled into them; or their replicas run at the same time.
        marks.note("layers of a compiled model are not marked, nor those under nn.DataParallel")
        return []
    undo: list[Callable[[], None]] = []
    for path, module in model.named_modules():
        if next(module.children(), None) is None:
            name = _name_of_layer(path) or type(module).__name__
            layer = Layer(marks, marks.codes("layer", {**attributes, "layer": name}))
            undo += _hook_around(module, marks, layer.enter, layer.leave)
    return undo
