"""Instance normalization: each channel of each sample by itself."""

from __future__ import annotations

from typing import Any

from resilin.core.tensor import Tensor
from resilin.nn import functional as F
from resilin.nn.modules.normalization import NormWithStatistics


class _InstanceNorm(NormWithStatistics):
    """(x - mean) / sqrt(var + eps) * weight + bias, each channel of each sample by its own statistics.

    affine: with weight (starts 1) and, unless bias=False, bias (starts 0).
    track_running_stats: outside of training, running statistics are used instead; their names, start values and
    momentum are those of batch normalization.
    """

    _dims: tuple[int, int]  # dimensions of an input without and with a batch

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        alone, batched = self._dims
        if input.dim() not in self._dims:
            raise ValueError(f"expected {alone}D or {batched}D input (got {input.dim()}D input)")
        if input.shape[-batched + 1] != self.num_features and self._needs_features():
            raise ValueError(
                f"expected input's size at dim={input.dim() - alone} to match num_features "
                f"({self.num_features}), but got: {input.shape[-batched + 1]}."
            )
        if input.dim() == alone:
            result: Tensor = self._normalize(input.unsqueeze(0)).squeeze(0)
            return result
        return self._normalize(input)

    def _needs_features(self) -> bool:
        return self.weight is not None or self.running_mean is not None

    def _normalize(self, input: Tensor) -> Tensor:
        return F.instance_norm(
            input,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training or not self.track_running_stats,
            self.momentum if self.momentum is not None else 0.0,
            self.eps,
        )


class InstanceNorm1d(_InstanceNorm):
    __doc__ = "Instance normalization of (N, C, L) or (C, L).\n\n    " + str(_InstanceNorm.__doc__)
    _dims = (2, 3)


class InstanceNorm2d(_InstanceNorm):
    __doc__ = "Instance normalization of (N, C, H, W) or (C, H, W).\n\n    " + str(_InstanceNorm.__doc__)
    _dims = (3, 4)


class InstanceNorm3d(_InstanceNorm):
    __doc__ = "Instance normalization of (N, C, D, H, W) or (C, D, H, W).\n\n    " + str(_InstanceNorm.__doc__)
    _dims = (4, 5)
