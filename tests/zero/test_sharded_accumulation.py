"""Gradients that accumulate on one rank in no_sync(), in sharded modules: reduced with the next ones, or dropped."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sharded_nets import differences, tensor, trained

from resilin import nn, optim
from resilin.core.tensor import Tensor

IN, OUT = 6, 3
SCHEDULES = {  # of each step: the layers that a backward uses, on rank 0 and on rank 1; the last one reduces
    "alike": [[({0}, {0}), ({1}, {1})], [({2}, {2}), ({0}, {0})]],
    "by rank": [[({0}, {1}), ({2}, {2})], [({2}, {1}), ({1}, {1}), ({0}, {0})]],
}


class Chosen(nn.Module):
    """A sum of some of its layers, and one that is always used."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(IN, OUT) for _ in range(3))
        self.always = nn.Linear(IN, OUT)

    def forward(self, x: Tensor, uses: set[int]) -> Any:
        y = self.always(x)
        for number in sorted(uses):
            y = y + self.layers[number](x)
        return (y**2).mean()


def drop_nothing(model: Any, optimizer: Any) -> None:
    """What accumulated counts."""


def drop_by_model(model: Any, optimizer: Any) -> None:
    model.zero_grad()


def drop_by_optimizer(model: Any, optimizer: Any) -> None:
    optimizer.zero_grad()


def drop_in_place(model: Any, optimizer: Any) -> None:
    optimizer.zero_grad(set_to_none=False)
    model.zero_grad()


def loop_of(schedule: str, drop: Callable[[Any, Any], None]) -> Callable[..., None]:
    def loop(model: Any, optimizer: optim.Optimizer, rank: int, steps: Any) -> None:
        for step, parts in enumerate(SCHEDULES[schedule]):
            optimizer.zero_grad()
            for number, uses in enumerate(parts):
                x = tensor(np.random.default_rng([step, number, rank]).standard_normal((4, IN)))
                last = number == len(parts) - 1
                if last:
                    drop(model, optimizer)
                with contextlib.nullcontext() if last else model.no_sync():
                    model(x, uses[rank]).backward()
            optimizer.step()

    return loop


@pytest.mark.parametrize("drop", [drop_nothing, drop_by_model, drop_by_optimizer, drop_in_place])
@pytest.mark.parametrize(("stage", "schedule"), [(2, "alike"), (2, "by rank"), (3, "alike")])
def test_what_accumulated_is_reduced_as_with_ddp_whatever_the_last_backward_used(
    stage: int, schedule: str, drop: Callable[[Any, Any], None]
) -> None:
    net, loop = Chosen(), loop_of(schedule, drop)
    want = trained(net, 2, None, loop, find_unused_parameters=True)
    assert not differences(want, trained(net, 2, stage, loop, find_unused_parameters=True))
    assert not differences(want[:1], want[1:])
