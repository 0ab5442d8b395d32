"""Activations give PyTorch's values, gradients, states and representations; their mistakes are named."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

import resilin
from resilin import nn
from resilin.nn import functional as F

CASES = json.loads((Path(__file__).parents[1] / "fixtures" / "torch_activations.json").read_text())
IN_PLACE = ["relu_", "threshold_", "hardtanh_", "leaky_relu_", "elu_", "celu_", "selu_"]
ARGUMENTS = {"threshold_": (0.1, 3.0)}


@pytest.fixture(params=CASES, ids=lambda case: f"{case['name']}-{case['options']}")
def case(request):
    return request.param


def test_activations_give_pytorchs_values_gradients_and_states(case, unpack, assert_close):
    layer = getattr(nn, case["name"])(**case["options"]).to(resilin.float64).eval()
    assert list(layer.state_dict()) == list(case["state"])
    layer.load_state_dict(unpack(case["state"]))
    x = unpack(case["x"]).requires_grad_()
    y = layer(x * 1)
    assert_close(y, case["y"])
    y.backward(unpack(case["g"]))
    assert_close(x.grad, case["dx"], 1e-7)  # PyTorch's hardsigmoid rounds 1/6 to float32
    for name, parameter in layer.named_parameters():
        assert_close(parameter.grad, case["grads"][name])


def test_activations_print_as_in_pytorch(case):
    assert repr(getattr(nn, case["name"])(**case["options"])) == case["repr"]


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_forms_write_into_their_input_and_give_the_same_gradient(name):
    x = resilin.tensor([[-1.5, -0.25, 0.0], [0.25, 1.5, 7.0]], dtype=resilin.float64, requires_grad=True)
    arguments = ARGUMENTS.get(name, ())
    expected = getattr(F, name[:-1])(x, *arguments)
    (slope,) = resilin.autograd.grad(expected.sum(), x)
    made = x * 1
    assert getattr(F, name)(made, *arguments) is made
    np.testing.assert_array_equal(made.detach().numpy(), expected.detach().numpy())
    (found,) = resilin.autograd.grad(made.sum(), x)
    np.testing.assert_array_equal(found.numpy(), slope.numpy())


def test_rrelu_draws_slopes_between_its_bounds_in_training_only():
    resilin.manual_seed(3)
    x = -resilin.ones(1000, requires_grad=True)
    y = F.rrelu(x, 0.2, 0.4, training=True)
    assert -0.4 <= y.min().item() < -0.39
    assert -0.21 < y.max().item() <= -0.2
    (g,) = resilin.autograd.grad(y.sum(), x)
    np.testing.assert_allclose(g.numpy(), -y.detach().numpy(), rtol=1e-6)
    assert F.rrelu(x, 0.2, 0.4).tolist() == pytest.approx([-0.3] * 1000)
    assert nn.RReLU()(resilin.ones(5)).tolist() == [1.0] * 5


def test_gumbel_softmax_picks_each_class_as_often_as_softmax_says():
    resilin.manual_seed(5)
    logits = resilin.tensor([0.0, 1.0, 2.0]).expand(20000, 3)
    picked = F.gumbel_softmax(logits, hard=True)
    assert set(picked.unique().tolist()) == {0.0, 1.0}
    expected = F.softmax(resilin.tensor([0.0, 1.0, 2.0]), 0)
    np.testing.assert_allclose(picked.mean(0).numpy(), expected.numpy(), atol=0.015)


def test_hard_gumbel_softmax_has_the_gradient_of_the_soft_one():
    x = resilin.tensor([[0.3, -1.0, 0.2]], dtype=resilin.float64, requires_grad=True)
    factor = resilin.tensor([[1.0, 2.0, 4.0]], dtype=resilin.float64)
    slopes = []
    for hard in (False, True):
        resilin.manual_seed(1)
        (g,) = resilin.autograd.grad((F.gumbel_softmax(x, 0.7, hard) * factor).sum(), x)
        slopes.append(g.numpy())
    np.testing.assert_allclose(slopes[1], slopes[0], rtol=1e-12)


@pytest.mark.parametrize("name", ["hardtanh", "hardswish", "hardsigmoid", "softshrink", "hardshrink", "elu", "mish"])
def test_nan_stays_nan(name):
    assert math.isnan(getattr(F, name)(resilin.tensor(math.nan)).item())


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: F.elu(resilin.tensor([1])), NotImplementedError, "elu: supported are floating point"),
        (lambda x: F.mish([1.0]), TypeError, "must be a Tensor, got list"),
        (lambda x: F.hardtanh(x, 1.0, -1.0), ValueError, "min_val cannot be greater"),
        (lambda x: nn.Hardtanh(1.0, 1.0), ValueError, "max_val must exceed"),
        (lambda x: F.softshrink(x, -1.0), RuntimeError, "found -1.0"),
        (lambda x: F.rrelu(x, 0.5, 0.1), RuntimeError, "lower must be less"),
        (lambda x: F.celu(x, 0.0), RuntimeError, "alpha cannot be 0"),
        (lambda x: F.glu(x), RuntimeError, "dimension 1 is size 3"),
        (lambda x: F.glu(resilin.tensor(1.0)), RuntimeError, "scalars"),
        (lambda x: F.glu(x, 2), IndexError, "range"),
        (lambda x: F.prelu(x, resilin.ones(2)), RuntimeError, r"2 parameters and 3 channels in input \(2, 3\)"),
        (lambda x: F.prelu(x, resilin.ones(3, 1)), RuntimeError, "ndim = 2"),
        (lambda x: F.prelu(x, resilin.ones(3, dtype=resilin.float64)), RuntimeError, "type promoting"),
        (lambda x: nn.Softmax2d()(x), ValueError, "3D or 4D, got 2D"),
        (lambda x: F.elu_(resilin.ones(2, requires_grad=True)), RuntimeError, "leaf Variable"),
    ],
)
def test_mistakes_are_named(call, error, words):
    with pytest.raises(error, match=words):
        call(resilin.ones(2, 3))


def test_hardtanhs_old_argument_names_work_with_a_warning():
    with pytest.warns(FutureWarning, match="min_value"):
        layer = nn.Hardtanh(min_value=-2.0)
    assert repr(layer) == "Hardtanh(min_val=-2.0, max_val=1.0)"
