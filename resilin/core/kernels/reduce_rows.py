"""Sums over rows in a fixed order: the gradient of a bias."""

from __future__ import annotations

from resilin.core.kernels.common import Array, compute_dtype
from resilin.core.kernels.loader import kernel

_native_sum_rows = kernel("sum_rows")


def sum_rows(x: Array) -> Array:
    """Sum of x (N, D) over its rows: (D,).

    Order: rows in blocks of fixed size, ascending inside a block, blocks ascending; the same for any thread count.
    """
    if (y := _native_sum_rows(x)) is not None:
        return y  # type: ignore[no-any-return]
    return reference_sum_rows(x)


def reference_sum_rows(x: Array) -> Array:
    """numpy form of `sum_rows`."""
    return x.sum(axis=0, dtype=compute_dtype(x.dtype)).astype(x.dtype, copy=False)  # type: ignore[no-any-return]
