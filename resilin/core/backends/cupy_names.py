"""CuPy's namespace as ops expect it: numpy's parameters where CuPy has fewer, and the extras of `backends/numpy.py`.

The first argument of the functions here is the namespace that is being made; `xp.module` is CuPy itself. Places that
are written repeatedly are summed by sorting and one kernel, not by atomic additions, so every sum has one order.
"""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from resilin.core.backends import device_errors
from resilin.core.backends.numpy import is_basic, shortened
from resilin.core.kernels.cuda import prebuilt, products, row_sums, sources
from resilin.core.kernels.cuda.faults import Faults

# Functions of cupyx.scipy.special that take one array, where our ops of the same name have no other form on a device
SPECIAL = ("erf", "erfc", "erfcx", "erfinv", "gammaln", "digamma", "ndtr", "log_ndtr", "ndtri", "i0e", "i1", "i1e")


def make_xp(cupy: Any, cupyx: Any, host: Any, driver: Any = None) -> SimpleNamespace:
    """CuPy's functions and the extras; `host` is numpy's namespace, `driver` what launches kernels and multiplies, None
    for CuPy itself. The op registry adds ops that are missing here."""
    ours = [n for n, f in vars(np).items() if callable(f) and not isinstance(f, type) and not n.startswith("_")]
    made = SimpleNamespace(**{name: getattr(cupy, name) for name in ours if hasattr(cupy, name)})
    vars(made).update({name: functools.partial(function, made) for name, function in _EXTRAS.items()})
    made.module, made.host, made.fft, made.driver = cupy, host, cupy.fft, driver
    made.as_strided = cupy.lib.stride_tricks.as_strided
    made.linalg = _raising(cupy, cupyx)
    made.linalg.solve = functools.partial(_solve, made, made.linalg.solve)
    made.linalg.svd = functools.partial(_svd, made.linalg.svd)
    made.special = {name: getattr(cupyx.scipy.special, name) for name in SPECIAL}
    made.compiled = {}  # source file -> its module
    made.kernels = {}  # (source file, instance) -> its function on the one device; asking a module makes an object anew
    made.handles = []  # CuPy's objects of the functions: they keep their modules loaded
    made.plans = {}  # of `products`
    made.arrived = {}  # of `layer_norm`: stream's address -> zeros by which blocks count themselves
    made.launched = deque(maxlen=device_errors.QUEUED)  # names of the kernels launched last
    made.faults = Faults(made)
    made.tables = {}  # of `multi_tensor`: kernel -> the last table of where tensors lie, on the host and on the device
    return made


def _raising(cupy: Any, cupyx: Any) -> SimpleNamespace:
    """CuPy's linalg, which does not look at what cuSOLVER says of singular matrices unless it is told to."""

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with cupyx.errstate(linalg="raise"):
                return function(*args, **kwargs)

        return call

    return SimpleNamespace(**{n: watched(f) for n, f in vars(cupy.linalg).items() if callable(f) and n[0] != "_"})


def _solve(xp: Any, solve: Callable[..., Any], a: Any, b: Any) -> Any:
    """CuPy's does not stretch leading dimensions."""
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (xp.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (a, b))
    return solve(a, b)


