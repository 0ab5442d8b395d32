"""Methods on a tensor's layout and diagonal."""

from __future__ import annotations

import pytest

import resilin


def test_a_view_knows_where_it_starts() -> None:
    x = resilin.zeros(3, 4)
    assert x[1:, 2:].storage_offset() == 6
    assert x.is_set_to(x.detach())
    assert not x.is_set_to(x[1:])


def test_sum_to_size_undoes_broadcasting_and_refuses_other_sizes() -> None:
    x = resilin.ones(2, 3, 4, requires_grad=True)
    y = x.sum_to_size(3, 1)
    assert y.tolist() == [[8.0]] * 3
    y.sum().backward()
    assert x.grad.sum().item() == 24
    with pytest.raises(RuntimeError, match="not expandable"):
        x.sum_to_size(2, 2)


def test_fill_diagonal_wraps_in_tall_matrices_as_pytorch_does() -> None:
    x = resilin.zeros(7, 3)
    assert x.clone().fill_diagonal_(5).nonzero().tolist() == [[0, 0], [1, 1], [2, 2]]
    wrapped = x.fill_diagonal_(5, wrap=True).nonzero().tolist()
    assert wrapped == [[0, 0], [1, 1], [2, 2], [4, 0], [5, 1], [6, 2]]
    with pytest.raises(RuntimeError, match="equal dimensions"):
        resilin.zeros(2, 2, 3).fill_diagonal_(1)


def test_apply_and_map_write_python_functions_of_each_element() -> None:
    x = resilin.arange(3.0)
    assert x.apply_(lambda v: v + 1) is x
    assert x.map_(resilin.tensor([10.0]), lambda a, b: a * b).tolist() == [10.0, 20.0, 30.0]
    with pytest.raises(RuntimeError, match="requires grad"):
        resilin.ones(2, requires_grad=True).apply_(abs)
