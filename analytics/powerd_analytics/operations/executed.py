"""What torch runs in forward and backward, kernel by kernel, told apart by module.

`KernelCounter` is a dispatch mode: every kernel that torch dispatches passes through it with its arguments and its
result, of which only the shapes are looked at. Three things are added up for the module that the kernel runs for.

operations      of matrix products and convolutions, a multiply-accumulate as two. The formulas are those of torch's own
                `torch.utils.flop_counter`, but for the kernels in `FORMULAS`: torch's counter ignores the groups of a
                convolution's backward pass (17 x the truth at 16 groups) and does not know which gradients are asked
                for, and it has no formula for products of vectors, 8-bit products and attention on a CPU.
elementwise     of every other kernel, one a value: the larger of its input and its result
moved_bytes     each tensor that a kernel reads or writes, once; of a table that it picks rows from, those rows

A kernel whose work is not one a value, and that has no formula, is listed instead.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from powerd_analytics.operations.counts import ExecutedCount, Work

aten = torch.ops.aten

FORWARD, BACKWARD = "forward", "backward"
Arguments = Sequence[Any]
Formula = Callable[[Arguments, Any], int]
"""Operations, or values, from a kernel's arguments and its result."""

PRODUCT = "a product: operations by a formula"
ELEMENTWISE = "one a value"
MOVE = "bytes alone: it copies or fills"
NOTHING = "not at all: another view of what is there, or memory without contents"
UNKNOWN = "nobody knows"

# -- operations of products --------------------------------------------------------------------------------------------


def convolution(args: Arguments, out: Any) -> int:
    """Forward: each output value (transposed: each input value) meets the weights of one filter.

    The weight is [cout, cin/groups, *kernel], transposed [cin, cout/groups, *kernel]: groups, stride and dilation are
    in the shapes already.
    """
    values = args[0].numel() if args[6] else out.numel()
    return 2 * int(values * prod(args[1].shape[1:]))


def convolution_backward(args: Arguments, _out: Any) -> int:
    """The gradients of input and weight, each with as many products as forward; only those that are asked for."""
    gradient, x, weight, transposed, mask = args[0], args[1], args[2], args[7], args[10]
    values = x.numel() if transposed else gradient.numel()
    return 2 * int(values * prod(weight.shape[1:])) * (bool(mask[0]) + bool(mask[1]))


def matrix_product(left: int) -> Formula:
    """Of two arguments that follow each other: all values of the first, each with a row of the second."""

    def operations(args: Arguments, _out: Any) -> int:
        a, b = args[left], args[left + 1]
        return 2 * int(a.numel() * (b.shape[-1] if b.dim() > 1 else 1))

    return operations


def attention(args: Arguments, _out: Any) -> int:
    """Attention in one kernel: query times keys, and weights times values, for the whole square, masks or not."""
    query, key, value = args[:3]
    return 2 * int(_pairs(query, key) * (query.shape[-1] + value.shape[-1]))


def attention_backward(args: Arguments, _out: Any) -> int:
    """The gradients of both factors of both products, and the first product computed again: five products."""
    query, key, value = args[1:4]
    return 2 * int(_pairs(query, key) * (3 * query.shape[-1] + 2 * value.shape[-1]))


def _pairs(query: Tensor, key: Tensor) -> int:
    return query.numel() // query.shape[-1] * key.shape[-2]


