"""States that ranks load differently: each would go on with its own, so all are told in the step that uses them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from divided import bits, parameters, train

import resilin
from resilin import distributed as dist
from resilin import nn, optim
from resilin.distributed.agreement import compare
from resilin.errors import CollectiveMismatch
from resilin.testing.ranks import run_ranks
from resilin.zero import OptimizerState, ZeroRedundancyOptimizer, shard

SHAPES = ((64, 32), (16, 8), (5,))
FULL = "exp_avg, exp_avg_sq, step 2"


def saved(steps: int = 2) -> dict[str, Any]:
    """Of the undivided optimizer."""
    params = parameters(SHAPES)
    optimizer = optim.AdamW(params, lr=0.1)
    train(params, optimizer, range(steps))
    return copy.deepcopy(optimizer.state_dict())


def emptied(state: Any) -> None:
    state["state"] = {}


def without_one(state: Any) -> None:
    del state["state"][0]


def of_another_step(state: Any) -> None:
    for entry in state["state"].values():
        entry["step"] = entry["step"] + 5


def reset(state: Any) -> None:
    state["state"][0] = {}


CHANGES: list[tuple[Callable[[Any], None], str]] = [
    (emptied, "absent"),
    (without_one, "absent"),
    (of_another_step, "exp_avg, exp_avg_sq, step 7"),
    (reset, "absent"),
]


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("as_view", [False, True])
@pytest.mark.parametrize(("change", "other"), CHANGES)
def test_a_state_that_one_rank_loads_otherwise_is_named_in_the_next_step(
    change: Callable[[Any], None], other: str, as_view: bool, last: bool
) -> None:
    def work(rank: int) -> str:
        params, state = parameters(SHAPES), saved()
        optimizer = ZeroRedundancyOptimizer(params, optim.AdamW, lr=0.1, parameters_as_bucket_view=as_view)
        train(params, optimizer, range(1))
        mine = saved()
        if rank == (2 if last else 0):
            change(mine)
        optimizer.load_state_dict(mine)
        for _ in range(2):  # and as long as nobody loads anew
            with pytest.raises(CollectiveMismatch) as caught:
                train(params, optimizer, [2])
        optimizer.load_state_dict(state)
        train(params, optimizer, [2])
        return str(caught.value)

    sides = (FULL, other) if last else (other, FULL)
    says = f"the loaded state of parameter 0 of group 0 is {sides[0]} on rank 0 and {sides[1]} on rank"
    for said in run_ranks(3, work).results():
        assert f": ZeroRedundancyOptimizer: {says} {2 if last else 1}; each rank" in said
        assert "another call" not in said


def test_a_state_that_is_loaded_on_one_rank_alone_is_named() -> None:
    def work(rank: int) -> None:
        params = parameters(SHAPES)
        optimizer = ZeroRedundancyOptimizer(params, optim.AdamW, lr=0.1)
        if rank == 1:
            optimizer.load_state_dict(saved())
        with pytest.raises(CollectiveMismatch, match=rf"of parameter 0 of group 0 is absent on rank 0 and {FULL} on"):
            train(params, optimizer, [2])

    run_ranks(2, work).results()


def test_states_that_are_loaded_alike_are_compared_once_and_at_no_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    exchanged: list[int] = []
    monkeypatch.setattr(compare, "_everybodys", lambda *_: exchanged.append(1))

    def work(rank: int) -> tuple[list[int], list[bytes]]:
        params, counts = parameters(SHAPES), []
        optimizer = ZeroRedundancyOptimizer(params, optim.AdamW, lr=0.1)
        train(params, optimizer, range(2))
        optimizer.load_state_dict(saved())
        for step in (2, 3):
            before = dist.default_group().stats()["collectives"]
            train(params, optimizer, [step])
            counts.append(int(dist.default_group().stats()["collectives"] - before))
        return counts, bits(params)

    (counts, first), (_, second) = run_ranks(2, work).results()
    assert counts == [1, 1]
    assert first == second
    assert not exchanged


# ---------------------------------------------------------------------- stages 2 and 3


def net() -> nn.Module:
    resilin.manual_seed(3)
    return nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 5))


def step(model: Any, optimizer: Any) -> None:
    model(resilin.ones(4, 20)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def saved_of_net() -> dict[str, Any]:
    model = net()
    optimizer = optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(2):
        step(model, optimizer)
    return copy.deepcopy(optimizer.state_dict())


def load(model: Any, optimizer: Any, state: Any) -> None:
    OptimizerState(model, optimizer).load_state_dict(state)


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize(("change", "other"), CHANGES)
def test_a_state_that_one_rank_loads_otherwise_is_named_in_the_forward_after_the_next_step(
    change: Callable[[Any], None], other: str, begun: bool, stage: int
) -> None:
    def work(rank: int) -> str:
        model = shard(net(), stage)
        optimizer = optim.AdamW(model.parameters(), lr=0.1)
        if begun:
            step(model, optimizer)
        state = saved_of_net()
        if rank == 0:
            change(state)
        load(model, optimizer, state)
        step(model, optimizer)
        with pytest.raises(CollectiveMismatch) as caught:
            step(model, optimizer)
        load(model, optimizer, saved_of_net())
        for _ in range(2):
            step(model, optimizer)
        model.state_dict()
        return str(caught.value)

    says = f"the loaded state of 0.weight in the step of AdamW is {other} on rank 0 and {FULL} on rank 1; "
    for said in run_ranks(2, work).results():
        assert f": zero.shard: {says}each rank" in said


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("world", [2, 3])
def test_a_state_that_is_loaded_on_one_rank_alone_is_named_by_all(stage: int, world: int) -> None:
    def work(rank: int) -> None:
        model = shard(net(), stage)
        optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
        step(model, optimizer)
        state = OptimizerState(model, optimizer).state_dict()
        if rank == 1:
            load(model, optimizer, state)
        step(model, optimizer)
        with pytest.raises(
            CollectiveMismatch,
            match=r"the state of SGD is that of the last step on rank 0 and loaded or begun since on rank 1; ",
        ):
            step(model, optimizer)

    run_ranks(world, work).results()


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_state_loaded_otherwise_is_named_after_several_steps_on_one_gradient(stage: int, steps: int) -> None:
    def work(rank: int) -> None:
        model = shard(net(), stage)
        optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
        step(model, optimizer)
        state = OptimizerState(model, optimizer).state_dict()
        load(model, optimizer, {**state, "state": {}} if rank == 1 else state)
        model(resilin.ones(4, 20)).square().mean().backward()
        for _ in range(steps):
            optimizer.step()
        with pytest.raises(CollectiveMismatch, match=r"is momentum_buffer on rank 0 and absent on rank 1; "):
            model(resilin.ones(4, 20))

    run_ranks(2, work).results()


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("kind", [optim.AdamW, optim.Adagrad, optim.SGD, optim.NAdam])
def test_states_of_pieces_that_are_loaded_alike_are_taken_by_ranks_without_elements_too(stage: int, kind: Any) -> None:
    def work(rank: int) -> list[Any]:
        model = shard(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)), stage)  # most ranks have no piece of most
        optimizer = kind(model.parameters(), lr=0.1)
        for _ in range(3):
            model(resilin.ones(4, 3)).sum().backward()
            optimizer.step()
            optimizer.load_state_dict(optimizer.state_dict())
        state = OptimizerState(model, optimizer)
        state.load_state_dict(state.state_dict())
        for _ in range(2):
            model(resilin.ones(4, 3)).sum().backward()
            optimizer.step()
        return [value.numpy() for value in model.state_dict().values()]

    first, *others = run_ranks(4, work).results()
    assert all(np.array_equal(a, b) for other in others for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("stage", [2, 3])
def test_an_entry_that_the_only_rank_with_elements_lacks_is_named(stage: int) -> None:
    """The other one has loaded it, and needs it no more than it needs the elements."""

    def work(rank: int) -> str:
        resilin.manual_seed(5)
        model = shard(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), stage)
        optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def steps(count: int) -> None:
            for _ in range(count):
                optimizer.zero_grad()
                model(resilin.ones(3, 4)).sum().backward()
                optimizer.step()

        steps(1)
        state = OptimizerState(model, optimizer).state_dict()
        holds = [param.numel() > 0 for param in model.parameters()][3]
        if holds:
            del state["state"][3]
        OptimizerState(model, optimizer).load_state_dict(state)
        with pytest.raises(CollectiveMismatch) as caught:
            steps(2)
        return f"{holds}: {caught.value}"

    said = run_ranks(2, work).results()
    assert sorted(each.partition(":")[0] for each in said) == ["False", "True"]
    for each in said:
        assert "the loaded state of 2.bias" in each
        assert "absent on rank" in each
