"""`as_strided` of a view: the memory in the view's own dtype, and its gradient."""

import numpy as np
import pytest

import resilin
from resilin.autograd import gradcheck


def test_as_strided_of_a_dtype_view_shows_that_dtype():
    x = resilin.arange(6.0).view(resilin.int32)
    assert x.as_strided((2,), (1,)).dtype is resilin.int32
    assert x[::2].as_strided((2,), (1,), 3).dtype is resilin.int32
    np.testing.assert_array_equal(x[::2].as_strided((2,), (3,)).numpy(), np.arange(6, dtype=np.float32).view("i4")[::3])


def test_as_strided_of_complex_numbers_as_pairs_counts_real_elements():
    x = resilin.complex(resilin.tensor([1.0, 3.0]), resilin.tensor([2.0, 4.0]))
    pairs = resilin.view_as_real(x)
    np.testing.assert_array_equal(pairs.as_strided((4,), (1,)).numpy(), [1, 2, 3, 4])
    np.testing.assert_array_equal(pairs[:, 1].as_strided((3,), (1,)).numpy(), [2, 3, 4])
    np.testing.assert_array_equal(x.imag.as_strided((2,), (2,)).numpy(), [2, 4])
    back = resilin.view_as_complex(resilin.arange(8.0).reshape(4, 2))
    np.testing.assert_array_equal(back[::2].as_strided((3,), (1,), 1).numpy(), [2 + 3j, 4 + 5j, 6 + 7j])


def test_writing_through_as_strided_of_a_dtype_view_reaches_the_base():
    x = resilin.zeros(4)
    x.view(resilin.int32)[::2].as_strided((2,), (1,), 1).fill_(1065353216)  # the bits of 1.0
    np.testing.assert_array_equal(x.numpy(), [0, 1, 1, 0])


@pytest.mark.parametrize("make", [lambda x: x[:], lambda x: x[2:], lambda x: x.view(2, 5)])
def test_as_strided_of_a_leaf_that_is_a_view_has_its_gradient(make):
    leaf = make(resilin.zeros(10, dtype=resilin.float64)).requires_grad_()
    assert gradcheck(lambda x: x.as_strided((2, 2), (1, 2)), (leaf,))
    y = leaf.as_strided((2, 3), (1, 1))
    (grad,) = resilin.autograd.grad(y.sum(), leaf)
    np.testing.assert_array_equal(grad.numpy().reshape(-1)[:5], [1, 2, 2, 1, 0])


def test_as_strided_of_a_view_in_the_graph_hands_its_gradient_to_the_view():
    x = resilin.arange(6.0).requires_grad_()
    part = x[1:]
    y = part.as_strided((2,), (2,))
    (grad,) = resilin.autograd.grad(y.sum(), part, retain_graph=True)
    np.testing.assert_array_equal(grad.numpy(), [1, 0, 1, 0, 0])
    (grad,) = resilin.autograd.grad(y.sum(), x)
    np.testing.assert_array_equal(grad.numpy(), [0, 1, 0, 1, 0, 0])


def test_what_as_strided_repeats_is_not_written_but_filled():
    base = resilin.zeros(4)
    for x in (base.as_strided((3, 2), (0, 1)), base[:2].expand(3, 2)):
        with pytest.raises(RuntimeError, match="refers to a single memory location"):
            x.add_(1)
        x.fill_(3)
        assert base.tolist() == [3, 3, 0, 0]
        x.zero_()
        assert base.tolist() == [0, 0, 0, 0]


def test_the_gradient_of_a_sum_can_be_zeroed_in_place():
    x = resilin.ones(3, requires_grad=True)
    (grad,) = resilin.autograd.grad(x.sum(), x)
    assert grad.zero_().tolist() == [0, 0, 0]


def test_as_strided_refuses_to_leave_a_leaf_that_is_a_part_of_its_memory():
    leaf = resilin.zeros(10)[2:5].requires_grad_()
    with pytest.raises(NotImplementedError, match="as_strided: this view has a gradient of its own"):
        leaf.as_strided((4,), (1,), 0)
    with pytest.raises(NotImplementedError, match="contiguous"):
        resilin.zeros(2, 3).t().requires_grad_().as_strided((2,), (1,))


def test_as_strided_scatter_of_a_leaf_that_is_a_view_has_its_gradient():
    leaf = resilin.zeros(4).view(2, 2).requires_grad_()
    resilin.as_strided_scatter(leaf, resilin.ones(2), (2,), (1,)).sum().backward()
    np.testing.assert_array_equal(leaf.grad.numpy(), [[0, 0], [1, 1]])
