"""Convolution."""

from __future__ import annotations

import math
from typing import Any

from resilin.core.tensor import Parameter, Tensor
from resilin.errors import UsageError
from resilin.nn import functional as F
from resilin.nn import init
from resilin.nn.modules.module import Module
from resilin.nn.modules.shared import empty, pair

_Pair = int | tuple[int, int]


class Conv2d(Module):
    """Cross-correlation of images with learned filters.

    Shape: (N, in_channels, H, W) or (in_channels, H, W) -> (N, out_channels, H', W'), with
           H' = floor((H + 2*padding - dilation*(kernel_size - 1) - 1) / stride + 1).
    padding: pixels on each side, "valid" (none) or "same" (H' = H; needs stride 1).
    padding_mode: what they hold: "zeros", or as in F.pad "reflect", "replicate", "circular".
    groups:  input and output channels are cut into this many groups that do not see one another.
    weight (out_channels, in_channels/groups, kH, kW) and bias (out_channels,) start uniform in +-1/sqrt(fan in).
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: _Pair,
        stride: _Pair = 1,
        padding: _Pair | str = 0,
        dilation: _Pair = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise UsageError(
                f"Conv2d: in_channels={in_channels} and out_channels={out_channels} must be multiples of "
                f"groups={groups}"
            )
        if padding_mode not in ("zeros", "reflect", "replicate", "circular"):
            raise UsageError(
                f"Conv2d: padding_mode must be 'zeros', 'reflect', 'replicate' or 'circular', got {padding_mode!r}"
            )
        if isinstance(padding, str) and padding not in ("same", "valid"):
            raise UsageError(f"Conv2d: padding must be 'same', 'valid' or a number, got {padding!r}")
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = pair(kernel_size, "Conv2d: kernel_size")
        self.stride = pair(stride, "Conv2d: stride")
        self.padding = padding if isinstance(padding, str) else pair(padding, "Conv2d: padding")
        self.dilation = pair(dilation, "Conv2d: dilation")
        self.groups = groups
        self.padding_mode = padding_mode
        if self.padding == "same" and self.stride != (1, 1):
            raise UsageError(f"Conv2d: padding='same' needs stride 1, got {self.stride}")
        shape = (out_channels, in_channels // groups, *self.kernel_size)
        self.weight = Parameter(empty(shape, device, dtype))
        self.register_parameter("bias", Parameter(empty((out_channels,), device, dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the start values anew."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            fan_in = self.in_channels // self.groups * math.prod(self.kernel_size)
            bound = 1 / math.sqrt(fan_in) if fan_in else 0
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            input = F.pad(input, self._pads(), self.padding_mode)
            padding = 0
        return F.conv2d(input, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)

    def _pads(self) -> list[int]:
        """(before, after) of the columns, then of the rows."""
        if isinstance(self.padding, tuple):
            return [self.padding[1], self.padding[1], self.padding[0], self.padding[0]]
        pads = []
        for k, d in zip(reversed(self.kernel_size), reversed(self.dilation), strict=True):
            total = d * (k - 1) if self.padding == "same" else 0
            pads += [total // 2, total - total // 2]
        return pads

    def extra_repr(self) -> str:
        """As in PyTorch."""
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        if self.padding != (0, 0):
            text += f", padding={self.padding}"
        if self.dilation != (1, 1):
            text += f", dilation={self.dilation}"
        if self.groups != 1:
            text += f", groups={self.groups}"
        if self.bias is None:
            text += ", bias=False"
        return text if self.padding_mode == "zeros" else f"{text}, padding_mode={self.padding_mode}"
