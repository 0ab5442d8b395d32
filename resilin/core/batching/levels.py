"""Tensors with hidden dimensions. A `Level` is one running vmap; a `BatchedTensor` shows its shape without the
dimensions of the levels it is batched at, which lie in front of its `_inner` tensor, outermost level first.

The inner tensors are plain: the tape, the kernels and the backward see nothing else. A gradient per sample comes out of
it because no op on batched tensors mixes samples.
"""

from __future__ import annotations

import itertools
import threading
from typing import Any

import numpy as np

from resilin.core.autograd.grad_mode import mode
from resilin.core.batching.active import ACTIVE, BATCHED, Unbatchable
from resilin.core.kernels.common import array_namespace
from resilin.core.ops.shape import broadcast_to, copy, moveaxis, permute_dims, reshape
from resilin.core.public import dispatch
from resilin.core.state.size import Size, check_dim
from resilin.core.state.versions import share_version
from resilin.core.tensor import Tensor

_number = itertools.count().__next__


def unreadable() -> BaseException:
    """What to raise where somebody reads the numbers of a batched tensor."""
    return Unbatchable() if ACTIVE else escaped()


def escaped() -> RuntimeError:
    """The error for a batched tensor that outlived its vmap."""
    return RuntimeError(
        "vmap: a tensor has escaped from the function that was vmapped, and is used after its end. Return it from the "
        "function instead"
    )


