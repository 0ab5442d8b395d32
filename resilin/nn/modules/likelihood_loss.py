"""Losses that are negative log-likelihoods, as modules: of distributions, of several labels, of alignments."""

from __future__ import annotations

import math
from typing import Any

from resilin.core.tensor import Tensor
from resilin.errors import UsageError
from resilin.nn import functional as F
from resilin.nn.modules.linear import Linear
from resilin.nn.modules.loss import Loss, _WeightedLoss


class PoissonNLLLoss(Loss):
    """exp(x) - y * x, or without log_input: x - y * log(x + eps); full adds Stirling's approximation of log(y!)."""

    def __init__(
        self,
        log_input: bool = True,
        full: bool = False,
        size_average: bool | None = None,
        eps: float = 1e-8,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self.log_input = log_input
        self.full = full
        self.eps = eps

    def forward(self, log_input: Tensor, target: Tensor) -> Tensor:
        """See the class."""
        return F.poisson_nll_loss(
            log_input, target, log_input=self.log_input, full=self.full, eps=self.eps, reduction=self.reduction
        )


class GaussianNLLLoss(Loss):
    """0.5 * (log(var) + (x - y) ** 2 / var) with var at least eps; full adds 0.5 * log(2 pi)."""

    def __init__(self, *, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> None:
        super().__init__(reduction=reduction)
        self.full = full
        self.eps = eps

    def forward(self, input: Tensor, target: Tensor, var: Tensor | float) -> Tensor:
        """See the class."""
        return F.gaussian_nll_loss(input, target, var, full=self.full, eps=self.eps, reduction=self.reduction)


class MultiLabelSoftMarginLoss(_WeightedLoss):
    """The mean over classes of the binary cross entropy of sigmoid(x) with y; weight: of each class."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """See the class."""
        return F.multilabel_soft_margin_loss(input, target, weight=self.weight, reduction=self.reduction)


class CTCLoss(Loss):
    """Minus the log of the probability of each target, summed over its alignments; see functional.ctc_loss."""

    def __init__(self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False) -> None:
        super().__init__(reduction=reduction)
        self.blank = blank
        self.zero_infinity = zero_infinity

    def forward(self, log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any) -> Tensor:
        """Shape: log_probs (T, N, C), targets (N, S) or all after one another, lengths (N,)."""
        return F.ctc_loss(
            log_probs, targets, input_lengths, target_lengths, self.blank, self.reduction, self.zero_infinity
        )


class LinearCrossEntropyLoss(_WeightedLoss):
    """CrossEntropyLoss of a Linear layer's scores; see functional.linear_cross_entropy. options: None only.

    Shape: input (N, in_features) or (in_features,); target as CrossEntropyLoss's for scores (N, num_classes,
    *out_features).
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        out_features: tuple[int, ...] = (),
        bias: bool = False,
        device: Any = None,
        dtype: Any = None,
        reduction: str = "mean",
        weight: Tensor | None = None,
        ignore_index: int | None = None,
        label_smoothing: float = 0.0,
        options: None = None,
    ) -> None:
        super().__init__(weight, reduction=reduction)
        if weight is not None and tuple(weight.shape) != (num_classes,):
            raise UsageError(
                f"LinearCrossEntropyLoss: expected weight shape to be ({num_classes},), got {tuple(weight.shape)}"
            )
        if not 0 <= label_smoothing <= 1:
            raise UsageError(f"LinearCrossEntropyLoss: label_smoothing must be between 0 and 1, got {label_smoothing}")
        self.num_classes = num_classes
        self.out_features = tuple(out_features)
        self.linear = Linear(in_features, num_classes * math.prod(out_features), bias=bias, device=device, dtype=dtype)
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing
        self.options = options

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """See the class."""
        shape = (self.num_classes, *self.out_features)
        bias: Any = self.linear.bias
        return F.linear_cross_entropy(
            input,
            self.linear.weight.reshape(*shape, self.linear.in_features),
            target,
            linear_bias=None if bias is None else bias.reshape(shape),
            weight=self.weight,
            reduction=self.reduction,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            options=self.options,
        )

    def extra_repr(self) -> str:
        """As in PyTorch."""
        return (
            f"in_features={self.linear.in_features}, num_classes={self.num_classes}, "
            f"out_features={self.out_features}, bias={self.linear.bias is not None}, reduction={self.reduction}, "
            f"ignore_index={self.ignore_index}, label_smoothing={self.label_smoothing}, options={self.options}"
        )
