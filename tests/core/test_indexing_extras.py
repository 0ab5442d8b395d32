"""Scans with places, windows, diagonals in einsum, padding from inside: PyTorch's values and gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import resilin
import resilin.nn.functional as F

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


def test_take_counts_negative_indices_from_the_end() -> None:
    x = _leaf([[0.0, 1], [2, 3]])
    assert x.take(resilin.tensor([0, -1])).tolist() == [0, 3]
    with pytest.raises(IndexError, match="out of range"):
        x.take(resilin.tensor([-5]))


@pytest.mark.parametrize("equation", ["ii->i", "ii", "ii,i->i"])
def test_a_letter_twice_in_einsum_is_the_diagonal(equation: str) -> None:
    x = _leaf(np.arange(9.0).reshape(3, 3))
    operands = [x] if "," not in equation else [x, _leaf([1.0, 2.0, 3.0])]
    y = resilin.einsum(equation, *operands)
    np.testing.assert_allclose(y.detach().numpy(), np.einsum(equation, *[o.detach().numpy() for o in operands]))
    y.sum().backward()
    factors = [1, 2, 3] if "," in equation else [1, 1, 1]
    np.testing.assert_allclose(x.grad.numpy(), np.diag(factors))
    with pytest.raises(RuntimeError, match="lengths 2 and 3"):
        resilin.einsum("ii->i", resilin.zeros(2, 3))


@pytest.mark.parametrize(
    ("mode", "expected", "gradient"),
    [
        ("reflect", [2, 1, 0, 1, 2, 1], [2, 9, 4]),
        ("replicate", [0, 0, 0, 1, 2, 2], [3, 3, 9]),
        ("circular", [1, 2, 0, 1, 2, 0], [7, 3, 5]),
    ],
)
def test_padding_from_inside(mode: str, expected: list[float], gradient: list[float]) -> None:
    x = _leaf([[0.0, 1, 2]])
    y = F.pad(x, (2, 1), mode)
    assert y.tolist() == [expected]
    _weighted(y)
    assert x.grad.tolist() == [gradient]
    assert F.pad(resilin.arange(4).reshape(2, 2), (0, 0, 1, 0), mode).shape == (3, 2)


def test_padding_from_inside_cannot_reach_beyond_the_input() -> None:
    with pytest.raises(RuntimeError, match="takes padding up to 2"):
        F.pad(resilin.zeros(1, 3), (3, 0), "reflect")
    with pytest.raises(ValueError, match="mode must be"):
        F.pad(resilin.zeros(1, 3), (1, 0), "mirror")


@pytest.mark.parametrize("graded", [False, True])
def test_a_mask_and_causal_order_hide_keys_together(graded: bool) -> None:
    resilin.manual_seed(1)
    q = resilin.randn(2, 3, 4, dtype=resilin.float64)
    mask = resilin.randn(3, 3, dtype=resilin.float64, requires_grad=graded)
    both = mask.masked_fill(resilin.ones(3, 3).tril() == 0, -math.inf)
    found = F.scaled_dot_product_attention(q, q, q, mask, is_causal=True)
    np.testing.assert_allclose(
        found.detach().numpy(), F.scaled_dot_product_attention(q, q, q, both).detach().numpy(), rtol=1e-12
    )


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


def test_scatter_adds_or_multiplies_with_what_is_there() -> None:
    x = resilin.full((3, 2), 2.0)
    index = resilin.tensor([[0, 1], [0, 1], [2, 1]])
    src = resilin.arange(6.0).reshape(3, 2) + 1
    assert x.clone().scatter_(0, index, src, reduce="add").tolist() == [[6, 2], [2, 14], [7, 2]]
    assert x.scatter(0, index, src, reduce="multiply").tolist() == [[6, 2], [2, 96], [10, 2]]
    assert x.scatter(0, index, 3, reduce="multiply").tolist() == [[18, 2], [2, 54], [6, 2]]
    assert x.scatter(0, index, value=1, reduce="add").tolist() == [[4, 2], [2, 5], [3, 2]]
    src.requires_grad_()
    x.scatter(0, index, src, reduce="add").sum().backward()
    assert src.grad.tolist() == [[1, 1]] * 3
    with pytest.raises(RuntimeError, match="has no gradient"):
        x.scatter(0, index, src, reduce="multiply")
    with pytest.raises(RuntimeError, match="either add or multiply"):
        x.scatter(0, index, src, reduce="mean")


@pytest.mark.parametrize("reduce", ["sum", "amax", "amin", "mean", "prod"])
def test_scattering_with_an_index_shorter_than_the_input_has_gradients(reduce):
    x = resilin.ones(4, 5, requires_grad=True, dtype=resilin.float64)
    source = resilin.full((3, 2), 2.0, dtype=resilin.float64).requires_grad_()
    index = resilin.tensor([[0, 0], [2, 2], [3, 1]])
    x.scatter_reduce(1, index, source, reduce).sum().backward()
    assert x.grad.shape == (4, 5)
    assert source.grad.shape == (3, 2)
    resilin.zeros(4, 5, dtype=resilin.float64).scatter_add(1, index, source).sum().backward()
