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
        _check_options("Conv2d", in_channels, out_channels, groups, padding, padding_mode)
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
        _reset(self)

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            input = F.pad(input, _pads(self), self.padding_mode)
            padding = 0
        return F.conv2d(input, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)

    def extra_repr(self) -> str:
        """As in PyTorch."""
        return _describe(self)


class Conv1d(Module):
    """Cross-correlation of sequences with learned filters.

    Shape: (N, in_channels, L) or (in_channels, L) -> (N, out_channels, L'), with
           L' = floor((L + 2*padding - dilation*(kernel_size - 1) - 1) / stride + 1).
    Arguments as in Conv2d. weight (out_channels, in_channels/groups, K) and bias (out_channels,) start uniform in
    +-1/sqrt(fan in).
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int],
        stride: int | tuple[int] = 1,
        padding: int | tuple[int] | str = 0,
        dilation: int | tuple[int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        _check_options("Conv1d", in_channels, out_channels, groups, padding, padding_mode)
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = _single(kernel_size)
        self.stride = _single(stride)
        self.padding = padding if isinstance(padding, str) else _single(padding)
        self.dilation = _single(dilation)
        self.groups = groups
        self.padding_mode = padding_mode
        if self.padding == "same" and self.stride != (1,):
            raise UsageError(f"Conv1d: padding='same' needs stride 1, got {self.stride}")
        self.weight = Parameter(empty((out_channels, in_channels // groups, *self.kernel_size), device, dtype))
        self.register_parameter("bias", Parameter(empty((out_channels,), device, dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the start values anew."""
        _reset(self)

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            input = F.pad(input, _pads(self), self.padding_mode)
            padding = 0
        return F.conv1d(input, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)

    def extra_repr(self) -> str:
        """As in PyTorch."""
        return _describe(self)


def _single(value: int | tuple[int]) -> tuple[int]:
    return (value,) if isinstance(value, int) else value


def _check_options(name: str, inputs: int, outputs: int, groups: int, padding: Any, padding_mode: str) -> None:
    if groups < 1 or inputs % groups or outputs % groups:
        raise UsageError(
            f"{name}: in_channels={inputs} and out_channels={outputs} must be multiples of groups={groups}"
        )
    if padding_mode not in ("zeros", "reflect", "replicate", "circular"):
        raise UsageError(
            f"{name}: padding_mode must be 'zeros', 'reflect', 'replicate' or 'circular', got {padding_mode!r}"
        )
    if isinstance(padding, str) and padding not in ("same", "valid"):
        raise UsageError(f"{name}: padding must be 'same', 'valid' or a number, got {padding!r}")


def _reset(conv: Any) -> None:
    init.kaiming_uniform_(conv.weight, a=math.sqrt(5))
    if conv.bias is not None:
        fan_in = conv.in_channels // conv.groups * math.prod(conv.kernel_size)
        bound = 1 / math.sqrt(fan_in) if fan_in else 0
        init.uniform_(conv.bias, -bound, bound)


def _pads(conv: Any) -> list[int]:
    """(before, after) of each dimension, the last one first, as F.pad takes them."""
    if isinstance(conv.padding, tuple):
        return [p for p in reversed(conv.padding) for _ in range(2)]
    pads = []
    for k, d in zip(reversed(conv.kernel_size), reversed(conv.dilation), strict=True):
        total = d * (k - 1) if conv.padding == "same" else 0
        pads += [total // 2, total - total // 2]
    return pads


def _describe(conv: Any) -> str:
    text = f"{conv.in_channels}, {conv.out_channels}, kernel_size={conv.kernel_size}, stride={conv.stride}"
    if conv.padding != (0,) * len(conv.kernel_size):
        text += f", padding={conv.padding}"
    if conv.dilation != (1,) * len(conv.kernel_size):
        text += f", dilation={conv.dilation}"
    if conv.groups != 1:
        text += f", groups={conv.groups}"
    if conv.bias is None:
        text += ", bias=False"
    return text if conv.padding_mode == "zeros" else f"{text}, padding_mode={conv.padding_mode}"
