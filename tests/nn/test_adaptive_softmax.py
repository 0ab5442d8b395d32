"""AdaptiveLogSoftmaxWithLoss gives PyTorch's numbers under PyTorch's names; its mistakes are named."""

import json
from pathlib import Path

import pytest

import resilin
from resilin import nn

CASES = json.loads((Path(__file__).parents[1] / "fixtures" / "torch_adaptive.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["cutoffs"]))
def test_the_adaptive_softmax_equals_pytorchs(case, unpack, assert_close):
    layer = nn.AdaptiveLogSoftmaxWithLoss(8, 10, case["cutoffs"], **case["options"]).to(resilin.float64)
    assert repr(layer) == case["repr"]
    layer.load_state_dict(unpack(case["state"]))
    x, target = unpack(case["x"]).requires_grad_(), unpack(case["target"])
    output, loss = layer(x, target)
    assert_close(output, case["output"])
    assert_close(loss, case["loss"])
    (loss + (output * resilin.arange(6)).sum()).backward()
    assert_close(x.grad, case["dx"])
    for name, parameter in layer.named_parameters():
        assert_close(parameter.grad, case["grads"][name])
    assert_close(layer.log_prob(x), case["log_prob"])
    assert layer.predict(x).tolist() == case["predict"]["data"]
    assert layer(x[1], target[1]).output.item() == pytest.approx(output[1].item())


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: nn.AdaptiveLogSoftmaxWithLoss(4, 5, []), ValueError, "length larger than 0"),
        (lambda: nn.AdaptiveLogSoftmaxWithLoss(4, 5, [3, 2]), ValueError, r"got \[3, 2\]"),
        (lambda: nn.AdaptiveLogSoftmaxWithLoss(4, 5, [5]), ValueError, "n_classes-1 = 4"),
        (
            lambda: nn.AdaptiveLogSoftmaxWithLoss(4, 5, [2])(resilin.ones(2, 4), resilin.tensor([0, 5])),
            RuntimeError,
            r"values in range \[0, 5\]",
        ),
        (
            lambda: nn.AdaptiveLogSoftmaxWithLoss(4, 5, [2])(resilin.ones(2, 4), resilin.tensor([0])),
            RuntimeError,
            r"got \(2, 4\) and \(1,\)",
        ),
    ],
)
def test_mistakes_are_named(call, error, words):
    with pytest.raises(error, match=words):
        call()
