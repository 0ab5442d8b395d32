"""In-place operations. Each runs the out-of-place op, writes its result into the tensor's memory, moves the tensor to
the op's place in the graph and raises the version; writes through views reach the base's history, too."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core import nested_data
from resilin.core.autograd.grad_mode import mode
from resilin.core.autograd.tape import check_layout, edge_of, is_differentiable, record
from resilin.core.batching.active import ACTIVE, batched_in
from resilin.core.device import CPU, different_devices
from resilin.core.kernels import pack
from resilin.core.kernels.contiguous import apart
from resilin.core.kernels.loader import kernel, native
from resilin.core.ops import creation
from resilin.core.ops.calling import tracked
from resilin.core.ops.errstate import FLOAT32, IN_NATIVE, SILENT, VARIABLE, is_half, restore, silence
from resilin.core.ops.index import check_range, getitem, index_put, split
from resilin.core.ops.registry import Op
from resilin.core.ops.shape import astype, reshape
from resilin.core.ops.tracing import traced
from resilin.core.state.versions import InferenceCount, View
from resilin.core.state.write_log import LOGS, before_write
from resilin.core.tensor import Tensor, wrap

_FEW = 4096  # elements; up to there numpy's `fill` is done before native code has looked at the array
_native_fill = kernel("fill_elements")


def _check_origin(tensor: Tensor) -> None:
    """RuntimeError when memory made outside of recording would be written where backward would not see it."""
    view = tensor._view
    if view is not None and not view.recorded and mode.grad and view.base._rg:
        raise _unrecorded_view()
    if not mode.inference and tensor.is_inference():
        raise RuntimeError(
            "Inplace update to inference tensor outside InferenceMode is not allowed: it was made in inference_mode. "
            "Make a clone() and change that"
        )


def _unrecorded_view() -> RuntimeError:
    return RuntimeError(
        "A view that was created in no_grad mode is being modified in place with grad mode enabled: backward could not "
        "follow the write to the tensor it is a view of. Create the view and modify it both inside no_grad(), or both "
        "outside of it"
    )


def check_writable(tensor: Tensor) -> None:
    """RuntimeError when an in-place write of `tensor` would escape the graph."""
    if tensor._view is not None and not tensor._view.recorded:
        raise _unrecorded_view()
    if tensor._view is not None and tensor._view.base._rg and tensor._view.base._node is None:
        raise RuntimeError("a view of a leaf Variable that requires grad is being used in an in-place operation.")
    if tensor._rg and edge_of(tensor) is tensor:
        raise RuntimeError(
            "a leaf Variable that requires grad is being used in an in-place operation. Use no_grad() around it"
        )


def write(tensor: Tensor, result: Tensor) -> Tensor:
    """Make `tensor` hold what `result` holds, and be what it is in the graph."""
    new, old = result._array, tensor._array
    if new.shape != old.shape:
        raise RuntimeError(
            f"output with shape {list(old.shape)} doesn't match the broadcast shape {list(new.shape)} "
            "of an in-place operation"
        )
    if LOGS:
        before_write(tensor)
    if new.dtype != old.dtype:
        source, target = dtypes.from_numpy(new.dtype), dtypes.from_numpy(old.dtype)
        if not dtypes.can_cast(source, target):
            raise RuntimeError(f"result type {source.name} can't be cast to the desired output type {target.name}")
        if result._rg:
            result = astype.call(result, old.dtype)
    if new is not old:
        _write_array(old, new)
    adopt(tensor, result)
    return tensor


def _write_array(old: Any, new: Any) -> None:
    target = _writable(old)
    token = silence(SILENT)  # what is too large becomes inf without a word
    try:
        target[...] = apart(new, target)
    finally:
        restore(token)


def _writable(array: Any) -> Any:
    """`array`, or the same elements where numpy has locked a view (of a diagonal, of a row of an expanded array).

    RuntimeError when elements share memory, or when the memory itself is read-only.
    """
    if getattr(array.flags, "writeable", True):
        return array
    if _overlaps(array):
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
            "Please clone() the tensor before performing the operation."
        )
    unlocked = array.view()
    try:
        unlocked.flags.writeable = True  # numpy allows it when the owner of the memory is writeable
    except ValueError:
        raise RuntimeError(
            "this tensor's memory is read-only, as is the numpy array it was made of: clone() it before writing"
        ) from None
    return unlocked


def _overlaps(array: Any) -> bool:
    """Whether two elements may lie at one place: no, when each stride steps over all that smaller strides reach."""
    reach = array.itemsize
    for stride, length in sorted((abs(s), n) for s, n in zip(array.strides, array.shape, strict=True) if n > 1):
        if stride < reach:
            return True
        reach += stride * (length - 1)
    return False


def adopt(tensor: Tensor, result: Tensor) -> None:
    """Move `tensor` to `result`'s place in the graph and count the write."""
    tensor._bump()
    if not mode.grad or not (result._rg or tensor._rg) or not is_differentiable(tensor._array):
        return  # integers that were given values of floats have no gradients
    view = tensor._view
    if view is None:
        tensor._move(result._node)
        tensor._rg = result._rg
    else:
        _rebase(tensor, view, result)


