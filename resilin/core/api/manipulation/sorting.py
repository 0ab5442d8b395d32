"""Sorting, and what needs an order: the largest, the k-th, the median, running extremes.

`__all__` are the functions of `resilin`, and methods of `Tensor`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from resilin.core import return_types
from resilin.core.api.conversion.through_host import through_host
from resilin.core.batching.active import ACTIVE, batched_in
from resilin.core.kernels import scan, select
from resilin.core.kernels import sort as kernel
from resilin.core.kernels.common import array_namespace
from resilin.core.ops import index as ops
from resilin.core.ops import shape as shape_ops
from resilin.core.state.size import check_dim, whole
from resilin.core.tensor import Tensor, wrap

__all__ = ["argsort", "cummax", "cummin", "kthvalue", "median", "sort", "topk"]


def sort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> return_types.sort:
    """Sorted values and their indices along `dim`; equal elements keep their order, NaN is largest."""
    axis = check_dim(dim, input._array.ndim)
    if input._array.ndim == 0:
        return return_types.sort(_only(input))
    if ACTIVE and batched_in((input,)):
        return return_types.sort(ACTIVE[-1].along(lambda whole, at: sort(whole, at, descending), input, axis))
    array = input._array
    if not input.requires_grad and isinstance(array, np.ndarray):
        if axis == array.ndim - 1:
            values, order = kernel.values_and_order(array, descending)
        else:
            values, order = kernel.values_and_order(array.swapaxes(axis, -1), descending)
            values, order = np.ascontiguousarray(values.swapaxes(axis, -1)), order.swapaxes(axis, -1)
        return return_types.sort((wrap(values, input._dev), wrap(order, input._dev)))
    order = order_along(array, axis, descending)
    return return_types.sort((ops.take_along_axis.call(input, order, axis), wrap(order, input._dev)))


def _only(input: Tensor) -> tuple[Tensor, Tensor]:
    """What is found in a tensor without dimensions: its element, and where it is."""
    return input.clone(), wrap(input._dev.xp.zeros((), np.int64), input._dev)


def order_along(array: Any, axis: int, descending: bool) -> Any:
    """The indices that sort an array along `axis`; equal elements keep their order."""
    if isinstance(array, np.ndarray):
        return kernel.order(array.swapaxes(axis, -1), descending).swapaxes(axis, -1)
    xp = array_namespace(array)
    if not descending:
        return xp.argsort(array, axis=axis, kind="stable")
    backwards = xp.flip(array, axis)  # sorting the reversed order and reversing it keeps equal elements in order
    order = xp.flip(xp.argsort(backwards, axis=axis, kind="stable"), axis)
    return array.shape[axis] - 1 - order


def _first_along(array: Any, axis: int, k: int, largest: bool, only: bool = False) -> Any:
    """The first `k` indices of `order_along`; with `only`, the k-th of them alone."""
    if isinstance(array, np.ndarray):
        if axis == array.ndim - 1:
            return select.places(array, k, largest, only)
        return select.places(array.swapaxes(axis, -1), k, largest, only).swapaxes(axis, -1)
    return order_along(array, axis, largest)[(slice(None),) * axis + (slice(k - 1 if only else 0, k),)]


def argsort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
    """The indices that sort `input` along `dim`."""
    return sort(input, dim, descending).indices


def topk(input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> return_types.topk:
    """The `k` largest (or smallest) elements along `dim`, in order, and their indices."""
    axis = check_dim(dim, input._array.ndim)
    length, k = input._array.shape[axis] if input._array.ndim else 1, whole("k", k)
    if not 0 <= k <= length:
        raise RuntimeError(f"topk(): selected index k={k} out of range for a dimension of size {length}")
    if input._array.ndim == 0:
        return return_types.topk(_only(input))
    if ACTIVE and batched_in((input,)):
        return return_types.topk(ACTIVE[-1].along(lambda whole, at: topk(whole, k, at, largest), input, axis))
    order = _first_along(input._array, axis, k, largest)
    return return_types.topk((ops.take_along_axis.call(input, order, axis), wrap(order, input._dev)))


def kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> return_types.kthvalue:
    """The `k`-th smallest element along `dim` (1 is the smallest) and its index."""
    axis = check_dim(dim, input._array.ndim)
    length, k = input._array.shape[axis] if input._array.ndim else 1, whole("k", k)
    if not 1 <= k <= length:
        raise RuntimeError(f"kthvalue(): selected number k={k} out of range for a dimension of size {length}")
    if input._array.ndim == 0:
        return return_types.kthvalue(_only(input))
    order = _first_along(input._array, axis, k, False, only=True)
    return return_types.kthvalue(picked(input, order, axis, keepdim))


def picked(input: Tensor, places: Any, axis: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    """The elements at `places`, one along `axis`, and the places."""
    values, indices = ops.take_along_axis.call(input, places, axis), wrap(places, input._dev)
    if keepdim:
        return values, indices
    shape = (*places.shape[:axis], *places.shape[axis + 1 :])
    return shape_ops.reshape.call(values, shape), wrap(places.reshape(shape), input._dev)


def shared(flat: Tensor, value: Tensor) -> Tensor:
    """`value`, with its gradient in equal parts to the elements equal to it, as PyTorch has it for the whole tensor."""
    if not flat.requires_grad:
        return value
    equal = flat == value if bool(value == value) else flat != flat
    found: Tensor = flat[equal.detach()].amax()
    return found


def median(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The median (the lower one of two), NaN if there is one; with `dim` a pair (values, indices)."""
    if dim is None:
        if type(input._array) is np.ndarray and input._array.size and not input.requires_grad:
            return wrap(_middle(input._array.reshape(-1)), input._dev)
        flat = input.reshape(-1)
        return shared(flat, median(flat.detach(), 0).values) if flat.numel() else median_of_none("median", input)
    axis = check_dim(dim, input._array.ndim)
    array = input._array
    if array.ndim == 0:
        return return_types.median(_only(input))
    if array.shape[axis] == 0:
        raise IndexError(f"median(): Expected reduction dim {axis} to have non-zero size.")
    return return_types.median(picked(input, _middle_along(array, axis), axis, keepdim))


