"""Convolution."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from resilin.core.api.mathematics.windows import per_axis
from resilin.core.ops import creation
from resilin.core.tensor import Parameter, Tensor
from resilin.errors import UsageError
from resilin.nn import functional as F
from resilin.nn import init
from resilin.nn.modules.module import Module

if TYPE_CHECKING:  # what the table of places adds; written by scripts/type_stubs.py
    from resilin.nn import LazyConv1d as LazyConv1d
    from resilin.nn import LazyConv2d as LazyConv2d
    from resilin.nn import LazyConv3d as LazyConv3d
    from resilin.nn import LazyConvTranspose1d as LazyConvTranspose1d
    from resilin.nn import LazyConvTranspose2d as LazyConvTranspose2d
    from resilin.nn import LazyConvTranspose3d as LazyConvTranspose3d

Single = int | tuple[int]
Pair = int | tuple[int, int]
Triple = int | tuple[int, int, int]

_COUNTS = {1: "one in a tuple", 2: "two", 3: "three"}


class Convolution(Module):
    """Options, parameters and text of all convolutions; `_axes` is the number of spatial dimensions."""

    _axes = 0
    _function: Any = None

    def _set(self, channels: tuple[int, int], window: tuple[Any, ...], groups: int, padding_mode: str) -> None:
        """Keep the options; `window` is kernel size, stride, padding, dilation and output padding."""
        name = type(self).__name__
        kernel_size, stride, padding, dilation, output_padding = window
        _check_options(name, *channels, groups, padding, padding_mode)
        self.in_channels, self.out_channels = channels
        self.kernel_size = self._lengths("kernel_size", kernel_size)
        self.stride = self._lengths("stride", stride)
        self.padding = padding if isinstance(padding, str) else self._lengths("padding", padding)
        self.dilation = self._lengths("dilation", dilation)
        self.output_padding = self._lengths("output_padding", output_padding)
        self.groups = groups
        self.padding_mode = padding_mode
        if self.padding == "same" and set(self.stride) != {1}:
            raise UsageError(f"{name}: padding='same' needs stride 1, got {self.stride}")

    def _lengths(self, option: str, value: Any) -> tuple[int, ...]:
        """`value` for every spatial dimension."""
        name = type(self).__name__
        if isinstance(value, tuple | list) and len(value) != self._axes:
            raise UsageError(f"{name}: {option}: expected one integer or {_COUNTS[self._axes]}, got {value!r}")
        return per_axis(name, option, value, self._axes)

    def _make_parameters(self, channels: tuple[int, int], bias: bool, device: Any, dtype: Any) -> None:
        self.weight = Parameter(creation.empty(*channels, *self.kernel_size, device=device, dtype=dtype))
        self.register_parameter(
            "bias", Parameter(creation.empty(self.out_channels, device=device, dtype=dtype)) if bias else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the start values anew."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            fan_in = math.prod(self.weight.shape[1:])
            bound = 1 / math.sqrt(fan_in) if fan_in else 0
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            input = F.pad(input, _pads(self), self.padding_mode)
            padding = 0
        convolve = type(self)._function
        out: Tensor = convolve(input, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)
        return out

    def extra_repr(self) -> str:
        """As in PyTorch."""
        return _describe(self)


class Transposed(Convolution):
    """What transposed convolutions have in common."""

    def forward(self, input: Tensor, output_size: Any = None) -> Tensor:
        """See the class; `output_size` chooses the output padding anew."""
        extra = self.output_padding if output_size is None else self._output_padding(input, output_size)
        convolve = type(self)._function
        out: Tensor = convolve(
            input, self.weight, self.bias, self.stride, self.padding, extra, self.groups, self.dilation
        )
        return out

    def _output_padding(self, input: Tensor, output_size: Any) -> tuple[int, ...]:
        """What must be added to the smallest output for `output_size` (its last dimensions count)."""
        name, n = type(self).__name__, self._axes
        if len(output_size) not in (n, input.dim()):
            raise ValueError(f"{name}: output_size must have {n} or {input.dim()} elements, got {tuple(output_size)}")
        padding: Any = self.padding
        least = [
            (size - 1) * s - 2 * p + d * (k - 1) + 1
            for size, s, p, d, k in zip(
                input.shape[-n:], self.stride, padding, self.dilation, self.kernel_size, strict=True
            )
        ]
        extra = tuple(wanted - smallest for wanted, smallest in zip(output_size[-n:], least, strict=True))
        if any(not 0 <= more < s for more, s in zip(extra, self.stride, strict=True)):
            most = [smallest + s - 1 for smallest, s in zip(least, self.stride, strict=True)]
            raise ValueError(
                f"{name}: requested an output size of {tuple(output_size)}, but valid sizes range from {least} to "
                f"{most} (for an input of {tuple(input.shape[-n:])})"
            )
        return extra


_ConvNd = Convolution  # PyTorch's names, by which programs know the classes
_ConvTransposeNd = Transposed


class Conv1d(Convolution):
    """Cross-correlation of sequences with learned filters.

    Shape: (N, in_channels, L) or (in_channels, L) -> (N, out_channels, L'), with
           L' = floor((L + 2*padding - dilation*(kernel_size - 1) - 1) / stride + 1).
    padding: elements on each side, "valid" (none) or "same" (the output is as long as the input; needs stride 1).
    padding_mode: what they hold: "zeros", or as in F.pad "reflect", "replicate", "circular".
    groups:  input and output channels are cut into this many groups that do not see one another.
    weight (out_channels, in_channels/groups, K) and bias (out_channels,) start uniform in +-1/sqrt(fan in).
    """

    _axes = 1
    _function = staticmethod(F.conv1d)

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Single,
        stride: Single = 1,
        padding: Single | str = 0,
        dilation: Single = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        window = (kernel_size, stride, padding, dilation, 0)
        self._set((in_channels, out_channels), window, groups, padding_mode)
        self._make_parameters((out_channels, in_channels // groups), bias, device, dtype)


class Conv2d(Convolution):
    """Cross-correlation of images with learned filters.

    Shape: (N, in_channels, H, W) or (in_channels, H, W) -> (N, out_channels, H', W'), with
           H' = floor((H + 2*padding - dilation*(kernel_size - 1) - 1) / stride + 1).
    padding: elements on each side, "valid" (none) or "same" (the output is as long as the input; needs stride 1).
    padding_mode: what they hold: "zeros", or as in F.pad "reflect", "replicate", "circular".
    groups:  input and output channels are cut into this many groups that do not see one another.
    weight (out_channels, in_channels/groups, kH, kW) and bias (out_channels,) start uniform in +-1/sqrt(fan in).
    """

    _axes = 2
    _function = staticmethod(F.conv2d)

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Pair,
        stride: Pair = 1,
        padding: Pair | str = 0,
        dilation: Pair = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        window = (kernel_size, stride, padding, dilation, 0)
        self._set((in_channels, out_channels), window, groups, padding_mode)
        self._make_parameters((out_channels, in_channels // groups), bias, device, dtype)


class Conv3d(Convolution):
    """Cross-correlation of volumes with learned filters.

    Shape: (N, in_channels, D, H, W) or (in_channels, D, H, W) -> (N, out_channels, D', H', W'), with
           D' = floor((D + 2*padding - dilation*(kernel_size - 1) - 1) / stride + 1).
    padding: elements on each side, "valid" (none) or "same" (the output is as long as the input; needs stride 1).
    padding_mode: what they hold: "zeros", or as in F.pad "reflect", "replicate", "circular".
    groups:  input and output channels are cut into this many groups that do not see one another.
    weight (out_channels, in_channels/groups, kD, kH, kW) and bias (out_channels,) start uniform in +-1/sqrt(fan in).
    """

    _axes = 3
    _function = staticmethod(F.conv3d)

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Triple,
        stride: Triple = 1,
        padding: Triple | str = 0,
        dilation: Triple = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        window = (kernel_size, stride, padding, dilation, 0)
        self._set((in_channels, out_channels), window, groups, padding_mode)
        self._make_parameters((out_channels, in_channels // groups), bias, device, dtype)


class ConvTranspose1d(Transposed):
    """Transposed convolution of sequences: the gradient of Conv1d's input, so it makes them larger.

    Shape: (N, in_channels, L) or (in_channels, L) -> (N, out_channels, L'), with
           L' = (L - 1)*stride - 2*padding + dilation*(kernel_size - 1) + output_padding + 1.
    weight (in_channels, out_channels/groups, K) and bias (out_channels,) start uniform in
    +-1/sqrt(out_channels/groups * kernel elements). padding_mode can only be "zeros".
    """

    _axes = 1
    _function = staticmethod(F.conv_transpose1d)

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Single,
        stride: Single = 1,
        padding: Single = 0,
        output_padding: Single = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Single = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if padding_mode != "zeros":
            raise UsageError(f"ConvTranspose1d: padding_mode can only be 'zeros', got {padding_mode!r}")
        window = (kernel_size, stride, padding, dilation, output_padding)
        self._set((in_channels, out_channels), window, groups, padding_mode)
        self._make_parameters((in_channels, out_channels // groups), bias, device, dtype)


class ConvTranspose2d(Transposed):
    """Transposed convolution of images: the gradient of Conv2d's input, so it makes them larger.

    Shape: (N, in_channels, H, W) or (in_channels, H, W) -> (N, out_channels, H', W'), with
           H' = (H - 1)*stride - 2*padding + dilation*(kernel_size - 1) + output_padding + 1.
    weight (in_channels, out_channels/groups, kH, kW) and bias (out_channels,) start uniform in
    +-1/sqrt(out_channels/groups * kernel elements). padding_mode can only be "zeros".
    """

    _axes = 2
    _function = staticmethod(F.conv_transpose2d)

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Pair,
        stride: Pair = 1,
        padding: Pair = 0,
        output_padding: Pair = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Pair = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if padding_mode != "zeros":
            raise UsageError(f"ConvTranspose2d: padding_mode can only be 'zeros', got {padding_mode!r}")
        window = (kernel_size, stride, padding, dilation, output_padding)
        self._set((in_channels, out_channels), window, groups, padding_mode)
        self._make_parameters((in_channels, out_channels // groups), bias, device, dtype)


class ConvTranspose3d(Transposed):
    """Transposed convolution of volumes: the gradient of Conv3d's input, so it makes them larger.

    Shape: (N, in_channels, D, H, W) or (in_channels, D, H, W) -> (N, out_channels, D', H', W'), with
           D' = (D - 1)*stride - 2*padding + dilation*(kernel_size - 1) + output_padding + 1.
    weight (in_channels, out_channels/groups, kD, kH, kW) and bias (out_channels,) start uniform in
    +-1/sqrt(out_channels/groups * kernel elements). padding_mode can only be "zeros".
    """

    _axes = 3
    _function = staticmethod(F.conv_transpose3d)

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Triple,
        stride: Triple = 1,
        padding: Triple = 0,
        output_padding: Triple = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Triple = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if padding_mode != "zeros":
            raise UsageError(f"ConvTranspose3d: padding_mode can only be 'zeros', got {padding_mode!r}")
        window = (kernel_size, stride, padding, dilation, output_padding)
        self._set((in_channels, out_channels), window, groups, padding_mode)
        self._make_parameters((in_channels, out_channels // groups), bias, device, dtype)


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
    if conv.output_padding != (0,) * len(conv.kernel_size):
        text += f", output_padding={conv.output_padding}"
    if conv.groups != 1:
        text += f", groups={conv.groups}"
    if conv.bias is None:
        text += ", bias=False"
    return text if conv.padding_mode == "zeros" else f"{text}, padding_mode={conv.padding_mode}"
