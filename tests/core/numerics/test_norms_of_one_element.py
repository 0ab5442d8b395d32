"""The norm of one element is its size, of every order but 0: as PyTorch has it, it neither overflows nor vanishes."""

import math

import pytest

import resilin
import resilin.nn.functional as F

ORDERS = (0.5, 1, 2, 2.5, 3, -1, math.inf, -math.inf)
SIZES = (1e30, 1e-30)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("size", SIZES)
def test_the_norm_of_one_element_is_its_size(order, size):
    x = resilin.tensor([[size], [-2 * size]])
    sizes = x.abs()
    assert resilin.linalg.vector_norm(x[1], order) == sizes[1, 0]
    assert resilin.linalg.vector_norm(x[1, 0], order) == sizes[1, 0]
    assert resilin.norm(x, order, dim=1).equal(sizes[:, 0])
    assert resilin.linalg.norm(x, order, dim=1, keepdim=True).equal(sizes)
    assert resilin.dist(x[0], -x[0], order) == 2 * x[0, 0]
    assert x[:1].norm(order, dim=(0, 1)) == x[0, 0]


@pytest.mark.parametrize("order", ORDERS)
def test_its_gradient_is_the_sign(order):
    x = resilin.tensor([1e30, -1e-30, 0.0]).unsqueeze(1).requires_grad_()
    x.norm(order, dim=1).sum().backward()
    assert x.grad.tolist() == [[1], [-1], [0]]


def test_what_is_made_of_norms_takes_it_too():
    x = resilin.tensor([[1e30], [-2e30]])
    assert F.normalize(x).tolist() == [[1], [-1]]
    assert F.pairwise_distance(x, -x).equal(2 * x.abs()[:, 0])
    assert resilin.renorm(x, 2, 0, 5.0).tolist() == [[5], [-5]]
    assert resilin.linalg.matrix_norm(x[:1]) == x[0, 0]


def test_the_norm_of_order_0_counts_and_nan_and_empty_stay():
    assert resilin.linalg.vector_norm(resilin.tensor([1e30]), 0) == 1
    assert resilin.linalg.vector_norm(resilin.tensor([-0.0]), 0) == 0
    assert math.copysign(1, resilin.tensor([-0.0]).norm()) == 1
    assert resilin.tensor([math.nan]).norm().isnan()
    assert resilin.ones(0, 3).norm(dim=1).shape == (0,)
    assert resilin.ones(3, 0).norm(dim=1).tolist() == [0, 0, 0]
