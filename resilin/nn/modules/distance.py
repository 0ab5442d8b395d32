"""Distances between rows, and the shape of a dimension: functions as modules."""

from __future__ import annotations

from resilin.core.tensor import Tensor
from resilin.nn import functional as F
from resilin.nn.modules.module import Module


class CosineSimilarity(Module):
    """The cosine of the angle between x1 and x2 along `dim`; norms below `eps` count as `eps`."""

    def __init__(self, dim: int = 1, eps: float = 1e-8) -> None:
        super().__init__()
        self.dim = dim
        self.eps = eps

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        """Shape: x1 and x2 broadcast; the result lacks `dim`."""
        return F.cosine_similarity(x1, x2, self.dim, self.eps)


class PairwiseDistance(Module):
    """The p-norm of x1 - x2 + eps along the last dimension."""

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> None:
        super().__init__()
        self.norm = p
        self.eps = eps
        self.keepdim = keepdim

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        """Shape: (N, D) or (D,) each -> (N,), (N, 1) with keepdim, or ()."""
        return F.pairwise_distance(x1, x2, self.norm, self.eps, self.keepdim)
