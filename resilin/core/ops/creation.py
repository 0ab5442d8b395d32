"""Making tensors: from data, filled, ranges. PyTorch's signatures."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from resilin._base import place_finder
from resilin.core import dtype as dtypes
from resilin.core import nested_data
from resilin.core.batching.active import ACTIVE, batched_in
from resilin.core.determinism import choice, uninitialized
from resilin.core.device import CPU, default_device, device
from resilin.core.kernels.loader import kernel, native
from resilin.core.ops.errstate import SILENT, restore, silence
from resilin.core.ops.tracing import traced
from resilin.core.state.memory_format import orders
from resilin.core.state.size import given_size, lengths_of
from resilin.core.tensor import Tensor, wrap
from resilin.errors import UsageTypeError


def factory(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`make`, a span of traces, which takes the options that all of PyTorch's functions of this kind have, too.

    These are `memory_format`, `layout` (strided is the only one), and `pin_memory`, which changes nothing here.
    """

    @functools.wraps(make)
    def call(*args: Any, **options: Any) -> Tensor:
        if not options:
            return make(*args)
        options.pop("pin_memory", None)
        wanted = options.pop("layout", None)
        if wanted not in (None, strided):
            raise NotImplementedError(f"{make.__name__}(): there is only the layout resilin.strided, got {wanted!r}")
        order = options.pop("memory_format", None)
        made = make(*args, **options)
        return made if order is None else _in_format(make.__name__, made, order)

    way = traced(call, f"aten::{make.__name__}", make)
    if native is None:
        return way
    short = native.creation_call(make.__name__, way, choice)  # of the plainest calls, or `way` itself
    return way if short is way else functools.update_wrapper(short, way)


def _in_format(where: str, made: Tensor, wanted: Any) -> Tensor:
    """A new tensor's elements, moved in memory to the order of a memory format."""
    order = orders(where, made._array.ndim, wanted)
    if order is not None:
        made._array = made._dev.xp.ascontiguousarray(made._array.transpose(order[0])).transpose(order[1])
    return made