class Level:
    """One running vmap: how many samples, and what it says of random numbers. Later ones have larger numbers.

    `call` runs an op on batched arguments. A level of a vmap that goes sample by sample hides nothing: `single`.
    """

    __slots__ = ("alive", "call", "number", "randomness", "single", "size")

    def __init__(self, size: int, randomness: str, call: Any, single: bool = False) -> None:
        self.number, self.size, self.randomness, self.call = _number(), size, randomness, call
        self.single, self.alive = single, True

    def drawing(self) -> None:
        """A random number is about to be drawn, in this thread. RuntimeError where a vmap refuses it."""
        if _here.drawing:
            return
        for level in _here.levels:
            if level.randomness == "error":
                raise RuntimeError(
                    "vmap: called random operation while in randomness error mode. Please either use the 'same' or "
                    "'different' randomness flags on vmap or perform the randomness operation out of vmap"
                )
            if level.randomness == "different" and not level.single:
                raise Unbatchable

    def __repr__(self) -> str:
        return f"<vmap level {self.number} of {self.size}>"

    def drawn(self, shape: tuple[int, ...], draw: Any) -> Any:
        """`draw(shape)`, for each sample of the vmaps that want different numbers."""
        own = tuple(level for level in current() if level.randomness == "different")
        if not own or any(level.randomness == "error" for level in _here.levels):
            return draw(shape)
        _here.drawing = True
        try:
            return BatchedArray(draw((*(level.size for level in own), *shape)), own)
        finally:
            _here.drawing = False

    def write(self, tensor: Tensor, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """An in-place operation of which something is batched: what `fn(tensor, ...)` gives, written into `tensor`."""
        before = tensor
        if mode.grad and any(isinstance(v, Tensor) and v.requires_grad for v in (tensor, *args)):
            before = hide(copy.call(inner(tensor)), levels_of(tensor))  # the graph keeps what will be overwritten
        result = fn(before, *args, **kwargs)
        own = levels_of(tensor)
        if any(level not in own for level in levels_of(result)):
            raise RuntimeError(
                "vmap: an in-place operation is not possible because the tensor written to is shared by all samples, "
                "and what is written is not. Use the out-of-place operation, or make the tensor of one that is mapped "
                "(zeros_like, new_zeros, clone)"
            )
        if result._array.shape != tensor._array.shape:
            raise RuntimeError(
                f"output with shape {list(tensor.shape)} doesn't match the broadcast shape {list(result.shape)} of an "
                "in-place operation"
            )
        target: Any = inner(tensor)
        target.copy_(full(result, own))
        return tensor

    def elementwise(self, fn: Any, *values: Any) -> Tensor:
        """`fn` of values of which some are batched, where fn treats all elements alike."""
        levels = union(values)
        rank = max(value._array.ndim for value in values if isinstance(value, Tensor))
        return hide(fn(*(lead(v, levels, rank) if isinstance(v, Tensor) else v for v in values)), levels)

    def along(self, fn: Any, tensor: Tensor, dim: int) -> tuple[Tensor, ...]:
        """`fn(tensor, dim)`, which treats all lines along a dimension alike and gives several tensors."""
        levels = levels_of(tensor)
        axis = check_dim(dim, tensor._array.ndim) + len(levels)
        return tuple(hide(part, levels) for part in fn(inner(tensor), axis))

    def made_like(self, tensor: Tensor, made: Tensor) -> Tensor:
        """`made`, which no sample has touched, with memory of its own for every sample of `tensor`."""
        return hide(copy.call(full(made, levels_of(tensor))), levels_of(tensor))


class _Here(threading.local):
    def __init__(self) -> None:
        self.levels: tuple[Level, ...] = ()
        self.drawing = False  # for all samples, by who knows what to do with them


_here = _Here()


def current() -> tuple[Level, ...]:
    """The levels of this thread's running vmaps that hide a dimension, outermost first."""
    return tuple(level for level in _here.levels if not level.single)


def running_here() -> bool:
    """Return whether this thread is inside a vmap."""
    return bool(_here.levels)


class entered:
    """Inside, `level` is the innermost of this thread."""

    def __init__(self, level: Level) -> None:
        self._level = level

    def __enter__(self) -> Level:
        ACTIVE.append(self._level)
        _here.levels = (*_here.levels, self._level)
        return self._level

    def __exit__(self, *exc: object) -> None:
        ACTIVE.remove(self._level)
        self._level.alive = False
        _here.levels = tuple(level for level in _here.levels if level is not self._level)


class BatchedArray:
    """What a batched tensor holds as its array: shape and dtype as they look inside vmap. Its numbers cannot be read
    there: whoever tries gets `Unbatchable`, and the vmap goes through the batch in a loop."""

    __slots__ = ("dtype", "inner", "levels", "ndim", "shape", "size")
    __hash__ = object.__hash__

    def __init__(self, inner: Any, levels: tuple[Level, ...]) -> None:
        self.inner, self.levels = inner, levels
        self.shape = inner.shape[len(levels) :]
        self.dtype = inner.dtype
        self.ndim = len(self.shape)
        self.size = int(np.prod(self.shape))

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return int(self.inner.dtype.itemsize)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements of one sample."""
        return self.size * self.itemsize

    @property
    def flags(self) -> Any:
        """Those of all samples together."""
        return self.inner.flags

    @property
    def strides(self) -> tuple[int, ...]:
        """Steps in bytes, of one sample."""
        strides: tuple[int, ...] = self.inner.strides[len(self.levels) :]
        return strides

    def reshape(self, *shape: Any) -> BatchedArray:
        """Each sample under another shape."""
        target = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
        lengths = list(target)
        if -1 in lengths:
            known = -int(np.prod(lengths))
            lengths[lengths.index(-1)] = self.size // known if known else 0
        return BatchedArray(self.inner.reshape(self.inner.shape[: len(self.levels)] + tuple(lengths)), self.levels)

    def min(self) -> Any:
        """The least of all samples' integers: what a check of indices asks."""
        return self._whole_numbers().min()

    def max(self) -> Any:
        """The largest of all samples' integers: what a check of indices asks."""
        return self._whole_numbers().max()

    def _whole_numbers(self) -> Any:
        if self.dtype.kind not in "iu":
            raise unreadable()
        return self.inner

    def __eq__(self, other: object) -> Any:
        return self._compared("equal", other)

    def __ne__(self, other: object) -> Any:
        return self._compared("not_equal", other)

    def _compared(self, name: str, number: Any) -> BatchedArray:
        if not isinstance(number, int | float):
            raise unreadable()
        return BatchedArray(getattr(array_namespace(self.inner), name)(self.inner, number), self.levels)

    def __mul__(self, number: Any) -> BatchedArray:
        if not isinstance(number, int | float):
            raise unreadable()
        return BatchedArray(self.inner * number, self.levels)

    __rmul__ = __mul__

    def astype(self, dtype: Any, copy: bool = True) -> BatchedArray:
        """Each sample in another dtype."""
        return BatchedArray(self.inner.astype(dtype, copy=copy), self.levels)

    def sum(self) -> BatchedArray:
        """The sum of each sample."""
        found = self.inner.sum(tuple(range(len(self.levels), self.inner.ndim)))
        return BatchedArray(np.asarray(found) if isinstance(found, np.generic) else found, self.levels)

    def __array__(self, *ignored: Any, **also: Any) -> Any:
        raise unreadable()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__array_"):
            raise AttributeError(name)
        raise unreadable()

    def _refuse(self, *ignored: Any, **also: Any) -> Any:
        raise unreadable()

    __array_ufunc__ = __array_function__ = _refuse
    __bool__ = __int__ = __float__ = __index__ = __len__ = __iter__ = __getitem__ = __setitem__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __invert__ = __neg__ = __abs__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __truediv__ = __rtruediv__ = _refuse
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __and__ = __or__ = __xor__ = _refuse


def _no_data(what: str) -> Any:
    def refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            f"vmap: {what} of a tensor inside vmap, which stands for a whole batch of them: its numbers cannot leave "
            "the function, or decide what it does. Use where() instead of if, and return the tensor"
        )

    return refuse


