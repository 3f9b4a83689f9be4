"""`nn.Transformer` asks whether a mask is the causal one by its values, which there are not on ``meta``."""

from __future__ import annotations

from inspect import getattr_static
from types import MethodType
from typing import Any

from torch import nn

from powerd_analytics.operations.on_meta import with_own

AS_GIVEN = (
    "masks of nn.Transformer counted as given: shapes do not say whether one is causal, where a kernel may do less"
)
_ASKS, _MAKES = "_detect_is_causal_mask", "_generate_square_subsequent_mask"


def without_asking(model: nn.Module, notes: list[str]) -> None:
    """Let encoders and decoders in ``model`` take masks as they come; adds to ``notes`` once one was asked about."""
    for module in model.modules():
        # As it stands in the class: a scripted module's makes no answer without an instance.
        forward: Any = getattr_static(type(module), "forward", None)
        if forward not in (nn.TransformerEncoder.forward, nn.TransformerDecoder.forward):
            continue
        make = forward.__globals__.get(_MAKES)
        if make is not None and _ASKS in forward.__globals__:
            module.forward = MethodType(with_own(forward, {_ASKS: _Asked(make, notes)}), module)


class _Asked:
    """torch's own question, all of whose kernels run, with an answer that needs no value."""

    def __init__(self, make: Any, notes: list[str]) -> None:
        self._make, self._notes = make, notes

    def __call__(self, mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
        if is_causal is not None or mask is None:
            return is_causal is True
        causal = self._make(mask.size(-2) if size is None else size, device=mask.device, dtype=mask.dtype)
        if mask.size() == causal.size():
            (mask == causal).all()
            if AS_GIVEN not in self._notes:
                self._notes.append(AS_GIVEN)
        return False
