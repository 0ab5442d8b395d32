"""Overflows are what a scaler is there for: numpy says nothing of them, and goes on saying it of the program's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import resilin as rs
from resilin import nn, optim
from resilin.amp import GradScaler
from resilin.ddp import DistributedDataParallel
from resilin.testing.ranks import run_ranks

VALUES = [np.inf, np.nan, 6e4]
NAMES = ["SGD", "Adam", "AdamW", "Adagrad", "Adadelta", "RMSprop", "Rprop", "Adamax", "NAdam", "RAdam", "ASGD"]


def net() -> nn.Module:
    rs.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))


def train(module: nn.Module, optimizer: Any, value: float, clip: Callable[[Any], object] | None = None) -> list[float]:
    """Three steps with losses of float16, of which two meet `value` and `-value`; the scaler's factors."""
    scaler = GradScaler()
    scales = []
    for step, met in enumerate((0.5, value, -value)):
        out = module(rs.full((3, 4), met)).half()
        for loss in ((out * out).mean(), out.float().sum()):  # the second one is added to gradients
            scaler.scale(loss).backward(retain_graph=True)
        if clip is not None:
            scaler.unscale_(optimizer)
            clip(module.parameters())
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=step != 1)
        scales.append(scaler.get_scale())
    return scales


@pytest.fixture
def loud() -> Iterator[None]:
    """numpy raises what it would warn of, and does so to the program itself in the end."""
    with np.errstate(all="raise"):
        yield
        with pytest.raises(FloatingPointError):
            np.float32(3e38) * np.float32(10)


@pytest.mark.usefixtures("loud")
@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("name", NAMES)
def test_a_step_that_overflows_is_left_out_without_a_word(name: str, value: float) -> None:
    module = net()
    scales = train(module, getattr(optim, name)(module.parameters(), lr=0.1), value)
    assert scales[1] < 2.0**16


CLIPS = [
    lambda parameters: nn.utils.clip_grad_norm_(parameters, 1.0),
    lambda parameters: nn.utils.clip_grad_norm_(parameters, 1.0, norm_type=float("inf")),
    lambda parameters: nn.utils.clip_grad_value_(parameters, 1.0),
]


@pytest.mark.usefixtures("loud")
@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("clip", CLIPS, ids=["norm", "maximum", "value"])
def test_so_is_one_whose_gradients_are_clipped(clip: Callable[[Any], object], value: float) -> None:
    module = net()
    assert train(module, optim.SGD(module.parameters(), lr=0.1), value, clip)[1] < 2.0**16


def test_ranks_are_as_quiet(recwarn: pytest.WarningsRecorder) -> None:
    def whole(rank: int, value: float) -> list[float]:
        with np.errstate(all="raise"):
            module = DistributedDataParallel(net())
            return train(module, optim.SGD(module.parameters(), lr=0.1), value if rank else -value)

    for value in VALUES:
        outcome = run_ranks(2, whole, value)
        assert not outcome.errors
        assert outcome.values[0] == outcome.values[1]
        assert outcome.values[0][1] < 2.0**16
    assert not recwarn.list
