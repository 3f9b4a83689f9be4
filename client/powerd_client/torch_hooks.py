"""`Meter.watch`: forward, backward, update, layers and communication, marked by PyTorch's own hooks.

The outermost module's hooks mark its forward passes, each layer's hooks its forward and its backward, an optimizer's
its steps. What has no hook is replaced when the first meter watches, for good; where no meter watches, it only passes
calls on. `torch.autograd.backward` is what `Tensor.backward`, DDP, Lightning and Trainer come to. `GradScaler.step`
calls an optimizer only when the gradients are finite, so the optimizer's hooks cannot tell a step that was skipped. A
checkpoint calls the function that it recomputes from a place that no module's hook sees.

PyTorch keeps hooks in dictionaries of the models and optimizers themselves, which are copied and saved with them. Of
what a user copies, saves or sends to a process nothing may be powerd's, so these dictionaries are copied and pickled
without its hooks (`_reduced`).

Phases nest within a thread. PyTorch's engine runs the hooks of a backward pass on threads of its own where there is a
GPU, so a mark made there is written for the thread that called ``backward``, and lies inside its phase.
"""

from __future__ import annotations

import contextlib
import copy
import copyreg
import functools
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from threading import get_ident
from types import MethodType
from typing import Any

import torch
from torch import _C, Tensor, nn
from torch.compiler import is_compiling
from torch.distributed import is_available as has_distributed
from torch.utils import checkpoint

from powerd_client.marks import MarkWriter
from powerd_client.pairing import MODEL_BY_CLASS, common_attributes
from powerd_client.phase import Attribute, Phase, PhaseCodes
from powerd_core.errors import ConfigError

_Function = Callable[..., Any]
_WRAPPERS = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod")

graph_task: Callable[[], int] = _C._current_graph_task_id
"""The backward pass that the engine runs on this thread at the moment, -1 for none."""


@dataclass(slots=True)
class _Pass:
    """A backward pass that runs, and what is open in it. Watches come and go, and what ends is what began."""

    codes: PhaseCodes
    layer: PhaseCodes | None = None
    recompute: PhaseCodes | None = None


