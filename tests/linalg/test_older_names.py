"""What PyTorch has at its root only: older forms of solvers, and factors of low rank."""

import pytest

import resilin
from resilin import linalg


@pytest.fixture
def matrix():
    resilin.manual_seed(3)
    return resilin.randn(4, 4, dtype=resilin.float64)


def test_the_older_lu_solves_and_unpacks_what_it_packed(matrix):
    packed, pivots, info = resilin.lu(matrix, get_infos=True)
    permutation, lower, upper = resilin.lu_unpack(packed, pivots)
    assert resilin.allclose(permutation @ lower @ upper, matrix)
    assert info.item() == 0
    b = resilin.randn(4, 2, dtype=resilin.float64)
    assert resilin.allclose(matrix @ resilin.lu_solve(b, packed, pivots), b)
    assert resilin.lu_unpack(packed, pivots, unpack_data=False).L.numel() == 0
    assert resilin.lu_unpack(packed, pivots, unpack_pivots=False).P.numel() == 0


def test_a_wide_lu_unpacks_to_its_factors():
    a = resilin.randn(2, 3, 5, dtype=resilin.float64)
    p, lower, upper = resilin.lu_unpack(*linalg.lu_factor(a))
    assert lower.shape == (2, 3, 3)
    assert upper.shape == (2, 3, 5)
    assert resilin.allclose(p @ lower @ upper, a)


@pytest.mark.parametrize("upper", [True, False])
@pytest.mark.parametrize("transpose", [True, False])
def test_the_older_triangular_solver_takes_the_right_side_first(matrix, upper, transpose):
    triangle = (matrix.triu() if upper else matrix.tril()) + 3 * resilin.eye(4, dtype=resilin.float64)
    b = resilin.randn(4, 2, dtype=resilin.float64)
    found, copied = resilin.triangular_solve(b, triangle, upper, transpose)
    assert resilin.allclose((triangle.mT if transpose else triangle) @ found, b)
    assert resilin.equal(copied, triangle)


@pytest.mark.parametrize("shape", [(30, 12), (12, 30), (2, 20, 9)])
def test_a_matrix_of_low_rank_is_found_again_from_its_factors(shape):
    resilin.manual_seed(5)
    rank = 3
    left = resilin.randn(*shape[:-1], rank, dtype=resilin.float64)
    a = left @ resilin.randn(*shape[:-2], rank, shape[-1], dtype=resilin.float64)
    u, s, v = resilin.svd_lowrank(a, q=5)
    assert u.shape == (*shape[:-1], 5)
    assert resilin.allclose((u * s.unsqueeze(-2)) @ v.mH, a)
    assert resilin.allclose(s[..., :rank], linalg.svdvals(a)[..., :rank])


def test_principal_directions_are_those_of_the_centred_rows():
    resilin.manual_seed(6)
    a = resilin.randn(40, 3, dtype=resilin.float64) * resilin.tensor([9.0, 1.0, 0.1]) + 5
    s = resilin.pca_lowrank(a)[1]
    assert resilin.allclose(s, linalg.svdvals(a - a.mean(0)))


def test_a_rank_larger_than_the_matrix_is_refused():
    with pytest.raises(ValueError, match=r"at most min\(m, n\) = 2"):
        resilin.pca_lowrank(resilin.zeros(2, 5), q=3)
    assert resilin.svd_lowrank(resilin.zeros(2, 5), q=3)[1].shape == (2,)
