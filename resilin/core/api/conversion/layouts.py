"""How tensors lie in memory: storage, strides, tensors made with given strides; and writes that need no graph.

`__all__` are the functions of `resilin`, `METHODS` are methods of `Tensor`.
"""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core.api.manipulation import shaping
from resilin.core.kernels.common import address_of
from resilin.core.ops import creation
from resilin.core.state import sharing
from resilin.core.state.hooks import RETAIN
from resilin.core.state.size import contiguous_strides
from resilin.core.tensor import Tensor, wrap

__all__ = ["empty_permuted", "empty_strided", "fill", "is_storage", "range", "scalar_tensor"]
METHODS = [
    "const_data_ptr",
    "dim_order",
    "is_shared",
    "new_empty_strided",
    "untyped_storage",
]
METHODS += ["storage_offset", "sum_to_size", "fill_diagonal_", "is_set_to", "apply_", "map_"]


def storage_offset(self: Tensor) -> int:
    """How many elements before its first the memory starts: that of the tensor which this one is a view of."""
    base = self if self._view is None else self._view.base
    return (address_of(self._array) - address_of(base._array)) // self._array.itemsize


def sum_to_size(self: Tensor, *size: Any) -> Tensor:
    """Summed over the dimensions that broadcasting from `size` to this tensor's shape would add or stretch."""
    target = tuple(size[0]) if len(size) == 1 and isinstance(size[0], tuple | list) else size
    shape = self._array.shape
    extra = len(shape) - len(target)
    if extra < 0 or any(n not in (1, m) for n, m in zip(target, shape[max(extra, 0) :], strict=False)):
        raise RuntimeError(f"sum_to_size: size {tuple(target)} is not expandable to size {tuple(shape)}")
    stretched = [i + extra for i, n in enumerate(target) if n == 1 and shape[i + extra] != 1]
    dims = (*builtins.range(extra), *stretched)
    return self.sum(dims, keepdim=True).reshape(target) if dims else self


