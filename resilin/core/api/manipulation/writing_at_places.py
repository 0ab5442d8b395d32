"""Writes at places and masks that go straight into a tensor's memory, where no graph follows them.

Each has the signature of the function that it is the in-place form of, and `out`, the array to write into: the tensor's
own. It answers None, and has written nothing, where the function's result has to be computed first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core.api.manipulation import index_checks
from resilin.core.device import CPU
from resilin.core.kernels import places
from resilin.core.kernels.loader import kernel
from resilin.core.state.size import check_dim
from resilin.core.tensor import Tensor

_fill_where = kernel("fill_where")


def _alone(input: Any, *others: Any) -> bool:
    """Whether a plain tensor of the CPU can be written while `others` are read: none of them may lie in its memory."""
    if type(input) is not Tensor or input._dev is not CPU or not input._array.ndim or not input._array.flags.writeable:
        return False
    for other in others:
        if type(other) is Tensor and (not other._array.ndim or np.may_share_memory(input._array, other._array)):
            return False
    return True


def _masked_fill_into(input: Tensor, mask: Tensor, value: Any, *, out: Any) -> Tensor | None:
    """`masked_fill_` of numbers."""
    kind = out.dtype
    if kind.kind == "f" or kind.kind == "V":
        held = type(value) in (float, int) and abs(value) <= dtypes.HELD_BY_FLOATS
    else:
        held = type(value) is int and kind.kind in "iu" and np.iinfo(kind).min <= value <= np.iinfo(kind).max
    if not held or not _alone(input) or type(mask) is not Tensor or mask._dev is not CPU:
        return None
    if mask._array.dtype.char != "?":
        return None
    if _fill_where(out, mask._array, np.array(value, kind)):
        return input
    if kind.kind != "f" or mask._array.shape != out.shape:
        return None
    np.putmask(out, mask._array, value)
    return input


def _scatter_into(
    input: Tensor, dim: int, index: Tensor, src: Any = None, *, value: Any = None, reduce: str | None = None, out: Any
) -> Tensor | None:
    """`scatter_` of a tensor."""
    if reduce is not None or type(src) is not Tensor or type(index) is not Tensor or not _alone(input, index, src):
        return None
    axis = check_dim(dim, input._array.ndim)
    array, source = index_checks.scattered("scatter", input, axis, index, src)
    return input if places.put_along(out, array, source._array, axis) else None


def _added_into(input: Tensor, dim: int, index: Tensor, source: Tensor, add: Any, check: Any) -> Tensor | None:
    """What `add` writes of an index and a source that `check` answers for."""
    if not _alone(input, index, source) or type(index) is not Tensor or type(source) is not Tensor:
        return None
    array = input._array
    if array.dtype.itemsize == 2 or array.dtype is not source._array.dtype or not array.flags.c_contiguous:
        return None  # 16-bit floats are added in float32, and rounded once
    axis = check_dim(dim, array.ndim)
    add(*check(input, axis, index, source), axis)
    return input


def _scatter_add_into(input: Tensor, dim: int, index: Tensor, src: Tensor, *, out: Any) -> Tensor | None:
    """`scatter_add_`."""

    def check(*given: Any) -> tuple[Any, Any]:
        return index_checks.scattered("scatter_add", *given)

    def add(array: Any, part: Tensor, axis: int) -> None:
        places.add_along_to(out, part._array, axis, array)

    return _added_into(input, dim, index, src, add, check)


def _index_add_into(
    input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1, out: Any
) -> Tensor | None:
    """`index_add_` of what is not multiplied."""
    if type(alpha) is not int or alpha != 1:
        return None

    def check(*given: Any) -> tuple[Any, Any]:
        return index_checks.slices_at("index_add", *given), source

    def add(array: Any, part: Tensor, axis: int) -> None:
        places.add_slices_to(out, part._array, (*(slice(None),) * axis, array))

    return _added_into(input, dim, index, source, add, check)


IN_PLACE: dict[str, Callable[..., Tensor | None]] = {
    "masked_fill": _masked_fill_into,
    "scatter": _scatter_into,
    "scatter_add": _scatter_add_into,
    "index_add": _index_add_into,
}
"""By the names of methods, those with a form in place."""

_AT = "self dim index"
KERNELS: dict[str, tuple[Any, ...]] = {
    "index_add": (f"{_AT} source",),
    "index_copy": (f"{_AT} source",),
    "index_fill": (f"{_AT} value",),
    "index_put": ("self indices values accumulate", True),
    "masked_fill": ("self mask value",),
    "masked_scatter": ("self mask source",),
    "scatter": (f"{_AT} src",),
    "scatter_add": (f"{_AT} src",),
    "scatter_reduce": (f"{_AT} src reduce",),
}
"""By the names of methods, the parameters of those whose native kernel, `name_into`, writes where nothing follows."""
