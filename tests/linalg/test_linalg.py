"""resilin.linalg: what each function computes, which matrix an error names, derivatives that no declaration draws."""

import numpy as np
import pytest

import resilin
from resilin import linalg
from resilin.autograd import gradcheck, gradgradcheck


def rand(*shape, complex=False, seed=0):
    random = np.random.default_rng(seed)
    values = random.standard_normal(shape)
    if complex:
        values = values + 1j * random.standard_normal(shape)
    return resilin.tensor(values).requires_grad_()


def close(found, expected, **options):
    np.testing.assert_allclose(np.asarray(found.detach().numpy()), expected, **{"rtol": 1e-9, "atol": 1e-9, **options})


def definite(a):
    return a @ a.mH + resilin.eye(a.shape[-1], dtype=a.dtype)


GAUGE_FREE = {
    "cholesky": lambda a: linalg.cholesky(definite(a)),
    "upper cholesky": lambda a: linalg.cholesky(definite(a), upper=True),
    "eigvalsh": lambda a: linalg.eigvalsh(a + a.mH),
    "eigh vectors": lambda a: linalg.eigh(a + a.mH)[1].abs(),
    "eigh of the upper triangle": lambda a: linalg.eigh(a + a.mH, "U")[1].abs(),
    "eig values": lambda a: linalg.eig(a)[0],
    "eig vectors": lambda a: linalg.eig(a)[1].abs(),
    "singular vectors": lambda a: linalg.svd(a, full_matrices=False)[0].abs() + linalg.svd(a)[2].abs(),
    "polar factor": lambda a: (lambda f: f[0] @ f[2])(linalg.svd(a)),
    "lu_solve": lambda a: linalg.lu_solve(*linalg.lu_factor(a), a[..., :2]),
    "eigvals": linalg.eigvals,
}


@pytest.mark.parametrize("complex", [False, True], ids=["real", "complex"])
@pytest.mark.parametrize("name", GAUGE_FREE)
def test_first_and_second_derivatives_of_functions_without_free_signs_agree_with_finite_differences(name, complex):
    for shape in ((3, 3), (2, 3, 3)):
        x = rand(*shape, complex=complex)
        assert gradcheck(GAUGE_FREE[name], (x,))
        assert gradgradcheck(GAUGE_FREE[name], (x,))


@pytest.mark.parametrize("complex", [False, True], ids=["real", "complex"])
@pytest.mark.parametrize("shape", [(4, 3), (3, 5)])
def test_derivatives_of_tall_and_wide_singular_vectors_agree_with_finite_differences(shape, complex):
    def both(a):
        u, _, vh = linalg.svd(a, full_matrices=False)
        return u.abs(), vh.abs(), u @ vh

    x = rand(*shape, complex=complex)
    assert gradcheck(both, (x,))
    assert gradgradcheck(both, (x,))


@pytest.mark.parametrize("complex", [False, True], ids=["real", "complex"])
@pytest.mark.parametrize("shape", [(3, 3), (2, 4, 3), (2, 3, 4)])
def test_factors_multiply_to_the_matrix_and_have_their_forms(shape, complex):
    a = rand(*shape, complex=complex).detach()
    n = a.numpy()
    q, r = linalg.qr(a)
    close(q @ r, n)
    close(q.mH @ q, np.broadcast_to(np.eye(q.shape[-1]), (q.mH @ q).shape))
    u, s, vh = linalg.svd(a, full_matrices=False)
    close(u * s[..., None, :] @ vh, n)
    assert [tuple(f.shape[-2:]) for f in (linalg.svd(a)[0], linalg.svd(a)[2])] == [(shape[-2],) * 2, (shape[-1],) * 2]
    close(linalg.svdvals(a), s.numpy())
    p, lower, upper = linalg.lu(a)
    close(p.to(a.dtype) @ lower @ upper, n)
    assert np.array_equal(lower.numpy(), np.tril(lower.numpy()))
    largest = 2**0.5 if complex else 1  # complex pivots are the largest by |real| + |imaginary|
    assert np.abs(lower.numpy()).max() <= largest + 1e-12
    assert np.array_equal(upper.numpy(), np.triu(upper.numpy()))


