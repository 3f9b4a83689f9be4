"""What older releases of torch do otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch


def _knows_types_of_devices() -> bool:
    try:
        torch.is_autocast_enabled("cpu")
    except TypeError:  # before 2.4
        return False
    return True


_IS_NAMED = _knows_types_of_devices()


def is_autocast() -> bool:
    """Whether autocast is on, for GPUs or CPUs."""
    if _IS_NAMED:
        return torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu")
    return bool(torch.is_autocast_enabled() or torch.is_autocast_cpu_enabled())


def _can_fork() -> bool:
    try:
        with torch.random.fork_rng(devices=[], device_type="meta"):
            return True
    except RuntimeError:
        return False


_CAN_FORK = _can_fork()


def without_compiled(model: torch.nn.Module) -> None:
    """Let compiled modules inside run without the compiler, in releases (before 2.6) that have no stance for it.

    ``model`` is a copy, or was made to be counted.
    """
    if hasattr(torch.compiler, "set_stance"):
        return
    for module in model.modules():
        inner = getattr(module, "_orig_mod", None)
        if inner is not None:
            vars(module)["forward"] = inner.__call__
        if getattr(module, "_compiled_call_impl", None) is not None:
            vars(module)["_compiled_call_impl"] = None


@contextmanager
def _meta_module() -> Iterator[None]:
    module: Any = torch
    had = hasattr(module, "meta")
    if not had:
        module.meta = SimpleNamespace(
            device_count=lambda: 0,
            device=lambda _number: nullcontext(),
            get_rng_state=lambda *_: torch.empty(0, dtype=torch.uint8, device="cpu"),
            set_rng_state=lambda *_: None,
            is_available=lambda: True,
            is_initialized=lambda: True,
            _is_in_bad_fork=lambda: False,
        )
    try:
        yield
    finally:
        if not had and hasattr(module, "meta"):
            del module.meta


def with_meta_module() -> AbstractContextManager[None]:
    """Lets a checkpoint keep random states on ``meta``, which has none: older releases look for ``torch.meta``."""
    return nullcontext() if _CAN_FORK else _meta_module()
