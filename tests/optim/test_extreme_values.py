"""Infinite parameters, gradients at the ends of float32's range: what comes out is PyTorch's, without warnings."""

import pytest

import resilin
from resilin import optim

INFINITY = float("inf")
DTYPES = [resilin.float32, resilin.float64]
OPTIMIZERS = [
    ("SGD", {}),
    ("SGD", {"momentum": 0.9}),
    ("Adam", {}),
    ("Adam", {"amsgrad": True}),
    ("AdamW", {"weight_decay": 0}),
    ("Adagrad", {}),
    ("Adadelta", {}),
    ("Adamax", {}),
    ("RMSprop", {}),
    ("NAdam", {}),
    ("RAdam", {}),
    ("ASGD", {}),
    ("Rprop", {}),
    ("Lion", {}),
]


def stepped(name, options, start, grad, dtype, steps=1):
    p = resilin.tensor(start, dtype=dtype, requires_grad=True)
    optimizer = getattr(optim, name)([p], lr=0.1, **options)
    for _ in range(steps):
        p.grad = resilin.tensor(grad, dtype=dtype)
        optimizer.step()
    return p.tolist()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("name", "options"), OPTIMIZERS)
def test_an_infinite_parameter_stays_infinite_without_weight_decay(name, options, dtype):
    after = stepped(name, options, [INFINITY, -INFINITY, 1.0], [1.0, 1.0, 1.0], dtype, 3)
    assert after[:2] == [INFINITY, -INFINITY]
    assert after[2] < 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_infinite_gradient_moves_sgd_with_momentum_to_infinity(dtype):
    assert stepped("SGD", {"momentum": 0.9}, [1.0], [INFINITY], dtype) == [-INFINITY]


# recorded from PyTorch 2.13: the parameter after a step from 1 with the gradient 2e19, float32
@pytest.mark.parametrize(("name", "after"), [("Adam", 0.9), ("AdamW", 0.899), ("RMSprop", 0.0), ("Adadelta", 0.999684)])
def test_a_gradient_whose_square_overflows_float32_still_moves_the_parameter(name, after):
    assert stepped(name, {}, [1.0], [2e19], resilin.float32) == pytest.approx([after], abs=1e-5)


@pytest.mark.parametrize("name", ["Adafactor", "AdamW", "Muon"])
@pytest.mark.parametrize("value", [0.0, 1e30, INFINITY])
def test_steps_over_extreme_gradients_give_no_warning(name, value, recwarn):
    for dtype in DTYPES:
        p = resilin.ones(2, 2, dtype=dtype, requires_grad=True)
        optimizer = getattr(optim, name)([p], **({"eps": 0.0} if name == "AdamW" else {}))
        p.grad = resilin.full((2, 2), value, dtype=dtype)
        optimizer.step()
    assert not recwarn.list
