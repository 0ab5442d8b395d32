"""The functions behind torch.nn.functional: options, reductions, errors, running statistics."""

import math
from typing import Any

import numpy as np
import pytest

import resilin
import resilin.nn.functional as F


def rand(*shape, seed=0):
    return resilin.tensor(np.random.default_rng(seed).standard_normal(shape), dtype=resilin.float64, requires_grad=True)


def test_cross_entropy_is_the_negative_log_probability():
    x = rand(5, 4)
    target = resilin.tensor([0, 3, 1, 1, 2])
    logs = F.log_softmax(x, 1).detach().numpy()
    expected = -logs[np.arange(5), target.numpy()]
    np.testing.assert_allclose(F.cross_entropy(x, target, reduction="none").detach().numpy(), expected)
    assert F.cross_entropy(x, target).item() == pytest.approx(expected.mean())
    assert F.cross_entropy(x, target, reduction="sum").item() == pytest.approx(expected.sum())
    assert F.nll_loss(F.log_softmax(x, 1), target).item() == pytest.approx(expected.mean())


def test_ignored_targets_and_weights_change_the_mean():
    x, target = rand(4, 3), resilin.tensor([0, 2, -100, 1])
    weight = resilin.tensor([1.0, 2.0, 4.0], dtype=resilin.float64)
    losses = F.cross_entropy(x, target, reduction="none").detach().numpy()
    assert losses[2] == 0
    assert F.cross_entropy(x, target).item() == pytest.approx(losses.sum() / 3)
    weighted = losses[[0, 1, 3]] * [1.0, 4.0, 2.0]
    assert F.cross_entropy(x, target, weight).item() == pytest.approx(weighted.sum() / 7)


def test_class_numbers_and_their_one_hot_probabilities_agree():
    x, target = rand(4, 3), resilin.tensor([0, 2, 2, 1])
    soft = F.one_hot(target, 3).double()
    for smoothing in (0.0, 0.2):
        a = F.cross_entropy(x, target, label_smoothing=smoothing)
        assert a.item() == pytest.approx(F.cross_entropy(x, soft, label_smoothing=smoothing).item())


def test_cross_entropy_of_images_equals_that_of_their_pixels():
    x, target = rand(2, 3, 4, 5), resilin.tensor(np.random.default_rng(1).integers(0, 3, (2, 4, 5)))
    found = F.cross_entropy(x, target, reduction="none")
    flat = F.cross_entropy(x.permute(0, 2, 3, 1).reshape(-1, 3), target.reshape(-1), reduction="none")
    np.testing.assert_allclose(found.detach().numpy().reshape(-1), flat.detach().numpy())
    assert found.shape == (2, 4, 5)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: F.cross_entropy(rand(3, 4), resilin.tensor([0, 1])), ValueError, "target of shape"),
        (lambda: F.cross_entropy(rand(3, 4), resilin.tensor([0, 1, 4])), IndexError, "target"),
        (lambda: F.cross_entropy(rand(3, 4), resilin.tensor([0, 1, 2]), reduction="avg"), ValueError, "avg"),
        (lambda: F.cross_entropy(rand(3, 4), resilin.tensor([0.0, 1, 2])), RuntimeError, "integer"),
        (lambda: F.linear(rand(2, 3), rand(4, 5)), RuntimeError, "last dimensions"),
        (lambda: F.conv2d(rand(1, 3, 5, 5), rand(2, 2, 3, 3)), RuntimeError, "2 channels, got 3"),
        (lambda: F.conv2d(rand(5, 5), rand(2, 2, 3, 3)), RuntimeError, "4D"),
        (lambda: F.conv2d(rand(1, 2, 5, 5), rand(2, 2, 3, 3), stride=2, padding="same"), RuntimeError, "strided"),
        (lambda: F.layer_norm(rand(2, 3), (4,)), RuntimeError, "normalized_shape"),
        (lambda: F.embedding(resilin.tensor([4]), rand(4, 2)), IndexError, "4 rows"),
        (lambda: F.dropout(rand(2), 1.5), ValueError, "between 0 and 1"),
        (lambda: F.batch_norm(rand(1, 3), None, None, training=True), ValueError, "more than 1 value"),
        (lambda: F.batch_norm(rand(2, 3), None, None), RuntimeError, "running_mean"),
        (lambda: F.binary_cross_entropy_with_logits(rand(2), rand(3)), ValueError, "same as input size"),
        (lambda: F.mse_loss(rand(2), rand(3)), RuntimeError, "broadcast"),
        (
            lambda: F.scaled_dot_product_attention(rand(2, 3), rand(2, 4), rand(2, 4)),
            RuntimeError,
            "do not fit",
        ),
    ],
)
def test_a_mistake_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def _naive_conv(x, w, stride, padding, dilation, groups):
    x = np.pad(x, ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2))
    N, _, H, W = x.shape
    O, C, KH, KW = w.shape
    P = (H - dilation[0] * (KH - 1) - 1) // stride[0] + 1
    Q = (W - dilation[1] * (KW - 1) - 1) // stride[1] + 1
    y = np.zeros((N, O, P, Q))
    for o in range(O):
        first = o // (O // groups) * C
        for p in range(P):
            for q in range(Q):
                rows = slice(p * stride[0], p * stride[0] + dilation[0] * (KH - 1) + 1, dilation[0])
                columns = slice(q * stride[1], q * stride[1] + dilation[1] * (KW - 1) + 1, dilation[1])
                y[:, o, p, q] = (x[:, first : first + C, rows, columns] * w[o]).sum((1, 2, 3))
    return y


