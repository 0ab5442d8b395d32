"""No worker trains on with a learning rate, a step or a scale that is not the others': the job stops before that."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from generations import At, Change, play

import resilin
from resilin import distributed as dist
from resilin import nn, optim
from resilin.core.tensor import Tensor
from resilin.data import ElasticSampler
from resilin.ddp import DistributedDataParallel as DDP
from resilin.elastic.worker.state import State
from resilin.errors import StateError, UsageError


class LossScale:
    """An object as users register: numbers, an array, a tensor."""

    def __init__(self) -> None:
        self.lr, self.steps, self.moments, self.window = 0.1, 0, np.zeros(3), resilin.zeros(2)

    def update(self) -> None:
        self.lr, self.steps = self.lr * 0.9, self.steps + 1
        self.moments, self.window = self.moments + 0.5, self.window + 1

    def state_dict(self) -> dict[str, Any]:
        return {"lr": self.lr, "inner": {"steps": self.steps}, "moments": self.moments, "window": self.window}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.lr, self.steps = state["lr"], state["inner"]["steps"]
        self.moments, self.window = state["moments"].copy(), state["window"].clone()


class KeepsItsRate(LossScale):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict({**state, "lr": self.lr})


class ForgetsTheStep(LossScale):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict({**state, "inner": {"steps": 0}})


class KeepsItsArray(LossScale):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict({**state, "moments": self.moments})


class KeepsItsTensor(LossScale):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict({**state, "window": self.window})


class StubbornAdam(optim.Adam):
    """Keeps its own learning rate."""

    def load_state_dict(self, state_dict: Any) -> None:
        groups = [
            {**group, "lr": own["lr"]} for group, own in zip(state_dict["param_groups"], self.param_groups, strict=True)
        ]
        super().load_state_dict({**state_dict, "param_groups": groups})


class ForgetfulAdam(optim.Adam):
    """Starts its moments anew."""

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict)
        for state in self.state.values():
            state["exp_avg"].zero_()


class WithExtraState(nn.Linear):
    """A module that counts its forwards."""

    def __init__(self) -> None:
        super().__init__(3, 1)
        self.count = 0

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return super().forward(x)

    def get_extra_state(self) -> Any:
        return {"count": self.count}

    def set_extra_state(self, state: Any) -> None:
        self.count = state["count"]


class ForgetsExtraState(WithExtraState):
    def set_extra_state(self, state: Any) -> None:
        self.count = 0


def make(seed: int, scale: type = LossScale, optimizer: type = optim.Adam, model: type = WithExtraState) -> State:
    resilin.manual_seed(seed)
    net = model()
    chosen = optimizer(net.parameters(), lr=0.1)
    scheduler = optim.lr_scheduler.StepLR(chosen, 1, 0.5)
    sampler = ElasticSampler(12, 4, 2)
    return State(model=net, optimizer=chosen, scheduler=scheduler, sampler=sampler, scale=scale(), best=0.0)


def train(state: State, at: At, began: list[int] | None = None) -> None:
    """Six steps, with one collective in each."""
    while state.step < 6:
        for plan in state.sampler.steps():
            if began is not None:
                began.append(state.step)
            state.optimizer.zero_grad()
            state.model(resilin.ones(2, 3)).square().mean().backward()
            state.scale.update()  # ahead of the others' commit when the step is interrupted
            state.best += 1
            at("before")
            dist.all_reduce(resilin.ones(1))
            state.optimizer.step()
            state.scheduler.step()
            state.commit(plan)
            at("committed")


JOINS = Change(3, "before", (1,), 3)
"""Rank 1 dies; ranks 0 and 2 roll back, and a newcomer becomes rank 2."""
SURVIVES = Change(3, "before", (1,), 2)
"""Nobody joins: survivors that cannot take back what they committed stop, too."""
FAULTS = {
    "scale: after load_state_dict.. .*'lr'": {"scale": KeepsItsRate},
    "scale: after load_state_dict.. .*'steps'. is 0, expected 3": {"scale": ForgetsTheStep},
    "scale: after load_state_dict.. .*'moments'": {"scale": KeepsItsArray},
    "scale: after load_state_dict.. .*('arrays'|tensor 0)": {"scale": KeepsItsTensor},
    "model: after load_state_dict.. .*'count'": {"model": ForgetsExtraState},
}


def test_everything_that_is_registered_is_equal_on_all_ranks_and_that_of_one_worker() -> None:
    (alone,) = play(make, train, 1)
    for change in (JOINS, SURVIVES, Change(3, "before", (0, 2), 4), Change(2, "before", (0,), 2, restart=True)):
        assert set(play(make, train, 3, [change])) == {alone}


@pytest.mark.parametrize("said", FAULTS)
@pytest.mark.parametrize("change", [JOINS, SURVIVES], ids=["joining", "rolled back"])
def test_an_object_that_keeps_something_stale_stops_the_job_and_is_named(said: str, change: Change) -> None:
    with pytest.raises(StateError, match=said):
        play(lambda seed: make(seed, **FAULTS[said]), train, 2, [Change(change.step, "before", (1,), change.size - 1)])


@pytest.mark.parametrize("optimizer", [StubbornAdam, ForgetfulAdam])
def test_an_optimizer_that_keeps_something_stale_stops_the_newcomer_before_its_first_step(optimizer: type) -> None:
    began: list[int] = []

    def starts_with_another_rate(seed: int) -> State:
        state = make(seed, optimizer=optimizer)
        state.optimizer.param_groups[0]["lr"] = 0.1 / (seed + 1)
        return state

    def watched(state: State, at: At) -> None:
        train(state, at, began if dist.get_rank() == 1 and state._generation == 2 else None)

    with pytest.raises(StateError, match="optimizer: after load_state_dict"):
        play(starts_with_another_rate, watched, 2, [Change(3, "before", (1,), 2)])
    assert began == []


def test_ranks_that_disagree_take_the_state_of_one_or_stop() -> None:
    """As after a fault of memory, or a program that changes an object on one rank only."""

    def strays(state: State, at: At) -> None:
        state.scale.lr *= 1 + dist.get_rank() * (state.step == 0)
        train(state, at)

    changes = [Change(3, "before", (2,), 2)]
    assert len(set(play(make, strays, 3, changes))) == 1
    with pytest.raises(StateError, match=r"scale: after load_state_dict.* that rank 0 sent"):
        play(lambda seed: make(seed, scale=TakesItBackOnly), strays, 3, changes)


class TakesItBackOnly(LossScale):
    """Refuses the rates of others."""

    def __init__(self) -> None:
        super().__init__()
        self.own = {self.lr}

    def update(self) -> None:
        super().update()
        self.own.add(self.lr)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict({**state, "lr": state["lr"] if state["lr"] in self.own or not self.steps else self.lr})


@pytest.mark.parametrize("said", FAULTS)
def test_a_checkpoint_that_is_not_taken_over_stops_the_job_before_its_first_step(said: str) -> None:
    with pytest.raises(StateError, match=said):
        play(lambda seed: make(seed, **FAULTS[said]), train, 1, [Change(3, "before", (0,), 1, restart=True)])


def test_a_checkpoint_may_have_other_types_of_numbers_and_options_that_one_version_lacks() -> None:
    state = make(1)
    play_one_step(state)
    saved = state.state_dict()
    saved["objects"]["scale"]["lr"] = np.float64(saved["objects"]["scale"]["lr"])
    saved["objects"]["scheduler"] = {**saved["objects"]["scheduler"], "of_a_later_version": 1}
    other = make(2)
    other.load_state_dict(saved)
    assert (other.scale.state_dict()["lr"], other.step) == (state.scale.lr, 1)


def play_one_step(state: State) -> None:
    state.optimizer.zero_grad()
    state.model(resilin.ones(2, 3)).square().mean().backward()
    state.optimizer.step()
    state.commit(next(state.sampler.steps()))


def test_loading_a_checkpoint_inside_the_program_is_what_failures_go_back_to() -> None:
    state, other = make(1), make(2)
    play_one_step(state)
    other._joined(0, 1)
    other.load_state_dict(state.state_dict())
    before = other.fingerprint()
    other.scale.update()
    other.best = 9.0
    assert other._roll_back()
    assert other.fingerprint() == before


def test_gradients_that_outlive_a_commit_are_refused_with_what_to_do() -> None:
    def accumulates(state: State, at: At) -> None:
        model = DDP(state.model, shards=2)
        for plan in state.sampler.steps():
            for shard in plan.shards:
                with model.shard(shard):
                    model(resilin.ones(2, 3)).mean().backward()
            state.commit(plan)

    with pytest.raises(UsageError, match=r"gradients still hold steps \[0\].*commit\(\*plans\) after optimizer.step"):
        play(make, accumulates, 1)
