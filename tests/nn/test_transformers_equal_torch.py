"""Transformers, bags of embeddings and Bilinear give PyTorch's outputs, gradients and representations."""

import json
from pathlib import Path

import pytest

import resilin
from resilin import autograd, nn
from resilin.nn import functional as F

FIXTURES = Path(__file__).parents[1] / "fixtures"


def recorded(name):
    cases = json.loads((FIXTURES / f"torch_{name}.json").read_text())
    return [pytest.param(case, id=f"{number}-{case.get('name', name)}") for number, case in enumerate(cases)]


def check(case, layer, unpack, assert_close, *more, **masks):
    layer.to(resilin.float64).load_state_dict(unpack(case["before"]))
    assert list(layer.state_dict()) == list(case["before"])
    inputs = [x.requires_grad_() for x in unpack(case["inputs"])]
    y = layer(*inputs, *more, **masks)
    assert_close(y, case["y"])
    y.backward(unpack(case["g"]))
    for x, expected in zip(inputs, case["dx"], strict=True):
        assert_close(x.grad, expected)
    for name, parameter in layer.named_parameters():
        assert_close(parameter.grad, case["grads"][name])


@pytest.mark.parametrize("case", recorded("transformers"))
def test_transformers_give_pytorchs_outputs_and_gradients(case, unpack, assert_close):
    layer = getattr(nn, case["name"])(4, 2, **case["options"])
    assert repr(layer) == case["repr"]
    check(case, layer, unpack, assert_close, **unpack(case["masks"]))


@pytest.mark.parametrize("case", recorded("bilinears"))
def test_bilinear_gives_pytorchs_outputs_and_gradients(case, unpack, assert_close):
    layer = nn.Bilinear(2, 3, 4, bias=case["bias"])
    assert repr(layer) == case["repr"]
    check(case, layer, unpack, assert_close)


@pytest.mark.parametrize("case", recorded("bags"))
def test_bags_of_embeddings_give_pytorchs_outputs_and_gradients(case, unpack, assert_close):
    layer = nn.EmbeddingBag(6, 3, **case["options"]).to(resilin.float64)
    assert repr(layer) == case["repr"]
    layer.load_state_dict(unpack(case["before"]))
    weights = unpack(case["weights"])
    weights = None if weights is None else weights.requires_grad_()
    y = layer(unpack(case["index"]), unpack(case["offsets"]), weights)
    assert_close(y, case["y"])
    y.backward(unpack(case["g"]))
    assert_close(layer.weight.grad, case["dw"])
    if weights is not None:
        assert_close(weights.grad, case["dweights"])


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_can_be_differentiated_twice(mode):
    weight = resilin.randn(5, 2, dtype=resilin.float64, requires_grad=True)
    index, offsets = resilin.tensor([0, 3, 3, 4]), resilin.tensor([0, 0, 3])
    assert autograd.gradcheck(lambda w: F.embedding_bag(index, w, offsets, mode=mode), (weight,))
    assert autograd.gradgradcheck(lambda w: F.embedding_bag(index, w, offsets, mode=mode) ** 2, (weight,))


def test_gradients_of_a_bag_are_divided_by_how_often_a_row_occurs_if_asked():
    # not recorded: PyTorch's CPU kernel divides by the counts of other rows (it reads them at the wrong place)
    weight = resilin.ones(5, 2, requires_grad=True)
    F.embedding_bag(
        resilin.tensor([4, 1, 1, 1]), weight, resilin.tensor([0, 2]), mode="sum", scale_grad_by_freq=True
    ).sum().backward()
    assert weight.grad[:, 0].tolist() == [0, 1, 0, 0, 1]


def test_a_pretrained_bag_shares_its_table_and_is_frozen():
    table = resilin.ones(3, 2)
    bag = nn.EmbeddingBag.from_pretrained(table, mode="sum")
    assert not bag.weight.requires_grad
    assert bag(resilin.tensor([[0, 2]])).tolist() == [[2.0, 2.0]]


def test_the_causal_mask_is_found_out_and_changes_nothing():
    resilin.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0), 2)
    x, mask = resilin.randn(3, 2, 4), nn.Transformer.generate_square_subsequent_mask(3)
    found = encoder(x, mask)
    assert found.tolist() == encoder(x, mask, is_causal=True).tolist()
    assert resilin.allclose(found, encoder(x, mask, is_causal=False), atol=1e-6)
    assert resilin.allclose(found, encoder(x, mask < 0), atol=1e-6)
    assert not resilin.allclose(found, encoder(x), atol=1e-3)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: nn.TransformerEncoderLayer(4, 2, activation="tanh"), RuntimeError, "tanh"),
        (lambda: nn.Transformer(4, 2, 1, 1, 8)(resilin.ones(3, 2, 4), resilin.ones(3, 1, 4)), RuntimeError, "batch"),
        (lambda: nn.Transformer(4, 2, 1, 1, 8)(resilin.ones(3, 2, 4), resilin.ones(3, 2, 5)), RuntimeError, "d_model"),
        (lambda: nn.EmbeddingBag(3, 2)(resilin.tensor([1])), ValueError, "offsets"),
        (lambda: nn.EmbeddingBag(3, 2)(resilin.tensor([[1]]), resilin.tensor([0])), ValueError, "offsets"),
        (lambda: nn.EmbeddingBag(3, 2)(resilin.tensor([1]), resilin.tensor([1])), RuntimeError, "ascend"),
        (lambda: nn.EmbeddingBag(3, 2)(resilin.tensor([[3]])), IndexError, "3 rows"),
        (lambda: nn.EmbeddingBag(3, 2, mode="min")(resilin.tensor([[1]])), ValueError, "min"),
        (lambda: nn.EmbeddingBag(3, 2, sparse=True), NotImplementedError, "sparse"),
        (
            lambda: nn.EmbeddingBag(3, 2)(resilin.tensor([[1]]), None, resilin.ones(1, 1)),
            NotImplementedError,
            "per_sample_weights",
        ),
        (lambda: nn.Bilinear(2, 3, 4)(resilin.ones(1, 2), resilin.ones(1, 2)), RuntimeError, "bilinear"),
        (lambda: nn.Bilinear(2, 3, 4)(resilin.ones(1, 2), resilin.ones(2, 3)), RuntimeError, "bilinear"),
    ],
)
def test_mistakes_are_named_at_the_call(call, error, text):
    with pytest.raises(error, match=text):
        call()