@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "groups"),
    [(1, 0, 1, 1), ((2, 1), (1, 2), 1, 1), (1, 1, (2, 1), 2), (3, 0, 1, 4)],
)
def test_conv2d_equals_its_definition(stride, padding, dilation, groups):
    x, w, b = rand(2, 4, 7, 6), rand(8, 4 // groups, 3, 2, seed=1), rand(8, seed=2)
    pairs = [v if isinstance(v, tuple) else (v, v) for v in (stride, padding, dilation)]
    expected = _naive_conv(x.detach().numpy(), w.detach().numpy(), *pairs, groups) + b.detach().numpy()[:, None, None]
    found = F.conv2d(x, w, b, stride, padding, dilation, groups)
    np.testing.assert_allclose(found.detach().numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("kernel", [2, 3, (1, 4)])
def test_same_padding_keeps_the_size(kernel):
    kernel = (kernel, kernel) if isinstance(kernel, int) else kernel
    assert F.conv2d(rand(1, 2, 6, 7), rand(3, 2, *kernel), padding="same").shape == (1, 3, 6, 7)


def test_max_pool_gives_positions_and_sends_gradients_there():
    x = rand(2, 3, 5, 5)
    y, index = F.max_pool2d(x, 2, stride=2, ceil_mode=True, return_indices=True)
    flat = x.detach().numpy().reshape(2, 3, 25)
    np.testing.assert_array_equal(
        np.take_along_axis(flat, index.numpy().reshape(2, 3, -1), 2), y.detach().numpy().reshape(2, 3, -1)
    )
    assert y.shape == (2, 3, 3, 3)
    y.sum().backward()
    assert x.grad.sum().item() == 54


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("pool", [lambda x: F.avg_pool2d(x, 2), lambda x: F.adaptive_avg_pool2d(x, 2)])
def test_an_odd_pixel_reaches_only_the_averages_of_its_windows(pool, value):
    x = resilin.ones(1, 2, 4, 4)
    x[0, 0, 1, 2] = value
    np.testing.assert_array_equal(pool(x).numpy(), [[[[1, value], [1, 1]], [[1, 1], [1, 1]]]])
    g = resilin.ones(1, 2, 2, 2)
    g[0, 0, 0, 1] = value
    x = resilin.ones(1, 2, 4, 4, requires_grad=True)
    pool(x).backward(g)
    expected = np.full((1, 2, 4, 4), 0.25)
    expected[0, 0, :2, 2:] = value
    np.testing.assert_array_equal(x.grad.numpy(), expected)


def test_with_ceil_mode_a_window_may_be_larger_than_the_image():
    x = resilin.arange(4.0).reshape(1, 1, 2, 2)
    assert F.max_pool2d(x, 3, ceil_mode=True).tolist() == [[[[3.0]]]]
    assert F.avg_pool2d(x, 3, ceil_mode=True).tolist() == [[[[1.5]]]]
    assert F.avg_pool2d(x, 3, ceil_mode=True, divisor_override=2).tolist() == [[[[3.0]]]]
    assert F.max_pool2d(x, 3, 1, dilation=2, padding=2).tolist() == [[[[0, 1], [2, 3]]]]
    for pool in (F.max_pool2d, F.avg_pool2d):
        with pytest.raises(RuntimeError, match=f"^{pool.__name__}: a window of 5 does not fit an input of 2"):
            pool(x, 5, 2, ceil_mode=True)
    with pytest.raises(RuntimeError, match="divisor must be not zero"):
        F.avg_pool2d(x, 2, divisor_override=0)


def test_the_maximum_of_a_window_of_nothing_but_padding_is_minus_infinity_and_takes_no_gradient():
    x = resilin.ones(1, 1, 1, 1, requires_grad=True)
    y = F.max_pool2d(x, 2, 1, 1, dilation=2, ceil_mode=True)
    assert y.tolist() == [[[[-math.inf]]]]
    y.backward(resilin.ones(1, 1, 1, 1))
    assert x.grad.tolist() == [[[[0.0]]]]


def test_average_pools_agree_where_they_mean_the_same():
    x = rand(1, 2, 6, 6)
    expected = x.detach().numpy().reshape(1, 2, 3, 2, 3, 2).mean((3, 5))
    np.testing.assert_allclose(F.avg_pool2d(x, 2).detach().numpy(), expected)
    np.testing.assert_allclose(F.adaptive_avg_pool2d(x, 3).detach().numpy(), expected)
    corner = F.avg_pool2d(resilin.ones(1, 1, 4, 4), 3, 1, 1)[0, 0, 0, 0]
    assert corner.item() == pytest.approx(4 / 9)
    inside = F.avg_pool2d(resilin.ones(1, 1, 4, 4), 3, 1, 1, count_include_pad=False)[0, 0, 0, 0]
    assert inside.item() == pytest.approx(1.0)


def test_batch_norm_moves_the_running_statistics_and_uses_them_later():
    x = rand(6, 3, 2, 2)
    mean, var = resilin.zeros(3, dtype=resilin.float64), resilin.ones(3, dtype=resilin.float64)
    y = F.batch_norm(x, mean, var, training=True, momentum=0.25)
    values = x.detach().numpy()
    np.testing.assert_allclose(y.detach().numpy().mean((0, 2, 3)), 0, atol=1e-12)
    np.testing.assert_allclose(mean.numpy(), 0.25 * values.mean((0, 2, 3)))
    np.testing.assert_allclose(var.numpy(), 0.75 + 0.25 * values.var((0, 2, 3), ddof=1))
    fixed = F.batch_norm(x, mean, var).detach().numpy()
    along = (None, slice(None), None, None)
    np.testing.assert_allclose(fixed, (values - mean.numpy()[along]) / np.sqrt(var.numpy()[along] + 1e-5))


@pytest.mark.parametrize("kind", ["none", "causal", "bool", "float", "learned"])
def test_attention_equals_its_composition(kind):
    q, k, v = rand(2, 2, 3, 4), rand(2, 2, 3, 4, seed=1), rand(2, 2, 3, 5, seed=2)
    keep = np.array([[1, 0, 1], [1, 1, 0], [0, 1, 1]], bool)
    added = rand(3, 3, seed=3)
    masks = {"bool": resilin.tensor(keep), "float": added.detach(), "learned": added}
    y = F.scaled_dot_product_attention(q, k, v, masks.get(kind), is_causal=kind == "causal")
    scores = q @ k.transpose(-2, -1) / 2.0
    if kind in ("bool", "causal"):
        allowed = resilin.tensor(keep if kind == "bool" else np.tri(3, dtype=bool))
        scores = scores.masked_fill(~allowed, float("-inf"))
    elif kind != "none":
        scores = scores + added
    expected = scores.softmax(-1) @ v
    np.testing.assert_allclose(y.detach().numpy(), expected.detach().numpy(), atol=1e-12)
    inputs = (q, k, v, added) if kind == "learned" else (q, k, v)
    for a, b in zip(
        resilin.autograd.grad(y.exp().sum(), inputs), resilin.autograd.grad(expected.exp().sum(), inputs), strict=True
    ):
        np.testing.assert_allclose(a.numpy(), b.numpy(), atol=1e-10)


def test_embedding_gives_the_padding_row_no_gradient():
    table = rand(4, 2)
    F.embedding(resilin.tensor([[1, 3], [1, 0]]), table, padding_idx=0).sum().backward()
    np.testing.assert_array_equal(table.grad.numpy()[:, 0], [0, 2, 0, 1])


def test_einsum_takes_ellipses_and_implicit_results():
    a, b = rand(2, 3, 4), rand(2, 4, 5)
    for equation in ("bij,bjk->bik", "...ij,...jk->...ik", "bij,bjk"):
        expected = np.einsum(equation, a.detach().numpy(), b.detach().numpy())
        np.testing.assert_allclose(resilin.einsum(equation, a, b).detach().numpy(), expected)
    with pytest.raises(RuntimeError, match="names 2 operands, got 1"):
        resilin.einsum("ij,jk->ik", a)


def test_a_kernel_chosen_by_device_gives_what_the_declared_form_gives():
    x, w, b = (resilin.tensor(t.detach().numpy(), dtype=resilin.float32) for t in (rand(4, 6), rand(6), rand(6)))
    here = F.layer_norm(x, (6,), w, b)
    there = F.layer_norm(x.to("sim:1"), (6,), w.to("sim:1"), b.to("sim:1")).cpu()
    np.testing.assert_allclose(here.numpy(), there.numpy(), rtol=1e-5, atol=1e-6)


_OF_A_NUMBER = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "softmax": lambda x: F.softmax(x, 0),
    "log_softmax": lambda x: F.log_softmax(x, 0),
}


@pytest.mark.parametrize("fn", _OF_A_NUMBER.values(), ids=_OF_A_NUMBER)
def test_a_fused_activation_of_a_single_number_has_a_gradient(fn):
    x = resilin.tensor([1.0, 2.0], requires_grad=True)
    (0.5 * fn(x.sum())).backward()
    z = resilin.tensor([3.0], requires_grad=True)
    fn(z).backward(resilin.tensor([0.5]))
    np.testing.assert_allclose(x.grad.numpy(), [z.grad.item()] * 2, rtol=1e-6)


@pytest.mark.parametrize("shape", [(2, 0), (2, 4, 0), (0, 3), (0, 2, 3)])
def test_a_linear_layer_of_nothing_has_gradients(shape):
    x = resilin.ones(*shape, requires_grad=True)
    w = resilin.ones(3, shape[-1], requires_grad=True)
    b = resilin.ones(3, requires_grad=True)
    F.linear(x, w, b).sum().backward()
    rows = math.prod(shape[:-1])
    assert (x.grad.shape, w.grad.tolist(), b.grad.tolist()) == (shape, [[0.0] * shape[-1]] * 3, [rows] * 3)
    y = resilin.ones(*shape, requires_grad=True)
    v = resilin.ones(shape[-1], 3, requires_grad=True)
    (y @ v).sum().backward()
    assert (y.grad.shape, v.grad.tolist()) == (shape, [[0.0] * 3] * shape[-1])


@pytest.mark.parametrize("added", [False, True])
def test_second_derivatives_of_attention_are_finite_where_a_query_sees_no_key(added):
    mask = resilin.tensor([[True, False, False], [False] * 3, [True] * 3])
    if added:
        mask = resilin.where(mask, 0.0, -math.inf)
    resilin.manual_seed(3)
    q = resilin.randn(1, 3, 2, dtype=resilin.float64, requires_grad=True)
    out = F.scaled_dot_product_attention(q, q, q, attn_mask=mask.to(q.dtype) if added else mask)
    fused = resilin.autograd.grad((out * out).sum(), q, retain_graph=True)[0]
    recorded = resilin.autograd.grad((out * out).sum(), q, create_graph=True)[0]
    np.testing.assert_allclose(recorded.detach().numpy(), fused.numpy())
    second = resilin.autograd.grad((recorded * recorded).sum(), q)[0]
    assert np.isfinite(second.numpy()).all()
    assert resilin.autograd.gradgradcheck(
        lambda t: F.scaled_dot_product_attention(t, t, t, attn_mask=mask.to(t.dtype) if added else mask), (q,)
    )


def _leaf(values: Any) -> Any:
    return resilin.tensor(values, dtype=resilin.float64, requires_grad=True)


def _weighted(y: Any) -> Any:
    (y * resilin.arange(y.numel(), dtype=resilin.float64).reshape(y.shape)).sum().backward()


@pytest.mark.parametrize(
    ("mode", "expected", "gradient"),
    [
        ("reflect", [2, 1, 0, 1, 2, 1], [2, 9, 4]),
        ("replicate", [0, 0, 0, 1, 2, 2], [3, 3, 9]),
        ("circular", [1, 2, 0, 1, 2, 0], [7, 3, 5]),
    ],
)
def test_padding_from_inside(mode: str, expected: list[float], gradient: list[float]) -> None:
    x = _leaf([[0.0, 1, 2]])
    y = F.pad(x, (2, 1), mode)
    assert y.tolist() == [expected]
    _weighted(y)
    assert x.grad.tolist() == [gradient]
    assert F.pad(resilin.arange(4).reshape(2, 2), (0, 0, 1, 0), mode).shape == (3, 2)


def test_padding_from_inside_cannot_reach_beyond_the_input() -> None:
    with pytest.raises(RuntimeError, match="takes padding up to 2"):
        F.pad(resilin.zeros(1, 3), (3, 0), "reflect")
    with pytest.raises(ValueError, match="mode must be"):
        F.pad(resilin.zeros(1, 3), (1, 0), "mirror")


@pytest.mark.parametrize("graded", [False, True])
def test_a_mask_and_causal_order_hide_keys_together(graded: bool) -> None:
    resilin.manual_seed(1)
    q = resilin.randn(2, 3, 4, dtype=resilin.float64)
    mask = resilin.randn(3, 3, dtype=resilin.float64, requires_grad=graded)
    both = mask.masked_fill(resilin.ones(3, 3).tril() == 0, -math.inf)
    found = F.scaled_dot_product_attention(q, q, q, mask, is_causal=True)
    np.testing.assert_allclose(
        found.detach().numpy(), F.scaled_dot_product_attention(q, q, q, both).detach().numpy(), rtol=1e-12
    )
