"""`elastic.run` without a launcher: a world of one with everything that a real one has."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest

from resilin import dist, elastic, nn, optim
from resilin.core.tensor import Tensor
from resilin.ddp import DistributedDataParallel as DDP
from resilin.elastic import control, session
from resilin.errors import UsageError, WorldChanged


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (control.ENV_FD, "RANK", "WORLD_SIZE", "RESILIN_LEDGER"):
        monkeypatch.delenv(name, raising=False)


def test_the_function_runs_once_in_a_group_of_one_and_its_result_is_returned() -> None:
    @elastic.run
    def train(state: elastic.State, *, factor: int) -> int:
        """What it says."""
        assert dist.is_initialized()
        assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
        assert elastic.world().generation == 1
        model = DDP(state.model, shards=2)
        for plan in state.sampler.steps():
            for shard in plan.shards:
                with model.shard(shard):
                    model(Tensor._wrap(np.ones((len(shard), 2), np.float32))).mean().backward()
            state.optimizer.step()
            state.commit(plan)
        return state.step * factor

    model = nn.Linear(2, 1)
    state = elastic.State(
        model=model, optimizer=optim.SGD(model.parameters(), lr=0.1), sampler=elastic.ElasticSampler(8, 2, 2)
    )
    assert train(state, factor=10) == 40
    assert train.__doc__ == "What it says."
    assert not dist.is_initialized()
    assert session.active() is None


def test_an_exception_of_the_user_comes_out_as_it_is_and_leaves_nothing_behind() -> None:
    @elastic.run
    def train() -> None:
        raise ValueError("mine")

    for _ in range(2):
        with pytest.raises(ValueError, match=r"^mine$"):
            train()
        assert not dist.is_initialized()
        assert session.active() is None


class TwoWorlds(session.Solo):
    """A world of one that changes once."""

    def next_world(self, after: int) -> control.World:
        return replace(super().next_world(0), number=after + 1)


def test_an_interrupted_call_leaves_no_memory_behind_and_state_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "Solo", TwoWorlds)
    models: list[weakref.ref[DDP]] = []

    @elastic.run
    def train(state: elastic.State) -> list[float]:
        if models:
            assert models[0]() is None, "the first call's wrapper is freed without the help of the garbage collector"
        model = DDP(state.model, shards=1)
        models.append(weakref.ref(model))
        seen = [state.best]
        state.best = 7.0
        if len(models) == 1:
            state.commit()
            state.best = 8.0
            raise WorldChanged("generation 1 ended: a test", 1)
        return [*seen, float(elastic.world().generation), float(state.step)]

    gc.disable()
    try:
        assert train(elastic.State(model=nn.Linear(2, 1), best=1.0)) == [7.0, 2.0, 1.0]
    finally:
        gc.enable()


def test_elastic_functions_cannot_be_nested() -> None:
    @elastic.run
    def inner() -> None:
        """Never runs."""

    @elastic.run
    def outer() -> None:
        inner()

    with pytest.raises(UsageError, match="already running in this process"):
        outer()


def test_the_public_names_are_those_that_are_written_down() -> None:
    assert sorted(elastic.__all__) == ["ElasticSampler", "State", "World", "is_elastic", "run", "world"]
    assert all(getattr(elastic, name) is not None for name in elastic.__all__)
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        _ = elastic.absent
