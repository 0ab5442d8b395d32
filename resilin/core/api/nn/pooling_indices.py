"""Maximum pooling that always gives the positions too: `F.max_pool2d_with_indices` and the others."""

from __future__ import annotations

from typing import Any

from resilin.core.api.nn import pooling
from resilin.core.tensor import Tensor

_Pooled = tuple[Tensor, Tensor]


def max_pool1d_with_indices(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> _Pooled:
    """`max_pool1d` and the positions of the maxima."""
    found: _Pooled = pooling.max_pool1d(input, kernel_size, stride, padding, dilation, ceil_mode, True)
    return found


def max_pool2d_with_indices(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> _Pooled:
    """`max_pool2d` and the positions of the maxima."""
    found: _Pooled = pooling.max_pool2d(input, kernel_size, stride, padding, dilation, ceil_mode, True)
    return found


def max_pool3d_with_indices(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> _Pooled:
    """`max_pool3d` and the positions of the maxima."""
    found: _Pooled = pooling.max_pool3d(input, kernel_size, stride, padding, dilation, ceil_mode, True)
    return found


def adaptive_max_pool1d_with_indices(input: Tensor, output_size: Any, return_indices: bool = False) -> _Pooled:
    """`adaptive_max_pool1d` and the positions of the maxima."""
    found: _Pooled = pooling.adaptive_max_pool1d(input, output_size, True)
    return found


def adaptive_max_pool2d_with_indices(input: Tensor, output_size: Any, return_indices: bool = False) -> _Pooled:
    """`adaptive_max_pool2d` and the positions of the maxima."""
    found: _Pooled = pooling.adaptive_max_pool2d(input, output_size, True)
    return found


def adaptive_max_pool3d_with_indices(input: Tensor, output_size: Any, return_indices: bool = False) -> _Pooled:
    """`adaptive_max_pool3d` and the positions of the maxima."""
    found: _Pooled = pooling.adaptive_max_pool3d(input, output_size, True)
    return found


def fractional_max_pool2d_with_indices(
    input: Tensor,
    kernel_size: Any,
    output_size: Any = None,
    output_ratio: Any = None,
    return_indices: bool = False,
    _random_samples: Tensor | None = None,
) -> _Pooled:
    """`fractional_max_pool2d` and the positions of the maxima."""
    found: _Pooled = pooling.fractional_max_pool2d(input, kernel_size, output_size, output_ratio, True, _random_samples)
    return found


def fractional_max_pool3d_with_indices(
    input: Tensor,
    kernel_size: Any,
    output_size: Any = None,
    output_ratio: Any = None,
    return_indices: bool = False,
    _random_samples: Tensor | None = None,
) -> _Pooled:
    """`fractional_max_pool3d` and the positions of the maxima."""
    found: _Pooled = pooling.fractional_max_pool3d(input, kernel_size, output_size, output_ratio, True, _random_samples)
    return found
