"""Native reductions over the last dimensions, joins and stretched views, against numpy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import resilin
from resilin.core.backends import small_array
from resilin.core.device import CPU
from resilin.core.kernels import joining, loader, reduce_rows
from resilin.core.machine import threads
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
    (33, 33),
    (5, 1000),
    (300, 7),
    (3, 4, 5, 6),
    (2, 70001),
]


def _trailing(ndim: int) -> list[Any]:
    return [
        None,
        *((-1, ndim - 1, (ndim - 1,)) if ndim else ()),
        *(((-1, -2), (ndim - 2, ndim - 1)) if ndim > 1 else ()),
    ]


@pytest.fixture
def thread_counts() -> Iterator[Any]:
    before = threads.get_num_threads()
    yield threads.set_num_threads
    threads.set_num_threads(before)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_sum_over_the_last_dimensions_has_the_bits_of_numpys(shape: tuple[int, ...], dtype: Any) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    for axis in _trailing(len(shape)):
        for keepdims in (True, False):
            fast, slow = loader.native.sum_last(x, axis, keepdims), reduce_rows.reference_total(x, axis, keepdims)
            assert fast.shape == np.shape(slow)
            assert fast.tobytes() == np.asarray(slow).tobytes()


def test_a_sum_has_the_same_bits_for_any_number_of_threads(thread_counts: Any) -> None:
    x = np.random.default_rng(0).standard_normal((7, 300_001)).astype(np.float32)
    found = set()
    for count in (1, 2, 3):
        thread_counts(count)
        found.add(reduce_rows.total(x).tobytes() + reduce_rows.total(x, 1).tobytes())
    assert len(found) == 1


@pytest.mark.parametrize("name", ["sum_last", "extreme_last"])
@pytest.mark.parametrize("axis", [0, (0, 2), 3, -4, (1, 1), (2, 2), (), 10**30, True, 1.0, "x"])
def test_other_dimensions_are_left_to_numpy(name: str, axis: Any) -> None:
    rest = (True,) if name == "extreme_last" else ()
    assert getattr(loader.native, name)(np.ones((2, 3, 400), np.float32), axis, False, *rest) is None


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
@pytest.mark.parametrize(
    ("shape", "axis"), [*_WITH_ONES, ((5, 7), 0), ((3, 9, 4), 1), ((9, 2, 3), (0,)), ((2, 9, 3), -2)]
)
def test_few_elements_are_summed_along_any_dimension_in_numpys_order(
    shape: tuple[int, ...], axis: Any, dtype: Any, keepdims: bool
) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    slow = np.add.reduce(x, axis, keepdims=keepdims)
    fast = loader.native.sum_last(x, axis, keepdims)
    assert (fast.shape, fast.tobytes()) == (slow.shape, slow.tobytes())
    fast = loader.native.sum_last(x, axis, keepdims, True)
    assert fast.tobytes() == np.add.reduce(x * x, axis, keepdims=keepdims).tobytes()


@pytest.mark.parametrize("n", [1, 7, 8, 129, 1000])
def test_a_sum_of_every_third_element_has_the_bits_of_numpys(n: int) -> None:
    x = np.random.default_rng(0).standard_normal(3 * n).astype(np.float32)[::3]
    assert loader.native.sum_last(x, None, False).tobytes() == np.add.reduce(x).tobytes()


@pytest.mark.parametrize("axis", [None, 1, (0, 1)])
def test_whole_numbers_wrap_around_and_booleans_are_counted(axis: Any) -> None:
    x = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, (3, 50))
    for given in (x, x > 0):
        np.testing.assert_array_equal(loader.native.sum_last(given, axis, False), np.add.reduce(given, axis))
    for largest, ufunc in ((True, np.maximum), (False, np.minimum)):
        np.testing.assert_array_equal(loader.native.extreme_last(x, axis, False, largest), ufunc.reduce(x, axis))
    assert resilin.tensor(x > 0).sum().dtype is resilin.int64


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
        kernel = getattr(loader.native, f"{name.replace('2', '')}_last")(x, axis, *more, keepdims)
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
        lambda a: ([a], -1),
        lambda a: ([a], 2),
        lambda a: ([a], None),
        lambda a: ((a, a), 0),
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
    assert loader.native.lengths_along([resilin.ones(*shape) for shape in shapes], 0) is None
