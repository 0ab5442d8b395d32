"""Recurrent layers and cells give PyTorch's outputs, states, gradients and representations."""

import json
from pathlib import Path

import pytest

import resilin
from resilin import nn
from resilin.nn.utils import rnn

FIXTURES = Path(__file__).parents[1] / "fixtures"


def recorded(name):
    cases = json.loads((FIXTURES / f"torch_{name}.json").read_text())
    return [pytest.param(case, id=f"{number}-{case['name']}") for number, case in enumerate(cases)]


def run(case, unpack, dtype):
    layer = getattr(nn, case["name"])(3, 4, **case["options"]).to(dtype)
    layer.load_state_dict(unpack(case["before"]))
    x = unpack(case["x"]).to(dtype).requires_grad_()
    hx = [h.to(dtype).requires_grad_() for h in unpack(case["hx"])]
    lengths = case.get("call", {}).get("lengths")
    first = case["options"].get("batch_first", False)
    given = rnn.pack_padded_sequence(x, lengths, first, enforce_sorted=False) if lengths else x
    lstm = case["name"].startswith("LSTM")
    found = layer(given, *([tuple(hx) if lstm else hx[0]] if hx else []))
    if case["name"].endswith("Cell"):
        outs = list(found) if lstm else [found]
    else:
        y, last = found
        outs = [y.data if lengths else y, *(last if lstm else [last])]
    sum((out * g.to(dtype)).sum() for out, g in zip(outs, unpack(case["g"]), strict=True)).backward()
    return layer, x, hx, outs


@pytest.mark.parametrize(("dtype", "tolerance"), [(resilin.float64, 1e-9), (resilin.float32, 3e-5)], ids=str)
@pytest.mark.parametrize("case", recorded("recurrent") + recorded("cells"))
def test_recurrent_layers_give_pytorchs_outputs_states_and_gradients(case, dtype, tolerance, unpack, assert_close):
    layer, x, hx, outs = run(case, unpack, dtype)
    for out, packed in zip(outs, case["outs"], strict=True):
        assert out.dtype is dtype
        assert_close(out, packed, tolerance)
    assert_close(x.grad, case["dx"], tolerance)
    for h, packed in zip(hx, case.get("dhx", ()), strict=False):
        assert_close(h.grad, packed, tolerance)
    for name, parameter in layer.named_parameters():
        assert_close(parameter.grad, case["grads"][name], tolerance)


@pytest.mark.parametrize("case", recorded("recurrent") + recorded("cells"))
def test_recurrent_layers_print_and_name_their_parameters_as_in_pytorch(case):
    layer = getattr(nn, case["name"])(3, 4, **case["options"])
    assert repr(layer) == case["repr"]
    assert list(layer.state_dict()) == list(case["before"])