def _count_nonzero(xp: Any, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """CuPy's keeps no dimensions."""
    return xp.sum(x != 0, axis=axis, keepdims=keepdims, dtype=np.int64)


def _svd(svd: Callable[..., Any], x: Any, **options: Any) -> Any:
    """CuPy's has no `hermitian`, which only says how to get there faster."""
    options.pop("hermitian", None)
    return svd(x, **options)


def _conj(xp: Any, x: Any) -> Any:
    dtype = getattr(x, "dtype", None)
    if dtype is None:  # a Python number
        return x.conjugate()
    return xp.module.conj(x) if dtype.kind == "c" else x


def _sign(xp: Any, x: Any) -> Any:
    """0 of NaN, as on the CPU; CuPy's is NaN."""
    return (x > 0).astype(x.dtype) - (x < 0).astype(x.dtype) if x.dtype.kind in "fV" else xp.module.sign(x)


def _matmul_add(xp: Any, a: Any, b: Any, c: Any) -> Any:
    return xp.matmul(a, b) + c


def _constant(xp: Any, array: Any, like: Any) -> Any:
    return xp.asarray(array).astype(like.dtype, copy=False)


def _astype(xp: Any, x: Any, dtype: Any) -> Any:
    return x if x.dtype == dtype else x.astype(dtype)


def _extreme(name: str, xp: Any, x: Any, axis: Any = None, *, keepdims: bool = False, initial: Any = None) -> Any:
    """CuPy's max and min know no `initial`."""
    reduce = getattr(xp.module, name)
    if initial is None:
        return reduce(x, axis=axis, keepdims=keepdims)
    axes = range(x.ndim) if axis is None else [a % x.ndim for a in ((axis,) if isinstance(axis, int) else axis)]
    if all(x.shape[a] for a in axes):
        pick = xp.maximum if name == "max" else xp.minimum
        return pick(reduce(x, axis=axis, keepdims=keepdims), initial)
    left = [1 if i in axes else n for i, n in enumerate(x.shape) if keepdims or i not in axes]
    return xp.full(tuple(left), initial, x.dtype)


def _narrow(name: str, xp: Any, x: Any, *args: Any) -> Any:
    """In float32 for bfloat16, rounded once: CuPy's functions leave float32, or do not compile for it."""
    if x.dtype.kind != "V":
        return getattr(xp.module, name)(x, *args)
    return getattr(xp.module, name)(x.astype(np.float32), *args).astype(x.dtype)


def _indices(xp: Any, shape: tuple[int, ...], sparse: bool = False) -> Any:
    """CuPy makes dense ones only."""
    grid = tuple(xp.arange(n).reshape((-1, *(1,) * (len(shape) - 1 - i))) for i, n in enumerate(shape))
    return grid if sparse else xp.stack([xp.broadcast_to(part, shape) for part in grid])


def _take_along_axis(xp: Any, x: Any, index: Any, axis: int) -> Any:
    return xp.module.take_along_axis(shortened(x, index, axis), xp.asarray(index), axis)


def _matmul(xp: Any, a: Any, b: Any, out: Any = None) -> Any:
    """The product; of 16-bit floats summed in float32 and rounded once, as PyTorch's is."""
    done = products.matmul(xp, a, b, out)
    if done is not None:
        return done
    if a.dtype.kind != "V":
        made = xp.module.matmul(a, b)
    else:
        made = xp.module.matmul(a.astype(np.float32), b.astype(np.float32)).astype(a.dtype)
    if out is None:
        return made
    out[...] = made
    return out


def _zeros_like(xp: Any, x: Any, dtype: Any = None, shape: Any = None) -> Any:
    return xp.zeros(x.shape if shape is None else shape, x.dtype if dtype is None else dtype)


def _index_add_zeros(xp: Any, g: Any, shape: tuple[int, ...], index: Any) -> Any:
    """Zeros of `shape` with `g` added at `index`, repeated places summed in order."""
    if is_basic(index):
        out = xp.zeros(shape, g.dtype)
        out[index] = g
        return out
    if not isinstance(index, tuple) and xp.asarray(index).dtype.kind in "iu" and g.size:
        rows = xp.asarray(index).astype(np.int64).ravel() % shape[0]
        total = row_sums.add_rows(xp, (shape[0], math.prod(shape[1:])), rows, g.reshape(rows.size, -1))
        return total.reshape(shape)
    return _add_at_places(xp, g, shape, index)


def _scatter_add_zeros(xp: Any, g: Any, shape: tuple[int, ...], axis: int, index: Any) -> Any:
    """Zeros of `shape` with `g` added at `index` along `axis`."""
    along = list(_indices(xp, index.shape, sparse=True))
    along[axis] = xp.asarray(index)
    return _add_at_places(xp, g, shape, tuple(along))


def _add_at_places(xp: Any, g: Any, shape: tuple[int, ...], index: Any) -> Any:
    places = xp.arange(math.prod(shape)).reshape(shape)[index]  # where each element of g belongs
    values = xp.broadcast_to(g, places.shape).reshape(-1, 1)
    return row_sums.add_rows(xp, (math.prod(shape), 1), places.ravel(), values).reshape(shape)


def _write_at(xp: Any, out: Any, index: Any, value: Any) -> None:
    """out[index] = value; the last of several values for one place stays, as numpy's does. CuPy leaves that open."""
    if is_basic(index):
        out[index] = value
        return
    places = xp.arange(out.size).reshape(out.shape)[index]
    values = xp.broadcast_to(xp.asarray(value, out.dtype), places.shape).ravel()
    if not places.size:
        return
    order = xp.argsort(places.ravel())  # stable
    ordered = places.ravel()[order]
    last = order[xp.searchsorted(ordered, ordered, side="right") - 1]  # all that write to one place write the same
    out[xp.unravel_index(ordered, out.shape)] = values[last]


def launch(xp: Any, source: str, kernel: str, grid: Any, block: Any, args: tuple[Any, ...]) -> None:
    """Run one instance of a kernel of `kernels/cuda`; NVRTC compiles it at its first use, CuPy keeps it on disk."""
    function = xp.kernels.get((source, kernel))
    if function is None:
        function = xp.kernels[source, kernel] = _function(xp, source, kernel)
    xp.launched.append(kernel)
    try:
        function(grid, block, args)
    except device_errors.of_cuda(xp.module) as error:
        raise device_errors.fault(xp, f"the launch of {kernel}", error) from error


def _function(xp: Any, source: str, kernel: str) -> Any:
    loaded = _loaded(xp, source, kernel)
    if xp.driver is None:
        return loaded
    xp.handles.append(loaded)
    return xp.driver.kernel(kernel, loaded.kernel.ptr)


def _loaded(xp: Any, source: str, kernel: str) -> Any:
    ready = prebuilt.find(source, kernel, f"sm_{xp.module.cuda.Device().compute_capability}")
    if ready is not None:
        return xp.module.RawModule(path=ready[0]).get_function(ready[1])
    try:
        return _compiled(xp, source).get_function(kernel)
    except xp.module.cuda.compiler.CompileException as error:
        raise device_errors.uncompiled(source, kernel, error) from error


def _compiled(xp: Any, source: str) -> Any:
    module = xp.compiled.get(source)
    if module is None:
        module = xp.compiled[source] = xp.module.RawModule(
            code=sources.text(source), options=sources.options(source), name_expressions=sources.instances(source)
        )
    return module


def _from_host(xp: Any, value: Any) -> Any:
    """A numpy array, or a tuple of them, on the device; anything else as it is."""
    if isinstance(value, tuple | list):
        return type(value)(_from_host(xp, part) for part in value)
    return xp.array(value) if isinstance(value, np.ndarray | np.generic) else value


def _to_host(xp: Any, value: Any) -> Any:
    """A device's array, or those of a tuple or list, as numpy's; anything else as it is."""
    if isinstance(value, tuple | list):
        return type(value)(_to_host(xp, part) for part in value)
    if not isinstance(value, xp.module.ndarray):
        return value
    with device_errors.translated(xp, "a copy from the device"):
        return value.get()


_EXTRAS: dict[str, Callable[..., Any]] = {
    "matmul_add": _matmul_add,
    "conj": _conj,
    "sign": _sign,
    "astype": _astype,
    "constant": _constant,
    "max": lambda xp, *args, **options: _extreme("max", xp, *args, **options),
    "min": lambda xp, *args, **options: _extreme("min", xp, *args, **options),
    **{name: functools.partial(_narrow, name) for name in ("cumsum", "cumprod", "tril", "triu")},
    "count_nonzero": _count_nonzero,
    "indices": _indices,
    "zeros_like": _zeros_like,
    "index_add_zeros": _index_add_zeros,
    "scatter_add_zeros": _scatter_add_zeros,
    "take_along_axis": _take_along_axis,
    "matmul": _matmul,
    "write_at": _write_at,
    "launch": launch,
    "from_host": _from_host,
    "to_host": _to_host,
}
