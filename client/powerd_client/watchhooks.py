"""Hooks on modules: the outer one's forward passes, and the layers' forward and backward.

A hook object stays out of copies and pickles of its module: a copy (as for an average of weights) is not watched, and a
saved model does not need powerd to be loaded.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from powerd_client.watchmarks import Kind, Marker, calls_of, graph_task

if TYPE_CHECKING:
    from powerd_client.phase import Attribute

_WRAPPERS = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod")


class Hook:
    """A callable that is copied and pickled as one that does nothing. What it fails at is told, not raised."""

    __slots__ = ("_call", "_marker")

    def __init__(self, call: Callable[..., Any], marker: Marker) -> None:
        self._call = call
        self._marker = marker

    def __call__(self, *args: Any) -> None:
        # Traced by torch.compile, this is a constant: no graph break, no guard, no mark.
        if is_compiling():
            return
        try:
            self._call(*args)
        except Exception as error:  # noqa: BLE001  (a training step must not fail for its measurement)
            self._marker.note(f"a hook failed, and phases may be missing: {type(error).__name__}: {error}")

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


class Passes:
    """The forward passes of one model: ``forward`` in training, ``evaluation`` without gradients or in eval mode."""

    def __init__(self, marker: Marker, attributes: Mapping[str, Attribute]) -> None:
        self._marker = marker
        self._forward = marker.kind("forward", attributes)
        self._evaluation = marker.kind("evaluation", attributes)
        self._open: dict[int, list[Kind | bool]] = {}
        """By thread: what each call of the module that has not returned has begun; True for a recomputation."""

    def enter(self, module: nn.Module) -> None:
        """The module is called."""
        thread = get_ident()
        stack = self._open.get(thread)
        if stack is None:
            stack = self._open[thread] = []
        if stack and calls_of(module, "_call_impl") > 1:
            stack.append(False)
            return
        while stack:  # an interrupt left it: only exceptions that are an Exception reach a hook
            self._close(stack, failed=True)
        if graph_task() != -1:
            stack.append(self._marker.begin_recompute())
            return
        if module.training and torch.is_grad_enabled():
            kind = self._forward
            self._marker.forwards += 1
        else:
            kind = self._evaluation
        self._marker.begin(kind)
        stack.append(kind)

    def leave(self, *, failed: bool) -> None:
        """The module has returned or raised."""
        stack = self._open.get(get_ident())
        if stack:
            self._close(stack, failed=failed)

    def _close(self, stack: list[Kind | bool], *, failed: bool) -> None:
        kind = stack.pop()
        if isinstance(kind, Kind):
            self._marker.mark(kind.cut if failed else kind.end)
        elif kind:
            self._marker.end_recompute()

    def hook(self, model: nn.Module) -> list[Callable[[], None]]:
        """Hook the model; returns what undoes it."""
        before = Hook(lambda module, _args: self.enter(module), self._marker)
        after = Hook(lambda _module, _args, output: self.leave(failed=has_failed(output)), self._marker)
        return [
            model.register_forward_pre_hook(before, prepend=True).remove,
            model.register_forward_hook(after, always_call=True).remove,
        ]


def has_failed(output: object) -> bool:
    """Whether a forward hook was called because forward raised: it then has no output, in an exception's handler."""
    return output is None and sys.exc_info()[1] is not None


class Layer:
    """One module without modules inside, marked as ``layer`` in the pass around it.

    Its backward begins when its output's gradient is complete and the engine reaches the node that made the output. It
    ends where the next layer's begins (or the whole pass ends). What lies between layers (a sum of two branches, a
    gradient being added to its parameter, DDP's reduction) counts for the layer that backward came to before it, and
    the layers fill the pass but for its beginning (the loss).
    """

    def __init__(self, marker: Marker, kind: Kind) -> None:
        self._marker = marker
        self._kind = kind
        self._input: Any = None
        self._backward = Hook(lambda _gradients: marker.begin_layer(kind), marker)

    def enter(self, _module: nn.Module, args: tuple[Any, ...]) -> None:
        """Forward pre-hook."""
        self._input = _grad_fn(args[0]) if args and isinstance(args[0], Tensor) else None
        marker = self._marker
        marker.at(self._kind.begin, marker.place())

    def leave(self, _module: nn.Module, _args: Any, output: Any) -> None:
        """Forward hook."""
        marker = self._marker
        marker.at(self._kind.cut if has_failed(output) else self._kind.end, marker.place())
        node = node_of(output)
        # A layer that hands its input on (Identity, Dropout in eval mode) has no node, and no backward.
        if node is not None and node is not self._input:
            node.register_prehook(self._backward)
        self._input = None

    def hook(self, module: nn.Module) -> list[Callable[[], None]]:
        """Hook the module; returns what undoes it."""
        return [
            module.register_forward_pre_hook(Hook(self.enter, self._marker), prepend=True).remove,
            module.register_forward_hook(Hook(self.leave, self._marker), always_call=True).remove,
        ]


def node_of(output: Any) -> Any:
    """The autograd node that made the first tensor with a gradient in a module's output, None for none."""
    if isinstance(output, Tensor):
        return _grad_fn(output)
    if isinstance(output, Mapping):
        output = output.values()
    elif not isinstance(output, tuple | list):
        return None
    return next((node for item in output if (node := node_of(item)) is not None), None)


def _grad_fn(tensor: Tensor) -> Any:
    try:
        return tensor.grad_fn
    except RuntimeError:  # a view that cannot have one, since what it is a view of was changed in place
        return None


def hook_layers(marker: Marker, model: nn.Module, attributes: Mapping[str, Attribute]) -> list[Callable[[], None]]:
    """Hook every module without modules inside. A shared one has the first of its names."""
    undo: list[Callable[[], None]] = []
    scripted = 0
    for path, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            scripted += 1
            continue
        if next(module.children(), None) is not None:
            continue
        name = _without_wrappers(path)
        kind = marker.kind("layer", {**attributes, "layer": name or type(module).__name__})
        undo += Layer(marker, kind).hook(module)
    if scripted:
        marker.note("scripted modules take no hooks: their layers are not marked")
    return undo


def _without_wrappers(path: str) -> str:
    """A module's name in the model that the user wrote. DDP's ``module`` is only in front."""
    parts = [part for part in path.split(".") if part not in _WRAPPERS]
    return ".".join(parts[1:] if parts[:1] == ["module"] else parts)
