"""Folds batch normalization into the layer before it, for inference."""

from __future__ import annotations

import copy
from typing import Any

from resilin.core.ops import creation
from resilin.core.tensor import Parameter, Tensor
from resilin.nn.modules.module import Module


def fuse_conv_bn_eval(conv: Any, bn: Any, transpose: bool = False) -> Module:
    """A copy of `conv` that computes what `bn(conv(x))` does, both in evaluation mode, with running statistics.

    transpose: `conv` is a transposed convolution. Raises: ValueError in training or without running statistics.
    """
    fused: Any = copy.deepcopy(_ready("fuse_conv_bn_eval", conv, bn))
    stats = (bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias)
    fused.weight, fused.bias = fuse_conv_bn_weights(fused.weight, fused.bias, *stats, transpose)
    return fused  # type: ignore[no-any-return]


def fuse_conv_bn_weights(
    conv_w: Tensor,
    conv_b: Tensor | None,
    bn_rm: Tensor,
    bn_rv: Tensor,
    bn_eps: float,
    bn_w: Tensor | None,
    bn_b: Tensor | None,
    transpose: bool = False,
) -> tuple[Parameter, Parameter]:
    """Weight and bias of a convolution followed by a batch normalization with these statistics and parameters."""
    along = (1, -1) if transpose else (-1, 1)
    return _folded(conv_w, conv_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b, (*along, *(1,) * (conv_w.dim() - 2)))


def fuse_linear_bn_eval(linear: Any, bn: Any) -> Module:
    """A copy of `linear` that computes what `bn(linear(x))` does, both in evaluation mode.

    Raises: ValueError in training, without running statistics, or when their numbers of features differ.
    """
    fused: Any = copy.deepcopy(_ready("fuse_linear_bn_eval", linear, bn))
    if bn.num_features not in (1, linear.out_features):
        raise ValueError(
            f"fuse_linear_bn_eval: linear has {linear.out_features} outputs, bn {bn.num_features} features; "
            "they must be equal, or 1 feature"
        )
    stats = (bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias)
    fused.weight, fused.bias = fuse_linear_bn_weights(fused.weight, fused.bias, *stats)
    return fused  # type: ignore[no-any-return]


def fuse_linear_bn_weights(
    linear_w: Tensor,
    linear_b: Tensor | None,
    bn_rm: Tensor,
    bn_rv: Tensor,
    bn_eps: float,
    bn_w: Tensor | None,
    bn_b: Tensor | None,
) -> tuple[Parameter, Parameter]:
    """Weight and bias of a linear layer followed by a batch normalization with these statistics and parameters."""
    return _folded(linear_w, linear_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b, (-1, 1))


def _ready(where: str, layer: Module, bn: Any) -> Module:
    if layer.training or bn.training:
        raise ValueError(f"{where}: fusion is for inference only: call eval() on both modules first")
    if bn.running_mean is None or bn.running_var is None:
        raise ValueError(f"{where}: the batch normalization has no running statistics")
    return layer


def _folded(
    weight: Tensor, bias: Any, mean: Any, var: Any, eps: float, scale: Any, shift: Any, along: tuple[int, ...]
) -> tuple[Parameter, Parameter]:
    factor = (var + eps).rsqrt() if scale is None else scale * (var + eps).rsqrt()
    start = creation.zeros_like(mean) if bias is None else bias
    moved = (start - mean) * factor
    moved = moved if shift is None else moved + shift
    kept = True if bias is None else bias.requires_grad
    new_weight = (weight * factor.reshape(along)).detach().to(weight.dtype)
    return Parameter(new_weight, weight.requires_grad), Parameter(moved.detach().to(weight.dtype), kept)
