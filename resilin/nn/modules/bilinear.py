"""The bilinear layer."""

from __future__ import annotations

import math
from typing import Any

from resilin.core.ops import creation
from resilin.core.tensor import Parameter, Tensor
from resilin.nn import functional as F
from resilin.nn import init
from resilin.nn.modules.module import Module


class Bilinear(Module):
    """y = x1.T @ weight @ x2 + bias, one matrix of `weight` for each output.

    Shape: (..., in1_features), (..., in2_features) -> (..., out_features); weight (out_features, in1_features,
    in2_features), bias (out_features,). Both start uniform in +-1/sqrt(in1_features).
    """

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if in1_features <= 0:
            raise ValueError(f"Bilinear: in1_features must be greater than 0, got {in1_features}")
        self.in1_features = in1_features
        self.in2_features = in2_features
        self.out_features = out_features
        self.weight = Parameter(creation.empty(out_features, in1_features, in2_features, device=device, dtype=dtype))
        self.register_parameter(
            "bias", Parameter(creation.empty(out_features, device=device, dtype=dtype)) if bias else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the start values anew."""
        bound = 1 / math.sqrt(self.in1_features)
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        """See the class."""
        return F.bilinear(input1, input2, self.weight, self.bias)

    def extra_repr(self) -> str:
        """As in PyTorch."""
        sizes = ", ".join(f"{name}={getattr(self, name)}" for name in ("in1_features", "in2_features", "out_features"))
        return f"{sizes}, bias={self.bias is not None}"
