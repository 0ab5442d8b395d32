"""Systems of few equations have a way of their own, with the same steps: the bits of those with many columns."""

from typing import Any

import numpy as np
import pytest

import resilin


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", range(1, 9))
def test_few_columns_are_solved_as_many_are(dtype: Any, n: int) -> None:
    r = np.random.default_rng(n)
    a = r.normal(size=(50, n, n)).astype(dtype)
    a[1, 0, 0] = np.nan
    a[2, 0, 0], a[3, -1, -1] = np.inf, -0.0 if n > 1 else 1.0
    matrices = resilin.from_numpy(a)
    b = resilin.from_numpy(r.normal(size=(50, n, 9)).astype(dtype))
    many = resilin.linalg.solve(matrices, b).numpy()
    few = resilin.linalg.solve(matrices, b[..., :5]).numpy()
    assert np.array_equal(few, many[..., :5], equal_nan=True)
    units = resilin.eye(n, 9, dtype=matrices.dtype).expand(50, n, 9)
    inverses = resilin.linalg.inv(matrices).numpy()
    assert np.array_equal(inverses, resilin.linalg.solve(matrices, units).numpy()[..., :n], equal_nan=True)


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_a_singular_matrix_is_named(n: int) -> None:
    matrices = resilin.eye(n).repeat(3, 1, 1)
    matrices[1, -1, -1] = 0.0
    with pytest.raises(resilin.linalg.LinAlgError, match="1"):
        resilin.linalg.inv(matrices)
