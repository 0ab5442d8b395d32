"""Training on a device with state that is divided among ranks: an optimizer's, or that of a whole module."""

from __future__ import annotations

from typing import Any

import numpy as np
from generations import At, Change, play
from test_divided_modules import net_of

import resilin
from resilin import elastic, nn, optim, zero
from resilin.data import ElasticSampler
from resilin.ddp import DistributedDataParallel


class Divided:
    """A model on a device whose state is divided, and its training loop."""

    def __init__(self, how: str, where: str) -> None:
        self.how, self.where = how, where

    def make(self, seed: int) -> elastic.State:
        net = net_of(seed).to(self.where)
        if self.how == "optimizer":
            model: nn.Module = net
            optimizer: optim.Optimizer = zero.ZeroRedundancyOptimizer(net.parameters(), optim.AdamW, lr=0.05)
        else:
            model = net if self.how == "whole" else zero.shard(net, int(self.how[-1]))
            optimizer = optim.AdamW(model.parameters(), lr=0.05)
        scheduler = optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        return elastic.State(model=model, optimizer=optimizer, scheduler=scheduler, sampler=ElasticSampler(8, 4, 2))

    def train(self, state: elastic.State, at: At) -> None:
        model = DistributedDataParallel(state.model, [self.where]) if self.how == "optimizer" else state.model
        while state.step < 5:
            for plan in state.sampler.steps():
                state.optimizer.zero_grad()
                x = np.random.default_rng(state.step).standard_normal((4, 6)).astype(np.float32)
                out = model(resilin.from_numpy(x).to(self.where))
                at("forward")
                out.square().mean().backward()
                at("reduced")
                state.optimizer.step()
                at("applied")
                state.scheduler.step()
                state.commit(plan)
                at("committed")
                if state.step == 5:
                    break
        place = resilin.device(self.where)
        assert {param.device for param in state.model.parameters()} == {place}
        moments = [entry["exp_avg"] for entry in local_states(state.optimizer) if "exp_avg" in entry]
        assert {moment.device for moment in moments} <= {place}

    def results(self, size: int, *changes: Change) -> set[str]:
        """The digests of all ranks at the end."""
        return set(play(self.make, self.train, size, changes))


def local_states(optimizer: optim.Optimizer) -> list[dict[str, Any]]:
    own = optimizer.owned.optimizer if isinstance(optimizer, zero.ZeroRedundancyOptimizer) else optimizer
    return list(own.state.values())
