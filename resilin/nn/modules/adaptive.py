"""A softmax over many classes whose rare ones share smaller projections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from resilin.core.api.manipulation.joining import cat
from resilin.core.tensor import Tensor
from resilin.nn import functional as F
from resilin.nn.modules.container import ModuleList, Sequential
from resilin.nn.modules.linear import Linear
from resilin.nn.modules.module import Module


class AdaptiveResult(NamedTuple):
    """What AdaptiveLogSoftmaxWithLoss gives."""

    output: Tensor
    """The log-probability of each sample's target, (N,) or ()."""
    loss: Tensor
    """Minus their mean."""


class AdaptiveLogSoftmaxWithLoss(Module):
    """Efficient softmax for many classes of unequal frequency (Grave et al., 2017); classes are ordered by frequency.

    Classes below cutoffs[0] are scored by the head. Cluster i, classes cutoffs[i] to cutoffs[i + 1], is one score of
    the head, and a projection to in_features // div_value ** (i + 1) that only samples of the cluster go through.

    Shape: input (N, in_features) or (in_features,), target (N,) or ().
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        cutoffs: Sequence[int],
        div_value: float = 4.0,
        head_bias: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        cuts = list(cutoffs)
        if not cuts:
            raise ValueError("AdaptiveLogSoftmaxWithLoss: cutoffs should be a sequence of length larger than 0")
        whole = all(int(c) == c for c in cuts)
        if not whole or cuts != sorted(set(cuts)) or cuts[0] <= 0 or cuts[-1] > n_classes - 1:
            raise ValueError(
                "AdaptiveLogSoftmaxWithLoss: cutoffs should be a sequence of unique, positive integers sorted in "
                f"increasing order, each between 1 and n_classes-1 = {n_classes - 1}, got {cuts}"
            )
        self.in_features = in_features
        self.n_classes = n_classes
        self.cutoffs = [*cuts, n_classes]
        self.div_value = div_value
        self.head_bias = head_bias
        self.shortlist_size = cuts[0]
        self.n_clusters = len(cuts)
        self.head_size = self.shortlist_size + self.n_clusters
        made = {"device": device, "dtype": dtype}
        self.head = Linear(in_features, self.head_size, bias=head_bias, **made)
        self.tail = ModuleList()
        for i in range(self.n_clusters):
            hidden = int(in_features // (div_value ** (i + 1)))
            size = self.cutoffs[i + 1] - self.cutoffs[i]
            narrow, scores = Linear(in_features, hidden, bias=False, **made), Linear(hidden, size, bias=False, **made)
            self.tail.append(Sequential(narrow, scores))

    def reset_parameters(self) -> None:
        """Draw all weights anew."""
        self.head.reset_parameters()
        pairs: Any = self.tail
        for narrow, scores in pairs:
            narrow.reset_parameters()
            scores.reset_parameters()

    def forward(self, input_: Tensor, target_: Tensor) -> AdaptiveResult:
        """The log-probability of every target, and the loss. RuntimeError for targets out of range."""
        x, y = self._batched(input_, target_)
        if y.numel() and not (int(y.min()) >= 0 and int(y.max()) < self.n_classes):
            raise RuntimeError(
                f"AdaptiveLogSoftmaxWithLoss: target values should be in [0, {self.n_classes - 1}], but "
                f"values in range [{int(y.min())}, {int(y.max())}] were found"
            )
        columns: Any = y.clone()
        parts: list[tuple[Any, Any]] = []
        for i in range(self.n_clusters):
            low, high = self.cutoffs[i], self.cutoffs[i + 1]
            rows = ((y >= low) & (y < high)).nonzero().squeeze(1)
            if not rows.numel():
                continue
            columns[rows] = self.shortlist_size + i
            local = F.log_softmax(self.tail[i](x[rows]), 1)
            parts.append((rows, local.gather(1, (y[rows] - low).unsqueeze(1)).squeeze(1)))
        found = F.log_softmax(self.head(x), 1).gather(1, columns.unsqueeze(1)).squeeze(1)
        for rows, local in parts:
            found = found.index_add(0, rows, local)
        return AdaptiveResult(found if target_.ndim else found.squeeze(0), (-found).mean())

    def _batched(self, input: Tensor, target: Tensor) -> tuple[Any, Any]:
        if (input.ndim, target.ndim) not in ((2, 1), (1, 0)) or input.shape[:-1] != target.shape:
            raise RuntimeError(
                "AdaptiveLogSoftmaxWithLoss: expected input (N, in_features) and target (N,), or (in_features,) and "
                f"(), got {tuple(input.shape)} and {tuple(target.shape)}"
            )
        return (input, target) if target.ndim else (input.unsqueeze(0), target.unsqueeze(0))

    def log_prob(self, input: Tensor) -> Tensor:
        """The log-probabilities of all classes, (N, n_classes), of input (N, in_features)."""
        head: Any = F.log_softmax(self.head(input), 1)
        parts = [head[:, : self.shortlist_size]]
        for i in range(self.n_clusters):
            local: Any = F.log_softmax(self.tail[i](input), 1)
            parts.append(local + head[:, self.shortlist_size + i].unsqueeze(1))
        return cat(parts, 1)

    def predict(self, input: Tensor) -> Tensor:
        """The most probable class of each sample, (N,)."""
        best: Any = self.head(input).argmax(1)
        rows = (best >= self.shortlist_size).nonzero().squeeze(1)
        if rows.numel():
            best[rows] = self.log_prob(input[rows]).argmax(1)
        return best  # type: ignore[no-any-return]
