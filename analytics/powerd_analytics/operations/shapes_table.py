"""Which rule gives the result of which kernel, for those that are not element-wise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from powerd_analytics.operations import shapes_algebra as algebra
from powerd_analytics.operations import shapes_indexing as indexing
from powerd_analytics.operations import shapes_joining as joining
from powerd_analytics.operations import shapes_made as made
from powerd_analytics.operations import shapes_norms as norms
from powerd_analytics.operations import shapes_reductions as reductions
from powerd_analytics.operations import shapes_resizing as resizing
from powerd_analytics.operations import shapes_windows as windows
from powerd_analytics.operations.shapes_elementwise import elementwise
from powerd_analytics.operations.shapes_layout import as_suggested, is_plain, like

Shape = Callable[[Sequence[Any]], Any]
"""The result of a kernel from all its arguments in the order of its schema, or None to let torch make it."""


def _like(at: int) -> Shape:
    """A result of the shape and type of one argument, which is plain as the others are."""

    def rule(args: Sequence[Any]) -> Tensor | None:
        return like(args[at]) if is_plain(*(a for a in args if isinstance(a, Tensor))) else None

    return rule


def _as_suggested(at: int) -> Shape:
    """The same of pictures and volumes, whose channels may come last."""
    return lambda args: as_suggested(args[at]) if all(a.is_meta for a in args if isinstance(a, Tensor)) else None


def _contiguous(at: int) -> Shape:
    """The same, whatever the order of dimensions of the arguments."""
    return lambda args: like(args[at]) if all(a.is_meta for a in args if isinstance(a, Tensor)) else None


def _both_gradients(args: Sequence[Any]) -> tuple[Tensor, Tensor] | None:
    """Of values and of the factors they met, each for every value."""
    made = elementwise("mul", args)
    again = elementwise("mul", args)
    return None if made is None or again is None else (made, again)


def _twice_like(args: Sequence[Any]) -> tuple[Tensor, Tensor] | None:
    fits = is_plain(args[0]) and args[0].is_floating_point()
    return (like(args[0]), like(args[0])) if fits else None


def _with_noise(args: Sequence[Any]) -> Tensor | None:
    x, noise = args[:2]
    fits = x.shape == noise.shape and x.dtype == noise.dtype and x.is_floating_point()
    return like(x) if fits and is_plain(x, noise) else None


def _with_noise_in_place(args: Sequence[Any]) -> Tensor | None:
    return args[0] if _with_noise(args) is not None else None


_reduction = reductions.reduction
SHAPES: dict[str, Shape] = {
    "convolution": windows.convolution,
    "convolution_backward": windows.convolution_backward,
    "max_pool2d_with_indices": windows.max_pool,
    "max_pool3d_with_indices": windows.max_pool,
    "avg_pool2d": windows.avg_pool,
    "avg_pool3d": windows.avg_pool,
    "_adaptive_avg_pool2d": resizing.resized(2),
    "_adaptive_avg_pool3d": resizing.plain_volumes(resizing.resized(3)),
    "adaptive_max_pool2d": windows.with_places(resizing.resized(2)),
    "adaptive_max_pool3d": windows.with_places(resizing.plain_volumes(resizing.resized(3))),
    "fractional_max_pool2d": windows.with_places(resizing.fractional(2)),
    "fractional_max_pool3d": windows.with_places(resizing.fractional(3)),
    "max_unpool2d": resizing.unpooled(2),
    "max_unpool3d": resizing.unpooled(3),
    "upsample_nearest1d": resizing.upsampled(1),
    "upsample_linear1d": resizing.upsampled(1),
    **{f"{kind}2d": resizing.upsampled(2) for kind in (
        "upsample_nearest", "_upsample_nearest_exact", "upsample_bilinear", "upsample_bicubic")},
    **{f"_upsample_{kind}2d_aa": resizing.upsampled(2) for kind in ("bilinear", "bicubic")},
    **{f"_upsample_{kind}2d_aa_backward": resizing.sized_as(2) for kind in ("bilinear", "bicubic")},
    **{f"{kind}3d": resizing.upsampled(3) for kind in (
        "upsample_nearest", "_upsample_nearest_exact", "upsample_trilinear")},
    "_upsample_nearest_exact1d": resizing.upsampled(1),
    **{f"{kind}{n}d_backward": resizing.plain_volumes(resizing.sized_as(2)) if n == 3 else resizing.sized_as(2)
       for n in (1, 2, 3) for kind in ("upsample_nearest", "_upsample_nearest_exact")},
    **{f"upsample_{kind}_backward": resizing.sized_as(2) for kind in (
        "linear1d", "bilinear2d", "bicubic2d", "trilinear3d")},
    **{f"reflection_pad{n}d": resizing.reflected for n in (1, 2, 3)},
    **{f"replication_pad{n}d": resizing.padded for n in (1, 2, 3)},
    **{f"{kind}_pad{n}d_backward": _as_suggested(1) for n in (1, 2, 3) for kind in ("reflection", "replication")},
    "constant_pad_nd": resizing.padded_with_number,
    "im2col": windows.im2col,
    "col2im": windows.col2im,
    "pixel_shuffle": resizing.pixel_shuffle,
    "pixel_unshuffle": resizing.pixel_unshuffle,
    "channel_shuffle": resizing.channel_shuffle,
    "grid_sampler_2d": resizing.grid_sampler,
    "grid_sampler_3d": resizing.grid_sampler,
    "affine_grid_generator": resizing.affine_grid,
    # A gradient has the shape of what it is a gradient of.
    **{name: _as_suggested(1) for name in (
        "max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward", "avg_pool2d_backward",
        "_adaptive_avg_pool2d_backward", "adaptive_max_pool2d_backward")},
    **{name: _contiguous(1) for name in (
        "avg_pool3d_backward", "_adaptive_avg_pool3d_backward", "adaptive_max_pool3d_backward", "glu_backward")},
    **{name: _like(1) for name in (
        "mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward", "binary_cross_entropy_backward",
        "nll_loss_backward", "nll_loss2d_backward", "_cdist_backward", "fractional_max_pool2d_backward",
        "soft_margin_loss_backward",
        # torch has no shapes for these at all.
        "fractional_max_pool3d_backward", "multi_margin_loss_backward", "multilabel_margin_loss_backward",
        "_ctc_loss_backward")},
    "grid_sampler_2d_backward": resizing.grid_sampler_backward,
    "grid_sampler_3d_backward": resizing.grid_sampler_backward,
    "_prelu_kernel_backward": _both_gradients,
    "log_sigmoid_forward": _twice_like,
    "rrelu_with_noise": _with_noise,
    "rrelu_with_noise_": _with_noise_in_place,
    "native_batch_norm": norms.batch_norm,
    "native_batch_norm_backward": norms.batch_norm_backward,
    "native_layer_norm": norms.layer_norm,
    "native_layer_norm_backward": norms.layer_norm_backward,
    "native_group_norm": norms.group_norm,
    "native_group_norm_backward": norms.group_norm_backward,
    "_weight_norm_interface": norms.weight_norm,
    "_weight_norm_interface_backward": norms.weight_norm_backward,
    "_softmax": reductions.softmax,
    "_log_softmax": reductions.softmax,
    "_safe_softmax": reductions.softmax,
    "_softmax_backward_data": reductions.softmax_backward,
    "_log_softmax_backward_data": reductions.softmax_backward,
    "mm": reductions.mm,
    "bmm": reductions.mm,
    "addmm": reductions.addmm,
    "baddbmm": reductions.addmm,
    "mv": reductions.mv,
    "dot": reductions.dot,
    "vdot": reductions.dot,
    "_cdist_forward": reductions.cdist,
    "_trilinear": reductions.trilinear,
    "sum.default": _reduction("sum", over=None, kind=1),
    "sum.dim_IntList": _reduction("sum", kind=3),
    "nansum": _reduction("sum", kind=3),
    "mean.default": _reduction(over=None, kind=1),
    "mean.dim": _reduction(kind=3),
    "prod.default": _reduction("sum", over=None, kind=1),
    "prod.dim_int": _reduction("sum", kind=3),
    "amax": _reduction("own"),
    "amin": _reduction("own"),
    "aminmax": reductions.both_extremes,
    "argmax": _reduction("int64"),
    "argmin": _reduction("int64"),
    "any.default": _reduction("bool", over=None),
    "_is_all_true": reductions.of_truths,
    "_is_any_true": reductions.of_truths,
    "any.dim": _reduction("bool"),
    "any.dims": _reduction("bool"),
    "all.default": _reduction("bool", over=None),
    "all.dim": _reduction("bool"),
    "all.dims": _reduction("bool"),
    "count_nonzero.default": lambda args: _reduction("int64")([*args, False]),
    "count_nonzero.dim_IntList": lambda args: _reduction("int64")([*args, False]),
    "std.correction": _reduction(keeps=3),
    "var.correction": _reduction(keeps=3),
    "logsumexp.default": _reduction(),
    "norm.ScalarOpt_dim": _reduction(over=2, keeps=3),
    "linalg_vector_norm": _reduction(over=2, keeps=3, kind=4),
    "cumsum.default": reductions.running,
    "cumprod.default": reductions.running,
    "glu": reductions.glu,
    "_fft_c2c": algebra.fourier,
    "_fft_r2c": algebra.fourier_of_real,
    "_fft_c2r": algebra.fourier_to_real,
    "complex": algebra.to_complex,
    "polar": algebra.to_complex,
    "abs": algebra.to_real("abs"),
    "angle": algebra.to_real("angle"),
    "polygamma": algebra.polygamma,
    "_linalg_det": algebra.determinant,
    "_linalg_solve_ex": algebra.solution,
    "linalg_inv_ex": algebra.inverse,
    "linalg_cholesky_ex": algebra.inverse,
    "linalg_lu_solve": algebra.solved,
    "linalg_solve_triangular": algebra.solved_by_triangle,
    "linalg_cross": algebra.cross,
    **{name: reductions.loss(2) for name in ("mse_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss")},
    "binary_cross_entropy": reductions.loss(3),
    "binary_cross_entropy_with_logits": reductions.loss(4),
    "nll_loss_forward": reductions.class_loss,
    "nll_loss2d_forward": reductions.class_loss,
    "multi_margin_loss": reductions.margin_loss,
    "multilabel_margin_loss_forward": reductions.labels_loss,
    "gather": indexing.gather,
    **{f"scatter.{kind}": indexing.scatter for kind in ("src", "value")},
    **{f"scatter_.{kind}": indexing.scatter_in_place for kind in ("src", "value")},
    "scatter_add.default": indexing.scatter,
    "scatter_add_": indexing.scatter_in_place,
    "scatter_reduce.two": indexing.scatter,
    "scatter_reduce_.two": indexing.scatter_in_place,
    "index.Tensor": indexing.index,
    "index_put": indexing.index_put,
    "index_add.default": indexing.along,
    "index_copy.default": indexing.along,
    "index_add_": indexing.along_in_place,
    "index_copy_": indexing.along_in_place,
    "index_fill.int_Scalar": indexing.index_fill,
    "masked_scatter": indexing.masked_scatter,
    "embedding": indexing.embedding,
    "_embedding_bag": indexing.embedding_bag,
    "_embedding_bag_backward": indexing.embedding_bag_backward,
    "cat.default": joining.cat,
    "stack": joining.stack,
    "_pack_padded_sequence": joining.packed,
    "repeat": joining.repeat,
    "flip": joining.flipped,
    "roll": joining.rolled,
    "rot90": joining.half_turns,
    "tril": joining.triangle,
    "triu": joining.triangle,
    "diag_embed": joining.diag_embed,
    "select_backward": indexing.back_into,
    "slice_backward": indexing.back_into,
    "diagonal_backward": indexing.back_into,
    "unfold_backward": indexing.back_into,
    "sort.default": joining.ordered,
    "topk": joining.largest,
    "kthvalue.default": joining.one_of,
    "multinomial": indexing.drawn,
    "searchsorted.Tensor": indexing.places_in,
    "clone": made.copied,
    **{f"{name}_like": made.new_like for name in ("empty", "zeros", "ones", "full")},
    "rand_like": made.normal_like,
    "randn_like": made.normal_like,
    **{f"{name}.default": made.of_size() for name in ("rand", "randn", "zeros", "ones")},
    "linspace.default": made.of_size(2),
    "eye.default": made.square,
    "randint.default": made.drawn_numbers(with_low=False),
    "randint.low": made.drawn_numbers(with_low=True),
    "arange.default": made.counting(with_start=False, with_step=False),
    "arange.start": made.counting(with_start=True, with_step=False),
    "arange.start_step": made.counting(with_start=True, with_step=True),
}  # fmt: skip
