"""Results of torch's kernels on ``meta``, by shape alone.

torch computes the shapes of most kernels in Python, and the first one imports its compiler and a computer algebra
system: a second and 70 MB. Whatever is out of the ordinary (types that are promoted in odd ways, wrong shapes, kernels
without a rule) goes to torch itself, which also words the error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from powerd_analytics.operations.shapes_elementwise import EXCLUDED, elementwise, in_place
from powerd_analytics.operations.shapes_layout import names
from powerd_analytics.operations.shapes_table import SHAPES, Shape

_ELEMENTWISE = names(
    "floor_divide hardswish elu_backward hardsigmoid_backward hardswish_backward hardtanh_backward "
    "leaky_relu_backward log_sigmoid_backward softplus_backward softshrink_backward hardshrink_backward "
    "rrelu_with_noise_backward _prelu_kernel"
)
"""That torch does not mark as such."""
_IN_PLACE = names("hardswish mish masked_fill normal uniform exponential random bernoulli fill zero floor_divide")


def shaped(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What the kernel ``func`` returns, without contents; None where torch itself must be asked."""
    rule, places, defaults = _rule_of(func)
    if rule is None:
        return None
    bound = [*args, *defaults[len(args) :]]
    for name, value in kwargs.items():
        if name not in places:
            return None
        bound[places[name]] = value
    try:
        return rule(bound)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RuntimeError):
        # Arguments that torch refuses as well, and says why.
        return None


def has_rule(func: Any) -> bool:
    """Whether `shaped` may know what ``func`` returns."""
    return _rule_of(func)[0] is not None


@cache
def _rule_of(func: Any) -> tuple[Shape | None, dict[str, int], tuple[Any, ...]]:
    schema = func._schema
    places = {argument.name: i for i, argument in enumerate(schema.arguments)}
    defaults = tuple(a.default_value if a.has_default_value() else None for a in schema.arguments)
    return _rule(func), places, defaults


def _rule(func: Any) -> Shape | None:
    if func.namespace != "aten":
        return None
    name, overload = func.overloadpacket.__name__, func._overloadname
    found = SHAPES.get(f"{name}.{overload}") or SHAPES.get(name)
    returns = func._schema.returns
    if "out" in overload.split("_"):
        return _into_out(func)
    if found is not None or len(returns) != 1 or str(returns[0].type) != "Tensor":
        return found
    if returns[0].alias_info is not None:
        # Writes its first argument; one that makes another view of it must really do so.
        is_value = name.endswith("_") and not name.startswith("_") and torch.Tag.inplace_view not in func.tags
        knows = is_value and (_is_pointwise(func) or name[:-1] in _IN_PLACE)
        return (lambda args: in_place(name[:-1], args)) if knows else None
    return (lambda args: elementwise(name, args)) if _is_pointwise(func) or name in _ELEMENTWISE else None


def _is_pointwise(func: Any) -> bool:
    tag = getattr(torch.Tag, "pointwise", None)
    return tag in func.tags and func.overloadpacket.__name__.removesuffix("_") not in EXCLUDED


def _into_out(func: Any) -> Shape | None:
    """A kernel that writes into ``out``: a tensor that fits is its own result."""
    *inputs, last = (str(a.type) for a in func._schema.arguments)
    packet = func.overloadpacket
    plain = (getattr(packet, name) for name in packet.overloads())
    same = next((p for p in plain if [str(a.type) for a in p._schema.arguments] == inputs), None)
    if same is None or func._schema.arguments[-1].name != "out" or last != "Tensor":
        return None
    rule = _rule_of(same)[0]

    def fits(args: Sequence[Any]) -> Tensor | None:
        made, out = rule(args[:-1]) if rule else None, args[-1]
        is_same = isinstance(made, Tensor) and (made.shape, made.dtype) == (out.shape, out.dtype)
        return out if is_same and out.is_contiguous() else None

    return fits
