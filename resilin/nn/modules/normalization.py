"""Batch, layer, group and root-mean-square normalization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from resilin.core.api.nn.normalizing import count_batch, sizes_of
from resilin.core.dtype import int64
from resilin.core.ops import creation
from resilin.core.tensor import Parameter, Tensor
from resilin.errors import UsageError
from resilin.nn import functional as F
from resilin.nn import init
from resilin.nn.modules.module import Module

if TYPE_CHECKING:  # what the table of places adds; written by scripts/type_stubs.py
    from resilin.nn import CrossMapLRN2d as CrossMapLRN2d
    from resilin.nn import LocalResponseNorm as LocalResponseNorm


class NormWithStatistics(Module):
    """Parameters and buffers of batch and instance normalization; `weight`, `bias` and the buffers may be None.

    Buffers: running_mean (0), running_var (1, unbiased), num_batches_tracked (int64), which states of before version 2,
    and plain dicts, may lack.
    """

    _version = 2

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.affine = affine
        self.track_running_stats = track_running_stats
        for name, wanted in (("weight", affine), ("bias", affine and bias)):
            self.register_parameter(
                name, Parameter(creation.empty(num_features, device=device, dtype=dtype)) if wanted else None
            )
        tracked = track_running_stats
        self.register_buffer(
            "running_mean", creation.zeros(num_features, device=device, dtype=dtype) if tracked else None
        )
        self.register_buffer(
            "running_var", creation.ones(num_features, device=device, dtype=dtype) if tracked else None
        )
        self.register_buffer("num_batches_tracked", creation.zeros((), device=device, dtype=int64) if tracked else None)
        self.reset_parameters()

    def reset_running_stats(self) -> None:
        """Forget the running statistics."""
        if self.track_running_stats:
            self.running_mean.zero_()
            self.running_var.fill_(1)
            self.num_batches_tracked.zero_()

    def reset_parameters(self) -> None:
        """Weight 1, bias 0, no statistics."""
        self.reset_running_stats()
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, metadata: Any, *args: Any) -> None:
        counter = f"{prefix}num_batches_tracked"
        if self.track_running_stats and metadata.get("version", 1) < 2 and counter not in state_dict:
            kept = self.num_batches_tracked
            state_dict[counter] = creation.zeros((), dtype=int64) if kept is None else kept
        super()._load_from_state_dict(state_dict, prefix, metadata, *args)

    def extra_repr(self) -> str:
        """As in PyTorch."""
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"bias={self.bias is not None}, track_running_stats={self.track_running_stats}"
        )


class _BatchNorm(NormWithStatistics):
    """(x - mean) / sqrt(var + eps) * weight + bias per channel; statistics of the batch in training, running ones else.

    momentum: share of the new statistics in the running ones; None: their plain average over all batches.
    affine: with weight (starts 1) and, unless bias=False, bias (starts 0).
    track_running_stats=False: always the batch's statistics.
    """

    _dims: tuple[int, ...]

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        self._check_dims(input)
        momentum = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats:
            count_batch(self.num_batches_tracked)
            if self.momentum is None:
                momentum = 1.0 / float(self.num_batches_tracked)
        tracking = not self.training or self.track_running_stats
        return self._normalize(
            input,
            self.running_mean if tracking else None,
            self.running_var if tracking else None,
            self.weight,
            self.bias,
            self.training or self.running_mean is None,
            momentum,
            self.eps,
        )

    def _check_dims(self, input: Tensor) -> None:
        if input.dim() not in self._dims:
            expected = " or ".join(f"{dim}D" for dim in self._dims)
            raise UsageError(f"{type(self).__name__}: expected {expected} input, got shape {tuple(input.shape)}")

    def _normalize(self, input: Tensor, *args: Any) -> Tensor:
        return F.batch_norm(input, *args)


class BatchNorm1d(_BatchNorm):
    __doc__ = "Batch normalization of (N, C) or (N, C, L).\n\n    " + str(_BatchNorm.__doc__)
    _dims = (2, 3)


class BatchNorm2d(_BatchNorm):
    __doc__ = "Batch normalization of (N, C, H, W).\n\n    " + str(_BatchNorm.__doc__)
    _dims = (4,)


class BatchNorm3d(_BatchNorm):
    __doc__ = "Batch normalization of (N, C, D, H, W).\n\n    " + str(_BatchNorm.__doc__)
    _dims = (5,)


class LayerNorm(Module):
    """(x - mean) / sqrt(var + eps) * weight + bias over the last dimensions, whose shape is `normalized_shape`.

    Biased variance. weight starts 1, bias 0; elementwise_affine=False: neither, bias=False: no bias.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = sizes_of(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        for name, wanted in (("weight", elementwise_affine), ("bias", elementwise_affine and bias)):
            value = Parameter(creation.empty(self.normalized_shape, device=device, dtype=dtype)) if wanted else None
            self.register_parameter(name, value)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weight 1, bias 0."""
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """As in PyTorch."""
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}, "
            f"bias={self.bias is not None}"
        )


class GroupNorm(Module):
    """Groups of channels of each sample normalized: (x - mean) / sqrt(var + eps) * weight + bias.

    Shape: (N, num_channels, ...). Biased variance; weight and bias (num_channels,) start 1 and 0.
    affine=False: neither, bias=False: no bias.
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if num_groups < 1 or num_channels % num_groups:
            raise UsageError(f"GroupNorm: num_channels={num_channels} must be a multiple of num_groups={num_groups}")
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.affine = affine
        for name, wanted in (("weight", affine), ("bias", affine and bias)):
            self.register_parameter(
                name, Parameter(creation.empty(num_channels, device=device, dtype=dtype)) if wanted else None
            )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weight 1, bias 0."""
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """As in PyTorch."""
        return (
            f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, "
            f"bias={self.bias is not None}"
        )


class RMSNorm(Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last dimensions, whose shape is `normalized_shape`.

    eps None: the smallest number that changes 1 in the input's dtype. weight starts 1.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = sizes_of(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        value = (
            Parameter(creation.empty(self.normalized_shape, device=device, dtype=dtype)) if elementwise_affine else None
        )
        self.register_parameter("weight", value)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weight 1."""
        if self.weight is not None:
            init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        """As in PyTorch."""
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
