"""`Variable`, which tensors were once wrapped in: now a way to write a tensor."""

from __future__ import annotations

from typing import Any

from resilin.core.tensor import Tensor


class _Kind(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Tensor)


class Variable(metaclass=_Kind):
    """`Variable(data, requires_grad=False)` is a leaf over the memory of the tensor `data`; every tensor is one."""

    def __new__(cls, data: Tensor, requires_grad: bool = False) -> Any:
        """The leaf."""
        if not isinstance(data, Tensor):
            raise TypeError(f"Variable data has to be a tensor, but got {type(data).__name__}")
        return data.detach().requires_grad_(requires_grad)
