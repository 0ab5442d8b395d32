"""Cross products along any dimension, of any strides, with both gradients; inner and outer products beside them."""

from typing import Any

import numpy as np
import pytest

import resilin


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.complex64])
@pytest.mark.parametrize(
    ("left", "right", "dim"), [((5, 3), (5, 3), 1), ((3, 5), (3, 5), 0), ((1, 3), (4, 3), -1), ((3,), (3,), -1)]
)
def test_cross_products_are_numpys(dtype: Any, left: Any, right: Any, dim: int) -> None:
    r = np.random.default_rng(0)
    a, b = ((r.normal(size=shape) * 9).astype(dtype) for shape in (left, right))
    if dtype is np.complex64:
        a = a + 1j * a[::-1]
    found = resilin.linalg.cross(resilin.from_numpy(a), resilin.from_numpy(b), dim=dim)
    assert np.array_equal(found.numpy(), np.cross(a, b, axis=dim).astype(found.numpy().dtype))


def test_cross_products_of_strided_and_empty_tensors() -> None:
    a, b = resilin.randn(7, 6), resilin.randn(3, 7)
    found = resilin.cross(a[:, ::2], b.t(), dim=1)
    assert resilin.equal(found, resilin.cross(a[:, ::2].contiguous(), b.t().contiguous(), dim=1))
    assert resilin.linalg.cross(resilin.zeros(0, 3), resilin.zeros(0, 3)).shape == (0, 3)


def test_a_cross_product_has_the_gradients_of_its_differences() -> None:
    a, b = (resilin.randn(4, 3, dtype=resilin.float64, requires_grad=True) for _ in range(2))
    assert resilin.autograd.gradcheck(resilin.linalg.cross, (a, b))
    assert resilin.autograd.gradgradcheck(resilin.linalg.cross, (a, b))
    assert resilin.autograd.gradcheck(resilin.linalg.cross, (a[:1], b))


def test_an_outer_product_by_einsum_is_each_product() -> None:
    a, b = resilin.randn(5, 4), resilin.randn(3)
    found = resilin.einsum("ab,c->cab", a, b)
    assert found.is_contiguous()
    assert resilin.equal(found, b[:, None, None] * a)
    assert resilin.equal(resilin.einsum("ab,ab->ba", a, a), (a * a).t())


def test_an_inner_product_of_vectors_is_their_dot_product() -> None:
    a, b = resilin.randn(1000), resilin.randn(1000)
    assert resilin.equal(resilin.inner(a, b), resilin.dot(a, b))
    with pytest.raises(RuntimeError):
        resilin.inner(a, b[:7])


def test_matrices_times_a_vector_are_those_of_each_batch() -> None:
    a, v = resilin.randn(4, 5, 6), resilin.randn(6)
    assert resilin.allclose(a @ v, resilin.stack([m @ v for m in a]))
    assert (resilin.zeros(0, 5, 6) @ v).shape == (0, 5)
