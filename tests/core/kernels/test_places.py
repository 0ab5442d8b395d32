"""Elements taken from places and added to places, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import resilin
from resilin.core.kernels import adaptive_max, loader, places, pool
from resilin.core.machine import threads
from resilin.core.ops.gather_weighted import weighted_points

pytestmark = pytest.mark.skipif(loader.native is None, reason="there are no native kernels here")

SHAPES = [(5,), (31, 3), (3, 33), (4, 7, 5), (2, 4097), (3, 0, 2), (1, 1)]
DTYPES = [np.float32, np.float64, np.int64]


def _cases() -> list[tuple[tuple[int, ...], int, tuple[int, ...]]]:
    return [
        (shape, axis, at) for shape in SHAPES for axis in range(len(shape)) for at in ((0,), (1,), (33,), (2, 5), ())
    ]


def _index(r: Any, length: int, at: tuple[int, ...]) -> Any:
    return r.integers(-length, length, at) if length else np.zeros((0,) * len(at) or (0,), np.int64)


def _at(axis: int, index: Any) -> Any:
    return (*(slice(None),) * axis, index) if axis else index


@pytest.mark.parametrize("dtype", [*DTYPES, np.bool_, np.int16, np.complex128])
def test_slices_are_taken_as_numpy_takes_them(dtype: Any) -> None:
    for shape, axis, at in _cases():
        r = np.random.default_rng(0)
        x = (r.standard_normal(shape) * 9).astype(dtype)
        index = np.asarray(_index(r, shape[axis], at))
        fast, slow = places.take_slices(x, _at(axis, index)), x[_at(axis, index)]
        assert fast is not None, (shape, axis, at)
        assert fast.dtype == dtype
        np.testing.assert_array_equal(fast, slow, err_msg=f"{shape}, axis {axis}, {at}")


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize(
    "near", [[2, 1, *range(31), 29, 28], [*range(31)], [-1, *range(-31, 0), -1], [*range(30, -1, -1)]]
)
def test_neighbouring_places_are_taken_as_others_are(axis: int, near: list[int]) -> None:
    x, index = np.random.default_rng(0).standard_normal((31, 31, 31)), np.array(near)
    np.testing.assert_array_equal(places.take_slices(x, _at(axis, index)), x[_at(axis, index)])


@pytest.mark.parametrize("dtype", DTYPES)
def test_slices_are_added_in_the_order_of_their_places(dtype: Any) -> None:
    for shape, axis, at in _cases():
        case = f"{shape}, axis {axis}, {at}"
        r = np.random.default_rng(0)
        index = np.asarray(_index(r, shape[axis], at))
        g = np.asarray(r.standard_normal((*shape[:axis], *index.shape, *shape[axis + 1 :])) * 9).astype(dtype)
        fast = loader.native.add_slices(g, shape, index, axis)
        slow = np.zeros(shape, dtype)
        np.add.at(slow, _at(axis, index), g)
        assert fast.dtype == dtype, case
        np.testing.assert_array_equal(fast, slow, err_msg=case)
        other = places.reference_add_slices(g, shape, _at(axis, index))
        np.testing.assert_array_equal(other, slow, err_msg=case)


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if 0 not in shape])
@pytest.mark.parametrize("dtype", DTYPES)
def test_elements_along_a_dimension_are_taken_and_added_as_by_numpy(shape: Any, dtype: Any) -> None:
    r = np.random.default_rng(0)
    x = (r.standard_normal(shape) * 9).astype(dtype)
    for axis in range(len(shape)):
        for n in (0, 1, 6):
            index = r.integers(-shape[axis], shape[axis], (*shape[:axis], n, *shape[axis + 1 :]))
            taken = loader.native.take_along(x, index, axis)
            np.testing.assert_array_equal(taken, np.take_along_axis(x, index, axis))
            added = loader.native.add_along(taken, shape, axis, index)
            np.testing.assert_array_equal(added, places.reference_add_along(taken, shape, axis, index))
            assert taken.dtype == added.dtype == dtype
            fast, slow = np.zeros(shape, dtype), np.zeros(shape, dtype)
            assert loader.native.put_along(fast, index, taken + 1, axis)
            np.put_along_axis(slow, index, taken + 1, axis)
            np.testing.assert_array_equal(fast, slow)


X, INDEX = np.ones((3, 4), np.float32), np.array([0, 2])


@pytest.mark.parametrize(
    ("x", "index", "axis"),
    [
        (X, np.array([0, 3]), 0),
        (X, np.array([0, -5]), 1),
        (X, np.array([2**63 - 1]), 0),
        (X, np.array([-(2**63)]), 0),
        (X, np.array([0.0]), 0),
        (X, np.array([True, False, True]), 0),
        (X, np.array([0], np.int32), 0),
        (X.T, INDEX, 0),
        (X, INDEX, 2),
        (X, INDEX, -1),
        (np.array([None]), np.array([0]), 0),
    ],
)
def test_what_has_no_kernel_or_is_wrong_is_left_to_numpy(x: Any, index: Any, axis: int) -> None:
    assert loader.native.take_slices(x, index, axis) is None
    assert loader.native.take_along(x, index, axis) is None
    assert not loader.native.put_along(x, index, x[:2], axis)


@pytest.mark.parametrize(
    ("g", "shape", "axis"),
    [((2, 4), (3, 5), 0), ((2, 4), (3,), 0), ((3, 4), (3, 4), 0), ((2, 4), (-3, 4), 0), ((2, 4), (3, 4), 2)],
)
def test_a_gradient_that_does_not_fit_is_left_to_numpy(g: Any, shape: Any, axis: int) -> None:
    ones = np.ones(g, np.float32)
    assert loader.native.add_slices(ones, shape, INDEX, axis) is None
    assert loader.native.add_along(ones, shape, axis, np.zeros((2, 3), np.int64)) is None


def test_sums_have_the_same_bits_for_any_number_of_threads() -> None:
    r = np.random.default_rng(0)
    g, index = r.standard_normal((50, 7000)).astype(np.float32), r.integers(0, 9, (50, 7000))
    before, found = threads.get_num_threads(), set()
    for count in (1, 2, 3):
        threads.set_num_threads(count)
        along = places.add_along(g, (50, 9), 1, index)
        found.add(along.tobytes() + places.add_slices(g, (50, 9), (slice(None), index[0])).tobytes())
    threads.set_num_threads(before)
    assert len(found) == 1


@pytest.mark.parametrize(
    ("shape", "k", "count"), [((2, 3, 33), 4, 31), ((1, 1, 1), 1, 1), ((3, 2, 7), 8, 4097), ((2, 0, 5), 2, 3)]
)
def test_weighted_points_are_those_of_their_declared_form(shape: Any, k: int, count: int) -> None:
    r = np.random.default_rng(0)
    x, weights = (r.standard_normal(s).astype(np.float32) for s in (shape, (k, shape[0], count)))
    at, xp = r.integers(-1, shape[2], weights.shape), resilin.device("cpu").xp
    g = r.standard_normal((*shape[:2], count)).astype(np.float32)
    fast, slow = loader.native.points_forward(x, weights, at), weighted_points.generic.forward(xp, x, weights, at)
    np.testing.assert_array_equal(fast, slow)
    needs = (True, True)
    expected = weighted_points.generic.vjp(xp, needs, g, None, x, weights, at)
    for found, wanted in zip(loader.native.points_backward(g, x, weights, at, *needs), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_points_that_do_not_fit_are_left_to_numpy() -> None:
    x, weights, at = np.ones((2, 3, 4), np.float32), np.ones((1, 2, 5), np.float32), np.zeros((1, 2, 5), np.int64)
    points = loader.native.points_forward
    assert points(x, weights, at) is not None
    assert points(x, weights, at + 4) is None
    assert points(x, weights, at - 2) is None
    assert points(x, weights[:, :1], at[:, :1]) is None
    assert points(x, weights, at[..., :4]) is None
    assert points(x[0], weights, at) is None
    assert loader.native.points_backward(np.ones((2, 3, 4), np.float32), x, weights, at, True, True) is None


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_places_of_whole_slices_are_those_of_their_elements(axis: int) -> None:
    r, shape = np.random.default_rng(axis), (5, 6, 7)
    x = resilin.tensor(r.standard_normal(shape).astype(np.float32))
    line = resilin.tensor(r.integers(0, shape[axis], 9)).reshape([-1 if d == axis else 1 for d in range(3)])
    index = line.expand([9 if d == axis else n for d, n in enumerate(shape)])
    narrow = index.narrow((axis + 1) % 3, 0, 2)  # fewer elements than a slice has
    for given in (index, narrow):
        whole = given.contiguous()
        source = x.gather(axis, whole)
        assert resilin.equal(x.gather(axis, given), source)
        assert resilin.equal(x.scatter_add(axis, given, source), x.scatter_add(axis, whole, source))
        leaf = x.clone().requires_grad_()
        (leaf.gather(axis, given) * source).sum().backward()
        assert resilin.equal(leaf.grad, resilin.zeros(shape).scatter_add(axis, whole, source))


def test_gradients_of_expanded_places_are_of_those_there_were() -> None:
    x, line = resilin.ones(3, 2, requires_grad=True), resilin.tensor([[0], [2]])
    y = x.gather(0, line.expand(2, 2)).sum()
    line.fill_(1)
    y.backward()
    assert x.grad.tolist() == [[1, 1], [0, 0], [1, 1]]


def test_the_range_of_places_is_numpys() -> None:
    x = np.random.default_rng(0).integers(-99, 99, (3, 35))
    for index in (x, x[:, ::2], x.astype(np.int32), np.broadcast_to(x[:, :1], x.shape)):
        assert places.range_of(index) == (index.min(), index.max())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("largest", [True, False])
def test_extremes_of_slices_are_those_of_numpy(dtype: Any, largest: bool) -> None:
    for shape, axis, _ in _cases():
        r = np.random.default_rng(0)
        index = _index(r, shape[axis], (33,))
        if len(shape) < 2 or not index.size:
            continue
        lengths = (*shape[:axis], 33, *shape[axis + 1 :])
        out, value = ((r.standard_normal(size) * 9).astype(dtype) for size in (shape, lengths))
        if out.dtype.kind == "f" and out.size and value.size:
            out.flat[0], value.flat[1] = np.nan, np.nan
        spread = np.broadcast_to(index.reshape([-1 if d == axis else 1 for d in range(len(shape))]), lengths)
        expected = out.copy()
        where: list[Any] = list(np.indices(lengths, sparse=True))
        where[axis] = spread
        (np.maximum if largest else np.minimum).at(expected, tuple(where), value)
        assert places.pick_along(out, spread, value, axis, largest) is bool(value.size)
        np.testing.assert_array_equal(out, expected, err_msg=f"{shape}, axis {axis}")


def test_slices_are_merged_in_the_same_order_for_any_number_of_threads() -> None:
    r, before = np.random.default_rng(0), threads.get_num_threads()
    index, value = r.integers(0, 40, 3000), r.standard_normal((3000, 129)).astype(np.float32)
    spread, found = np.broadcast_to(index[:, None], value.shape), []
    try:
        for n in (1, 2, 5):
            threads.set_num_threads(n)
            top = np.zeros((40, 129), np.float32)
            assert places.pick_along(top, spread, value, 0, True)
            found.append((top, places.add_along(value, (40, 129), 0, spread)))
    finally:
        threads.set_num_threads(before)
    for top, total in found[1:]:
        np.testing.assert_array_equal(top, found[0][0])
        np.testing.assert_array_equal(total, found[0][1])


def test_extremes_at_a_place_for_each_element_are_those_of_numpy() -> None:
    out, value = np.array([[5, 1], [2, 7], [np.nan, 0]], np.float32), np.array([[6, 9], [1, np.nan]], np.float32)
    index = np.array([[0, 1], [2, 1]])
    for largest, pick in ((True, np.maximum), (False, np.minimum)):
        found, expected = out.copy(), out.copy()
        pick.at(expected, (index, np.array([[0, 1]])), value)
        assert places.pick_along(found, index, value, 0, largest) is True
        np.testing.assert_array_equal(found, expected)


def test_what_has_no_kernel_of_extremes_is_left_alone() -> None:
    out, value = np.zeros((3, 2), np.float32), np.ones((2, 2), np.float32)
    outside = np.broadcast_to(np.array([[0], [3]]), (2, 2))
    assert not places.pick_along(out, outside, value, 0, True)
    assert not places.pick_along(out, np.broadcast_to(np.array([[0], [1]]), (2, 2)), value.astype(np.float16), 0, True)
    assert not out.any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_added_to_something_goes_to_it_in_order(dtype: Any) -> None:
    for shape, axis, at in _cases():
        if len(at) != 1 or not shape[axis]:
            continue
        r = np.random.default_rng(0)
        index = _index(r, shape[axis], at)
        x, g = ((r.standard_normal(s) * 9).astype(dtype) for s in (shape, (*shape[:axis], *at, *shape[axis + 1 :])))
        expected, slices, along = x.copy(), x.copy(), x.copy()
        np.add.at(expected, _at(axis, index), g)
        assert places.add_slices_to(slices, g, _at(axis, index)) is slices
        spread = np.broadcast_to(index.reshape(-1, *(1,) * (len(shape) - axis - 1)), g.shape)
        assert places.add_along_to(along, g, axis, spread) is along
        apart = places.reference_add_slices_to(x.copy(), g, _at(axis, index))
        np.testing.assert_array_equal(apart, expected, err_msg=f"{shape}, axis {axis}, {at}")
        np.testing.assert_array_equal(slices, expected, err_msg=f"{shape}, axis {axis}, {at}")
        np.testing.assert_array_equal(along, expected, err_msg=f"{shape}, axis {axis}, {at}")


def test_what_does_not_fit_is_not_added() -> None:
    x, g = np.zeros((3, 4), np.float32), np.ones((2, 4), np.float32)
    for bad in (np.array([0, 3]), np.array([0, -4]), np.array([0]), np.array([0.0, 1.0])):
        assert not loader.native.add_slices_to(x, g, bad, 0)
    assert not loader.native.add_slices_to(x, g.astype(np.float64), np.array([0, 1]), 0)
    assert not loader.native.add_along_to(x, g, 0, np.full((2, 4), 3))
    assert not loader.native.add_along_to(x, g, 0, np.zeros((2, 3), int))
    x.flags.writeable = False
    assert not loader.native.add_slices_to(x, g, np.array([0, 1]), 0)
    assert not x.any()


def test_scattered_sums_have_the_same_bits_for_any_number_of_threads_and_gradients() -> None:
    r = np.random.default_rng(1)
    x, g, at = (
        r.standard_normal((70, 640)).astype("f4"),
        r.standard_normal((900, 640)).astype("f4"),
        r.integers(0, 70, 900),
    )
    before, found = threads.get_num_threads(), []
    for count in (1, 2):
        threads.set_num_threads(count)
        left, right = (resilin.tensor(v, requires_grad=True) for v in (x, g))
        index = resilin.tensor(at)
        sums = (left.index_add(0, index, right), left.scatter_add(0, index[:, None].expand(-1, 640), right))
        (sums[0] * 2 + sums[1]).sum().backward()
        found.append([part.detach().numpy().tobytes() for part in sums])
        np.testing.assert_array_equal(left.grad.numpy(), np.full_like(x, 3))
        np.testing.assert_array_equal(right.grad.numpy(), np.full_like(g, 3))
    threads.set_num_threads(before)
    assert found[0] == found[1]
    assert found[0][0] == found[0][1]


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("sizes", [(5, 7), (1, 1), (33, 2), (3, 4, 5)])
def test_grids_become_the_places_and_weights_that_tensors_give(
    sizes: Any, mode: str, padding: str, corners: bool
) -> None:
    r = np.random.default_rng(4)
    grid = (r.random((2, 31, *(1,) * (len(sizes) - 2), 19, len(sizes))) * 3 - 1.5).astype(np.float32)
    grid[0, 0, ..., 0, :] = np.nan
    grid[0, 1, ..., 0, :] = np.inf
    grid[0, 2, ..., :2, :] = 1.0
    x = resilin.tensor(r.standard_normal((2, 3, *sizes)).astype(np.float32))
    how = {"mode": mode, "padding_mode": padding, "align_corners": corners}
    fast = resilin.nn.functional.grid_sample(x, resilin.tensor(grid), **how)
    slow = resilin.nn.functional.grid_sample(x, resilin.tensor(grid, requires_grad=True), **how)
    known = ~np.isnan(slow.detach().numpy())
    np.testing.assert_array_equal(fast.numpy()[known], slow.detach().numpy()[known])
    assert fast.shape == slow.shape


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(2, 3, 7, 5), (1, 1, 1, 1), (1, 2, 33, 8), (0, 2, 4, 4), (3, 2, 9)])
def test_the_maxima_of_windows_lie_where_numpy_finds_them(shape: Any, dtype: Any) -> None:
    x = np.random.default_rng(5).integers(-3, 3, shape).astype(dtype)
    if x.size > 20:
        x.reshape(-1)[[3, 11]] = np.nan
    for count in (1, 2, 3):
        windows = [pool.adaptive_windows(n, count) for n in shape[2:]]
        slow = adaptive_max.positions(x, [adaptive_max.places(w[:, 0], w[:, 1]) for w in windows])
        np.testing.assert_array_equal(adaptive_max.positions_of_windows(x, windows), slow)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.bool_, np.complex128])
def test_triangles_and_reversed_dimensions_are_numpys(dtype: Any) -> None:
    for shape in [(1, 1), (31, 33), (4, 1, 5), (0, 3), (3, 40, 2)]:
        x = (np.random.default_rng(6).standard_normal(shape) * 9).astype(dtype)
        given = resilin.tensor(x)
        for diagonal in (-50, -2, 0, 1, 50):
            np.testing.assert_array_equal(given.triu(diagonal).numpy(), np.triu(x, diagonal))
            np.testing.assert_array_equal(given.tril(diagonal).numpy(), np.tril(x, diagonal))
        for axes in [(0,), (1,), (-1,), (0, 1), (0, -1)]:
            if len({a % len(shape) for a in axes}) == len(axes):
                np.testing.assert_array_equal(given.flip(axes).numpy(), np.flip(x, axes))
                np.testing.assert_array_equal(given.mT.flip(axes).numpy(), np.flip(x.swapaxes(-1, -2), axes))
                np.testing.assert_array_equal(
                    given.roll((3,) * len(axes), axes).numpy(), np.roll(x, (3,) * len(axes), axes)
                )
        np.testing.assert_array_equal(given.roll(-2).numpy(), np.roll(x, -2))
