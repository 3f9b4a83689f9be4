"""What one dispatched kernel of torch does: products counted by shape, element-wise work, or nothing but moving.

torch's own ``flop_counter`` ignores the groups of a convolution's backward pass (17 x the truth at 16 groups), so the
formulas here are our own. A multiply-accumulate is two operations. Products with padding count as torch does them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from math import prod
from typing import Any

import torch

aten = torch.ops.aten

Formula = Callable[[Sequence[Any], Any], int]
"""Operations from a kernel's arguments and its result."""


class Effort(Enum):
    """How a kernel's work is counted."""

    PRODUCT = "by a formula"
    ELEMENTWISE = "one a value"
    MOVE = "bytes alone: it copies or fills"
    NOTHING = "not at all: another view of what is there, or memory without contents"
    UNKNOWN = "nobody knows"


def convolution(args: Sequence[Any], _out: Any) -> int:
    """Forward: each output value (transposed: each input value) meets the weights of one filter.

    The weight is [cout, cin/groups, *kernel], transposed [cin, cout/groups, *kernel]: groups, stride and dilation are
    in the shapes already.
    """
    x, weight, transposed = args[0], args[1], args[6]
    values = x.numel() if transposed else _out.numel()
    return 2 * int(values * prod(weight.shape[1:]))


def convolution_backward(args: Sequence[Any], _out: Any) -> int:
    """The gradients of input and weight, each with as many products as forward; only those that are asked for."""
    grad, x, weight, transposed, mask = args[0], args[1], args[2], args[7], args[10]
    values = x.numel() if transposed else grad.numel()
    return 2 * int(values * prod(weight.shape[1:])) * (bool(mask[0]) + bool(mask[1]))


def convolution_of_sequence(args: Sequence[Any], out: Any) -> int:
    """``conv_tbc``: [t, n, cin] and [kernel, cin, cout] to [t, n, cout]."""
    return 2 * int(out.numel() * prod(args[1].shape[:2]))


def product(left: int, right: int) -> Formula:
    """A matrix product of the arguments at two places: all values of the left one, each with a row of the right one."""

    def count(args: Sequence[Any], _out: Any) -> int:
        a, b = args[left], args[right]
        columns = b.shape[-1] if b.dim() > 1 else 1
        return 2 * int(a.numel() * columns)

    return count


def outer(args: Sequence[Any], _out: Any) -> int:
    """A column times a row."""
    return 2 * int(args[1].numel() * args[2].numel())


def attention(passes: int, first: int = 0) -> Formula:
    """Attention in one kernel: query times keys, and weights times values, for the whole square, masks or not.

    Forward has both products. Backward has the gradients of both factors of both and computes the first again: 5.
    """

    def count(args: Sequence[Any], _out: Any) -> int:
        query, key, value = args[first], args[first + 1], args[first + 2]
        pairs = query.numel() // query.shape[-1] * key.shape[-2]
        inner, outer_ = query.shape[-1], value.shape[-1]
        both = inner + outer_
        return 2 * int(pairs * (both if passes == 1 else 2 * both + inner))

    return count


def trilinear(args: Sequence[Any], _out: Any) -> int:
    """Three factors multiplied and added up: three operations for each place of their common shape (`nn.Bilinear`)."""
    sizes: dict[int, int] = {}
    for x, places in zip(args[:3], args[3:6], strict=True):
        shape = [*x.shape]
        for at in places:
            shape.insert(at, 1)
        for i, n in enumerate(shape):
            sizes[i] = max(sizes.get(i, 1), n)
    return 3 * prod(sizes.values())


def _table(names: dict[str, Formula]) -> dict[Any, Formula]:
    # Not every release of torch has all of them.
    return {getattr(aten, name): formula for name, formula in names.items() if hasattr(aten, name)}


_FUSED = ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu")
PRODUCTS = _table(
    {
        "convolution": convolution,
        "_convolution": convolution,
        "convolution_overrideable": convolution,
        "convolution_backward": convolution_backward,
        "convolution_backward_overrideable": convolution_backward,
        "mm": product(0, 1),
        "addmm": product(1, 2),
        "bmm": product(0, 1),
        "baddbmm": product(1, 2),
        "addbmm": product(1, 2),
        "mv": product(0, 1),
        "addmv": product(1, 2),
        "dot": product(0, 1),
        "vdot": product(0, 1),
        "addr": outer,
        **{f"{name}_": product(1, 2) for name in ("addmm", "baddbmm", "addbmm", "addmv")},
        "addr_": outer,
        "conv_tbc": convolution_of_sequence,
        "_int_mm": product(0, 1),
        "_scaled_mm": product(0, 1),
        "_trilinear": trilinear,
        **{f"_scaled_dot_product_{name}": attention(1) for name in _FUSED},
        **{f"_scaled_dot_product_{name}_backward": attention(2, first=1) for name in _FUSED},
    }
)

