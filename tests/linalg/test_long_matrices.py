"""What goes by Q R or LU where numpy.linalg would take singular values of everything."""

import numpy as np
import pytest

import resilin
from resilin import linalg
from resilin.core.kernels import factorize
from resilin.core.ops import linalg as ops


def matrix(*shape, dtype=np.float64):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(40, 3), (3, 40), (2, 9, 4), (2, 4, 9), (6, 1), (1, 6), (8, 4), (7, 4)])
def test_singular_values_and_vectors_of_long_and_wide_matrices_give_the_matrix_again(shape, dtype):
    x, near = matrix(*shape, dtype=dtype), 200 * np.finfo(dtype).eps
    for full in (False, True):
        u, s, vh = (part.numpy() for part in linalg.svd(resilin.tensor(x), full_matrices=full))
        expected = np.linalg.svd(x, full_matrices=full)
        assert [part.shape for part in (u, s, vh)] == [part.shape for part in expected]
        assert [part.dtype for part in (u, s, vh)] == [x.dtype] * 3
        k = s.shape[-1]
        np.testing.assert_allclose((u[..., :k] * s[..., None, :]) @ vh[..., :k, :], x, atol=near * 10)
        np.testing.assert_allclose(s, expected[1], rtol=near * 10)
        for q in (u, np.swapaxes(vh, -1, -2)):
            eye = np.broadcast_to(np.eye(q.shape[-1]), (*shape[:-2], q.shape[-1], q.shape[-1]))
            np.testing.assert_allclose(np.swapaxes(q, -1, -2) @ q, eye, atol=near * 10)
    np.testing.assert_allclose(linalg.svdvals(resilin.tensor(x)).numpy(), expected[1], rtol=near * 10)


def test_long_matrices_without_elements_or_of_what_is_not_finite_are_treated_as_others():
    assert [part.shape for part in linalg.svd(resilin.zeros(5, 0), full_matrices=False)] == [(5, 0), (0,), (0, 0)]
    assert linalg.svdvals(resilin.zeros(0, 9, 2)).shape == (0, 2)
    x = matrix(9, 2)
    x[3, 1] = np.nan
    with pytest.raises(linalg.LinAlgError, match="infinities or NaN"):
        linalg.svd(resilin.tensor(x))
    with pytest.raises(linalg.LinAlgError, match="infinities or NaN"):
        linalg.svdvals(resilin.tensor(x))


def test_a_long_matrix_of_lower_rank_keeps_its_zero_singular_values():
    x = matrix(30, 2) @ matrix(2, 4)
    u, s, vh = linalg.svd(resilin.tensor(x), full_matrices=False)
    assert (s[2:] < 1e-13 * s[0]).all()
    np.testing.assert_allclose((u * s @ vh).numpy(), x, atol=1e-12)
    assert linalg.matrix_rank(resilin.tensor(x)).item() == 2


@pytest.mark.parametrize("driver", ["gels", "gelsy", "gelsd", "gelss"])
def test_least_squares_with_and_without_gradients_are_the_same(driver):
    a, b = (resilin.tensor(matrix(*shape)) for shape in ((2, 9, 3), (2, 9, 2)))
    plain = linalg.lstsq(a, b, driver=driver)
    tracked = linalg.lstsq(a.clone().requires_grad_(), b, driver=driver)
    for one, other in zip(plain, tracked, strict=True):
        assert resilin.equal(one, other)
    np.testing.assert_allclose(plain.solution.numpy(), np.linalg.pinv(a.numpy()) @ b.numpy(), atol=1e-12)
    assert tracked.solution.requires_grad
    assert not plain.solution.requires_grad


@pytest.mark.parametrize("shape", [(30, 4), (4, 30), (2, 9, 3), (5, 5)])
def test_pseudo_inverses_of_full_and_lower_rank_are_numpys(shape):
    full = matrix(*shape)
    for x in (full, matrix(*shape[:-1], 2) @ matrix(*shape[:-2], 2, shape[-1])):
        found = linalg.pinv(resilin.tensor(x)).numpy()
        np.testing.assert_allclose(found, np.linalg.pinv(x, rcond=1e-12), atol=1e-10)


def test_least_squares_of_lower_rank_say_so():
    a = resilin.tensor(np.outer(np.arange(1.0, 6), [1.0, 2.0]))
    found = linalg.lstsq(a, a[:, :1])
    assert found.rank.item() == 1
    np.testing.assert_allclose((a @ found.solution).numpy(), a[:, :1].numpy(), atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_cofactors_are_right_by_inverses_and_by_singular_values_whatever_is_in_the_batch(dtype):
    x = matrix(4, 6, 6, dtype=dtype)
    x[1, 0] = x[1, 1] * (1 + np.finfo(dtype).eps)
    x[2] = 0
    found = ops.cofactors.formula(np, x)
    if factorize.inverse(x[:1]) is not None:  # without native code nothing goes by the inverse
        assert ops._cofactors_by_inverse(x)[1].tolist() == [True, False, False, True]
    right = [0, 3]
    exact = x[right].astype(float)
    expected = np.linalg.det(exact)[..., None, None] * np.linalg.inv(exact).swapaxes(-1, -2)
    np.testing.assert_allclose(found[right], expected, rtol=2e4 * np.finfo(dtype).eps, atol=1e3 * np.finfo(dtype).eps)
    np.testing.assert_allclose(found, ops._cofactors_by_svd(np, x), rtol=0, atol=1e4 * np.finfo(dtype).eps)
    for one in range(4):
        np.testing.assert_array_equal(ops.cofactors.formula(np, x[one]), found[one])


def test_a_determinant_is_the_same_beside_one_whose_product_leaves_the_range():
    x = np.stack([matrix(5, 5), np.diag([1e-200, 1e-200, 1e-200, 1e200, 1e250])])
    both = linalg.det(resilin.tensor(x)).numpy()
    assert both[0] == linalg.det(resilin.tensor(x[0])).item()
    np.testing.assert_allclose(both[1], 1e-150, rtol=1e-12)


def test_the_gradient_of_a_determinant_is_finite_for_singular_matrices_and_right_for_others():
    for values, expected in (
        ([[1.0, 2.0], [2.0, 4.0]], [[4, -2], [-2, 1]]),
        ([[1.0, 2.0], [3.0, 5.0]], [[5, -3], [-2, 1]]),
    ):
        x = resilin.tensor(values, requires_grad=True)
        linalg.det(x).backward()
        np.testing.assert_allclose(x.grad.numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("driver", [None, "gels", "gelsd"])
@pytest.mark.parametrize("shape", [(9, 4), (4, 9), (2, 9, 4), (0, 9, 4)])
def test_complex_systems_are_solved_by_singular_values(shape, driver):
    a = matrix(*shape) + 1j * matrix(*shape)[..., ::-1]
    b = matrix(*shape[:-1], 2) + 0j
    found = linalg.lstsq(resilin.tensor(a), resilin.tensor(b), driver=driver).solution.numpy()
    np.testing.assert_allclose(found, np.linalg.pinv(a) @ b, atol=1e-12)