_BIASED = ("addmm", "baddbmm", "addbmm", "addmv")
_FUSED = ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu")
_BY_NAME: dict[str, Formula] = {
    **dict.fromkeys(("convolution", "_convolution", "convolution_overrideable"), convolution),
    **dict.fromkeys(("convolution_backward", "convolution_backward_overrideable"), convolution_backward),
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "vdot", "_int_mm", "_scaled_mm"), matrix_product(0)),
    **{f"{name}{_}": matrix_product(1) for name in _BIASED for _ in ("", "_")},
    # Steps of the CPU in one kernel: the input [steps, batch, width] and the state meet their weights.
    "mkldnn_rnn_layer": lambda args, _: 2 * int(prod(args[0].shape[:-1]) * (args[1].numel() + args[2].numel())),
    "mkldnn_rnn_layer_backward": lambda args, _: (
        4 * int(prod(args[0].shape[:-1]) * (args[1].numel() + args[2].numel()))
    ),
    **{f"_scaled_dot_product_{name}": attention for name in _FUSED},
    **{f"_scaled_dot_product_{name}_backward": attention_backward for name in _FUSED},
}
# Not every release of torch has all of them.
FORMULAS: dict[Any, Formula] = {getattr(aten, n): formula for n, formula in _BY_NAME.items() if hasattr(aten, n)}
"""By operator (all its overloads)."""


def _bias_values(name: str, args: Arguments, out: Any) -> int:
    """Additions for a bias inside a product's kernel: one an output value, and one for its gradient."""
    if name == "convolution_backward" and args[10][2]:
        return int(args[0].numel())
    if (name == "convolution" and args[2] is not None) or name.removesuffix("_") in _BIASED:
        return int(out.numel())
    return 0


# -- what other kernels do ---------------------------------------------------------------------------------------------

_MOVES = frozenset(re.findall(r"\S+", """
    clone copy copy_ _to_copy contiguous cat stack _stack _chunk_cat block_diag embedding index _unsafe_index
    index_select gather take put scatter scatter_ index_copy index_copy_ index_fill index_fill_ masked_scatter
    masked_scatter_ masked_scatter_backward repeat repeat_interleave flip roll rot90 constant_pad_nd
    reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d
    slice_backward select_backward diagonal_backward unfold_backward slice_scatter select_scatter
    diagonal_scatter as_strided_scatter im2col max_unpool2d max_unpool3d diag_embed complex pixel_shuffle
    pixel_unshuffle channel_shuffle zeros zeros_like new_zeros ones ones_like new_ones full full_like new_full
    fill fill_ zero zero_ arange linspace logspace range scalar_tensor eye tril_indices triu_indices
    _pack_padded_sequence _lazy_clone _to_dense _reshape_copy affine_grid_generator
"""))  # fmt: skip
_NOTHING = frozenset(re.findall(r"\S+", """
    empty empty_like empty_strided new_empty new_empty_strided _unsafe_view _reshape_alias lift_fresh
    lift_fresh_copy detach alias _local_scalar_dense unsafe_split unsafe_chunk unsafe_split_with_sizes
    as_strided as_strided_ resize_ resize_as_ set_ record_stream is_same_size _linalg_check_errors
"""))  # fmt: skip
_UNKNOWN = (
    "_fft", "fft_", "stft", "istft", "linalg_", "_linalg", "cholesky", "lu_", "triangular_solve", "_trilinear",
    "_ctc", "ctc_", "_cudnn_ctc", "cdist", "_cdist", "pdist", "_pdist", "sort", "argsort",
    "msort", "topk", "kthvalue", "median", "nanmedian", "mode", "unique", "_unique", "histc",
    "histogram", "bucketize", "searchsorted", "_sparse", "sparse", "_cudnn_rnn", "_thnn_fused", "matrix_exp",
    "_foreach", "_fused_adam", "_fused_sgd", "igamma", "conv_tbc", "addr",
)  # fmt: skip
"""Beginnings of the names of kernels whose work is not one a value."""


def effort_of(operator: Any) -> str:
    """How a dispatched operator's work is counted. Operators of other libraries (``torch.library``) are unknown."""
    packet = operator.overloadpacket
    if packet in FORMULAS or packet in flop_registry:
        return PRODUCT
    if operator.namespace not in ("aten", "prims", "prim"):
        return NOTHING if operator.namespace == "profiler" else UNKNOWN
    name = packet.__name__
    if name in _NOTHING or operator.is_view or getattr(torch.Tag, "inplace_view", None) in operator.tags:
        return NOTHING
    if not operator._schema.is_mutable and not any("Tensor" in str(r.type) for r in operator._schema.returns):
        return NOTHING  # it asks for a length or a setting, or checks one
    if name in _MOVES or name.endswith("_copy"):
        return MOVE
    return UNKNOWN if name.startswith(_UNKNOWN) else ELEMENTWISE


