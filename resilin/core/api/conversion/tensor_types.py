"""PyTorch's older types of tensors, one for each dtype and kind of device: `FloatTensor`, `cuda.LongTensor`.

They are called to make tensors, asked by `isinstance` and given to `Tensor.type`, which returns their names. Tensors
are instances of `Tensor` all the same: a type looks at a tensor's dtype and device when it is asked.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from resilin._base import place_finder
from resilin.core import dtype as dtypes
from resilin.core.api.conversion.convert import to
from resilin.core.api.conversion.layouts import UntypedStorage
from resilin.core.device import CPU, device, present
from resilin.core.ops import creation
from resilin.core.state.size import Size
from resilin.core.tensor import Tensor
from resilin.errors import UsageTypeError

_WORDS = {
    dtypes.bfloat16: "BFloat16",
    dtypes.bool_: "Bool",
    dtypes.uint8: "Byte",
    dtypes.int8: "Char",
    dtypes.float64: "Double",
    dtypes.float32: "Float",
    dtypes.float16: "Half",
    dtypes.int32: "Int",
    dtypes.int64: "Long",
    dtypes.int16: "Short",
    dtypes.complex64: "ComplexFloat",
    dtypes.complex128: "ComplexDouble",
    dtypes.uint16: "UInt16",
    dtypes.uint32: "UInt32",
    dtypes.uint64: "UInt64",
}
_BY_NAME = {f"{word}Tensor": kind for kind, word in _WORDS.items()}


class TensorType(type):
    """The class of the types. `dtype`, `layout` and `is_cuda` are those of their instances."""

    dtype: dtypes.dtype
    layout = creation.strided
    is_cuda = False
    is_sparse = False
    device_type: str

    def __new__(
        mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], device_type: str = "cpu"
    ) -> TensorType:
        """Make the type that is called as its dtype is in `_BY_NAME`. None can be a base of other classes."""
        if bases:
            raise TypeError(f"type {bases[0].__qualname__!r} is not an acceptable base type: use resilin.Tensor")
        made = super().__new__(mcs, name, bases, namespace)
        root = place_finder.shown_root
        made.__module__ = root if device_type == "cpu" else f"{root}.{device_type}"  # where programs find it
        made.dtype, made.device_type, made.is_cuda = _BY_NAME[name], device_type, device_type == "cuda"
        return made

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> None:
        super().__init__(name, bases, namespace)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Tensor) and (instance.dtype, instance.device.type) == (cls.dtype, cls.device_type)

    def __call__(cls, *data: Any, device: Any = None) -> Tensor:
        """A new tensor: of lengths or a Size, whose elements are zeros, or of a sequence, an array or a storage.

        A tensor of this type shares its memory. TypeError for one of another, for a number that is no length, and where
        there is no such device.
        """
        return _made(cls.__name__, cls.dtype, data, _device(cls, device))


def _device(kind: TensorType, given: Any) -> device:
    if given is not None and device(given).type != kind.device_type:
        raise UsageTypeError(f"{kind.__name__}(): expected a device of type {kind.device_type}, got {given}")
    try:
        return present(kind.device_type if given is None else given)
    except RuntimeError as error:
        raise UsageTypeError(f"type {_name(kind.dtype, kind.device_type)} not available: {error}") from error


def new(self: Tensor, *data: Any, device: Any = None) -> Tensor:
    """A tensor of the same dtype, where this one is or on `device`: as `FloatTensor` and its like make them."""
    dev = self.device if device is None else present(device)
    if dev.type != self.device.type:
        raise UsageTypeError(f"new(): expected a device of type {self.device.type}, got {dev}")
    return _made("new", self.dtype, data, dev)


def _made(where: str, kind: dtypes.dtype, data: tuple[Any, ...], dev: device) -> Tensor:
    first = data[0] if len(data) == 1 else None
    if isinstance(first, Tensor):
        if (first.dtype, first.device.type) != (kind, dev.type):
            raise UsageTypeError(
                f"{where}(): expected a tensor of {kind} on {dev}, got {first.dtype} on {first.device}; use .to(...)"
            )
        return first.detach()
    if isinstance(first, UntypedStorage):
        made: Any = creation.tensor([], dtype=kind, device=dev)
        return made.set_(first)
    lengths = first if isinstance(first, Size) else data
    if all(isinstance(length, int | np.integer) for length in lengths):
        return creation.zeros(tuple(lengths) or 0, dtype=kind, device=dev)
    if len(data) != 1 or not hasattr(first, "__len__") or isinstance(first, str | bytes):
        got = ", ".join(type(value).__name__ for value in data)
        raise UsageTypeError(f"{where}(): expected lengths, one sequence or one array, got ({got})")
    return creation.tensor(first, dtype=kind, device=dev)


def _name(kind: dtypes.dtype, device_type: str) -> str:
    place = "torch" if device_type == "cpu" else f"torch.{device_type}"
    return f"{place}.{_WORDS[kind]}Tensor"


def type_(self: Tensor, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
    """The name of the tensor's type, "torch.FloatTensor"; with a dtype, a type or its name, the tensor converted to it.

    A type also says on which kind of device the result is. ValueError for a name that no type has.
    """
    if dtype is None:
        return _name(self.dtype, self.device.type)
    if isinstance(dtype, TensorType):
        return _converted(self, dtype.dtype, dtype.device_type)
    if isinstance(dtype, str):
        place, _, last = dtype.rpartition(".")
        root, _, device_type = place.partition(".")
        if last not in _BY_NAME or root not in ("torch", "resilin"):
            _refuse(dtype)
        return _converted(self, _BY_NAME[last], device_type or "cpu")
    if dtype is Tensor:
        return _converted(self, dtypes.get_default_dtype(), "cpu")
    if not isinstance(dtype, dtypes.dtype):
        _refuse(getattr(dtype, "__name__", dtype))
    return to(self, dtype)


def _converted(self: Tensor, kind: dtypes.dtype, device_type: str) -> Tensor:
    dev = self.device if self.device.type == device_type else CPU if device_type == "cpu" else device(device_type)
    return to(self, dev, kind)


def _refuse(given: Any) -> NoReturn:
    raise ValueError(f"invalid type: {given!r}: expected a dtype, or a type such as torch.FloatTensor or its name")


class BFloat16Tensor(metaclass=TensorType):
    """Tensors of bfloat16 on the CPU."""


class BoolTensor(metaclass=TensorType):
    """Tensors of bool on the CPU."""


class ByteTensor(metaclass=TensorType):
    """Tensors of uint8 on the CPU."""


class CharTensor(metaclass=TensorType):
    """Tensors of int8 on the CPU."""


class DoubleTensor(metaclass=TensorType):
    """Tensors of float64 on the CPU."""


class FloatTensor(metaclass=TensorType):
    """Tensors of float32 on the CPU."""


class HalfTensor(metaclass=TensorType):
    """Tensors of float16 on the CPU."""


class IntTensor(metaclass=TensorType):
    """Tensors of int32 on the CPU."""


class LongTensor(metaclass=TensorType):
    """Tensors of int64 on the CPU."""


class ShortTensor(metaclass=TensorType):
    """Tensors of int16 on the CPU."""
