"""What torch runs in forward and backward, kernel by kernel, told apart by module."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from powerd_analytics.operations.counts import ExecutedCount, Work
from powerd_analytics.operations.kernels import PRODUCTS, Effort, effort_of
from powerd_analytics.operations.shapes import shaped
from powerd_analytics.operations.shapes_layout import on_meta
from powerd_analytics.operations.touched import is_dense, touched

FORWARD, BACKWARD = "forward", "backward"


class ExecutedMode(TorchDispatchMode):  # type: ignore[misc, no-untyped-call, unused-ignore]
    """Counts every kernel dispatched inside it on the account of the module that it runs for.

    Forward: the innermost module that is being called. Backward: autograd numbers its nodes as forward makes them, and
    the numbers at which modules were entered and left are noted; the node that runs thus leads to its module.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.current_pass = FORWARD
        self.unknown: dict[tuple[str, str], int] = {}
        self.saw_autocast = False
        self._stack = [""]
        self._since: list[int] = [0]
        self._names: list[str] = [""]
        self._tally: dict[tuple[str, str], list[int]] = {}
        self._efforts: dict[Any, Effort] = {}
        self.kernels: dict[str, dict[str, None]] = {}
        """Counted kernels that ran for a module, by the module's name."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Else the first kernel imports torch's compiler, only to be kept out of it: 0.5 s and 60 MB.
        return False

    def watch(self, name: str, module: nn.Module) -> None:
        """Hook a module, so that what runs in it counts for ``name``."""

        is_leaf = next(module.children(), None) is None

        def enter(_module: nn.Module, _args: Any) -> None:
            if is_leaf:  # has a row even where no kernel runs
                self._tally.setdefault((name, FORWARD), [0, 0, 0])
            self._stack.append(name)
            self._mark()

        def leave(_module: nn.Module, _args: Any, _output: Any) -> None:
            self._stack.pop()
            self._mark()

        module.register_forward_pre_hook(enter, prepend=True)
        module.register_forward_hook(leave, always_call=True)

    def _mark(self) -> None:
        self.saw_autocast = self.saw_autocast or torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu")
        number = torch._C._autograd._get_sequence_nr()
        if self._since[-1] == number:
            self._names[-1] = self._stack[-1]
        else:
            self._since.append(number)
            self._names.append(self._stack[-1])

    def _place(self) -> str:
        # In backward a module is on the stack where a checkpoint computes it again.
        if self.current_pass == BACKWARD and len(self._stack) == 1:
            node = torch._C._current_autograd_node()
            number = node._sequence_nr() if node is not None else 0
            # What adds gradients to parameters has the highest of all numbers, and no module.
            if node is not None and number < 2**63:
                return self._names[bisect_right(self._since, number) - 1]
            return ""
        return self._stack[-1]

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        # Whatever asks a tensor for its shape in here would pass torch.device("meta") again: a third of the time.
        with torch._C.DisableTorchFunction():
            out = run_shapes(func, args, kwargs or {})
            effort = self._efforts.get(func)
            if effort is None:
                effort = self._efforts[func] = effort_of(func)
            if effort is not Effort.NOTHING:
                self._count(func, effort, args, out)
        return out

    def _count(self, func: Any, effort: Effort, args: Sequence[Any], out: Any) -> None:
        place = self._place()
        tally = self._tally.setdefault((place, self.current_pass), [0, 0, 0])
        name = func.overloadpacket.__name__
        if is_dense(args) and is_dense((out,)):
            moved_bytes, values = touched(name, args, out)
            tally[2] += moved_bytes
        else:  # its tensors do not say how many values they hold
            effort, values = Effort.UNKNOWN, 0
        if effort is Effort.MOVE:
            return
        self.kernels.setdefault(place, {}).setdefault(name)
        if effort is Effort.PRODUCT:
            # A product of two complex numbers is four of real ones, and so is the sum.
            parts = 4 if any(isinstance(a, Tensor) and a.is_complex() for a in args) else 1
            tally[0] += parts * PRODUCTS[func.overloadpacket](args, out)
            tally[1] += _bias_values(func, args, out)
        elif effort is Effort.ELEMENTWISE:
            tally[1] += values
        else:
            key = place, str(func)
            self.unknown[key] = self.unknown.get(key, 0) + 1

    def counts(self, modules: Mapping[str, nn.Module], label: Callable[[str], str]) -> tuple[ExecutedCount, ...]:
        """What ran, by module in the order in which they first ran; ``label`` words a module's name."""
        names = list(dict.fromkeys([n for n, _ in self._tally]))
        found = []
        for name in names:
            work = {p: Work(*self._tally.get((name, p), (0, 0, 0))) for p in (FORWARD, BACKWARD)}
            found.append(ExecutedCount(label(name), type(modules[name]).__name__, work[FORWARD], work[BACKWARD]))
        return tuple(found)


def run_shapes(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a kernel returns on ``meta``: by our own rules, else by torch's."""
    out = shaped(func, args, kwargs)
    if out is not None:
        return out
    try:
        return func(*args, **kwargs)
    except (RuntimeError, NotImplementedError):
        if not any(isinstance(a, Tensor) and not a.is_meta for a in args):
            raise
        # A tensor that the model keeps as a plain attribute was left where it is: its shape serves as well.
        moved = tree_map_only(Tensor, lambda t: t if t.is_meta else on_meta(t), args)
        return func(*moved, **kwargs)


class ShapesMode(TorchDispatchMode):  # type: ignore[misc, no-untyped-call, unused-ignore]
    """Makes a model by shapes alone where our rules know the kernel, and counts nothing."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        with torch._C.DisableTorchFunction():
            made = shaped(func, args, kwargs or {})
            return made if made is not None else func(*args, **(kwargs or {}))


_ADDING = ("addmm", "baddbmm", "addbmm", "addmv", "addr", "conv_tbc")


def _bias_values(func: Any, args: Sequence[Any], out: Any) -> int:
    """Additions for a bias inside a product's kernel: one an output value, and one for its gradient."""
    name = func.overloadpacket.__name__.removesuffix("_")
    if name == "convolution_backward" and args[10][2]:
        return int(args[0].numel())
    if (name == "convolution" and args[2] is not None) or name in _ADDING:
        return int(out.numel())
    return 0