def _middle(flat: Any) -> Any:
    """The median of a vector of the host's."""
    return flat[select.places(flat, (flat.size + 1) // 2, False, True, True)].reshape(())


def median_of_none(where: str, input: Tensor) -> Tensor:
    """NaN. RuntimeError for dtypes that have none, where PyTorch gives an element that nobody wrote."""
    if input._array.dtype.kind in "iu":
        raise RuntimeError(f"{where}(): expected elements, as {input.dtype} has no NaN, got shape {list(input.shape)}")
    found: Tensor = input.new_full((), float("nan"))
    return found


def _middle_along(array: Any, axis: int) -> Any:
    """Where the medians along `axis` are, or the first NaN of lines that have one."""
    middle = (array.shape[axis] + 1) // 2
    if isinstance(array, np.ndarray):
        return select.places(array.swapaxes(axis, -1), middle, False, True, True).swapaxes(axis, -1)
    order = _first_along(array, axis, middle, False, only=True)
    if array.dtype.kind in "biu":
        return order
    nan, xp = array != array, array_namespace(array)
    return xp.where(nan.any(axis, keepdims=True), xp.argmax(nan, axis=axis, keepdims=True), order)


@through_host
def cummax(input: Tensor, dim: int) -> return_types.cummax:
    """Running maxima along `dim` and the index of each (the last of equals); NaN is largest."""
    return return_types.cummax(_running(input, dim, True))


@through_host
def cummin(input: Tensor, dim: int) -> return_types.cummin:
    """Running minima along `dim` and the index of each (the last of equals); NaN is smallest."""
    return return_types.cummin(_running(input, dim, False))


def _running(input: Tensor, dim: int, largest: bool) -> tuple[Tensor, Tensor]:
    axis = check_dim(dim, input._array.ndim)
    array = input._array
    if array.ndim == 0:
        return _only(input)
    values, found = scan.running_extreme(array, axis, largest)
    if not input.requires_grad and isinstance(array, np.ndarray):
        return wrap(values, input._dev), wrap(found, input._dev)
    return ops.take_along_axis.call(input, found, axis), wrap(found, input._dev)
