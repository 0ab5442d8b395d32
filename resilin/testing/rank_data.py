"""What ranks bring to a collective in tests, and what it must make of it."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from resilin.distributed.wire.reduce_op import Array, ReduceOp

_HALF = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


def data(rank: int, shape: int | tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Small whole numbers that differ by rank: every order of summation gives the same bits."""
    count = int(np.prod(shape))
    raw = (np.arange(count) * 7 + rank * 3) % 5
    if dtype.kind not in "bu":
        raw = raw - 2
    return raw.reshape(shape).astype(dtype)


def expected(op: ReduceOp, parts: list[Array]) -> Array:
    """`op` over `parts`, as the documentation promises it."""
    dtype = parts[0].dtype
    wide = [part.astype(np.float32) if dtype in _HALF else part for part in parts]
    combine: Any = {
        ReduceOp.SUM: np.add,
        ReduceOp.AVG: np.add,
        ReduceOp.PRODUCT: np.multiply,
        ReduceOp.MIN: np.minimum,
        ReduceOp.MAX: np.maximum,
        ReduceOp.BAND: np.bitwise_and,
        ReduceOp.BOR: np.bitwise_or,
        ReduceOp.BXOR: np.bitwise_xor,
    }[op]
    total = wide[0].copy()
    for part in wide[1:]:
        total = combine(total, part).astype(total.dtype)
    if op is ReduceOp.AVG:
        mean = total / len(parts)
        total = np.trunc(mean) if dtype.kind in "ui" else mean
    return total.astype(dtype)


def defined(op: ReduceOp, dtype: np.dtype[Any]) -> bool:
    """Whether `op` exists for `dtype`."""
    if op is ReduceOp.PREMUL_SUM:  # alone it lacks its factor
        return False
    if op in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR):
        return dtype.kind in "bui"
    if op in (ReduceOp.MIN, ReduceOp.MAX):
        return dtype.kind != "c"
    return not (op is ReduceOp.AVG and dtype.kind == "b")


def same(got: Array, want: Array) -> None:
    """Equal dtype, shape and values."""
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(np.asarray(got), want)
