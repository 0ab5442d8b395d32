"""Indices that are empty, negative or of numbers, and values that are none."""

import numpy as np
import pytest

import resilin
from resilin.autograd import gradcheck, gradgradcheck


@pytest.mark.parametrize("value", [None, "a", b"a"])
def test_what_is_no_number_cannot_be_assigned(value):
    x = resilin.zeros(2, 3)
    with pytest.raises(TypeError, match=f"can't assign a {type(value).__name__} to a tensor of resilin.float32"):
        x[0] = value
    assert x.tolist() == [[0] * 3] * 2
    assert x._version == 0


def test_gather_of_no_indices_has_their_shape():
    assert resilin.gather(resilin.arange(6), 0, resilin.zeros(2, 0, dtype=resilin.int64)).shape == (2, 0)


def test_take_along_dim_counts_negative_indices_from_the_end():
    x = resilin.arange(6).reshape(2, 3)
    assert resilin.take_along_dim(x, resilin.tensor([[-1], [-3]]), 1).tolist() == [[2], [3]]
    with pytest.raises(RuntimeError, match="out of bounds"):
        resilin.take_along_dim(x, resilin.tensor([[-4]]), 1)


@pytest.mark.parametrize(("reduce", "expected"), [("prod", 6), ("mean", 2.5), ("amax", 3), ("amin", 2)])
def test_index_reduce_of_a_number_treats_it_as_a_vector(reduce, expected):
    x = resilin.tensor(2.0).index_reduce(0, resilin.tensor([0]), resilin.tensor(3.0), reduce)
    assert x.shape == ()
    assert x.item() == expected


def test_searchsorted_of_empty_lines_is_empty():
    for shape in ((0, 0), (0, 0, 0), (2, 0), (0, 3)):
        found = resilin.searchsorted(resilin.zeros(*shape), resilin.zeros(*shape))
        assert found.shape == shape
        assert found.dtype is resilin.int64


def test_searchsorted_refuses_a_sorter_that_leaves_the_line():
    with pytest.raises(RuntimeError, match="sorter index out of range: it has 1 to 9"):
        resilin.searchsorted(resilin.tensor([5, 1, 3]), 3, sorter=resilin.tensor([1, 2, 9]))


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 1, 1), (1, 1, 2)])
def test_contracted_lengths_of_one_serve_all_of_the_other_operand(shape):
    a = resilin.arange(float(np.prod(shape)), dtype=resilin.float64).add(0.5).reshape(shape).requires_grad_()
    b = resilin.arange(4.0, dtype=resilin.float64).reshape(2, 1, 2).requires_grad_()

    def product(a, b):
        return resilin.tensordot(a, b, dims=([0, 1], [2, 0]))

    assert gradcheck(product, (a, b))
    assert gradgradcheck(product, (a, b))
