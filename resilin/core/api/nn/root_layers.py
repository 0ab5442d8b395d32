"""Functions of layers as they stand in PyTorch's root: those of torch.nn.functional, and such with other arguments."""

from __future__ import annotations

from typing import Any

from resilin.core.api.nn import dropping, grids, losses, neural, normalizing
from resilin.core.api.nn.convolving import (
    conv1d,
    conv2d,
    conv3d,
    conv_tbc,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)
from resilin.core.api.nn.embedding_bag import bilinear
from resilin.core.api.nn.normalizing import rms_norm
from resilin.core.api.nn.pooling import adaptive_avg_pool1d, avg_pool1d, max_pool1d, max_pool2d, max_pool3d
from resilin.core.api.nn.pooling_indices import adaptive_max_pool1d_with_indices, max_pool1d_with_indices
from resilin.core.api.nn.unfold import channel_shuffle, pixel_shuffle, pixel_unshuffle
from resilin.core.tensor import Tensor

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_max_pool1d",
    "affine_grid_generator",
    "alpha_dropout",
    "alpha_dropout_",
    "avg_pool1d",
    "batch_norm",
    "bilinear",
    "binary_cross_entropy_with_logits",
    "channel_shuffle",
    "constant_pad_nd",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_tbc",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "convolution",
    "dropout",
    "dropout_",
    "embedding",
    "feature_alpha_dropout",
    "feature_alpha_dropout_",
    "feature_dropout",
    "feature_dropout_",
    "grid_sampler",
    "group_norm",
    "instance_norm",
    "kl_div",
    "layer_norm",
    "max_pool1d",
    "max_pool1d_with_indices",
    "max_pool2d",
    "max_pool3d",
    "pixel_shuffle",
    "pixel_unshuffle",
    "rms_norm",
]

_REDUCTIONS = ("none", "mean", "sum")  # by number
_CONVOLUTIONS = {3: (conv1d, conv_transpose1d), 4: (conv2d, conv_transpose2d), 5: (conv3d, conv_transpose3d)}
_MODES, _EDGES = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")


def convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Tensor:
    """The convolution, or transposed one, for as many dimensions as `input` (N, C, ...) has."""
    neural.need_tensors("convolution", input=input, weight=weight)
    if input._array.ndim not in _CONVOLUTIONS:
        raise RuntimeError(f"convolution: expected input (N, C, ...) of 3 to 5 dimensions, got {tuple(input.shape)}")
    plain, turned = _CONVOLUTIONS[input._array.ndim]
    if transposed:
        return turned(input, weight, bias, stride, padding, output_padding, groups, dilation)
    return plain(input, weight, bias, stride, padding, dilation, groups)


def batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = False,
) -> Tensor:
    """`F.batch_norm` with the arguments in another order."""
    return normalizing.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)


def instance_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = False,
) -> Tensor:
    """`F.instance_norm` with the arguments in another order."""
    return normalizing.instance_norm(input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)


def layer_norm(
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    """`F.layer_norm`; `cudnn_enable` is PyTorch's and means nothing here."""
    return normalizing.layer_norm(input, normalized_shape, weight, bias, eps)


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Tensor:
    """`F.group_norm`; `cudnn_enabled` is PyTorch's and means nothing here."""
    return normalizing.group_norm(input, num_groups, weight, bias, eps)


def embedding(
    weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Tensor:
    """`F.embedding` with the weight first; `padding_idx` -1 is none."""
    padding = None if padding_idx == -1 else padding_idx
    return neural.embedding(indices, weight, padding, None, 2.0, scale_grad_by_freq, sparse)


def dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """Each element is 0 with probability `p`, else divided by 1 - p."""
    return neural.dropout(input, p, train)


def dropout_(input: Tensor, p: float, train: bool) -> Tensor:
    """`dropout` in place."""
    return neural.dropout(input, p, train, inplace=True)


def alpha_dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """`F.alpha_dropout`."""
    return dropping.alpha_dropout(input, p, train)


def alpha_dropout_(input: Tensor, p: float, train: bool) -> Tensor:
    """`alpha_dropout` in place."""
    return dropping.alpha_dropout(input, p, train, inplace=True)


def feature_dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """Whole channels of (N, C, ...) are 0 with probability `p`, the others divided by 1 - p."""
    return dropping.feature_dropout(input, p, train)


def feature_dropout_(input: Tensor, p: float, train: bool) -> Tensor:
    """`feature_dropout` in place."""
    return input.copy_(dropping.feature_dropout(input, p, train)) if train else input


def feature_alpha_dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """`F.feature_alpha_dropout`."""
    return dropping.feature_alpha_dropout(input, p, train)


def feature_alpha_dropout_(input: Tensor, p: float, train: bool) -> Tensor:
    """`feature_alpha_dropout` in place."""
    return dropping.feature_alpha_dropout(input, p, train, inplace=True)


def adaptive_max_pool1d(input: Tensor, output_size: Any) -> tuple[Tensor, Tensor]:
    """`F.adaptive_max_pool1d` and the positions of the maxima."""
    return adaptive_max_pool1d_with_indices(input, output_size)


def constant_pad_nd(input: Tensor, pad: Any, value: float = 0) -> Tensor:
    """`F.pad` with a constant: (before, after) of each dimension, the last one first."""
    return neural.pad(input, pad, "constant", value)


def kl_div(input: Tensor, target: Tensor, reduction: int = 1, *, log_target: bool = False) -> Tensor:
    """`F.kl_div`; reduction by number: 0 none, 1 mean, 2 sum."""
    return losses.kl_div(input, target, reduction=_named("kl_div", reduction, _REDUCTIONS), log_target=log_target)


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: int = 1,
) -> Tensor:
    """`F.binary_cross_entropy_with_logits`; reduction by number: 0 none, 1 mean, 2 sum."""
    name = _named("binary_cross_entropy_with_logits", reduction, _REDUCTIONS)
    return losses.binary_cross_entropy_with_logits(input, target, weight, reduction=name, pos_weight=pos_weight)


def affine_grid_generator(theta: Tensor, size: Any, align_corners: bool) -> Tensor:
    """`F.affine_grid`."""
    return grids.affine_grid(theta, size, align_corners)


def grid_sampler(
    input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    """`F.grid_sample`; modes by number: bilinear, nearest, bicubic; zeros, border, reflection."""
    mode = _named("grid_sampler", interpolation_mode, _MODES)
    return grids.grid_sample(input, grid, mode, _named("grid_sampler", padding_mode, _EDGES), align_corners)


def _named(where: str, number: int, names: tuple[str, ...]) -> str:
    if number not in range(len(names)):
        meant = ", ".join(f"{i} for {name!r}" for i, name in enumerate(names))
        raise ValueError(f"{where}: expected {meant}, got {number!r}")
    return names[number]
