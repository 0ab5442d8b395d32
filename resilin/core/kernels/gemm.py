"""Matrix products: numpy's BLAS, one thread a call, called from this library's own threads.

A large product is cut into pieces by its shape alone, and each piece is one call. So a result has the same bits for any
number of threads, which BLAS's own threads do not give, and no thread of BLAS waits at full speed for the next call.
"""

from __future__ import annotations

import numpy as np

from resilin.core import blas
from resilin.core.kernels.common import Array
from resilin.core.kernels.loader import kernel, native

_native_matmul = kernel("matmul")


def _connect() -> bool:
    functions = [blas.cblas(name) for name in ("sgemm", "dgemm")]
    if native is None or None in functions:
        return False
    (sgemm, wide), (dgemm, _) = functions  # type: ignore[misc]
    native.use_blas(sgemm, dgemm, wide)
    return True


CUTS: bool = _connect()
"""Whether products are cut here. If not, numpy calls its BLAS, and that may use threads of its own."""


def matmul(a: Array, b: Array, out: Array | None = None) -> Array:
    """`np.matmul(a, b, out)`. K is summed in the order of BLAS; the bits do not depend on the number of threads."""
    y: Array | None = _native_matmul(a, b, out)
    return np.matmul(a, b, out=out) if y is None else y
