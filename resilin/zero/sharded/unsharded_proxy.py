"""Tensors whose elements are elsewhere: what they say of themselves, and how their elements come when they are read.

A tensor is sent away by changing its class: shape, dtype and the like are answered from what is known, and reading its
memory asks its *home* to bring it back, which does so where it may (inside forward and backward), or says why not.
"""

from __future__ import annotations

import weakref
from typing import Any, Protocol

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core.public import dispatch
from resilin.core.state.size import Size, check_dim
from resilin.core.tensor import Tensor

Array = Any

_ARRAY: Any = Tensor.__dict__["_array"]  # the slot, which the property below hides
_NOTHING = np.empty(0, np.float32)


class Home(Protocol):
    """Where the elements of a tensor come from."""

    def bring(self) -> None:
        """Call `back` for the tensor, or raise."""


class Facts:
    """What is known of a tensor that is away."""

    __slots__ = ("alive", "cls", "dtype", "home", "shape")

    def __init__(self, tensor: Tensor, home: Home, shape: tuple[int, ...], dtype: Any) -> None:
        self.home, self.shape, self.dtype = home, shape, dtype
        self.cls: type[Tensor] = type(tensor)
        self.alive = weakref.ref(tensor, _forget(id(tensor)))


_facts: dict[int, Facts] = {}  # by id of the tensor, which their weak references clean up


def _forget(key: int) -> Any:
    return lambda _: _facts.pop(key, None)


class _Away:
    """The class of a tensor that is away is made of this and its own."""

    __slots__ = ()
    __tensor_function__ = __torch_function__ = dispatch.disabled

    @property
    def _array(self) -> Array:
        _facts[id(self)].home.bring()
        return _ARRAY.__get__(self)

    @_array.setter
    def _array(self, value: Array) -> None:
        _ARRAY.__set__(self, value)

    @property
    def shape(self) -> Size:
        """Lengths of the dimensions."""
        return Size(_facts[id(self)].shape)

    @property
    def dtype(self) -> dtypes.dtype:
        """The elements' data type."""
        return dtypes.from_numpy(_facts[id(self)].dtype)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(_facts[id(self)].shape)

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return int(_facts[id(self)].dtype.itemsize)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.numel() * self.itemsize

    def size(self, dim: int | None = None) -> Any:
        """`shape`, or the length of dimension `dim`."""
        shape = self.shape
        return shape if dim is None else shape[check_dim(dim, len(shape))]

    def dim(self) -> int:
        """Number of dimensions."""
        return self.ndim

    def numel(self) -> int:
        """Number of elements."""
        return int(np.prod(_facts[id(self)].shape, dtype=np.int64))

    nelement = numel

    def element_size(self) -> int:
        """Bytes per element."""
        return self.itemsize

    def is_floating_point(self) -> bool:
        """Whether the dtype is a floating point one."""
        return bool(_facts[id(self)].dtype.kind in "fV")

    def is_complex(self) -> bool:
        """Whether the dtype is a complex one."""
        return bool(_facts[id(self)].dtype.kind == "c")

    def __repr__(self) -> str:
        known = _facts[id(self)]
        return f"<{known.cls.__name__} of shape {list(known.shape)} and dtype {self.dtype}, divided among the ranks>"


_classes: dict[type[Tensor], type[Any]] = {}


def _away_class(cls: type[Tensor]) -> type[Any]:
    if cls not in _classes:
        _classes[cls] = type(f"Away{cls.__name__}", (_Away, cls), {"__slots__": ()})
    return _classes[cls]


def is_away(tensor: Tensor) -> bool:
    """Whether the elements of `tensor` are elsewhere."""
    return isinstance(tensor, _Away)


def send(tensor: Tensor, home: Home, shape: tuple[int, ...], dtype: Any) -> None:
    """Drop the memory of `tensor`, whose elements `home` brings from now on. A tensor that is away gets a new home."""
    if is_away(tensor):
        back(tensor, _NOTHING)
    _facts[id(tensor)] = Facts(tensor, home, shape, dtype)
    tensor.__class__ = _away_class(type(tensor))
    tensor._array = _NOTHING


def back(tensor: Tensor, array: Array) -> None:
    """Give `tensor` its elements: its class is what it was."""
    tensor.__class__ = _facts.pop(id(tensor)).cls
    tensor._array = array