class TorchMarks:
    """The marks of all watches of one meter, and what is open in them. Its methods never raise."""

    def __init__(self, mark: Callable[..., object], phase: Callable[..., Phase], writer: MarkWriter) -> None:
        self.mark = mark
        self._phase = phase
        self._writer = writer
        self._noted: set[str] = set()
        self._tracks = -1
        self._passes: dict[int, _Pass] = {}
        """By the thread that called it."""
        self._trained: dict[int, list[Mapping[str, Attribute]]] = {}
        """By thread: the attributes of the watches that ran forward, for a backward pass to come or the one before."""
        self._has_begun_backward: set[int] = set()
        """The threads that have run backward since they ran forward."""
        self.watches: dict[Watch, Mapping[str, Attribute]] = {}
        """The watches that go on, with their attributes."""
        self.updating: dict[int, UpdateMarks] = {}
        """The optimizer whose ``update`` is open, by thread."""
        _meters.append(self)
        _patch_torch()

    def close(self) -> None:
        """End all watches."""
        for watch in list(self.watches):
            watch.remove()
        _meters.remove(self)

    def codes(self, name: str, attributes: Mapping[str, Attribute]) -> PhaseCodes:
        """The codes of a phase kind, the same for the same name and attributes."""
        begin = self._phase(name, **attributes)._begin
        return PhaseCodes(begin, ~begin, self._writer.cut(begin))

    def run_forward(self, attributes: Mapping[str, Attribute]) -> None:
        """A forward pass in training begins in this thread: the next backward pass belongs to its model."""
        thread = get_ident()
        trained = self._trained.setdefault(thread, [])
        if thread in self._has_begun_backward:
            self._has_begun_backward.discard(thread)
            trained.clear()
        if attributes not in trained:
            trained.append(attributes)

    def _backward_codes(self, name: str, thread: int) -> PhaseCodes:
        """Which model a backward pass belongs to, no hook says: it has the attributes that all models have which ran
        forward in its thread since the last one; where that is not marked, those of all watches."""
        trained = self._trained.get(thread) or list(self.watches.values())
        return self.codes(name, common_attributes(trained))

    @contextlib.contextmanager
    def muted(self) -> Iterator[None]:
        """Mark nothing meanwhile, but keep track of what runs."""
        mark, self.mark = self.mark, lambda *_: None
        try:
            yield
        finally:
            self.mark = mark

    def note(self, text: str, level: str = "warning") -> None:
        """Put a message into the run, once."""
        if text not in self._noted:
            self._noted.add(text)
            self._writer.note(text, level)

    def track(self) -> int:
        """A thread number that no thread has: these are addresses, and even."""
        self._tracks += 2
        return self._tracks

    def caller(self) -> int:
        """The thread to whose phases a mark made here and now belongs: this one, or in a backward pass that the engine
        runs on a thread of its own the one that called it."""
        thread = get_ident()
        if thread in self._passes or graph_task() == -1:
            return thread
        return next(reversed(self._passes), thread)

    def begin(self, codes: PhaseCodes) -> None:
        """Begin a pass: an update that is still open was left by an exception."""
        if self.updating and (abandoned := self.updating.get(get_ident())) is not None:
            abandoned.cut()
        self.mark(codes.begin)

    def begin_backward(self, *, accumulates: bool) -> bool:
        """Begin ``backward``, or ``gradient`` for one whose results are handed out. False inside another: a
        checkpoint's own backward is a part of it."""
        thread = get_ident()
        if not self.watches or thread in self._passes or graph_task() != -1:
            return False
        self._has_begun_backward.add(thread)
        codes = self._backward_codes("backward" if accumulates else "gradient", thread)
        self._passes[thread] = _Pass(codes)
        self.begin(codes)
        return True

    def end_backward(self, *, failed: bool) -> None:
        """End what `begin_backward` began, and the layer that is open in it."""
        ended = self._passes.pop(get_ident())
        for codes in (ended.layer, ended.codes):
            if codes is not None:
                self.mark(codes.cut if failed else codes.end)

    def begin_recompute(self) -> bool:
        """Begin ``recompute`` if a forward pass here is one that a checkpoint does over in backward."""
        caller = self.caller()
        running = self._passes.get(caller)
        if running is None or running.recompute is not None:
            return False
        running.recompute = self._backward_codes("recompute", caller)
        if running.layer is not None:
            self.mark(running.layer.end, caller)
        self.mark(running.recompute.begin, caller)
        return True

    def end_recompute(self) -> None:
        """End it, and go on with the layer whose backward asked for it."""
        caller = self.caller()
        running = self._passes.get(caller)
        if running is not None and running.recompute is not None:
            self.mark(running.recompute.end, caller)
            running.recompute = None
            if running.layer is not None:
                self.mark(running.layer.begin, caller)

    def begin_layer(self, codes: PhaseCodes) -> None:
        """The gradient has reached a layer: the one before it is done."""
        caller = self.caller()
        running = self._passes.get(caller)
        if running is not None:  # else it came by another way, as from C++
            if running.layer is not None:
                self.mark(running.layer.end, caller)
            running.layer = codes
            self.mark(codes.begin, caller)


_meters: list[TorchMarks] = []
"""Of the meters that are open. Other threads may append and remove: what goes through it takes a copy."""


# ---- the steps of an optimizer -----------------------------------------------------------------------------------


