"""Layers whose number of input features or channels is that of their first input."""

from __future__ import annotations

from typing import Any

from resilin.core.dtype import int64
from resilin.core.ops import creation
from resilin.core.tensor import Tensor
from resilin.errors import UsageError
from resilin.nn.modules import conv, linear, normalization
from resilin.nn.modules import normalization_instance as instance
from resilin.nn.modules.lazy import LazyModuleMixin
from resilin.nn.parameter import UninitializedBuffer, UninitializedParameter


class _LazyLayer(LazyModuleMixin):
    """A layer that is made for no features at all, and initialized for those of its first input."""

    _option = ""  # the attribute with the number of features

    def _wait_for(self, names: tuple[str, ...], device: Any, dtype: Any) -> None:
        for name in names:
            setattr(self, name, UninitializedParameter(device=device, dtype=dtype))

    def reset_parameters(self) -> None:
        """Draw the start values anew, once the shapes are known."""
        if not self.has_uninitialized_params() and getattr(self, self._option):
            super().reset_parameters()  # type: ignore[misc]

    def initialize_parameters(self, input: Tensor) -> None:
        """Make the parameters for this input, or take the number of features from those that were loaded."""
        if not self.has_uninitialized_params():
            setattr(self, self._option, self._features_of_parameters())
            return
        features = self._features_of(input)
        for name, shape in self._shapes(features).items():
            if isinstance(tensor := getattr(self, name), UninitializedParameter | UninitializedBuffer):
                tensor.materialize(shape)
        setattr(self, self._option, features)
        self.reset_parameters()

    def _features_of(self, input: Tensor) -> int:
        raise NotImplementedError

    def _features_of_parameters(self) -> int:
        raise NotImplementedError

    def _shapes(self, features: int) -> dict[str, tuple[int, ...]]:
        raise NotImplementedError