def test_eig_is_complex_for_real_matrices_and_multiplies_back():
    a = rand(2, 3, 3).detach()
    values, vectors = linalg.eig(a)
    assert values.dtype == vectors.dtype == resilin.complex128
    close(a.to(resilin.complex128) @ vectors, (vectors * values[..., None, :]).numpy())
    assert linalg.eigvals(resilin.eye(2)).dtype == resilin.complex64


def test_a_singular_matrix_is_named_by_its_place_in_the_batch_and_its_pivot():
    a = np.broadcast_to(np.eye(3), (2, 2, 3, 3)).copy()
    a[1, 0, 2, 2] = 0
    with pytest.raises(
        linalg.LinAlgError, match=r"linalg.inv: the 3 x 3 matrix at batch index \(1, 0\) is singular: pivot 3"
    ):
        linalg.inv(resilin.tensor(a))
    with pytest.raises(linalg.LinAlgError, match=r"linalg.solve: the 2 x 2 matrix is singular: pivot 2"):
        linalg.solve(resilin.ones(2, 2), resilin.ones(2))
    with pytest.raises(
        linalg.LinAlgError, match="batch index 1 is not positive definite: its leading minor of order 2"
    ):
        linalg.cholesky(resilin.tensor([[[1.0, 0], [0, 1]], [[1.0, 0], [0, -1]]]))
    with pytest.raises(
        linalg.LinAlgError, match=r"linalg.eigh: the 2 x 2 matrix at batch index 1 has infinities or NaN"
    ):
        linalg.eigh(resilin.tensor([[[1.0, 0], [0, 1]], [[np.nan, 0], [0, 1]]]))
    assert issubclass(linalg.LinAlgError, RuntimeError)


def test_the_ex_forms_report_the_bad_matrices_and_still_treat_the_good_ones():
    a = resilin.tensor([[[2.0, 0], [0, 4]], [[1.0, 2], [2, 4]], [[0.0, 0], [0, 0]]]).requires_grad_()
    inverse, info = linalg.inv_ex(a)
    assert info.dtype == resilin.int32
    assert info.tolist() == [0, 2, 1]
    close(inverse[0], [[0.5, 0], [0, 0.25]])
    assert np.isinf(inverse[1:].detach().numpy()).all()
    inverse[0].sum().backward()
    close(a.grad[0], [[-0.25, -0.125], [-0.125, -0.0625]])
    result, info = linalg.solve_ex(a, resilin.ones(2))
    assert info.tolist() == [0, 2, 1]
    close(result[0], [0.5, 0.25])
    factor, info = linalg.cholesky_ex(a)
    assert info.tolist() == [0, 2, 1]
    close(factor[0], [[2**0.5, 0], [0, 2]], rtol=1e-6)
    with pytest.raises(linalg.LinAlgError, match="batch index 1"):
        linalg.inv_ex(a, check_errors=True)
    assert linalg.lu_factor_ex(a)[2].tolist() == [0, 2, 1]


def test_the_gradient_of_a_singular_determinant_is_the_cofactors():
    x = resilin.tensor([[1.0, 2, 3], [1, 1, 0], [2, 3, 3]], dtype=resilin.float64).requires_grad_()
    linalg.det(x).backward()
    close(x.grad, [[3, -3, 1], [3, -3, 1], [-3, 3, -1]])


@pytest.mark.parametrize("complex", [False, True], ids=["real", "complex"])
@pytest.mark.parametrize("upper", [False, True])
def test_triangular_systems_read_one_triangle_only(upper, complex):
    a, b = rand(2, 3, 3, complex=complex).detach(), rand(3, 2, complex=complex, seed=1).detach()
    triangle = (np.triu if upper else np.tril)(a.numpy())
    close(linalg.solve_triangular(a, b, upper=upper), np.linalg.solve(triangle, b.numpy()))
    close(
        linalg.solve_triangular(a, b.mT, upper=upper, left=False) @ resilin.tensor(triangle),
        np.broadcast_to(b.mT.numpy(), (2, 2, 3)),
    )
    i = np.arange(3)
    triangle[:, i, i] = 1
    close(linalg.solve_triangular(a, b, upper=upper, unitriangular=True), np.linalg.solve(triangle, b.numpy()))


