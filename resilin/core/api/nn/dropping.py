"""Dropout of torch.nn.functional beyond single elements: whole channels, and the forms that keep mean and variance."""

from __future__ import annotations

import math
import warnings
from typing import Any

from resilin.core.api.mathematics.half_precision import opened
from resilin.core.api.nn.neural import need_tensors
from resilin.core.kernels.common import compute_dtype
from resilin.core.ops import random
from resilin.core.state import inplace as inplace_ops
from resilin.core.tensor import Tensor, wrap

_SELU_LIMIT = 1.7580993408473766  # what selu tends to for large negative inputs, negated: its scale times its alpha


def dropout1d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Whole channels of (N, C, L) or (C, L) are 0 with probability `p`, the others divided by 1 - p."""
    _check("dropout1d", input, p)
    dim = input._array.ndim
    if dim not in (2, 3):
        raise RuntimeError(f"dropout1d: expected 2D or 3D input, got shape {tuple(input.shape)}")
    return _drop_channels(input, p, training, inplace, batched=dim == 3)


def dropout2d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Whole channels of (N, C, H, W) are 0 with probability `p`, the others divided by 1 - p.

    Other shapes are taken as (N, C, ...), with a warning, as in PyTorch; three dimensions are (N, C, L).
    """
    _check("dropout2d", input, p)
    if input._array.ndim != 4:
        meant = "dropout1d" if input._array.ndim == 3 else "dropout"
        _warn("dropout2d", input, f"expected (N, C, H, W); it is taken as (N, C, ...), for which {meant} is meant")
    return _drop_channels(input, p, training, inplace, batched=True)


def dropout3d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Whole channels of (N, C, D, H, W) or (C, D, H, W) are 0 with probability `p`, the others divided by 1 - p."""
    _check("dropout3d", input, p)
    if input._array.ndim not in (4, 5):
        _warn("dropout3d", input, "expected (N, C, D, H, W) or (C, D, H, W); it is taken as (N, C, ...)")
    return _drop_channels(input, p, training, inplace, batched=input._array.ndim != 4)


def feature_dropout(input: Tensor, p: float = 0.5, train: bool = True) -> Tensor:
    """Whole channels of (N, C, ...) are 0 with probability `p`, the others divided by 1 - p."""
    _check("feature_dropout", input, p)
    return _drop_channels(input, p, train, inplace=False, batched=True)


def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """Each element is set to selu's limit with probability `p`; scaled and shifted so that mean 0, variance 1 stay."""
    _check("alpha_dropout", input, p)
    return _drop_to_limit(input, input._array.shape, p, training, inplace)


def feature_alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """`alpha_dropout` of whole channels of (N, C, ...)."""
    _check("feature_alpha_dropout", input, p)
    if not training or p == 0:
        return input
    return _drop_to_limit(input, _channels("feature_alpha_dropout", input), p, training, inplace)


def _check(where: str, input: Tensor, p: float) -> None:
    need_tensors(where, input=input)
    random.check_probability(where, p)


def _warn(where: str, input: Tensor, what: str) -> None:
    warnings.warn(f"{where}: got input of shape {tuple(input.shape)}, {what}", UserWarning, stacklevel=3)


def _channels(where: str, input: Tensor) -> tuple[int, ...]:
    shape = tuple(input._array.shape)
    if len(shape) < 2:
        raise RuntimeError(f"{where}: feature dropout needs at least 2 dimensions, (N, C, ...), got shape {shape}")
    return (*shape[:2], *(1,) * (len(shape) - 2))


def _drop_channels(input: Tensor, p: float, training: bool, inplace: bool, *, batched: bool) -> Tensor:
    if not training or p == 0 or not input._array.size:
        return input
    shape = input._array.shape
    each = _channels("dropout", input) if batched else (shape[0], *(1,) * (len(shape) - 1))
    mask = random.draw_mask(each, p, input._dev).astype(compute_dtype(input._array.dtype), copy=False)
    return _finish(input, random.apply_mask.call(input, random.on_device(mask, input._dev)), inplace)


def _drop_to_limit(input: Tensor, each: tuple[int, ...], p: float, training: bool, inplace: bool) -> Tensor:
    if not training or p == 0 or not input._array.size:
        return input
    kept = random.draw_mask(each, p, input._dev) != 0
    scale = 0.0 if p == 1 else 1 / math.sqrt((_SELU_LIMIT**2 * p + 1) * (1 - p))  # p 1 gives zeros, as in PyTorch
    wide, narrow = opened(input)
    dtype = wide._array.dtype
    shift = ((kept - (1.0 - p)) * (scale * _SELU_LIMIT)).astype(dtype)
    place = input._dev.xp.asarray
    dropped: Any = random.apply_mask.call(wide, place((kept * scale).astype(dtype)))
    return _finish(input, narrow(dropped + wrap(place(shift), input._dev)), inplace)


def _finish(input: Tensor, out: Tensor, inplace: bool) -> Tensor:
    return inplace_ops.copy_(input, out) if inplace else out
