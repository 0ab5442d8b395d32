"""Normalization with running statistics gives PyTorch's numbers; dropout of channels and alpha dropout keep theirs."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

import resilin
from resilin import nn
from resilin.errors import UsageError
from resilin.nn import functional as F

CASES = json.loads((Path(__file__).parents[1] / "fixtures" / "torch_norms.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['name']}-{case['options']}")
def test_normalization_gives_pytorchs_outputs_gradients_and_statistics(case, unpack, assert_close):
    layer = getattr(nn, case["name"])(*case["args"], **case["options"], dtype=resilin.float64)
    assert repr(layer) == case["repr"]
    layer.load_state_dict(unpack(case["before"]))
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


@pytest.mark.parametrize(
    ("layer", "shape", "says"),
    [
        (nn.InstanceNorm1d(3), (3, 1), "more than 1 spatial element"),
        (nn.InstanceNorm1d(3, affine=True), (2, 4, 5), r"num_features \(3\), but got: 4"),
        (nn.InstanceNorm2d(3), (2, 5), "expected 3D or 4D input"),
    ],
)
def test_instance_norm_refuses_shapes_that_do_not_fit(layer, shape, says):
    with pytest.raises(ValueError, match=says):
        layer(resilin.zeros(shape))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Dropout1d(0.4), (50, 20, 3)),
        (nn.Dropout1d(0.4), (1000, 3)),
        (nn.Dropout2d(0.4), (50, 20, 3, 2)),
        (nn.Dropout3d(0.4), (50, 20, 1, 2, 2)),
        (nn.Dropout3d(0.4), (1000, 1, 2, 2)),
    ],
    ids=str,
)
def test_dropout_of_channels_drops_whole_channels(layer, shape):
    resilin.manual_seed(0)
    x = resilin.ones(*shape, requires_grad=True)
    y = layer(x)
    y.sum().backward()
    assert np.array_equal(x.grad.numpy(), y.detach().numpy())
    channels = y.detach().numpy().reshape(1000, -1)
    assert (channels == channels[:, :1]).all()
    assert set(np.unique(channels)) == {np.float32(0), np.float32(1 / 0.6)}
    assert (channels[:, 0] == 0).mean() == pytest.approx(0.4, abs=0.06)
    assert layer.eval()(x) is x


def test_alpha_dropout_sets_elements_to_selus_limit_and_keeps_mean_and_variance():
    resilin.manual_seed(0)
    ones = F.alpha_dropout(resilin.ones(1000, dtype=resilin.float64), 0.5, True)
    np.testing.assert_allclose(np.unique(ones.numpy()), [-0.7791939305180315, 1.6655988251839635])  # as PyTorch gives
    y = nn.AlphaDropout(0.3)(resilin.randn(200, 200))
    assert float(y.mean()) == pytest.approx(0, abs=0.03)
    assert float(y.var()) == pytest.approx(1, abs=0.03)
    assert not F.alpha_dropout(resilin.ones(5), 1.0, True).any()


def test_feature_alpha_dropout_treats_channels_alike():
    y = nn.FeatureAlphaDropout()(resilin.ones(20, 30, 4)).numpy()
    assert (y == y[:, :, :1]).all()
    assert len(np.unique(y)) == 2


def test_dropout_refuses_wrong_probabilities_and_warns_of_wrong_shapes():
    with pytest.raises(UsageError, match=r"between 0 and 1, but got -1"):
        nn.AlphaDropout(-1)
    with pytest.raises(ValueError, match="between 0 and 1, but got 2"):
        F.dropout2d(resilin.ones(2, 2, 2, 2), 2)
    with pytest.raises(RuntimeError, match="expected 2D or 3D input, got shape"):
        F.dropout1d(resilin.ones(1, 1, 1, 1))
    with pytest.warns(UserWarning, match="dropout is meant"):
        F.dropout2d(resilin.ones(2, 3))


def test_dropout_in_place_writes_its_input():
    x = resilin.ones(40, 3, 2, 2)
    assert nn.Dropout2d(inplace=True)(x) is x
    assert math.isclose(float(x.max()), 2)
