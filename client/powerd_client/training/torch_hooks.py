"""`Meter.watch`: forward, backward, update, layers and communication, marked by PyTorch's own hooks.

The outermost module's hooks mark its forward passes, each layer's hooks its forward and its backward, an optimizer's
its steps. What has no hook is replaced when the first meter watches, for good; where no meter watches, it only passes
calls on. `torch.autograd.backward` is what `Tensor.backward`, DDP, Lightning and Trainer come to. `GradScaler.step`
calls an optimizer only when the gradients are finite, so the optimizer's hooks cannot tell a step that was skipped. A
checkpoint calls the function that it recomputes from a place that no module's hook sees. Compiled code runs no hooks:
the call of `torch.compile`'s wrapper, and that of a model compiled in place, are marked around it.

What none of these sees is told when the watch ends: backward without forward, an optimizer that is never stepped, a
model that child processes train.

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
import os
import sys
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from threading import get_ident
from types import MappingProxyType, MethodType
from typing import Any

import torch
from torch import _C, Tensor, nn
from torch._dynamo.eval_frame import OptimizedModule
from torch.compiler import is_compiling
from torch.distributed import is_available as has_distributed
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils import checkpoint

from powerd_client.energies.phase import WATCH, Attribute, Phase, PhaseCodes
from powerd_client.host.hostclock import now_ns
from powerd_client.host.log import tell
from powerd_client.journals.marks import MarkWriter
from powerd_client.signals.pairing import MODEL_BY_CLASS, SAMPLES, TOKENS, common_attributes
from powerd_client.training.layer_operations import WATCHED_MODEL, FirstPass
from powerd_core.errors import ConfigError

_Function = Callable[..., Any]
_WRAPPERS = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod")
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_MOST_NODES = 100_000
"""Of a graph, before it is given up to find whose it is."""
_SURE = 0
"""Stands for the module that is called where the call's end is sure to be seen."""
_IN_CHILDREN = (
    "what runs in child processes is in no phase here; make a Meter in each of them, under `joules record` "
    "(docs/howto/training.md#child-processes)"
)

_is_tracing: Callable[[], bool] = _C._is_tracing  # of torch.jit.trace
graph_task: Callable[[], int] = _C._current_graph_task_id
"""The backward pass that the engine runs on this thread at the moment, -1 for none."""


@dataclass(slots=True)
class _Pass:
    """A backward pass that runs, and what is open in it. Watches come and go, and what ends is what began."""

    codes: PhaseCodes
    layer: PhaseCodes | None = None
    recompute: PhaseCodes | None = None


@dataclass(frozen=True, slots=True)
class _Stepped:
    """An optimizer that steps and is not watched."""

    name: str
    is_of_watched: bool
    """Whether it steps parameters of a watched model."""


