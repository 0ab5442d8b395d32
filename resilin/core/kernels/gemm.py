"""Matrix products: panels and tiles in registers, on this library's own threads (native/matmul/product.hpp).

An element of a product of matrices is a sum over K in an order that K alone decides, so a result has the same bits
for any number of threads, any strides, and on every x86-64 CPU with fused multiply-adds. 16-bit floats are summed in
float32 and each sum is rounded once: float16 in the order of float32, bfloat16 in that of AMX, everywhere. Products
of float32 and float64 with a vector, and of other types, are numpy's. The product of two vectors of floats is the sum
of their products in pairwise order (`reduce_rows.py`), of 16-bit floats in float32.
"""

from __future__ import annotations

import math

import numpy as np

from resilin.core.kernels import pack
from resilin.core.kernels.common import Array
from resilin.core.kernels.loader import kernel

_FLOAT32 = np.dtype(np.float32)

_native_matmul = kernel("matmul")

_native_of_integers = kernel("matmul_of_integers")
_native_put = kernel("matmul_put")
_native_wide = kernel("matmul_wide")
_native_dot = kernel("dot")


def matmul(a: Array, b: Array, out: Array | None = None) -> Array:
    """`np.matmul(a, b, out)`; floats are summed in blocks of K, each block and the blocks ascending.

    16-bit floats are summed in float32 and rounded once. bfloat16: 32 of K at a time, the sum over the even ones plus
    that over the odd ones is added to what there is; subnormal numbers and sums count as zero. Two vectors: pairwise.
    """
    of_vectors = a.ndim == b.ndim == 1 and out is None
    y: Array | None = _native_dot(a, b) if of_vectors else None
    if y is not None:
        return y
    y = _native_matmul(a, b, out, None)
    if y is None and (pack.is_half(a) or pack.is_half(b)):
        y = _of_vectors(a, b)
        if y is None:
            y = _of_copies(a, b)
        if y is None:
            y = reference_halves(a, b)
        if out is None:
            return y
        out[...] = y
        return out
    if y is None and out is None and a.dtype.kind == "i":
        y = _native_of_integers(a, b)
    if y is None and out is None and b.ndim == 1 and a.ndim > 2 and a.flags.c_contiguous:  # not one call for each batch
        y = np.matmul(a.reshape(math.prod(a.shape[:-1]), a.shape[-1]), b).reshape(a.shape[:-1])
    return np.matmul(a, b, out=out) if y is None else y


def matmul_add(a: Array, b: Array, c_N: Array) -> Array:
    """a @ b with `c_N` added to every row: to the sum of the first block of K, before the others.

    Sums of bfloat16 start with it.
    """
    y: Array | None = _native_matmul(a, b, None, c_N)
    if y is None and (pack.is_half(a) or pack.is_half(b)):
        y = _of_copies(a, b, c_N)
        return reference_halves(a, b, c_N) if y is None else y
    return np.matmul(a, b) + c_N if y is None else y


def matmul_wide(a: Array, b: Array, c_N: Array | None) -> Array:
    """a @ b of bfloat16 matrices, plus `c_N` of float32: the sums of `matmul_add`, in float32 and not rounded."""
    y = np.empty((a.shape[0], b.shape[1]), np.float32)
    if _native_wide(a, b, y, c_N):
        return y
    left, right = _widened(a), _widened(b)
    return matmul(left, right) if c_N is None else matmul_add(left, right, c_N)


def _of_vectors(a: Array, b: Array) -> Array | None:
    """A product with vectors as matrices of one row or column; None where there is no kernel."""
    if min(a.ndim, b.ndim) != 1:
        return None
    y: Array | None = _native_matmul(a[None] if a.ndim == 1 else a, b[:, None] if b.ndim == 1 else b, None, None)
    if y is None:
        return None
    if b.ndim == 1:
        return y.reshape(y.shape[: a.ndim - 1])
    return y.reshape((*y.shape[:-2], y.shape[-1]))


def _of_copies(a: Array, b: Array, c_N: Array | None = None) -> Array | None:
    """A product of what the kernel could not read or write where it lies, in the same order; None without a kernel."""
    y: Array | None = _native_matmul(a.copy(), b.copy(), None, None if c_N is None else c_N.copy())
    return y


def reference_halves(a: Array, b: Array, c_N: Array | None = None) -> Array:
    """a @ b + `c_N`, some of 16-bit floats, by way of float32: rounded once where all are of one dtype."""
    left, right = _widened(a), _widened(b)
    y = matmul(left, right) if c_N is None else matmul_add(left, right, _widened(c_N))
    same = a.dtype == b.dtype and (c_N is None or c_N.dtype == a.dtype)
    return pack.astype(y, a.dtype) if same else y


def _widened(x: Array) -> Array:
    return pack.astype(x, _FLOAT32) if pack.is_half(x) else x


def matmul_put(a: Array, b: Array, out: Array, factor: float, fresh: bool) -> bool:
    """out = factor * (a @ b) where `fresh`, else out += factor * (a @ b): the bits of doing it one after the other.

    False, and nothing is written, where there is no kernel: K is more than one block, or not both matrices of `out`'s
    float32 or float64.
    """
    return bool(_native_put(a, b, out, factor, fresh))
