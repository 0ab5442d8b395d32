"""Searches in sorted lines, distinct elements and places of integers: native code beside numpy's answers."""

import numpy as np
import pytest

import resilin
from resilin.core.kernels import select
from resilin.core.kernels.loader import kernel, native

DTYPES = [np.float32, np.float64, np.int32, np.int64]


def lines_and_values(dtype, n, count):
    random = np.random.default_rng(n)
    numbers = [np.round(random.standard_normal(size) * 5).astype(dtype) for size in (n, count)]
    return np.sort(numbers[0]), numbers[1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [0, 1, 2, 31, 33, 4097])
def test_places_in_a_line_are_numpys_on_both_sides_of_equals(dtype, n):
    line, values = lines_and_values(dtype, n, 333)
    for right in (False, True):
        found = resilin.searchsorted(resilin.tensor(line), resilin.tensor(values), right=right)
        assert found.dtype is resilin.int64
        np.testing.assert_array_equal(found.numpy(), np.searchsorted(line, values, "right" if right else "left"))
        found = resilin.bucketize(
            resilin.tensor(values.reshape(9, 37)), resilin.tensor(line), right=right, out_int32=True
        )
        assert found.dtype is resilin.int32
        expected = np.searchsorted(line, values.reshape(9, 37), "right" if right else "left")
        np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.parametrize("threads", [1, 2])
def test_each_line_serves_its_own_values_for_any_number_of_threads(threads):
    random = np.random.default_rng(0)
    lines, values = np.sort(random.standard_normal((2, 300, 100)), -1), random.standard_normal((2, 300, 40))
    before = resilin.get_num_threads()
    resilin.set_num_threads(threads)
    try:
        found = resilin.searchsorted(resilin.tensor(lines), resilin.tensor(values)).numpy()
    finally:
        resilin.set_num_threads(before)
    assert all((found[i, j] == np.searchsorted(lines[i, j], values[i, j])).all() for i in (0, 1) for j in range(300))


def test_nan_is_behind_all_and_strided_and_empty_values_are_found():
    line = np.array([-1.0, 0.0, 2.0, np.inf, np.inf], np.float32)
    values = np.array([np.nan, -np.inf, np.inf, -0.0, 2.5, 0.0], np.float32)
    for side in ("left", "right"):
        found = resilin.searchsorted(resilin.tensor(line), resilin.tensor(values), side=side)
        np.testing.assert_array_equal(found.numpy(), np.searchsorted(line, values, side))
    strided = resilin.tensor(values.repeat(2))[::2]
    np.testing.assert_array_equal(resilin.searchsorted(resilin.tensor(line), strided), np.searchsorted(line, values))
    assert resilin.searchsorted(resilin.tensor(line), resilin.zeros(3, 0)).shape == (3, 0)
    assert resilin.searchsorted(resilin.tensor(line), 0.5).item() == 2


@pytest.mark.skipif(native is None, reason="is about native code")
def test_the_kernel_leaves_other_dtypes_and_shapes_to_numpy():
    search, line = kernel("search_sorted"), np.arange(4.0)
    assert search(line, line.astype(np.float32), False) is None
    assert search(line.astype(np.int8), line.astype(np.int8), False) is None
    assert search(line.reshape(2, 2), line, False) is None
    assert search(line.reshape(2, 2), line.reshape(1, 4), False) is None


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "bool"])
def test_first_places_of_narrow_integers_are_those_of_a_stable_sort(dtype):
    x = np.random.default_rng(0).integers(0, 100, (3, 500)).astype(dtype)
    for k in (1, 5, 200):
        for largest in (False, True):
            found = select.places(x, k, largest)
            np.testing.assert_array_equal(found, select.reference_places(x, k, largest))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32", "uint8", "bool"])
@pytest.mark.parametrize("n", [0, 1, 7, 1000])
def test_distinct_elements_are_the_same_with_and_without_what_else_can_be_asked(dtype, n):
    x = resilin.tensor(np.random.default_rng(n).integers(-3, 40, n).astype(dtype))
    values, inverse, counts = x.unique(return_inverse=True, return_counts=True)
    assert resilin.equal(x.unique(), values)
    alone, often = x.unique(return_counts=True)
    assert resilin.equal(alone, values)
    assert resilin.equal(often, counts)
    assert alone.dtype is x.dtype
    assert resilin.equal(values[inverse], x)
    np.testing.assert_array_equal(counts.numpy(), np.unique(x.numpy(), return_counts=True)[1])


def test_distinct_neighbours_are_found_with_all_that_can_be_asked():
    x = resilin.tensor([1.0, 1.0, 2.0, 2.0, float("nan"), float("nan"), 1.0])
    values, inverse, counts = x.unique_consecutive(return_inverse=True, return_counts=True)
    np.testing.assert_array_equal(values.numpy(), [1, 2, np.nan, np.nan, 1])
    assert inverse.tolist() == [0, 0, 1, 1, 2, 3, 4]
    assert counts.tolist() == [2, 2, 1, 1, 1]
    np.testing.assert_array_equal(x.unique_consecutive().numpy(), values.numpy())
    assert x.unique_consecutive(return_counts=True)[1].tolist() == counts.tolist()
    assert resilin.zeros(0).unique_consecutive().shape == (0,)


@pytest.mark.parametrize("row", [0, 1, 4, 7])
@pytest.mark.parametrize("column", [0, 1, 5])
@pytest.mark.parametrize("offset", [-9, -2, 0, 1, 6])
def test_indices_of_triangles_are_numpys(row, column, offset):
    lower, upper = (f(row, column, offset).numpy() for f in (resilin.tril_indices, resilin.triu_indices))
    np.testing.assert_array_equal(lower, np.stack(np.tril_indices(row, offset, column)))
    np.testing.assert_array_equal(upper, np.stack(np.triu_indices(row, offset, column)))
