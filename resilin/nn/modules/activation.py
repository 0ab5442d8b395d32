"""Activations: functions as modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resilin.core.tensor import Tensor
from resilin.nn import functional as F
from resilin.nn.modules.module import Module

if TYPE_CHECKING:  # what the table of places adds; written by scripts/type_stubs.py
    from resilin.nn import CELU as CELU
    from resilin.nn import GLU as GLU
    from resilin.nn import SELU as SELU
    from resilin.nn import Hardshrink as Hardshrink
    from resilin.nn import Hardsigmoid as Hardsigmoid
    from resilin.nn import Hardswish as Hardswish
    from resilin.nn import Hardtanh as Hardtanh
    from resilin.nn import LogSigmoid as LogSigmoid
    from resilin.nn import Mish as Mish
    from resilin.nn import MultiheadAttention as MultiheadAttention
    from resilin.nn import PReLU as PReLU
    from resilin.nn import ReLU6 as ReLU6
    from resilin.nn import RReLU as RReLU
    from resilin.nn import Softmax2d as Softmax2d
    from resilin.nn import Softmin as Softmin
    from resilin.nn import Softshrink as Softshrink
    from resilin.nn import Softsign as Softsign
    from resilin.nn import Tanhshrink as Tanhshrink
    from resilin.nn import Threshold as Threshold


class ReLU(Module):
    """max(x, 0)."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        return F.relu(input, self.inplace)

    def extra_repr(self) -> str:
        """As in PyTorch."""
        return "inplace=True" if self.inplace else ""


class LeakyReLU(Module):
    """x where positive, else negative_slope * x."""

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        super().__init__()
        self.negative_slope = negative_slope
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        return F.leaky_relu(input, self.negative_slope, self.inplace)

    def extra_repr(self) -> str:
        """As in PyTorch."""
        return f"negative_slope={self.negative_slope}" + (", inplace=True" if self.inplace else "")


class ELU(Module):
    """x where positive, else alpha * (exp(x) - 1)."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        self.alpha = alpha
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        return F.elu(input, self.alpha, self.inplace)

    def extra_repr(self) -> str:
        """As in PyTorch."""
        return f"alpha={self.alpha}" + (", inplace=True" if self.inplace else "")


class Softplus(Module):
    """log(1 + exp(beta * x)) / beta; x itself where beta * x exceeds `threshold`."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        self.beta = beta
        self.threshold = threshold

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        return F.softplus(input, self.beta, self.threshold)

    def extra_repr(self) -> str:
        """As in PyTorch."""
        return f"beta={self.beta}, threshold={self.threshold}"


class SiLU(Module):
    """x * sigmoid(x)."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        y: Tensor = F.silu(input, self.inplace)
        return y

    def extra_repr(self) -> str:
        """As in PyTorch."""
        return "inplace=True" if self.inplace else ""


class GELU(Module):
    """x times the normal distribution function of x; approximate="tanh" for the usual approximation of it."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        return F.gelu(input, self.approximate)

    def extra_repr(self) -> str:
        """As in PyTorch."""
        return f"approximate={self.approximate!r}"


class Tanh(Module):
    """The hyperbolic tangent."""

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        return F.tanh(input)


class Sigmoid(Module):
    """1 / (1 + exp(-x))."""

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        y: Tensor = F.sigmoid(input)
        return y


class Softmax(Module):
    """exp(x) over its sum along `dim`."""

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        return F.softmax(input, self.dim)

    def extra_repr(self) -> str:
        """As in PyTorch."""
        return f"dim={self.dim}"


class LogSoftmax(Module):
    """The logarithm of softmax along `dim`."""

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        return F.log_softmax(input, self.dim)

    def extra_repr(self) -> str:
        """As in PyTorch."""
        return f"dim={self.dim}"


class Flatten(Module):
    """Join the dimensions `start_dim` to `end_dim` into one."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim = start_dim
        self.end_dim = end_dim

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        flat: Tensor = input.flatten(self.start_dim, self.end_dim)
        return flat

    def extra_repr(self) -> str:
        """As in PyTorch."""
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"
