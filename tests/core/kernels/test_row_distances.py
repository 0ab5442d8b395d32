"""Distances of rows by native code: the bits of the numpy form, for any threads."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import resilin
from resilin.core.kernels import loader
from resilin.core.machine import threads
from resilin.core.ops import distance

SHAPES = [
    (1, 1, 1, 1),
    (2, 5, 17, 130),
    (1, 131, 33, 300),
    (3, 4, 16, 128),
    (1, 0, 3, 2),
    (1, 3, 0, 2),
    (1, 300, 40, 257),
]
DTYPES = [np.float32, np.float64]


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    before = threads.get_num_threads()
    yield
    threads.set_num_threads(before)


def _operands(shape: tuple[int, ...], dtype: Any) -> tuple[Any, Any]:
    batch, P, R, D = shape
    drawn = np.random.default_rng(5)
    a, b = drawn.standard_normal((batch, P, D)), drawn.standard_normal((batch, R, D))
    return a.astype(dtype), b.astype(dtype)


@pytest.mark.skipif(loader.native is None, reason="there are no native kernels here")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("p", distance.ORDERS)
def test_distances_have_the_bits_of_the_numpy_form_for_any_threads(shape: Any, dtype: Any, p: float) -> None:
    a, b = _operands(shape, dtype)
    if a.shape[1] > 3:
        a[0, 1, 0], a[0, 2, -1], a[0, 3, 0] = np.nan, np.inf, -0.0
    expected = distance.reference_row_distances(a, b, p)
    for count in (1, 2, 3):
        threads.set_num_threads(count)
        found = distance._native_row_distances(a, b, p)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("p", distance.ORDERS)
@pytest.mark.parametrize("name", ["float32", "float64", "float16", "bfloat16"])
def test_distances_of_views_and_batches_are_those_of_numpy(p: float, name: str) -> None:
    dtype = getattr(resilin, name)
    a = resilin.randn(3, 1, 9, 20).to(dtype)[..., ::2]
    b = resilin.randn(2, 10, 21).to(dtype).mT
    wide_a, wide_b = a.double().numpy(), b.double().numpy()
    expected = np.linalg.norm(wide_a[..., :, None, :] - wide_b[..., None, :, :], p, axis=-1)
    tolerance = {"float32": 1e-6, "float64": 1e-14, "float16": 1e-3, "bfloat16": 8e-3}[name]
    found = resilin.cdist(a, b, p)
    assert found.dtype is dtype
    np.testing.assert_allclose(found.double().numpy(), expected, rtol=tolerance)


@pytest.mark.parametrize("p", distance.ORDERS)
def test_gradients_of_equal_rows_and_of_equal_largest_differences(p: float) -> None:
    x = resilin.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]], requires_grad=True)
    y = resilin.tensor([[1.0, 2.0, 3.0], [2.0, -2.0, 1.0]])
    resilin.cdist(x, y, p).sum().backward()
    expected = {
        1.0: [[-1.0, 1.0, 1.0], [-2.0, 0.0, -2.0]],
        math.inf: [[0.0, 1.0, 0.0], [-0.5, 0.5, -1.0]],
    }
    if p in expected:
        np.testing.assert_allclose(x.grad.numpy(), expected[p])
    else:
        d = np.array([[[0.0, 0, 0], [-1, 4, 2]], [[-1, -2, -3], [-2, 2, -1]]])
        size = np.linalg.norm(d, 3, axis=-1, keepdims=True)
        shares = np.sign(d) * d**2 / np.where(size == 0, 1, size) ** 2
        np.testing.assert_allclose(x.grad.numpy(), shares.sum(1), rtol=1e-6)
