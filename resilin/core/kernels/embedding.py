"""Row lookup, sums of bags of rows, and their gradients."""

from __future__ import annotations

import numpy as np

from resilin.core.kernels.common import Array, array_namespace, compute_dtype, is_readable
from resilin.core.kernels.cuda import row_sums
from resilin.core.kernels.cuda import rows as rows_on_device
from resilin.core.kernels.loader import kernel
from resilin.errors import UsageError

_native_embedding_rows = kernel("embedding_rows")
_native_embedding_backward = kernel("embedding_backward")
_native_bags_forward = kernel("bags_forward")
_native_bags_backward = kernel("bags_backward")
_native_are_bags = kernel("are_bags")


def forward(weight: Array, index: Array) -> Array:
    """The rows of weight (num, D) at `index`: shape index.shape + (D,). UsageError for an index outside [0, num)."""
    y: Array | None = _native_embedding_rows(index, weight) if isinstance(weight, np.ndarray) else None
    return reference_forward(weight, index) if y is None else y


def backward(g: Array, index: Array, num: int, padding_idx: int | None) -> Array:
    """Gradient of weight (num, D): rows of g (index.shape + (D,)) added in ascending position of `index`.

    Row `padding_idx` gets no gradient.
    """
    if index.dtype == np.int64 and isinstance(g, np.ndarray):
        dw = _native_embedding_backward(g, index, num, -1 if padding_idx is None else padding_idx)
        if dw is not None:
            return dw  # type: ignore[no-any-return]
    return reference_backward(g, index, num, padding_idx)


def are_bags(index: Array, starts: Array, num: int) -> bool:
    """Whether bags of `index`, whose rows are all in [0, num), begin at `starts`, ascending from 0.

    False without a kernel, too.
    """
    return bool(_native_are_bags(index, starts, num))


def bags_forward(weight: Array, index: Array, starts: Array, mean: bool) -> Array:
    """The sums (or means) of the rows of weight (num, D) in each bag, (B, D): rows in order, zeros for an empty bag."""
    y: Array | None = _native_bags_forward(weight, index, starts, mean) if isinstance(weight, np.ndarray) else None
    return reference_bags_forward(weight, index, starts, mean) if y is None else y


def bags_backward(g: Array, index: Array, starts: Array, mean: bool, num: int) -> Array:
    """Gradient of weight (num, D): each bag's row of g (B, D), or its share, added in ascending position of `index`."""
    dw: Array | None = _native_bags_backward(g, index, starts, mean, num) if isinstance(g, np.ndarray) else None
    return reference_bags_backward(g, index, starts, mean, num) if dw is None else dw


def _sizes(index: Array, starts: Array) -> Array:
    return np.diff(np.append(starts, len(index)))


def reference_bags_forward(weight: Array, index: Array, starts: Array, mean: bool) -> Array:
    """numpy form of `bags_forward`."""
    sizes = _sizes(index, starts)
    y = np.zeros((len(starts), weight.shape[1]), compute_dtype(weight.dtype))
    np.add.at(y, np.repeat(np.arange(len(starts)), sizes), weight.take(index, axis=0))
    if mean:
        y /= np.maximum(sizes, 1).astype(y.dtype)[:, None]
    return y.astype(weight.dtype, copy=False)


def reference_bags_backward(g: Array, index: Array, starts: Array, mean: bool, num: int) -> Array:
    """numpy form of `bags_backward`."""
    sizes = _sizes(index, starts)
    shares = g.astype(compute_dtype(g.dtype), copy=False)
    if mean:
        shares = shares / np.maximum(sizes, 1).astype(shares.dtype)[:, None]
    dw = np.zeros((num, g.shape[1]), shares.dtype)
    np.add.at(dw, index, np.repeat(shares, sizes, axis=0))
    return dw.astype(g.dtype, copy=False)


def _check(index: Array, num: int) -> None:
    if is_readable(index) and (int(index.min()) < 0 or int(index.max()) >= num):
        wrong = index[(index < 0) | (index >= num)][0]
        raise UsageError(f"embedding: index {int(wrong)} is outside [0, {num}); the table has {num} rows")


def reference_forward(weight: Array, index: Array) -> Array:
    """numpy form of `forward`, also for a device's arrays."""
    xp = array_namespace(weight)
    if hasattr(xp, "launch"):
        taken: Array | None = rows_on_device.take_rows(xp, weight, index)
        if taken is not None:
            return taken
    _check(index, weight.shape[0])
    return weight.take(index, axis=0)


def reference_backward(g: Array, index: Array, num: int, padding_idx: int | None) -> Array:
    """numpy form of `backward`, also for a device's arrays."""
    xp = array_namespace(g)
    if not hasattr(xp, "launch"):  # else the kernel that adds them checks
        _check(index, num)
    D = g.shape[-1]
    flat = index.reshape(-1)
    rows = g.reshape(flat.size, D)
    if padding_idx is not None:
        keep = flat != padding_idx
        if hasattr(xp, "launch"):  # what a mask leaves would be waited for
            rows = xp.where(keep[:, None], rows, xp.zeros((), rows.dtype))
        else:
            flat, rows = flat[keep], rows[keep]
    if hasattr(xp, "launch"):
        added: Array = row_sums.add_rows(xp, (num, D), flat.astype(np.int64, copy=False), rows)
        return added
    if not isinstance(g, np.ndarray):
        return xp.index_add_zeros(rows, (num, D), flat)
    dw = np.zeros((num, D), compute_dtype(g.dtype))
    np.add.at(dw, flat, rows)
    return dw.astype(g.dtype, copy=False)
