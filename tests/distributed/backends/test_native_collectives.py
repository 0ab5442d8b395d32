"""The native reductions equal numpy's on random input, for every dtype and op."""

import extent
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilin.distributed.wire import loader
from resilin.distributed.wire.reduce_op import DTYPE_CODES, DTYPES, ReduceOp
from resilin.testing.rank_data import defined

HALF = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
PAIRS = [(dtype, op) for dtype in DTYPES for op in ReduceOp if defined(op, dtype)]
NUMPY = {
    ReduceOp.SUM: np.add,
    ReduceOp.AVG: np.add,
    ReduceOp.PRODUCT: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.BAND: np.bitwise_and,
    ReduceOp.BOR: np.bitwise_or,
    ReduceOp.BXOR: np.bitwise_xor,
}


def random(dtype, shape, seed):
    rng = np.random.default_rng(seed)
    if dtype.kind in "bui":
        return (
            rng.integers(0, 256, size=(*shape, dtype.itemsize), dtype=np.uint8).view(dtype)[..., 0]
            if dtype.kind != "b"
            else rng.random(shape) < 0.5
        )
    if dtype.kind == "c":
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def reference(dtype, op, rows):
    with np.errstate(over="ignore"):
        wide = rows.astype(np.float32) if dtype in HALF else rows
        total = wide[0]
        for row in wide[1:]:
            total = NUMPY[op](total, row)
        if op is ReduceOp.AVG:
            n = len(rows)
            if dtype.kind in "ui":
                total = np.array([int(x) // n if x >= 0 else -(-int(x) // n) for x in total], dtype)
            else:
                total = total / total.dtype.type(n)
        return total.astype(dtype)


@settings(max_examples=extent.examples(200), deadline=None)
@given(st.sampled_from(PAIRS), st.integers(1, 5), st.sampled_from([0, 1, 31, 33, 2049, 4097]), st.integers(0, 2**32))
def test_native_reduction_equals_numpy(pair, ranks, count, seed):
    dtype, op = pair
    rows = random(dtype, (ranks, count), seed)
    out = np.empty(count, dtype)
    loader.native.reduce(DTYPE_CODES[dtype], int(op), list(rows), [out], count)
    want = reference(dtype, op, rows)
    if dtype.kind == "c":
        np.testing.assert_allclose(out, want, rtol=1e-5 if dtype == np.complex64 else 1e-13)
    else:
        assert out.tobytes() == want.tobytes()


@settings(max_examples=extent.examples(200), deadline=None)
@given(st.sampled_from(PAIRS), st.integers(2, 6), st.sampled_from([1, 31, 65, 4097]), st.integers(0, 2**32))
def test_reducing_in_place_into_all_sources_equals_numpy(pair, ranks, count, seed):
    dtype, op = pair
    rows = random(dtype, (ranks, count), seed)
    want = reference(dtype, op, rows)
    loader.native.reduce(DTYPE_CODES[dtype], int(op), list(rows), list(rows), count)
    for row in rows:
        if dtype.kind == "c":
            np.testing.assert_allclose(row, want, rtol=1e-5 if dtype == np.complex64 else 1e-13)
        else:
            assert row.tobytes() == want.tobytes()


@pytest.mark.parametrize("dtype", HALF)
def test_every_half_value_survives_the_way_through_float32(dtype):
    every = np.arange(65536, dtype=np.uint16).view(dtype)
    out = np.empty_like(every)
    loader.native.reduce(DTYPE_CODES[dtype], int(ReduceOp.SUM), [every], [out], every.size)
    finite = ~np.isnan(every.astype(np.float32))
    assert (out.view(np.uint16)[finite] == every.view(np.uint16)[finite]).all()
    assert np.isnan(out[~finite].astype(np.float32)).all()


@pytest.mark.parametrize("dtype", HALF)
def test_float32_is_rounded_to_nearest_even(dtype):
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**16, size=(2, 200_000), dtype=np.uint16)
    a, b = bits.view(dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        want = (a.astype(np.float32) + b.astype(np.float32)).astype(dtype)
    out = np.empty_like(a)
    loader.native.reduce(DTYPE_CODES[dtype], int(ReduceOp.SUM), [a.copy(), b.copy()], [out], out.size)
    number = ~np.isnan(want.astype(np.float32))
    assert (out.view(np.uint16)[number] == want.view(np.uint16)[number]).all()
    assert np.isnan(out[~number].astype(np.float32)).all()
