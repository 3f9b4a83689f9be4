"""What one kernel did, from its arguments and its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from powerd_analytics.operations.kernels import PRODUCTS, Effort
from powerd_analytics.operations.touched import is_dense, touched


@dataclass(frozen=True, slots=True)
class Did:
    """What one kernel did."""

    name: str
    operations: int
    elementwise: int
    moved_bytes: int
    is_shown: bool
    """Counts as work of its module, beyond moving values."""
    unknown: str = ""
    """What it is called where nobody knows how much it does."""


def did_by(func: Any, effort: Effort, args: Sequence[Any], out: Any) -> Did:
    """The work of a kernel that has run on these arguments."""
    name = func.overloadpacket.__name__
    moved_bytes = values = operations = 0
    if is_dense(args) and is_dense((out,)):
        moved_bytes, values = touched(name, args, out)
    else:  # its tensors do not say how many values they hold
        effort = Effort.UNKNOWN
    if effort is Effort.MOVE:
        return Did(name, 0, 0, moved_bytes, is_shown=False)
    if effort is Effort.UNKNOWN:
        return Did(name, 0, 0, moved_bytes, is_shown=True, unknown=str(func))
    if effort is Effort.PRODUCT:
        # A product of two complex numbers is four of real ones, and so is the sum.
        parts = 4 if any(isinstance(a, Tensor) and a.is_complex() for a in args) else 1
        operations = parts * PRODUCTS[func.overloadpacket](args, out)
        values = _bias_values(func, args, out)
    return Did(name, operations, values, moved_bytes, is_shown=True)


_ADDING = ("addmm", "baddbmm", "addbmm", "addmv", "addr", "conv_tbc")


def _bias_values(func: Any, args: Sequence[Any], out: Any) -> int:
    """Additions for a bias inside a product's kernel: one an output value, and one for its gradient."""
    name = func.overloadpacket.__name__.removesuffix("_")
    if name == "convolution_backward" and args[10][2]:
        return int(args[0].numel())
    if (name == "convolution" and args[2] is not None) or name in _ADDING:
        return int(out.numel())
    return 0
