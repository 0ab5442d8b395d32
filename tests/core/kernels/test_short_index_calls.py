"""Indexing by the short ways of native code, against numpy and against the way in Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import resilin
from resilin.core.kernels import loader

pytestmark = pytest.mark.skipif(loader.native is None, reason="there are no native kernels here")

FLOATS = [resilin.float32, resilin.float64, resilin.float16, resilin.bfloat16]
DTYPES = [*FLOATS, resilin.int64]
SHAPES = [(1,), (7,), (4097,), (70_001,), (31, 3), (3, 33), (1200, 64), (4, 7, 5), (1, 1)]


@pytest.fixture(params=[1, 2])
def count(request: Any) -> Any:
    before = resilin.get_num_threads()
    resilin.set_num_threads(request.param)
    yield request.param
    resilin.set_num_threads(before)


def _drawn(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> Any:
    return resilin.tensor(np.random.default_rng(seed).standard_normal(shape) * 9).to(dtype)


def _wide(x: Any) -> Any:
    """As numpy computes with it: 16-bit floats as float32."""
    return x.float().numpy() if x.dtype in (resilin.float16, resilin.bfloat16) else x.numpy()


def _same(found: Any, expected: Any, dtype: Any, case: str = "") -> None:
    assert found.dtype == dtype, case
    expected = resilin.tensor(np.ascontiguousarray(expected)).to(dtype)
    np.testing.assert_array_equal(_wide(found), _wide(expected), err_msg=case)


def _indices(shape: tuple[int, ...], axis: int, spread: bool) -> Any:
    r = np.random.default_rng(1)
    if not spread:
        return resilin.tensor(r.integers(0, shape[axis], shape))
    one = tuple(n if d == axis else 1 for d, n in enumerate(shape))
    return resilin.tensor(r.integers(0, shape[axis], one)).expand(shape)


def _cases() -> list[tuple[tuple[int, ...], int, bool]]:
    return [(shape, axis, spread) for shape in SHAPES for axis in range(len(shape)) for spread in (False, True)]


def _merged(x: Any, axis: int, index: Any, src: Any, how: Any) -> Any:
    out = x.copy()
    places: list[Any] = list(np.indices(index.shape, sparse=True))
    places[axis] = index
    if how is None:
        np.put_along_axis(out, index, src, axis)
    else:
        how.at(out, tuple(places), src)
    return out


@pytest.mark.parametrize("dtype", [*DTYPES, resilin.bool, resilin.complex128])
def test_elements_are_gathered_as_by_numpy(count: int, dtype: Any) -> None:
    for shape, axis, spread in _cases():
        x, index = _drawn(shape, dtype), _indices(shape, axis, spread)
        expected = np.take_along_axis(_wide(x), index.numpy(), axis)
        _same(x.gather(axis - len(shape), index), expected, dtype, f"{shape} {axis} {spread}")
        _same(x.take_along_dim(index - shape[axis], axis), expected, dtype)
        vector = index.select(1 - axis, 0) if len(shape) == 2 else index.reshape(-1)[:9] % shape[axis]
        _same(x.index_select(axis, vector), _wide(x).take(vector.numpy(), axis), dtype)
        flat = index % x.numel() - x.numel()
        _same(x.take(flat), _wide(x).reshape(-1)[flat.numpy()], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_elements_are_scattered_in_order(count: int, dtype: Any) -> None:
    for shape, axis, spread in _cases():
        case = f"{shape} {axis} {spread}"
        x, src, index = _drawn(shape, dtype), _drawn(shape, dtype, 2), _indices(shape, axis, spread)
        given = (_wide(x), axis, index.numpy(), _wide(src))
        for name, how in (("scatter", None), ("scatter_add", np.add)):
            expected = _merged(*given, how)
            _same(getattr(x, name)(axis, index, src), expected, dtype, case)
            _same(getattr(x.clone(), name + "_")(axis, index, src), expected, dtype, case)
        for reduce, how in (("amax", np.maximum), ("amin", np.minimum), ("sum", np.add)):
            expected = _merged(*given, how)
            _same(x.scatter_reduce(axis, index, src, reduce), expected, dtype, case)
            _same(x.clone().scatter_reduce_(axis, index, src, reduce=reduce), expected, dtype, case)


@pytest.mark.parametrize("dtype", DTYPES)
def test_slices_are_written_and_added_in_order(count: int, dtype: Any) -> None:
    for shape in SHAPES:
        for axis in range(len(shape)):
            index = np.random.default_rng(3).integers(0, shape[axis], min(shape[axis] + 3, 40))
            x, source = _drawn(shape, dtype), _drawn((*shape[:axis], len(index), *shape[axis + 1 :]), dtype, 2)
            at, k = (*(slice(None),) * axis, index), resilin.tensor(index)
            added, put, filled = _wide(x).copy(), _wide(x).copy(), _wide(x).copy()
            np.add.at(added, at, _wide(source))
            for i, place in enumerate(index):
                put[(*at[:-1], place)] = _wide(source)[(*at[:-1], i)]
            filled[at] = 2
            for name, argument, expected in (
                ("index_add", source, added),
                ("index_copy", source, put),
                ("index_fill", 2 if dtype == resilin.int64 else 2.0, filled),
            ):
                _same(getattr(x, name)(axis, k, argument), expected, dtype, f"{name} {shape} {axis}")
                _same(getattr(x.clone(), name + "_")(axis, k, argument), expected, dtype, f"{name} {shape} {axis}")
            if axis == 0:
                _same(x.index_put((k - shape[0],), source), put, dtype)
                _same(x.clone().index_put_((k,), source, accumulate=True), added, dtype)


@pytest.mark.parametrize("dtype", [*DTYPES, resilin.bool])
def test_masks_choose_as_in_numpy(count: int, dtype: Any) -> None:
    for shape in SHAPES:
        for share in (0.0, 0.3, 0.97, 1.0):
            mask = np.random.default_rng(4).random(shape) < share
            x, b, source = _drawn(shape, dtype), resilin.tensor(mask), _drawn((*shape, 2), dtype, 5)
            wide = _wide(x)
            _same(x[b], wide[mask], dtype)
            _same(x.masked_select(b), wide[mask], dtype)
            expected = wide.copy()
            expected[mask] = _wide(source).reshape(-1)[: mask.sum()]
            _same(x.masked_scatter(b, source), expected, dtype)
            _same(x.clone().masked_scatter_(b, source), expected, dtype)
            np.testing.assert_array_equal(b.nonzero().numpy(), np.argwhere(mask))
            kept = x.masked_fill(~b, 0)
            np.testing.assert_array_equal(kept.nonzero().numpy(), np.argwhere(_wide(kept)))
            filled = wide.copy()
            filled[mask] = 1
            _same(x.clone().masked_fill_(b, 1.0 if dtype in FLOATS else 1), filled, dtype)


def test_several_arrays_of_places_pick_points(count: int) -> None:
    x = _drawn((40, 7, 5), resilin.float32)
    r = np.random.default_rng(6)
    for shape in ((1,), (9,), (3, 4), (40_000,)):
        a, b, c = (r.integers(-n, n, shape) for n in (40, 7, 5))
        _same(x[resilin.tensor(a), resilin.tensor(b)], x.numpy()[a, b], x.dtype)
        _same(x[resilin.tensor(a), resilin.tensor(b), resilin.tensor(c)], x.numpy()[a, b, c], x.dtype)
    with pytest.raises(IndexError, match="out of bounds"):
        x[resilin.tensor([0]), resilin.tensor([7])]


@pytest.mark.parametrize("dtype", [*DTYPES, resilin.bool])
def test_elements_are_repeated_as_by_numpy(count: int, dtype: Any) -> None:
    for shape in SHAPES:
        x = _drawn(shape, dtype)
        for times in (0, 1, 2, 3, 4, 5):
            _same(x.repeat_interleave(times), _wide(x).repeat(times), dtype)
            _same(x.repeat_interleave(times, dim=-1), _wide(x).repeat(times, -1), dtype)
            _same(x.repeat_interleave(times, 0), _wide(x).repeat(times, 0), dtype)
    with pytest.raises(RuntimeError, match="non-negative"):
        x.repeat_interleave(-1)


def test_class_numbers_become_rows(count: int) -> None:
    one_hot = resilin.nn.functional.one_hot
    k = resilin.tensor(np.random.default_rng(7).integers(0, 16, (3, 5000)))
    np.testing.assert_array_equal(one_hot(k).numpy(), np.eye(16, dtype=np.int64)[k.numpy()])
    np.testing.assert_array_equal(one_hot(k, 20).numpy(), np.eye(20, dtype=np.int64)[k.numpy()])
    for wrong, classes in ((k, 15), (k - 1, -1)):
        with pytest.raises(RuntimeError, match="Class values"):
            one_hot(wrong, classes)


@pytest.mark.parametrize("dtype", FLOATS)
def test_rows_are_looked_up_and_added_in_bags(count: int, dtype: Any) -> None:
    F = resilin.nn.functional
    r = np.random.default_rng(8)
    for num, width in ((1, 1), (50, 33), (3000, 64), (9, 700)):
        table, index = _drawn((num, width), dtype), r.integers(0, num, 2 * num)
        starts = np.unique(np.r_[0, r.integers(0, 2 * num, num)])
        _same(F.embedding(resilin.tensor(index), table), _wide(table)[index], dtype)
        expected = np.zeros((len(starts), width), _wide(table).dtype)
        sizes = np.diff(np.r_[starts, len(index)])
        np.add.at(expected, np.repeat(np.arange(len(starts)), sizes), _wide(table)[index])
        found = F.embedding_bag(resilin.tensor(index), table, resilin.tensor(starts), mode="sum")
        _same(found, expected, dtype)
        found = F.embedding_bag(resilin.tensor(index), table, resilin.tensor(starts))
        _same(found, expected / np.maximum(sizes, 1).astype(expected.dtype)[:, None], dtype)
    with pytest.raises(IndexError, match="out of range"):
        F.embedding(resilin.tensor([-1]), table)


def test_places_out_of_range_are_refused_and_nothing_is_written() -> None:
    x, src = resilin.arange(6.0), resilin.ones(2)
    for wrong in ([0, 6], [0, -1]):
        k = resilin.tensor(wrong)
        before = x._version
        for call in (
            lambda k=k: x.gather(0, k),
            lambda k=k: x.scatter(0, k, src),
            lambda k=k: x.scatter_(0, k, src),
            lambda k=k: x.scatter_add_(0, k, src),
            lambda k=k: x.index_add_(0, k, src),
            lambda k=k: x.index_copy_(0, k, src),
        ):
            with pytest.raises((RuntimeError, IndexError), match="out of bounds"):
                call()
        assert x._version == before
        assert x.tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(IndexError):
        x.index_fill_(0, resilin.tensor([-7]), 1.0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_slices_without_elements_are_taken_and_nothing_beside_them_is_written(dtype: Any) -> None:
    k = np.repeat(np.arange(15), 2)
    beside = [np.full(n, 7, np.uint8) for n in (8, 16, 24, 40, 120, 8, 16, 24, 40, 120) for _ in range(40)]
    x = resilin.zeros(2, 15, 0, dtype=dtype)
    for _ in range(20):
        assert x[:, resilin.tensor(k)].shape == (2, 30, 0)
        assert x.index_select(1, resilin.tensor(k)).shape == (2, 30, 0)
        assert x.repeat_interleave(2, 1).shape == (2, 30, 0)
        assert x.index_fill(1, resilin.tensor(k), 1).shape == x.index_add(1, resilin.tensor(k[::2]), x).shape == x.shape
    assert all((array == 7).all() for array in beside)


@pytest.mark.parametrize("shape", [(150_001,), (3, 50_000), (400, 600), (2, 70, 1100)])
@pytest.mark.parametrize("dtype", [resilin.float32, resilin.bfloat16, resilin.uint8, resilin.complex128])
def test_many_places_which_repeat_are_filled_by_any_number_of_threads(
    shape: tuple[int, ...], dtype: Any, count: int
) -> None:
    dim = 1 if len(shape) == 3 else len(shape) - 1 if shape[0] < 9 else 0
    length = shape[dim]
    k = np.random.default_rng(3).integers(-length, length, 2 * length // 3)
    x = resilin.tensor(np.arange(np.prod(shape)).reshape(shape) % 100).to(dtype)
    expected = x.clone()
    expected[(slice(None),) * dim + (resilin.tensor(np.unique(k % length)),)] = 7
    assert (expected == 7).sum() > x.numel() // 3
    assert resilin.equal(x.index_fill(dim, resilin.tensor(k), 7), expected)
    assert not resilin.equal(x, expected)
    assert resilin.equal(x.index_fill_(dim, resilin.tensor(k), 7), expected)


def test_writes_are_counted_once_and_give_the_tensor_itself() -> None:
    x, k = resilin.zeros(4), resilin.tensor([1, 1])
    for number, call in enumerate(
        (
            lambda: x.scatter_(0, k, resilin.ones(2)),
            lambda: x.index_add_(0, k, resilin.ones(2)),
            lambda: x.index_fill_(0, index=k, value=5.0),
            lambda: x.index_put_((k,), values=resilin.ones(2)),
            lambda: x.masked_fill_(x > 0, 3.0),
        )
    ):
        assert call() is x
        assert x._version == number + 1
    assert x.tolist() == [0, 3, 0, 0]


def test_what_lies_in_the_same_memory_is_written_as_if_it_was_copied_before() -> None:
    x = resilin.arange(6.0)
    x[1:].scatter_(0, resilin.tensor([0, 1, 2, 3, 4]), x[:-1])
    assert x.tolist() == [0, 0, 1, 2, 3, 4]
    x = resilin.arange(6.0)
    x[:4].scatter_add_(0, resilin.tensor([0, 0, 0, 0]), x[2:])
    assert x.tolist() == [14, 1, 2, 3, 4, 5]


def test_strided_and_smaller_tensors_take_the_way_in_python(count: int) -> None:
    x = _drawn((9, 8), resilin.float32)
    index = resilin.tensor(np.random.default_rng(9).integers(0, 8, (8, 9)))
    _same(x.t().gather(0, index), np.take_along_axis(x.numpy().T, index.numpy(), 0), x.dtype)
    _same(x.gather(1, index[:, :3]), np.take_along_axis(x.numpy()[:8], index.numpy()[:, :3], 1), x.dtype)
    _same(x.t().masked_select(x.t() > 0), x.numpy().T[x.numpy().T > 0], x.dtype)
    _same(x.t().repeat_interleave(2), x.numpy().T.repeat(2), x.dtype)
    assert x.masked_select(resilin.tensor(True)).shape == (72,)


def test_gradients_flow_as_before() -> None:
    x = resilin.arange(4.0).requires_grad_()
    k = resilin.tensor([1, 1, 3])
    (x.gather(0, k).sum() + x.index_select(0, k).sum() + x.take(k).sum() + x.repeat_interleave(2).sum()).backward()
    assert x.grad.tolist() == [2, 8, 2, 5]
    with resilin.no_grad():
        assert not x.gather(0, k).requires_grad
    y = resilin.zeros(4).scatter_add_(0, k, x[:3])
    y.sum().backward()
    assert x.grad.tolist() == [3, 9, 3, 5]


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_grids_are_sampled_with_the_bits_that_gradients_follow(count: int, mode: str, padding: str) -> None:
    r = np.random.default_rng(10)
    for shape, out in (
        ((1, 1, 1, 1), (1, 1)),
        ((2, 3, 9, 31), (40, 41)),
        ((2, 3, 5, 4, 9), (3, 33, 7)),
        ((1, 2, 3, 3), (0, 2)),
    ):
        x = resilin.tensor(r.standard_normal(shape), dtype=resilin.float32)
        grid = resilin.tensor(r.uniform(-1.6, 1.6, (shape[0], *out, len(out))), dtype=resilin.float32)
        for corners in (False, True):
            found = resilin.nn.functional.grid_sample(x, grid, mode, padding, align_corners=corners)
            step_by_step = resilin.nn.functional.grid_sample(x.clone().requires_grad_(), grid, mode, padding, corners)
            np.testing.assert_array_equal(found.numpy(), step_by_step.detach().numpy())
