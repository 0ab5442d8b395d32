"""Products of matrices and einsum: operands of odd ranks, factors of zero, repeated and numbered letters."""

import math
from typing import Any

import numpy as np
import pytest

import resilin
from resilin.autograd import gradcheck, gradgradcheck
from resilin.nn import functional as F


def test_numbers_stand_for_the_letters_of_a_sum():
    x, y = resilin.arange(6.0).reshape(2, 3), resilin.ones(3, 2)
    assert resilin.einsum(x, [0, 1], [1, 0]).tolist() == x.T.tolist()
    assert resilin.einsum(x, [0, 7], y, [7, 2]).tolist() == (x @ y).tolist()
    assert resilin.einsum(x, [..., 1], [1, ...]).tolist() == x.T.tolist()
    with pytest.raises(ValueError, match="from 0 to 51"):
        resilin.einsum(x, [0, 60], [0])


def test_linear_takes_a_weight_of_one_row():
    x, w = resilin.tensor([[1.0, 2], [3, 4]], requires_grad=True), resilin.tensor([1.0, -1], requires_grad=True)
    y = F.linear(x, w, resilin.tensor(0.5))
    assert y.tolist() == [-0.5, -0.5]
    y.sum().backward()
    assert x.grad.tolist() == [[1, -1], [1, -1]]
    assert w.grad.tolist() == [4, 6]


def test_a_product_without_dimensions_can_be_written():
    assert resilin.tensordot(resilin.tensor(1.5), resilin.tensor(2.0), 0).add_(1).item() == 4


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 1, 1), (1, 1, 2)])
def test_contracted_lengths_of_one_serve_all_of_the_other_operand(shape):
    a = resilin.arange(float(np.prod(shape)), dtype=resilin.float64).add(0.5).reshape(shape).requires_grad_()
    b = resilin.arange(4.0, dtype=resilin.float64).reshape(2, 1, 2).requires_grad_()

    def product(a, b):
        return resilin.tensordot(a, b, dims=([0, 1], [2, 0]))

    assert gradcheck(product, (a, b))
    assert gradgradcheck(product, (a, b))


def _leaf(values: Any) -> Any:
    return resilin.tensor(values, dtype=resilin.float64, requires_grad=True)


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


SUMS = {
    "addmm": ([(2, 3), (3, 4)], (2, 4)),
    "addmv": ([(2, 3), (3,)], (2,)),
    "addr": ([(2,), (4,)], (2, 4)),
    "addbmm": ([(5, 2, 3), (5, 3, 4)], (2, 4)),
    "baddbmm": ([(5, 2, 3), (5, 3, 4)], (5, 2, 4)),
}


@pytest.mark.parametrize("name", SUMS)
def test_what_a_factor_of_zero_is_for_does_not_count(name):
    shapes, shape = SUMS[name]
    factors = [resilin.ones(s) for s in shapes]
    add, plain = getattr(resilin, name), getattr(resilin, name)(resilin.zeros(shape), *factors)
    input = resilin.full(shape, math.nan, requires_grad=True)
    result = add(input, *factors, beta=0)
    assert result.equal(plain)
    result.sum().backward()
    assert input.grad.equal(resilin.zeros(shape))
    spoiled = [factor * math.nan for factor in factors]
    assert add(resilin.ones(shape), *spoiled, alpha=0).equal(resilin.ones(shape))


@pytest.mark.parametrize("name", SUMS)
def test_what_is_added_to_a_product_does_not_widen_it(name):
    shapes, shape = SUMS[name]
    with pytest.raises(RuntimeError, match="does not broadcast to the shape"):
        getattr(resilin, name)(resilin.zeros(7, *shape), *map(resilin.ones, shapes))


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("mv", [(2, 3), (3, 4)]),
        ("addmv", [(2,), (2, 3), (3, 4)]),
        ("addmm", [(2,), (2, 3), (3,)]),
        ("baddbmm", [(2, 4), (2, 3), (3, 4)]),
    ],
)
def test_products_refuse_operands_of_other_ranks(name, shapes):
    with pytest.raises(RuntimeError, match="expected"):
        getattr(resilin, name)(*map(resilin.ones, shapes))


def test_tensordot_refuses_dimensions_that_are_not_there():
    with pytest.raises(RuntimeError, match="dims=-1"):
        resilin.tensordot(resilin.ones(2, 3), resilin.ones(3, 2), dims=-1)
    with pytest.raises(IndexError, match="out of range"):
        resilin.tensordot(resilin.ones(2, 3), resilin.ones(3), dims=[[0], [1]])
    with pytest.raises(RuntimeError, match="one length"):
        resilin.tensordot(resilin.ones(2, 3), resilin.ones(3, 2), dims=[[0, 1], [1]])