def test_a_zero_on_a_triangles_diagonal_gives_infinities_and_no_error():
    a = resilin.tensor([[1.0, 1], [0, 0]])
    assert not np.isfinite(linalg.solve_triangular(a, resilin.ones(2, 1), upper=True).numpy()).any()


def test_solve_takes_vectors_batches_and_either_side():
    a, b = rand(2, 3, 3).detach(), rand(2, 3, seed=1).detach()
    close((a @ linalg.solve(a, b)[..., None])[..., 0], b.numpy())
    close((a @ linalg.solve(a, b[0])[..., None])[..., 0], np.broadcast_to(b[0].numpy(), (2, 3)))
    close(linalg.solve(a, b[:, None], left=False) @ a, b[:, None].numpy())
    lu, pivots = linalg.lu_factor(a)
    assert pivots.dtype == resilin.int32
    for adjoint in (False, True):
        close(
            (a.mT if adjoint else a) @ linalg.lu_solve(lu, pivots, b[..., None], adjoint=adjoint), b[..., None].numpy()
        )
        close(
            linalg.lu_solve(lu, pivots, b[:, None], adjoint=adjoint, left=False) @ (a.mT if adjoint else a),
            b[:, None].numpy(),
        )


def test_least_squares_equal_numpys_also_without_full_rank():
    a, b = rand(2, 5, 3).detach(), rand(2, 5, 2, seed=1).detach()
    found = linalg.lstsq(a, b, driver="gelsd")
    for i in range(2):
        x, residuals, rank, values = np.linalg.lstsq(a.numpy()[i], b.numpy()[i])
        close(found.solution[i], x)
        close(found.residuals[i], residuals)
        close(found.singular_values[i], values)
        assert found.rank[i].item() == rank
    flat = a[0] @ resilin.tensor([[1.0, 0, 1], [0, 1, 1], [1, 1, 2]], dtype=a.dtype)
    close(linalg.lstsq(flat, b[0]).solution, np.linalg.lstsq(flat.numpy(), b.numpy()[0])[0])
    assert linalg.lstsq(flat, b[0]).rank.item() == linalg.matrix_rank(flat).item() == 2
    assert linalg.lstsq(a, b).residuals.numel() == 0


def test_pseudo_inverse_satisfies_penrose_and_respects_tolerances():
    a = rand(2, 4, 3, complex=True).detach()
    p = linalg.pinv(a)
    close(a @ p @ a, a.numpy())
    close((p @ a).mH, (p @ a).numpy())
    d = resilin.tensor(np.diag([4.0, 2, 1]))
    close(linalg.pinv(d, atol=1.5), np.diag([0.25, 0.5, 0]))
    close(linalg.pinv(d, rtol=0.5), np.diag([0.25, 0, 0]))
    assert linalg.matrix_rank(d, atol=1.5).item() == 2
    assert linalg.matrix_rank(resilin.stack([d, d]), atol=resilin.tensor([0.5, 3.0])).tolist() == [3, 1]
    assert linalg.matrix_rank(d, hermitian=True, rtol=0.3).item() == 2