def _rebase(tensor: Tensor, view: View[Tensor], result: Tensor) -> None:
    """The base's history now ends in a node that takes the written part from `result`, the rest from before."""
    base = view.base
    check_layout(_replay(base._dev.xp, base._array, view.chain), tensor)
    params = (view.chain,)
    carrier = wrap(base._array, base._dev)
    record(_SPLICE, _SPLICE.generic, carrier, (base, result), params, None)
    base._move(carrier._node)
    tensor._move(result._node)
    base._rg, tensor._rg, view.seen = True, result._rg, base._node


def _replay(xp: Any, value: Any, chain: Any) -> Any:
    """`value` seen through a chain of view ops, as an array or as a tensor."""
    for op, params in chain:
        value = op.call(value, *params) if isinstance(value, Tensor) else op.generic.forward(xp, value, *params)
    return value


def _splice_forward(xp: Any, base: Any, part: Any, chain: Any = ()) -> Any:
    out = xp.array(base, copy=True)
    _writable(_replay(xp, out, chain))[...] = part
    return out


_SPLICE = Op("splice", _splice_forward, {"tensors": 2, "complex": True})


def _splice_base(xp: Any, g: Any, _y: Any, _base: Any, _part: Any, chain: Any = ()) -> Any:
    if isinstance(g, Tensor):
        return _SPLICE.call(g, xp.zeros_like(_replay(xp, g, chain)), chain)
    return _splice_forward(xp, g, 0, chain)


def _splice_part(xp: Any, g: Any, _y: Any, _base: Any, _part: Any, chain: Any = ()) -> Any:
    return _replay(xp, g, chain)


_SPLICE.vjp(0)(_splice_base)
_SPLICE.vjp(1)(_splice_part)


