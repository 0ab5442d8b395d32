"""Extremes, products and sums over dimensions in front of others, and of transposed arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import resilin as torch
from resilin.core.kernels import loader

SHAPES = [
    ((7, 5), (0,)),
    ((1563, 64), (0,)),
    ((100_000, 3), (0,)),
    ((5, 300), (0,)),
    ((3, 200, 130), (1,)),
    ((3, 4, 5, 6), (1, 2)),
    ((4, 1, 6, 3), (0, 1)),
    ((1, 9, 1, 2), (1,)),
    ((2, 3, 4), (0, 2)),
]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64]


def drawn(shape: tuple[int, ...], dtype: Any) -> Any:
    """Small whole numbers and, of floats, halves, infinity and NaN."""
    values = torch.tensor(np.random.default_rng(0).integers(-6, 7, shape)).to(dtype)
    if dtype.is_floating_point:
        values /= 2
        values.view(-1)[3] = float("inf")
        values.view(-1)[-2] = float("nan")
    return values


def wide(x: Any) -> Any:
    return x.float().numpy() if x.dtype in (torch.float16, torch.bfloat16) else x.numpy()


@pytest.mark.parametrize(("shape", "axes"), SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_extremes_are_those_of_numpy_for_any_number_of_threads(
    shape: tuple[int, ...], axes: tuple[int, ...], dtype: Any, thread_counts: Any
) -> None:
    x = drawn(shape, dtype)
    for count in (1, 2, 3):
        thread_counts(count)
        for keepdim in (False, True):
            for name in ("amax", "amin"):
                found = getattr(x, name)(axes, keepdim)
                assert found.dtype is dtype
                np.testing.assert_array_equal(wide(found), getattr(np, name)(wide(x), axis=axes, keepdims=keepdim))


@pytest.mark.parametrize(("shape", "axes"), [case for case in SHAPES if len(case[1]) == 1])
@pytest.mark.parametrize("dtype", DTYPES)
def test_products_are_taken_row_after_row_in_the_dtype_that_rows_have(
    shape: tuple[int, ...], axes: tuple[int, ...], dtype: Any, thread_counts: Any
) -> None:
    x = drawn(shape, dtype)
    given = wide(x)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = torch.tensor(np.prod(given, axis=axes[0], dtype=given.dtype)).to(dtype)
    for count in (1, 2, 3):
        thread_counts(count)
        np.testing.assert_array_equal(wide(x.prod(axes[0])), wide(expected))


@pytest.mark.skipif(loader.native is None, reason="without native code numpy has its own order")
@pytest.mark.parametrize("shape", [(5, 7), (64, 1563), (3, 4, 50), (2, 3, 4, 5)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["sum", "mean", "amax", "amin", "prod"])
def test_a_transposed_array_is_reduced_as_it_lies(shape: tuple[int, ...], dtype: Any, name: str) -> None:
    if name == "mean" and not dtype.is_floating_point:
        return
    x = torch.tensor(np.random.default_rng(0).standard_normal(shape)).to(dtype)
    turned, ndim = x.permute(*range(x.ndim - 1, -1, -1)), x.ndim
    for dim in range(ndim):
        for keepdim in (False, True):
            found = getattr(turned, name)(dim, keepdim)
            expected = getattr(x, name)(ndim - 1 - dim, keepdim)
            back = expected.permute(*range(expected.ndim - 1, -1, -1))
            assert found.shape == back.shape
            np.testing.assert_array_equal(wide(found), wide(back))


@pytest.mark.parametrize("name", ["amax", "amin", "prod"])
def test_gradients_of_columns(name: str) -> None:
    x = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: getattr(x, name)(0), (x,))
    assert torch.autograd.gradcheck(lambda x: getattr(x.t(), name)(1), (x,))
