"""Exponentials of matrices in single precision whose squarings would double what is wrong."""

import numpy as np
import pytest

import resilin

EPS = 2.0**-23
MATRICES = {
    "turned": ([[0, 1e4], [-1e4, 0]], [[np.cos(1e4), np.sin(1e4)], [-np.sin(1e4), np.cos(1e4)]]),
    "diagonal": ([[-1e4, 0], [0, -1]], [[0, 0], [0, np.exp(-1)]]),
    "triangular": ([[1, 1e4], [0, -1]], [[np.e, 1e4 * np.sinh(1)], [0, np.exp(-1)]]),
    "small": ([[0, 0.5], [-0.5, 0]], [[np.cos(0.5), np.sin(0.5)], [-np.sin(0.5), np.cos(0.5)]]),
}


@pytest.mark.parametrize("name", MATRICES)
def test_digits_are_kept(name):
    given, expected = MATRICES[name]
    found = resilin.linalg.matrix_exp(resilin.tensor(given, dtype=resilin.float32))
    assert found.dtype is resilin.float32
    np.testing.assert_allclose(found.numpy(), expected, rtol=2 * EPS, atol=EPS)


def test_a_matrix_does_not_depend_on_those_beside_it():
    batch = resilin.tensor([given for given, _ in MATRICES.values()], dtype=resilin.float32)
    alone = resilin.stack([resilin.linalg.matrix_exp(matrix) for matrix in batch])
    assert resilin.linalg.matrix_exp(batch).equal(alone)


def test_the_gradient_keeps_digits_too():
    x = resilin.tensor([[0.0, 1e3], [-1e3, 0.0]], requires_grad=True)
    resilin.linalg.matrix_exp(x)[0, 0].backward()
    wide = x.detach().double().requires_grad_()
    resilin.linalg.matrix_exp(wide)[0, 0].backward()
    np.testing.assert_allclose(x.grad.numpy(), wide.grad.numpy(), rtol=1e-5, atol=1e-6)


def test_complex_numbers_go_the_same_way():
    x = resilin.tensor([[1e3j, 0], [0, 1j]], dtype=resilin.complex64)
    found = resilin.linalg.matrix_exp(x)
    assert found.dtype is resilin.complex64
    np.testing.assert_allclose(found.numpy(), np.diag(np.exp([1e3j, 1j])), rtol=2 * EPS, atol=EPS)
