"""Layers of 16-bit floats whose squares do not fit into 16 bits: PyTorch's numbers, which are computed in float32."""

import numpy as np
import pytest

import resilin
import resilin.nn.functional as F
from resilin import nn

NARROW = [resilin.float16, resilin.bfloat16]
TOLERANCE = {resilin.float16: 2e-3, resilin.bfloat16: 2e-2}


def _rows(scale, dtype):
    values = np.random.default_rng(0).standard_normal((2, 3, 8)) * scale
    return (resilin.tensor(v, dtype=dtype) for v in values)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("scale", [3000.0, 1.0])
def test_rms_norm_squares_in_float32(scale, dtype):
    x, weight = _rows(scale, dtype)
    weight = weight[0] / scale
    out = F.rms_norm(x.requires_grad_(), (8,), weight)
    assert out.dtype == dtype
    (grad,) = resilin.autograd.grad(out.sum(), x)
    wide = x.detach().double().requires_grad_()
    expected = F.rms_norm(wide, (8,), weight.double(), eps=2.0**-23)
    (slope,) = resilin.autograd.grad(expected.sum(), wide)
    np.testing.assert_allclose(
        out.detach().double().numpy(), expected.detach().numpy(), rtol=TOLERANCE[dtype], atol=1e-3
    )
    np.testing.assert_allclose(
        grad.double().numpy() * scale, slope.numpy() * scale, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
    )


@pytest.mark.parametrize("dtype", NARROW)
def test_rms_norm_without_eps_adds_that_of_float32(dtype):
    x = resilin.tensor([1e-3, 2e-3], dtype=dtype)
    expected = nn.RMSNorm(2, eps=2.0**-23)(x.float())
    found = nn.RMSNorm(2, dtype=dtype)(x)
    np.testing.assert_allclose(found.detach().float().numpy(), expected.detach().numpy(), rtol=TOLERANCE[dtype])


@pytest.mark.parametrize(
    ("dtype", "weight"),
    [(resilin.float32, resilin.float64), (resilin.float64, resilin.float32), (resilin.bfloat16, resilin.float32)],
)
def test_rms_norm_keeps_the_dtype_of_its_input_whatever_the_weights(dtype, weight):
    assert F.rms_norm(resilin.ones(2, dtype=dtype), (2,), resilin.ones(2, dtype=weight)).dtype == dtype


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("scale", [3000.0, 1.0])
def test_cosine_similarity_multiplies_in_float32(scale, dtype):
    a, b = _rows(scale, dtype)
    found = F.cosine_similarity(a.requires_grad_(), b, 1)
    assert found.dtype == dtype
    (grad,) = resilin.autograd.grad(found.sum(), a)
    assert grad.dtype == dtype
    assert bool(grad.isfinite().all())
    expected = F.cosine_similarity(a.detach().double(), b.double(), 1)
    np.testing.assert_allclose(
        found.detach().double().numpy(), expected.numpy(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
    )
