"""What programs take from torch._utils: tensors in a flat tensor and back, or over storages; numbers of devices."""

from __future__ import annotations

import traceback
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from resilin.core import device as devices
from resilin.core.api.manipulation.joining import cat
from resilin.core.backends.absent import Absent
from resilin.core.ops import creation
from resilin.core.tensor import Parameter, Tensor
from resilin.errors import UsageTypeError


def _flatten_dense_tensors(tensors: Iterable[Tensor]) -> Tensor:
    """Return all elements of tensors of one dtype, in order, in one dimension."""
    flat = [tensor.contiguous().view(-1) for tensor in tensors]
    if len(flat) == 1:
        return flat[0]
    return cat(flat) if flat else creation.empty(0)


def _unflatten_dense_tensors(flat: Tensor, tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Return views of `flat` in the shapes of `tensors`, as `_flatten_dense_tensors` put them there."""
    made, start = [], 0
    for tensor in tensors:
        made.append(flat.narrow(0, start, tensor.numel()).view_as(tensor))
        start += tensor.numel()
    return tuple(made)


def _take_tensors(tensors: Iterable[Tensor], size_limit: int) -> Iterator[list[Tensor]]:
    """Yield groups of tensors of one type, each of `size_limit` bytes or little more, and then the rest."""
    groups: dict[str, list[Tensor]] = defaultdict(list)
    taken: dict[str, int] = defaultdict(int)
    for tensor in tensors:
        kind, size = str(tensor.type()), tensor.numel() * tensor.element_size()
        if taken[kind] + size > size_limit and taken[kind] > 0:
            yield groups.pop(kind)
            taken[kind] = 0
        groups[kind].append(tensor)
        taken[kind] += size
    yield from (group for group in groups.values() if group)


def _reorder_tensors_as(tensors: Iterable[Tensor], ordered_tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Return `tensors`, of which those of one type are in order, in the order of types of `ordered_tensors`."""
    by_kind: dict[str, list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        by_kind[str(tensor.type())].append(tensor)
    each = {kind: iter(group) for kind, group in by_kind.items()}
    return tuple(next(each[str(tensor.type())]) for tensor in ordered_tensors)


def _rebuild_tensor(storage: Any, storage_offset: int, size: Sequence[int], stride: Sequence[int]) -> Tensor:
    """Return a tensor over a storage that has a dtype. An untyped one has none: `_rebuild_tensor_v3` is told it."""
    dtype = getattr(storage, "dtype", None)
    if dtype is None:
        raise UsageTypeError(
            f"_rebuild_tensor: a {type(storage).__name__} has no dtype; _rebuild_tensor_v3 takes it as an argument"
        )
    return _over(storage, storage_offset, size, stride, dtype)


def _over(storage: Any, offset: int, size: Sequence[int], stride: Sequence[int], dtype: Any) -> Tensor:
    whole: Any = creation.tensor([], dtype=dtype, device=storage.device)
    made: Tensor = whole.set_(storage).as_strided(tuple(size), tuple(stride), offset)
    return made


def _rebuild_tensor_v2(
    storage: Any,
    storage_offset: int,
    size: Sequence[int],
    stride: Sequence[int],
    requires_grad: bool,
    backward_hooks: Any,
    metadata: Any = None,
) -> Tensor:
    """Return `_rebuild_tensor` with `requires_grad`; hooks and notes are left out."""
    return _rebuild_tensor(storage, storage_offset, size, stride).requires_grad_(requires_grad)


def _rebuild_tensor_v3(
    storage: Any,
    storage_offset: int,
    size: Sequence[int],
    stride: Sequence[int],
    requires_grad: bool,
    backward_hooks: Any,
    dtype: Any,
    metadata: Any = None,
) -> Tensor:
    """Return a tensor of `dtype` over an untyped storage."""
    return _over(storage, storage_offset, size, stride, dtype).requires_grad_(requires_grad)


def _rebuild_parameter(data: Tensor, requires_grad: bool, backward_hooks: Any) -> Parameter:
    """Return a parameter over `data`."""
    return Parameter(data, requires_grad)


def _rebuild_parameter_with_state(data: Tensor, requires_grad: bool, backward_hooks: Any, state: Any) -> Parameter:
    """Return a parameter over `data`, with the attributes of `state`."""
    made = Parameter(data, requires_grad)
    fields, slots = state if isinstance(state, tuple) else (state, None)
    for name, value in {**(fields or {}), **(slots or {})}.items():
        setattr(made, name, value)
    return made


class ExceptionWrapper:
    """An error of another thread or process on its way: `reraise` raises it here, with the traceback in its text."""

    def __init__(self, exc_info: Any, where: str = "in background") -> None:
        self.exc_type, self.exc_msg, self.where = exc_info[0], "".join(traceback.format_exception(*exc_info)), where

    def reraise(self) -> None:
        """Raise an error of the same class; RuntimeError where the class takes other arguments than a text."""
        text = f"Caught {self.exc_type.__name__} {self.where}.\nOriginal {self.exc_msg}"
        try:
            error = self.exc_type(text)
        except Exception:  # noqa: BLE001 - constructors of programs' errors may do anything
            raise RuntimeError(text) from None
        raise error


def _element_size(dtype: Any) -> int:
    """Return the bytes of an element."""
    return int(dtype.itemsize)


def _get_device_index(device: Any, optional: bool = False, allow_cpu: bool = False) -> int:
    """Return the number that a device has or is; -1 of the CPU. ValueError where there is none.

    optional: without a number, that of the current device. allow_cpu: the CPU is no error.
    """
    if isinstance(device, str):
        device = devices.device(device)
    if isinstance(device, devices.device):
        if device.type == "cpu" and not allow_cpu:
            raise ValueError(f"Expected a non cpu device, but got: {device}")
        if device.type == "cpu":
            return -1
        device = device.index
    if device is None and optional:
        device = devices.device("cuda").index or 0
    if not isinstance(device, int):
        raise ValueError(f"Expected a device with a specified index or an integer, but got: {device!r}")
    return device


def _get_available_device_type() -> str | None:
    """Return "cuda" where such a device can be used, else None."""
    return "cuda" if _get_all_device_indices() else None


def _get_all_device_indices() -> list[int]:
    """Return the numbers of the CUDA devices."""
    backend: Any = devices.device("cuda").backend
    return [] if isinstance(backend, Absent) else list(range(backend.count()))
