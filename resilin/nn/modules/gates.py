"""Smooth activations without a state, as modules: gates, signs and the softmax family's other members."""

from __future__ import annotations

from resilin.core.tensor import Tensor
from resilin.nn import functional as F
from resilin.nn.modules.module import Module


class GLU(Module):
    """a * sigmoid(b) for the two halves a, b of the input along `dim`."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        return F.glu(input, self.dim)

    def extra_repr(self) -> str:
        """As in PyTorch."""
        return f"dim={self.dim}"


class LogSigmoid(Module):
    """log(sigmoid(x))."""

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        return F.logsigmoid(input)


class Softsign(Module):
    """x / (1 + |x|)."""

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        return F.softsign(input)


class Tanhshrink(Module):
    """x - tanh(x)."""

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        return F.tanhshrink(input)


class Softmin(Module):
    """softmax(-x) along `dim`."""

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        return F.softmin(input, self.dim)

    def extra_repr(self) -> str:
        """As in PyTorch."""
        return f"dim={self.dim}"


class Softmax2d(Module):
    """softmax over the channels of (N, C, H, W) or (C, H, W)."""

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        if input.ndim not in (3, 4):
            raise ValueError(f"Softmax2d: expected input to be 3D or 4D, got {input.ndim}D instead")
        return F.softmax(input, -3)
