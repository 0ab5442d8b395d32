"""Batch normalization whose running statistics are those of whole batches, whatever micro-batches they are cut into."""

from __future__ import annotations

from typing import Any

from resilin.core.api.nn.normalizing import count_batch
from resilin.core.autograd.grad_mode import no_grad
from resilin.core.ops import creation
from resilin.core.tensor import Tensor
from resilin.errors import UsageError
from resilin.nn import functional as F
from resilin.nn.modules.module import Module
from resilin.nn.modules.normalization import _BatchNorm
from resilin.nn.modules.normalization_sync import SyncBatchNorm
from resilin.pipeline.sync.checkpoint import is_recomputing


class DeferredBatchNorm(_BatchNorm):
    """Normalize each micro-batch by its own statistics, and update the running ones once for `chunks` micro-batches.

    The running statistics are then what plain batch normalization of the whole batch leaves. Shape: (N, C, ...). State
    dicts are those of `BatchNorm1d` to `3d`: what is collected of a batch that is not complete is not part of them.
    """

    batch_mean: Tensor
    batch_squares: Tensor

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True, chunks: int = 1
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats=True)
        self.chunks = chunks
        self._expected = chunks
        self.register_buffer("batch_mean", creation.zeros_like(self.running_mean), persistent=False)
        self.register_buffer("batch_squares", creation.zeros_like(self.running_var), persistent=False)
        self.counter = self.tracked = 0  # values of each channel, and micro-batches, in the two buffers

    def begin(self, micro_batches: int) -> None:
        """Expect a batch of as many micro-batches; what is left of one that was broken off is dropped."""
        self._expected = micro_batches
        self._drop_collected()

    def _drop_collected(self) -> None:
        with no_grad():
            self.batch_mean.zero_()
            self.batch_squares.zero_()
        self.counter = self.tracked = 0

    def _check_dims(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise UsageError(f"DeferredBatchNorm: expected at least 2D input, got shape {tuple(input.shape)}")

    @no_grad()
    def _track(self, input: Tensor) -> None:
        """Add a micro-batch: its mean and its sum of squared deviations, merged into those of the ones before it. Sums
        of plain squares would lose the variance of values that are large beside it."""
        dims = [0, *range(2, input.dim())]
        values = input.detach().to(self.batch_mean.dtype)
        size = values.numel() // values.shape[1]
        mean = values.mean(dims)
        squares = ((values - mean.reshape(1, -1, *[1] * (values.dim() - 2))) ** 2).sum(dims)
        total = self.counter + size
        shift = mean - self.batch_mean
        self.batch_mean += shift * (size / total)
        self.batch_squares += squares + shift**2 * (self.counter * size / total)
        self.counter, self.tracked = total, self.tracked + 1
        if self.tracked >= self._expected:
            self._commit()

    def _commit(self) -> None:
        count_batch(self.num_batches_tracked)
        share = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        variance = self.batch_squares / max(self.counter - 1, 1)
        self.running_mean.mul_(1 - share).add_(self.batch_mean * share)
        self.running_var.mul_(1 - share).add_(variance * share)
        self._drop_collected()

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        self._check_dims(input)
        if not self.training:
            return F.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
            )
        if not is_recomputing():
            self._track(input)
        return F.batch_norm(input, None, None, self.weight, self.bias, True, 0.0, self.eps)

    def extra_repr(self) -> str:
        """What batch normalization tells, and the micro-batches of a batch."""
        return f"{super().extra_repr()}, chunks={self.chunks}"

    @classmethod
    def convert_deferred_batch_norm(cls, module: Module, chunks: int = 1) -> Module:
        """Return `module` with batch normalization in it, however deep, made deferred, with the same parameters and
        buffers; itself where it is no batch normalization: what is in it is replaced in place.

        Left as it is: what keeps no running statistics, and `SyncBatchNorm`, whose batch is that of all ranks.
        """
        return cls._converted(module, chunks, {})

    @classmethod
    def _converted(cls, module: Module, chunks: int, made: dict[Module, Module]) -> Module:
        if module not in made:
            deferred = isinstance(module, DeferredBatchNorm) and module.chunks == chunks
            plain = isinstance(module, _BatchNorm) and not isinstance(module, SyncBatchNorm) and not deferred
            made[module] = cls._of(module, chunks) if plain and module.track_running_stats else module
            for name, child in list(module.named_children()):
                setattr(made[module], name, cls._converted(child, chunks, made))
        return made[module]

    @classmethod
    def _of(cls, norm: Any, chunks: int) -> DeferredBatchNorm:
        made = cls(norm.num_features, norm.eps, norm.momentum, norm.affine, chunks)
        made.weight, made.bias = norm.weight, norm.bias
        made.running_mean, made.running_var = norm.running_mean, norm.running_var
        made.num_batches_tracked = norm.num_batches_tracked
        made.batch_mean, made.batch_squares = (
            creation.zeros_like(each) for each in (norm.running_mean, norm.running_var)
        )
        return made.train(norm.training)
