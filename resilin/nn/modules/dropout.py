"""Dropout: of elements, of whole channels, and the forms that keep mean and variance."""

from __future__ import annotations

from resilin.core.tensor import Tensor
from resilin.errors import UsageError
from resilin.nn import functional as F
from resilin.nn.modules.module import Module


class _Dropout(Module):
    """A probability `p`, and whether the input itself is written."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise UsageError(f"{type(self).__name__}: dropout probability has to be between 0 and 1, but got {p}")
        self.p = p
        self.inplace = inplace

    def extra_repr(self) -> str:
        """As in PyTorch."""
        return f"p={self.p}, inplace={self.inplace}"


_DropoutNd = _Dropout  # PyTorch's name, by which programs know the class


class Dropout(_Dropout):
    """In training, each element is zero with probability p and the others are divided by 1 - p; else nothing."""

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        return F.dropout(input, self.p, self.training, self.inplace)


class Dropout1d(_Dropout):
    """In training, each channel of (N, C, L) or (C, L) is zero with probability p, else divided by 1 - p."""

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        return F.dropout1d(input, self.p, self.training, self.inplace)


class Dropout2d(_Dropout):
    """In training, each channel of (N, C, H, W) is zero with probability p, else divided by 1 - p."""

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        return F.dropout2d(input, self.p, self.training, self.inplace)


class Dropout3d(_Dropout):
    """In training, each channel of (N, C, D, H, W) or (C, D, H, W) is zero with probability p, else over 1 - p."""

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        return F.dropout3d(input, self.p, self.training, self.inplace)


class AlphaDropout(_Dropout):
    """In training, elements are set to selu's limit with probability p; mean 0 and variance 1 are kept."""

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        return F.alpha_dropout(input, self.p, self.training, self.inplace)


class FeatureAlphaDropout(_Dropout):
    """`AlphaDropout` of whole channels of (N, C, ...)."""

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        return F.feature_alpha_dropout(input, self.p, self.training, self.inplace)
