"""Where the maxima of windows lie that start and end anywhere: adaptive and fractional pooling."""

# N samples, C channels, M windows along a dimension, L length of the longest window

from __future__ import annotations

import math

import numpy as np

from resilin.core.kernels.common import Array, array_namespace, has_elements
from resilin.core.kernels.contiguous import ascontiguousarray
from resilin.core.kernels.loader import kernel

_native_window_maxima = kernel("window_maxima")


def places(starts: Array, ends: Array) -> Array:
    """The elements (..., M, L) of windows from `starts` up to `ends` (..., M); short ones repeat their last."""
    longest = int((ends - starts).max(initial=1))
    found: Array = np.minimum(starts[..., None] + np.arange(longest), ends[..., None] - 1)
    return found


def fractional_starts(samples: Array, size: int, kernel: int, count: int) -> Array:
    """Starts (N, C, count) of windows of `kernel` in a dimension of `size`, one of `samples` (N, C) for each plane.

    The numbers are rounded in the samples' dtype, and the last window ends with the dimension.
    """
    if not has_elements(samples):
        samples = np.zeros(samples.shape, samples.dtype)
    starts = np.full((*samples.shape, count), size - kernel, np.int64)
    if count > 1:
        alpha = samples.dtype.type((size - kernel) / (count - 1))
        steps = np.arange(count - 1, dtype=samples.dtype)
        shifted = ((steps + samples[..., None]) * alpha).astype(np.int64)
        starts[..., :-1] = shifted - (samples[..., None] * alpha).astype(np.int64)
    return starts


def positions(x: Array, windows: list[Array]) -> Array:
    """Flat position of each window's maximum in its sample's channel: the first one, or the first NaN.

    Shape: x (N, C, ...); `windows` has `places` per dimension, (M, L) or (N, C, M, L); result (N, C, M, ...).
    """
    if not has_elements(x):
        lengths: list[int] = [window.shape[-2] for window in windows]
        return array_namespace(x).empty((*x.shape[:2], *lengths), np.int64)  # type: ignore[no-any-return]
    sizes = x.shape[2:]
    value = x
    index = np.broadcast_to(np.arange(math.prod(sizes)).reshape(sizes), x.shape)
    for axis in reversed(range(len(windows))):
        value, index = _largest(value, index, 2 + axis, windows[axis])
    return np.ascontiguousarray(index)


def positions_of_windows(x: Array, windows: list[Array]) -> Array:
    """`positions` for windows of rows (start, stop, ...), the same in all planes; of images by native code."""
    if isinstance(x, np.ndarray) and len(windows) <= 2:
        image = x if len(windows) == 2 else x[:, :, None]
        rows = windows[0] if len(windows) == 2 else _ONE_ROW
        found: Array | None = _native_window_maxima(ascontiguousarray(image), rows, windows[-1])
        if found is not None:
            return found if len(windows) == 2 else found[:, :, 0]
    return positions(x, [places(window[:, 0], window[:, 1]) for window in windows])


_ONE_ROW = np.array([[0, 1, 1]])


def _largest(value: Array, index: Array, axis: int, window: Array) -> tuple[Array, Array]:
    """Maxima along `axis` and, of `index`, the elements at the same places."""
    M, L = window.shape[-2:]
    lead = window.shape[:-2] or (1, 1)
    flat = window.reshape(*lead, *(1,) * (axis - 2), M * L, *(1,) * (value.ndim - axis - 1))
    split = (*value.shape[:axis], M, L, *value.shape[axis + 1 :])
    near, at = (np.take_along_axis(array, flat, axis).reshape(split) for array in (value, index))
    first = np.expand_dims(near.argmax(axis + 1), axis + 1)
    return tuple(np.take_along_axis(array, first, axis + 1).squeeze(axis + 1) for array in (near, at))  # type: ignore[return-value]
