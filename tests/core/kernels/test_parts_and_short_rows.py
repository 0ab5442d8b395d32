"""Sums of slices, and reductions of rows of few elements: the same bits as those of copies and of the references."""

from typing import Any

import numpy as np
import pytest

import resilin
from resilin.core.kernels import loader, reduce_rows

PARTS: list[Any] = [
    (slice(None), slice(3, 20)),
    (slice(None), slice(None, None, 2)),
    (slice(None, None, 2), slice(None)),
    (slice(3, None), slice(2, 9)),
    (slice(None), slice(5, 6)),
]


def _values(dtype: Any, *shape: int) -> Any:
    return (np.random.default_rng(len(shape)).normal(size=shape) * 50).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int64])
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("axis", [None, 0, 1, (0, 1)])
def test_a_slice_of_a_matrix_is_summed_as_its_copy_is(dtype: Any, part: Any, axis: Any) -> None:
    x = _values(dtype, 2702, 37)[part]
    for reduce in (reduce_rows.total, reduce_rows.reference_total, reduce_rows.mean):
        assert np.array_equal(reduce(x, axis), reduce(np.ascontiguousarray(x), axis))
    assert np.array_equal(reduce_rows.total(x, axis), reduce_rows.reference_total(x, axis))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize(
    "part", [np.s_[:, :, 1:4, 2:7], np.s_[:, 1:3], np.s_[..., ::3], np.s_[::2, :, ::2], np.s_[:3, :2, :2, :2]]
)
def test_the_whole_of_a_slice_is_summed_as_its_copy_is(dtype: Any, part: Any) -> None:
    x = _values(dtype, 50, 7, 15, 9)[part]
    for keepdims in (False, True):
        found = reduce_rows.total(x, None, keepdims)
        assert np.array_equal(found, reduce_rows.total(np.ascontiguousarray(x), None, keepdims))
        assert np.array_equal(found, reduce_rows.reference_total(x, None, keepdims))
        assert np.shape(found) == ((1,) * 4 if keepdims else ())


def test_windows_that_overlap_are_no_slice_and_summed_nevertheless() -> None:
    x = np.lib.stride_tricks.sliding_window_view(_values(np.float64, 600), 7)
    assert np.isclose(reduce_rows.total(x), x.sum(), rtol=1e-12)
    assert np.array_equal(reduce_rows.total(x), reduce_rows.reference_total(x))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("n", [*range(1, 18), 31, 33])
def test_short_rows_have_the_products_and_extremes_of_long_ones(dtype: Any, n: int) -> None:
    x = _values(dtype, 33, n) / 50
    x[1] = -0.0
    products = reduce_rows.product(x, 1)
    assert loader.native is None or np.array_equal(products, [reduce_rows.reference_product(row) for row in x])
    x[5, n // 2], x[7], x[8] = np.nan, np.inf, -np.inf
    t = resilin.from_numpy(x)
    assert np.array_equal(t.amax(1).numpy(), x.max(1), equal_nan=True)
    assert np.array_equal(t.amin(1).numpy(), x.min(1), equal_nan=True)


@pytest.mark.parametrize("classes", [3, 17, 37, 64, 65])
def test_rows_beside_one_another_do_not_change_an_exponential(classes: int) -> None:
    """Eight rows share a loop: each has the bits that it has alone."""
    x = resilin.from_numpy(_values(np.float32, 19, classes) / 10)
    target = resilin.from_numpy(np.arange(19) % classes)
    alone = [row[None] for row in x]
    for function in (resilin.nn.functional.softmax, resilin.nn.functional.log_softmax):
        assert resilin.equal(function(x, 1), resilin.cat([function(row, 1) for row in alone]))
    if classes > 16:  # of fewer, sixteen rows lie side by side
        cross_entropy = resilin.nn.functional.cross_entropy
        each = [cross_entropy(row, target[i : i + 1], reduction="none") for i, row in enumerate(alone)]
        assert resilin.equal(cross_entropy(x, target, reduction="none"), resilin.cat(each))
