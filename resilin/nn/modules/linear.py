"""Linear layers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from resilin.core.ops import creation
from resilin.core.tensor import Parameter, Tensor
from resilin.nn import functional as F
from resilin.nn import init
from resilin.nn.modules.module import Module

if TYPE_CHECKING:  # what the table of places adds; written by scripts/type_stubs.py
    from resilin.nn import Bilinear as Bilinear
    from resilin.nn import LazyLinear as LazyLinear


class Identity(Module):
    """Gives its input back; takes any arguments, so that it can stand in for another layer."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        """`input` itself."""
        return input


class Linear(Module):
    """y = x @ weight.T + bias.

    Shape: (..., in_features) -> (..., out_features); weight (out_features, in_features), bias (out_features,).
    Both start uniform in +-1/sqrt(in_features).
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = Parameter(creation.empty(out_features, in_features, device=device, dtype=dtype))
        self.register_parameter(
            "bias", Parameter(creation.empty(out_features, device=device, dtype=dtype)) if bias else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the start values anew."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(self.in_features) if self.in_features > 0 else 0
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        return F.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        """As in PyTorch."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class NonDynamicallyQuantizableLinear(Linear):
    """A Linear by the name that PyTorch gives the last layer of attention: PyTorch's quantization passes it over."""
