"""Products and running products of numbers some of which are 0: their second derivatives are not."""

import numpy as np
import pytest

import resilin
from resilin.autograd import gradcheck, gradgradcheck

ROWS = [[3.0, -2.0, 4.0, 5.0], [3.0, -2.0, 0.0, 4.0], [0.0, 2.0, 0.0, 3.0], [0.0, 2.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
FUNCTIONS = {
    "prod": lambda x: x.prod(),
    "prod along": lambda x: x.prod(0, keepdim=True),
    "cumprod": lambda x: x.cumprod(0),
}


@pytest.mark.parametrize("dtype", [resilin.float64, resilin.complex128])
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_of_products_with_zeros_agree_with_finite_differences(name, row, dtype):
    x = resilin.tensor(row, dtype=dtype, requires_grad=True)
    assert gradcheck(FUNCTIONS[name], (x,))
    assert gradgradcheck(FUNCTIONS[name], (x,))


def test_the_hessian_of_a_product_holds_the_products_of_all_other_numbers():
    x = resilin.tensor([0.0, 2.0, 0.0, 3.0], dtype=resilin.float64)
    for f in (resilin.prod, lambda v: v.cumprod(0)[-1]):
        hessian = resilin.autograd.functional.hessian(f, x).numpy()
        expected = np.zeros((4, 4))
        expected[0, 2] = expected[2, 0] = 6
        np.testing.assert_array_equal(hessian, expected)


def test_gradients_behind_a_zero_stay_zero_where_the_other_factors_overflow():
    x = resilin.tensor([0.0, 1e30, 1e30, 1e30], requires_grad=True)
    (grad,) = resilin.autograd.grad(x.cumprod(0).sum(), x)
    np.testing.assert_array_equal(grad.numpy()[1:], [0, 0, 0])


@pytest.mark.parametrize("index", [[2, 2, 2], [0, 3, 0], [-1, 4]])
def test_a_place_that_index_fill_names_twice_counts_once_in_the_gradient_of_the_value(index):
    x = resilin.arange(10, dtype=resilin.float64).reshape(2, 5)
    value = resilin.tensor(3.0, dtype=resilin.float64, requires_grad=True)
    assert gradcheck(lambda v: x.index_fill(1, resilin.tensor(index), v), (value,))
    (grad,) = resilin.autograd.grad(x.index_fill(1, resilin.tensor(index), value).sum(), value)
    assert float(grad) == 2 * len({i % 5 for i in index})
