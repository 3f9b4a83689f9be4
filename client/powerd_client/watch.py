"""`Meter.watch`: forward, backward, update and the wait for data, marked by PyTorch's own hooks."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn
from torch.distributed import is_available as has_distributed

from powerd_client import watchpatches
from powerd_client.watchhooks import Passes, hook_layers
from powerd_client.watchmarks import Marker
from powerd_client.watchupdate import Updates
from powerd_core.errors import ConfigError

if TYPE_CHECKING:
    from powerd_client.meter import Meter
    from powerd_client.phase import Attribute


class Watch:
    """What `Meter.watch` returns. The watch goes on when this is dropped; it ends with `remove`, at the end of a
    ``with``, when the meter is closed, and when the model is garbage-collected."""

    def __init__(self, loader: Iterable[Any] | None = None) -> None:
        self.loader = loader
        """The loader that was given, with its waits marked as ``data``."""
        self._undo: list[Callable[[], None]] = []
        self._model: weakref.ref[nn.Module] | None = None

    def add(self, undo: Callable[[], None]) -> None:
        """What `remove` shall do, in the reverse order."""
        self._undo.append(undo)

    def keep(self, model: nn.Module, marker: Marker) -> None:
        """End with the model. The watch itself does not keep it alive."""
        name = type(model).__name__

        def gone(_: object) -> None:
            if self._undo:
                marker.note(f"the watched {name} was garbage-collected: its phases end there", "info")
                self.remove()

        self._model = weakref.ref(model, gone)

    @property
    def is_active(self) -> bool:
        """Whether it still marks."""
        return bool(self._undo)

    def watches(self, model: nn.Module) -> bool:
        """Whether it marks this model."""
        return self.is_active and self._model is not None and self._model() is model

    def remove(self) -> None:
        """Take all hooks away; again does nothing. A phase that is open is ended by what runs, or cut."""
        while self._undo:
            self._undo.pop()()

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self.remove()
        return False


def watch(
    meter: Meter,
    model: nn.Module,
    *optimizers: Any,
    layers: bool,
    loader: Iterable[Any] | None,
    communication: bool,
    attributes: Mapping[str, Attribute],
    passes: bool = True,
) -> Watch:
    """See `Meter.watch`. Without ``passes`` the caller marks forward and evaluation itself."""
    if not isinstance(model, nn.Module):
        raise ConfigError(f"watch() wants a torch.nn.Module first, not {type(model).__name__}")
    found = [_unwrapped(optimizer) for optimizer in optimizers]
    made = Watch(None if loader is None else meter.data(loader, **attributes))
    writer = meter._writer
    if writer is None:
        return made  # nothing is recorded: the training runs as if it were not watched
    marker = meter._marker
    if marker is None:
        marker = meter._marker = Marker(meter, writer)
    for earlier in [w for w in meter._watches if w.watches(model)]:
        earlier.remove()
    meter._watches[:] = [w for w in meter._watches if w.is_active]
    meter._watches.append(made)
    watchpatches.use(marker)
    made.add(lambda: watchpatches.release(marker))
    made.add(marker.join(attributes))
    if layers:  # first, so that the hooks of the model itself lie around those of a model that is one layer
        _watch_layers(made, marker, model, attributes)
    if passes:
        _watch_model(made, marker, model, attributes)
    if communication:
        _watch_communication(made, marker, model, attributes)
    for number, optimizer in enumerate(found):
        own = {**attributes, "optimizer": number} if len(found) > 1 else attributes
        _watch_optimizer(made, marker, optimizer, own)
    made.keep(model, marker)
    return made


def _unwrapped(optimizer: Any) -> Any:
    """The optimizer inside what wraps it, as Accelerate does. Raises `ConfigError` for what is no optimizer."""
    while not hasattr(optimizer, "_optimizer_step_pre_hooks") and hasattr(optimizer, "param_groups"):
        inner = getattr(optimizer, "optimizer", None)
        if inner is None:
            return optimizer
        optimizer = inner
    if not (hasattr(optimizer, "param_groups") and callable(getattr(optimizer, "step", None))):
        raise ConfigError(f"watch() wants optimizers after the model, not {type(optimizer).__name__}")
    return optimizer


def _watch_model(made: Watch, marker: Marker, model: nn.Module, attributes: Mapping[str, Attribute]) -> None:
    passes = Passes(marker, attributes)
    if isinstance(model, torch.jit.ScriptModule):
        marker.note("a scripted model takes no hooks: its forward is not marked (mark it with meter.phase)")
        return
    if model._compiled_call_impl is not None:
        _watch_compiled_call(made, passes, model)
        return
    for undo in passes.hook(model):
        made.add(undo)


def _watch_compiled_call(made: Watch, passes: Passes, model: nn.Module) -> None:
    """A model compiled in place runs its hooks inside the compiled code; its call is what lies outside."""
    compiled = model._compiled_call_impl
    assert compiled is not None

    def marked(*args: Any, **kwargs: Any) -> Any:
        owner = weak()
        if owner is not None:
            passes.enter(owner)
        failed = True
        try:
            result = compiled(*args, **kwargs)
            failed = False
        finally:
            passes.leave(failed=failed)
        return result

    def undo() -> None:
        owner = weak()
        if owner is not None and owner._compiled_call_impl is marked:
            owner._compiled_call_impl = compiled

    weak = weakref.ref(model)
    model._compiled_call_impl = marked
    made.add(undo)


def _watch_layers(made: Watch, marker: Marker, model: nn.Module, attributes: Mapping[str, Attribute]) -> None:
    if hasattr(model, "_orig_mod") or model._compiled_call_impl is not None:
        marker.note("layers of a compiled model are not marked: they are fused, and hooks would be compiled with them")
    elif isinstance(model, nn.DataParallel):
        marker.note("layers under nn.DataParallel are not marked: its replicas run at the same time")
    else:
        for undo in hook_layers(marker, model, attributes):
            made.add(undo)


def _watch_communication(made: Watch, marker: Marker, model: nn.Module, attributes: Mapping[str, Attribute]) -> None:
    if not has_distributed():
        return
    from torch.distributed import fsdp
    from torch.nn.parallel import DistributedDataParallel

    inner = getattr(model, "_orig_mod", model)
    if isinstance(inner, DistributedDataParallel):
        from powerd_client.watchddp import mark_communication

        undo = mark_communication(marker, inner, attributes)
        if undo is not None:
            made.add(undo)
    elif isinstance(inner, (fsdp.FullyShardedDataParallel, getattr(fsdp, "FSDPModule", ()))):
        marker.note("communication of FSDP is a part of forward and backward: it is not marked by itself", "info")


def _watch_optimizer(made: Watch, marker: Marker, optimizer: Any, attributes: Mapping[str, Attribute]) -> None:
    name = type(optimizer).__name__
    if not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        marker.note(f"{name} is not a torch.optim.Optimizer and has no step hooks: its updates are not marked")
        return
    watched = watchpatches.optimizers.setdefault(optimizer, [])
    for earlier in [u for u in watched if u.marker is marker]:
        earlier.close()
    updates = Updates(marker, marker.kind("update", attributes), name)
    before = optimizer.register_step_pre_hook(updates.before_step)
    after = optimizer.register_step_post_hook(updates.after_step)
    watched.append(updates)
    updates.on_close(before.remove, after.remove, lambda: watched.remove(updates))
    made.add(updates.close)
