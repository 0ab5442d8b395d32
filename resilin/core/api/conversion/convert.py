"""Moving and converting tensors: `to`, `cpu`, `float` and their like."""

from __future__ import annotations

from typing import Any

from resilin.core import dtype as dtypes
from resilin.core.api.manipulation.shaping import clone, contiguous
from resilin.core.device import CPU, device
from resilin.core.ops.shape import astype
from resilin.core.ops.transfer import move
from resilin.core.state.memory_format import preserve_format
from resilin.core.tensor import Tensor


def to(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`to(dtype)`, `to(device)`, `to(device, dtype)` or `to(other)`; itself when nothing changes, unless `copy`."""
    if len(args) == 1 and not kwargs and type(args[0]) is dtypes.dtype:  # most calls
        kind, target = self._array.dtype, args[0].np
        return self if kind is target or kind == target else _cast(self, target)
    kwargs.pop("non_blocking", None)
    order = kwargs.pop("memory_format", None)
    copy = kwargs.pop("copy", False)
    dev, dtype = kwargs.pop("device", None), kwargs.pop("dtype", None)
    if kwargs:
        raise TypeError(f"to() got an unexpected argument {next(iter(kwargs))!r}")
    switches = [value for value in args if isinstance(value, bool)]  # non_blocking, copy
    copy = copy or switches[1:] == [True]
    for value in args:
        if isinstance(value, Tensor):
            dev, dtype = value._dev, value.dtype
        elif isinstance(value, dtypes.dtype) or value in (float, int, bool, complex):
            dtype = value
        elif isinstance(value, device | str) or type(value) is int:
            dev = value
        elif value is not None and not isinstance(value, bool):
            raise TypeError(f"to(): expected a dtype, device or Tensor, got {type(value).__name__}")
    out = self
    if dev is not None and device(dev).home is not self._dev:
        out = move(out, device(dev).home)
    if dtype is not None and dtypes.to_numpy(dtype) != out._array.dtype:
        out = _cast(out, dtypes.to_numpy(dtype))
    if copy and out is self:
        return clone(out, memory_format=order)
    return _laid_out(out, order)


def _laid_out(x: Tensor, order: Any) -> Tensor:
    """`x` in a memory format; as it is for None and `preserve_format`."""
    return x if order is None or order is preserve_format else contiguous(x, order)


def _cast(self: Tensor, target: Any) -> Tensor:
    if self._array.dtype.kind == "c" and target.kind not in "cb":
        self = self.real
    return astype.call(self, target)


def type_as(self: Tensor, other: Tensor) -> Tensor:
    """`to` the other's dtype and device."""
    return to(self, other)


def _caster(name: str, target: dtypes.dtype) -> Any:
    def cast(self: Tensor, *, memory_format: Any = None) -> Tensor:
        out = self if self._array.dtype == target.np else _cast(self, target.np)
        return out if memory_format is None else _laid_out(out, memory_format)

    cast.__name__ = name
    cast.__doc__ = f"`to({target.name}, memory_format=memory_format)`."
    return cast


CASTS = {
    name: _caster(name, target)
    for name, target in {
        "float": dtypes.float32,
        "double": dtypes.float64,
        "half": dtypes.float16,
        "bfloat16": dtypes.bfloat16,
        "int": dtypes.int32,
        "long": dtypes.int64,
        "short": dtypes.int16,
        "char": dtypes.int8,
        "byte": dtypes.uint8,
        "bool": dtypes.bool_,
        "cfloat": dtypes.complex64,
        "cdouble": dtypes.complex128,
    }.items()
}


def cpu(self: Tensor, memory_format: Any = None) -> Tensor:
    """`to("cpu", memory_format=memory_format)`."""
    return _laid_out(self if self._dev is CPU else move(self, CPU), memory_format)


_device = device  # an argument below has its name


def cuda(self: Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = None) -> Tensor:
    """`to("cuda")`, or to the CUDA device of this number or name."""
    target = _device("cuda") if device is None else _device(device)
    if target.type != "cuda":
        raise RuntimeError(f"Invalid device, must be cuda device: got {target}")
    return to(self, target, non_blocking=non_blocking, memory_format=memory_format)
