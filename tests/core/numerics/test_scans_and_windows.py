"""Running extremes and sums, and windows along a dimension."""

import math
from typing import Any

import numpy as np
import pytest

import resilin


def test_a_running_sum_of_nothing_still_has_its_dimensions():
    with pytest.raises(IndexError, match="out of range"):
        resilin.zeros(0).logcumsumexp(5)


ROWS = [[1.0, 4.0, 4.0, 2.0], [3.0, 0.0, 5.0, math.nan]]


def _leaf(values: Any) -> Any:
    return resilin.tensor(values, dtype=resilin.float64, requires_grad=True)


def _weighted(y: Any) -> Any:
    (y * resilin.arange(y.numel(), dtype=resilin.float64).reshape(y.shape)).sum().backward()


def test_running_maxima_keep_the_last_of_equals_and_nan() -> None:
    x = _leaf(ROWS)
    values, indices = x.cummax(1)
    assert indices.tolist() == [[0, 1, 2, 2], [0, 0, 2, 3]]
    np.testing.assert_equal(values.detach().numpy(), [[1, 4, 4, 4], [3, 3, 5, math.nan]])
    _weighted(values)
    np.testing.assert_equal(x.grad.numpy(), [[0, 1, 5, 0], [9, 0, 6, 7]])


def test_running_minima_of_columns() -> None:
    values, indices = resilin.cummin(resilin.tensor([[3, 1], [3, 2], [1, 0]]), 0)
    assert values.tolist() == [[3, 1], [3, 1], [1, 0]]
    assert indices.tolist() == [[0, 0], [1, 0], [2, 2]]


def test_unfold_gives_windows_as_the_last_dimension() -> None:
    x = _leaf([[0.0, 1, 2, 3], [4, 5, 6, 7]])
    windows = x.unfold(1, 2, 2)
    assert windows.tolist() == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    assert x.unfold(0, 2, 1).shape == (1, 4, 2)
    _weighted(x.unfold(1, 3, 1))
    assert x.grad.tolist() == [[0, 4, 6, 5], [6, 16, 18, 11]]
    with pytest.raises(RuntimeError, match="maximum size"):
        x.unfold(1, 5, 1)
