"""Scattered products of numbers some of which are 0: first and second derivatives."""

import itertools

import pytest

import resilin
from resilin.autograd import gradcheck, gradgradcheck

INDEX = resilin.tensor([[0, 0, 1, 2]])
SAMPLES = [
    ([2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]),
    ([2.0, 0.0, 4.0], [5.0, 0.0, 7.0, 0.0]),
    ([0.0, 0.0, 4.0], [5.0, 0.0, 0.0, 0.0]),
    ([0.0, 3.0, 0.0], [0.0, 0.0, 0.0, 8.0]),
]


@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize(("own", "scattered"), SAMPLES)
@pytest.mark.parametrize("dtype", [resilin.float64, resilin.complex128])
def test_derivatives_of_scattered_products_agree_with_finite_differences(own, scattered, include, dtype):
    x = resilin.tensor([own], dtype=dtype, requires_grad=True)
    src = resilin.tensor([scattered], dtype=dtype, requires_grad=True)

    def product(x, src):
        return x.scatter_reduce(1, INDEX, src, "prod", include_self=include)

    assert gradcheck(product, (x, src))
    assert gradgradcheck(product, (x, src))


def test_every_pattern_of_zeros_has_the_hessian_of_the_written_out_product():
    for pattern in itertools.product([0.0, 2.0], repeat=4):
        values = resilin.tensor(pattern, dtype=resilin.float64)

        def scattered(v):
            return v[:1].scatter_reduce(0, resilin.tensor([0, 0, 0]), v[1:], "prod").sum()

        def written_out(v):
            return v[0] * v[1] * v[2] * v[3]

        found = resilin.autograd.functional.hessian(scattered, values)
        assert resilin.equal(found, resilin.autograd.functional.hessian(written_out, values)), pattern


def test_index_reduce_has_second_derivatives_beside_a_zero():
    x = resilin.tensor([[1.0, 0.0], [2.0, 3.0]], dtype=resilin.float64, requires_grad=True)
    src = resilin.tensor([[0.0, 4.0], [5.0, 6.0]], dtype=resilin.float64, requires_grad=True)
    assert gradgradcheck(lambda x, src: x.index_reduce(0, resilin.tensor([0, 0]), src, "prod"), (x, src))
