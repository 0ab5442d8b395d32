"""Orders of elements: sorted, shuffled, factorized with exchanged rows, and the sums and products that have one."""

from typing import Any

import numpy as np
import pytest

import resilin
from resilin.core.kernels import factorize, loader, philox, reduce_rows, scan, select, shuffle, sort
from resilin.core.machine import threads

SIZES = [0, 1, 31, 33, 191, 193, 4097, 70_001]


def _values(n: int, dtype: Any) -> Any:
    r = np.random.default_rng(n)
    if np.dtype(dtype).kind == "i":
        return r.integers(-(10**9), 10**9, n).astype(dtype) if n % 2 else r.integers(0, 9, n).astype(dtype)
    x = (r.normal(size=n) * 10).round(1).astype(dtype)
    x[: n // 4] = r.choice([0.0, -0.0, np.inf, -np.inf, np.nan], n // 4)
    return x


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int64, np.int32])
@pytest.mark.parametrize("n", SIZES)
def test_sorts_keep_the_order_of_equals(n: int, dtype: Any, largest: bool) -> None:
    x = _values(n, dtype)
    assert np.array_equal(sort.order(x, largest), sort.reference_order(x, largest))
    if n >= 3:
        rows = x[: n // 3 * 3].reshape(3, -1)
        assert np.array_equal(sort.order(rows, largest), sort.reference_order(rows, largest))


def test_long_rows_are_sorted_alike_by_any_number_of_threads() -> None:
    x, before = _values(300_001, np.float32), threads.get_num_threads()
    found = set()
    for count in (1, 2, 3):
        threads.set_num_threads(count)
        found.add(sort.order(x).tobytes() + select.places(x, 10, True).tobytes())
    threads.set_num_threads(before)
    assert found == {sort.reference_order(x).tobytes() + select.reference_places(x, 10, True).tobytes()}


@pytest.mark.parametrize("only", [False, True])
@pytest.mark.parametrize("k", [1, 10, 64, 65, 1000])
@pytest.mark.parametrize("n", [1000, 140_001])
def test_selections_are_the_first_of_a_sort(n: int, k: int, only: bool) -> None:
    x = _values(n, np.float32)
    for largest in (False, True):
        expected = select.reference_places(x, k, largest, only)
        assert np.array_equal(select.places(x, k, largest, only), expected)


@pytest.mark.parametrize("n", [0, 1, 2, 31, 33, 4097])
def test_shuffles_are_the_exchanges_of_their_reference(n: int) -> None:
    words = philox.bits(3, 0, 0, 2 * n)
    found = shuffle.shuffled(words)
    assert np.array_equal(found, shuffle.reference_shuffled(words))
    assert sorted(found.tolist()) == list(range(n))


def test_random_orders_are_uniform() -> None:
    resilin.manual_seed(0)
    counts = np.zeros((4, 4))
    for _ in range(4000):
        counts[np.arange(4), resilin.randperm(4).numpy()] += 1
    assert abs(counts - 1000).max() < 150


@pytest.mark.parametrize(("low", "span"), [(0, 10), (-5, 7), (1 << 62, 1 << 32), (-(1 << 63), 3), (0, 1)])
def test_random_integers_are_those_of_their_reference(low: int, span: int) -> None:
    for n in (0, 1, 31, 4097):
        assert np.array_equal(philox.integers(1, 2, 3, n, low, span), philox.reference_integers(1, 2, 3, n, low, span))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [1, 31, 33, 4097, 70_001])
def test_products_have_the_order_of_their_reference(n: int, dtype: Any) -> None:
    if loader.native is None:
        pytest.skip("numpy multiplies in its own order")
    x = np.random.default_rng(n).uniform(0.9, 1.1, n).astype(dtype)
    assert reduce_rows.product(x).tobytes() == reduce_rows.reference_product(x).tobytes()
    assert reduce_rows.product(np.stack([x, x]), 1).tolist() == [reduce_rows.reference_product(x).item()] * 2


