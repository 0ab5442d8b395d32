"""Pooling."""

from __future__ import annotations

from typing import Any

from resilin.core.tensor import Tensor
from resilin.nn import functional as F
from resilin.nn.modules.module import Module

_Pair = int | tuple[int, int]


class MaxPool2d(Module):
    """The largest element of each window. Shape: (N, C, H, W) or (C, H, W); padding counts as minus infinity.

    stride: default the window's size. ceil_mode: windows may start inside and end outside. return_indices: also give
    the place of each maximum in its H*W plane.
    """

    def __init__(
        self,
        kernel_size: _Pair,
        stride: _Pair | None = None,
        padding: _Pair = 0,
        dilation: _Pair = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.dilation = dilation
        self.return_indices = return_indices
        self.ceil_mode = ceil_mode

    def forward(self, input: Tensor) -> Any:
        """See the class."""
        return F.max_pool2d(
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices
        )

    def extra_repr(self) -> str:
        """As in PyTorch."""
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, "
            f"dilation={self.dilation}, ceil_mode={self.ceil_mode}"
        )


class AvgPool2d(Module):
    """The mean of each window. Shape: (N, C, H, W) or (C, H, W); padding counts as zeros (see count_include_pad)."""

    def __init__(
        self,
        kernel_size: _Pair,
        stride: _Pair | None = None,
        padding: _Pair = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad
        self.divisor_override = divisor_override

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        return F.avg_pool2d(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
            self.divisor_override,
        )

    def extra_repr(self) -> str:
        """As in PyTorch."""
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AdaptiveAvgPool2d(Module):
    """Means of windows chosen so that the output has `output_size` (None keeps a dimension)."""

    def __init__(self, output_size: int | tuple[int | None, int | None] | None) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        return F.adaptive_avg_pool2d(input, self.output_size)

    def extra_repr(self) -> str:
        """As in PyTorch."""
        return f"output_size={self.output_size}"