_ELEMENTWISE = (
    "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional "
    "_native_batch_norm_legit_no_training batch_norm_backward native_batch_norm_backward cudnn_batch_norm "
    "cudnn_batch_norm_backward native_layer_norm native_layer_norm_backward native_group_norm "
    "native_group_norm_backward _fused_rms_norm _fused_rms_norm_backward _softmax _softmax_backward_data "
    "_safe_softmax _log_softmax _log_softmax_backward_data _masked_softmax _masked_softmax_backward "
    "max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices "
    "max_pool3d_with_indices_backward avg_pool2d avg_pool2d_backward avg_pool3d avg_pool3d_backward "
    "_adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d _adaptive_avg_pool3d_backward "
    "adaptive_max_pool2d adaptive_max_pool2d_backward adaptive_max_pool3d adaptive_max_pool3d_backward "
    "native_dropout native_dropout_backward bernoulli_ bernoulli sum mean amax amin argmax argmin max min prod var "
    "var_mean std std_mean logsumexp norm linalg_vector_norm any all cumsum cumprod embedding_dense_backward "
    "hardtanh hardtanh_ hardtanh_backward leaky_relu_backward elu_backward hardsigmoid_backward hardswish_backward "
    "silu_backward softplus_backward gelu_backward glu glu_backward prelu _prelu_kernel _prelu_kernel_backward "
    "nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward mse_loss mse_loss_backward "
    "masked_fill masked_fill_ where rsub index_put index_put_ _index_put_impl_ index_add index_add_ scatter_add "
    "scatter_add_ tril triu uniform_ normal_ random_ exponential_ _weight_norm_interface "
    "_weight_norm_interface_backward _embedding_bag _embedding_bag_backward _embedding_bag_dense_backward "
    "upsample_nearest1d upsample_nearest1d_backward upsample_nearest2d upsample_nearest2d_backward "
    "upsample_nearest3d upsample_nearest3d_backward upsample_linear1d upsample_linear1d_backward upsample_bilinear2d "
    "upsample_bilinear2d_backward upsample_bicubic2d upsample_bicubic2d_backward upsample_trilinear3d "
    "upsample_trilinear3d_backward _thnn_fused_lstm_cell _thnn_fused_gru_cell rand rand_like randn randn_like "
    "randint _upsample_nearest_exact1d _upsample_nearest_exact1d_backward _upsample_nearest_exact2d "
    "_upsample_nearest_exact2d_backward _upsample_nearest_exact3d _upsample_nearest_exact3d_backward "
    "_upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward _upsample_bicubic2d_aa _upsample_bicubic2d_aa_backward "
    "reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward replication_pad1d_backward "
    "replication_pad2d_backward replication_pad3d_backward col2im grid_sampler_2d grid_sampler_2d_backward "
    "grid_sampler_3d grid_sampler_3d_backward fractional_max_pool2d fractional_max_pool2d_backward "
    "fractional_max_pool3d fractional_max_pool3d_backward hardswish hardswish_ mish_ hardshrink_backward "
    "softshrink_backward log_sigmoid_forward log_sigmoid_backward rrelu_with_noise rrelu_with_noise_ "
    "rrelu_with_noise_backward floor_divide floor_divide_ smooth_l1_loss smooth_l1_loss_backward huber_loss "
    "huber_loss_backward soft_margin_loss soft_margin_loss_backward binary_cross_entropy "
    "binary_cross_entropy_backward binary_cross_entropy_with_logits multi_margin_loss multi_margin_loss_backward "
    "_embedding_bag_per_sample_weights_backward multilabel_margin_loss_forward multilabel_margin_loss_backward "
    "aminmax count_nonzero nansum logcumsumexp cummax cummin scatter_reduce scatter_reduce_ polar linalg_cross "
    "uniform normal normal_functional random geometric cauchy log_normal exponential poisson binomial randint_like "
    "randperm dist trace renorm native_norm _aminmax _masked_scale _fused_dropout _batch_norm_with_update "
    "_batch_norm_no_update _batch_norm_with_update_functional batch_norm_stats batch_norm_elemt "
    "batch_norm_backward_elemt batch_norm_backward_reduce batch_norm_gather_stats "
    "batch_norm_gather_stats_with_counts batch_norm_update_stats fake_quantize_per_tensor_affine_cachemask "
    "fake_quantize_per_channel_affine_cachemask _fake_quantize_per_tensor_affine_cachemask_tensor_qparams "
    "_fake_quantize_learnable_per_tensor_affine _fake_quantize_learnable_per_channel_affine "
    "_fake_quantize_learnable_per_tensor_affine_backward _fake_quantize_learnable_per_channel_affine_backward "
    "_conj_physical celu elu hardshrink hardsigmoid isfinite isinf ldexp leaky_relu mish rad2deg relu6 rrelu selu silu "
    "softplus softshrink threshold nonzero masked_select bincount _is_all_true _is_any_true "
    "quantize_per_tensor quantize_per_channel dequantize rrelu_with_noise_functional _logcumsumexp index_reduce"
)
_MOVES = (
    "clone copy_ _to_copy contiguous cat stack embedding index index_select gather scatter scatter_ repeat flip roll "
    "constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d "
    "replication_pad3d slice_backward select_backward diagonal_backward slice_scatter select_scatter unfold_backward "
    "im2col index_fill index_fill_ index_copy index_copy_ masked_scatter masked_scatter_ masked_scatter_backward "
    "max_unpool2d max_unpool3d diag_embed rot90 complex affine_grid_generator pixel_shuffle pixel_unshuffle "
    "channel_shuffle view_copy split_with_sizes_copy narrow_copy zeros zeros_like new_zeros ones ones_like new_ones "
    "full full_like new_full fill fill_ zero_ zero arange linspace scalar_tensor eye copy take put _unsafe_index "
    "_chunk_cat _stack block_diag logspace range hann_window hamming_window blackman_window bartlett_window "
    "kaiser_window tril_indices triu_indices permute_copy transpose_copy t_copy expand_copy slice_copy select_copy "
    "squeeze_copy unsqueeze_copy split_copy unbind_copy unfold_copy as_strided_copy as_strided_scatter diagonal_copy "
    "diagonal_scatter detach_copy alias_copy _reshape_copy _pack_padded_sequence _lazy_clone _to_dense "
    "repeat_interleave"
)
_NOTHING = (
    "empty empty_like empty_strided new_empty new_empty_strided _unsafe_view _reshape_alias lift_fresh detach alias "
    "lift_fresh_copy _local_scalar_dense unsafe_split unsafe_chunk unsafe_split_with_sizes as_strided as_strided_ "
    "resize_ resize_as_ set_ record_stream is_same_size _linalg_check_errors"
)
ELEMENTWISE = frozenset(_ELEMENTWISE.split())
MOVES = frozenset(_MOVES.split())
NOTHING = frozenset(_NOTHING.split())


