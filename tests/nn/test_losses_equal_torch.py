"""Losses beyond the usual ones give PyTorch's values and gradients; old arguments, weights and mistakes."""

import json
from pathlib import Path

import numpy as np
import pytest

import resilin
from resilin import nn
from resilin.core.autograd.gradcheck import gradgradcheck
from resilin.nn import functional as F

CASES = json.loads((Path(__file__).parents[1] / "fixtures" / "torch_other_losses.json").read_text())


@pytest.mark.filterwarnings("ignore:kl_div.*batchmean")
@pytest.mark.parametrize("case", CASES, ids=[f"{number}-{case['name']}" for number, case in enumerate(CASES)])
def test_losses_give_pytorchs_values_gradients_and_representations(case, unpack, assert_close):
    layer = getattr(nn, case["name"])(**unpack(case["options"]))
    assert repr(layer) == case["repr"]
    assert list(layer.state_dict()) == case["state"]
    inputs = [x.requires_grad_() for x in unpack(case["inputs"])]
    targets = unpack(case["targets"])
    if case["name"] == "GaussianNLLLoss":
        loss = layer(inputs[0], *targets, inputs[1])
    else:
        loss = layer(*inputs, *targets)
    assert_close(loss, case["loss"])
    loss.sum().backward()
    for x, expected in zip(inputs, case["dx"], strict=True):
        assert_close(x.grad, expected, 1e-7)


def rand(*shape, seed=0):
    return resilin.tensor(np.random.default_rng(seed).standard_normal(shape), requires_grad=True)


SIGNS = resilin.tensor([[1.0, -1.0, 1.0], [-1.0, 1.0, -1.0]], dtype=resilin.float64)
TWICE = {
    "huber": lambda x: F.huber_loss(x, SIGNS, delta=0.7),
    "hinge_embedding": lambda x: F.hinge_embedding_loss(x, SIGNS),
    "soft_margin": lambda x: F.soft_margin_loss(x, SIGNS),
    "cosine_embedding": lambda x: F.cosine_embedding_loss(x, SIGNS, resilin.tensor([1, -1]), -0.5),
    "multi_margin": lambda x: F.multi_margin_loss(x, resilin.tensor([0, 2]), p=2),
    "multilabel_margin": lambda x: F.multilabel_margin_loss(x, resilin.tensor([[0, -1, 0], [2, 1, -1]])),
    "triplet_margin": lambda x: F.triplet_margin_loss(x, SIGNS, -SIGNS, margin=9.0),
    "poisson_nll": lambda x: F.poisson_nll_loss(x, SIGNS + 2, full=True),
    "gaussian_nll": lambda x: F.gaussian_nll_loss(x, SIGNS, x.square() + 1),
    "multilabel_soft_margin": lambda x: F.multilabel_soft_margin_loss(x, (SIGNS + 1) / 2),
    "soft cross_entropy": lambda x: F.cross_entropy(x, F.softmax(SIGNS, 1), label_smoothing=0.1),
}


@pytest.mark.parametrize("name", TWICE)
def test_losses_can_be_differentiated_twice(name):
    assert gradgradcheck(TWICE[name], (rand(2, 3),))


@pytest.mark.parametrize(
    ("old", "reduction"),
    [
        ({"size_average": True}, "mean"),
        ({"size_average": False}, "sum"),
        ({"reduce": False}, "none"),
        ({"reduce": True, "size_average": False}, "sum"),
    ],
)
def test_old_arguments_mean_a_reduction_and_warn(old, reduction):
    x, y = rand(2, 3), rand(2, 3, seed=1)
    with pytest.warns(UserWarning, match=f"reduction='{reduction}'"):
        found = F.mse_loss(x, y, **old)
    assert found.tolist() == F.mse_loss(x, y, reduction=reduction).tolist()
    with pytest.warns(UserWarning, match=f"reduction='{reduction}'"):
        assert nn.L1Loss(**old).reduction == reduction


@pytest.mark.parametrize("loss", [F.mse_loss, F.l1_loss])
def test_the_mean_of_weighted_losses_is_divided_by_the_weights(loss):
    x, y, weight = rand(2, 3), rand(2, 3, seed=1), rand(2, 3, seed=2).square()
    losses = (loss(x, y, reduction="none") * weight).detach().numpy()
    np.testing.assert_allclose(loss(x, y, weight=weight, reduction="none").detach().numpy(), losses)
    assert loss(x, y, weight=weight).item() == pytest.approx(losses.sum() / weight.detach().numpy().sum())
    assert F.huber_loss(x, y, weight=weight).item() == pytest.approx(
        (F.huber_loss(x, y, reduction="none") * weight).mean().item()
    )


