"""`Variable`, which tensors were once wrapped in: now a way to write a tensor."""

from __future__ import annotations

import warnings
from typing import Any

from resilin.core.ops.creation import empty
from resilin.core.tensor import Tensor


class _Kind(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Tensor)


class Variable(metaclass=_Kind):
    """`Variable(data, requires_grad=False)` is a leaf over the memory of the tensor `data`; every tensor is one."""

    def __new__(cls, data: Tensor | None = None, requires_grad: bool = False, volatile: Any = None) -> Any:
        """The leaf; an empty one of no data. `volatile`, of PyTorch before 0.4, does nothing but warn, as there."""
        if volatile is not None:
            text = "volatile was removed and now has no effect. Use `with torch.no_grad():` instead."
            warnings.warn(text, UserWarning, stacklevel=2)
        if data is None:
            data = empty(0)
        if not isinstance(data, Tensor):
            raise TypeError(f"Variable data has to be a tensor, but got {type(data).__name__}")
        return data.detach().requires_grad_(requires_grad)
