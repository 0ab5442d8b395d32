"""Native reductions over the last dimensions, joins and stretched views, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import resilin
from resilin.core.backends import small_array
from resilin.core.device import CPU
from resilin.core.kernels import joining, loader, pack, reduce_rows
from resilin.core.ops.registry import OPS

pytestmark = pytest.mark.skipif(loader.native is None, reason="there are no native kernels here")

SHAPES = [
    (),
    (1,),
    (7,),
    (8,),
    (31,),
    (129,),
    (4097,),
    (100003,),
    (1 << 14,),
    (1 << 18,),
    ((1 << 14) + 1,),
    (33, 33),
    (5, 1000),
    (300, 7),
    (3, 4, 5, 6),
    (2, 70001),
    (5, 20_000),
]


def _trailing(ndim: int) -> list[Any]:
    return [
        None,
        *((-1, ndim - 1, (ndim - 1,)) if ndim else ()),
        *(((-1, -2), (ndim - 2, ndim - 1)) if ndim > 1 else ()),
    ]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_sum_over_the_last_dimensions_has_the_bits_of_numpys(shape: tuple[int, ...], dtype: Any) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    for axis in _trailing(len(shape)):
        for keepdims in (True, False):
            fast, slow = loader.native.sum_axes(x, axis, keepdims), reduce_rows.reference_total(x, axis, keepdims)
            assert fast.shape == np.shape(slow)
            assert fast.tobytes() == np.asarray(slow).tobytes()


def test_a_sum_has_the_same_bits_for_any_number_of_threads(thread_counts: Any) -> None:
    x = np.random.default_rng(0).standard_normal((7, 300_001)).astype(np.float32)
    found = set()
    for count in (1, 2, 3):
        thread_counts(count)
        found.add(reduce_rows.total(x).tobytes() + reduce_rows.total(x, 1).tobytes())
    assert len(found) == 1


@pytest.mark.parametrize("name", ["sum_axes", "extreme_last"])
@pytest.mark.parametrize("axis", [(0, 2), 3, -4, (1, 1), (2, 2), (), 10**30, True, 1.0, "x"])
def test_other_dimensions_are_left_to_numpy(name: str, axis: Any) -> None:
    rest = (True,) if name == "extreme_last" else ()
    assert getattr(loader.native, name)(np.ones((2, 3, 4), np.float32), axis, False, *rest) is None


@pytest.mark.parametrize("n", [1, 7, 8, 129, 256])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_sum_of_every_third_element_of_few_has_the_bits_of_numpys(dtype: Any, n: int) -> None:
    x = np.random.default_rng(0).standard_normal(3 * n).astype(dtype)
    for given in (x[::3], x[::-3]):
        assert loader.native.sum_axes(given, None, False).tobytes() == np.add.reduce(given).tobytes()


@pytest.mark.parametrize("index", [[0, 1, 2], [-1], [2, 3], []])
def test_integers_within_bounds_are_told_from_others(index: list[int]) -> None:
    found = loader.native.integers_within(np.array(index, np.int64), 0, 3)
    assert found is (all(0 <= i < 3 for i in index) if index else None)
    assert loader.native.integers_within(np.array(index, np.int32), 0, 3) is None


_WITH_ONES = [
    ((1, 5), 0),
    ((1, 4, 9, 16), (0, 2, 3)),
    ((3, 1, 7), (1, 2)),
    ((3, 1), 1),
    ((1, 1), (0, 1)),
    ((5, 1, 8), 1),
]


@pytest.mark.parametrize("keepdims", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("shape", "axis"), _WITH_ONES)
def test_dimensions_of_length_one_may_lie_anywhere(
    shape: tuple[int, ...], axis: Any, dtype: Any, keepdims: bool
) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    fast, slow = loader.native.sum_axes(x, axis, keepdims), np.add.reduce(x, axis, keepdims=keepdims)
    assert (fast.shape, fast.tobytes()) == (slow.shape, slow.tobytes())
    fast, slow = loader.native.largest_last(x, axis, keepdims), np.maximum.reduce(x, axis, keepdims=keepdims)
    assert (fast.shape, fast.tobytes()) == (slow.shape, slow.tobytes())


@pytest.mark.parametrize("axis", [None, 1, (0, 1)])
def test_whole_numbers_wrap_around_and_booleans_are_counted(axis: Any) -> None:
    x = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, (3, 50))
    for given in (x, x > 0):
        np.testing.assert_array_equal(loader.native.sum_axes(given, axis, False), np.add.reduce(given, axis))
    for largest, ufunc in ((True, np.maximum), (False, np.minimum)):
        np.testing.assert_array_equal(loader.native.extreme_last(x, axis, False, largest), ufunc.reduce(x, axis))
    assert resilin.tensor(x > 0).sum().dtype is resilin.int64


_KERNELS = {"mean": "mean_axes", "norm2": "norm_last", "var": "var_last", "std": "std_last"}


@pytest.mark.parametrize("keepdims", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("shape", "axis"), [((50,), None), ((4, 300), 1), ((1, 3, 20, 8), (0, 2, 3)), ((2, 1100), (0, 1))]
)
@pytest.mark.parametrize("special", [None, np.nan, np.inf, 1e30, 0.0])
def test_means_norms_and_variances_have_the_bits_of_the_forms_in_python(
    special: float | None, shape: tuple[int, ...], axis: Any, dtype: Any, keepdims: bool
) -> None:
    x = (np.random.default_rng(0).standard_normal(shape) + 3).astype(dtype)
    if special is not None:
        x.reshape(-1)[x.size // 2] = special
    for name, more in (("mean", ()), ("norm2", ()), ("var", (1,)), ("std", (0,))):
        kernel = getattr(loader.native, _KERNELS[name])(x, axis, *more, keepdims)
        with np.errstate(all="ignore"):
            slow = np.asarray(OPS[name].formula(CPU.xp, x, axis, *more, keepdims))
        if kernel is not None:
            assert (kernel.shape, kernel.tobytes()) == (slow.shape, slow.tobytes())
        found = OPS[name].call(resilin.tensor(x), axis, *more, keepdims)
        np.testing.assert_array_equal(found.numpy(), slow)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("special", [None, np.nan, np.inf, -np.inf])
def test_the_extremes_are_numpys(shape: tuple[int, ...], special: float | None) -> None:
    x = np.asarray(np.random.default_rng(0).standard_normal(shape), np.float32)
    if special is not None:
        x.reshape(-1)[x.size // 2] = special
    for axis in _trailing(len(shape)):
        for keepdims in (True, False):
            for largest, ufunc in ((True, np.maximum), (False, np.minimum)):
                fast = loader.native.extreme_last(x, axis, keepdims, largest)
                np.testing.assert_array_equal(fast, ufunc.reduce(x, axis, keepdims=keepdims))


@pytest.mark.parametrize("dtype", [np.float32, np.bool_, np.complex128])
@pytest.mark.parametrize(
    ("shape", "axis"), [((3, 4), 0), ((3, 4), 1), ((2, 3, 4), 1), ((5,), 0), ((0, 3), 1), ((2, 0, 3), 2)]
)
def test_joined_arrays_are_numpys(shape: tuple[int, ...], axis: int, dtype: Any) -> None:
    r = np.random.default_rng(0)
    lengths = [(*shape[:axis], n, *shape[axis + 1 :]) for n in (1, 0, 3, 2)]
    parts = [r.standard_normal(each).astype(dtype) for each in lengths]
    fast = loader.native.concatenate(parts, axis)
    np.testing.assert_array_equal(fast, np.concatenate(parts, axis))
    assert fast.dtype == dtype


@pytest.mark.parametrize(
    "arguments",
    [
        lambda a: ([], 0),
        lambda a: ([a], -3),
        lambda a: ([a], 2),
        lambda a: ([a], None),
        lambda a: (iter((a, a)), 0),
        lambda a: ([a, a.astype(np.float64)], 0),
        lambda a: ([a, np.ones((3, 2), np.float32).T], 0),
        lambda a: ([a, np.ones((3, 3), np.float32)], 1),
        lambda a: ([a, 1.0], 0),
        lambda a: ([np.array([None])], 0),
    ],
)
def test_other_joins_are_left_to_numpy(arguments: Any) -> None:
    assert loader.native.concatenate(*arguments(np.ones((2, 3), np.float32))) is None


def test_what_numpy_says_of_a_join_is_said() -> None:
    with pytest.raises(ValueError, match="concatenat"):
        joining.concatenate([np.ones((2, 3)), np.ones((2, 2))], 0)


@pytest.mark.parametrize(
    ("x", "shape"),
    [
        (np.ones((3, 1)), (2, 3, 4)),
        (np.ones((3, 4)).T, (4, 3)),
        (np.ones(()), (0, 2)),
        (np.ones((0, 1)), (0, 3)),
        (np.ones((1, 6))[:, ::2], (5, 3)),
        (np.arange(3)[::-1], (2, 3)),
    ],
)
def test_a_stretched_view_is_numpys(x: Any, shape: tuple[int, ...]) -> None:
    fast, slow = loader.native.broadcast_to(x, shape), np.broadcast_to(x, shape)
    assert (fast.shape, fast.strides, fast.flags.writeable) == (slow.shape, slow.strides, False)
    assert np.shares_memory(fast, x) or not fast.size
    np.testing.assert_array_equal(fast, slow)
    np.testing.assert_array_equal(small_array.reference_broadcast_to(x, shape), slow)


@pytest.mark.parametrize("shape", [(2,), (3, 2), (-1, 3), (3.0,), [3], 3, (10**30,)])
def test_a_shape_that_does_not_fit_is_left_to_numpy(shape: Any) -> None:
    assert loader.native.broadcast_to(np.ones(3), shape) is None


@pytest.mark.parametrize("dim", [0, 1, -1, -2])
def test_lengths_along_a_dimension_are_found(dim: int) -> None:
    a, b = resilin.ones(2, 3), resilin.nn.Parameter(resilin.ones(4, 5))
    assert loader.native.lengths_along([a, b], dim) == ((0, (2, 4)) if dim in (0, -2) else (1, (3, 5)))


@pytest.mark.parametrize("dim", [2, -3, None, True, 1.0])
def test_a_dimension_that_is_not_there_is_left_to_cat(dim: Any) -> None:
    assert loader.native.lengths_along([resilin.ones(2, 3)], dim) is None


@pytest.mark.parametrize("shapes", [[(2, 3), (2,)], [(0,), (2,)], [()], []])
def test_shapes_that_need_a_word_are_left_to_cat(shapes: Any) -> None:
    assert loader.native.lengths_along([resilin.ones(shape) for shape in shapes], 0) is None


def _of(dtype: Any, shape: tuple[int, ...]) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


FLOATS = [np.float32, np.float64, np.float16, pack.BFLOAT16]


@pytest.mark.parametrize("dtype", FLOATS[2:])
@pytest.mark.parametrize("shape", SHAPES)
def test_sums_and_means_of_sixteen_bits_are_those_of_float32_rounded_once(shape: tuple[int, ...], dtype: Any) -> None:
    x = _of(dtype, shape)
    wide = pack.to_float32(x)
    for axis in _trailing(len(shape)):
        found, mean = loader.native.sum_axes(x, axis, False), loader.native.mean_axes(x, axis, False)
        total = np.asarray(reduce_rows.reference_total(wide, axis))
        assert found.tobytes() == total.astype(dtype).tobytes()
        count = np.float32(wide.size / total.size)
        assert mean.tobytes() == (total / count).astype(dtype).tobytes()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((70, 64), 0), ((17, 3), 0), ((3, 40, 33), 1), ((3, 40, 33), (0, 1)), ((2, 16, 9, 9), (0, 2, 3)),
        ((20, 16, 9), (0, 2)), ((3, 5, 2, 400), (1, 3)), ((300, 1100), 0), ((40, 64, 1), 0), ((3, 8, 70), (0, 2)),
        ((600, 5, 2), (0, 2)), ((2, 16, 50), (0, 2)), ((16, 90), 0), ((500, 7, 2), 1),
        ((40, 16, 2), 1), ((2, 3, 900), (0, 1)), ((4097, 2), 0), ((2, 600), 0), ((2, 3, 4, 5, 60), (0, 2, 4)),
    ],
)  # fmt: skip
def test_sums_over_other_dimensions_have_the_bits_of_the_reference(shape: Any, axis: Any, dtype: Any) -> None:
    x = _of(dtype, shape)
    for keepdims in (True, False):
        fast, slow = reduce_rows.total(x, axis, keepdims), reduce_rows.reference_total(x, axis, keepdims)
        assert fast.dtype == x.dtype
        assert fast.shape == slow.shape
        assert fast.tobytes() == slow.tobytes()
    mean = pack.to_float32(x) if x.dtype.itemsize == 2 else x
    mean = reduce_rows.reference_total(mean, axis) / mean.dtype.type(x.size // slow.size)
    assert reduce_rows.mean(x, axis).tobytes() == mean.astype(dtype).tobytes()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(2, 30, 64), (16, 500), (17, 500), (1, 3, 1, 900), (3, 400)])
def test_a_stretched_dimension_is_summed_first(shape: tuple[int, ...], dtype: Any) -> None:
    place = next(i for i, n in enumerate(shape) if n > 1)
    base = _of(dtype, shape[place + 1 :])
    x = np.broadcast_to(base, shape)
    assert reduce_rows.total(x).tobytes() == reduce_rows.reference_total(x).tobytes()
    wide = base.astype(np.float64)
    np.testing.assert_allclose(
        float(reduce_rows.total(x)), wide.sum() * shape[place], 0.02 if x.itemsize == 2 else 1e-4
    )


def test_integers_and_booleans_are_summed_and_wrap_around(thread_counts: Any) -> None:
    r = np.random.default_rng(0)
    for shape in SHAPES:
        k, b = r.integers(-(1 << 62), 1 << 62, shape), r.random(shape) < 0.7
        for axis in _trailing(len(shape)):
            for count in (1, 2):
                thread_counts(count)
                assert np.array_equal(loader.native.sum_axes(np.asarray(k), axis, False), np.add.reduce(k, axis))
                assert np.array_equal(loader.native.sum_axes(np.asarray(b), axis, False), np.add.reduce(b, axis))


@pytest.mark.parametrize("dtype", FLOATS)
def test_nothing_is_added_for_nan(dtype: Any) -> None:
    x = _of(dtype, (7, 1500))
    x[:, ::7] = np.nan
    known = np.where(np.isnan(x), x.dtype.type(0), x)
    for axis in (None, 1, 0):
        fast = np.asarray(reduce_rows.known_total(x, axis))
        assert fast.tobytes() == np.asarray(reduce_rows.total(known, axis)).tobytes()


@pytest.mark.parametrize("dtype", [np.float64, np.int64])
@pytest.mark.parametrize("shape", [(1,), (31,), (5, 33), (200_003,)])
def test_extremes_of_wider_types_are_numpys(shape: tuple[int, ...], dtype: Any, thread_counts: Any) -> None:
    x = (_of(np.float64, shape) * 100).astype(dtype)
    for special in (None, np.nan, -np.inf) if dtype is np.float64 else (None, np.iinfo(np.int64).min):
        if special is not None:
            x.reshape(-1)[-1] = special
        for count in (1, 2):
            thread_counts(count)
            for axis in (None, -1):
                np.testing.assert_array_equal(small_array.max(x, axis), np.maximum.reduce(x, axis))
                np.testing.assert_array_equal(small_array.min(x, axis), np.minimum.reduce(x, axis))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", SHAPES)
def test_variances_have_the_bits_of_their_steps(shape: tuple[int, ...], dtype: Any) -> None:
    x = np.asarray(_of(dtype, shape) * 3 + 100, dtype)
    for axis in _trailing(len(shape)):
        for correction, keepdims, root in ((1, False, False), (0, True, True), (2.5, False, True)):
            fast = (loader.native.std_last if root else loader.native.var_last)(x, axis, correction, keepdims)
            left = [axis] if isinstance(axis, int) else axis
            count = x.size if left is None else np.prod([x.shape[i] for i in left])
            if fast is None:
                assert count <= max(correction, 1)
                continue
            centred = x - reduce_rows.mean(x, axis, True)
            centred = centred - reduce_rows.mean(centred, axis, True)
            total = np.asarray(reduce_rows.total(centred * centred, axis, keepdims)) / dtype(count - correction)
            slow = np.sqrt(total) if root else total
            assert fast.shape == slow.shape
            assert fast.tobytes() == slow.tobytes()


@pytest.mark.parametrize("wrong", [1e20, 1e-25, np.nan, np.inf])
def test_variances_beyond_the_range_are_left_to_steps_in_float64(wrong: float) -> None:
    x = np.float32([[1, 2, 3], [wrong, 2 * wrong, 4 * wrong]])
    assert loader.native.var_last(x, 1, 1, False) is None
    with np.errstate(over="ignore", invalid="ignore"):
        expected = np.var(x.astype(np.float64), 1, ddof=1).astype(np.float32)
    np.testing.assert_allclose(resilin.tensor(x).var(1).numpy(), expected, 1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
@pytest.mark.parametrize("shape", SHAPES)
def test_counts_are_numpys(shape: tuple[int, ...], dtype: Any, thread_counts: Any) -> None:
    x = np.asarray(_of(np.float64, shape) * 1.5, dtype)
    x[np.abs(x) < 1] = 0
    if dtype is not np.int64:
        x.reshape(-1)[-1] = np.nan  # which is not 0
    for count in (1, 2):
        thread_counts(count)
        for axis in _trailing(len(shape)):
            for keepdims in (True, False):
                fast = small_array.count_nonzero(x, axis, keepdims)
                np.testing.assert_array_equal(fast, np.count_nonzero(x, axis, keepdims=keepdims))
                np.testing.assert_array_equal(small_array.any(x, axis, keepdims), np.any(x, axis, keepdims=keepdims))
    assert small_array.count_nonzero(np.ones((3, 4), dtype), 0).tolist() == [3] * 4
    assert not small_array.any(np.ones((0,), dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("low", "high", "bins"), [(-1.0, 1.0, 7), (-0.3, 2.7, 100), (0.1, 0.1000002, 5), (-4.0, 4.0, 1)]
)
def test_elements_in_bins_are_counted_as_by_numpy(
    low: float, high: float, bins: int, dtype: Any, thread_counts: Any
) -> None:
    edges = np.linspace(low, high, bins + 1, dtype=dtype)
    near = np.nextafter(edges, dtype(np.inf)), np.nextafter(edges, dtype(-np.inf))
    x = np.concatenate([_of(dtype, (50_001,)), edges, *near, dtype([np.nan, np.inf, -np.inf])])
    expected = np.histogram(x, bins, (low, high))[0] if (np.diff(edges) > 0).all() else None
    for count in (1, 2):
        thread_counts(count)
        found = resilin.histc(resilin.tensor(x), bins, low, high).numpy()
        assert expected is None or np.array_equal(found, expected)
        assert found.sum() == ((x >= dtype(low)) & (x <= dtype(high))).sum()
    assert loader.native.count_in_bins(x, edges.astype(np.float16)) is None


@pytest.mark.parametrize("length", [1, 31, 32, 64, 100])
def test_products_of_short_rows_have_the_bits_of_the_reference(length: int) -> None:
    for dtype in (np.float32, np.float64):
        x = np.random.default_rng(length).uniform(0.8, 1.25, (700, length)).astype(dtype)
        expected = np.stack([reduce_rows.reference_product(row) for row in x])
        assert reduce_rows.product(x, 1).tobytes() == expected.tobytes()


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (0, 2)])
@pytest.mark.parametrize("make", [np.ascontiguousarray, np.asfortranarray, lambda x: np.repeat(x, 2, -1)[..., ::2]])
def test_stacked_arrays_are_numpys(shape: tuple[int, ...], make: Any) -> None:
    r = np.random.default_rng(0)
    arrays = [make(r.standard_normal(shape)) if shape else np.asarray(r.standard_normal()) for _ in range(3)]
    for axis in range(len(shape) + 1):
        np.testing.assert_array_equal(small_array.stack(arrays, axis), np.stack(arrays, axis))
    with pytest.raises(ValueError, match="same shape"):
        small_array.stack([*arrays, np.zeros((5, 5, 5))])
