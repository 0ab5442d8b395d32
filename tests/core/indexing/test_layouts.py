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


def test_dimensions_may_be_given_one_by_one():
    assert resilin.zeros(1, 1, 3).squeeze(0, 1).shape == (3,)
    assert resilin.zeros(1, 1, 3).squeeze_(0, 1).shape == (3,)
    assert resilin.ones(4).broadcast_to(3, 4).shape == resilin.broadcast_to(resilin.ones(4), (3, 4)).shape == (3, 4)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.flip(0),
        lambda x: x.rot90(),
        lambda x: x.rot90(2),
        lambda x: resilin.einsum("ab->ab", x),
        lambda x: x.diff(n=0),
        lambda x: x.matrix_power(1),
    ],
)
def test_copies_share_no_memory_even_where_nothing_is_moved(function):
    x = resilin.ones(1, 1)
    function(x).zero_()
    assert x.item() == 1


@pytest.mark.parametrize("name", ["float", "double", "half", "bfloat16", "int", "long", "bool", "cfloat", "cpu"])
def test_conversions_take_a_memory_format(name):
    x = getattr(resilin.ones(2, 3, 4, 5), name)(memory_format=resilin.channels_last)
    assert x.is_contiguous(memory_format=resilin.channels_last)
    assert getattr(x, name)(memory_format=resilin.preserve_format) is x


def test_an_empty_dimension_is_cut_into_as_many_parts_as_are_asked_for():
    assert [part.shape for part in resilin.zeros(0, 3).chunk(3)] == [(0, 3)] * 3
    assert [part.shape for part in resilin.zeros(2, 0).chunk(2, 1)] == [(2, 0)] * 2
