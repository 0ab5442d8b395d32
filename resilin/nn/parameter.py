"""Parameters and buffers that modules register, and such as wait for their shape. Names of torch.nn.parameter."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NoReturn

from resilin.core import dtype as dtypes
from resilin.core.device import device
from resilin.core.ops import creation
from resilin.core.public import dispatch
from resilin.core.public.subclass import make_subclass
from resilin.core.state.size import Size
from resilin.core.tensor import Parameter, Tensor, wrap

__all__ = [
    "Buffer",
    "Parameter",
    "UninitializedBuffer",
    "UninitializedParameter",
    "UninitializedTensorMixin",
    "is_lazy",
]

_ARRAY: Any = Tensor.__dict__["_array"]  # the slot, which uninitialized tensors hide
_UNUSABLE = (
    "attempted to use an uninitialized parameter or buffer, of a lazy module or made by hand: call `forward` with an "
    "input first, or materialize(shape)"
)
_SHAPELESS = "an uninitialized parameter or buffer has no shape yet: call `forward` of its module with an input first"


class Buffer(Tensor):
    """A tensor that a module registers as a buffer when it is assigned. Shares memory with `data`.

    persistent: whether it is part of `state_dict()`.
    """

    persistent: bool

    def __new__(cls, data: Tensor | None = None, *, persistent: bool = True) -> Buffer:
        source = creation.empty(0) if data is None else data
        if not isinstance(source, Tensor):
            raise TypeError(f"Buffer: expected a Tensor, got {type(source).__name__}")
        made = make_subclass(cls, source, source.requires_grad)
        made.persistent = persistent
        return made

    def __init__(self, data: Tensor | None = None, *, persistent: bool = True) -> None:
        pass  # done in __new__

    __tensor_function__ = __torch_function__ = dispatch.disabled  # what is computed of it is a Tensor


class UninitializedTensorMixin:
    """What tensors without a shape have in common: dtype and device are known, everything else raises ValueError."""

    cls_to_become: type[Any]

    _dev: device
    _rg: bool
    if not TYPE_CHECKING:
        __slots__ = ()  # all are Tensor's, which a type checker does not see from here

    @property
    def _array(self) -> Any:
        raise ValueError(_UNUSABLE)

    @_array.setter
    def _array(self, value: Any) -> None:
        _ARRAY.__set__(self, value)

    @property
    def shape(self) -> Size:
        """RuntimeError: it has none."""
        raise RuntimeError(_SHAPELESS)

    @property
    def dtype(self) -> dtypes.dtype:
        """The elements' data type to be."""
        return dtypes.from_numpy(_ARRAY.__get__(self).dtype)

    @property
    def data(self) -> Tensor:
        """An empty tensor of its dtype and device; assigning one changes these."""
        return wrap(_ARRAY.__get__(self), self._dev)

    @data.setter
    def data(self, value: Tensor) -> None:
        self._array, self._dev = value._array, value._dev

    def is_floating_point(self) -> bool:
        """Whether the dtype is a floating point one."""
        return self.data.is_floating_point()

    def is_complex(self) -> bool:
        """Whether the dtype is a complex one."""
        return self.data.is_complex()

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        """Set `requires_grad`."""
        self._rg = bool(requires_grad)
        return self

    def materialize(self, shape: Any, device: Any = None, dtype: Any = None) -> None:
        """Become a `Parameter` or `Buffer` of this `shape`, its elements not set; device and dtype default to known."""
        made = creation.empty(
            tuple(shape),
            device=self._dev if device is None else device,
            dtype=self.dtype if dtype is None else dtype,
        )
        self.__class__ = self.cls_to_become
        self._array, self._dev = made._array, made._dev

    def share_memory_(self) -> NoReturn:
        """RuntimeError: there is no memory yet."""
        raise RuntimeError(_SHAPELESS)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        kind, arguments = self.__reduce_ex__(4)
        made = memo[id(self)] = kind(*copy.deepcopy(arguments, memo))
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        return type(self), (self._rg, str(self._dev), self.dtype)


class UninitializedParameter(UninitializedTensorMixin, Parameter):
    """A parameter that waits for its shape; `materialize` makes it a Parameter."""

    cls_to_become = Parameter

    def __new__(cls, requires_grad: bool = True, device: Any = None, dtype: Any = None) -> UninitializedParameter:
        return make_subclass(cls, creation.empty(0, device=device, dtype=dtype), requires_grad)

    def __init__(self, requires_grad: bool = True, device: Any = None, dtype: Any = None) -> None:
        pass  # done in __new__


class UninitializedBuffer(UninitializedTensorMixin, Buffer):
    """A buffer that waits for its shape; `materialize` makes it a Buffer."""

    cls_to_become = Buffer

    def __new__(
        cls, requires_grad: bool = False, device: Any = None, dtype: Any = None, persistent: bool = True
    ) -> UninitializedBuffer:
        made = make_subclass(cls, creation.empty(0, device=device, dtype=dtype), requires_grad)
        made.persistent = persistent
        return made

    def __init__(
        self, requires_grad: bool = False, device: Any = None, dtype: Any = None, persistent: bool = True
    ) -> None:
        pass  # done in __new__

    def __reduce_ex__(self, protocol: Any) -> Any:
        kind, arguments = super().__reduce_ex__(protocol)
        return kind, (*arguments, self.persistent)


def is_lazy(param: Any) -> bool:
    """Whether it is a parameter or buffer that waits for its shape."""
    return isinstance(param, UninitializedTensorMixin)
