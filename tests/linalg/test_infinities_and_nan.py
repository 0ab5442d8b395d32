"""Matrices with infinities or NaN are refused before LAPACK, which may never return from them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import resilin
from resilin import Tensor, linalg

KINDS = [resilin.float32, resilin.float64, resilin.complex64, resilin.complex128]
NUMBERS = [math.inf, -math.inf, math.nan]
CALLS: dict[str, Callable[[Tensor], Any]] = {
    "svd": linalg.svd,
    "reduced svd": lambda x: linalg.svd(x, full_matrices=False),
    "svdvals": linalg.svdvals,
    "pinv": linalg.pinv,
    "pinverse": lambda x: x.pinverse(),
    "pinv of Hermitian": lambda x: linalg.pinv(x, hermitian=True),
    "lstsq": lambda x: linalg.lstsq(x, resilin.ones_like(x)),
    "lstsq of columns": lambda x: linalg.lstsq(x[..., :2], resilin.ones_like(x)),
    "matrix_rank": linalg.matrix_rank,
    "norm 2": lambda x: linalg.matrix_norm(x, 2),
    "norm nuc": lambda x: linalg.matrix_norm(x, "nuc"),
    "cond": linalg.cond,
    "eig": linalg.eig,
    "eigvals": linalg.eigvals,
    "eigh": linalg.eigh,
    "eigvalsh": linalg.eigvalsh,
}


def _matrix(dtype: Any, number: float, *front: int) -> Tensor:
    made: Tensor = resilin.randn(*front, 4, 4, generator=resilin.Generator().manual_seed(0)).to(dtype)
    made.view(-1)[-16] = number  # of the last matrix
    return made


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_what_is_not_finite_is_refused_and_named(call: Callable[[Tensor], Any], dtype: Any, number: float) -> None:
    with pytest.raises(linalg.LinAlgError, match=r"^linalg\.\w+: the 4 x \d matrix has infinities or NaN, expected"):
        call(_matrix(dtype, number))
    with pytest.raises(linalg.LinAlgError, match=r"^linalg\.\w+: the 4 x \d matrix at batch index 2 has infinities"):
        call(_matrix(dtype, number, 3))


@pytest.mark.parametrize("number", NUMBERS)
def test_the_triangle_that_does_not_count_may_hold_anything(number: float) -> None:
    x = resilin.eye(3) * 2
    x[0, 2] = number
    assert linalg.eigh(x)[0].tolist() == linalg.eigvalsh(x).tolist() == [2, 2, 2]
    assert linalg.pinv(x, hermitian=True).tolist() == (resilin.eye(3) / 2).tolist()
    assert linalg.eigvalsh(x.mT, UPLO="U").tolist() == [2, 2, 2]
    with pytest.raises(linalg.LinAlgError, match="infinities or NaN"):
        linalg.eigvalsh(x, UPLO="U")


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("dtype", KINDS)
def test_the_gradient_of_a_determinant_is_nan_for_the_matrix_that_is_not_finite(dtype: Any, number: float) -> None:
    x = _matrix(dtype, number, 2).requires_grad_()
    linalg.det(x).abs().sum().backward()
    assert x.grad is not None
    assert x.grad[1].isnan().all()
    alone = x.detach()[:1].requires_grad_()
    linalg.det(alone).abs().sum().backward()
    assert alone.grad is not None
    np.testing.assert_array_equal(x.grad[:1].numpy(), alone.grad.numpy())


def test_the_largest_numbers_are_decomposed() -> None:
    for number, dtype in ((5e307, resilin.float64), (3e307 - 3e307j, resilin.complex128), (5e-324, resilin.float64)):
        values = linalg.svdvals(resilin.full((3, 3), number, dtype=dtype))
        np.testing.assert_allclose(values[0].item(), 3 * abs(number), rtol=1e-12)
