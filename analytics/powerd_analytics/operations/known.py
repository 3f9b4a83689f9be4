"""Kernels seen before: on tensors of the same shapes, types and strides a kernel gives, and does, the same again.

A loop in Python runs the same few kernels thousands of times, and looking one up takes less than working it out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

import torch
from torch import Tensor, nn

from powerd_analytics.operations.did import Did
from powerd_analytics.operations.kernels import Effort, effort_of, is_pointwise
from powerd_analytics.operations.shapes import has_rule

META = torch.device("meta")
LARGEST = 20_000
"""Kernels that are remembered, some 2 KB each. A loop whose arguments never repeat would fill the memory."""
_PLAIN = frozenset((Tensor, nn.Parameter))
_NUMBERS = frozenset((int, float, bool))
_SETTINGS = frozenset(
    (type(None), str, torch.dtype, torch.device, torch.layout, torch.memory_format, *_NUMBERS)
)  # fmt: skip
_empty_strided = torch.empty_strided

Key = tuple[Any, ...]
Form = tuple[Any, ...] | int | None
"""Of a result: shape, strides and type of a new tensor; the place of the argument that it is; or nothing."""


@dataclass(frozen=True, slots=True)
class Traits:
    """What a kernel's name alone says about it."""

    func: Any
    """Kept, since keys have its id."""
    name: str
    effort: Effort
    is_view: bool
    """Nothing to count, and its result shares memory: torch itself is as fast as we could be."""
    is_remembered: bool
    ignores_numbers: bool
    """The result has the same shape whatever numbers there are among its arguments."""


@dataclass(frozen=True, slots=True)
class Known:
    """One kernel on given shapes: its result, and what it does."""

    forms: Form | list[Form]
    """A list of several results."""
    container: type
    work: Did | None


def traits_of(func: Any) -> Traits:
    """What can be said before it has run."""
    name, effort = func.overloadpacket.__name__, effort_of(func)
    is_view = effort is Effort.NOTHING and not has_rule(func)
    # An operator of somebody else may do as it likes, and what writes by torch's own kernel may do more than write.
    is_remembered = func.namespace == "aten" and not is_view and (has_rule(func) or not func._schema.is_mutable)
    return Traits(func, name, effort, is_view, is_remembered, is_pointwise(func))


def key_of(traits: Traits, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Key | None:
    """What decides the result's shape; None where something else might."""
    key: list[Any] = [id(traits.func), torch.get_default_dtype()]
    try:
        if not _describe(key, args, traits.ignores_numbers):
            return None
        if kwargs and not (_describe(key, kwargs, False) and _describe(key, kwargs.values(), False)):
            return None
    except RuntimeError:  # sparse tensors have no strides
        return None
    return tuple(key)


def _describe(key: list[Any], values: Any, ignores_numbers: bool) -> bool:
    for value in values:
        kind = type(value)
        if kind in _PLAIN:
            if not value.is_meta or value.layout is not torch.strided:
                return False
            key += (value.dtype, value.shape, value.stride())
        elif kind in _SETTINGS:
            if ignores_numbers and kind in _NUMBERS:
                key.append(kind)
            elif kind is float and isnan(value):  # never found again
                return False
            else:
                key += (kind, value)
        elif kind is list or kind is tuple:
            key += (kind, len(value))
            if not _describe(key, value, ignores_numbers):
                return False
        else:
            return False
    return True


def remembered(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any, work: Did | None) -> Known | None:
    """What to keep of a kernel that has run; None where its result is more than shapes say."""
    if any(isinstance(v, Tensor) for v in kwargs.values()):
        return None  # may be what it writes into
    if any(type(a) in _PLAIN and (a.is_complex() or a.is_quantized) for a in args):
        return None  # a conjugate is its own view, and a quantised type has more than a name
    if type(out) in _PLAIN:
        form = _form(args, out)
        return Known(form, Tensor, work) if form is not None else None
    if type(out) not in (tuple, list):
        return None
    forms = [None if x is None else _form(args, x) for x in out]
    if any(form is None and x is not None for form, x in zip(forms, out, strict=True)):
        return None
    return Known(forms, type(out), work)


def _form(args: Sequence[Any], out: Any) -> Form:
    for i, value in enumerate(args):
        if value is out:
            return i
    if type(out) is not Tensor or not out.is_meta or out.layout is not torch.strided or out.storage_offset():
        return None
    if out.is_complex() or out.is_quantized:
        return None
    return tuple(out.shape), out.stride(), out.dtype


def again(known: Known, args: Sequence[Any]) -> Any:
    """New tensors like those that the kernel gave the first time."""
    forms = known.forms
    if type(forms) is tuple:
        return _empty_strided(forms[0], forms[1], dtype=forms[2], device=META)
    if type(forms) is int:
        return args[forms]
    assert isinstance(forms, list)
    made: list[Any] = []
    for form in forms:
        if type(form) is tuple:
            made.append(_empty_strided(form[0], form[1], dtype=form[2], device=META))
        else:
            made.append(args[form] if type(form) is int else None)
    return made if known.container is list else tuple(made)