def test_linear_cross_entropy_is_linear_then_cross_entropy():
    x, w, b = rand(4, 3), rand(5, 3, seed=1), rand(5, seed=2)
    target = resilin.tensor([0, 4, 2, 2])
    expected = F.cross_entropy(F.linear(x, w, b), target, ignore_index=2)
    found = F.linear_cross_entropy(x, w, target, linear_bias=b, ignore_index=2)
    assert found.item() == expected.item()
    many = F.linear_cross_entropy(x, rand(5, 2, 3, seed=1), resilin.tensor([[0, 4]] * 4), reduction="none")
    assert many.shape == (4, 2)
    with pytest.raises(NotImplementedError, match="options=None"):
        F.linear_cross_entropy(x, w, target, options=())
    with pytest.raises(RuntimeError, match=r"got \(4, 3\) and \(5, 4\)"):
        F.linear_cross_entropy(x, rand(5, 4), target)


def test_the_linear_cross_entropy_module_has_pytorchs_text_and_state():
    layer = nn.LinearCrossEntropyLoss(4, 3, bias=True, out_features=(2,), weight=resilin.ones(3))
    assert repr(layer) == (
        "LinearCrossEntropyLoss(\n  in_features=4, num_classes=3, out_features=(2,), bias=True, reduction=mean, "
        "ignore_index=None, label_smoothing=0.0, options=None\n"
        "  (linear): Linear(in_features=4, out_features=6, bias=True)\n)"
    )
    assert list(layer.state_dict()) == ["weight", "linear.weight", "linear.bias"]
    x, target = resilin.randn(5, 4), resilin.tensor([[0, 2]] * 5)
    expected = F.cross_entropy(layer.linear(x).reshape(5, 3, 2), target)
    assert layer(x, target).item() == pytest.approx(expected.item())


X = rand(2, 3)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: F.soft_margin_loss(X, rand(4)), RuntimeError, r"soft_margin_loss: the shapes \(2, 3\) and \(4,\)"),
        (lambda: F.hinge_embedding_loss(X, 1.0), TypeError, "'target' must be a Tensor"),
        (lambda: F.margin_ranking_loss(X, X, rand(3)), RuntimeError, "same number of dimensions"),
        (lambda: F.cosine_embedding_loss(X, X, SIGNS), RuntimeError, r"target \(N,\)"),
        (lambda: F.multi_margin_loss(X, resilin.tensor([0, 3])), RuntimeError, "out of range 0 to 2"),
        (lambda: F.multi_margin_loss(X, resilin.tensor([0])), RuntimeError, r"expected target \(2,\)"),
        (lambda: F.multi_margin_loss(X, resilin.tensor([0, 1]), p=3), ValueError, "only p == 1 and p == 2"),
        (lambda: F.multi_margin_loss(rand(2, 3, 4), resilin.tensor([0, 1])), RuntimeError, r"\(N, C\) or \(C,\)"),
        (lambda: nn.MultiMarginLoss(p=3), ValueError, "got 3"),
        (lambda: F.multilabel_margin_loss(X, resilin.tensor([0, 1])), RuntimeError, r"expected target \(2, 3\)"),
        (lambda: F.multilabel_margin_loss(X, resilin.full((2, 3), 3)), RuntimeError, "out of range -1 to 2"),
        (lambda: F.triplet_margin_loss(X, X, X, margin=0.0), ValueError, "margin must be greater than 0"),
        (lambda: F.triplet_margin_loss(X, X, rand(3)), RuntimeError, "same number of dimensions"),
        (lambda: nn.TripletMarginLoss(margin=-1.0), ValueError, "greater than 0"),
        (lambda: F.gaussian_nll_loss(X, X, -1.0), ValueError, "negative"),
        (lambda: F.gaussian_nll_loss(X, X, rand(4).square()), ValueError, "incorrect size"),
        (lambda: F.poisson_nll_loss(X, X, reduction="avg"), ValueError, "avg is not a valid"),
        (lambda: F.huber_loss(X, X, delta=0.0), RuntimeError, "non-positive"),
        (lambda: F.mse_loss(X, X, weight=rand(3)), ValueError, "same size"),
        (lambda: nn.CTCLoss(reduction="avg"), ValueError, "avg is not a valid"),
    ],
)
def test_mistakes_are_named(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_the_older_name_of_nll_loss_works_with_a_warning():
    with pytest.warns(FutureWarning, match="NLLLoss2d"):
        layer = nn.NLLLoss2d()
    assert layer(F.log_softmax(rand(1, 3, 2, 2), 1), resilin.zeros(1, 2, 2, dtype=resilin.int64)).ndim == 0
