"""Convolution, pooling, padding and resampling give PyTorch's outputs, positions, gradients and representations."""

import json
from pathlib import Path

import pytest

import resilin
from resilin import nn
from resilin.nn import functional as F

FIXTURES = Path(__file__).parents[1] / "fixtures"


def cases(file):
    loaded = json.loads((FIXTURES / f"torch_{file}.json").read_text())
    return [pytest.param(case, id=f"{number}-{case['name']}") for number, case in enumerate(loaded)]


@pytest.mark.parametrize(
    "case",
    cases("convolutions") + cases("poolings") + cases("resamplings"),
)
def test_functions_give_pytorchs_outputs_positions_and_gradients(case, unpack, assert_close):
    inputs = [x.requires_grad_() for x in unpack(case["inputs"])]
    outputs = getattr(F, case["name"])(*inputs, **unpack(case["options"]))
    y, index = outputs if isinstance(outputs, tuple) else (outputs, None)
    assert_close(y, case["y"])
    assert (index is None) == (case["index"] is None)
    if index is not None:
        assert_close(index, case["index"])
    y.backward(unpack(case["g"]))
    for x, expected in zip(inputs, case["grads"], strict=True):
        if expected is not None:
            assert_close(x.grad, expected)


@pytest.mark.parametrize("case", cases("unpoolings"))
def test_unpooling_puts_values_where_pooling_took_them(case, unpack, assert_close):
    y = unpack(case["y"]).requires_grad_()
    back = getattr(F, case["name"])(y, unpack(case["index"]), 2, output_size=case["size"])
    assert_close(back, case["back"])
    back.backward(resilin.ones_like(back) * 3)
    assert_close(y.grad, {**case["y"], "data": [3.0] * len(case["y"]["data"])})


@pytest.mark.parametrize("case", cases("fractional_poolings"))
def test_fractional_pooling_takes_pytorchs_windows_for_the_same_samples(case, unpack, assert_close):
    x = unpack(case["x"]).requires_grad_()
    y, index = getattr(F, case["name"])(x, 2, _random_samples=unpack(case["samples"]), **unpack(case["call"]))
    assert_close(y, case["y"])
    assert_close(index, case["index"])
    y.backward(unpack(case["g"]))
    assert_close(x.grad, case["dx"])


@pytest.mark.parametrize("case", cases("window_layers"))
def test_layers_give_pytorchs_outputs_gradients_names_and_text(case, unpack, assert_close):
    layer = getattr(nn, case["name"])(*unpack(case["args"]), **unpack(case["options"])).to(resilin.float64)
    assert repr(layer) == case["repr"]
    assert list(layer.state_dict()) == list(case["state"])
    layer.load_state_dict(unpack(case["state"]))
    x = unpack(case["x"]).requires_grad_()
    y = layer(x)
    assert_close(y, case["y"])
    y.backward(unpack(case["g"]))
    assert_close(x.grad, case["dx"])
    for name, parameter in layer.named_parameters():
        assert_close(parameter.grad, case["grads"][name])
