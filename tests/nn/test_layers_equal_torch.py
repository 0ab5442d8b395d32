"""Layers and losses give PyTorch's outputs, gradients, buffers and representations."""

import pytest

import resilin
from resilin import nn
from resilin.nn import functional as F


def load(layer, state):
    layer.to(resilin.float64)
    layer.load_state_dict(state)
    return layer


def test_layers_give_pytorchs_outputs_gradients_and_buffers(layer_case, unpack, assert_close):
    case = layer_case
    layer = getattr(nn, case["name"])(*unpack(case["args"]), **unpack(case["options"]))
    load(layer, unpack(case["before"]))
    x = unpack(case["x"]).requires_grad_()
    y = layer(x)
    assert_close(y, case["y"])
    y.backward(unpack(case["g"]))
    assert_close(x.grad, case["dx"])
    for name, parameter in layer.named_parameters():
        assert_close(parameter.grad, case["grads"][name])
    assert list(layer.state_dict()) == list(case["after"])
    for name, value in layer.state_dict().items():
        assert_close(value, case["after"][name])
    assert_close(layer.eval()(x), case["y_eval"])


def test_layers_in_float32_agree_within_rounding(layer_case, unpack, assert_close):
    case = layer_case
    layer = getattr(nn, case["name"])(*unpack(case["args"]), **unpack(case["options"]))
    layer.load_state_dict(
        {
            name: value.to(resilin.float32) if value.is_floating_point() else value
            for name, value in unpack(case["before"]).items()
        }
    )
    x = unpack(case["x"]).to(resilin.float32).requires_grad_()
    y = layer(x)
    assert y.dtype is resilin.float32
    assert_close(y, case["y"], 2e-5)
    y.backward(unpack(case["g"]).to(resilin.float32))
    assert_close(x.grad, case["dx"], 1e-4)
    for name, parameter in layer.named_parameters():
        assert_close(parameter.grad, case["grads"][name], 1e-4)


def test_layers_print_as_in_pytorch(layer_case, unpack):
    layer = getattr(nn, layer_case["name"])(*unpack(layer_case["args"]), **unpack(layer_case["options"]))
    assert repr(layer) == layer_case["repr"]


def test_embedding_equals_pytorchs(embedding_case, unpack, assert_close):
    case = embedding_case
    layer = load(nn.Embedding(5, 3, **case["options"]), unpack(case["before"]))
    assert repr(layer) == case["repr"]
    y = layer(unpack(case["index"]))
    assert_close(y, case["y"])
    y.backward(unpack(case["g"]))
    assert_close(layer.weight.grad, case["dw"])


@pytest.mark.filterwarnings("ignore:kl_div.*batchmean")
def test_losses_equal_pytorchs(loss_case, unpack, assert_close):
    case = loss_case
    loss_fn = getattr(nn, case["name"])(**unpack(case["options"]))
    x = unpack(case["x"]).requires_grad_()
    loss = loss_fn(x, unpack(case["target"]))
    assert_close(loss, case["loss"])
    loss.backward(resilin.ones_like(loss))
    assert_close(x.grad, case["dx"])


def test_attention_equals_pytorchs(attention_case, unpack, assert_close):
    case = attention_case
    layer = load(nn.MultiheadAttention(4, 2, **case["options"]), unpack(case["before"]))
    inputs = [x.requires_grad_() for x in unpack(case["inputs"])]
    y, weights = layer(*inputs, **unpack(case["masks"]), **case["call"])
    assert_close(y, case["y"])
    assert (weights is None) == (case["weights"] is None)
    if weights is not None:
        assert_close(weights, case["weights"])
    y.backward(unpack(case["g"]))
    for x, expected in zip(inputs, case["dx"], strict=True):
        assert_close(x.grad, expected)
    for name, parameter in layer.named_parameters():
        assert_close(parameter.grad, case["grads"][name])


def test_scaled_dot_product_attention_equals_pytorchs(sdpa_case, unpack, assert_close):
    case = sdpa_case
    y = F.scaled_dot_product_attention(*(unpack(case[name]) for name in "qkv"), **unpack(case["options"]))
    assert_close(y, case["y"])


def test_self_attention_with_one_projection_equals_three(unpack):
    layer = nn.MultiheadAttention(4, 2, batch_first=True)
    x = resilin.randn(2, 3, 4)
    one, _ = layer(x, x, x)
    three, _ = layer(x, x.clone(), x.clone())
    assert resilin.allclose(one, three, atol=1e-6)


def test_causal_attention_needs_no_mask():
    layer = nn.MultiheadAttention(4, 2, batch_first=True)
    x = resilin.randn(2, 5, 4)
    mask = resilin.ones(5, 5, dtype=resilin.bool).triu(1)
    masked, weights = layer(x, x, x, attn_mask=mask)
    fast, none = layer(x, x, x, is_causal=True, need_weights=False)
    slow, again = layer(x, x, x, is_causal=True)
    assert none is None
    assert resilin.allclose(fast, masked, atol=1e-6)
    assert resilin.allclose(slow, masked, atol=1e-6)
    assert resilin.allclose(weights, again, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: nn.MultiheadAttention(5, 2), "multiple of num_heads=2"),
        (lambda: nn.Conv2d(3, 4, 3, groups=2), "multiples of groups=2"),
        (lambda: nn.Conv2d(3, 4, 3, padding="same", stride=2), "needs stride 1"),
        (lambda: nn.Conv2d(3, 4, 3, padding="full"), "'same', 'valid' or a number"),
        (lambda: nn.Conv2d(3, 4, (1, 2, 3)), "one integer or two"),
        (lambda: nn.Dropout(1.5), "between 0 and 1"),
        (lambda: nn.Embedding(3, 2, padding_idx=3), "outside of 3 rows"),
        (lambda: nn.MSELoss(reduction="average"), "average is not a valid"),
        (lambda: nn.BatchNorm2d(3)(resilin.ones(2, 3)), r"expected 4D input, got shape \(2, 3\)"),
        (lambda: nn.BatchNorm1d(3)(resilin.ones(1, 3)), "more than 1 value per channel"),
    ],
)
def test_mistakes_are_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()