def _anew(name: str) -> Any:
    def new(self: Any, *args: Any, **kwargs: Any) -> Tensor:
        return self.levels[-1].made_like(self, getattr(Tensor, name)(self, *args, **kwargs))  # type: ignore[no-any-return]

    return new


class BatchedTensor(Tensor):
    """A tensor as it looks inside vmap; `_inner` is the whole, with the dimensions of `levels` in front."""

    __slots__ = ("_inner", "levels")
    __tensor_function__ = __torch_function__ = dispatch.disabled  # functions see it as any other tensor
    _inner: Tensor
    levels: tuple[Level, ...]
    __hash__ = object.__hash__

    def __init__(self, inner: Tensor, levels: tuple[Level, ...]) -> None:
        self._inner, self.levels = inner, levels
        self._dev = inner._dev
        self._view = self._hooks = self._grad_slot = None

    @property
    def _array(self) -> Any:
        return BatchedArray(self._inner._array, self.levels)

    @property
    def _vc(self) -> Any:  # type: ignore[override]
        return share_version(self._inner)

    @property
    def _rg(self) -> bool:  # type: ignore[override]
        return self._inner.requires_grad

    @property
    def _node(self) -> Any:
        return self._inner._node

    @property
    def _grad(self) -> Any:  # type: ignore[override]
        grad = self._inner._grad
        return None if grad is None else BatchedTensor(grad, self.levels)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Set `requires_grad` of all samples."""
        self._inner.requires_grad_(requires_grad)
        return self

    def detach(self) -> Tensor:
        """The same memory outside the graph."""
        return BatchedTensor(self._inner.detach(), self.levels)

    @property  # type: ignore[misc]
    def data(self) -> Tensor:
        """The same memory outside the graph; writes to it are not noticed by backward."""
        return BatchedTensor(self._inner.data, self.levels)

    def retain_grad(self) -> None:
        """Keep the gradient of all samples in `grad`."""
        self._inner.retain_grad()

    def register_hook(self, hook: Any) -> Any:
        """Call `hook(grad)` with the gradient of all samples, as batched as the tensor is."""
        levels = self.levels

        def seen(grad: Tensor) -> Any:
            result = hook(BatchedTensor(grad, levels))
            return result._inner if isinstance(result, BatchedTensor) else result

        return self._inner.register_hook(seen)

    def size(self, dim: int | None = None) -> Any:
        """`shape`, or the length of dimension `dim`."""
        return Size(self._array.shape) if dim is None else Size(self._array.shape)[dim]

    def __repr__(self) -> str:
        return f"BatchedTensor({self._inner!r}, vmapped over its first {len(self.levels)} dimension(s))"

    __str__ = __repr__

    new_zeros, new_ones, new_empty, new_full = map(_anew, ("new_zeros", "new_ones", "new_empty", "new_full"))

    def backward(self, *ignored: Any, **also: Any) -> None:
        """Refused, as `.grad` of a sample has no place to be."""
        raise RuntimeError("backward() inside vmap is not supported: use func.grad or func.vjp there")

    item = _no_data("item()")
    tolist = _no_data("tolist()")
    numpy = __array__ = _no_data("the array")
    __bool__ = _no_data("the truth value")
    __float__ = __int__ = __complex__ = __index__ = _no_data("the number")
    data_ptr = _no_data("data_ptr()")


BATCHED.update((BatchedArray, BatchedTensor))


def levels_of(value: Any) -> tuple[Level, ...]:
    """The levels a value is batched at: none for anything but a batched tensor or array."""
    return value.levels if isinstance(value, BatchedTensor | BatchedArray) else ()


def inner(value: Tensor) -> Tensor:
    """The whole of a batched tensor; any other itself."""
    return value._inner if isinstance(value, BatchedTensor) else value


def union(values: Any) -> tuple[Level, ...]:
    """All levels of `values` (also inside sequences), outermost first. RuntimeError for one whose vmap has ended."""
    found: dict[int, Level] = {}
    for value in values:
        if isinstance(value, tuple | list):
            found |= {level.number: level for level in union(value)}
        for level in levels_of(value):
            if not level.alive:
                raise escaped()
            found[level.number] = level
    return tuple(found[number] for number in sorted(found))


def lead(value: Tensor, levels: tuple[Level, ...], rank: int | None = None) -> Tensor:
    """The tensor with a dimension in front for each of `levels`: of length 1 for those it is not batched at.

    With `rank`, its own dimensions are as many: ones are put in front of them.
    """
    own = levels_of(value)
    whole = inner(value)
    shown = tuple(whole._array.shape[len(own) :])
    front = tuple(level.size if level in own else 1 for level in levels)
    shape = front + (1,) * (len(shown) if rank is None else rank - len(shown)) * (rank is not None) + shown
    return whole if whole._array.shape == shape else reshape.call(whole, shape)


def lead_array(value: Any, levels: tuple[Level, ...]) -> Any:
    """The same of an array, batched or not."""
    own = levels_of(value)
    array = value.inner if isinstance(value, BatchedArray) else value if hasattr(value, "shape") else np.asarray(value)
    front = tuple(level.size if level in own else 1 for level in levels)
    return array.reshape(front + array.shape[len(own) :])


def full(value: Tensor, levels: tuple[Level, ...]) -> Tensor:
    """`lead` with the whole length for each of `levels`: without a copy, stretched."""
    led = lead(value, levels)
    shape = tuple(level.size for level in levels) + tuple(led._array.shape[len(levels) :])
    return led if led._array.shape == shape else broadcast_to.call(led, shape)


def hide(whole: Tensor, levels: tuple[Level, ...]) -> Tensor:
    """A tensor whose first dimensions, one for each of `levels` (or 1 long), are hidden."""
    if not levels:
        return whole
    shape = tuple(level.size for level in levels) + tuple(whole._array.shape[len(levels) :])
    return BatchedTensor(whole if whole._array.shape == shape else broadcast_to.call(whole, shape), levels)


def expose(value: Tensor, level: Level, dim: int = 0) -> Tensor:
    """The tensor with the samples of `level` along dimension `dim`, counted among those that will show."""
    others = tuple(other for other in levels_of(value) if other is not level)
    made = hide(full(value, (*others, level)) if level not in levels_of(value) else _last(value, level), others)
    return made if dim == 0 else moveaxis.call(made, 0, dim)


def _last(value: Any, level: Level) -> Tensor:
    """The inner tensor with the dimension of `level` behind those of the other levels."""
    place, count = value.levels.index(level), len(value.levels)
    order = [*range(place), *range(place + 1, count), place, *range(count, value._inner._array.ndim)]
    return value._inner if order == sorted(order) else permute_dims.call(value._inner, tuple(order))  # type: ignore[no-any-return]


def insert(value: Tensor, level: Level, dim: int) -> Tensor:
    """A tensor whose dimension `dim` holds the samples of `level`, the innermost level so far, and is hidden."""
    moved = value if dim == 0 else moveaxis.call(value, dim, 0)
    own = levels_of(moved)
    return BatchedTensor(inner(moved), (*own, level))
