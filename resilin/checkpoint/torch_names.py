"""The names that state dicts of PyTorch are pickled with, and what each makes here. Anything else is refused."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NoReturn

import numpy as np

from resilin._base.pickles.costs import Costs
from resilin._base.pickles.plain_names import CONTAINERS, VALUE_KEYS, VALUES, listed
from resilin._base.pickles.unpickling import Allowed, Lacking
from resilin._base.text import shown
from resilin.core import dtype as dtypes
from resilin.core.dtype import dtype as DType
from resilin.core.ops.creation import empty
from resilin.core.state.copying import array_over, check_repeats
from resilin.core.state.size import Size
from resilin.core.tensor import Parameter, Tensor, wrap
from resilin.distributed.wire.array_codec import ARRAY_KEYS, ARRAY_STATES, ARRAYS

_STORAGES: dict[str, DType] = {
    "BoolStorage": dtypes.bool_,
    "ByteStorage": dtypes.uint8,
    "CharStorage": dtypes.int8,
    "ShortStorage": dtypes.int16,
    "IntStorage": dtypes.int32,
    "LongStorage": dtypes.int64,
    "HalfStorage": dtypes.float16,
    "BFloat16Storage": dtypes.bfloat16,
    "FloatStorage": dtypes.float32,
    "DoubleStorage": dtypes.float64,
    "ComplexFloatStorage": dtypes.complex64,
    "ComplexDoubleStorage": dtypes.complex128,
}


@dataclass(frozen=True)
class StorageType:
    """The class of a storage in a pickle. An untyped one counts bytes, and tensors over it say their dtype."""

    dtype: DType
    is_raw_storage: ClassVar[bool] = True


@dataclass(frozen=True)
class Memory:
    """A tensor's storage: `data` holds its bytes (uint8), elements are of `dtype`."""

    data: Any
    dtype: DType
    earned: int = 0
    """Bytes that were read for it, and may be copied."""
    place: Callable[[Tensor], Tensor] | None = None
    """Moves a tensor over it to where the reader wants what was on the storage's device."""
    is_raw_storage: ClassVar[bool] = True


def _tensor(costs: Costs, memory: Any, offset: Any, shape: Any, strides: Any, *state: Any) -> Tensor:
    """torch._utils._rebuild_tensor and _rebuild_tensor_v2: `state` is requires_grad, hooks, and bits of views."""
    return _made(costs, memory, offset, shape, strides, None, *state)


def _tensor_of_dtype(
    costs: Costs, memory: Any, offset: Any, shape: Any, strides: Any, grad: Any, hooks: Any, *more: Any
) -> Tensor:
    """torch._utils._rebuild_tensor_v3: over bytes, with the dtype said."""
    return _made(costs, memory, offset, shape, strides, more[0], grad, hooks, *more[1:])


def _made(
    costs: Costs,
    memory: Any,
    offset: Any,
    shape: Any,
    strides: Any,
    dtype: Any,
    grad: Any = False,
    hooks: Any = None,
    bits: Any = None,
) -> Tensor:
    if not isinstance(memory, Memory):
        raise TypeError("a tensor needs a storage")
    dtype = memory.dtype if dtype is None else dtype
    if type(dtype) is not DType or hooks:
        raise TypeError("a tensor needs a dtype, and has no hooks")
    if dtype is dtypes.bool_ and memory.dtype is not dtype:
        raise TypeError("a boolean tensor needs a storage of booleans")
    lengths, steps = _counts(shape), _counts(strides)
    (first,) = _counts((offset,))
    if len(lengths) != len(steps):
        raise ValueError(f"a tensor of {len(lengths)} dimensions has {len(steps)} strides")
    held = len(memory.data) // dtype.itemsize
    last = first + sum((length - 1) * step for length, step in zip(lengths, steps, strict=True))
    if min(lengths, default=1) and last >= held:
        raise ValueError(f"a tensor reaches to element {last} of a storage of {held}")
    if math.prod(length or 1 for length in lengths) * dtype.itemsize >= 1 << 63:
        raise ValueError(f"no memory holds a tensor of shape {list(lengths)}")
    check_repeats(lengths, dtype.itemsize, len(memory.data))
    if not min(lengths, default=1):
        array: Any = np.empty(lengths, dtype.np)
    else:
        bytes_apart = [step * dtype.itemsize for step in steps]
        array = array_over(memory.data, dtype.np, lengths, bytes_apart, first * dtype.itemsize)
    made = wrap(_with_bits(costs, array, bits))
    if memory.place is not None:
        made = memory.place(made)
    if grad and (dtype.is_floating_point or dtype.is_complex):
        made.requires_grad_()
    return made


def _with_bits(costs: Costs, array: Any, bits: Any) -> Any:
    """PyTorch notes at a view that its elements are to be conjugated or negated; here it is done."""
    if not bits:
        return array
    if type(bits) is not dict or not bits.keys() <= {"conj", "neg"}:
        raise ValueError(f"a tensor has unknown notes {shown(bits)}")
    if any(step == 0 and length > 1 for step, length in zip(array.strides, array.shape, strict=True)):
        raise ValueError("a tensor that repeats its elements is conjugated or negated")
    costs.spend(2 * array.nbytes)
    array = np.conj(array) if bits.get("conj") else array
    return np.negative(array) if bits.get("neg") else array


