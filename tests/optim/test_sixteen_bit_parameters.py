"""Optimizers, averages and clipping on float16 and bfloat16: hyperparameters are not rounded, each result is, once."""

import math

import numpy as np
import pytest

import resilin
from resilin import nn, optim
from resilin.optim import swa_utils

HALVES = [resilin.float16, resilin.bfloat16]
OPTIMIZERS = {
    "SGD": lambda p: optim.SGD(p, lr=1e-2),
    "SGD with momentum": lambda p: optim.SGD(p, lr=1e-2, momentum=0.9, dampening=0.1, weight_decay=0.01),
    "SGD after Nesterov": lambda p: optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True, maximize=True),
    "Adam": lambda p: optim.Adam(p, lr=1e-3, weight_decay=0.01),
    "AMSGrad": lambda p: optim.Adam(p, lr=1e-3, amsgrad=True),
    "AdamW": lambda p: optim.AdamW(p, lr=1e-3),
    "NAdam": lambda p: optim.NAdam(p, lr=1e-3, weight_decay=0.01),
    "RAdam": lambda p: optim.RAdam(p, lr=1e-3),
    "Adamax": lambda p: optim.Adamax(p, lr=1e-3),
    "Adadelta": lambda p: optim.Adadelta(p, lr=0.5),
    "Adagrad": lambda p: optim.Adagrad(p, lr=1e-2, lr_decay=0.1),
    "RMSprop": lambda p: optim.RMSprop(p, lr=1e-3, momentum=0.9, centered=True),
    "Rprop": lambda p: optim.Rprop(p, lr=2**-7),  # the first step size is a state
    "ASGD": lambda p: optim.ASGD(p, lr=1e-2, t0=1),
    "Lion": lambda p: optim.Lion(p, lr=1e-3),
    "Adafactor": lambda p: optim.Adafactor(p, lr=1e-2, eps=(1e-4, 1e-3), weight_decay=0.1),
    "Muon": lambda p: optim.Muon(p, lr=1e-2),
}


def _stepped(make, values, gradient):
    parameter = nn.Parameter(values.clone())
    parameter.grad = gradient.clone()
    optimizer = make([parameter])
    optimizer.step()
    return parameter.detach(), optimizer.state[parameter]


def _drawn(seed, dtype):
    return resilin.tensor(np.random.default_rng(seed).standard_normal((5, 4)), dtype=dtype)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_step_of_sixteen_bits_is_that_of_float32_rounded_once(name, dtype):
    values, gradient = _drawn(0, dtype), _drawn(1, dtype)
    found, state = _stepped(OPTIMIZERS[name], values, gradient)
    expected, wide = _stepped(OPTIMIZERS[name], values.float(), gradient.float())
    assert found.dtype is dtype
    assert found.tolist() == expected.to(dtype).tolist()
    for key, value in state.items():
        if isinstance(value, resilin.Tensor) and value.ndim:
            assert value.dtype is dtype
            assert value.tolist() == wide[key].to(dtype).tolist(), key


ADAM = {  # PyTorch 2.13
    resilin.float16: [0.998046875, -1.69921875, 300.0, 0.046966552734375],
    resilin.bfloat16: [1.0, -1.703125, 300.0, 0.047119140625],
}


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_adam_is_pytorchs_and_its_eps_does_not_vanish(dtype):
    parameter = nn.Parameter(resilin.tensor([1.0, -1.7, 300.0, 0.05], dtype=dtype))
    optimizer = optim.Adam([parameter], lr=1e-3)
    for gradient in ([3.0, -0.2, 1.0, 0.1], [0.1, 0.3, 0.0, 0.1], [0.5, 0.1, -1.0, 0.1]):
        parameter.grad = resilin.tensor(gradient, dtype=dtype)
        optimizer.step()
    assert parameter.tolist() == ADAM[dtype]
    still = nn.Parameter(resilin.ones(2, dtype=dtype))
    still.grad = resilin.zeros(2, dtype=dtype)
    optim.Adam([still], lr=1e-3).step()  # 0 / (0 + 1e-8); PyTorch's is 0 / 0 in float16, NaN
    assert still.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_lbfgs_searches_in_float32(dtype):
    def found(kind):
        parameter = nn.Parameter(resilin.tensor([3.0, -2.0], dtype=dtype).to(kind))
        optimizer = optim.LBFGS([parameter], lr=0.1, max_iter=1)

        def closure():
            optimizer.zero_grad()
            loss = (parameter * parameter).sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        return parameter.detach()

    assert found(dtype).tolist() == found(resilin.float32).to(dtype).tolist()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_averages_of_parameters_round_once(dtype):
    average, current = _drawn(2, dtype) * 100, _drawn(3, dtype) * 100
    for make in (lambda: swa_utils.get_ema_avg_fn(0.9), swa_utils.get_swa_avg_fn):
        found = make()(average, current, resilin.tensor(3))
        expected = make()(average.float(), current.float(), resilin.tensor(3))
        assert found.tolist() == expected.to(dtype).tolist()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_clipping_does_not_round_its_factor(dtype):
    parameter = nn.Parameter(resilin.zeros(3, dtype=dtype))
    parameter.grad = resilin.tensor([3.0, 4.0, 12.0], dtype=dtype)
    assert nn.utils.clip_grad_norm_([parameter], 0.37).item() == 13
    factor = 0.37 / 13.000001
    expected = resilin.tensor([3 * factor, 4 * factor, 12 * factor], dtype=resilin.float64)
    assert parameter.grad.tolist() == expected.to(dtype).tolist()
    assert math.isclose(float(parameter.grad.float().norm()), 0.37, rel_tol=4e-3)
