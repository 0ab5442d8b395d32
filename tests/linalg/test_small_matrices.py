"""Small matrices by rotations and eliminations side by side, larger ones by LAPACK in their own type."""

import numpy as np
import pytest

import resilin
from resilin import linalg
from resilin.core.kernels import factorize, loader
from resilin.core.machine import threads

DTYPES = [np.float32, np.float64]
native = pytest.mark.skipif(loader.native is None, reason="there are no native kernels here")


def drawn(*shape, dtype=np.float32):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def near(found, expected, dtype, factor=60):
    np.testing.assert_allclose(found, expected, 0, factor * np.finfo(dtype).eps * max(1, np.abs(expected).max()))


def turned(x):
    return np.swapaxes(x, -1, -2)


def is_orthonormal(q, dtype):
    near(turned(q) @ q, np.broadcast_to(np.eye(q.shape[-1]), (*q.shape[:-2], q.shape[-1], q.shape[-1])), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 9, 20])
@pytest.mark.parametrize("lead", [(), (3,), (2, 17)])
@pytest.mark.parametrize("uplo", ["L", "U"])
def test_eigenvalues_and_vectors_make_the_triangle_that_is_read(n, lead, uplo, dtype):
    x = drawn(*lead, n, n, dtype=dtype)
    part = np.tril(x) if uplo == "L" else np.triu(x)
    whole = (part + turned(part) - part * np.eye(n)).astype(np.float64)
    values, vectors = (found.numpy() for found in linalg.eigh(resilin.tensor(x), uplo))
    assert values.dtype == vectors.dtype == dtype
    near(values, np.linalg.eigvalsh(whole), dtype, 20 * (n + 3))
    near(linalg.eigvalsh(resilin.tensor(x), uplo).numpy(), values, dtype, 20 * (n + 3))
    near(vectors * values[..., None, :] @ turned(vectors), whole, dtype, 20 * (n + 3))
    is_orthonormal(vectors, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape", [(1, 1), (2, 2), (8, 8), (9, 9), (3, 5, 5), (2, 17, 8, 8), (5, 4), (4, 6), (8, 7), (17, 3)]
)
def test_singular_values_and_vectors_make_the_matrix(shape, dtype):
    x = drawn(*shape, dtype=dtype)
    expected = np.linalg.svd(x.astype(np.float64), compute_uv=False)
    for full in (False, True):
        u, s, vh = (found.numpy() for found in linalg.svd(resilin.tensor(x), full_matrices=full))
        k = s.shape[-1]
        near(s, expected, dtype)
        near(u[..., :k] * s[..., None, :] @ vh[..., :k, :], x, dtype, 200)
        is_orthonormal(u, dtype)
        is_orthonormal(turned(vh), dtype)
    near(linalg.svdvals(resilin.tensor(x)).numpy(), expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_matrices_of_lower_rank_and_of_any_scale_are_right_beside_others(dtype):
    tiny, huge = float(np.finfo(dtype).tiny), float(np.finfo(dtype).max)
    x = drawn(6, 4, 4, dtype=dtype)
    x[1] = 0
    x[2] = np.outer([1, 2, 3, 4], [1, -1, 1, 0])
    x[3] = np.eye(4) * tiny
    x[4] = np.eye(4) * huge / 2
    u, s, vh = (found.numpy() for found in linalg.svd(resilin.tensor(x)))
    is_orthonormal(u, dtype)
    is_orthonormal(turned(vh), dtype)
    near(s[[0, 1, 2, 5]], np.linalg.svd(x[[0, 1, 2, 5]].astype(np.float64), compute_uv=False), dtype)
    np.testing.assert_allclose(s[3:5], [[tiny] * 4, [huge / 2] * 4], 1e-6)
    values = linalg.eigvalsh(resilin.tensor(x)).numpy()
    np.testing.assert_allclose(values[[1, 3, 4]], [[0] * 4, [tiny] * 4, [huge / 2] * 4], 1e-6)


@pytest.mark.parametrize("name", ["eigh", "eigvalsh", "svd", "svdvals"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_small_matrices_that_are_not_finite_are_refused(name, bad):
    x = drawn(3, 4, 4)
    x[1, 2, 0] = bad
    with pytest.raises(linalg.LinAlgError, match="at batch index 1 has infinities or NaN"):
        getattr(linalg, name)(resilin.tensor(x))


def test_a_triangle_that_is_not_read_may_have_anything():
    x = drawn(5, 5)
    x[0, 4] = np.nan
    near(linalg.eigvalsh(resilin.tensor(x)).numpy(), np.linalg.eigvalsh(x), np.float32)


@native
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_matrix_has_the_same_bits_alone_in_a_batch_and_with_any_threads(dtype):
    x = drawn(400, 7, 7, dtype=dtype)
    x[5] = np.diag(np.arange(7))  # turned in no sweep
    x[6] = x[6] * 1e-3
    before, found = threads.get_num_threads(), []
    try:
        for count in (1, 2):
            threads.set_num_threads(count)
            found.append([*factorize.by_rotations("eigh", x, "L"), *factorize.by_rotations("svd", x)])
            found[-1].append(factorize.determinant(x))
    finally:
        threads.set_num_threads(before)
    for one, two in zip(*found, strict=True):
        np.testing.assert_array_equal(one, two)
    for i in (0, 5, 6, 399):
        alone = [*factorize.by_rotations("eigh", x[i], "L"), *factorize.by_rotations("svd", x[i])]
        for one, all_ in zip([*alone, factorize.determinant(x[i])], found[0], strict=True):
            assert np.asarray(one).tobytes() == all_[i].tobytes()


@native
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 5, 8, 16, 17])
def test_pivots_side_by_side_are_those_of_the_factors(n, dtype):
    x = np.round(drawn(37, n, n, dtype=dtype) * 2)  # ties and singular ones
    x[3] = 0
    x[4, 0, 0] = np.nan
    x[5, :, 0] = np.inf
    packed, pivots, _ = factorize.lu(x)
    heads = np.diagonal(packed, 0, -2, -1)
    sign, logs = factorize.log_determinant(x)
    with np.errstate(all="ignore"):
        expected = np.sign(heads).prod(-1) * (-1.0) ** (pivots != np.arange(1, n + 1)).sum(-1)
        np.testing.assert_array_equal(logs, np.log(np.abs(heads).astype(np.float64)).sum(-1))
    np.testing.assert_array_equal(sign, expected)
    found = factorize.determinant(x[6:])
    np.testing.assert_allclose(found, np.linalg.det(x[6:].astype(np.float64)), 1e-3, 1e-2)


@pytest.mark.parametrize("n", [12, 60])
def test_larger_matrices_of_float32_and_complex64_are_factorized_in_their_own_type(n):
    for x in (drawn(2, n, n), drawn(2, n, n) + 1j * drawn(2, n, n)):
        h = x @ np.conj(turned(x))
        wide = h.astype(np.result_type(h.dtype, np.float64))
        values, vectors = (found.numpy() for found in linalg.eigh(resilin.tensor(h)))
        assert values.dtype == np.float32
        assert vectors.dtype == h.dtype
        near(values, np.linalg.eigvalsh(wide), np.float32, 100)
        near(vectors * values[..., None, :] @ np.conj(turned(vectors)), h, np.float32, 100)
        u, s, vh = (found.numpy() for found in linalg.svd(resilin.tensor(x)))
        near(u * s[..., None, :] @ vh, x, np.float32, 400)
        near(linalg.svdvals(resilin.tensor(x)).numpy(), s, np.float32, 100)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(300, 300), (40, 7), (7, 40), (3, 6, 5), (1, 1)])
def test_pseudo_inverses_of_full_rank_are_numpys(shape, dtype):
    x = drawn(*shape, dtype=dtype)
    expected = np.linalg.pinv(x.astype(np.float64))
    found = linalg.pinv(resilin.tensor(x)).numpy()
    assert found.dtype == dtype
    near(found, expected, dtype, 50 * np.linalg.cond(x.astype(np.float64)).max())
    cut = linalg.pinv(resilin.tensor(x), atol=1e9).numpy()
    np.testing.assert_array_equal(cut, np.zeros_like(cut))
