"""How a declared op is called: Tensors to arrays, scalars and dtypes promoted, errors named, the call recorded."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core.argument_checks import plain_words
from resilin.core.autograd import node_names
from resilin.core.autograd.grad_mode import mode
from resilin.core.autograd.tape import Node, Pick, is_differentiable, mark_view, next_seq, record, same_memory
from resilin.core.batching.active import ACTIVE, batched_in
from resilin.core.device import CPU, device, different_devices, lacking
from resilin.core.kernels.common import array_namespace, is_array
from resilin.core.kernels.loader import native
from resilin.core.ops.errstate import refused
from resilin.core.ops.tracing import traced
from resilin.core.state.versions import View
from resilin.core.state.write_log import LOGS
from resilin.core.tensor import Parameter, Tensor, wrap, wrap_in_python
from resilin.errors import NoElements, ResilinError


class Declared(Protocol):
    """What a call needs of an op; `registry.Op` says what the fields mean."""

    name: str
    n: int
    arguments: tuple[str, ...]
    defaults: tuple[Any, ...]
    takes: str
    elementwise: bool
    floats: bool
    wide_numbers: bool
    exponent: bool
    view: bool
    outputs: int
    differentiable: bool
    generic: Any
    impls: dict[str, Any]

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """All arguments by position, defaults filled in."""


def make_call(op: Declared) -> Callable[..., Any]:
    """What users call: native code where there is some, in front of a function made for the op's arguments."""
    if op.n == 1 and op.outputs == 1:
        call = _single(op)
    elif op.elementwise and op.n == 2:
        call = _binary(op)
    elif op.n < 0:
        call = _sequence(op)
    else:
        call = _general(op)
    call.__name__ = call.__qualname__ = op.name
    call.__doc__ = op.__doc__
    plain = _plain(op, call)
    return traced(call, node_names.traced(op.name)) if plain is None else functools.update_wrapper(plain, call)


def _plain(op: Declared, otherwise: Callable[..., Any] | None = None) -> Any:
    """The native call of plain tensors: Tensors and Parameters of the CPU whose arrays go into the op as they are.

    Everything else, and errors, it leaves to `otherwise`, which says what a call means; without it, it answers None.
    None where there is no native code for the op.
    """
    if native is None or op.outputs != 1 or not op.n:
        return None
    pair = op.elementwise and op.n == 2  # promoted to one dtype
    defaults = op.defaults[max(op.n, 1) :]
    facts = (pair, op.floats, op.view, op.differentiable)
    name = node_names.traced(op.name)
    return native.plain_call(op, op.impls, op.generic, defaults, finish, otherwise, name, op.n, *facts)


def finish(
    op: Declared, impl: Any, out: Tensor, inputs: tuple[Any, ...], params: tuple[Any, ...], residual: Any
) -> None:
    """Say that `out` is a view of the first input, and record how it was computed, where that is so."""
    array = out._array
    if op.view and same_memory(array, inputs[0]._array):
        mark_view(out, inputs[0], op, params)
    if op.differentiable and mode.grad and tracked(inputs) and is_differentiable(array):
        record(op, impl, out, inputs, params, residual)


def tracked(inputs: tuple[Any, ...]) -> bool:
    """Whether a tensor among `inputs` requires gradients."""
    for value in inputs:
        if isinstance(value, Tensor) and (value._rg or (value._view is not None and value.requires_grad)):
            return True
    return False


