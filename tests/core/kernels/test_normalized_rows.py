"""Normalizations, softmax and losses of every float dtype in native code: beside float64, strides, threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import resilin
from resilin.core.kernels import batch_norm, cross_entropy, layer_norm
from resilin.core.machine import threads
from resilin.nn import functional as F

DTYPES = [resilin.float32, resilin.float64, resilin.float16, resilin.bfloat16]
ROUNDING = {resilin.float32: 3e-6, resilin.float64: 1e-13, resilin.float16: 2e-3, resilin.bfloat16: 1.6e-2}
SHAPES = [(2, 1), (3, 7), (5, 16), (33, 56), (4, 100), (19, 2050), (70, 3, 5), (3, 40, 4, 33), (3000, 33)]


def _bits(x: Any) -> bytes:
    return x.to(resilin.float64).numpy().tobytes()


def _vector(n: int, dtype: Any, seed: int) -> Any:
    return resilin.tensor(np.random.default_rng(seed).random(n) + 0.5).to(dtype)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "layer norm": lambda x: F.layer_norm(x, x.shape[1:]),
    "layer norm with weights": lambda x: F.layer_norm(
        x, x.shape[-1:], _vector(x.shape[-1], x.dtype, 1), _vector(x.shape[-1], x.dtype, 2)
    ),
    "layer norm with a bias": lambda x: F.layer_norm(x, x.shape[-1:], None, _vector(x.shape[-1], x.dtype, 2)),
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True),
    "batch norm with weights": lambda x: F.batch_norm(
        x, None, None, _vector(x.shape[1], x.dtype, 1), _vector(x.shape[1], x.dtype, 2), training=True
    ),
    "batch norm with given statistics": lambda x: F.batch_norm(
        x, *(_vector(x.shape[1], x.dtype, seed) for seed in range(4))
    ),
    "given statistics alone": lambda x: F.batch_norm(x, *(_vector(x.shape[1], x.dtype, seed) for seed in range(2))),
    "softmax": lambda x: x.softmax(-1),
    "log softmax": lambda x: x.log_softmax(-1),
    "softmax of columns": lambda x: x.softmax(0),
    "log softmax of columns": lambda x: x.log_softmax(0),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_rows_of_every_dtype_are_near_those_of_float64(name: str, dtype: Any) -> None:
    call = FUNCTIONS[name]
    for shape in SHAPES:
        x = resilin.tensor(np.random.default_rng(0).normal(size=shape) + 0.5).to(dtype)
        found = call(x)
        assert (found.dtype, found.shape) == (x.dtype, x.shape)
        with resilin.no_grad():
            if dtype is resilin.float64:
                x.requires_grad_()
            expected = call(x.double())
        scale = 1 + expected.abs().max().item()
        off = (found.double() - expected).abs().max().item()
        assert off <= ROUNDING[dtype] * scale, (shape, off)
        wide = resilin.stack((x.detach(), x.detach()), -1)[..., 0]
        assert not wide.is_contiguous() or x.numel() == 1
        assert _bits(call(wide)) == _bits(found.detach())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_rows_are_the_same_for_any_number_of_threads(name: str, dtype: Any) -> None:
    before, found = threads.get_num_threads(), set()
    for count in (1, 2):
        threads.set_num_threads(count)
        found.add(
            b"".join(
                _bits(FUNCTIONS[name](resilin.tensor(np.random.default_rng(1).normal(size=shape)).to(dtype)))
                for shape in [(3000, 33), (8, 40, 300)]
            )
        )
    threads.set_num_threads(before)
    assert len(found) == 1


def test_float64_stands_beside_the_numpy_forms() -> None:
    r = np.random.default_rng(0)
    for N, D in [(1, 1), (3, 31), (33, 33), (2, 4097), (300, 7)]:
        x, g, w, b = r.normal(size=(N, D)), r.normal(size=(N, D)), r.normal(size=D), r.normal(size=D)
        fast, slow = layer_norm.forward(x, w, b, 1e-5, D), layer_norm.reference_forward(x, w, b, 1e-5, D)
        for one, other in zip(fast, slow, strict=True):
            np.testing.assert_allclose(one, other, 1e-10, 1e-12)
        pairs = zip(
            layer_norm.backward(g, x, w, *slow[1:]), layer_norm.reference_backward(g, x, w, *slow[1:]), strict=True
        )
        for one, other in pairs:
            np.testing.assert_allclose(one, other, 1e-9, 1e-10)
        for shape in [(N, D), (N, D, 1), (2, N, D)]:
            x, g = r.normal(size=shape), r.normal(size=shape)
            w, b = r.normal(size=shape[1]), r.normal(size=shape[1])
            fast, slow = batch_norm.forward(x, w, b, 1e-5), batch_norm.reference_forward(x, w, b, 1e-5)
            for one, other in zip(fast, slow, strict=True):
                np.testing.assert_allclose(one, other, 1e-9, 1e-10)
            back, back_slow = (
                f(g, x, w, *slow[1:], 1e-5) for f in (batch_norm.backward, batch_norm.reference_backward)
            )
            for one, other in zip(back, back_slow, strict=True):
                np.testing.assert_allclose(one, other, 1e-8, 1e-9)
        target = r.integers(0, D, N)
        target[0] = -100
        for smoothing, weight in [(0.0, None), (0.1, None), (0.1, np.abs(r.normal(size=D)))]:
            given = (target, weight, -100, smoothing)
            z = r.normal(size=(N, D)) * 5
            fast, slow = cross_entropy.forward(z, *given), cross_entropy.reference_forward(z, *given)
            for one, other in zip(fast, slow, strict=True):
                np.testing.assert_allclose(one, other, 1e-11, 1e-11)
            rest = (z, target, slow[1], weight, -100, smoothing)
            gradient = np.ones(N)
            np.testing.assert_allclose(
                cross_entropy.backward(gradient, *rest), cross_entropy.reference_backward(gradient, *rest), 1e-9, 1e-12
            )


@pytest.mark.parametrize("dtype", DTYPES)
def test_logistic_losses_in_one_pass_are_near_their_steps(dtype: Any) -> None:
    r = np.random.default_rng(0)
    for shape in [(), (1,), (7, 31), (1025,), (3, 30_001)]:
        x = resilin.tensor(np.asarray(r.normal(size=shape) * 20)).to(dtype)
        t, sign = resilin.tensor(np.asarray(r.random(shape))).to(dtype), x.sign()
        for reduction in ("none", "mean", "sum"):
            for loss, other in [(F.binary_cross_entropy_with_logits, t), (F.soft_margin_loss, -sign)]:
                found = loss(x, other, reduction=reduction)
                steps = loss(x.detach().requires_grad_(), other, reduction=reduction).detach()
                assert (found.dtype, found.shape, found.requires_grad) == (steps.dtype, steps.shape, False)
                np.testing.assert_allclose(
                    found.double().numpy(), steps.double().numpy(), ROUNDING[dtype], ROUNDING[dtype]
                )


@pytest.mark.parametrize("dtype", DTYPES)
def test_logistic_losses_of_extreme_logits(dtype: Any) -> None:
    inf, nan = float("inf"), float("nan")
    x, t = resilin.tensor([100.0, -100.0, inf, -inf, nan, 0.0, -0.0]).to(dtype), resilin.tensor([1.0, 0, 0, 1, 0, 1, 0])
    found = F.binary_cross_entropy_with_logits(x, t.to(dtype), reduction="none").double().numpy()
    np.testing.assert_allclose(found, [0, 0, nan, inf, nan, np.log(2), np.log(2)], ROUNDING[dtype], 1e-30)  # inf * 0
    found = F.soft_margin_loss(x, resilin.ones(7).to(dtype), reduction="none").double().numpy()
    np.testing.assert_allclose(found, [0, 100, 0, inf, nan, np.log(2), np.log(2)], ROUNDING[dtype], 1e-30)


def test_weights_of_another_width_go_on_as_they_did() -> None:
    x = resilin.tensor(np.random.default_rng(0).normal(size=(40, 6)))
    for dtype in (resilin.float16, resilin.bfloat16):
        half, w, b = x.to(dtype), _vector(6, resilin.float32, 1), _vector(6, resilin.float32, 2)
        assert F.layer_norm(half, (6,), w, b).dtype == dtype
        assert F.batch_norm(half, w, b, w, b).dtype == dtype
        wide = F.layer_norm(half.float(), (6,), w, b).to(dtype)
        assert _bits(F.layer_norm(half, (6,), w, b)) == _bits(wide)


def test_batch_statistics_of_16_bits_reach_the_running_ones() -> None:
    x = resilin.tensor(np.random.default_rng(0).normal(size=(50, 5)) + 3).bfloat16()
    mean, var = resilin.zeros(5), resilin.ones(5)
    F.batch_norm(x, mean, var, training=True, momentum=1.0)
    np.testing.assert_allclose(mean.numpy(), x.float().mean(0).numpy(), 1e-5)
    np.testing.assert_allclose(var.numpy(), x.float().var(0).numpy(), 1e-5)
