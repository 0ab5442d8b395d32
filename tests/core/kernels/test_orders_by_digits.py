"""Orders of long and short rows, of narrow and wide ranges: sorted, selected, distinct and counted, beside numpy's."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import resilin
from resilin.core.kernels import select, sort

SIZES = [1, 2, 65, 192, 193, 5000, 70_001]


@pytest.fixture(params=[1, 3])
def threads(request: Any) -> Iterator[int]:
    before = resilin.get_num_threads()
    resilin.set_num_threads(request.param)
    yield request.param
    resilin.set_num_threads(before)


def rows_of_all_ranges(n: int) -> Iterator[Any]:
    """Vectors whose keys differ in few bits, in all, only in the upper or only in the lower ones."""
    random = np.random.default_rng(n)
    yield np.full(n, 7)
    yield random.integers(-1000, 1000, n)
    yield random.integers(-(2**63), 2**63 - 1, n)
    yield random.integers(0, 3, n) << 60
    yield (random.integers(0, 2, n) << 60) + random.integers(0, 1000, n)
    yield np.where(np.arange(n) % 50 == 0, 2**62, random.integers(0, 2**20, n))  # a long run of equal upper bits
    yield random.integers(-(2**31), 2**31 - 1, n).astype(np.int32)
    yield random.standard_normal(n)
    yield 1 + random.integers(0, 5, n) * np.finfo(np.float64).eps
    special = random.choice(np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1e-320, 1.5]), n)
    yield special
    yield special.astype(np.float32)
    yield random.standard_normal(n).astype(np.float32)


@pytest.mark.parametrize("n", SIZES)
def test_sorted_elements_have_the_bits_of_those_at_their_places(n: int, threads: int) -> None:
    for x in rows_of_all_ranges(n):
        for largest in (False, True):
            values, order = sort.values_and_order(x, largest)
            assert np.array_equal(order, sort.reference_order(x, largest)), (x.dtype, largest)
            assert values.tobytes() == x[order].tobytes()


@pytest.mark.parametrize("n", SIZES)
def test_selected_places_are_those_of_a_sort(n: int, threads: int) -> None:
    for x in rows_of_all_ranges(n):
        for k in {1, (n + 1) // 2, min(n, 100), n}:
            for largest in (False, True):
                for only in (False, True):
                    found = select.places(x, k, largest, only)
                    assert np.array_equal(found, select.reference_places(x, k, largest, only)), (x.dtype, k, largest)
            found = select.places(x, k, False, True, True)
            assert np.array_equal(found, select.reference_places(x, k, False, True, True))


@pytest.mark.parametrize("n", SIZES)
def test_distinct_elements_are_those_of_a_sort(n: int, threads: int) -> None:
    for x in (
        *rows_of_all_ranges(n),
        *(part.astype(np.float16) for part in rows_of_all_ranges(n) if part.dtype.kind == "f"),
    ):
        expected = sort.reference_distinct(x)
        for asked in ((True, True, True), (False, False, False), (False, True, False), (False, False, True)):
            found = sort.distinct(x, *asked)
            assert found[0].dtype == x.dtype
            for part, right in zip(found, expected, strict=True):
                assert part is None or part.tobytes() == right.tobytes(), (x.dtype, asked)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int64, np.int32, np.uint8, bool])
@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (500, 1), (700, 4), (40, 3, 2)])
def test_distinct_slices_are_numpys(shape: tuple[int, ...], dtype: Any) -> None:
    x = np.random.default_rng(0).integers(0, 4, shape).astype(dtype)
    if x.dtype.kind == "f":
        x.reshape(-1)[::17] = np.nan
        x.reshape(-1)[::13] = -0.0
    exact = x.astype(np.float32) if dtype is np.float16 else x  # numpy has no order of rows with NaN in 16 bits
    for axis in range(x.ndim):
        found, expected = sort.distinct_slices(x, axis), np.unique(exact, True, True, True, axis, equal_nan=False)
        assert found[0].tobytes() == np.take(x, found[1], axis).tobytes()
        for part, right in zip(found, expected, strict=True):
            np.testing.assert_array_equal(part, right.reshape(part.shape))


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8])
@pytest.mark.parametrize("n", [1, 5, 1000, 100_001])
def test_integers_are_counted_as_numpy_counts_them(n: int, dtype: Any, threads: int) -> None:
    for high in (1, 2, 200):
        x = np.random.default_rng(n).integers(0, high, n).astype(dtype)
        for least in (0, 3, 1000):
            found = resilin.bincount(resilin.tensor(x), minlength=least)
            assert found.dtype is resilin.int64
            np.testing.assert_array_equal(found.numpy(), np.bincount(x, minlength=least))


def test_counts_of_few_far_numbers_are_numpys_and_of_negative_ones_an_error() -> None:
    x = resilin.tensor([3, 100_000, 3])
    assert resilin.bincount(x).shape == (100_001,)
    assert resilin.bincount(x)[3] == 2
    assert resilin.bincount(x[:0], minlength=2).tolist() == [0, 0]
    with pytest.raises(RuntimeError, match="non-negative"):
        resilin.bincount(resilin.tensor([1, -1]))
    with pytest.raises(RuntimeError, match="1-d"):
        resilin.bincount(resilin.tensor([[1, 2]]))


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.int32])
def test_blocks_of_values_that_are_near_one_another_are_found(dtype: Any, right: bool, threads: int) -> None:
    random = np.random.default_rng(0)
    line = np.sort((random.standard_normal(3000) * 500).astype(dtype))
    values = np.concatenate([random.standard_normal(3000) + at for at in (-1e4, 0, 30, 1e4)]).astype(dtype)
    if values.dtype.kind == "f":
        values[700], values[1500], values[5000:5600] = np.nan, np.inf, np.nan
    found = resilin.searchsorted(resilin.tensor(line), resilin.tensor(values), right=right)
    np.testing.assert_array_equal(found.numpy(), np.searchsorted(line, values, "right" if right else "left"))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bit_values_are_found_where_their_float32_are(dtype: str) -> None:
    kind = getattr(resilin, dtype)
    line, values = resilin.linspace(-3, 3, 100).to(kind), resilin.randn(1000).to(kind)
    assert resilin.equal(resilin.searchsorted(line, values), resilin.searchsorted(line.float(), values.float()))


def test_medians_are_the_first_nan_and_sorts_of_other_dimensions_have_their_gradients() -> None:
    x = resilin.tensor([[1.0, float("nan"), 0.0, float("nan")], [4.0, 3.0, 2.0, 1.0]])
    values, places = x.median(1)
    assert places.tolist() == [1, 2]
    np.testing.assert_array_equal(values.numpy(), [np.nan, 2.0])
    assert x.median().isnan()
    assert x[1].median().item() == 2.0
    for dim in (0, 1):
        ordered = x[:, 2:].sort(dim)
        np.testing.assert_array_equal(
            ordered.values.nan_to_num(9).numpy(), np.sort(x[:, 2:].nan_to_num(9).numpy(), dim)
        )
        followed = x[:, 2:].clone().requires_grad_()
        assert followed.sort(dim).values.requires_grad
