"""Sums, variances, norms and scans of many or narrow numbers, against the same in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import resilin
import resilin.nn.functional as F
from resilin import nn
from resilin.core.kernels import batch_norm, layer_norm, reduce_rows

LONG = 300_003  # a plain float32 sum of so many tenths is wrong in the fourth digit

LAYOUTS: dict[str, Any] = {  # an array and the axis to sum over
    "rows": (lambda x: x.reshape(-1, 3), 0),
    "transposed": (lambda x: x.reshape(-1, 3).T, 1),
    "middle": (lambda x: x.reshape(7, -1, 3), 1),
    "two leading": (lambda x: x.reshape(7, -1, 3), (0, 1)),
    "around a kept one": (lambda x: x.reshape(-1, 3, 7), (0, 2)),
    "every second": (lambda x: x.reshape(-1, 3)[:, ::2], None),
    "backwards": (lambda x: x.reshape(-1, 3)[::-1], 0),
    "repeated columns": (lambda x: np.broadcast_to(x[:, None], (len(x), 2)), 0),
    "repeated rows": (lambda x: np.broadcast_to(x[:3], (LONG, 3)), 0),
    "kept repeated": (lambda x: np.broadcast_to(x.reshape(-1, 1, 3), (len(x) // 3, 2, 3)), (0, 2)),
    "permuted": (lambda x: x.reshape(3, -1, 7).transpose(1, 2, 0), (0, 1)),
    "all, permuted": (lambda x: x.reshape(3, -1, 7).transpose(1, 0, 2), None),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("keepdims", [True, False])
def test_a_long_sum_is_accurate_along_every_axis_of_every_layout(layout: str, keepdims: bool) -> None:
    lay_out, axis = LAYOUTS[layout]
    x = lay_out(np.full(LONG * 7, 0.1, np.float32))
    exact = np.sum(x.astype(np.float64), axis=axis, keepdims=keepdims)
    for found, expected in (
        (reduce_rows.total(x, axis, keepdims), exact),
        (reduce_rows.mean(x, axis, keepdims), np.full(exact.shape, np.float32(0.1), np.float64)),
    ):
        assert np.shape(found) == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 1), (17, 2), (33, 100), (5000, 1), (37, 5, 29), (19, 3, 4, 50)])
def test_sums_over_all_axes_equal_numpys(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal(shape)
    for axis in [None, *range(-len(shape), len(shape)), (0, len(shape) - 1), (len(shape) - 1, 0)]:
        for kept in (True, False):
            np.testing.assert_allclose(reduce_rows.total(x, axis, kept), x.sum(axis, keepdims=kept), rtol=1e-12)


@pytest.mark.parametrize(
    "shape",
    [
        (0, 3),
        (2, 0),
        (1, 2),
        (16, 33),
        (17, 2),
        (257, 33),
        (4097, 1025),
        (70_001, 2),
        (3, 300, 5),
        (2, 0, 3),
        (0, 9, 3),
        (2, 3, 20, 7),
    ],
)
def test_sums_of_rows_have_the_bits_of_their_reference(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    np.testing.assert_array_equal(reduce_rows.sum_rows(x), reduce_rows.reference_sum_rows(x))


@pytest.mark.parametrize("sum_rows", [reduce_rows.sum_rows, reduce_rows.reference_sum_rows])
def test_a_million_rows_add_up(sum_rows: Any) -> None:
    x = np.full((1_000_003, 2), 0.1, np.float32)
    np.testing.assert_allclose(sum_rows(x), x.sum(0, dtype=np.float64), rtol=1e-6)


@pytest.mark.parametrize("kernel", ["native", "reference"])
def test_batch_norm_of_a_million_samples_is_normal(kernel: str) -> None:
    forward = batch_norm.forward if kernel == "native" else batch_norm.reference_forward
    backward = batch_norm.backward if kernel == "native" else batch_norm.reference_backward
    x = (0.1 + 0.001 * np.random.default_rng(0).standard_normal((1_000_003, 2))).astype(np.float32)
    y, mean, var = forward(x, None, None, 1e-12)
    exact = x.astype(np.float64)
    np.testing.assert_allclose(mean, exact.mean(0), rtol=1e-6)
    np.testing.assert_allclose(var, exact.var(0), rtol=1e-5)
    np.testing.assert_allclose(y.astype(np.float64).std(0), 1, rtol=1e-4)
    _, _, db = backward(np.full_like(x, 0.1), x, None, mean, var, 1e-12)
    np.testing.assert_allclose(db, 100000.3015, rtol=1e-6)


@pytest.mark.parametrize("backward", [layer_norm.backward, layer_norm.reference_backward])
def test_the_gradient_of_layer_norms_bias_adds_up_over_many_rows(backward: Any) -> None:
    x = np.full((LONG, 2), 0.1, np.float32)
    mean, rstd = np.zeros(LONG, np.float32), np.ones(LONG, np.float32)
    _, dw, db = backward(x, x, np.ones(2, np.float32), mean, rstd)
    np.testing.assert_allclose(db, LONG * 0.1, rtol=3e-6)
    np.testing.assert_allclose(dw, LONG * 0.01, rtol=3e-6)


def test_the_variance_of_many_rows_is_that_of_float64() -> None:
    x = (resilin.arange(100000.0).remainder(2) + 1000).reshape(-1, 1).expand(100000, 2)
    np.testing.assert_allclose(x.var(0).numpy(), 0.2500025, rtol=1e-5)
    np.testing.assert_allclose(x.std(0).numpy(), 0.5000025, rtol=1e-5)


@pytest.mark.parametrize("create_graph", [True, False])
def test_the_gradient_of_a_broadcast_operand_adds_up(create_graph: bool) -> None:
    b = resilin.ones(2, requires_grad=True)
    total = (resilin.full((1_000_003, 2), 0.1) * b).sum()
    (found,) = resilin.autograd.grad(total, b, create_graph=create_graph)
    np.testing.assert_allclose(found.detach().numpy(), 100000.3015, rtol=1e-6)


@pytest.mark.parametrize(("dtype", "expected"), [(resilin.bfloat16, 4992), (resilin.float16, 5000)])
def test_the_gradient_of_a_broadcast_16_bit_operand_is_summed_in_float32(dtype: Any, expected: int) -> None:
    b = resilin.zeros(1).to(dtype).requires_grad_()
    (resilin.ones(5000, 1).to(dtype) * b).sum().backward()
    assert b.grad is not None
    assert b.grad.dtype == dtype
    assert b.grad.item() == expected


@pytest.mark.parametrize("dtype", [resilin.bfloat16, resilin.float16])
def test_the_bias_gradient_of_a_16_bit_convolution_is_summed_in_float32(dtype: Any) -> None:
    conv = nn.Conv2d(1, 1, 1).to(dtype)
    conv(resilin.ones(64, 1, 16, 16).to(dtype)).sum().backward()
    assert conv.bias.grad.dtype == dtype
    assert conv.bias.grad.item() == 16384


def test_running_sums_of_a_million_tenths_do_not_drift() -> None:
    assert resilin.full((1_000_000,), 0.1).cumsum(0)[-1].item() == pytest.approx(100000, rel=1e-6)
    assert resilin.full((100_000,), 1.00001).cumprod(0)[-1].item() == pytest.approx(
        np.float32(1.00001) ** 1e5, rel=1e-2
    )


@pytest.mark.parametrize(("dtype", "expected"), [(resilin.bfloat16, 4992), (resilin.float16, 5000)])
def test_running_sums_of_16_bit_ones_do_not_stop_growing(dtype: Any, expected: int) -> None:
    found = resilin.ones(5000, dtype=dtype).cumsum(0)
    assert found.dtype == dtype
    assert found[-1].item() == expected


def test_running_products_of_integers_are_int64() -> None:
    found = resilin.tensor([100, 100, 100], dtype=resilin.int8).cumprod(0)
    assert found.dtype == resilin.int64
    assert found.tolist() == [100, 10_000, 1_000_000]


@pytest.mark.parametrize(("p", "expected"), [(2, 7072), (3, 1710)])
def test_the_norm_of_half_precision_numbers_does_not_overflow_on_the_way(p: int, expected: int) -> None:
    x = resilin.full((5000,), 100.0).half().requires_grad_()
    found = x.norm(p)
    assert found.dtype == resilin.float16
    assert found.item() == expected
    found.backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.float().numpy(), (100 / 5000 ** (1 / p) / 100) ** (p - 1), rtol=2e-3)


def test_clipping_half_precision_gradients_keeps_them() -> None:
    p = nn.Parameter(resilin.zeros(5000).half())
    p.grad = resilin.full((5000,), 100.0).half()
    nn.utils.clip_grad_norm_([p], 70.72)
    np.testing.assert_allclose(p.grad.float().numpy(), 1, rtol=2e-3)


@pytest.mark.parametrize("dtype", [resilin.bfloat16, resilin.float16])
def test_variance_and_product_of_16_bit_numbers_do_not_overflow_on_the_way(dtype: Any) -> None:
    x = resilin.tensor([1000.0, -1000.0, 1000.0, -1000.0], dtype=dtype)
    assert x.std(correction=0).item() == 1000
    assert resilin.tensor([1024.0, 1024.0, 1 / 1024], dtype=dtype).prod().item() == 1024


def test_the_standard_deviation_of_equal_numbers_has_the_gradient_zero() -> None:
    x = resilin.tensor([[1.0, 1.0], [1.0, 3.0]], requires_grad=True)
    x.std(1).sum().backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), [[0, 0], [-(0.5**0.5), 0.5**0.5]], rtol=1e-6)


@pytest.mark.parametrize("name", ["max", "min", "amax", "amin"])
def test_the_gradient_of_a_nan_extreme_goes_to_the_nan(name: str) -> None:
    x = resilin.tensor([1.0, float("nan")], requires_grad=True)
    getattr(x, name)().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0, 1]


@pytest.mark.parametrize("dtype", [resilin.int8, resilin.uint8, resilin.int64, resilin.bool])
def test_logsumexp_of_integers_is_of_the_default_dtype(dtype: Any) -> None:
    found = resilin.tensor([1, 0]).to(dtype).logsumexp(0)
    assert found.dtype == resilin.float32
    assert found.item() == pytest.approx(np.log1p(np.e))


def test_logsumexp_of_nothing_is_minus_infinity() -> None:
    assert resilin.zeros(0).logsumexp(0).item() == -float("inf")
    assert resilin.zeros(0, 3).logsumexp(0).tolist() == [-float("inf")] * 3
    assert resilin.zeros(0, 3).logsumexp(1).shape == (0,)


def test_logsumexp_and_batch_norm_of_half_precision_keep_their_dtype() -> None:
    x = resilin.randn(8, 3).half()
    assert x.logsumexp(0).dtype == resilin.float16
    assert F.batch_norm(x, None, None, training=True).dtype == resilin.float16