def fill_diagonal_(self: Tensor, fill_value: float, wrap: bool = False) -> Tensor:
    """Write one number on the main diagonal, of all dimensions; with `wrap`, again below in a tall matrix."""
    shape = self._array.shape
    if len(shape) < 2 or (len(shape) > 2 and len(set(shape)) > 1):
        raise RuntimeError(f"fill_diagonal_: expected a matrix or equal dimensions, got shape {tuple(shape)}")
    count = min(shape)
    rows = np.arange(count)
    if wrap and len(shape) == 2 and shape[0] > shape[1]:
        rows = np.arange(0, shape[0] * shape[1], shape[1] + 1)
        self[rows // shape[1], rows % shape[1]] = fill_value
    else:
        self[(rows,) * len(shape)] = fill_value
    return self


def is_set_to(self: Tensor, tensor: Tensor) -> bool:
    """Whether both show the same memory in the same way."""
    a, b = self._array, tensor._array
    return address_of(a) == address_of(b) and a.shape == b.shape and a.strides == b.strides


def apply_(self: Tensor, fn: Any) -> Tensor:
    """Write `fn` of each element, one at a time. For leaves outside the graph."""
    return _written(self, "apply_", [fn(v) for v in shaping.ravel(self.detach()).tolist()])


def map_(self: Tensor, tensor: Tensor, fn: Any) -> Tensor:
    """Write `fn(element, element of tensor)`, one at a time. For leaves outside the graph."""
    other = shaping.ravel(shaping.expand(tensor.detach(), self._array.shape)).tolist()
    values = shaping.ravel(self.detach()).tolist()
    return _written(self, "map_", [fn(a, b) for a, b in zip(values, other, strict=True)])


def _written(self: Tensor, name: str, values: list[Any]) -> Tensor:
    if self.requires_grad:
        raise RuntimeError(f"{name}: cannot be used on a tensor that requires grad; use detach()")
    made = np.array(values, dtype=self._array.dtype).reshape(self._array.shape)
    return self.copy_(self.new_tensor(made))


@creation.factory
def empty_strided(
    size: Any, stride: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Memory as it comes, with the given steps in elements between neighbours of each dimension."""
    size, stride = creation.shape_of((size,)), tuple(stride)
    if len(size) != len(stride):
        raise RuntimeError(f"empty_strided: mismatch in length of strides and shape: {list(size)} and {list(stride)}")
    if min(stride, default=0) < 0:
        raise RuntimeError(f"empty_strided: strides must not be negative, got {list(stride)}")
    count = 0 if 0 in size else 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    made = creation.empty(count, dtype=dtype, device=device)
    array = made._array
    made._array = made._dev.xp.as_strided(array, size, tuple(step * array.itemsize for step in stride))
    return made.requires_grad_(requires_grad) if requires_grad else made


@creation.factory
def empty_permuted(
    size: Any, physical_layout: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Memory as it comes, without gaps, whose dimensions lie in the order `physical_layout`, the outermost first."""
    size, order = creation.shape_of((size,)), tuple(physical_layout)
    if sorted(order) != list(builtins.range(len(size))):
        raise RuntimeError(f"empty_permuted: {list(order)} does not name each of the {len(size)} dimensions once")
    steps = dict(zip(order, contiguous_strides([size[d] for d in order]), strict=True))
    stride = [steps[d] for d in builtins.range(len(size))]
    made: Tensor = empty_strided(size, stride, dtype=dtype, device=device, requires_grad=requires_grad)
    return made


def new_empty_strided(self: Tensor, size: Any, stride: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """`empty_strided` with this tensor's dtype and device."""
    return empty_strided(size, stride, dtype=dtype or self.dtype, device=device or self._dev)


@creation.factory
def range(
    start: float = 0, end: float | None = None, step: float = 1, *, dtype: Any = None, device: Any = None
) -> Tensor:
    """`arange` that includes `end`, in the default dtype. PyTorch says: prefer `arange`."""
    if end is None:
        start, end = 0, start
    if step == 0 or (end - start) * step < 0:
        raise RuntimeError(f"range: step must lead from start to end, got {start}, {end}, {step}")
    values = start + np.arange(int((end - start) / step) + 1) * step
    return creation.tensor(values, dtype=dtype or dtypes.get_default_dtype(), device=device)


def scalar_tensor(s: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A number as a tensor without dimensions, in the default dtype unless `dtype` is given."""
    made: Tensor = creation.full((), s, dtype=dtype or dtypes.get_default_dtype(), device=device)
    return made.requires_grad_(requires_grad) if requires_grad else made


def fill(input: Tensor, value: Any) -> Tensor:
    """One number, or that of a tensor without dimensions, in the input's shape and dtype; `input` gets no gradient."""
    if isinstance(value, Tensor) and value._array.ndim:
        raise RuntimeError(f"fill only supports 0-dimension value tensor but got tensor with {value.dim()} dimensions.")
    number = value.to(input.dtype) if isinstance(value, Tensor) else scalar_tensor(value, dtype=input.dtype)
    return shaping.expand(number.to(input._dev), input._array.shape).clone()


def dim_order(self: Tensor) -> tuple[int, ...]:
    """The dimensions from the outermost in memory to the innermost."""
    strides = self.stride()
    return tuple(sorted(builtins.range(len(strides)), key=lambda d: -strides[d]))


def const_data_ptr(self: Tensor) -> int:
    """Address of the first element, for readers."""
    return self.data_ptr()


def is_shared(self: Tensor) -> bool:
    """Whether it lies in memory that processes share, after `share_memory_` or on its way to another; or on a GPU."""
    return sharing.is_shared(self)


class UntypedStorage:
    """The bytes that a tensor and its views show parts of. Equal when they are the same memory.

    `UntypedStorage(n)` is n bytes of its own, a slice of one the same memory.
    """

    def __init__(self, base: Tensor | int = 0) -> None:
        self._base = wrap(np.empty(base, np.uint8)) if isinstance(base, int) else base

    @classmethod
    def from_file(cls, filename: Any, shared: bool = False, nbytes: int = 0) -> UntypedStorage:
        """The first bytes of a file where they lie; `shared`: what is written to them goes into the file."""
        array = np.memmap(filename, np.uint8, "r+" if shared else "c", shape=(nbytes,)) if nbytes else np.empty(0, "B")
        return cls(wrap(array.view(np.ndarray)))

    def untyped(self) -> UntypedStorage:
        """Itself, which has no dtype."""
        return self

    def _bytes(self) -> Any:
        """The bytes as an array."""
        array = self._base.detach().numpy()
        flat = array.ravel(order="K").view(np.uint8)
        if array.size and not np.shares_memory(array, flat):
            raise RuntimeError("UntypedStorage: the tensor whose memory it is leaves some of it out")
        return flat

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            if place.step not in (None, 1):
                raise RuntimeError(f"UntypedStorage: slices are of step 1, got {place.step}")
            return UntypedStorage(wrap(self._bytes()[place]))
        return int(self._bytes()[place])

    def elements_of(self, dtype: dtypes.dtype) -> Tensor:
        """The same memory as a tensor of `dtype` in one dimension; bytes behind the last element are left out."""
        base = self._base.detach()
        if base.dtype is dtype and base.is_contiguous():
            return shaping.reshape(base, -1)
        flat = self._bytes()
        return wrap(flat[: len(flat) - len(flat) % dtype.itemsize].view(dtype.np))

    def tolist(self) -> list[int]:
        """The bytes as numbers."""
        found: list[int] = self._bytes().tolist()
        return found

    def __dlpack__(self, **options: Any) -> Any:
        """The bytes for other libraries, and for `asarray`."""
        return self._bytes().__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        """Where they are, for other libraries."""
        return self._bytes().__dlpack_device__()

    def data_ptr(self) -> int:
        """Address of the first byte."""
        return self._base.data_ptr()

    def nbytes(self) -> int:
        """How many bytes there are."""
        return self._base.nbytes

    size = __len__ = nbytes

    @property
    def device(self) -> Any:
        """Where they are."""
        return self._base._dev

    def is_shared(self) -> bool:
        """Whether they lie in memory that processes share, or on a GPU."""
        return sharing.is_shared(self._base)

    def share_memory_(self) -> UntypedStorage:
        """Move them, for all tensors over them, to where other processes can read and write them. Itself."""
        sharing.share([self._base])
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UntypedStorage) and (self.data_ptr(), self.nbytes()) == (
            other.data_ptr(),
            other.nbytes(),
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<resilin.UntypedStorage: {self.nbytes()} bytes at {self.data_ptr():#x} on {self.device}>"


def is_storage(obj: Any) -> bool:
    """Whether `obj` is what `untyped_storage` gives."""
    return isinstance(obj, UntypedStorage)


def untyped_storage(self: Tensor) -> UntypedStorage:
    """The bytes that this tensor and its views share: those of the tensor it is a view of."""
    return UntypedStorage(self if self._view is None else self._view.base)


def _never(name: str) -> property:
    return property(lambda self: False, doc=f"False: no tensor here is what PyTorch's `{name}` asks for.")


def _is_view(self: Tensor) -> bool:
    """Whether it shows another tensor's memory, `_base`'s."""
    return self._view is not None


def _backward_hooks(self: Tensor) -> Any:
    """Its hooks on its gradient, or None."""
    if self._node is not None:
        return self._node._pre or None
    return None if self._hooks is None else self._hooks.pre or None


def _grad_dtype(self: Tensor) -> Any:
    """The dtype of its gradient, which is its own. RuntimeError for a tensor that is no leaf."""
    if self._node is not None:
        raise RuntimeError("grad_dtype can only be accessed on leaf tensors.")
    return self.dtype


# what code for PyTorch asks of tensors of kinds that do not exist here
PROPERTIES: dict[str, Any] = {
    f"is_{kind}": _never(f"is_{kind}")
    for kind in ("sparse", "sparse_csr", "quantized", "mkldnn", "mps", "xpu", "xla", "nested", "mtia", "vulkan")
}
PROPERTIES["layout"] = property(lambda self: creation.strided, doc="`resilin.strided`.")
PROPERTIES["name"] = property(lambda self: None, doc="None: tensors have no names.")
PROPERTIES["retains_grad"] = property(
    lambda self: self._node is not None and RETAIN in self._node.pre_hooks(),
    doc="Whether `retain_grad` has been asked for on a tensor that is no leaf.",
)
PROPERTIES["_base"] = property(
    lambda self: None if self._view is None else self._view.base, doc="What it is a view of."
)
PROPERTIES["_is_view"] = _is_view
PROPERTIES["_backward_hooks"] = property(_backward_hooks)
PROPERTIES["_post_accumulate_grad_hooks"] = property(
    lambda self: None if self._hooks is None else self._hooks.post or None, doc="Its hooks after accumulation, or None."
)
PROPERTIES["grad_dtype"] = property(_grad_dtype)
