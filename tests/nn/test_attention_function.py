"""F.multi_head_attention_forward is what the layer computes, takes ready keys and values, and names what cannot be."""

import pytest

import resilin
from resilin import nn
from resilin.errors import UsageError
from resilin.nn import functional as F
from resilin.nn.attention import SDPBackend, sdpa_kernel

LAYER = nn.MultiheadAttention(4, 2)
Q, K = resilin.randn(3, 2, 4), resilin.randn(5, 2, 4)


def attend(q=Q, k=K, v=K, **changes):
    options = {
        "embed_dim_to_check": 4,
        "num_heads": 2,
        "in_proj_weight": LAYER.in_proj_weight,
        "in_proj_bias": LAYER.in_proj_bias,
        "bias_k": None,
        "bias_v": None,
        "add_zero_attn": False,
        "dropout_p": 0.0,
        "out_proj_weight": LAYER.out_proj.weight,
        "out_proj_bias": LAYER.out_proj.bias,
    }
    return F.multi_head_attention_forward(q, k, v, **{**options, **changes})


def test_it_is_what_the_layer_computes():
    y, weights = attend()
    expected, expected_weights = LAYER(Q, K, K)
    assert resilin.equal(y, expected)
    assert resilin.equal(weights, expected_weights)
    assert attend(need_weights=False)[1] is None


def test_separate_projections_are_the_parts_of_one():
    q, k, v = LAYER.in_proj_weight.chunk(3)
    parts = {"q_proj_weight": q, "k_proj_weight": k, "v_proj_weight": v}
    got = attend(in_proj_weight=None, use_separate_proj_weight=True, **parts)[0]
    assert resilin.allclose(got, attend()[0])


def test_keys_and_values_can_be_given_head_by_head():
    _, w_k, w_v = LAYER.in_proj_weight.chunk(3)
    _, b_k, b_v = LAYER.in_proj_bias.chunk(3)
    heads = [F.linear(K, w, b).reshape(5, 4, 2).transpose(0, 1) for w, b in ((w_k, b_k), (w_v, b_v))]
    got = attend(resilin.ones_like(Q), static_k=heads[0], static_v=heads[1])[0]
    assert resilin.allclose(got, attend(resilin.ones_like(Q))[0], atol=1e-6)


MISTAKES = [
    ("2 or all have 3 dimensions", {"q": Q[0]}),
    ("width 4", {"q": resilin.ones(3, 2, 5)}),
    ("one length", {"v": resilin.ones(4, 2, 4)}),
    ("same batch", {"q": resilin.ones(3, 1, 4)}),
    ("multiple of num_heads=3", {"num_heads": 3}),
    ("in_proj_weight, or all three", {"use_separate_proj_weight": True}),
    (r"expected static_k \(4, S, 2\), got \(2, 5, 4\)", {"static_k": resilin.ones(2, 5, 4)}),
    ("attn_mask of shape", {"attn_mask": resilin.zeros(3, 4)}),
    ("key_padding_mask of shape", {"key_padding_mask": resilin.zeros(2, 3)}),
]


@pytest.mark.parametrize(("words", "changes"), MISTAKES)
def test_what_does_not_fit_is_named(words, changes):
    with pytest.raises(UsageError, match=words):
        attend(**changes)


@pytest.mark.parametrize("backends", [SDPBackend.MATH, [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]])
def test_a_choice_of_attentions_implementation_is_accepted_and_changes_nothing(backends):
    x = resilin.randn(1, 3, 4)
    with sdpa_kernel(backends):
        chosen = F.scaled_dot_product_attention(x, x, x)
    assert resilin.equal(chosen, F.scaled_dot_product_attention(x, x, x))


@pytest.mark.parametrize("backends", ["MATH", [1]])
def test_a_choice_of_attentions_implementation_must_be_one(backends):
    with pytest.raises(ValueError, match="expected an SDPBackend"), sdpa_kernel(backends):
        pass