def _single(op: Declared) -> Callable[..., Any]:
    """One tensor in, one out: most calls, so without loops."""
    generic, impls, floats = op.generic, op.impls, op.floats
    defaults = op.defaults[1:]
    most = len(defaults)

    def call(input: Any, *params: Any, **kwargs: Any) -> Tensor:
        if ACTIVE and batched_in((input, *params)):
            return ACTIVE[-1].call(op, (input, *params), kwargs)
        if not isinstance(input, Tensor):
            raise TypeError(f"{op.name}(): expected a Tensor, got {type(input).__name__}")
        if kwargs or len(params) > most:
            params = op.bind((input, *params), kwargs)[1:]
        elif len(params) < most:
            params += defaults[len(params) :]
        if params:
            params = plain_parameters(params)
        dev, array = input._dev, input._array
        if floats and array.dtype.kind in "iub":
            array = array.astype(dtypes.default_np())
        impl = impls.get(dev.type, generic) if impls else generic
        try:
            value = impl.forward(dev.xp, array, *params)
        except _ARRAY_ERRORS as error:
            raise op_error(op, (array,), params, error, dev) from None
        residual = None
        if impl.residual:
            value, residual = value
        out = wrap(as_array(value), dev)
        finish(op, impl, out, (input,), params, residual)
        return out

    return call


