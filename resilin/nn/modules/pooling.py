"""Pooling."""

from __future__ import annotations

from typing import Any

from resilin.core.tensor import Tensor
from resilin.errors import UsageError
from resilin.nn import functional as F
from resilin.nn.modules.module import Module

_Single = int | tuple[int]
_Pair = int | tuple[int, int]
_Triple = int | tuple[int, int, int]


class _MaxPool(Module):
    """The options of maximum pooling."""

    _function: Any = None

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
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
        pool = type(self)._function
        return pool(
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices
        )

    def extra_repr(self) -> str:
        """As in PyTorch."""
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, "
            f"dilation={self.dilation}, ceil_mode={self.ceil_mode}"
        )


class _AvgPoolNd(Module):
    """What pooling by the mean has in common, by PyTorch's name."""

    def extra_repr(self) -> str:
        """As in PyTorch."""
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class _AvgPool(_AvgPoolNd):
    """The options of mean pooling in two and three dimensions."""

    _function: Any = None

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
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
        pool = type(self)._function
        window = (self.kernel_size, self.stride, self.padding)
        out: Tensor = pool(input, *window, self.ceil_mode, self.count_include_pad, self.divisor_override)
        return out


class _Adaptive(Module):
    """Pooling to a given size."""

    _function: Any = None

    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, input: Tensor) -> Any:
        """See the class."""
        pool = type(self)._function
        return pool(input, self.output_size)

    def extra_repr(self) -> str:
        """As in PyTorch."""
        return f"output_size={self.output_size}"


class _AdaptiveAvgPoolNd(_Adaptive):
    """Mean pooling to a given size."""


class _AdaptiveMax(_Adaptive):
    """Maximum pooling to a given size."""

    def __init__(self, output_size: Any, return_indices: bool = False) -> None:
        super().__init__(output_size)
        self.return_indices = return_indices

    def forward(self, input: Tensor) -> Any:
        """See the class."""
        pool = type(self)._function
        return pool(input, self.output_size, self.return_indices)


class _LPPool(Module):
    """The options of norm pooling."""

    _function: Any = None

    def __init__(self, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False) -> None:
        super().__init__()
        self.norm_type = norm_type
        self.kernel_size = kernel_size
        self.stride = stride
        self.ceil_mode = ceil_mode

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        pool = type(self)._function
        out: Tensor = pool(input, float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode)
        return out

    def extra_repr(self) -> str:
        """As in PyTorch."""
        return (
            f"norm_type={self.norm_type}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"ceil_mode={self.ceil_mode}"
        )


