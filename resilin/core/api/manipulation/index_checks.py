"""What indices say is where, and what is to be written there: checked before anything is."""

from __future__ import annotations

from typing import Any

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core.autograd.grad_mode import mode
from resilin.core.device import different_devices
from resilin.core.kernels import index_range, places
from resilin.core.tensor import Tensor


def index_array(
    where: str, index: Tensor, dim_length: int | None = None, error: type[Exception] = RuntimeError, lowest: int = 0
) -> Any:
    """The array of an integer index tensor, checked. RuntimeError for another dtype, `error` out of range.

    Out of range on a device: raised where the host next waits for it.
    """
    if not isinstance(index, Tensor):
        raise TypeError(f"{where}(): expected a Tensor of indices, got {type(index).__name__}")
    array = index._array
    if array.dtype.kind not in "iu":
        raise RuntimeError(f"{where}(): expected indices of an integer dtype, got {index.dtype}")
    if dim_length is not None:
        text = f"{where}(): index {{value}} is out of bounds for a dimension of size {dim_length}"
        index_range.check(array, lowest, dim_length, error, text)
    return array


def kept(array: Any, *readers: Any) -> Any:
    """`array` of indices or a mask, copied where gradients of `readers` will look at it again.

    Its tensor may be written to before that, and is no part of the graph, so nothing would notice.
    """
    if not mode.grad or not isinstance(array, np.ndarray):
        return array
    for x in readers:
        if isinstance(x, Tensor) and (x._rg or (x._view is not None and x.requires_grad)):
            once = places.once(array)
            return array.copy() if once is array else np.broadcast_to(once.copy(), array.shape)
    return array


def same_dtype(where: str, input: Tensor, source: Tensor) -> None:
    """RuntimeError unless both have one dtype."""
    if source._array.dtype != input._array.dtype:
        raise RuntimeError(
            f"{where}(): the tensor and what is written into it need one dtype, got {input.dtype} and {source.dtype}: "
            "convert one with .to()"
        )


def scattered(where: str, input: Tensor, axis: int, index: Tensor, source: Any) -> tuple[Any, Any]:
    """The array of `index`, and the part of `source` (a tensor; a number as it is) that it is for.

    RuntimeError unless the index has as many dimensions as both, is no longer than either (than `input` apart from
    `axis`), and both have one dtype.
    """
    array = kept(index_array(where, index, input._array.shape[axis]), input, source)
    shape, own = array.shape, input._array.shape
    given = source._array.shape if isinstance(source, Tensor) else shape
    if not array.size:  # nothing is written, whatever the dimensions
        shape = given = (0,) * len(own)
        array = array.reshape(shape)
        source = source.reshape(-1)[:0].reshape(shape) if isinstance(source, Tensor) else source
    longer = (
        shape != own
        and len(shape) == len(own)
        and any(n > m for d, (n, m) in enumerate(zip(shape, own, strict=True)) if d != axis)
    )
    unequal = shape != given and len(shape) == len(given) and any(n > m for n, m in zip(shape, given, strict=True))
    if longer or unequal or not len(shape) == len(own) == len(given):
        raise RuntimeError(
            f"{where}(): expected index {tuple(shape)} to have as many dimensions as self {tuple(own)} and src "
            f"{tuple(given)}, and to be no larger than src, nor than self apart from dimension {axis}"
        )
    if not isinstance(source, Tensor):
        return array, dtypes.number_for(where, source, input._array.dtype)
    if source._dev is not input._dev:
        raise different_devices(where, input._dev, source._dev)
    same_dtype(where, input, source)
    return array, source if given == shape else source[tuple(slice(n) for n in shape)]


def slices_at(
    where: str, input: Tensor, axis: int, index: Tensor, source: Tensor, error: type[Exception] = RuntimeError
) -> Any:
    """The places of the slices of `axis` at a vector `index`, which `source` has a slice for each; checked."""
    array = kept(vector_of_indices(where, index, input._array.shape[axis]), input, source)
    expected = (*input._array.shape[:axis], array.size, *input._array.shape[axis + 1 :])
    if source._array.shape != expected:
        raise error(
            f"{where}(): {array.size} indices along dimension {axis} of shape {tuple(input.shape)} need a source of "
            f"shape {tuple(expected)}, got {tuple(source.shape)}"
        )
    same_dtype(where, input, source)
    return array


def vector_of_indices(where: str, index: Tensor, length: int, lowest: int = 0) -> Any:
    """`index_array` of a vector, or of a number as one. IndexError for more dimensions and out of range."""
    array = index_array(where, index, length, IndexError, lowest)
    if array.ndim > 1:
        raise IndexError(f"{where}(): Index is supposed to be a vector, got shape {tuple(array.shape)}")
    return array.reshape(-1)
