"""Losses as modules."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from resilin.core.api.nn.loss_reduction import check_reduction, old_reduction
from resilin.core.tensor import Tensor
from resilin.nn import functional as F
from resilin.nn.modules.module import Module

if TYPE_CHECKING:  # what the table of places adds; written by scripts/type_stubs.py
    from resilin.nn import CosineEmbeddingLoss as CosineEmbeddingLoss
    from resilin.nn import CTCLoss as CTCLoss
    from resilin.nn import GaussianNLLLoss as GaussianNLLLoss
    from resilin.nn import HingeEmbeddingLoss as HingeEmbeddingLoss
    from resilin.nn import LinearCrossEntropyLoss as LinearCrossEntropyLoss
    from resilin.nn import MarginRankingLoss as MarginRankingLoss
    from resilin.nn import MultiLabelMarginLoss as MultiLabelMarginLoss
    from resilin.nn import MultiLabelSoftMarginLoss as MultiLabelSoftMarginLoss
    from resilin.nn import MultiMarginLoss as MultiMarginLoss
    from resilin.nn import PoissonNLLLoss as PoissonNLLLoss
    from resilin.nn import SoftMarginLoss as SoftMarginLoss
    from resilin.nn import TripletMarginLoss as TripletMarginLoss
    from resilin.nn import TripletMarginWithDistanceLoss as TripletMarginWithDistanceLoss


class Loss(Module):
    """Base: `reduction` is "mean", "sum" or "none"."""

    def __init__(self, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = old_reduction(size_average, reduce, reduction)
        if self.reduction != "batchmean":
            check_reduction(self.reduction)


_Loss = Loss  # PyTorch's name, by which programs know the class


class _WeightedLoss(Loss):
    """Base of losses with a `weight` for each class or element: a buffer, or None."""

    weight: Tensor | None

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self.register_buffer("weight", weight)


class CrossEntropyLoss(_WeightedLoss):
    """Negative log of the softmax probability of the right class.

    Shape: logits (N, C, ...) or (C,); targets: class numbers (N, ...) or (), or probabilities shaped as the logits.
    weight: per class; "mean" then divides by the sum of the targets' weights. Targets equal to ignore_index do not
    count. label_smoothing: share of the target that is spread evenly over all classes.
    """

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(weight, size_average, reduce, reduction)
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """See the class."""
        return F.cross_entropy(
            input,
            target,
            weight=self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )


class NLLLoss(_WeightedLoss):
    """Minus the log-probability of the right class; shapes, weight and ignore_index as in CrossEntropyLoss."""

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(weight, size_average, reduce, reduction)
        self.ignore_index = ignore_index

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """See the class."""
        return F.nll_loss(input, target, weight=self.weight, ignore_index=self.ignore_index, reduction=self.reduction)


class MSELoss(Loss):
    """(x - y)^2."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """See the class."""
        return F.mse_loss(input, target, reduction=self.reduction)


class L1Loss(Loss):
    """|x - y|."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """See the class."""
        return F.l1_loss(input, target, reduction=self.reduction)


class BCEWithLogitsLoss(Loss):
    """Binary cross entropy of sigmoid(x) with y, computed without overflow.

    weight: factor of each element. pos_weight: factor of the positive part, per class (the last dimension).
    """

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        pos_weight: Tensor | None = None,
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self.register_buffer("weight", weight)
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """See the class."""
        return F.binary_cross_entropy_with_logits(
            input, target, self.weight, reduction=self.reduction, pos_weight=self.pos_weight
        )


class BCELoss(_WeightedLoss):
    """Binary cross entropy of the probabilities x with y; logarithms are at least -100. weight: of each element."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """See the class."""
        return F.binary_cross_entropy(input, target, self.weight, reduction=self.reduction)


class KLDivLoss(Loss):
    """y * (log y - x) for log-probabilities x and probabilities y (log_target: their logarithms).

    reduction may also be "batchmean": the sum divided by the first length.
    """

    def __init__(
        self,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        log_target: bool = False,
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self.log_target = log_target

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """See the class."""
        return F.kl_div(input, target, reduction=self.reduction, log_target=self.log_target)


class SmoothL1Loss(Loss):
    """0.5 * d^2 / beta where |d| < beta, else |d| - 0.5 * beta, for d = x - y."""

    def __init__(
        self,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        beta: float = 1.0,
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self.beta = beta

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """See the class."""
        return F.smooth_l1_loss(input, target, reduction=self.reduction, beta=self.beta)


class HuberLoss(Loss):
    """0.5 * d^2 where |d| < delta, else delta * (|d| - 0.5 * delta), for d = x - y."""

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction=reduction)
        self.delta = delta

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """See the class."""
        return F.huber_loss(input, target, self.reduction, self.delta)


class NLLLoss2d(NLLLoss):
    """NLLLoss under its older name for (N, C, H, W), which NLLLoss takes too; warns."""

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        text = "NLLLoss2d has been deprecated. Please use NLLLoss instead as a drop-in replacement"
        warnings.warn(text, FutureWarning, stacklevel=2)
        super().__init__(weight, size_average, ignore_index, reduce, reduction)
