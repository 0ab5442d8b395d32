"""Factors of matrices and systems of equations by native code: numpy's values, and the same bits for any threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import resilin
from resilin.core.kernels import factorize, loader
from resilin.core.machine import threads
from resilin.errors import LinAlgError

pytestmark = pytest.mark.skipif(loader.native is None, reason="there are no native kernels here")

SIZES = [1, 2, 15, 16, 17, 31, 33, 65, 130]
DTYPES = [np.float32, np.float64]


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    before = threads.get_num_threads()
    yield
    threads.set_num_threads(before)


def _drawn(*shape: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(3).standard_normal(shape).astype(dtype)


def _definite(n: int, dtype: Any, *lead: int) -> Any:
    x = _drawn(*lead, n, n, dtype=dtype)
    return (x @ x.swapaxes(-1, -2) / n + np.eye(n)).astype(dtype)


def _close(found: Any, expected: Any, n: int) -> None:
    np.testing.assert_allclose(
        found, expected, 0, 40 * (n + 8) * np.finfo(found.dtype).eps * max(1, abs(expected).max())
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
def test_systems_inverses_and_determinants_are_numpys(n: int, dtype: Any) -> None:
    a, b = _definite(n, dtype), _drawn(n, 5, dtype=dtype)
    wide = a.astype(np.float64)
    found, inverse = factorize.solve(a, b), factorize.inverse(a)
    assert found is not None
    assert inverse is not None
    _close(found, np.linalg.solve(wide, b), n)
    _close(inverse, np.linalg.inv(wide), n)
    sign, logs = factorize.log_determinant(a)  # type: ignore[misc]
    expected = np.linalg.slogdet(wide)
    assert sign == expected[0]
    np.testing.assert_allclose(logs, expected[1], 0, 200 * n * np.finfo(dtype).eps)
    np.testing.assert_allclose(factorize.determinant(a), np.linalg.det(wide), 1e3 * n * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
def test_the_factor_of_a_definite_matrix_is_numpys_and_reads_the_lower_triangle_only(n: int, dtype: Any) -> None:
    x = _definite(n, dtype)
    factor, info = factorize.cholesky(np.tril(x) + np.triu(np.full_like(x, np.nan), 1))  # type: ignore[misc]
    _close(factor, np.linalg.cholesky(x.astype(np.float64)), n)
    assert not info.any()
    assert not np.triu(factor, 1).any()


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan])
@pytest.mark.parametrize("order", [1, 16, 17, 33, 40])
def test_the_first_minor_that_is_not_definite_is_numbered(order: int, bad: float) -> None:
    x = np.eye(40, dtype=np.float32)
    x[order - 1, order - 1] = bad
    assert factorize.cholesky(np.stack([np.eye(40, dtype=np.float32), x]))[1].tolist() == [0, order]  # type: ignore[index]
    with pytest.raises(LinAlgError, match=f"leading minor of order {order}"):
        resilin.linalg.cholesky(resilin.tensor(x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape", [(1, 1), (5, 5), (33, 31), (31, 33), (70, 130), (130, 70), (3, 40, 4), (65, 1), (1, 65)]
)
def test_q_and_r_have_lapacks_signs_and_q_is_orthogonal(shape: tuple[int, ...], dtype: Any) -> None:
    x = _drawn(*shape, dtype=dtype)
    m, n = shape[-2:]
    for complete in (False, True):
        q, r = factorize.qr(x, complete)  # type: ignore[misc]
        _close(q @ r, x, max(m, n))
        _close(
            q.swapaxes(-1, -2) @ q, np.broadcast_to(np.eye(q.shape[-1]), (*shape[:-2], *(q.shape[-1:] * 2))), max(m, n)
        )
        assert not np.tril(r, -1).any()
        expected = np.linalg.qr(x, mode="complete" if complete else "reduced")
        assert q.shape == expected[0].shape
        assert r.shape == expected[1].shape
        np.testing.assert_array_equal(np.sign(np.diagonal(r, 0, -2, -1)), np.sign(np.diagonal(expected[1], 0, -2, -1)))


def test_columns_that_are_already_triangular_are_not_reflected_and_lengths_do_not_overflow() -> None:
    q, r = factorize.qr(np.triu(np.ones((5, 5), np.float32)), False)  # type: ignore[misc]
    np.testing.assert_array_equal(q, np.eye(5))
    np.testing.assert_array_equal(r, np.triu(np.ones((5, 5))))
    for dtype, scale in ((np.float32, 1e30), (np.float64, 1e200), (np.float64, 1e-200)):
        x = (_drawn(9, 4, dtype=np.float64) * scale).astype(dtype)
        q, r = factorize.qr(x, False)  # type: ignore[misc]
        np.testing.assert_allclose(q @ r / scale, x / scale, 0, 1e-5 if dtype is np.float32 else 1e-13)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (7, 7), (40, 3), (3, 40), (70, 33), (33, 70), (2, 9, 4)])
def test_least_squares_of_full_rank_are_numpys(shape: tuple[int, ...], dtype: Any) -> None:
    a, b = _drawn(*shape, dtype=dtype), _drawn(*shape[:-1], 3, dtype=dtype)
    found = factorize.least_squares(a, b, 0.0)
    assert found is not None
    assert factorize.full_rank(a, 0.0)
    _close(found, np.linalg.pinv(a.astype(np.float64)) @ b, 20 * max(shape[-2:]))


def test_a_matrix_that_may_lack_rank_is_left_to_singular_values() -> None:
    a = _drawn(6, 4)
    a[:, 3] = a[:, 0] + a[:, 1]
    b = _drawn(6, 2)
    assert factorize.least_squares(a, b, 0.0) is None
    assert not factorize.full_rank(a, 0.0)
    a[0, 0] = np.nan
    assert factorize.least_squares(a, b, 0.0) is None
    assert not factorize.full_rank(a, 0.0)
    well = np.diag([1.0, 1e-3]).astype(np.float32)
    assert factorize.full_rank(well, 1e-5)
    assert not factorize.full_rank(well, 1e-2)
    found = resilin.linalg.lstsq(resilin.tensor(well), resilin.ones(2, 1))
    assert found.rank.item() == 2
    assert resilin.linalg.lstsq(resilin.tensor(well), resilin.ones(2, 1), rcond=1e-2).rank.item() == 1


def test_a_singular_matrix_of_a_batch_is_named() -> None:
    batch = np.stack([np.eye(3, dtype=np.float32), np.ones((3, 3), np.float32)])
    assert factorize.solve(batch, batch) is None
    assert factorize.inverse(batch) is None
    for call in (resilin.linalg.inv, lambda x: resilin.linalg.solve(x, x)):
        with pytest.raises(LinAlgError, match="at batch index 1 is singular"):
            call(resilin.tensor(batch))


def test_other_dtypes_and_empty_matrices_are_numpys() -> None:
    for x in (np.eye(3, dtype=np.complex64), np.eye(3, dtype=np.int64), np.zeros((0, 0), np.float32)):
        assert factorize.inverse(x) is None
        assert factorize.cholesky(x) is None
        assert factorize.qr(x, False) is None
    empty = resilin.zeros(0, 3, 3)
    assert resilin.linalg.inv(empty).shape == (0, 3, 3)
    assert resilin.linalg.cholesky(empty).shape == (0, 3, 3)
    assert resilin.linalg.det(resilin.zeros(0, 0)).item() == 1


@pytest.mark.parametrize("shape", [(150, 150), (9, 20, 20)])
def test_the_bits_do_not_depend_on_threads_or_strides(shape: tuple[int, ...]) -> None:
    a, b = _drawn(*shape), _drawn(*shape[:-1], 190)
    d = (a @ a.swapaxes(-1, -2) / shape[-1] + np.eye(shape[-1])).astype(np.float32)
    found = []
    for count in (1, 2, 3):
        threads.set_num_threads(count)
        given = d if count < 3 else np.asfortranarray(d)
        every: list[Any] = [factorize.solve(given, b), factorize.inverse(given), factorize.least_squares(given, b, 0.0)]
        every += [factorize.solve_triangle(given, b, upper, not upper) for upper in (True, False)]
        for factors in (factorize.cholesky(given), factorize.qr(given, True), factorize.lu(given)):
            assert factors is not None
            every += factors
        found.append([part.tobytes() for part in every])
    assert found[0] == found[1] == found[2]


def test_what_is_given_is_not_written_into() -> None:
    a, b = _definite(20, np.float32), _drawn(20, 3)
    kept = a.copy(), b.copy()
    factorize.solve(a, b), factorize.inverse(a), factorize.cholesky(a), factorize.qr(a, False), factorize.lu(a)
    factorize.solve_triangle(a, b, True, False), factorize.least_squares(a, b, 0.0)
    np.testing.assert_array_equal(a, kept[0])
    np.testing.assert_array_equal(b, kept[1])


def test_exchanged_rows_are_numbered_as_numpy_numbers_them() -> None:
    pivots = factorize.lu(_drawn(3, 40, 12))[1]
    np.testing.assert_array_equal(factorize.permutation(pivots, 40), factorize.reference_permutation(pivots, 40))
