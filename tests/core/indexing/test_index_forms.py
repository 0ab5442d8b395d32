"""Forms of indices: lists, ranges, bytes as a mask, integers beside arrays."""

from typing import Any

import numpy as np
import pytest

import resilin


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        ([[0], [1]], [1]),
        ([[0, 1], [1, 2]], [1, 6]),
        ([resilin.tensor(0), resilin.tensor(1)], 1),
        ([resilin.tensor([0, 1]), [1, 2]], [1, 6]),
        ([[1, 0], 1], [5, 1]),
        ([slice(1)], [[0, 1, 2, 3]]),
        ([0, None], [[0, 1, 2, 3]]),
        ([0, ...], [0, 1, 2, 3]),
        ([[True, False, True]], [[0, 1, 2, 3], [8, 9, 10, 11]]),
    ],
)
def test_a_list_of_indices_is_read_as_a_tuple(index, expected):
    x = resilin.arange(12).reshape(3, 4)
    with pytest.warns(UserWarning, match="read as a tuple"):
        assert x[index].tolist() == expected
    y = x.clone()
    with pytest.warns(UserWarning, match="read as a tuple"):
        y[index] = -1
    assert (y == -1).sum() == x[tuple(index)].numel()
    assert y[tuple(index)].tolist() == resilin.full_like(x[tuple(index)], -1).tolist()


def test_a_list_of_numbers_and_a_range_are_indices():
    x = resilin.arange(12).reshape(3, 4)
    assert x[[0, 2]].tolist() == x[range(0, 3, 2)].tolist() == [[0, 1, 2, 3], [8, 9, 10, 11]]
    assert x[[True, False, True]].tolist() == x[[0, 2]].tolist()
    assert x[range(2), [1, 2]].tolist() == [1, 6]
    assert x[[[i % 3] for i in range(33)]].shape == (33, 1, 4)
    x[range(2)] = 0
    assert x.sum() == 8 + 9 + 10 + 11


def test_bytes_are_a_mask():
    x = resilin.arange(3)
    with pytest.warns(UserWarning, match="mask"):
        assert x[resilin.tensor([1, 0, 1], dtype=resilin.uint8)].tolist() == [0, 2]
    with pytest.warns(UserWarning, match="mask"):
        x[resilin.tensor([0, 1, 0], dtype=resilin.uint8)] = 7
    assert x.tolist() == [0, 7, 2]


def _grid() -> Any:
    return resilin.arange(120.0).reshape(4, 5, 6)


@pytest.mark.parametrize(
    ("index", "selected"),
    [
        ((0, slice(None), [0, 1]), lambda x: x[0][:, [0, 1]]),
        ((resilin.tensor(0), slice(None), resilin.tensor([0, 1])), lambda x: x[0][:, [0, 1]]),
        (([0, 1], slice(None), -1), lambda x: x[:, :, -1][[0, 1]]),
        ((1, ..., [2, 0]), lambda x: x[1][..., [2, 0]]),
        ((None, 0, slice(1, 3), [1]), lambda x: x[0][None, 1:3, [1]]),
        ((0, np.array([True, False] * 2 + [True]), slice(None)), lambda x: x[0][[0, 2, 4]]),
        ((0, np.eye(5, 6, dtype=bool)), lambda x: x[0][np.eye(5, 6, dtype=bool)]),
        ((True, slice(None), [0, 1], 2), lambda x: x[:, :, 2][True, :, [0, 1]]),
    ],
)
def test_an_integer_beside_an_array_selects_first(index: Any, selected: Any) -> None:
    expected = selected(_grid().numpy())
    np.testing.assert_array_equal(_grid()[index].numpy(), expected)

    x = _grid().requires_grad_()
    x[index].square().sum().backward()
    hit = np.zeros((4, 5, 6), bool)
    view = _grid()
    view[index] = resilin.full(expected.shape, -1.0)  # the same index, written
    hit[view.numpy() == -1] = True
    assert hit.sum() == expected.size
    np.testing.assert_array_equal(np.sort(_grid().numpy()[hit]), np.sort(expected.reshape(-1)))
    np.testing.assert_array_equal(x.grad.numpy(), np.where(hit, 2 * _grid().numpy(), 0))


def test_a_write_at_an_integer_beside_an_array_is_differentiated() -> None:
    a = resilin.ones(4, 5, 6, requires_grad=True)
    value = resilin.arange(10.0).reshape(5, 2).requires_grad_()
    x = a * 2
    x[0, :, [0, 1]] = value * 3
    (x * x).sum().backward()
    np.testing.assert_array_equal(value.grad.numpy(), 18 * np.arange(10.0).reshape(5, 2))
    expected = np.full((4, 5, 6), 8.0)
    expected[0, :, :2] = 0
    np.testing.assert_array_equal(a.grad.numpy(), expected)