def _counts(values: Any) -> tuple[int, ...]:
    if not isinstance(values, tuple) or not all(type(value) is int and 0 <= value < 1 << 63 for value in values):
        raise TypeError(f"expected lengths, got {shown(values)}")
    return values


def _parameter(data: Any = None, grad: Any = True, hooks: Any = None, state: Any = None) -> Parameter:
    """torch._utils._rebuild_parameter; attributes that were set on it (`state`) are left out."""
    if not isinstance(data, Tensor) or hooks:
        raise TypeError("a parameter needs a tensor, and has no hooks")
    return Parameter(data.detach(), bool(grad) and (data.dtype.is_floating_point or data.dtype.is_complex))


def _of_type(costs: Costs, function: Any, kind: Any, arguments: Any, state: Any) -> Any:
    """torch._tensor._rebuild_from_type_v2: a tensor with attributes, which are left out; no subclass."""
    if not isinstance(function, Allowed) or function.call not in (_tensor, _tensor_of_dtype, _parameter):
        raise TypeError("a tensor is rebuilt by something else")
    if kind is not NAMES["torch", "Tensor"] and kind is not NAMES["torch.nn.parameter", "Parameter"]:
        raise TypeError("a tensor of another class")
    return function.call(costs, *arguments) if function.counts else function.call(*arguments)


def _plain_tensor(*arguments: Any) -> NoReturn:
    raise TypeError("a tensor of PyTorch 0.1, which has no storage of its own")


def _size(lengths: Any) -> Size:
    return Size(_counts(tuple(listed(lengths))))


def _meta_tensor(dtype: Any, shape: Any, strides: Any, grad: Any) -> Tensor:
    """torch._utils._rebuild_meta_tensor_no_storage: one without elements. Its strides are those of C order."""
    if type(dtype) is not DType or type(grad) is not bool:
        raise TypeError("a tensor without elements has a dtype")
    return empty(_counts(shape), dtype=dtype, device="meta").requires_grad_(grad)


def _namespace() -> Namespace:
    return Namespace()


def _set_namespace(costs: Costs, target: Namespace, state: Any) -> Namespace:
    """What a parser of arguments has found: values by name."""
    if type(state) is not dict or not all(type(name) is str for name in state):
        raise TypeError(f"an argparse.Namespace has the state {shown(state)}")
    vars(target).update(state)
    return target


def _device(*name: Any) -> str:
    """Devices come as text: the file's machine had it, this one need not."""
    if not name or type(name[0]) is not str or not all(type(part) is int for part in name[1:]):
        raise TypeError("a device has a name")
    return ":".join(map(str, name))


_CALLS: dict[tuple[str, str], Callable[..., Any]] = {
    ("torch._utils", "_rebuild_tensor"): _tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _tensor_of_dtype,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): _parameter,
    ("torch._utils", "_rebuild_meta_tensor_no_storage"): _meta_tensor,
    ("torch._tensor", "_rebuild_from_type_v2"): _of_type,
    ("torch.nn.parameter", "Parameter"): _parameter,
    ("torch", "Tensor"): _plain_tensor,
    ("torch", "Size"): _size,
    ("torch", "device"): _device,
}
_COUNTING = (_tensor, _tensor_of_dtype, _of_type)
_MORE_DTYPES = {"float": "float32", "double": "float64", "half": "float16", "long": "int64", "int": "int32"}


_DTYPE = Lacking("a dtype that tensors here cannot have", "tensors of another dtype")
_LACKING: dict[tuple[str, str], Lacking] = {
    **{("torch", f"float8_{kind}"): _DTYPE for kind in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e8m0fnu")},
    ("torch", "float4_e2m1fn_x2"): _DTYPE,
    ("torch", "complex32"): _DTYPE,
    ("torch._utils", "_rebuild_sparse_tensor"): Lacking("a sparse tensor, and those are not read", "its to_dense()"),
    ("torch._utils", "_rebuild_qtensor"): Lacking("a quantized tensor, and those are not read", "its dequantize()"),
}


def _table() -> dict[tuple[str, str], Any]:
    made: dict[tuple[str, str], Any] = {
        name: Allowed(".".join(name), call, counts=call in _COUNTING) for name, call in _CALLS.items()
    }
    made |= {**CONTAINERS, **VALUES, **ARRAYS}
    made["argparse", "Namespace"] = Allowed("argparse.Namespace", _namespace)
    for name, dtype in _STORAGES.items():
        made["torch", name] = made["torch.cuda", name] = made["torch.storage", name] = StorageType(dtype)
    made["torch.storage", "UntypedStorage"] = made["torch", "UntypedStorage"] = StorageType(dtypes.uint8)
    for dtype in (*dtypes.ALL, *dtypes.ALL_COMPLEX):
        made["torch", "bool" if dtype is dtypes.bool_ else dtype.name] = dtype
    made |= _LACKING
    for name, of in _MORE_DTYPES.items():
        made["torch", name] = dtypes.by_name(of)
    return made


NAMES: Final[Mapping[tuple[str, str], Any]] = _table()
STATES: Final[Mapping[type, Callable[[Costs, Any, Any], Any]]] = {**ARRAY_STATES, Namespace: _set_namespace}
KEYS: Final = VALUE_KEYS | ARRAY_KEYS