class UpdateMarks:
    """Marks the steps of one optimizer by its step hooks and, under a `GradScaler`, around the scaler's calls. One
    update is open at a time in a thread."""

    def __init__(self, marks: TorchMarks, codes: PhaseCodes, optimizer: Any) -> None:
        """Hooks the optimizer, instead of what marked its steps for the same meter before."""
        self.marks = marks
        self._codes = codes
        self._name = type(optimizer).__name__
        self._is_held = False
        """Whether the update goes on until a scaler's step returns."""
        self._has_stepped = False
        """Whether the scaler has called the optimizer since."""
        self._depth = 0
        """Step hooks that this is in: a subclass whose step calls its parent's has them called twice."""
        for earlier in _updates_of(optimizer):
            if earlier.marks is marks:
                earlier.close()
        self._hooks = (
            optimizer.register_step_pre_hook(self.before_step),
            optimizer.register_step_post_hook(self.after_step),
        )

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def before_step(
        self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The optimizer's step pre-hook. With a closure, the update begins when the closure returns: the forward and
        backward in it are phases of their own."""
        if is_compiling():
            return None
        if self._depth and _calls_of(optimizer, "wrapper") > 1:
            self._depth += 1
            return None
        if not self._is_held:
            self.cut()
        self._depth = 1
        if self._is_held:
            return None
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": self._around(kwargs["closure"])}
        if len(args) > 1 and callable(args[1]):
            return (args[0], self._around(args[1]), *args[2:]), kwargs
        self._begin()
        return None

    def after_step(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """The optimizer's step post-hook."""
        if is_compiling():
            return
        self._has_stepped = True
        self._depth -= 1
        if self._depth <= 0 and not self._is_held:
            self._end()

    def _around(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def marked() -> Any:
            self._end()
            result = closure()
            self._begin()
            return result

        return marked

    def _begin(self) -> None:
        other = self.marks.updating.get(get_ident())
        if other is not None and other is not self:
            other._end()
        self.marks.updating[get_ident()] = self
        self.marks.mark(self._codes.begin)

    def _end(self, code: int | None = None) -> bool:
        """End this update, if it is open in this thread. Whether it was."""
        self._is_held = False
        if self.marks.updating.get(get_ident()) is not self:
            return False
        del self.marks.updating[get_ident()]
        self.marks.mark(self._codes.end if code is None else code)
        return True

    def cut(self) -> None:
        """Cut an update that something else ended: an exception, or a step that never came after `unscale_`."""
        self._depth = 0
        if self._end(self._codes.cut):
            self.marks.note(
                f"an update of {self._name} did not come to its end (an exception, or unscale_ without step): it is cut"
            )

    def hold(self) -> None:
        """``scaler.unscale_(optimizer)`` or ``scaler.step(optimizer)`` begins: the update is open from the first of
        them to the end of the scaler's step."""
        if not (self._is_held and self.marks.updating.get(get_ident()) is self):
            self._begin()
            self._is_held, self._has_stepped = True, False

    def end_scaled_step(self) -> None:
        """``scaler.step`` has returned."""
        self._end()
        if not self._has_stepped:
            self.marks.note(
                f"GradScaler skipped a step of {self._name} (gradients not finite): its update is only the check"
            )


def _updates_of(optimizer: Any) -> list[UpdateMarks]:
    """What marks an optimizer's steps: one for each meter that watches it."""
    hooks = getattr(optimizer, "_optimizer_step_pre_hooks", {}).values()
    return [owner for hook in hooks if isinstance(owner := getattr(hook, "__self__", None), UpdateMarks)]


def _calls_of(owner: object, name: str) -> int:
    """How many calls of functions of this name, with ``owner`` as ``self``, this runs inside. For rare cases only."""
    frame, calls = sys._getframe(1), 0
    while frame is not None:
        calls += frame.f_code.co_name == name and frame.f_locals.get("self") is owner
        frame = frame.f_back  # type: ignore[assignment]
    return calls


# ---- what has no hook --------------------------------------------------------------------------------------------


@functools.cache
def _patch_torch() -> None:
    torch.autograd.backward = _marked_pass(torch.autograd.backward, accumulates=True)
    torch.autograd.grad = _marked_pass(torch.autograd.grad, accumulates=False)
    scaler: Any = torch.amp.GradScaler
    scaler.step = _marked_scaler(scaler.step, UpdateMarks.end_scaled_step)
    scaler.unscale_ = _marked_scaler(scaler.unscale_, lambda updates: None)
    recursive: Any = torch.jit._recursive
    recursive.create_script_module = _without_hooks(recursive.create_script_module)
    copyreg.pickle(OrderedDict, _reduced)
    saved: Any = checkpoint
    saved._checkpoint_without_reentrant_generator = _recomputing(saved._checkpoint_without_reentrant_generator)
    saved.CheckpointFunction.apply = staticmethod(_recomputing(saved.CheckpointFunction.apply))


def _marked_pass(original: _Function, *, accumulates: bool) -> _Function:
    @functools.wraps(original)
    def marked(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(*args, **kwargs)
        begun = [marks for marks in list(_meters) if marks.begin_backward(accumulates=accumulates)]
        failed = True
        try:
            result = original(*args, **kwargs)
            failed = False
        finally:
            for marks in begun:
                marks.end_backward(failed=failed)
        return result

    return marked


def _recomputing(original: _Function) -> _Function:
    """``original`` takes the function that it will call again in backward as its first argument."""

    @functools.wraps(original)
    def marked(function: _Function, *args: Any, **kwargs: Any) -> Any:
        @functools.wraps(function, updated=())
        def recomputed(*inner: Any, **named: Any) -> Any:
            begun = [] if is_compiling() else [marks for marks in list(_meters) if marks.begin_recompute()]
            try:
                return function(*inner, **named)
            finally:
                for marks in begun:
                    marks.end_recompute()

        return original(recomputed, *args, **kwargs)

    return marked


def _marked_scaler(original: _Function, end: Callable[[UpdateMarks], None]) -> _Function:
    """A method of `GradScaler` that is called with an optimizer, as a part of its update."""

    @functools.wraps(original)
    def marked(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        scaled = _updates_of(optimizer) if not is_compiling() and scaler.is_enabled() else []
        for updates in scaled:
            updates.hold()
        try:
            result = original(scaler, optimizer, *args, **kwargs)
        except BaseException:
            for updates in scaled:
                updates.cut()
            raise
        for updates in scaled:
            end(updates)
        return result

    return marked


# ---- what copies and files do not have ---------------------------------------------------------------------------


def _is_ours(value: object) -> bool:
    """Whether a value of a dictionary of hooks is powerd's: a module's hook, or the step hook of an optimizer."""
    return type(value) is Hook or (type(value) is MethodType and type(value.__self__) is UpdateMarks)


def _reduced(hooks: OrderedDict[Any, Any]) -> str | tuple[Any, ...]:
    """How an `OrderedDict` is copied and pickled: as ever, but without hooks of powerd. `copy`, every pickler and so
    `torch.save` ask for it, whatever the model's or optimizer's class does of its own when it is copied."""
    if any(map(_is_ours, hooks.values())):
        hooks = OrderedDict((key, value) for key, value in hooks.items() if not _is_ours(value))
    return hooks.__reduce__()


def _without_hooks(original: _Function) -> _Function:
    """``original`` makes a script of a module, and of all inside it, their hooks too. Powerd's are none that it could
    compile: they are away meanwhile."""

    @functools.wraps(original)
    def unhooked(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
        modules = model.modules() if _meters else ()
        hooked: list[Any] = [hooks for m in modules for hooks in (m._forward_pre_hooks, m._forward_hooks)]
        before = [list(hooks.items()) for hooks in hooked]
        try:
            for hooks, items in zip(hooked, before, strict=True):
                hooks.clear()
                hooks.update((key, hook) for key, hook in items if not _is_ours(hook))
            return original(model, *args, **kwargs)
        finally:
            for hooks, items in zip(hooked, before, strict=True):
                hooks.clear()
                hooks.update(items)

    return unhooked


# ---- modules -----------------------------------------------------------------------------------------------------


class Hook:
    """A callable of which copies and files have nothing. What it fails at is told, not raised."""

    __slots__ = ("_call", "_marks")

    def __init__(self, call: Callable[..., Any], marks: TorchMarks) -> None:
        self._call, self._marks = call, marks

    def __call__(self, *args: Any) -> None:
        # Traced by torch.compile, this is a constant: no graph break, no guard, no mark.
        if is_compiling():
            return
        try:
            self._call(*args)
        except Exception as error:  # noqa: BLE001  (a training step must not fail for its measurement)
            self._marks.note(f"a hook failed, and phases may be missing: {type(error).__name__}: {error}")


class ForwardPasses:
    """The forward passes of one model: ``forward`` in training, ``evaluation`` without gradients or in eval mode."""

    def __init__(self, marks: TorchMarks, attributes: Mapping[str, Attribute]) -> None:
        self._marks = marks
        self._attributes = attributes
        self._forward = marks.codes("forward", attributes)
        self._evaluation = marks.codes("evaluation", attributes)
        self._open: dict[int, list[PhaseCodes | bool]] = {}
        """By thread: what each call of the module that has not returned has begun; True for a recomputation."""

    def enter(self, module: nn.Module, _args: object = None) -> None:
        """The module is called."""
        stack = self._open.setdefault(get_ident(), [])
        if stack and _calls_of(module, "_call_impl") > 1:
            stack.append(False)
            return
        while stack:  # an interrupt left it: only exceptions that are an Exception reach a hook
            self.leave(failed=True)
        if graph_task() != -1:
            stack.append(self._marks.begin_recompute())
            return
        codes = self._evaluation
        if module.training and torch.is_grad_enabled():
            codes = self._forward
            self._marks.run_forward(self._attributes)
        self._marks.begin(codes)
        stack.append(codes)

    def leave(self, *, failed: bool) -> None:
        """The module has returned or raised."""
        stack = self._open.get(get_ident())
        begun = stack.pop() if stack else False
        if isinstance(begun, PhaseCodes):
            self._marks.mark(begun.cut if failed else begun.end)
        elif begun:
            self._marks.end_recompute()

    def hook(self, watch: Watch, model: nn.Module) -> None:
        """Hook the model. One compiled in place runs its hooks inside the compiled code; its call is what lies
        outside."""
        compiled: Any = model._compiled_call_impl
        if compiled is None:
            watch.hook(model, self.enter, lambda _module, _args, output: self.leave(failed=_has_failed(output)))
            return

        def undo() -> None:
            if (owner := marked.model()) is not None and owner._compiled_call_impl is marked:
                owner._compiled_call_impl = compiled

        marked = CompiledCall(self, model, compiled)
        model._compiled_call_impl = marked
        watch.on_remove(undo)


class CompiledCall:
    """The call of a model that was compiled in place, with marks around it. PyTorch leaves it out of what it copies and
    pickles; where a model's class copies all that it has, the copy has the compiled call alone."""

    def __init__(self, passes: ForwardPasses, model: nn.Module, compiled: _Function) -> None:
        self.model = weakref.ref(model)
        self._passes = passes
        self._compiled = compiled

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if (owner := self.model()) is not None:
            self._passes.enter(owner)
        failed = True
        try:
            result = self._compiled(*args, **kwargs)
            failed = False
        finally:
            self._passes.leave(failed=failed)
        return result

    def __deepcopy__(self, memo: dict[int, Any]) -> _Function:
        return copy.deepcopy(self._compiled, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._compiled.__reduce_ex__(protocol)


def _has_failed(output: object) -> bool:
    """Whether a forward hook was called because forward raised: it then has no output, in an exception's handler."""
    return output is None and sys.exc_info()[1] is not None


class Layer:
    """One module without modules inside, marked as ``layer`` in the pass around it. Its backward begins when the engine
    reaches the node that made its output, and ends where the next layer's begins (or the whole pass ends)."""

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
    items = output.values() if isinstance(output, Mapping) else output if isinstance(output, tuple | list) else ()
    return next((node for item in items if (node := _node_of(item)) is not None), None)


def _hook_layers(watch: Watch, marks: TorchMarks, model: nn.Module, attributes: Mapping[str, Attribute]) -> None:
    """Hook every module without modules inside. A shared one has the first of its names, each without the wrappers
    around it; DDP's ``module`` is only in front."""
    if hasattr(model, "_orig_mod") or model._compiled_call_impl is not None or isinstance(model, nn.DataParallel):
        # They are fused, with hooks compiled into them; or their replicas run at the same time.
        marks.note("layers of a compiled model are not marked, nor those under nn.DataParallel")
        return
    for path, module in model.named_modules():
        if next(module.children(), None) is None:
            parts = [part for part in path.split(".") if part not in _WRAPPERS]
            name = ".".join(parts[1:] if parts[0] == "module" else parts) or type(module).__name__
            layer = Layer(marks, marks.codes("layer", {**attributes, "layer": name}))
            watch.hook(module, layer.enter, layer.leave)


# ---- the watch ---------------------------------------------------------------------------------------------------


class Watch:
    """What `Meter.watch` returns. The watch goes on when this is dropped; it ends with `remove`, at the end of a
    ``with``, when the meter is closed, and when the model is garbage-collected."""

    def __init__(self, marks: TorchMarks | None, model: nn.Module, loader: Iterable[Any] | None) -> None:
        self.loader = loader
        """The loader that was given, with its waits marked as ``data``."""
        self._undo: list[Callable[[], object]] = []
        self._marks = marks
        name = type(model).__name__

        def collected(_: object) -> None:
            if self._undo and marks is not None:
                marks.note(f"the watched {name} was garbage-collected: its phases end there", "info")
                self.remove()

        self.model = weakref.ref(model, collected)
        """The watch does not keep it alive."""

    def on_remove(self, undo: Callable[[], object]) -> None:
        """What `remove` shall do, in the reverse order."""
        self._undo.append(undo)

    def hook(self, module: nn.Module, enter: Callable[..., Any], leave: Callable[..., Any]) -> None:
        """Call ``enter(module, args)`` before everything else that hooks the module, and ``leave(module, args,
        output)`` also when it raises."""
        assert self._marks is not None
        if isinstance(module, torch.jit.ScriptModule):
            self._marks.note("scripted modules take no hooks: their forward is not marked (mark it with meter.phase)")
            return
        self.on_remove(module.register_forward_pre_hook(Hook(enter, self._marks), prepend=True).remove)
        last = Hook(leave, self._marks)
        handle = module.register_forward_hook(last, always_call=True)
        module._forward_hooks_always_called[handle.id] = last  # type: ignore[assignment]  # known as powerd's when copied
        self.on_remove(handle.remove)

    @property
    def is_active(self) -> bool:
        """Whether it still marks."""
        return bool(self._undo)

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
    """See `Meter.watch`. Without ``passes`` the caller marks forward and evaluation itself; without ``marks`` nothing
    is recorded."""
    if not isinstance(model, nn.Module):
        raise ConfigError(f"watch() wants a torch.nn.Module first, not {type(model).__name__}")
    unwrapped = [unwrapped_optimizer(optimizer, "watch") for optimizer in optimizers]
    watch = Watch(marks, model, loader)
    if marks is None:
        return watch
    for earlier in [w for w in list(marks.watches) if w.model() is model]:
        earlier.remove()
    if "model" not in attributes:
        attributes = {**attributes, MODEL_BY_CLASS: _class_and_size(model)}
    marks.watches[watch] = attributes
    watch.on_remove(lambda: marks.watches.pop(watch, None))
    if layers:  # first, so that the hooks of the model itself lie around those of a model that is one layer
        _hook_layers(watch, marks, model, attributes)
    if passes:
        ForwardPasses(marks, attributes).hook(watch, model)
    if communication and has_distributed():
        from powerd_client.ddp import mark_communication

        end = mark_communication(marks, getattr(model, "_orig_mod", model), attributes)
        if end is not None:
            watch.on_remove(end)
    for number, optimizer in enumerate(unwrapped):
        own = {**attributes, "optimizer": number} if len(unwrapped) > 1 else attributes
        watch.on_remove(UpdateMarks(marks, marks.codes("update", own), optimizer).close)
    return watch


def _class_and_size(model: nn.Module) -> str:
    """What a model is called that nobody named: its class, and how many parameters it has, as ``ResNet-21.8M``."""
    model = getattr(model, "_orig_mod", model)
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        model = model.module
    name = type(model).__name__.removeprefix("FSDP")
    try:
        count = sum(parameter.numel() for parameter in model.parameters())
    except Exception:  # noqa: BLE001  (a lazy module's parameters have no size yet)
        return name
    unit, size = next(((u, n) for u, n in (("B", 1e9), ("M", 1e6), ("k", 1e3)) if count >= n), ("", 1.0))
    return f"{name}-{float(f'{count / size:.3g}'):g}{unit}"


def unwrapped_optimizer(optimizer: Any, asks: str) -> Any:
    """The `torch.optim.Optimizer` inside what wraps it, as Accelerate does. Raises `ConfigError` for none, in the name
    of the method that ``asks``."""
    while not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        if not (hasattr(optimizer, "param_groups") and hasattr(optimizer, "optimizer")):
            raise ConfigError(f"{asks}() wants torch.optim optimizers after the model, not {type(optimizer).__name__}")
        optimizer = optimizer.optimizer
    return optimizer
