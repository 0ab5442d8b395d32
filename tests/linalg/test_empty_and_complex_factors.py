"""LU factors of empty batches, and the pivots of complex ones."""

import numpy as np
import pytest

import resilin


@pytest.mark.parametrize(("lu", "b"), [((0, 0), (0, 4)), ((0, 0, 0), (0, 0, 4)), ((2, 0, 0), (2, 0, 3))])
@pytest.mark.parametrize("adjoint", [False, True])
def test_lu_solve_of_empty_systems_is_empty(lu, b, adjoint):
    pivots = resilin.zeros(*lu[:-1], dtype=resilin.int32)
    assert resilin.linalg.lu_solve(resilin.zeros(lu), pivots, resilin.zeros(b), adjoint=adjoint).shape == b
    assert resilin.lu_solve(resilin.zeros(b), resilin.zeros(lu), pivots).shape == b


def test_complex_pivots_are_chosen_as_lapack_does():
    x = resilin.tensor([[3 + 3j, 1], [5 + 0j, 2]])  # |3 + 3j| < 5, but 3 + 3 > 5
    packed, pivots = resilin.linalg.lu_factor(x)
    assert pivots.tolist() == [1, 2]
    np.testing.assert_allclose(packed[1, 0].item(), 5 / (3 + 3j), rtol=1e-6)


@pytest.mark.parametrize("dtype", [resilin.float32, resilin.float64, resilin.complex64])
@pytest.mark.parametrize("shape", [(0, 0), (0, 0, 0), (3, 0, 0), (2, 0, 3), (2, 3, 0), (0, 3, 3)])
def test_lu_of_matrices_without_elements_has_factors_without_elements(shape, dtype):
    x, (*batch, m, n) = resilin.zeros(*shape, dtype=dtype), shape
    k = min(m, n)
    packed, pivots, info = resilin.linalg.lu_factor_ex(x)
    assert packed.shape == shape
    assert pivots.shape == (*batch, k)
    assert info.tolist() == resilin.zeros(batch).tolist()
    assert [t.shape for t in resilin.linalg.lu_factor(x)] == [packed.shape, pivots.shape]
    p, lower, upper = resilin.linalg.lu(x)
    assert [p.shape, lower.shape, upper.shape] == [(*batch, m, m), (*batch, m, k), (*batch, k, n)]
    assert p.dtype == lower.dtype == packed.dtype == dtype