def plain_parameters(params: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return an op's parameters with Python's numbers for numpy's scalars, which would widen a result's dtype."""
    if any([isinstance(value, np.generic) for value in params]):
        return tuple(value.item() if isinstance(value, np.generic) else value for value in params)
    return params


def as_array(value: Any) -> Any:
    """What a function of the array library gave, as an array: numpy gives scalars where 0-d arrays are meant."""
    return np.asarray(value) if isinstance(value, np.generic) else value


def _joined(where: str, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Two tensors of different devices on one: a single number on the CPU follows the other, as in PyTorch.

    RuntimeError names both devices when neither is one.
    """
    if a._dev is CPU and not a._array.ndim:
        return a.to(b._dev), b
    if b._dev is CPU and not b._array.ndim:
        return a, b.to(a._dev)
    raise different_devices(where, a._dev, b._dev)


def _binary(op: Declared) -> Callable[..., Any]:
    generic, impls, floats, wide, exponent = op.generic, op.impls, op.floats, op.wide_numbers, op.exponent

    def call(input: Any, other: Any) -> Tensor:
        if ACTIVE and batched_in((input, other)):
            return ACTIVE[-1].call(op, (input, other), {})
        if isinstance(input, Tensor) and isinstance(other, Tensor):
            if other._dev is not input._dev:
                input, other = _joined(op.name, input, other)
            dev, x, y = input._dev, input._array, other._array
            if x.dtype is not y.dtype:
                x, y = common(x, y)
            dtype = x.dtype
        elif isinstance(input, Tensor):
            dev = input._dev
            x, y, other = weak(input._array, other, op.name, floats, wide, exponent)
            dtype = x.dtype
        elif isinstance(other, Tensor):
            dev = other._dev
            y, x, input = weak(other._array, input, op.name, floats, wide)
            dtype = y.dtype
        else:
            given = f"{type(input).__name__} and {type(other).__name__}"
            raise TypeError(f"{op.name}(): expected a Tensor, got {given}")
        if floats and dtype.kind in "iub":
            x, y = to_float(x), to_float(y)
        impl = impls.get(dev.type, generic)
        try:
            value = impl.forward(dev.xp, x, y)
        except _ARRAY_ERRORS as error:
            raise op_error(op, (x, y), (), error, dev) from None
        residual = None
        if impl.residual:
            value, residual = value
        out = wrap(as_array(value), dev)
        finish(op, impl, out, (input, other), (), residual)
        return out

    return call


def common(x: Any, y: Any) -> tuple[Any, Any]:
    """Both arrays in their common dtype."""
    target = dtypes.promote_np(x.dtype, y.dtype)
    return (x if x.dtype == target else x.astype(target)), (y if y.dtype == target else y.astype(target))


def weak(
    x: Any, number: Any, where: str, floats: bool = False, wide: bool = False, exponent: bool = False
) -> tuple[Any, Any, Any]:
    """An array beside a Python number: the number never widens the array within its kind.

    As in PyTorch: integers that become floats, because the op `floats` or the number is none of theirs, meet the number
    as it is; where they stay integers, it wraps around to their dtype, but an `exponent` must fit. Beside half types it
    is rounded to their dtype unless the op uses it `wide`, in float32.
    """
    kind = x.dtype.kind
    if kind == "f" and (type(number) is float or type(number) is int):  # most calls
        return x, number, number
    if isinstance(number, np.generic):
        number = number.item()
    if is_array(number):
        return (*common(x, number), number)
    if not isinstance(number, int | float | complex):
        raise TypeError(f"{where}(): expected a Tensor or a number, got {type(number).__name__}")
    if kind in "iub":
        if floats or not isinstance(number, int):
            return weak(x.astype(dtypes.default_np()), number, where, floats, wide)
        return (*_whole(x, number, where, exponent), number)
    if kind == "V" and not isinstance(number, complex) and not wide:  # numpy does not know that bfloat16 is a float
        return x, array_namespace(x).asarray(float(number), x.dtype), number
    return x, number, number


def _whole(x: Any, number: int, where: str, exponent: bool) -> tuple[Any, Any]:
    """Integers beside an int, both in the dtype of the integers; booleans beside one are int64."""
    if isinstance(number, bool):
        return x, number
    unsized = x.dtype.kind == "b"
    if unsized:
        x = x.astype(np.int64)
    info = np.iinfo(x.dtype)
    if info.min <= number <= info.max:
        return x, number
    if exponent and number < 0:
        raise RuntimeError(f"{where}(): Integers to negative integer powers are not allowed.")
    if exponent or unsized:
        dtypes.number_for(where, number, x.dtype)
    return x, array_namespace(x).asarray(dtypes.wrapped(where, number, x.dtype), x.dtype)


def to_float(x: Any) -> Any:
    """An integer array or number in the default dtype; others unchanged."""
    if isinstance(x, int | float | complex):
        return x
    return x.astype(dtypes.default_np()) if x.dtype.kind in "iub" else x


_ARRAY_ERRORS = (ValueError, TypeError, IndexError, AttributeError, RuntimeError)


def op_error(op: Declared, arrays: Any, params: Any, error: Exception, dev: device) -> Exception:
    """PyTorch's type of error for what the array library says of an op's arguments, naming op, shapes and dtypes.

    IndexError stays one, a wrong type of a parameter stays a TypeError, everything else is a RuntimeError. Errors that
    are resilin's own already pass as they are, and those of a device that failed say what `dev` was doing.
    """
    if isinstance(error, NoElements):
        return NoElements(f"{op.name}: {error}")
    if isinstance(error, RuntimeError):
        told = dev.backend.explained(error, op.name)
        if told is not error:
            raise told from error
        raise error
    if isinstance(error, ResilinError):
        return error
    if isinstance(error, AttributeError):
        return lacking(op.name, error)
    if isinstance(error, TypeError) and op.n > 0:
        for x in arrays:
            if hasattr(x, "dtype") and x.dtype.kind not in op.takes.replace("f", "fV"):
                return refused(op.name, x, op.takes)
    given = [f"{_dtype_name(x)} {list(x.shape)}" if hasattr(x, "shape") else repr(x) for x in arrays if x is not None]
    if op.n == 2 and len(given) == 2 and "broadcast" in str(error):
        return RuntimeError(
            f"{op.name}: the shapes {tuple(arrays[0].shape)} and {tuple(arrays[1].shape)} cannot be broadcast: "
            "counted from the right, lengths must be equal or 1"
        )
    if op.n < 0:
        return RuntimeError(f"{op.name}(): shapes {', '.join(given)} do not fit together: {error}")
    others = [
        f"{name}={value!r}"
        for name, value in zip(op.arguments[max(op.n, 1) :], params, strict=False)
        if value is None or isinstance(value, bool | int | float | str | tuple)
    ]
    text = f"{op.name}({', '.join(given + others)}): {plain_words(error)}"
    if isinstance(error, IndexError) and not isinstance(error, ValueError):
        return IndexError(text)
    return (
        TypeError(text)
        if isinstance(error, TypeError) and "numpy" not in text and "ufunc" not in text
        else (RuntimeError(text))
    )


def _dtype_name(array: Any) -> str:
    try:
        return str(dtypes.from_numpy(array.dtype)).rpartition(".")[2]
    except TypeError:
        return str(array.dtype)


def _general(op: Declared) -> Callable[..., Any]:
    n, total = op.n, len(op.arguments)
    places = tuple(range(n))
    generic, impls = op.generic, op.impls

    def call(*args: Any, **kwargs: Any) -> Any:
        if ACTIVE and batched_in((*args, *kwargs.values())):
            return ACTIVE[-1].call(op, args, kwargs)
        if kwargs or len(args) != total:
            args = op.bind(args, kwargs)
        args = (*args[:n], *plain_parameters(args[n:]))
        dev: device | None = None
        arrays = list(args)  # the tensors' arrays, then the parameters
        for place in places:
            value = args[place]
            if isinstance(value, Tensor):
                if dev is None:
                    dev = value._dev
                elif value._dev is not dev:
                    raise different_devices(op.name, dev, value._dev)
                arrays[place] = value._array
        dev = dev or CPU
        impl = impls.get(dev.type, generic) if impls else generic
        try:
            value = impl.forward(dev.xp, *arrays)
        except _ARRAY_ERRORS as error:
            raise op_error(op, arrays[:n], args[n:], error, dev) from None
        inputs, params = args[:n], args[n:]
        residual = None
        if impl.residual:
            value, residual = value
        if op.outputs != 1:
            return _several(op, impl, value, dev, inputs, params, residual)
        out = wrap(as_array(value), dev)
        finish(op, impl, out, inputs, params, residual)
        return out

    return call


def _sequence(op: Declared) -> Callable[..., Any]:
    def call(tensors: Any, *params: Any) -> Tensor:
        inputs = tuple(tensors)
        if ACTIVE and batched_in(inputs):
            return ACTIVE[-1].call(op, (inputs, *params), {})
        if not inputs:
            raise RuntimeError(f"{op.name}(): expected a non-empty list of Tensors")
        dev = inputs[0]._dev
        arrays = [value._array for value in inputs]
        for value in inputs:
            if value._dev is not dev:
                raise different_devices(op.name, dev, value._dev)
        dtype = arrays[0].dtype
        if any([array.dtype is not dtype for array in arrays]):
            target = functools.reduce(dtypes.promote_np, [array.dtype for array in arrays])
            arrays = [array if array.dtype == target else array.astype(target) for array in arrays]
        impl, residual = op.impls.get(dev.type, op.generic), None
        try:
            value = impl.forward(dev.xp, arrays, *params)
        except _ARRAY_ERRORS as error:
            raise op_error(op, arrays, params, error, dev) from None
        if impl.residual:
            value, residual = value
        out = wrap(as_array(value), dev)
        finish(op, impl, out, inputs, params, residual)
        return out

    return call


def _several(
    op: Declared, impl: Any, values: Any, dev: device, inputs: Any, params: Any, residual: Any
) -> tuple[Tensor, ...]:
    outs = tuple(wrap(value, dev) for value in values)
    if op.differentiable and mode.grad and tracked(inputs):
        carrier = wrap(values[0], dev)
        record(op, impl, carrier, inputs, params, residual)
        carrier._node.outputs = len(outs)
        for index, out in enumerate(outs):
            if is_differentiable(out._array):
                out._node, out._rg = Pick(carrier._node, index), True
    return outs


if native is not None:
    native.record_configure(Tensor, Parameter, View, Node, mode, next_seq)
    native.plain_configure(CPU, CPU.xp, ACTIVE, LOGS, wrap_in_python)