class _Unpool(Module):
    """The options of unpooling."""

    _axes = 0
    _function: Any = None

    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0) -> None:
        super().__init__()
        self.kernel_size = self._lengths(kernel_size)
        self.stride = self._lengths(kernel_size if stride is None else stride)
        self.padding = self._lengths(padding)

    def _lengths(self, value: Any) -> tuple[int, ...]:
        return (value,) * self._axes if hasattr(value, "__index__") else tuple(value)

    def forward(self, input: Tensor, indices: Tensor, output_size: Any = None) -> Tensor:
        """See the class."""
        unpool = type(self)._function
        out: Tensor = unpool(input, indices, self.kernel_size, self.stride, self.padding, output_size)
        return out

    def extra_repr(self) -> str:
        """As in PyTorch."""
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class _Fractional(Module):
    """The options of fractional pooling."""

    _function: Any = None

    def __init__(
        self,
        kernel_size: Any,
        output_size: Any = None,
        output_ratio: Any = None,
        return_indices: bool = False,
        _random_samples: Any = None,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.return_indices = return_indices
        self.output_size = output_size
        self.output_ratio = output_ratio
        self.register_buffer("_random_samples", _random_samples)
        if (output_size is None) == (output_ratio is None):
            raise UsageError(
                f"{type(self).__name__}: give either output_size or output_ratio, got {output_size!r} and "
                f"{output_ratio!r}"
            )
        ratios = output_ratio if isinstance(output_ratio, tuple | list) else (output_ratio,)
        if output_ratio is not None and not all(0 < ratio < 1 for ratio in ratios):
            raise UsageError(f"{type(self).__name__}: output_ratio must be between 0 and 1, got {output_ratio!r}")

    def forward(self, input: Tensor) -> Any:
        """See the class."""
        pool = type(self)._function
        wanted = (self.output_size, self.output_ratio, self.return_indices, self._random_samples)
        return pool(input, self.kernel_size, *wanted)


# PyTorch's names, by which programs know the classes
_MaxPoolNd, _MaxUnpoolNd, _LPPoolNd, _AdaptiveMaxPoolNd = _MaxPool, _Unpool, _LPPool, _AdaptiveMax


class MaxPool1d(_MaxPool):
    """The largest element of each window. Shape: (N, C, L) or (C, L); padding counts as minus infinity.

    stride: default the window's size. ceil_mode: windows may start inside and end outside. return_indices: also give
    the place of each maximum in its sequence.
    """

    _function = staticmethod(F.max_pool1d)


class MaxPool2d(_MaxPool):
    """The largest element of each window. Shape: (N, C, H, W) or (C, H, W); padding counts as minus infinity.

    stride: default the window's size. ceil_mode: windows may start inside and end outside. return_indices: also give
    the place of each maximum in its H*W plane.
    """

    _function = staticmethod(F.max_pool2d)


class MaxPool3d(_MaxPool):
    """The largest element of each window. Shape: (N, C, D, H, W) or (C, D, H, W); padding counts as minus infinity.

    stride: default the window's size. ceil_mode: windows may start inside and end outside. return_indices: also give
    the place of each maximum in its D*H*W volume.
    """

    _function = staticmethod(F.max_pool3d)


class AvgPool1d(_AvgPoolNd):
    """The mean of each window. Shape: (N, C, L) or (C, L); padding counts as zeros (see count_include_pad)."""

    def __init__(
        self,
        kernel_size: _Single,
        stride: _Single | None = None,
        padding: _Single = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__()
        self.kernel_size = (kernel_size,) if hasattr(kernel_size, "__index__") else kernel_size
        chosen = kernel_size if stride is None else stride
        self.stride = (chosen,) if hasattr(chosen, "__index__") else chosen
        self.padding = (padding,) if hasattr(padding, "__index__") else padding
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        window = (self.kernel_size, self.stride, self.padding)
        return F.avg_pool1d(input, *window, self.ceil_mode, self.count_include_pad)


class AvgPool2d(_AvgPool):
    """The mean of each window. Shape: (N, C, H, W) or (C, H, W); padding counts as zeros.

    count_include_pad: whether padding counts in the divisor. divisor_override: a divisor for all windows.
    """

    _function = staticmethod(F.avg_pool2d)


class AvgPool3d(_AvgPool):
    """The mean of each window. Shape: (N, C, D, H, W) or (C, D, H, W); padding counts as zeros.

    count_include_pad: whether padding counts in the divisor. divisor_override: a divisor for all windows.
    """

    _function = staticmethod(F.avg_pool3d)


class AdaptiveAvgPool1d(_AdaptiveAvgPoolNd):
    """Means of windows chosen so that the output has `output_size`."""

    _function = staticmethod(F.adaptive_avg_pool1d)


class AdaptiveAvgPool2d(_AdaptiveAvgPoolNd):
    """Means of windows chosen so that the output has `output_size` (None keeps a dimension)."""

    _function = staticmethod(F.adaptive_avg_pool2d)


class AdaptiveAvgPool3d(_AdaptiveAvgPoolNd):
    """Means of windows chosen so that the output has `output_size` (None keeps a dimension)."""

    _function = staticmethod(F.adaptive_avg_pool3d)


class AdaptiveMaxPool1d(_AdaptiveMax):
    """Maxima of windows chosen so that the output has `output_size`; with `return_indices` also where they lie."""

    _function = staticmethod(F.adaptive_max_pool1d)


class AdaptiveMaxPool2d(_AdaptiveMax):
    """Maxima of windows chosen so that the output has `output_size`; with `return_indices` also where they lie."""

    _function = staticmethod(F.adaptive_max_pool2d)


class AdaptiveMaxPool3d(_AdaptiveMax):
    """Maxima of windows chosen so that the output has `output_size`; with `return_indices` also where they lie."""

    _function = staticmethod(F.adaptive_max_pool3d)


class LPPool1d(_LPPool):
    """The `norm_type`-norm of each window. Shape: (N, C, L) or (C, L)."""

    _function = staticmethod(F.lp_pool1d)


class LPPool2d(_LPPool):
    """The `norm_type`-norm of each window. Shape: (N, C, H, W) or (C, H, W)."""

    _function = staticmethod(F.lp_pool2d)


class LPPool3d(_LPPool):
    """The `norm_type`-norm of each window. Shape: (N, C, D, H, W) or (C, D, H, W)."""

    _function = staticmethod(F.lp_pool3d)


class MaxUnpool1d(_Unpool):
    """Puts values where MaxPool1d, with `return_indices`, took them from; zeros elsewhere."""

    _axes = 1
    _function = staticmethod(F.max_unpool1d)


class MaxUnpool2d(_Unpool):
    """Puts values where MaxPool2d, with `return_indices`, took them from; zeros elsewhere."""

    _axes = 2
    _function = staticmethod(F.max_unpool2d)


class MaxUnpool3d(_Unpool):
    """Puts values where MaxPool3d, with `return_indices`, took them from; zeros elsewhere."""

    _axes = 3
    _function = staticmethod(F.max_unpool3d)


class FractionalMaxPool2d(_Fractional):
    """Maxima of windows that start at random distances; give `output_size` or `output_ratio`."""

    _function = staticmethod(F.fractional_max_pool2d)


class FractionalMaxPool3d(_Fractional):
    """Maxima of windows that start at random distances; give `output_size` or `output_ratio`."""

    _function = staticmethod(F.fractional_max_pool3d)