@pytest.mark.parametrize("n", [1, 31, 33, 4097])
def test_norms_have_the_bits_of_their_steps(n: int) -> None:
    x = np.random.default_rng(n).normal(size=(3, n)).astype(np.float32)
    for axis in (None, 1, 0):
        assert np.array_equal(reduce_rows.norm(x, axis), np.sqrt(reduce_rows.total(x * x, axis)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
@pytest.mark.parametrize("shape", [(1,), (33,), (8, 5), (21, 33), (3, 7, 4)])
def test_running_sums_and_products_are_those_of_one_element_after_the_other(shape: Any, dtype: Any) -> None:
    x = (np.random.default_rng(0).normal(size=shape) * 3).astype(dtype)
    x.reshape(-1)[0] = -0.0
    for axis in range(x.ndim):
        for reverse in (False, True):
            fast, slow = scan.running_sum(x, axis, reverse), scan.reference_running_sum(x, axis, reverse)
            assert fast.dtype == x.dtype
            assert fast.tobytes() == np.ascontiguousarray(slow).tobytes()
        assert scan.running_product(x, axis).tobytes() == scan.accumulate(np.multiply, x, axis).tobytes()


def test_running_sums_of_integers_wrap_around() -> None:
    x = np.random.default_rng(0).integers(-(1 << 62), 1 << 62, (5, 33))
    for axis in (0, 1):
        for reverse in (False, True):
            assert np.array_equal(scan.running_sum(x, axis, reverse), scan.reference_running_sum(x, axis, reverse))


def test_distinct_elements_are_numpys() -> None:
    for dtype in (np.float32, np.int64):
        x = _values(4097, dtype)
        values, inverse, counts = resilin.unique(resilin.tensor(x), return_inverse=True, return_counts=True)
        expected, times = np.unique(x, return_counts=True, equal_nan=False)
        np.testing.assert_array_equal(values.numpy(), expected)
        np.testing.assert_array_equal(counts.numpy(), times)
        np.testing.assert_array_equal(values.numpy()[inverse.numpy()], x)


@pytest.mark.parametrize("pivot", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(1, 1), (31, 31), (33, 70), (70, 33), (3, 5, 5), (200, 200)])
def test_factors_multiply_to_the_matrix(shape: Any, dtype: Any, pivot: bool) -> None:
    x = np.random.default_rng(0).normal(size=shape).astype(dtype)
    m, n = shape[-2:]
    x += (0 if pivot else 4 * max(m, n)) * np.eye(m, n, dtype=dtype)
    packed, pivots, info = factorize.lu(x, pivot)
    k = min(m, n)
    lower = np.tril(packed[..., :k], -1) + np.eye(m, k)
    product = lower @ np.triu(packed[..., :k, :])
    rows = factorize.permutation(pivots, m)
    exchanged = np.take_along_axis(x, rows[..., None], -2)
    np.testing.assert_allclose(product, exchanged, 0, 50 * k * np.finfo(dtype).eps * abs(x).max())
    assert not info.any()
    if pivot:
        assert abs(lower).max() <= 1


def test_a_zero_pivot_is_numbered() -> None:
    x = np.zeros((2, 3, 3), np.float32)
    x[1] = np.diag([1.0, 0.0, 2.0])
    assert factorize.lu(x)[2].tolist() == [1, 2]


@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize(
    "shape", [((1, 1), (1, 1)), ((31, 31), (31, 33)), ((130, 130), (130, 300)), ((3, 5, 5), (3, 5, 2))]
)
def test_triangles_are_solved(shape: Any, upper: bool, unit: bool) -> None:
    r = np.random.default_rng(1)
    a, b = r.normal(size=shape[0]).astype(np.float32), r.normal(size=shape[1]).astype(np.float32)
    n = a.shape[-1]
    a = a / n + 2 * np.eye(n, dtype=np.float32)
    x = resilin.linalg.solve_triangular(resilin.tensor(a), resilin.tensor(b), upper=upper, unitriangular=unit).numpy()
    t = np.triu(a) if upper else np.tril(a)
    if unit:
        t[..., np.arange(n), np.arange(n)] = 1
    np.testing.assert_allclose(t @ x, b, 1e-4, 1e-5)
