"""Losses as modules."""

from __future__ import annotations

from resilin.core.api.losses import check_reduction
from resilin.core.tensor import Tensor
from resilin.nn import functional as F
from resilin.nn.modules.module import Module


class _Loss(Module):
    """Base: `reduction` is "mean", "sum" or "none"."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        check_reduction(reduction)
        self.reduction = reduction


class CrossEntropyLoss(_Loss):
    """Negative log of the softmax probability of the right class.

    Shape: logits (N, C, ...) or (C,); targets: class numbers (N, ...) or (), or probabilities shaped as the logits.
    weight: per class; "mean" then divides by the sum of the targets' weights. Targets equal to ignore_index do not
    count. label_smoothing: share of the target that is spread evenly over all classes.
    """

    def __init__(
        self,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)
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


class NLLLoss(_Loss):
    """Minus the log-probability of the right class; shapes, weight and ignore_index as in CrossEntropyLoss."""

    def __init__(self, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)
        self.ignore_index = ignore_index

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """See the class."""
        return F.nll_loss(input, target, weight=self.weight, ignore_index=self.ignore_index, reduction=self.reduction)


class MSELoss(_Loss):
    """(x - y)^2."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """See the class."""
        return F.mse_loss(input, target, reduction=self.reduction)


class L1Loss(_Loss):
    """|x - y|."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """See the class."""
        return F.l1_loss(input, target, reduction=self.reduction)


class BCEWithLogitsLoss(_Loss):
    """Binary cross entropy of sigmoid(x) with y, computed without overflow.

    weight: factor of each element. pos_weight: factor of the positive part, per class (the last dimension).
    """

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean", pos_weight: Tensor | None = None) -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """See the class."""
        return F.binary_cross_entropy_with_logits(
            input, target, self.weight, reduction=self.reduction, pos_weight=self.pos_weight
        )


class BCELoss(_Loss):
    """Binary cross entropy of the probabilities x with y; logarithms are at least -100. weight: of each element."""

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """See the class."""
        return F.binary_cross_entropy(input, target, self.weight, self.reduction)


class KLDivLoss(_Loss):
    """y * (log y - x) for log-probabilities x and probabilities y (log_target: their logarithms).

    reduction may also be "batchmean": the sum divided by the first length.
    """

    def __init__(self, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__("mean" if reduction == "batchmean" else reduction)
        self.reduction = reduction
        self.log_target = log_target

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """See the class."""
        return F.kl_div(input, target, self.reduction, self.log_target)


class SmoothL1Loss(_Loss):
    """0.5 * d^2 / beta where |d| < beta, else |d| - 0.5 * beta, for d = x - y."""

    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction)
        self.beta = beta

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """See the class."""
        return F.smooth_l1_loss(input, target, self.reduction, self.beta)
