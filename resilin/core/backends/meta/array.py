"""`MetaArray`: shape, strides and dtype of an array that has no elements.

Behind it lies address space that is never touched, so views are numpy's own views of it: strides, contiguity and who
shares memory with whom are those of real arrays.
"""

from __future__ import annotations

import math
import mmap
import operator
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np

from resilin.errors import NoElements

_SMALL = 4096  # bytes: below a page, numpy's own memory is cheaper than a mapping
_FLAGS = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0) | getattr(mmap, "MAP_NORESERVE", 0)
FUNCTIONS: dict[Any, Callable[..., Any]] = {}  # numpy's function, or a method's name -> what it gives here


class MetaArray:
    """An array of the meta device; `laid` is a numpy array that lies in memory as this one would."""

    __slots__ = ("__weakref__", "base", "laid")
    __array_priority__ = 100
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, laid: Any, base: MetaArray | None = None) -> None:
        self.laid, self.base = laid, base

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the dimensions."""
        found: tuple[int, ...] = self.laid.shape
        return found

    @shape.setter
    def shape(self, lengths: Any) -> None:
        self.laid = self.reshape(lengths).laid

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype that elements would have."""
        found: np.dtype[Any] = self.laid.dtype
        return found

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one index to the next, per dimension."""
        found: tuple[int, ...] = self.laid.strides
        return found

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return int(self.laid.ndim)

    @property
    def size(self) -> int:
        """Number of elements that it would have."""
        return int(self.laid.size)

    @property
    def nbytes(self) -> int:
        """Bytes that its elements would take."""
        return int(self.laid.nbytes)

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return int(self.laid.itemsize)

    @property
    def flags(self) -> Any:
        """How it lies in memory. It can always be written to: that does nothing."""
        flags = self.laid.flags
        return SimpleNamespace(
            c_contiguous=flags.c_contiguous, f_contiguous=flags.f_contiguous, owndata=self.base is None, writeable=True
        )

    @property
    def data(self) -> Any:
        """Where it lies: nowhere, as PyTorch says it."""
        return SimpleNamespace(ptr=0, mem=self if self.base is None else self.base)

    @property
    def T(self) -> MetaArray:
        """Dimensions in reverse order."""
        return self.seen(self.laid.T)

    @property
    def real(self) -> MetaArray:
        """Real parts, a view; itself where it is real."""
        return self.seen(self.laid.real)

    @property
    def imag(self) -> MetaArray:
        """Imaginary parts, a view."""
        return self.seen(self.laid.imag) if self.dtype.kind == "c" else fresh(self.shape, self.dtype)

    def seen(self, laid: Any) -> MetaArray:
        """A view of this array that lies as `laid` does."""
        return MetaArray(laid, self if self.base is None else self.base)

    def __repr__(self) -> str:
        return f"MetaArray(shape={self.shape}, dtype={self.dtype})"

    def __len__(self) -> int:
        return len(self.laid)

    def __iter__(self) -> Iterator[MetaArray]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: Any) -> MetaArray:
        if is_basic(index):
            found = self.laid[index]
            if isinstance(found, np.ndarray) and found.ndim + self.ndim:
                return self.seen(found)
            return self.seen(np.lib.stride_tricks.as_strided(self.laid, (), ()))
        return FUNCTIONS["indexed"](self, index)  # type: ignore[no-any-return]

    def __setitem__(self, index: Any, value: Any) -> None:
        if not any(
            getattr(part, "dtype", None) == np.bool_ for part in (index if isinstance(index, tuple) else (index,))
        ):
            np.broadcast_shapes(self[index].shape, getattr(value, "shape", ()))

    def __getattr__(self, name: str) -> Any:
        made = FUNCTIONS.get(name)
        if made is None or name == "indexed":
            raise AttributeError(f"arrays of the meta device have no {name!r}", name=name, obj=self)
        return lambda *args, **kwargs: made(self, *args, **kwargs)

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        made = FUNCTIONS.get(ufunc if method == "__call__" else (ufunc, method))
        if made is None and method == "__call__":
            made = FUNCTIONS["elementwise"](ufunc)
        if made is None:
            raise NoElements(f"{ufunc.__name__}.{method} has no rule for arrays without elements")
        return made(*args, **kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        made = FUNCTIONS.get(func)
        if made is None:
            raise NoElements(f"numpy's {func.__name__} looks at elements, or has no rule without them")
        return made(*args, **kwargs)

    # Views, and what becomes a copy where it cannot be one

    def reshape(self, *shape: Any, order: str = "C", copy: Any = None) -> MetaArray:
        """The elements in C order under another shape."""
        lengths = _lengths(self.size, shape)
        if self.laid.flags.c_contiguous:
            return self.seen(self.laid.reshape(lengths))
        steps = _steps(self.shape, self.strides, lengths) if self.size else None
        if steps is None:
            return fresh(lengths, self.dtype)
        return self.seen(np.lib.stride_tricks.as_strided(self.laid, lengths, steps))

    def ravel(self, order: str = "C") -> MetaArray:
        """All elements in one dimension."""
        return self.reshape(-1)

    def flatten(self, order: str = "C") -> MetaArray:
        """A copy in one dimension."""
        return fresh((self.size,), self.dtype)

    def transpose(self, *axes: Any) -> MetaArray:
        """Dimensions in another order."""
        return self.seen(self.laid.transpose(*axes))

    def swapaxes(self, a: int, b: int) -> MetaArray:
        """Two dimensions exchanged."""
        return self.seen(self.laid.swapaxes(a, b))

    def squeeze(self, axis: Any = None) -> MetaArray:
        """Without dimensions of length 1."""
        return self.seen(self.laid.squeeze(axis))

    def view(self, dtype: Any = None) -> MetaArray:
        """The memory as elements of another dtype."""
        return self.seen(self.laid.view() if dtype is None else self.laid.view(dtype))

    def astype(
        self, dtype: Any, order: str = "K", casting: str = "unsafe", subok: bool = True, copy: bool = True
    ) -> Any:
        """Of another dtype; itself where it has that one and needs no copy."""
        kind = np.dtype(dtype)
        return self if kind == self.dtype and not copy else fresh_like(self, kind)

    def copy(self, order: str = "C") -> MetaArray:
        """Memory of its own."""
        return fresh(self.shape, self.dtype)

    def fill(self, value: Any) -> None:
        """Do nothing."""

    def one_for_all(self) -> Any:
        """A read-only array of numpy's with this shape and dtype that repeats one zero: what a file has of it."""
        return np.broadcast_to(np.zeros((), self.dtype), self.shape)

    # What there is not

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise NoElements("the elements of a tensor decide here, and a meta tensor has none")

    __bool__ = __int__ = __float__ = __complex__ = __index__ = _refuse
    __array__ = item = tolist = tobytes = nonzero = _refuse