# -- memory traffic ----------------------------------------------------------------------------------------------------


def _argument(position: int) -> Formula:
    return lambda args, _out: int(args[position].numel())


def _bags(args: Arguments, _out: Any) -> int:
    """As many rows of a table as there are indices."""
    return int(args[1].numel() * args[0].shape[1])


def _indexed(args: Arguments, _out: Any) -> int:
    """Values that ``index_put`` writes: indices broadcast together, times the dimensions without one."""
    x, indices = args[0], args[1]
    if any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices):
        return int(x.numel())  # a mask: nobody knows how many of its values are true
    free = [n for n, i in zip(x.shape, [*indices, *[None] * (x.dim() - len(indices))], strict=True) if i is None]
    broadcast: Any = torch.broadcast_shapes
    return int(prod(broadcast(*(i.shape for i in indices if i is not None))) * prod(free))


_PICKED: dict[str, Formula] = {
    **dict.fromkeys(("embedding", "gather", "index", "index_select", "take"), lambda _, out: int(out.numel())),
    **dict.fromkeys(("_embedding_bag", "_embedding_bag_forward_only"), _bags),
}
"""Kernels that read a few values of their first argument."""
_WRITTEN: dict[str, Formula] = {
    **dict.fromkeys(("index_put", "_index_put_impl"), _indexed),
    **dict.fromkeys(("index_add", "index_copy"), _argument(3)),
    "index_fill": lambda args, _: int(args[2].numel() * (args[0].numel() // max(1, args[0].shape[args[1]]))),
    **dict.fromkeys(("scatter", "scatter_add", "scatter_reduce"), _argument(2)),
    "embedding_dense_backward": _argument(0),
    **dict.fromkeys(("_embedding_bag_backward", "_embedding_bag_dense_backward"), _bags),
}
"""Kernels that work on a few values of a table; in place (with an underscore behind) they touch no others."""


def memory_traffic(name: str, args: Arguments, out: Any) -> tuple[int, int]:
    """Bytes read and written by the kernel of that name, and the values that it worked on."""
    read_bytes, widest_in = _sizes(args)
    written_bytes, widest_out = _sizes((out,))
    if name in _PICKED:
        values = _PICKED[name](args, out)
        return read_bytes + (values - args[0].numel()) * args[0].element_size() + written_bytes, values
    written = _WRITTEN.get(name.removesuffix("_"))
    if written is None:
        return read_bytes + written_bytes, max(widest_in, widest_out)
    values = written(args, out)
    if not name.endswith("_"):
        return read_bytes + written_bytes, values
    # What is added to is read before it is written.
    adds = name in ("index_add_", "scatter_add_", "scatter_reduce_") or (written is _indexed and any(args[3:4]))
    return read_bytes + ((2 if adds else 1) * values - args[0].numel()) * args[0].element_size(), values


def _tensors(values: Sequence[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value)


def _sizes(values: Sequence[Any]) -> tuple[int, int]:
    """Bytes of all tensors, and the values of the largest."""
    total = widest = 0
    for tensor in _tensors(values):
        n = tensor.numel()
        total += n * tensor.element_size()
        widest = max(widest, n)
    return total, widest


class KernelCounter(TorchDispatchMode):  # type: ignore[misc, no-untyped-call, unused-ignore]
    """Counts every kernel dispatched inside it on the account of the module that it runs for.

    Forward: the innermost module that is being called. Backward: autograd numbers its nodes as forward makes them, and
    the numbers at which modules were entered and left are noted; the node that runs thus leads to its module.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.current_pass = FORWARD
        self.unknown: dict[tuple[str, str], int] = {}
        """Kernels that nobody can count, by module and name: how often they ran."""
        self.worked: set[str] = set()
        """Names of modules in which something ran beyond moving values."""
        self.autocast = False
        self._stack = [""]
        self._first_nodes: list[int] = [0]
        self._modules: list[str] = [""]
        """The module that was being called from the autograd node of the same position in ``_first_nodes`` on."""
        self._sums: dict[tuple[str, str], list[int]] = {}
        self._efforts: dict[Any, str] = {}

    def follow(self, name: str, module: nn.Module) -> None:
        """Hook a module, so that what runs in it counts for ``name``."""
        is_leaf = next(module.children(), None) is None

        def enter(_module: nn.Module, _args: Any) -> None:
            if is_leaf:  # has a row even where no kernel runs
                self._sums.setdefault((name, FORWARD), [0, 0, 0])
            self._stack.append(name)
            self._note_module()

        def leave(_module: nn.Module, _args: Any, _output: Any) -> None:
            self._stack.pop()
            self._note_module()

        module.register_forward_pre_hook(enter, prepend=True)
        module.register_forward_hook(leave, always_call=True)

    def _note_module(self) -> None:
        self.autocast |= torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu")
        self._first_nodes.append(torch._C._autograd._get_sequence_nr())
        self._modules.append(self._stack[-1])

    def current_module(self) -> str:
        """The module that what runs now belongs to, by name."""
        # In backward a module is on the stack where a checkpoint computes it again.
        if self.current_pass == FORWARD or len(self._stack) > 1:
            return self._stack[-1]
        node = torch._C._current_autograd_node()
        number = node._sequence_nr() if node is not None else None
        if number is None or number >= 2**63:  # what adds gradients to parameters has no number of its own
            return ""
        return self._modules[bisect_right(self._first_nodes, number) - 1]

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: Arguments = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        effort = self._efforts.get(func)
        if effort is None:
            effort = self._efforts[func] = effort_of(func)
        if effort != NOTHING:
            self._add(func, effort, args, kwargs or {}, out)
        return out

    def _add(self, func: Any, effort: str, args: Arguments, kwargs: Mapping[str, Any], out: Any) -> None:
        name, module = func.overloadpacket.__name__, self.current_module()
        operations = values = moved_bytes = 0
        # Of sparse and nested tensors nobody knows how many values they hold.
        if all(t.layout is torch.strided and not t.is_nested for t in _tensors((args, out))):
            moved_bytes, values = memory_traffic(name, args, out)
        else:
            effort = UNKNOWN
        if effort == UNKNOWN:
            key = module, str(func)
            self.unknown[key] = self.unknown.get(key, 0) + 1
        if effort == PRODUCT:
            own = FORMULAS.get(func.overloadpacket)
            operations = own(args, out) if own else flop_registry[func.overloadpacket](*args, **kwargs, out_val=out)
            # A product of two complex numbers is four of real ones, and so is the sum.
            operations *= 4 if any(isinstance(a, Tensor) and a.is_complex() for a in args) else 1
            values = _bias_values(name, args, out)
        elif effort != ELEMENTWISE:
            values = 0
        if effort != MOVE:
            self.worked.add(module)
        sums = self._sums.setdefault((module, self.current_pass), [0, 0, 0])
        for i, figure in enumerate((operations, values, moved_bytes)):
            sums[i] += figure

    def counts(self, modules: Mapping[str, nn.Module], label: Callable[[str], str]) -> tuple[ExecutedCount, ...]:
        """What ran, by module in the order in which they first ran; ``label`` words a module's name."""
        counts = []
        for name in dict.fromkeys(name for name, _ in self._sums):
            forward, backward = (Work(*self._sums.get((name, p), (0, 0, 0))) for p in (FORWARD, BACKWARD))
            counts.append(ExecutedCount(label(name), type(modules[name]).__name__, forward, backward))
        return tuple(counts)
