"""Divided optimizers take over states whose tensors are numpy arrays, as the plain ones do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from divided import CUT
from sharded_nets import Language, tensor

from resilin import nn, optim
from resilin.core.tensor import Tensor
from resilin.testing.ranks import run_ranks
from resilin.zero import OptimizerState, ZeroRedundancyOptimizer, shard


def fill(net: nn.Module) -> None:
    for param in net.parameters():
        param.grad = tensor(np.linspace(-1, 1, param.numel()).reshape(tuple(param.shape)))


def saved(kind: type[optim.Optimizer], options: dict[str, Any]) -> dict[str, Any]:
    """The state of the undivided optimizer after a step."""
    net = Language(1)
    optimizer = kind(net.parameters(), **options)
    fill(net)
    optimizer.step()
    return optimizer.state_dict()


def arrays(thing: Any) -> Any:
    if isinstance(thing, Tensor):
        return thing.detach().numpy().copy()
    if isinstance(thing, dict):
        return {key: arrays(value) for key, value in thing.items()}
    return thing


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("name", CUT)
def test_arrays_are_taken_as_the_tensors_that_they_were(name: str, stage: int) -> None:
    kind, options = CUT[name]
    state = saved(kind, options)

    def work(rank: int) -> tuple[str, str]:
        told = []
        for given in (state, {"state": arrays(state["state"]), "param_groups": state["param_groups"]}):
            net = Language(1)
            if stage == 1:
                optimizer: Any = ZeroRedundancyOptimizer(net.parameters(), kind, **options)
                optimizer.load_state_dict(given)
                fill(net)
                optimizer.step()
                optimizer.consolidate_state_dict(to=0)
                told.append("" if rank else repr(optimizer.state_dict()))
            else:
                model = shard(net, stage=stage)
                optimizer = kind(model.parameters(), **options)
                holder = OptimizerState(model, optimizer)
                holder.load_state_dict(given)
                told.append(repr(holder.state_dict()))
        return told[0], told[1]

    for of_tensors, of_arrays in run_ranks(2, work).results():
        assert of_tensors == of_arrays