def fresh(shape: Any, dtype: Any) -> MetaArray:
    """A new array in C order. RuntimeError where not even the address space for it is there."""
    lengths = (shape,) if isinstance(shape, int) else tuple([operator.index(n) for n in shape])
    kind = np.dtype(dtype)
    size = math.prod(lengths) * kind.itemsize
    if size <= _SMALL or not _FLAGS:
        return MetaArray(np.empty(lengths, kind))
    try:
        memory = mmap.mmap(-1, size, flags=_FLAGS, prot=mmap.PROT_READ)
    except (OSError, OverflowError) as error:
        raise RuntimeError(f"a meta tensor of {size} bytes is larger than the address space: {error}") from None
    return MetaArray(np.ndarray(lengths, kind, memory))


def fresh_like(x: MetaArray, dtype: Any = None) -> MetaArray:
    """A new array whose dimensions lie in memory in the order of those of `x`, as numpy's results do."""
    kind = x.dtype if dtype is None else dtype
    if x.laid.flags.c_contiguous:
        return fresh(x.shape, kind)
    order = sorted(range(x.ndim), key=lambda i: -abs(x.strides[i]))
    made = fresh([x.shape[i] for i in order], kind)
    return made.transpose([order.index(i) for i in range(x.ndim)])


def is_basic(index: Any) -> bool:
    """Whether `index` holds integers, slices, None and ... only."""
    if isinstance(index, tuple):
        return all(is_basic(part) for part in index)
    return (
        index is None
        or index is Ellipsis
        or isinstance(index, slice)
        or type(index) is int
        or (isinstance(index, np.integer))
    )


def _lengths(size: int, shape: Any) -> tuple[int, ...]:
    """The shape that `reshape` was asked for, its -1 counted. ValueError where the numbers of elements differ."""
    given = shape[0] if len(shape) == 1 and not isinstance(shape[0], int | np.integer) else shape
    lengths = [operator.index(n) for n in given]
    if -1 in lengths:
        known = math.prod(n for n in lengths if n != -1)
        lengths[lengths.index(-1)] = size // known if known else 0
    if math.prod(lengths) != size:
        raise ValueError(f"cannot reshape array of size {size} into shape {tuple(given)}")
    return tuple(lengths)


def _steps(shape: tuple[int, ...], strides: tuple[int, ...], wanted: tuple[int, ...]) -> tuple[int, ...] | None:
    """The strides that show the elements under another shape; None where they must be copied for it."""
    dims = [(n, step) for n, step in zip(shape, strides, strict=True) if n != 1]
    runs: list[list[int]] = []  # [elements, step] of dimensions that follow one another in memory
    for n, step in dims:
        if runs and runs[-1][1] == n * step:
            runs[-1] = [runs[-1][0] * n, step]
        else:
            runs.append([n, step])
    found: list[int] = []
    left, step = runs.pop() if runs else (1, 1)
    for n in reversed(wanted):
        if n == 1:
            found.append(step)
            continue
        if left == 1 and runs:
            left, step = runs.pop()
        if left % n:
            return None
        found.append(step)
        left, step = left // n, step * n
    return tuple(reversed(found)) if left == 1 and not runs else None


def _operator(name: str, ufunc: Any) -> None:
    def forwards(self: MetaArray, other: Any) -> Any:
        return ufunc(self, other) if _meets(other) else NotImplemented

    def backwards(self: MetaArray, other: Any) -> Any:
        return ufunc(other, self) if _meets(other) else NotImplemented

    def in_place(self: MetaArray, other: Any) -> Any:
        ufunc(self, other)
        return self

    setattr(MetaArray, f"__{name}__", forwards)
    setattr(MetaArray, f"__r{name}__", backwards)
    setattr(MetaArray, f"__i{name}__", in_place)


def _meets(other: Any) -> bool:
    return isinstance(other, MetaArray | int | float | complex | np.generic | np.ndarray)


_BINARY = {
    **{"add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.true_divide, "floordiv": np.floor_divide},
    **{"mod": np.remainder, "pow": np.power, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor},
    **{"lshift": np.left_shift, "rshift": np.right_shift, "matmul": np.matmul},
    **{"lt": np.less, "le": np.less_equal, "eq": np.equal, "ne": np.not_equal, "gt": np.greater},
    "ge": np.greater_equal,
}
for _name, _ufunc in _BINARY.items():
    _operator(_name, _ufunc)
for _name, _ufunc in {"neg": np.negative, "pos": np.positive, "abs": np.absolute, "invert": np.invert}.items():
    setattr(MetaArray, f"__{_name}__", lambda self, ufunc=_ufunc: ufunc(self))
