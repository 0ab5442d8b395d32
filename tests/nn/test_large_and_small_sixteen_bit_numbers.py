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


# The running mean and variance after two batches, and the second one normalized. PyTorch's for float16; for bfloat16,
# where it rounds the batch's statistics before it uses them, float64's rounded once.
BATCH_NORM = {
    resilin.float16: (
        [25.828125, -0.019012451171875],
        [17264.0, 0.86328125],
        [[1.384765625, 0.462890625], [-0.94140625, 0.92578125], [-0.443115234375, -1.388671875]],
    ),
    resilin.bfloat16: (
        [25.875, -0.0189208984375],
        [17280.0, 0.86328125],
        [[1.3828125, 0.462890625], [-0.94140625, 0.92578125], [-0.443359375, -1.390625]],
    ),
}


@pytest.mark.parametrize("dtype", NARROW)
def test_batch_norm_does_not_round_its_momentum_nor_what_is_in_between(dtype):
    layer = nn.BatchNorm1d(2).to(dtype)
    for scale in (1, 2):
        y = layer(resilin.tensor([[300.0 * scale, 0.1], [-100.0, 0.3], [50.0, -0.7]], dtype=dtype))
    assert (layer.running_mean.tolist(), layer.running_var.tolist(), y.tolist()) == BATCH_NORM[dtype]
    expected = {resilin.float16: [[2.0859375, 0.1280517578125]], resilin.bfloat16: [[2.078125, 0.1279296875]]}
    assert layer.eval()(resilin.tensor([[300.0, 0.1]], dtype=dtype)).tolist() == expected[dtype]  # PyTorch's


@pytest.mark.parametrize("dtype", NARROW)
def test_weight_norm_squares_in_float32(dtype):
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 1, bias=False)).to(dtype)
    parts = layer.parametrizations.weight
    with resilin.no_grad():
        parts.original0.fill_(0.7)
        parts.original1.copy_(resilin.tensor([[300.0, -400.0, 0.1]], dtype=dtype))
    expected = {  # PyTorch's
        resilin.float16: [[0.420166015625, -0.56005859375, 0.0001399517059326172]],
        resilin.bfloat16: [[0.419921875, -0.55859375, 0.00014019012451171875]],
    }
    assert layer.weight.tolist() == expected[dtype]


@pytest.mark.parametrize("dtype", NARROW)
def test_spectral_norm_and_attentions_weights_are_those_of_float32_rounded_once(dtype):
    x = (resilin.arange(12).reshape(3, 4) * 37).to(dtype)
    u, v = x[:, 0] / 128, x[0] / 128
    made = nn.utils.parametrizations.divided_by_norm
    assert made(x, x, u, v).tolist() == made(x.float(), x.float(), u.float(), v.float()).to(dtype).tolist()
    attention = nn.MultiheadAttention(4, 2, batch_first=True).to(dtype)
    with resilin.no_grad():  # the queries and keys are the input itself, doubled
        attention.in_proj_weight.copy_(resilin.cat([resilin.eye(4)] * 3) * 2)
    rows = resilin.tensor([[[0.1, 2.3, -1.7, 0.7], [3.1, 0.3, 0.2, -0.4]]], dtype=dtype)
    weights = attention(rows, rows, rows, average_attn_weights=False)[1]
    heads = (rows.float() * 2).reshape(2, 2, 2).transpose(0, 1)
    expected = ((heads @ heads.transpose(1, 2)) / 2**0.5).softmax(-1)
    assert weights[0].tolist() == expected.to(dtype).tolist()


@pytest.mark.parametrize("dtype", NARROW)
def test_dropout_does_not_round_its_factor(dtype):
    x = resilin.full((1000,), 3.0, dtype=dtype)
    for drop in (F.dropout, resilin.feature_dropout):
        resilin.manual_seed(0)
        found = set(drop(x.reshape(100, 10), 0.3, True).flatten().tolist())
        assert found == {0.0, resilin.tensor(3.0 / 0.7).to(dtype).item()}


@pytest.mark.parametrize("dtype", NARROW)
def test_gradients_of_heads_that_share_keys_are_added_in_float32(dtype):
    q, k, v = (
        resilin.tensor(np.random.default_rng(i).standard_normal((1, 8 >> 3 * (i > 0), 3, 2)), dtype=dtype)
        for i in range(3)
    )
    wide = [part.float().requires_grad_() for part in (q, k, v)]
    narrow = [part.clone().requires_grad_() for part in (q, k, v)]
    for parts in (wide, narrow):
        F.scaled_dot_product_attention(*parts, enable_gqa=True).sum().backward()
    for found, expected in zip(narrow, wide, strict=True):
        assert found.grad.tolist() == expected.grad.to(dtype).tolist()