class TorchMarks:
    """The marks of all watches of one meter, and what is open in them. Its methods never raise."""

    def __init__(
        self,
        mark: Callable[..., object],
        phase: Callable[..., Phase],
        writer: MarkWriter,
        turn: Callable[[int], object] = lambda code: None,
    ) -> None:
        """``turn`` is called behind the mark that ends an update, with its code."""
        self.mark, self.turn = mark, turn
        self._phase = phase
        self._writer = writer
        self._noted: set[str] = set()
        self._tracks = -1
        self._passes: dict[int, _Pass] = {}
        """By the thread that called it."""
        self._backward_kinds: dict[tuple[str, int], tuple[Mapping[str, Attribute], PhaseCodes]] = {}
        """By name and address of the attributes of the one model that ran forward, which are kept alive here."""
        self._trained: dict[int, list[Mapping[str, Attribute]]] = {}
        """By thread: the attributes of the watches that ran forward, for a backward pass to come or the one before."""
        self._has_begun_backward: set[int] = set()
        """The threads that have run backward since they ran forward."""
        self.watches: dict[Watch, Mapping[str, Attribute]] = {}
        """The watches that go on, with their attributes."""
        self.updating: dict[int, UpdateMarks] = {}
        """The optimizer whose ``update`` is open, by thread."""
        self.backwards = 0
        """Backward passes that were marked."""
        self.has_gradients = False
        """Whether one has run since the last update."""
        self.was_sent = False
        """Whether something watched was sent to a child process."""
        self.has_lost_model = False
        """Whether a watched model was garbage-collected."""
        self._unwatched_backwards = 0
        """Backward passes that trained nothing that is watched."""
        self._unwatched_steps: weakref.WeakKeyDictionary[Any, _Stepped] = weakref.WeakKeyDictionary()
        self._told_steps: Counter[tuple[str, bool]] = Counter()
        self._is_disowned = False
        """Whether this is the copy in a forked child."""
        self._begun_ns = now_ns()
        _meters.append(self)
        _patch_torch()

    def close(self) -> None:
        """End all watches."""
        for watch in list(self.watches):
            if watch.passes is not None:
                watch.passes.tell_idle()
            watch.remove()
        self._tell_unwatched()
        _meters.remove(self)

    def disown(self) -> None:
        """This is the copy of a forked child: whose passes are in no run is told at the first of them."""

        def tell_first(*_: object) -> None:
            self.mark = lambda *_: None
            if not any(other._writer.is_open for other in _meters):
                # All children say the same at the same time: the run has it once.
                text = f"{WATCH}a forked child process ran what is watched: {_IN_CHILDREN}"
                self._writer.note_of_child(text, self._begun_ns)

        self.mark = tell_first
        self._is_disowned = True

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
        if len(trained) != 1:
            return self.codes(name, common_attributes(trained))
        key = name, id(trained[0])  # in every pass of most trainings: to ask for the phase again would take 20 us
        if key not in self._backward_kinds:
            self._backward_kinds[key] = trained[0], self.codes(name, trained[0])
        return self._backward_kinds[key][1]

    @contextlib.contextmanager
    def muted(self) -> Iterator[None]:
        """Mark nothing meanwhile, but keep track of what runs."""
        mark, turn = self.mark, self.turn
        self.mark = self.turn = lambda *_: None
        try:
            yield
        finally:
            self.mark, self.turn = mark, turn

    def note(self, text: str, level: str = "warning") -> None:
        """Put a message into the run, once."""
        if text not in self._noted:
            self._noted.add(text)
            self._writer.note(text, level)

    def describe(self, values: Mapping[str, object]) -> None:
        """Put what a watched model is made of into the run."""
        self.event(WATCHED_MODEL, values)

    def event(self, name: str, values: Mapping[str, object]) -> None:
        """Put an event into the run."""
        if not self._is_disowned:
            self._writer.event(name, values)

    def tell(self, text: str) -> None:
        """Say what could not be marked, once: to the user, in the run, and so in every table."""
        if text not in self._noted:
            tell(text)
            self.note(f"{WATCH}{text}")
            self._noted.add(text)

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
        """Begin a pass: an update that is still open and runs no closure was left by an exception."""
        if self.updating:
            update = self.updating.get(get_ident())
            if update is not None and not update.runs_closure:
                update.cut()
        self.mark(codes.begin)

    def begin_backward(self, *, accumulates: bool, of: object = None) -> bool:
        """Begin ``backward``, or ``gradient`` for one whose results are handed out, of the tensors ``of``. False inside
        another, as a checkpoint's own backward is a part of it, and for one that trains nothing that is watched."""
        thread = get_ident()
        if thread in self._passes or graph_task() != -1:
            return False
        if not self.watches:
            self._unwatched_backwards += accumulates and self.has_lost_model
            return False
        is_first = thread not in self._trained or thread in self._has_begun_backward
        if accumulates and is_first and self._is_of_others(of):
            self._unwatched_backwards += 1
            return False
        self._has_begun_backward.add(thread)
        if accumulates:
            self.backwards += 1
            self.has_gradients = True
        codes = self._backward_codes("backward" if accumulates else "gradient", thread)
        self._passes[thread] = _Pass(codes)
        self.begin(codes)
        return True

    def _is_of_others(self, of: object) -> bool:
        """Whether a backward pass without a forward pass of a watched model reaches parameters, and none of a watched
        model."""
        watched = {id(p) for watch in list(self.watches) if (model := watch.model()) for p in model.parameters()}
        tensors = of if isinstance(of, tuple | list) else (of,)
        nodes: list[Any] = [node for t in tensors if isinstance(t, Tensor) and (node := t.grad_fn) is not None]
        seen, reaches_any = set(nodes), False
        while nodes and len(seen) < _MOST_NODES:
            node = nodes.pop()
            if (parameter := getattr(node, "variable", None)) is not None:
                reaches_any = True
                if id(parameter) in watched:
                    return False
            inner = [other for other, _ in node.next_functions if other is not None and other not in seen]
            seen.update(inner)
            nodes += inner
        return reaches_any and not nodes

    def see_step(self, optimizer: Any) -> None:
        """An optimizer steps. One that trains a watched model beside or instead of the optimizers of its watch is taken
        into the watch; of others the steps are counted."""
        if get_ident() in self.updating:  # a part of the step around it
            return
        for hook in optimizer._optimizer_step_pre_hooks.values():  # in every step: without a list of them
            if type(hook) is MethodType and type(hook.__self__) is UpdateMarks and hook.__self__.marks is self:
                return
        stepped = self._unwatched_steps.get(optimizer)
        if stepped is None:
            own = {id(p) for group in optimizer.param_groups for p in group["params"]}
            watch = next((w for w in list(self.watches) if (model := w.model()) is not None
                          and not own.isdisjoint(map(id, model.parameters()))), None)  # fmt: skip
            if watch is not None and watch.updates:
                # Until a watched one has stepped, another may be a part of it, as of sharpness-aware methods.
                if any(updates.is_stepped for updates in watch.updates):
                    watch.take(optimizer, is_beside=not self.has_gradients)
                return
            if watch is None and not (self.watches or self.has_lost_model):
                return
            stepped = self._unwatched_steps[optimizer] = _Stepped(type(optimizer).__name__, watch is not None)
        self._told_steps[stepped.name, stepped.is_of_watched] += 1

    def _tell_unwatched(self) -> None:
        """Tell of training that no watch has seen, when the meter is closed."""
        for (name, is_of_watched), steps in self._told_steps.items():
            if is_of_watched and not self._writer.has_kind("update"):  # the training may mark its steps itself
                self.tell(
                    f"{name} stepped a watched model {_times(steps)}, and its watch was given no optimizer: none of "
                    "these steps is an update here; give watch(model, optimizer) the optimizer"
                )
        others = [f"{name} stepped {_times(n)}" for (name, is_of_watched), n in self._told_steps.items()
                  if not is_of_watched]  # fmt: skip
        if self._unwatched_backwards:
            stepped = f" ({', '.join(others)})" if others else ""
            self.tell(
                f"backward ran {_times(self._unwatched_backwards)} for models that are not watched{stepped}: this "
                "training is in no phase and no samples/s; watch each new model"
            )

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

    def __init__(self, marks: TorchMarks, codes: PhaseCodes, optimizer: Any, *, nests_closures: bool = True) -> None:
        """Hooks the optimizer, instead of what marked its steps for the same meter before. Without ``nests_closures``
        the first call of a closure never lies in the update."""
        self.marks = marks
        self.runs_closure = False
        """Whether the update that is open runs its closure: passes inside are a part of it."""
        self._nests_closures = nests_closures
        self._backwards_before, self.is_stepped = marks.backwards, False
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
        count = self.marks.backwards - self._backwards_before
        if count and not self.is_stepped:
            self.marks.tell(
                f"backward ran {_times(count)}, and the step of the watched {self._name} was never called: "
                "no update of it is marked, and where no other is stepped, passes are not counted as batches; "
                'watch the optimizer whose step is called, or mark each step with meter.phase("iteration")'
            )

    def before_step(
        self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The optimizer's step pre-hook. With a closure that makes the gradients, the update begins when that returns:
        the forward and backward in it are phases of their own. What it is called for after that, or with gradients that
        are there already (by sharpness-aware methods), lies in the update."""
        if is_compiling():
            return None
        self.is_stepped = True
        if self._depth and _calls_of(id(optimizer), "wrapper") > 1:
            self._depth += 1
            return None
        if not self._is_held:
            self.cut()
        self._depth = 1
        if self._is_held:
            return None
        by_name, by_place = callable(kwargs.get("closure")), len(args) > 1 and callable(args[1])
        if not (by_name or by_place) or (self._nests_closures and self.marks.has_gradients):
            self._begin()
        if by_name:
            return args, {**kwargs, "closure": self._around(kwargs["closure"])}
        if by_place:
            return (args[0], self._around(args[1]), *args[2:]), kwargs
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
            if self.marks.updating.get(get_ident()) is not self:
                result = closure()
                self._begin()
                return result
            self.runs_closure = True
            try:
                return closure()
            finally:
                self.runs_closure = False

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
        self.marks.has_gradients = False
        self.marks.mark(self._codes.end if code is None else code)
        self.marks.turn(self._codes.end)
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
        self.is_stepped = True
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


def _calls_of(owner: int, name: str) -> int:
    """How many calls of functions of this name, with the object at the address ``owner`` as ``self``, this runs inside.
    For rare cases only."""
    frame, calls = sys._getframe(1), 0
    while frame is not None:
        calls += frame.f_code.co_name == name and id(frame.f_locals.get("self")) == owner
        frame = frame.f_back  # type: ignore[assignment]
    return calls


# ---- what has no hook --------------------------------------------------------------------------------------------


@functools.cache
def _patch_torch() -> None:
    torch.autograd.backward = _marked_pass(torch.autograd.backward, accumulates=True)
    torch.autograd.grad = _marked_pass(torch.autograd.grad, accumulates=False)
    register_optimizer_step_pre_hook(_see_step)
    module: Any = nn.Module
    module.compile = _marked_compile(module.compile)
    wrapper: Any = OptimizedModule
    wrapper.__call__ = _marked_wrapper(wrapper.__call__)
    scaler: Any = torch.amp.GradScaler
    scaler.step = _marked_scaler(scaler.step, UpdateMarks.end_scaled_step)
    scaler.unscale_ = _marked_scaler(scaler.unscale_, lambda updates: None)
    recursive: Any = torch.jit._recursive
    recursive.create_script_module = _without_hooks(recursive.create_script_module)
    copyreg.pickle(OrderedDict, _reduced)
    saved: Any = checkpoint
    saved._checkpoint_without_reentrant_generator = _recomputing(saved._checkpoint_without_reentrant_generator)
    saved.CheckpointFunction.apply = staticmethod(_recomputing(saved.CheckpointFunction.apply))


def _see_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    """The step pre-hook of all optimizers, which comes before their own."""
    if _meters and not is_compiling():
        for marks in (*_meters,):
            try:
                marks.see_step(optimizer)
            except Exception as error:  # noqa: BLE001  (a training step must not fail for its measurement)
                marks.note(f"a hook failed, and updates may be missing: {type(error).__name__}: {error}")


def _marked_pass(original: _Function, *, accumulates: bool) -> _Function:
    @functools.wraps(original)
    def marked(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(*args, **kwargs)
        of = args[0] if args else kwargs.get("tensors")
        begun = [marks for marks in (*_meters,) if marks.begin_backward(accumulates=accumulates, of=of)]
        failed = True
        try:
            result = original(*args, **kwargs)
            failed = False
        finally:
            for marks in begun:
                marks.end_backward(failed=failed)
        return result

    return marked


def _marked_compile(original: _Function) -> _Function:
    """``model.compile()`` compiles the hooks too, where they mark nothing: the call around them is marked."""

    @functools.wraps(original)
    def compiling(model: nn.Module, *args: Any, **kwargs: Any) -> None:
        found = _passes_of(model)
        original(model, *args, **kwargs)
        for passes in found:
            passes.hook_compiled(model)

    return compiling


def _marked_wrapper(original: _Function) -> _Function:
    """The call of what `torch.compile` returns, around a watched model: a trainer may have made it."""

    @functools.wraps(original)
    def marked(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling() or not _meters or _passes_of(wrapper):
            return original(wrapper, *args, **kwargs)
        call: _Function = functools.partial(original, wrapper)
        model, found = next(((m, found) for m in _inner_models(wrapper) if (found := _passes_of(m))), (wrapper, []))
        for passes in found:
            call = functools.partial(passes.around, model, call)
        return call(*args, **kwargs)

    return marked


def _inner_models(model: nn.Module) -> Iterator[nn.Module]:
    """The models inside a wrapper that calls them in its own thread, the outermost first."""
    inner: nn.Module | None = model
    while inner is not None:
        names = ("module",) if isinstance(inner, nn.parallel.DistributedDataParallel) else _WRAPPERS
        modules = inner._modules
        inner = next((modules[name] for name in names if name in modules), None)
        if inner is not None:
            yield inner


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
        _note_sent(hooks)
        hooks = OrderedDict((key, value) for key, value in hooks.items() if not _is_ours(value))
    return hooks.__reduce__()


def _note_sent(hooks: OrderedDict[Any, Any]) -> None:
    """Keep in mind that what these hooks watch is sent to a child process, if it is."""
    context: Any = sys.modules.get("multiprocessing.context")
    if context is not None and context.get_spawning_popen() is not None:
        for hook in filter(_is_ours, hooks.values()):
            (hook if type(hook) is Hook else hook.__self__).marks.was_sent = True


def _disown_all() -> None:
    for marks in _meters:
        marks.disown()
    _meters.clear()


os.register_at_fork(after_in_child=_disown_all)


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

    __slots__ = ("_call", "marks")

    def __init__(self, call: Callable[..., Any], marks: TorchMarks) -> None:
        self._call, self.marks = call, marks

    @property
    def owner(self) -> object:
        """Whose method it calls."""
        return getattr(self._call, "__self__", None)

    def __call__(self, *args: Any) -> None:
        # Traced by torch.compile, this is a constant: no graph break, no guard, no mark.
        if is_compiling():
            return
        try:
            self._call(*args)
        except Exception as error:  # noqa: BLE001  (a training step must not fail for its measurement)
            self.marks.note(f"a hook failed, and phases may be missing: {type(error).__name__}: {error}")


_Call = tuple[PhaseCodes | None, int]
"""A call of a model that has not returned: the phase that it has begun, and the module, as its address, whose call ends
it; `_SURE` for one that ends whatever is raised."""
_RECOMPUTED = PhaseCodes(0, 0, 0)
"""Stands for a recomputation that a call has begun."""


class ForwardPasses:
    """The forward passes of one model: ``forward`` in training, ``evaluation`` without gradients or in eval mode.

    With ``only_training`` evaluations are not marked. Where several models share ``calls``, only the outermost one of
    those that are called within each other is marked.
    """

    def __init__(
        self,
        marks: TorchMarks,
        attributes: Mapping[str, Attribute],
        name: str,
        *,
        calls: dict[int, list[_Call]] | None = None,
        only_training: bool = False,
        tokens: Callable[..., int] | None = None,
    ) -> None:
        self._marks = marks
        self._name = name
        self._kinds = PassKinds(marks, attributes, tokens)
        self._only_training = only_training
        self._has_trained = self._is_called = False
        self._backwards_before = marks.backwards
        self._calls: dict[int, list[_Call]] = {} if calls is None else calls
        """By thread: each call of the module that has not returned."""
        self._watch: Watch | None = None
        self._attributes = attributes
        self._first: FirstPass | None = None
        """While the first pass in training goes on."""
        self._is_described = False
        self._enter_surely = Hook(functools.partial(self.enter, caller=_SURE), marks)

    def enter(
        self, module: nn.Module, args: Any = (), kwargs: Mapping[str, Any] = _NOTHING, *, caller: int | None = None
    ) -> None:
        """The module is called; ``caller``: what ends the call, where that is not the module's own hook."""
        thread = get_ident()
        calls = self._calls.get(thread)
        if calls is None:
            calls = self._calls[thread] = []
        owner = id(module) if caller is None else caller
        if calls and self._is_within(calls[0][1], id(module)):
            calls.append((None, owner))
            return
        while calls:  # an interrupt left it: only exceptions that are an Exception reach a hook
            self.leave(failed=True)
        if graph_task() != -1:
            calls.append((_RECOMPUTED if self._marks.begin_recompute() else None, owner))
            return
        self._is_called = True
        is_training = torch.is_grad_enabled()
        if is_training:
            self._has_trained = True
            is_training = module.training
        if self._only_training and not is_training:
            calls.append((None, owner))
            return
        codes, attributes = self._kinds.of(args, kwargs, is_training)
        if is_training:
            self._marks.run_forward(attributes)
            # A hook that a trace sees is in its graph.
            if not self._is_described and caller is None and not _is_tracing():
                self._describe(module)
        self._marks.begin(codes)
        calls.append((codes, owner))

    def _describe(self, module: nn.Module) -> None:
        """Hear in the first pass in training of which layers the model is made. What is compiled stays as it is: a
        hook more or less would have it compiled anew."""
        self._is_described = True
        model = _unwrapped(module)
        is_eager = not any(
            isinstance(m, OptimizedModule | torch.jit.ScriptModule) or m._compiled_call_impl is not None
            for m in (module, *model.modules())
        )
        label = self._attributes.get("model") or self._attributes.get(MODEL_BY_CLASS)
        if is_eager and isinstance(label, str) and not isinstance(module, nn.DataParallel):
            self._first = FirstPass(model, label, self._attributes, self._kinds.stated)

    @staticmethod
    def _is_within(outermost: int, module: int) -> bool:
        """Whether the outermost call goes on, so that one of a module is within it."""
        return outermost == _SURE or _calls_of(outermost, "_call_impl") > (outermost == module)

    def leave(self, *, failed: bool) -> None:
        """The module has returned or raised."""
        calls = self._calls.get(get_ident())
        begun = calls.pop()[0] if calls else None
        if begun is _RECOMPUTED:
            self._marks.end_recompute()
        elif begun is not None:
            self._marks.mark(begun.cut if failed else begun.end)
        if self._first is not None and not calls:
            first, self._first = self._first, None
            event = first.end()
            if event is not None and not failed:
                self._marks.describe(event)

    def around(self, module: nn.Module, call: _Function, *args: Any, **kwargs: Any) -> Any:
        """``call(*args, **kwargs)``, marked as the call of a module that it calls where no hook sees that."""
        self._enter_surely(module, args, kwargs)
        calls = self._calls[get_ident()]
        own = len(calls)
        failed = True
        try:
            result = call(*args, **kwargs)
            failed = False
        finally:
            del calls[own:]
            self.leave(failed=failed)
        return result

    def hook(self, watch: Watch, model: nn.Module) -> None:
        """Hook the model, and those inside a wrapper: a training may call them. One compiled in place runs its hooks
        inside the compiled code; its call is what lies outside."""
        self._watch = watch
        for module in (model, *_inner_models(model)):
            if module._compiled_call_impl is not None:
                self.hook_compiled(module)
            else:
                after = self._after_call
                watch.hook(module, self.enter, after, with_kwargs=self._kinds.sees_sizes)

    def _after_call(self, _module: object, _args: object, output: object) -> None:
        self.leave(failed=_has_failed(output))

    def hook_compiled(self, model: nn.Module) -> None:
        """Mark around the compiled call of a model that is or was compiled in place."""
        compiled: Any = model._compiled_call_impl
        watch = self._watch
        if watch is None or compiled is None:
            return

        def undo() -> None:
            if (owner := marked.model()) is not None and owner._compiled_call_impl is marked:
                owner._compiled_call_impl = compiled

        marked = CompiledCall(self, model, compiled)
        model._compiled_call_impl = marked
        watch.on_remove(undo)

    def tell_unseen(self) -> None:
        """Tell of backward passes with no forward before them, when the watch ends."""
        count = self._marks.backwards - self._backwards_before
        if count and not self._has_trained:
            self._marks.tell(
                f"backward ran {_times(count)}, the watched {self._name} never: its forward cannot be seen; "
                'watch what the training calls, or mark its forward with meter.phase("forward")'
            )
        self._kinds.tell_unknown(self._name)

    def tell_idle(self) -> None:
        """Tell of a model with which nothing was done in this process, when the meter is closed."""
        if self._marks.backwards == self._backwards_before and (not self._is_called or self._marks.was_sent):
            what = "was sent to child processes and not trained here" if self._is_called else "was never called here"
            self._marks.tell(f"the watched {self._name} {what}, and backward never ran: {_IN_CHILDREN}")


class CompiledCall:
    """The call of a model that was compiled in place, with marks around it. PyTorch leaves it out of what it copies and
    pickles; where a model's class copies all that it has, the copy has the compiled call alone."""

    def __init__(self, passes: ForwardPasses, model: nn.Module, compiled: _Function) -> None:
        self.model = weakref.ref(model)
        self.passes = passes
        self._compiled = compiled

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        owner = self.model()
        if owner is None:
            return self._compiled(*args, **kwargs)
        return self.passes.around(owner, self._compiled, *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Function:
        return copy.deepcopy(self._compiled, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._compiled.__reduce_ex__(protocol)


def _passes_of(model: nn.Module) -> list[ForwardPasses]:
    """What marks the calls of a model, of each meter that watches it."""
    hooks = [hook.owner for hook in model._forward_pre_hooks.values() if type(hook) is Hook]
    call = model._compiled_call_impl
    while isinstance(call, CompiledCall):
        hooks.append(call.passes)
        call = call._compiled
    return [owner for owner in hooks if isinstance(owner, ForwardPasses)]


class PassKinds:
    """The kinds of a model's passes by their size: by the input, how many samples each has.

    The stated ``batch_size`` is that of training. An evaluation has the size of its first pass. A pass of another size
    says so by the attribute `SAMPLES`. Which dimension of the input counts samples the first pass of the stated size
    says; where none has it, passes in training count as stated, and evaluations have no size.
    """

    MOST_LOOKS = 100
    """Passes in which the dimension is looked for."""

    def __init__(
        self, marks: TorchMarks, attributes: Mapping[str, Attribute], tokens: Callable[..., int] | None = None
    ) -> None:
        self._marks, self._attributes, self._tokens = marks, dict(attributes), tokens
        stated = attributes.get("batch_size")
        self.stated = stated if isinstance(stated, int) and not isinstance(stated, bool) and stated > 0 else 0
        """Samples of a batch, 0 where that is not stated."""
        self.sees_sizes = self.stated > 0 or tokens is not None
        self._place: _Place | None = None
        self._looks = 0
        self._seen = ""
        """The size of the first input, in words."""
        self._of_evaluation = 0
        self._kinds: dict[tuple[bool, int, int], tuple[PhaseCodes, Mapping[str, Attribute]]] = {}
        """By what a pass is for, its samples and its tokens."""
        self._trained = marks.codes("forward", attributes), attributes
        self._evaluated = marks.codes("evaluation", attributes), attributes

    def of(self, args: Any, kwargs: Mapping[str, Any], is_training: bool) -> tuple[PhaseCodes, Mapping[str, Attribute]]:
        """The codes and attributes of a pass with this input."""
        if not self.sees_sizes:
            return self._trained if is_training else self._evaluated
        size = self._size(args, kwargs) if self.stated else 0
        tokens = 0 if self._tokens is None else self._count_tokens(self._tokens, args, kwargs)
        if is_training and not tokens and size in (0, self.stated):
            return self._trained
        kind = self._kinds.get((is_training, size, tokens))
        if kind is None:
            kind = self._kinds[is_training, size, tokens] = self._make(size, tokens, is_training=is_training)
        return kind

    def _count_tokens(self, count: Callable[..., int], args: Any, kwargs: Mapping[str, Any]) -> int:
        """The tokens of an input, 0 where they are not known."""
        try:
            return int(count(*args, **kwargs))
        except Exception as error:  # noqa: BLE001  (the user's own function: the training goes on)
            self._tokens = None
            self._marks.tell(f"tokens are not counted any more: {type(error).__name__}: {error}")
            return 0

    def _size(self, args: Any, kwargs: Mapping[str, Any]) -> int:
        """The samples of an input, 0 where they are not known."""
        if self._place is None:
            if self._looks == self.MOST_LOOKS:
                return 0
            self._looks += 1
            sizes = list(_sizes(args, kwargs))
            self._place = next((place for place, size in sizes if size == self.stated), None)
            self._seen = self._seen or " x ".join(str(size) for place, size in sizes if place[:2] == sizes[0][0][:2])
        return 0 if self._place is None else _size_at(self._place, args, kwargs)

    def _make(self, size: int, tokens: int, *, is_training: bool) -> tuple[PhaseCodes, Mapping[str, Attribute]]:
        attributes = dict(self._attributes)
        if tokens:
            attributes[TOKENS] = tokens
        if self.stated and not is_training:
            self._of_evaluation = self._of_evaluation or size
            attributes["batch_size"] = self._of_evaluation
            if size == 0:
                del attributes["batch_size"]
        if size and size != attributes["batch_size"]:
            attributes[SAMPLES] = size
        return self._marks.codes("forward" if is_training else "evaluation", attributes), attributes

    def tell_unknown(self, name: str) -> None:
        """Tell that no input had the stated size."""
        if self._looks and self._place is None:
            had = f"the first had {self._seen}" if self._seen else "it has no tensor that could say"
            self._marks.tell(
                f"batch_size={self.stated} is stated, and no input of {name} has such a dimension ({had}): "
                "samples of the training are counted as stated, evaluations have none"
            )


_Place = tuple[Any, Any, int]
"""Where an input says its size: the argument, the key in it where it is a mapping, and the dimension."""


def _sizes(args: Any, kwargs: Mapping[str, Any]) -> Iterator[tuple[_Place, int]]:
    """The sizes of all dimensions of an input: of tensors, of those in mappings, and the lengths of lists."""
    for key, value in (*enumerate(args), *kwargs.items()):
        for inner, item in value.items() if isinstance(value, Mapping) else ((None, value),):
            if isinstance(item, Tensor):
                yield from (((key, inner, at), size) for at, size in enumerate(item.shape))
            elif isinstance(item, list | tuple):
                yield (key, inner, 0), len(item)


def _size_at(place: _Place, args: Any, kwargs: Mapping[str, Any]) -> int:
    """The size there, 0 where the input has no such place."""
    key, inner, dimension = place
    try:
        item = args[key] if isinstance(key, int) else kwargs[key]
        item = item if inner is None else item[inner]
        return int(item.size(dimension)) if isinstance(item, Tensor) else len(item)
    except (LookupError, TypeError):
        return 0


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


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
        marks = self._marks
        marks.mark(self._codes.begin, marks.caller())
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
        self.passes: ForwardPasses | None = None
        """What marks the model's own passes."""
        self.updates: list[UpdateMarks] = []
        """What marks the steps of its optimizers."""
        self.attributes: Mapping[str, Attribute] = {}
        self.nests_closures = True
        self._undo: list[Callable[[], object]] = []
        self.marks = marks
        name = type(model).__name__

        def collected(_: object) -> None:
            if self._undo and marks is not None:
                marks.note(f"the watched {name} was garbage-collected: its phases end there", "info")
                marks.has_lost_model = True
                self.remove()

        self.model = weakref.ref(model, collected)
        """The watch does not keep it alive."""

    def on_remove(self, undo: Callable[[], object]) -> None:
        """What `remove` shall do, in the reverse order."""
        self._undo.append(undo)

    def hook(
        self, module: nn.Module, enter: Callable[..., Any], leave: Callable[..., Any], *, with_kwargs: bool = False
    ) -> None:
        """Call ``enter(module, args)`` before everything else that hooks the module (``enter(module, args, kwargs)``
        with ``with_kwargs``), and ``leave(module, args, output)`` also when it raises."""
        assert self.marks is not None
        if isinstance(module, torch.jit.ScriptModule):
            self.marks.note("scripted modules take no hooks: their forward is not marked (mark it with meter.phase)")
            return
        first = Hook(enter, self.marks)
        handle = module.register_forward_pre_hook(first, prepend=True, with_kwargs=with_kwargs)
        if with_kwargs:
            module._forward_pre_hooks_with_kwargs[handle.id] = first  # type: ignore[assignment]  # as below
        self.on_remove(handle.remove)
        last = Hook(leave, self.marks)
        handle = module.register_forward_hook(last, always_call=True)
        module._forward_hooks_always_called[handle.id] = last  # type: ignore[assignment]  # known as powerd's when copied
        self.on_remove(handle.remove)

    def take(self, optimizer: Any, *, is_beside: bool, number: int | None = None) -> None:
        """Mark the steps of an optimizer as ``update``. One that steps beside others has a number of its own."""
        assert self.marks is not None
        number = len(self.updates) if is_beside and number is None else number
        own = self.attributes if number is None else {**self.attributes, "optimizer": number}
        codes = self.marks.codes("update", own)
        updates = UpdateMarks(self.marks, codes, optimizer, nests_closures=self.nests_closures)
        self.updates.append(updates)
        self.on_remove(updates.close)

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
    communication: bool | None = None,
    passes: bool = True,
    nests_closures: bool = True,
    tokens: Callable[..., int] | None = None,
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
        attributes = {**attributes, MODEL_BY_CLASS: _label(marks, model)}
    marks.watches[watch] = attributes
    watch.on_remove(lambda: marks.watches.pop(watch, None))
    if layers:  # first, so that the hooks of the model itself lie around those of a model that is one layer
        _hook_layers(watch, marks, model, attributes)
    if passes:
        watch.passes = ForwardPasses(marks, attributes, type(_unwrapped(model)).__name__, tokens=tokens)
        watch.on_remove(watch.passes.tell_unseen)
        watch.passes.hook(watch, model)
    if communication is not False and has_distributed():
        from powerd_client.training.ddp import mark_communication

        inner = getattr(model, "_orig_mod", model)
        end = mark_communication(marks, inner, attributes, is_asked=bool(communication))
        if end is not None:
            watch.on_remove(end)
    watch.attributes, watch.nests_closures = attributes, nests_closures
    for number, optimizer in enumerate(unwrapped):
        watch.take(optimizer, is_beside=False, number=number if len(unwrapped) > 1 else None)
    return watch


def watch_networks(watch: Watch, model: nn.Module, attributes: Mapping[str, Attribute]) -> None:
    """Mark, as a part of a watch, ``forward`` of a model and of the networks right inside it, whichever the training
    calls. Where there are several networks, each is a ``model`` by its name."""
    marks = watch.marks
    if marks is None:
        return
    networks = {name: inner for name, inner in model.named_children() if next(inner.parameters(), None) is not None}
    calls: dict[int, list[_Call]] = {}
    for name, network in (("", model), *networks.items()):
        own = dict(attributes)
        if name and len(networks) > 1:
            own["model"] = f"{own['model']} {name}" if "model" in own else name
        elif "model" not in own:
            own[MODEL_BY_CLASS] = class_and_size(model)
        ForwardPasses(marks, own, type(network).__name__, calls=calls, only_training=True).hook(watch, network)


def _label(marks: TorchMarks, model: nn.Module) -> str:
    """What a model is called that nobody named: its class and size, with a number where one that is watched beside it
    is called the same."""
    taken = {own.get(MODEL_BY_CLASS) for own in marks.watches.values()}
    name = class_and_size(model)
    numbered = (f"{name} #{number}" for number in count(2))
    return name if name not in taken else next(label for label in numbered if label not in taken)


def _unwrapped(model: Any) -> nn.Module:
    """The model inside what `torch.compile`, DDP and DataParallel make of it."""
    model = getattr(model, "_orig_mod", model)
    inner: nn.Module = (
        model.module if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel) else model
    )
    return inner


def class_and_size(model: nn.Module) -> str:
    """The class of a model, and how many parameters it has, as ``ResNet-21.8M``."""
    model = _unwrapped(model)
    name = type(model).__name__.removeprefix("FSDP")
    try:
        total = sum(parameter.numel() for parameter in model.parameters())
    except Exception:  # noqa: BLE001  (a lazy module's parameters have no size yet)
        return name
    unit, size = next(((u, n) for u, n in (("B", 1e9), ("M", 1e6), ("k", 1e3)) if total >= n), ("", 1.0))
    return f"{name}-{float(f'{total / size:.3g}'):g}{unit}"


def unwrapped_optimizer(optimizer: Any, asks: str) -> Any:
    """The `torch.optim.Optimizer` inside what wraps it, as Accelerate does. Raises `ConfigError` for none, in the name
    of the method that ``asks``."""
    while not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        if not (hasattr(optimizer, "param_groups") and hasattr(optimizer, "optimizer")):
            raise ConfigError(f"{asks}() wants torch.optim optimizers after the model, not {type(optimizer).__name__}")
        optimizer = optimizer.optimizer
    return optimizer