def make(
    fn: Callable[..., Any], name: str, ufunc: Any = None, short: Any = None, loop: str = ""
) -> Callable[..., Tensor]:
    """The in-place method of an op: `x.name(...)` does what `fn(x, ...)` does, into x's memory.

    Outside the graph a numpy `ufunc` writes straight into the memory, or the `short` way of one pass (`one_pass.py`),
    which for a function of one tensor may be a `loop` of native code.
    """

    def method(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if ACTIVE and batched_in((self, *args)):
            return ACTIVE[-1].write(self, fn, args, kwargs)  # type: ignore[no-any-return]
        if self._view is not None or type(self._vc) is InferenceCount:
            _check_origin(self)
        if LOGS:
            before_write(self)
        recorded = mode.grad and tracked((self, *args))
        if recorded:
            check_writable(self)
        elif (ufunc is not None and len(args) == 1 and not kwargs and _direct(ufunc, self, args[0])) or (
            short is not None and short(self, *args, out=self._array, **kwargs) is not None
        ):
            self._bump()
            return self
        return write(self, _on_old_value(fn, self, args, kwargs) if recorded else fn(self, *args, **kwargs))

    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"`{name[:-1]}` in place."
    way = _in_native(method)
    if not IN_NATIVE or (ufunc is None and not loop):
        return traced(way, f"aten::{name}")
    call = native.in_place_call(ufunc or getattr(np, loop, None), way, VARIABLE, SILENT, f"aten::{name}", loop)
    return functools.update_wrapper(call, method)


def _in_native(method: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`method` with its short way in native code in front, where it has one (`native/fast_path/writes.cpp`)."""
    if native is None:
        return method
    way = native.write_call(method.__name__, method)
    return method if way is method else functools.update_wrapper(way, method)


def _on_old_value(fn: Any, self: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The op's result. Where its rule reads the tensor's value, it keeps a copy of the one that will be overwritten.

    What reads a view of it is computed again, from a copy.
    """
    before = wrap(self._array, self._dev)
    edge = edge_of(self)
    before._node, before._rg = (None if edge is self else edge), self._rg
    alone, holders = sys.getrefcount(before), _holders(self._array)
    result: Tensor = fn(before, *args, **kwargs)
    if _holders(self._array) > holders:
        before._array = self._array.copy()
        return fn(before, *args, **kwargs)  # type: ignore[no-any-return]
    if sys.getrefcount(before) > alone and not _exchanged(self, result):  # a node holds it
        before._array = self._array.copy()
    return result


def _exchanged(tensor: Tensor, result: Tensor) -> bool:
    """Give `tensor` the memory of `result` and leave its own to the node that reads it: both would be copied else.

    False where anybody else might know of either memory.
    """
    if LOGS or type(tensor) is not Tensor or tensor._view is not None or result._vc is not None:
        return False
    if not _alike(tensor._array, result._array) or _held(tensor) > _ALONE + 1 or _held(result) > _ALONE:
        return False
    tensor._array = result._array
    return True


def _alike(a: Any, b: Any) -> bool:
    """Whether both are numpy's own arrays of one dtype, shape and layout, which own their memory."""
    return (
        type(a) is type(b) is np.ndarray
        and a.dtype is b.dtype
        and a.shape == b.shape
        and a.strides == b.strides
        and a.base is b.base is None
        and bool(a.flags.writeable)
    )


def _held(tensor: Tensor) -> int:
    """How often the array of `tensor` is referred to."""
    return sys.getrefcount(tensor._array)


_ALONE = _held(wrap(np.zeros(1), CPU))


def _holders(array: Any) -> int:
    """How many references there are to an array and to the one whose memory it shows, of which each view has one."""
    whole = getattr(array, "base", None)
    return sys.getrefcount(array) + (sys.getrefcount(whole) if isinstance(whole, type(array)) else 0)


def _fits(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether an array of `shape` broadcasts to `target` without widening it."""
    if len(shape) > len(target):
        return False
    return all(a in (1, b) for a, b in zip(reversed(shape), reversed(target), strict=False))


def _direct(ufunc: Any, self: Tensor, other: Any) -> bool:
    """Run `ufunc` with this tensor's memory as output, when dtype and shape allow it without conversion."""
    array = self._array
    if hasattr(self._dev.xp, "launch"):
        return _direct_on_device(ufunc.__name__, self, other)
    if array.dtype.kind not in "fc" or not getattr(array.flags, "writeable", False):  # numpy writes into numpy's only
        return False
    if isinstance(other, Tensor):
        if other._array.dtype is not array.dtype or other._dev is not self._dev:
            return False
        if other._array.shape != array.shape and not _fits(other._array.shape, array.shape):
            return False
        other = other._array
    elif not isinstance(other, (int, float)) or array.dtype.itemsize == 2:
        return False  # half types meet a number in float32, where the ufunc would round it first
    token = silence(SILENT)
    try:
        ufunc(array, other, out=array)
    finally:
        restore(token)
    return True


def _direct_on_device(name: str, self: Tensor, other: Any) -> bool:
    """`_direct` for a device that launches kernels: one of its library's in place of one for the result and a copy."""
    array, function = self._array, getattr(self._dev.xp.module, name, None)
    kind = array.dtype.kind
    if function is None or array.dtype.char not in ("fd" if name == "divide" else "fdil"):
        return False
    if isinstance(other, Tensor):
        if other._array.dtype != array.dtype or other._dev is not self._dev:
            return False
        if not _fits(other._array.shape, array.shape):
            return False
        other = other._array
    elif not ((kind == "f" and type(other) is float) or (type(other) is int and abs(other) < 1 << 31)):
        return False
    function(array, other, out=array)
    return True


@_in_native
def copy_(self: Tensor, src: Any, non_blocking: bool = False) -> Tensor:
    """Write the elements of `src` (broadcast, converted) into this tensor; a number everywhere."""
    if isinstance(src, int | float | complex):
        return fill_(self, src)
    if not isinstance(src, Tensor):
        raise TypeError(f"copy_(): expected a Tensor, got {type(src).__name__}")
    if ACTIVE and batched_in((self, src)):
        return ACTIVE[-1].write(self, _as_large, (src,), {})  # type: ignore[no-any-return]
    _check_origin(self)
    if not _fits(src._array.shape, self._array.shape):  # which is stricter than an assignment by index
        raise RuntimeError(f"copy_: shape {tuple(src.shape)} cannot be broadcast to {tuple(self.shape)}")
    if LOGS:
        before_write(self)
    if mode.grad and tracked((self, src)):
        setitem(self, Ellipsis, src if src._dev is self._dev else src.to(self._dev))
        return self
    _write_array(self._array, src._array if src._dev is self._dev else src.to(self._dev)._array)
    self._bump()
    return self


def _as_large(self: Tensor, src: Tensor) -> Tensor:
    """`src` in the shape and dtype of `self`."""
    return src.expand(self._array.shape).to(self.dtype)


_PLAIN_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


@_in_native
def fill_(self: Tensor, value: Any) -> Tensor:
    """Write one number everywhere."""
    if isinstance(value, Tensor):
        if value._array.ndim:
            raise RuntimeError(f"fill_ only supports a tensor of 0 dimensions, got one of {value._array.ndim}")
        return copy_(self, value)
    value = nested_data.number_of("fill_", value)
    if ACTIVE and batched_in((self,)):
        return copy_(self, wrap(self._dev.xp.asarray(value, self._array.dtype), self._dev))
    if self._view is not None or type(self._vc) is InferenceCount:
        _check_origin(self)
    if LOGS:
        before_write(self)
    if mode.grad and tracked((self,)):
        setitem(self, Ellipsis, value)
        return self
    array = self._array
    plain = type(array) is np.ndarray and array.dtype in _PLAIN_FLOATS and array.flags.writeable
    if plain and isinstance(value, int | float) and abs(value) < 1e38:
        _fill(array, value)  # most calls: nothing to convert, nothing to warn of
    elif type(array) is np.ndarray and array.flags.writeable and _is_short(value, array):
        _fill_short(array, value)
    else:
        _write_array(_once(array), dtypes.number_for("fill_", value, array.dtype))
    self._bump()
    return self


def _is_short(value: Any, array: Any) -> bool:
    """Whether a number is one that every dtype holds, or 16-bit floats hold after rounding."""
    return (type(value) is int or (type(value) is float and is_half(array))) and abs(value) < 1 << 7


def _fill_short(array: Any, value: Any) -> None:
    """Write it; to 16-bit floats as their bits, which numpy writes as it writes integers."""
    if is_half(array):
        _fill(array.view(np.uint16), np.array(value, array.dtype).view(np.uint16))
    else:
        _fill(array, dtypes.number_for("fill_", value, array.dtype))


def _fill(array: Any, value: Any) -> None:
    """`array.fill(value)`."""
    if array.size < _FEW or not _native_fill(array, np.asarray(value, array.dtype)):
        array.fill(value)


def _once(array: Any) -> Any:
    """Each element of an expanded array once, to write one number everywhere."""
    if getattr(array.flags, "writeable", True):
        return array
    return array[tuple([slice(0, 1 if step == 0 else None) for step in array.strides])]


@_in_native
def zero_(self: Tensor) -> Tensor:
    """Write zeros everywhere."""
    return fill_(self, 0)


def setitem(self: Tensor, index: Any, value: Any) -> None:
    """self[index] = value, in place. Leading dimensions of length 1 that a value has too many are left out."""
    value = _assigned(self, value)
    if index is False:
        return  # which chooses nothing, so that nothing is wrong with the value's shape
    first, index = split(index)
    if first is not None:
        self = getitem.call(self, first)
    if ACTIVE and batched_in((self, value, index)):
        known = isinstance(value, Tensor)
        new = value if known else wrap(self._dev.xp.asarray(value, self._array.dtype), self._dev)
        ACTIVE[-1].write(self, index_put.call, (new, index), {})
        return
    _check_origin(self)
    if LOGS:
        before_write(self)
    if isinstance(value, Tensor) and value._dev is not self._dev:
        if value._array.ndim or value._dev is not CPU:  # a single number on the CPU may come along, as in PyTorch
            raise different_devices("index_put", self._dev, value._dev)
        value = value.to(self._dev)
    if mode.grad and tracked((self, value)):
        check_writable(self)
        xp = self._dev.xp
        source = value if isinstance(value, Tensor) else wrap(xp.asarray(value, self._array.dtype), self._dev)
        _assign(self, index, source._array)
        carrier = wrap(self._array, self._dev)
        record(index_put, index_put.generic, carrier, (self, source), (index,), None)
        adopt(self, carrier)
        return
    _assign(self, index, value._array if isinstance(value, Tensor) else value)
    self._bump()


def _assigned(self: Tensor, value: Any) -> Any:
    """What is written for `value`: a number that elements hold, or a tensor without dimensions of length 1 in front."""
    if isinstance(value, int | float | complex):
        if is_half(self._array) and not isinstance(value, complex) and abs(value) > dtypes.HELD_BY_FLOATS:
            # too large for float16, it becomes infinite, as in PyTorch
            wide = pack.astype(np.asarray(value, np.float64), FLOAT32)
            return wrap(self._dev.xp.asarray(pack.astype(wide, self._array.dtype)), self._dev)
        return dtypes.number_for("setitem", value, self._array.dtype)
    if value is None or isinstance(value, (str, bytes)):
        raise TypeError(f"can't assign a {type(value).__name__} to a tensor of {self.dtype}")
    if not isinstance(value, Tensor):
        value = creation.finish(creation.to_array(value, self._array.dtype), self._dev)
    shape = value._array.shape
    if not shape or shape[0] != 1:
        return value
    ones = next((place for place, length in enumerate(shape) if length != 1), len(shape))
    return reshape.call(value, tuple(shape[ones:]))


def _assign(self: Tensor, index: Any, value: Any) -> None:
    check_range(self._array, index)
    shape = getattr(value, "shape", ())
    if 0 in shape and not _fits(shape, self._array[index].shape):  # of nothing, numpy writes any number of dimensions
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(shape)} cannot be broadcast to indexing result of shape "
            f"{list(self._array[index].shape)}"
        )
    target = _writable(self._array)
    token = silence(SILENT)
    try:
        self._dev.xp.write_at(target, index, value)
    except (ValueError, TypeError) as error:  # numpy raises a TypeError for values of several dimensions at a mask
        raise RuntimeError(f"shape mismatch: {error}") from None
    finally:
        restore(token)