class LazyLinear(_LazyLayer, linear.Linear):
    """Linear whose `in_features` is the last dimension of its first input."""

    cls_to_become = linear.Linear
    _option = "in_features"

    def __init__(self, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__(0, 0, False)
        self.out_features = out_features
        self._wait_for(("weight", "bias") if bias else ("weight",), device, dtype)

    def _features_of(self, input: Tensor) -> int:
        return int(input.shape[-1])

    def _features_of_parameters(self) -> int:
        return int(self.weight.shape[-1])

    def _shapes(self, features: int) -> dict[str, tuple[int, ...]]:
        return {"weight": (self.out_features, features), "bias": (self.out_features,)}


class _LazyConvolution(_LazyLayer, conv.Convolution):
    """What lazy convolutions have in common."""

    _option = "in_channels"

    def _begin(self, out_channels: int, bias: bool, device: Any, dtype: Any) -> None:
        if out_channels % self.groups:
            raise UsageError(
                f"{type(self).__name__}: out_channels={out_channels} must be a multiple of groups={self.groups}"
            )
        self.out_channels = out_channels
        self._wait_for(("weight", "bias") if bias else ("weight",), device, dtype)

    def _features_of(self, input: Tensor) -> int:
        alone, batched = self._axes + 1, self._axes + 2
        if input.dim() not in (alone, batched):
            raise RuntimeError(
                f"Expected {alone}D (unbatched) or {batched}D (batched) input to {type(self).__name__}, but got input "
                f"of size: {tuple(input.shape)}"
            )
        channels = int(input.shape[-self._axes - 1])
        if channels % self.groups:
            raise ValueError(
                f"{type(self).__name__}: in_channels must be divisible by groups, got {channels} and {self.groups}"
            )
        return channels

    def _features_of_parameters(self) -> int:
        if isinstance(self, conv.Transposed):
            return int(self.weight.shape[0])
        return int(self.weight.shape[1]) * self.groups

    def _shapes(self, features: int) -> dict[str, tuple[int, ...]]:
        channels = (self.out_channels, features // self.groups)
        if isinstance(self, conv.Transposed):
            channels = (features, self.out_channels // self.groups)
        return {"weight": (*channels, *self.kernel_size), "bias": (self.out_channels,)}


class LazyConv1d(_LazyConvolution, conv.Conv1d):
    """Conv1d whose `in_channels` is that of its first input."""

    cls_to_become = conv.Conv1d

    def __init__(
        self,
        out_channels: int,
        kernel_size: conv.Single,
        stride: conv.Single = 1,
        padding: conv.Single | str = 0,
        dilation: conv.Single = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(0, 0, kernel_size, stride, padding, dilation, groups, False, padding_mode)
        self._begin(out_channels, bias, device, dtype)


class LazyConv2d(_LazyConvolution, conv.Conv2d):
    """Conv2d whose `in_channels` is that of its first input."""

    cls_to_become = conv.Conv2d

    def __init__(
        self,
        out_channels: int,
        kernel_size: conv.Pair,
        stride: conv.Pair = 1,
        padding: conv.Pair | str = 0,
        dilation: conv.Pair = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(0, 0, kernel_size, stride, padding, dilation, groups, False, padding_mode)
        self._begin(out_channels, bias, device, dtype)


class LazyConv3d(_LazyConvolution, conv.Conv3d):
    """Conv3d whose `in_channels` is that of its first input."""

    cls_to_become = conv.Conv3d

    def __init__(
        self,
        out_channels: int,
        kernel_size: conv.Triple,
        stride: conv.Triple = 1,
        padding: conv.Triple | str = 0,
        dilation: conv.Triple = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(0, 0, kernel_size, stride, padding, dilation, groups, False, padding_mode)
        self._begin(out_channels, bias, device, dtype)


class LazyConvTranspose1d(_LazyConvolution, conv.ConvTranspose1d):
    """ConvTranspose1d whose `in_channels` is that of its first input."""

    cls_to_become = conv.ConvTranspose1d

    def __init__(
        self,
        out_channels: int,
        kernel_size: conv.Single,
        stride: conv.Single = 1,
        padding: conv.Single = 0,
        output_padding: conv.Single = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: conv.Single = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(0, 0, kernel_size, stride, padding, output_padding, groups, False, dilation, padding_mode)
        self._begin(out_channels, bias, device, dtype)


class LazyConvTranspose2d(_LazyConvolution, conv.ConvTranspose2d):
    """ConvTranspose2d whose `in_channels` is that of its first input."""

    cls_to_become = conv.ConvTranspose2d

    def __init__(
        self,
        out_channels: int,
        kernel_size: conv.Pair,
        stride: conv.Pair = 1,
        padding: conv.Pair = 0,
        output_padding: conv.Pair = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: conv.Pair = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(0, 0, kernel_size, stride, padding, output_padding, groups, False, dilation, padding_mode)
        self._begin(out_channels, bias, device, dtype)


class LazyConvTranspose3d(_LazyConvolution, conv.ConvTranspose3d):
    """ConvTranspose3d whose `in_channels` is that of its first input."""

    cls_to_become = conv.ConvTranspose3d

    def __init__(
        self,
        out_channels: int,
        kernel_size: conv.Triple,
        stride: conv.Triple = 1,
        padding: conv.Triple = 0,
        output_padding: conv.Triple = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: conv.Triple = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(0, 0, kernel_size, stride, padding, output_padding, groups, False, dilation, padding_mode)
        self._begin(out_channels, bias, device, dtype)


class _LazyNorm(_LazyLayer, normalization.NormWithStatistics):
    """What lazy normalizations have in common."""

    _option = "num_features"
    _dims: Any  # numbers of dimensions that an input may have

    def __init__(
        self,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(0, eps, momentum, False, False)
        self.affine = affine
        self.track_running_stats = track_running_stats
        if affine:
            self._wait_for(("weight", "bias") if bias else ("weight",), device, dtype)
        if track_running_stats:
            self.running_mean = UninitializedBuffer(device=device, dtype=dtype)
            self.running_var = UninitializedBuffer(device=device, dtype=dtype)
            self.num_batches_tracked = creation.zeros((), device=device, dtype=int64)

    def initialize_parameters(self, input: Tensor) -> None:
        """Make the parameters and statistics for this input."""
        if input.dim() not in self._dims:
            expected = " or ".join(f"{dim}D" for dim in self._dims)
            raise ValueError(f"{type(self).__name__}: expected {expected} input (got {input.dim()}D input)")
        if self.affine or self.track_running_stats:
            super().initialize_parameters(input)
        else:
            self.num_features = self._features_of(input)

    def _features_of(self, input: Tensor) -> int:
        return int(input.shape[1])

    def _features_of_parameters(self) -> int:
        known = self.weight if self.affine else self.running_mean
        return int(known.shape[0])

    def _shapes(self, features: int) -> dict[str, tuple[int, ...]]:
        return dict.fromkeys(("weight", "bias", "running_mean", "running_var"), (features,))


class _LazyInstanceNorm(_LazyNorm):
    def _features_of(self, input: Tensor) -> int:
        return int(input.shape[0 if input.dim() == min(self._dims) else 1])


class LazyBatchNorm1d(_LazyNorm, normalization.BatchNorm1d):
    """BatchNorm1d whose `num_features` is the number of channels of its first input."""

    cls_to_become = normalization.BatchNorm1d


class LazyBatchNorm2d(_LazyNorm, normalization.BatchNorm2d):
    """BatchNorm2d whose `num_features` is the number of channels of its first input."""

    cls_to_become = normalization.BatchNorm2d


class LazyBatchNorm3d(_LazyNorm, normalization.BatchNorm3d):
    """BatchNorm3d whose `num_features` is the number of channels of its first input."""

    cls_to_become = normalization.BatchNorm3d


class LazyInstanceNorm1d(_LazyInstanceNorm, instance.InstanceNorm1d):
    """InstanceNorm1d whose `num_features` is the number of channels of its first input."""

    cls_to_become = instance.InstanceNorm1d


class LazyInstanceNorm2d(_LazyInstanceNorm, instance.InstanceNorm2d):
    """InstanceNorm2d whose `num_features` is the number of channels of its first input."""

    cls_to_become = instance.InstanceNorm2d


class LazyInstanceNorm3d(_LazyInstanceNorm, instance.InstanceNorm3d):
    """InstanceNorm3d whose `num_features` is the number of channels of its first input."""

    cls_to_become = instance.InstanceNorm3d