class layout:
    """How elements lie in memory. There is one: `resilin.strided`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"{place_finder.shown_root}.{self._name}"

    def __reduce__(self) -> str:
        return self._name


strided = layout("strided")


_device = device  # a function's argument has its name


def finish(array: Any, dev: Any, requires_grad: bool = False) -> Tensor:
    """A new leaf over a numpy array, moved to a device (the default one for None)."""
    target = default_device().home if dev is None else device(dev).home
    made = wrap(array if target is CPU else target.backend.from_host(array, target.index or 0), target)
    return made.requires_grad_(requires_grad) if requires_grad else made


def finish_new(
    make: Callable[[], Any],
    shape: tuple[int, ...],
    dtype: Any,
    dev: Any,
    requires_grad: bool = False,
    *,
    quiet: bool = True,
) -> Tensor:
    """`finish` of what `make` gives, a numpy array of this shape and dtype. It is not called for the meta device.

    `quiet=False` saves the cost of switching numpy's warnings off, for a `make` that gives none.
    """
    target = default_device().home if dev is None else device(dev).home
    if target is not CPU and not target.xp.elements:
        made = wrap(target.backend.empty(shape, dtype), target)
        return made.requires_grad_(requires_grad) if requires_grad else made
    if quiet:
        token = silence(SILENT)
        try:
            array = make()
        finally:
            restore(token)
    else:
        array = make()
    return wrap(array, CPU) if target is CPU and not requires_grad else finish(array, target, requires_grad)


def _np(dtype: Any) -> Any:
    return dtypes.default_np() if dtype is None else dtypes.to_numpy(dtype)


def to_array(data: Any, dtype: Any = None) -> np.ndarray[Any, Any]:
    """A new numpy array of `data`; Python floats get the default dtype, integers int64. What is too large is inf."""
    token = silence(SILENT)
    try:
        return _to_array(data, dtype)
    finally:
        restore(token)


def _to_array(data: Any, dtype: Any) -> np.ndarray[Any, Any]:
    kind = None if dtype is None else dtypes.to_numpy(dtype)
    if isinstance(data, Tensor):
        data = data._dev.backend.to_host(data._array)
    if isinstance(data, np.ndarray):  # its elements are converted as a tensor's are, those of sequences one by one
        return np.array(data, dtypes.from_numpy(data.dtype).np if kind is None else kind)
    return nested_data.array_of(data, kind, Tensor)


def tensor(
    data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, pin_memory: bool = False
) -> Tensor:
    """A new leaf with a copy of `data`: numbers, nested sequences, numpy arrays, tensors.

    Without `dtype`: bool, int64 and the default dtype for Python's numbers, their own for tensors and what is numpy's;
    in a sequence, that to which all promote. There a tensor is a number and must have one element: `stack` takes larger
    ones.
    """
    return finish(to_array(data, dtype), device, requires_grad)


def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """`data` as a tensor: itself where dtype and device fit, sharing memory with a numpy array, else a copy."""
    if isinstance(data, Tensor):
        return data.to(device=device, dtype=dtype) if dtype is not None or device is not None else data
    if isinstance(data, np.ndarray) and (device is None or _device(device).home is CPU):
        wanted = data.dtype if dtype is None else dtypes.to_numpy(dtype)
        if data.dtype == wanted and data.dtype.isnative:
            return from_numpy(data)
    return tensor(data, dtype=dtype, device=device)


def asarray(
    obj: Any, *, dtype: Any = None, device: Any = None, copy: bool | None = None, requires_grad: bool = False
) -> Tensor:
    """`obj` as a tensor: shares memory where it can, always with `copy=False` and never with True.

    Takes tensors, numpy arrays, objects with DLPack or the buffer protocol, numbers and sequences. ValueError when
    `copy` is False and the memory cannot be shared.
    """
    made = _shared(obj, dtype, device)
    if made is None:
        if copy is False:
            raise ValueError(f"asarray(): a {type(obj).__name__} cannot become this tensor without a copy")
        made = tensor(obj, dtype=dtype, device=device)
    elif copy:
        made = made.clone()
    return made.requires_grad_(requires_grad) if requires_grad else made


def _shared(obj: Any, dtype: Any, dev: Any) -> Tensor | None:
    """A tensor over the memory of `obj`, or None when dtype, device or the kind of object need a copy."""
    if isinstance(obj, Tensor):
        fits = dtype is None or dtypes.to_numpy(dtype) == obj._array.dtype
        return obj if fits and (dev is None or device(dev).home is obj._dev) else None
    if dev is not None and device(dev).home is not CPU:
        return None
    if isinstance(obj, bytes | bytearray | memoryview):
        return wrap(np.frombuffer(obj, dtypes.to_numpy(dtype or "uint8")), CPU)
    if hasattr(obj, "__dlpack__") and not isinstance(obj, np.ndarray):
        obj = np.from_dlpack(obj)
    if isinstance(obj, np.ndarray) and obj.dtype.isnative and (dtype is None or dtypes.to_numpy(dtype) == obj.dtype):
        return from_numpy(obj)
    return None


def from_numpy(array: np.ndarray[Any, Any]) -> Tensor:
    """A tensor over the memory of a numpy array: writes show on both sides."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"expected np.ndarray (got {type(array).__name__})")
    dtypes.from_numpy(array.dtype)
    return wrap(array, CPU)


_INT64, _INT, _REAL = np.dtype(np.int64), {int}, (int, float)
_native_line, _native_fill, _native_count = kernel("line"), kernel("fill_elements"), kernel("counted")
_MANY = 8192  # elements; native code looks at an array in less time than it saves for as many
_MOST = 2**60  # elements: their bytes are still a number that the machine has