def effort_of(func: Any) -> Effort:
    """How a dispatched operator's work is counted. Operators of other libraries (``torch.library``) are unknown."""
    if func.overloadpacket in PRODUCTS:
        return Effort.PRODUCT
    if func.namespace not in ("aten", "prims", "prim"):
        return Effort.NOTHING if func.namespace == "profiler" else Effort.UNKNOWN
    name = func.overloadpacket.__name__
    if name in NOTHING or func.is_view or getattr(torch.Tag, "inplace_view", None) in func.tags:
        return Effort.NOTHING
    if not func._schema.is_mutable and not any("Tensor" in str(r.type) for r in func._schema.returns):
        # Asks for a length or a setting, or checks one; what reads values does not run on meta.
        return Effort.NOTHING
    if name in MOVES:
        return Effort.MOVE
    if name in ELEMENTWISE or is_pointwise(func):
        return Effort.ELEMENTWISE
    base = name.removesuffix("_")
    other = getattr(aten, base, None) if base != name else None
    # In place as well, where torch marks only the other as such.
    has_other = other is not None and any(is_pointwise(getattr(other, o)) for o in other.overloads())
    return Effort.ELEMENTWISE if has_other or (other is not None and base in ELEMENTWISE) else Effort.UNKNOWN


def is_pointwise(func: Any) -> bool:
    """Whether torch marks it so: each value of its result is made from one value of each operand."""
    return getattr(torch.Tag, "pointwise", None) in func.tags