@pytest.mark.parametrize("ord", [None, "fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf])
def test_matrix_norms_and_condition_numbers_equal_numpys(ord):
    a = rand(3, 4, complex=True).detach()
    close(linalg.norm(a, ord), np.linalg.norm(a.numpy(), ord))
    square = rand(3, 3).detach()
    close(linalg.cond(square, ord), np.linalg.cond(square.numpy(), ord))
    if ord is not None:
        batch = rand(2, 3, 4).detach()
        close(linalg.matrix_norm(batch, ord, (2, 0), True), np.linalg.norm(batch.numpy(), ord, (2, 0), True))


@pytest.mark.parametrize("ord", [0, 1, 2, 3.5, -1, np.inf, -np.inf])
def test_vector_norms_equal_numpys(ord):
    a = rand(3, 4, complex=True).detach()
    close(linalg.vector_norm(a, ord, 1), np.linalg.norm(a.numpy(), ord, 1))
    close(linalg.vector_norm(a, ord, keepdim=True), np.linalg.norm(a.numpy().ravel(), ord).reshape(1, 1))


def test_a_singular_matrix_has_an_infinite_condition_number():
    assert linalg.cond(resilin.ones(2, 2), "fro").item() == np.inf
    assert linalg.cond(resilin.ones(2, 2, dtype=resilin.float64)).item() > 1e15


def test_matrix_exponentials_agree_with_eigenvalues_at_all_scales():
    for scale in (1e-3, 1.0, 30.0):
        a = rand(2, 4, 4).detach() * scale
        values, vectors = np.linalg.eig(a.numpy())
        expected = (vectors * np.exp(values)[:, None, :]) @ np.linalg.inv(vectors)
        close(linalg.matrix_exp(a) / abs(expected).max(), expected / abs(expected).max(), atol=1e-10)


def test_matrix_exponentials_keep_the_digits_of_their_dtype():
    for n in (1, 7, 30):
        x = np.random.default_rng(n).standard_normal((3, n, n)) * np.array([1e-3, 0.3, 2.0])[:, None, None]
        x = x + x.swapaxes(-1, -2)
        values, vectors = np.linalg.eigh(x)
        expected = (vectors * np.exp(values)[:, None, :]) @ vectors.swapaxes(-1, -2)
        size = abs(expected).max((-2, -1))[:, None, None]
        for dtype, digits in ((resilin.float32, 1e-4), (resilin.float64, 1e-12), (resilin.complex64, 1e-4)):
            found = linalg.matrix_exp(resilin.tensor(x).to(dtype))
            assert found.dtype is dtype
            close(found.to(resilin.complex128).real / size, expected / size, atol=digits)


def test_powers_products_and_rearrangements():
    a, b = rand(3, 3).detach(), rand(2, 4, 3).detach()
    close(linalg.matrix_power(a, 5), np.linalg.matrix_power(a.numpy(), 5))
    close(linalg.matrix_power(a, -2), np.linalg.matrix_power(a.numpy(), -2))
    close(linalg.matrix_power(a, 0), np.eye(3))
    close(
        linalg.multi_dot([b[0, 0], a, b[1].T, b[0, :, 0]]),
        np.linalg.multi_dot([b.numpy()[0, 0], a.numpy(), b.numpy()[1].T, b.numpy()[0, :, 0]]),
    )
    close(linalg.cross(b, b.flip(0)), np.cross(b.numpy(), b.numpy()[::-1]))
    close(resilin.cross(b.mT, b.mT.flip(0)), np.cross(b.numpy(), b.numpy()[::-1]).swapaxes(1, 2))
    close(resilin.kron(a, b), np.kron(a.numpy(), b.numpy()))
    close(linalg.vander(a, N=4)[1], np.vander(a.numpy()[1], 4, increasing=True))
    close(resilin.vander(a[0]), np.vander(a.numpy()[0]))
    close(linalg.vecdot(b, b, dim=1), (b.numpy() ** 2).sum(1))
    t = rand(6, 6).detach().reshape(2, 3, 6)
    close(linalg.tensorinv(t), np.linalg.tensorinv(t.numpy()))
    close(linalg.tensorsolve(t, a[:2]), np.linalg.tensorsolve(t.numpy(), a.numpy()[:2]))


def test_the_product_of_reflectors_is_what_qr_of_numpy_means_by_them():
    a = rand(4, 3, complex=True).detach()
    h, tau = np.linalg.qr(a.numpy(), mode="raw")
    close(linalg.householder_product(resilin.tensor(h.T.copy()), resilin.tensor(tau)), np.linalg.qr(a.numpy())[0])


def test_root_names_and_methods_are_the_same_functions():
    a = definite(rand(3, 3)).detach()
    close(a.det(), np.linalg.det(a.numpy()))
    close(resilin.logdet(a), np.log(np.linalg.det(a.numpy())))
    assert np.isnan(resilin.logdet(-resilin.eye(1)).item())
    close(a.inverse(), np.linalg.inv(a.numpy()))
    close(resilin.pinverse(a), np.linalg.pinv(a.numpy()))
    close(resilin.cholesky_inverse(resilin.cholesky(a)), np.linalg.inv(a.numpy()))
    close(resilin.cholesky_solve(a, a.cholesky(True), True), np.eye(3))
    u, s, v = resilin.svd(a)
    close(u * s @ v.mH, a.numpy())
    assert resilin.ger(a[0], a[1]).shape == (3, 3)


def test_float32_stays_float32_and_batches_may_be_empty():
    a = resilin.eye(3)
    for out in (linalg.inv(a), linalg.det(a), linalg.pinv(a), linalg.matrix_exp(a), linalg.svdvals(a), linalg.cond(a)):
        assert out.dtype == resilin.float32
    assert linalg.inv(resilin.zeros(0, 3, 3)).shape == (0, 3, 3)
    assert linalg.det(resilin.zeros(2, 0, 0)).tolist() == [1, 1]
    assert linalg.svdvals(resilin.zeros(0, 2, 3)).shape == (0, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: linalg.inv(resilin.ones(3)), "at least 2 dimensions"),
        (lambda: linalg.inv(resilin.ones(3, 2)), "3 by 2 matrices"),
        (lambda: linalg.inv(resilin.ones(3, 3, dtype=resilin.int64)), "floating point"),
        (lambda: linalg.inv(resilin.ones(3, 3, dtype=resilin.float16)), "16-bit"),
        (lambda: linalg.solve(resilin.eye(3), resilin.ones(3, dtype=resilin.float64)), "one dtype"),
        (lambda: linalg.solve(resilin.eye(3), resilin.ones(2, 2)), "do not fit A X = B"),
        (lambda: linalg.qr(resilin.eye(2), "full"), "mode"),
        (lambda: linalg.eigh(resilin.eye(2), "X"), "UPLO"),
        (lambda: linalg.norm(resilin.ones(2, 2, 2), 1), "1D or 2D"),
        (lambda: linalg.matrix_norm(resilin.eye(2), 3), "is not one of"),
        (lambda: linalg.multi_dot([resilin.eye(2)]), "at least 2"),
        (lambda: linalg.cross(resilin.ones(2), resilin.ones(2)), "length 3"),
        (lambda: linalg.lstsq(resilin.eye(2), resilin.eye(2), driver="x"), "driver"),
        (lambda: linalg.svd(resilin.eye(2), driver="gesvd"), "driver"),
        (lambda: linalg.tensorinv(resilin.ones(2, 3)), "must be equal"),
    ],
)
def test_wrong_arguments_are_refused_with_the_reason(call, message):
    with pytest.raises(RuntimeError, match=message):
        call()


@pytest.mark.parametrize("ord", [2, 1, float("inf"), "nuc", "fro"])
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0), (2, 0, 3)])
def test_the_norm_of_a_matrix_without_elements_is_zero(shape, ord):
    found = resilin.linalg.matrix_norm(resilin.zeros(shape), ord)
    assert found.tolist() == resilin.zeros(shape[:-2]).tolist()


def test_the_order_of_a_norm_of_vectors_is_a_number():
    with pytest.raises(TypeError, match="ord must be a number, got 'fro'"):
        resilin.linalg.vector_norm(resilin.ones(2), "fro")


def test_lu_factor_refuses_a_singular_matrix_and_lu_factor_ex_reports_it():
    zero = resilin.zeros(2, 2)
    with pytest.raises(resilin.linalg.LinAlgError, match="pivot 1"):
        resilin.linalg.lu_factor(zero)
    assert resilin.linalg.lu_factor_ex(zero).info.item() == 1
