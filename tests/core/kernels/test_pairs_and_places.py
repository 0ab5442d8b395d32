"""Sums of pairs and of strided arrays, places of extremes and logarithms of sums in native code, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import resilin
from resilin.core.dtype import bfloat16
from resilin.core.kernels import loader, pack, reduce_rows

pytestmark = pytest.mark.skipif(loader.native is None, reason="there are no native kernels here")

FLOATS = [np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.float16), bfloat16.np]
LENGTHS = [1, 2, 3, 7, 8, 31, 33, 257, 1025, 4097, 100_003]


def _normal(dtype: Any, *shape: int, seed: int = 0) -> Any:
    return pack.astype(np.random.default_rng(seed).standard_normal(shape).astype(np.float32), np.dtype(dtype))


def _wide(x: Any) -> Any:
    return x.astype(np.float64)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_product_of_two_vectors_is_the_sum_of_products_rounded_once(dtype: Any, n: int) -> None:
    x, y = _normal(dtype, n), _normal(dtype, n, seed=1)
    wide = pack.widened(x) * pack.widened(y)
    expected = pack.astype(np.asarray(reduce_rows.total(wide)), x.dtype)
    assert loader.native.dot(x, y).tobytes() == expected.tobytes()


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_short_ways_have_the_bits_of_their_steps(dtype: Any, n: int) -> None:
    x, y = (resilin.from_numpy(_normal(np.float32, n, seed=i)).to(getattr(resilin, str(dtype))) for i in (0, 1))
    known = x.clone().requires_grad_()  # a graph goes step by step
    for function in (
        lambda x: resilin.dist(x, y),
        lambda x: x.norm(1),
        lambda x: x.diff(),
        lambda x: resilin.trapezoid(x, dx=0.5),
        lambda x: x.aminmax()[0],
        lambda x: x.aminmax()[1],
    ):
        short, long = function(x), function(known).detach()
        assert short.dtype == long.dtype
        assert short.shape == long.shape
        assert resilin.equal(short, long)


@pytest.mark.parametrize("shape", [(5,), (3, 1), (2, 70), (40, 33), (3, 5, 7), (2, 9000)])
@pytest.mark.parametrize("dtype", [*FLOATS, np.dtype(np.int64)], ids=str)
def test_differences_are_numpys(shape: tuple[int, ...], dtype: Any) -> None:
    x = (_normal(np.float32, *shape) * 9).astype(dtype)
    for axis in range(len(shape)):
        expected = pack.astype(np.diff(pack.widened(x), axis=axis), x.dtype)
        assert loader.native.differences(x, axis).tobytes() == np.ascontiguousarray(expected).tobytes()


@pytest.mark.parametrize("shape", [(1,), (31,), (70_001,), (5, 64), (64, 5), (1000, 3), (3, 4, 300)])
@pytest.mark.parametrize("special", [None, float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [*FLOATS, np.dtype(np.int64)], ids=str)
def test_places_of_extremes_are_numpys(shape: tuple[int, ...], special: Any, dtype: Any, thread_counts: Any) -> None:
    x = np.round(_normal(np.float32, *shape) * 4)  # with many equals, and both zeros
    if special is not None and dtype.kind != "i":
        x.reshape(-1)[len(x.reshape(-1)) // 3 :: 7] = special
    x = x.astype(dtype)
    wide = x if dtype.kind == "i" else _wide(x)
    for count in (1, 2):
        thread_counts(count)
        for axis in (None, *range(len(shape))):
            for keepdims in (False, True):
                for name, expected in (("largest", np.argmax), ("smallest", np.argmin)):
                    found = getattr(loader.native, f"{name}_place")(x, axis, keepdims)
                    np.testing.assert_array_equal(found, expected(wide, axis, keepdims=keepdims))
        low, high = loader.native.extremes(x, False)
        np.testing.assert_array_equal(_wide(low), _wide(wide.min()))
        np.testing.assert_array_equal(_wide(high), _wide(wide.max()))
        np.testing.assert_array_equal(_wide(loader.native.extreme_last(x, -1, False, True)), _wide(wide.max(-1)))


@pytest.mark.parametrize("shape", [(1,), (31,), (20_001,), (5, 64), (64, 5), (2, 9000)])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_logarithms_of_sums_are_accurate(shape: tuple[int, ...], dtype: Any, thread_counts: Any) -> None:
    x = (_normal(np.float32, *shape) * 5).astype(dtype)
    found = set()
    for count in (1, 2):
        thread_counts(count)
        y = loader.native.log_sum_last(x, -1, True)
        found.add(y.tobytes())
        top = _wide(x).max(-1, keepdims=True)
        expected = top + np.log(np.exp(_wide(x) - top).sum(-1, keepdims=True))
        close = {"float64": 1e-14, "float32": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}[str(dtype)]
        np.testing.assert_allclose(_wide(y), expected, rtol=close, atol=close)
    assert len(found) == 1


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_logarithms_of_sums_of_infinities_and_nan(dtype: Any) -> None:
    inf, nan = float("inf"), float("nan")
    x = np.asarray([[1, inf], [-inf, -inf], [nan, inf], [-inf, 2], [nan, 1]], np.float32).astype(dtype)
    np.testing.assert_array_equal(_wide(loader.native.log_sum_last(x, 1, False)), [inf, -inf, nan, 2, nan])


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("dtype", [*FLOATS, np.dtype(np.int64)], ids=str)
def test_sums_of_strided_arrays_have_the_bits_of_their_copies(dtype: Any, n: int) -> None:
    x = (_normal(np.float32, 3 * n) * 9).astype(dtype)
    rows = x.reshape(3, n)
    for view in (x[::3], x[::-1], x[1::2], rows.T, rows[:, ::2], rows[::-1], rows[:, : n // 2 + 1]):
        axis = view.ndim - 1
        found = loader.native.sum_axes(view, axis, False)
        if found is None:
            continue
        assert found.tobytes() == loader.native.sum_axes(view.copy(), axis, False).tobytes()
    square = _normal(np.float32, 40, 33).astype(dtype)
    diagonal = np.ascontiguousarray(square.diagonal())
    assert loader.native.sum_diagonal(square).tobytes() == loader.native.sum_axes(diagonal, None, False).tobytes()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_stretched_array_of_sixteen_bits_is_summed_as_its_copy(dtype: str) -> None:
    x = resilin.randn(33, 64).to(getattr(resilin, dtype))
    view = x.expand(3, *x.shape)
    assert resilin.equal(view.sum(), view.contiguous().sum())
    assert resilin.equal(view.mean(), view.contiguous().mean())


@pytest.mark.parametrize("shape", [(300, 7), (40, 64), (3, 50, 5)])
def test_integers_are_summed_over_other_dimensions_and_wrap_around(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).integers(-(2**62), 2**62, shape)
    np.testing.assert_array_equal(loader.native.sum_axes(x, 0, False), x.sum(0))
    np.testing.assert_array_equal(loader.native.product_last(x, -1, False), x.prod(-1))
    np.testing.assert_array_equal(loader.native.product_last(x, None, False), x.prod())
