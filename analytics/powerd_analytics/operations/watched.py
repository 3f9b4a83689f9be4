"""Whether somebody would see that steps are left out."""

from __future__ import annotations

from typing import Any

import torch

CAN_ASK = hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks")
"""Whether this release of torch says what hooks there are on what is kept for backward."""
_CHECKPOINTS = ("_checkpoint_hook.", "_recomputation_hook.")


def is_watched() -> bool:
    """Whether somebody follows single kernels, or what they keep for backward, other than a checkpoint."""
    try:
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
        return (
            (hooks is not None and not _is_of_checkpoint(hooks[0]))
            or torch._C._len_torch_dispatch_stack() > 1
            or torch._C._are_functorch_transforms_active()
            or torch.autograd.forward_ad._current_level >= 0
        )
    except (AttributeError, TypeError):
        return True  # a torch that cannot be asked: then all steps run


def is_checkpointed() -> bool:
    """Whether a checkpoint without reentrance follows what is kept for backward."""
    return CAN_ASK and torch._C._autograd._top_saved_tensors_default_hooks(True) is not None and not is_watched()


def _is_of_checkpoint(hook: Any) -> bool:
    name = getattr(hook, "__qualname__", "")
    return getattr(hook, "__module__", "") == "torch.utils.checkpoint" and name.startswith(_CHECKPOINTS)