def shape_of(size: tuple[Any, ...]) -> tuple[int, ...]:
    """The shape that `f(2, 3)`, `f((2, 3))` or `f([2, 3])` means. RuntimeError for negative lengths."""
    count = 1
    for n in size:
        if type(n) is not int or n < 0:
            break
        count *= n
    else:
        if count <= _MOST:  # most calls
            return size
    if len(size) == 1 and type(size[0]) is tuple and {*map(type, size[0])} <= _INT:
        return shape_of(size[0])
    shape = tuple(lengths_of("size", size))
    if shape and min(shape) < 0:
        raise RuntimeError(f"Trying to create tensor with negative dimension {min(shape)}: {list(shape)}")
    if math.prod(shape) > _MOST:
        raise RuntimeError(f"a tensor of size {list(shape)} has more elements than any memory can hold")
    return shape


@factory
def zeros(*sizes: Any, size: Any = None, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Zeros."""
    shape, kind = shape_of(given_size("zeros", sizes, size)), _np(dtype)
    return finish_new(lambda: np.zeros(shape, kind), shape, kind, device, requires_grad, quiet=False)


@factory
def ones(*sizes: Any, size: Any = None, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Ones."""
    shape, kind = shape_of(given_size("ones", sizes, size)), _np(dtype)
    return finish_new(lambda: _ones(shape, kind), shape, kind, device, requires_grad, quiet=False)


def _ones(shape: tuple[int, ...], kind: Any) -> Any:
    array = np.empty(shape, kind)
    if not _fill_many(array, 1):
        array.fill(1)  # in half of the time that np.ones takes for a small one
    return array


def _fill_many(array: Any, value: Any) -> bool:
    """Whether native code, on several threads, filled an array: one that is not small."""
    if array.size < _MANY:
        return False
    number = np.empty((), array.dtype)
    np.copyto(number, value, casting="unsafe")
    return bool(_native_fill(array, number))


@factory
def empty(*sizes: Any, size: Any = None, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Memory as it comes."""
    shape, kind = shape_of(given_size("empty", sizes, size)), _np(dtype)
    return finish_new(lambda: uninitialized(shape, kind), shape, kind, device, requires_grad, quiet=False)


def _number(where: str, value: Any) -> Any:
    """A number, or that of a tensor without dimensions, as Python's. UsageTypeError for anything else."""
    if isinstance(value, Tensor):
        if value._array.ndim or value._rg:
            raise UsageTypeError(
                f"{where}(): expected a number, or a tensor without dimensions that requires no gradient, got one of "
                f"shape {tuple(value.shape)}{' that requires one' if value._rg else ''}"
            )
        return value.item()
    return nested_data.number_of(where, value)


@factory
def full(size: Any, fill_value: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """`fill_value` everywhere; its own dtype unless `dtype` is given."""
    value = fill_value if type(fill_value) is float else _number("full", fill_value)
    target = dtypes.of_number(value) if dtype is None else dtypes.to_numpy(dtype)
    value = dtypes.number_for("full", value, target)
    shape = shape_of((size,))
    quiet = type(value) is not float or not abs(value) <= dtypes.HELD_BY_FLOATS
    return finish_new(lambda: _filled(shape, value, target), shape, target, device, requires_grad, quiet=quiet)


def _filled(shape: tuple[int, ...], value: Any, kind: Any) -> Any:
    array = np.empty(shape, kind)
    if _fill_many(array, value):
        return array
    if type(value) is float and kind.kind == "f" and kind.itemsize > 2:
        array.fill(value)  # in a third of the time that np.full takes for a small one
    else:
        np.copyto(array, value, casting="unsafe")
    return array


@factory
def eye(n: int, m: int | None = None, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Ones on the diagonal of an n x m matrix."""
    shape, kind = shape_of((n, n if m is None else m)), _np(dtype)
    return finish_new(lambda: np.eye(*shape, dtype=kind), shape, kind, device, requires_grad, quiet=False)


def _bounds(given: tuple[Any, ...], start: Any, end: Any, step: Any) -> tuple[Any, Any, Any]:
    """(start, end, step) of `arange(end)`, `arange(start, end)`, `arange(start, end, step)`, each by place or name."""
    places = [end] if len(given) == 1 and end is None else [start, end, step][: len(given)]
    if not len(given) + (end is not None) >= 1 or len(given) > 3 or any(value is not None for value in places):
        raise TypeError("arange(): expected (end), (start, end) or (start, end, step), each number once")
    if len(given) == 1 and end is None:
        given = (start, *given)
    start, end, step = (*given, *(start, end, step)[len(given) :])
    found = [
        _number("arange", value) if isinstance(value, (Tensor, np.generic)) else value for value in (start, end, step)
    ]
    return 0 if found[0] is None else found[0], found[1], 1 if found[2] is None else found[2]


@factory
def arange(
    *bounds: Any,
    start: Any = None,
    end: Any = None,
    step: Any = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """`arange(end)`, `arange(start, end)` or `arange(start, end, step)`: int64 for integers, else the default dtype."""
    if len(bounds) == 1 and type(bounds[0]) is int and start is end is step is dtype is None and 0 <= bounds[0] < _MOST:
        return finish_new(
            lambda: _counted(0, bounds[0], 1, bounds[0]), bounds, _INT64, device, requires_grad, quiet=False
        )  # most calls
    start, end, step = _bounds(bounds, start, end, step)
    if step == 0:
        raise RuntimeError("arange: step must be nonzero")
    if not all(math.isfinite(v) for v in (start, end, step)):
        raise RuntimeError(f"arange: unsupported range: {start} -> {end} in steps of {step}")
    outside = any(isinstance(v, int) and not -(2**63) <= v < 2**63 for v in (start, end, step))
    if outside or abs((end - start) / step) > _MOST:
        raise RuntimeError(f"arange: {start} -> {end} in steps of {step} is more than memory or int64 can hold")
    if (end - start) * step < 0:
        raise RuntimeError(f"arange: upper bound and lower bound inconsistent with step sign: {start}, {end}, {step}")
    if dtype is None:
        whole = all(isinstance(v, int) for v in (start, end, step))
        target = np.dtype(np.int64) if whole else dtypes.default_np()
    else:
        target = dtypes.to_numpy(dtype)
    if target.kind in "iu":
        return _whole_range((start, end, step), target, device, requires_grad)
    count = math.ceil((end - start) / step)
    values = lambda: np.arange(start, end, step).astype(target, copy=False)  # noqa: E731
    return finish_new(values, (count,), target, device, requires_grad)


def _counted(first: int, last: int, step: int, count: int) -> Any:
    """`count` numbers of int64 from `first` on, before `last`."""
    array = _native_count(first, step, count) if count >= _MANY else None
    return np.arange(first, last, step, dtype=np.int64) if array is None else array


def _whole_range(bounds: tuple[Any, Any, Any], target: Any, dev: Any, requires_grad: bool) -> Tensor:
    """`arange` of an integer dtype: of numbers rounded towards 0, and as many as before that but for int64."""
    first, last, stride = map(int, bounds)
    if stride == 0:
        raise RuntimeError(f"arange: step must be nonzero, {bounds[2]} is rounded to 0 for {dtypes.from_numpy(target)}")
    if target == np.int64:
        count = max(-(-(last - first) // stride), 0)
        return finish_new(lambda: _counted(first, last, stride, count), (count,), target, dev, requires_grad)
    count = math.ceil((bounds[1] - bounds[0]) / bounds[2])
    values = lambda: (first + np.arange(count) * stride).astype(target, copy=False)  # noqa: E731
    return finish_new(values, (count,), target, dev, requires_grad)


def _ends(where: str, start: Any, end: Any, steps: int) -> tuple[Any, Any, int]:
    """Two numbers and a count. RuntimeError for a tensor of several elements or a negative count."""
    if isinstance(steps, float):
        raise TypeError(f"{where}(): argument 'steps' must be int, not float")
    if steps < 0:
        raise RuntimeError(f"{where}: number of steps must be non-negative, got {steps}")
    start, end = (_number(where, value) if isinstance(value, Tensor) else value for value in (start, end))
    return start, end, int(steps)


def _line(where: str, start: Any, end: Any, steps: int, dtype: Any) -> Any:
    """`steps` numbers from `start` to `end`, counted from the nearer end; of an integer dtype from ends rounded
    towards 0. So an infinite end makes NaN, as in PyTorch."""
    start, end, steps = _ends(where, start, end, steps)
    if dtype is not None and dtypes.to_numpy(dtype).kind in "iu":
        start, end = (int(dtypes.number_for(where, v, dtypes.to_numpy(dtype)).real) for v in (start, end))
    wide = np.complex128 if isinstance(start, complex) or isinstance(end, complex) else np.float64
    first, last = wide(start), wide(end)
    if steps < 2:
        return np.full(steps, first)
    step, line = (last - first) / (steps - 1), np.arange(steps, dtype=wide)
    near, far = line[: steps // 2], line[steps // 2 :]
    near *= step
    near += first
    np.subtract(steps - 1, far, out=far)
    far *= step
    np.subtract(last, far, out=far)
    return line


def _spaced(where: str, values: Any, dtype: Any) -> Any:
    """Computed values in `dtype` or the default one of their kind. RuntimeError for complex values in a real dtype."""
    if dtype is None and values.dtype.kind == "c":
        return values.astype(dtypes.complex_of(dtypes.default_np()))
    kind = _np(dtype)
    if values.dtype.kind == "c" and kind.kind != "c":
        raise RuntimeError(f"{where}: complex values do not fit dtype {dtypes.from_numpy(kind)}")
    return values.astype(kind)


@factory
def linspace(
    start: Any, end: Any, steps: int, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """`steps` equally spaced values from `start` to `end`, both included; with an infinite end most are NaN."""
    array, kind = None, _np(dtype)
    if type(start) in _REAL and type(end) in _REAL and type(steps) is int and kind.char in "fd":
        array = _native_line(start, end, steps, kind.char == "d") if abs(start) < _MOST and abs(end) < _MOST else None
    if array is not None:
        return finish(array, device, requires_grad)
    with np.errstate(over="ignore", invalid="ignore"):
        return finish(_spaced("linspace", _line("linspace", start, end, steps, dtype), dtype), device, requires_grad)


@factory
def logspace(
    start: Any,
    end: Any,
    steps: int,
    base: float = 10.0,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """`base` to the power of `linspace(start, end, steps)`."""
    with np.errstate(over="ignore", invalid="ignore"):
        values = _spaced("logspace", np.power(base, _line("logspace", start, end, steps, dtype)), dtype)
    return finish(values, device, requires_grad)


def _like(name: str, what: str, fill: Any) -> Any:
    def like(input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
        target = input._array.dtype if dtype is None else dtypes.to_numpy(dtype)
        if device is not None and not (input._dev.xp.elements and _device(device).xp.elements):
            shape = input._array.shape
            return finish_new(lambda: fill(CPU.xp, shape, target), shape, target, device, requires_grad)
        made = wrap(fill(input._dev.xp, input._array.shape, target), input._dev)
        if ACTIVE and batched_in((input,)):
            made = ACTIVE[-1].made_like(input, made)
        if device is not None:
            made = made.to(device)
        return made.requires_grad_(requires_grad) if requires_grad else made

    like.__name__ = like.__qualname__ = name
    like.__doc__ = f"{what} of the input's shape, dtype and device."
    return factory(like)


zeros_like = _like("zeros_like", "Zeros", lambda xp, shape, dtype: xp.zeros(shape, dtype))
ones_like = _like("ones_like", "Ones", lambda xp, shape, dtype: xp.ones(shape, dtype))
empty_like = _like("empty_like", "Memory", lambda xp, shape, dtype: uninitialized(shape, dtype, xp))


@factory
def full_like(
    input: Tensor,
    fill_value: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """`fill_value` in the input's shape, dtype and device."""
    made: Tensor = empty_like(input, dtype=dtype, device=device)
    fill_value = dtypes.number_for("full_like", _number("full_like", fill_value), made._array.dtype)
    if ACTIVE and batched_in((made,)):
        made.fill_(fill_value)
    else:
        made._array[...] = fill_value
    return made.requires_grad_(requires_grad) if requires_grad else made
