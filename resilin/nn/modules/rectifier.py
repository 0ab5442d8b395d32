"""Activations made of pieces, as modules: the relatives of ReLU, the hard forms and the shrinking ones."""

from __future__ import annotations

import warnings
from typing import Any

from resilin.core.ops import creation
from resilin.core.tensor import Parameter, Tensor
from resilin.nn import functional as F
from resilin.nn import init as initialize
from resilin.nn.modules.module import Module


class _InPlace(Module):
    """Base of activations that can overwrite their input."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def extra_repr(self) -> str:
        """As in PyTorch."""
        return "inplace=True" if self.inplace else ""

    def _with_inplace(self, text: str) -> str:
        return text + (", inplace=True" if self.inplace else "")


class Threshold(_InPlace):
    """x where it exceeds `threshold`, else `value`."""

    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.threshold = threshold
        self.value = value

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        return F.threshold(input, self.threshold, self.value, self.inplace)

    def extra_repr(self) -> str:
        """As in PyTorch."""
        return self._with_inplace(f"threshold={self.threshold}, value={self.value}")


class RReLU(_InPlace):
    """LeakyReLU with a slope drawn for each element from [lower, upper] in training, else with their mean."""

    def __init__(self, lower: float = 1.0 / 8, upper: float = 1.0 / 3, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.lower = lower
        self.upper = upper

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        return F.rrelu(input, self.lower, self.upper, self.training, self.inplace)

    def extra_repr(self) -> str:
        """As in PyTorch."""
        return self._with_inplace(f"lower={self.lower}, upper={self.upper}")


class Hardtanh(_InPlace):
    """x limited to [min_val, max_val]."""

    def __init__(
        self,
        min_val: float = -1.0,
        max_val: float = 1.0,
        inplace: bool = False,
        min_value: float | None = None,
        max_value: float | None = None,
    ) -> None:
        super().__init__(inplace)
        for name, given in (("min", min_value), ("max", max_value)):
            if given is not None:
                text = f"keyword argument `{name}_value` is deprecated and rename to `{name}_val`"
                warnings.warn(text, FutureWarning, stacklevel=2)
        self.min_val = min_val if min_value is None else min_value
        self.max_val = max_val if max_value is None else max_value
        if not self.max_val > self.min_val:
            raise ValueError(f"Hardtanh: max_val must exceed min_val, got {self.min_val} and {self.max_val}")

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        return F.hardtanh(input, self.min_val, self.max_val, self.inplace)

    def extra_repr(self) -> str:
        """As in PyTorch."""
        return self._with_inplace(f"min_val={self.min_val}, max_val={self.max_val}")


class ReLU6(Hardtanh):
    """x limited to [0, 6]."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__(0.0, 6.0, inplace)

    def extra_repr(self) -> str:
        """As in PyTorch."""
        return "inplace=True" if self.inplace else ""


class Hardsigmoid(_InPlace):
    """(x + 3) / 6 limited to [0, 1]."""

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        y: Tensor = F.hardsigmoid(input, self.inplace)
        return y

    def extra_repr(self) -> str:
        """As in PyTorch: nothing."""
        return ""


class Hardswish(_InPlace):
    """x * hardsigmoid(x)."""

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        y: Tensor = F.hardswish(input, self.inplace)
        return y

    def extra_repr(self) -> str:
        """As in PyTorch: nothing."""
        return ""


class CELU(_InPlace):
    """x where positive, else alpha * (exp(x / alpha) - 1)."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.alpha = alpha

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        return F.celu(input, self.alpha, self.inplace)

    def extra_repr(self) -> str:
        """As in PyTorch."""
        return self._with_inplace(f"alpha={self.alpha}")


class SELU(_InPlace):
    """1.0507 times (x where positive, else 1.6733 * (exp(x) - 1))."""

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        return F.selu(input, self.inplace)


class Mish(_InPlace):
    """x * tanh(softplus(x))."""

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        y: Tensor = F.mish(input, self.inplace)
        return y


class Hardshrink(Module):
    """x where its absolute value exceeds `lambd`, else 0."""

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.lambd = lambd

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        return F.hardshrink(input, self.lambd)

    def extra_repr(self) -> str:
        """As in PyTorch."""
        return f"{self.lambd}"


class Softshrink(Module):
    """x moved towards 0 by `lambd`, not past it."""

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.lambd = lambd

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        return F.softshrink(input, self.lambd)

    def extra_repr(self) -> str:
        """As in PyTorch."""
        return f"{self.lambd}"


class PReLU(Module):
    """x where positive, else weight * x; `weight` is learned: one number, or one per channel (dimension 1)."""

    def __init__(self, num_parameters: int = 1, init: float = 0.25, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.num_parameters = num_parameters
        self.init = init
        self.weight = Parameter(creation.empty(num_parameters, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Every weight becomes `init`."""
        initialize.constant_(self.weight, self.init)

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        return F.prelu(input, self.weight)

    def extra_repr(self) -> str:
        """As in PyTorch."""
        return f"num_parameters={self.num_parameters}"
