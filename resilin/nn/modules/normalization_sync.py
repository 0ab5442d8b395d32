"""Batch normalization with the statistics of all ranks of a process group."""

from __future__ import annotations

from typing import Any

from resilin._base import ranks
from resilin.core.api.nn.normalizing import normalize_over_ranks
from resilin.core.tensor import Tensor
from resilin.errors import UsageError
from resilin.nn.modules.module import Module
from resilin.nn.modules.normalization import _BatchNorm
from resilin.nn.parameter import is_lazy


class SyncBatchNorm(_BatchNorm):
    """`BatchNorm1d` to `3d` over the batches of all ranks of `process_group` (None: the default group) together.

    Shape: (N, C, ...); N may differ between ranks. In training all ranks must call it, and its backward, together:
           one collective of (2C + 1) numbers per rank each way. Derivatives of any order.
    Without a process group, with one rank, and outside of training it is plain batch normalization.
    Arguments, parameters and buffers are those of `BatchNorm2d`.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Any = None,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)
        self.process_group = process_group

    def _check_dims(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def _normalize(self, input: Tensor, *args: Any) -> Tensor:
        uses_batch = args[4]
        if not (self.training and uses_batch) or ranks.size(self.process_group) == 1:
            return super()._normalize(input, *args)
        return normalize_over_ranks(input, *args[:4], *args[5:], group=self.process_group)

    @classmethod
    def convert_sync_batchnorm(cls, module: Module, process_group: Any = None) -> Module:
        """`module` with every BatchNorm in it replaced by a SyncBatchNorm that has its parameters and buffers.

        UsageError for lazy ones that have not seen an input yet.
        """
        converted = module
        if isinstance(module, _BatchNorm) and not isinstance(module, SyncBatchNorm):
            if any(is_lazy(tensor) for tensor in (*module._parameters.values(), *module._buffers.values())):
                raise UsageError(f"convert_sync_batchnorm: {module} is uninitialized; call it with an input first")
            options = (module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats)
            converted = cls(*options, process_group, bias=module.bias is not None)
            converted._parameters.update(module._parameters)
            converted._buffers.update(module._buffers)
            converted.training = module.training
        for name, child in module.named_children():
            replaced = cls.convert_sync_batchnorm(child, process_group)
            if replaced is not child:
                converted._modules[name] = replaced
        return converted
