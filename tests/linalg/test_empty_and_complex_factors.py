"""LU factors of empty batches, and the pivots of complex ones."""

import numpy as np
import pytest

import resilin


@pytest.mark.parametrize(("lu", "b"), [((0, 0), (0, 4)), ((0, 0, 0), (0, 0, 4)), ((2, 0, 0), (2, 0, 3))])
@pytest.mark.parametrize("adjoint", [False, True])
def test_lu_solve_of_empty_systems_is_empty(lu, b, adjoint):
    pivots = resilin.zeros(*lu[:-1], dtype=resilin.int32)
    assert resilin.linalg.lu_solve(resilin.zeros(*lu), pivots, resilin.zeros(*b), adjoint=adjoint).shape == b
    assert resilin.lu_solve(resilin.zeros(*b), resilin.zeros(*lu), pivots).shape == b


def test_complex_pivots_are_chosen_as_lapack_does():
    x = resilin.tensor([[3 + 3j, 1], [5 + 0j, 2]])  # |3 + 3j| < 5, but 3 + 3 > 5
    packed, pivots = resilin.linalg.lu_factor(x)
    assert pivots.tolist() == [1, 2]
    np.testing.assert_allclose(packed[1, 0].item(), 5 / (3 + 3j), rtol=1e-6)
