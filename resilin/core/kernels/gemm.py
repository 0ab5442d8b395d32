"""Matrix products: panels and tiles in registers, on this library's own threads (native/matmul/product.hpp).

An element of a product of matrices is a sum over K in an order that K alone decides, so a result has the same bits for
any number of threads, any strides, and on every x86-64 CPU with fused multiply-adds. Products with a vector, and of
types other than float32 and float64, are numpy's.
"""

from __future__ import annotations

import numpy as np

from resilin.core.kernels.common import Array
from resilin.core.kernels.loader import kernel

_native_matmul = kernel("matmul")

_native_put = kernel("matmul_put")


def matmul(a: Array, b: Array, out: Array | None = None) -> Array:
    """`np.matmul(a, b, out)`; float32 and float64 are summed in blocks of K, each block and the blocks ascending."""
    y: Array | None = _native_matmul(a, b, out, None)
    return np.matmul(a, b, out=out) if y is None else y


def matmul_add(a: Array, b: Array, c_N: Array) -> Array:
    """a @ b with `c_N` added to every row: to the sum of the first block of K, before the others."""
    y: Array | None = _native_matmul(a, b, None, c_N)
    return np.matmul(a, b) + c_N if y is None else y


def matmul_put(a: Array, b: Array, out: Array, factor: float, fresh: bool) -> bool:
    """out = factor * (a @ b) where `fresh`, else out += factor * (a @ b): the bits of doing it one after the other.

    False, and nothing is written, where there is no kernel: K is more than one block, or not both matrices of `out`'s
    float32 or float64.
    """
    return bool(_native_put(a, b, out, factor, fresh))
