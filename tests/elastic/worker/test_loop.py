"""`elastic.run` without a launcher: a world of one with everything that a real one has."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from resilin import distributed as dist
from resilin import elastic, nn, optim
from resilin.core.tensor import Tensor
from resilin.ddp import DistributedDataParallel as DDP
from resilin.elastic import control
from resilin.elastic.worker import session
from resilin.errors import CollectiveTimeout, UsageError, WorldChanged

ROOT = Path(__file__).parents[3]


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
            state.optimizer.zero_grad()
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

    def next_world(self, after: int, returned: bool = False) -> control.World:
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


class TakenForLost(session.Solo):
    """A world of one that ends when its worker is done; then the job ends without it."""

    def next_world(self, after: int, returned: bool = False) -> control.World | None:
        return super().next_world(after) if not after else None if returned else pytest.fail("it had returned")

    def finished(self, step: int) -> None:
        raise WorldChanged("generation 1 ended: its node was taken for lost", 1)


def test_who_had_returned_when_the_job_ended_without_it_returns_its_result_with_its_state_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "Solo", TakenForLost)

    @elastic.run
    def train(state: elastic.State) -> str:
        state.commit()
        state.best = 8.0  # the average of an epoch, say: after the last commit
        return "trained"

    state = elastic.State(best=1.0)
    assert (train(state), state.best) == ("trained", 8.0)
    assert not dist.is_initialized()


def test_ranks_that_do_not_answer_are_named_to_the_agent_and_the_step_is_redone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = []

    class Telling(TwoWorlds):
        def stuck(self, generation: int, ranks: Collection[int], reason: str, unless_s: float = 0.0) -> None:
            told.append((generation, set(ranks), reason))

    monkeypatch.setattr(session, "Solo", Telling)

    @elastic.run
    def train(state: elastic.State) -> float:
        state.best += 1
        state.commit()
        if elastic.world().generation == 1:
            state.best = 99.0
            raise CollectiveTimeout("rank 1 did not answer", [1], [3, 0])  # rank 1 of a subgroup; and this rank itself
        return state.best

    assert train(elastic.State(best=0.0)) == 2
    assert told == [(1, {3}, "rank 1 did not answer")]


def test_a_wait_that_names_no_rank_ends_the_worker_because_nobody_could_be_replaced() -> None:
    @elastic.run
    def train() -> None:
        dist.Future().wait(0.01)

    with pytest.raises(CollectiveTimeout):
        train()


def test_the_timeout_is_the_default_of_the_groups_collectives() -> None:
    @elastic.run(timeout=timedelta(seconds=7))
    def train() -> float:
        return dist.default_group().timeout_s

    assert train() == 7
    for wrong in (0, -1, timedelta(0)):
        with pytest.raises(UsageError, match="timeout above 0 s"):
            elastic.run(timeout=wrong)(train)


def test_without_a_timeout_collectives_wait_for_a_minute_as_the_docs_say() -> None:
    @elastic.run
    def train() -> float:
        return dist.default_group().timeout_s

    assert train() == 60.0
    assert "for 60 s, the group's timeout under `@elastic.run`" in (ROOT / "docs/elastic.md").read_text()


def test_a_report_of_a_huge_error_is_short_and_says_what_was_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    reports = []

    class Telling(session.Solo):
        def failed(self, report: dict[str, Any]) -> None:
            reports.append(report)

    monkeypatch.setattr(session, "Solo", Telling)

    @elastic.run
    def train(depth: int = 300) -> None:
        if depth:
            train.__wrapped__(depth - 1 if depth % 2 else depth // 2)
        raise ValueError("begin" + "x" * 6_000_000 + "end")

    with pytest.raises(ValueError, match="begin"):
        train()
    message, trace = reports[0]["message"], reports[0]["traceback"]
    assert message.startswith("begin")
    assert message.endswith("end")
    assert "[... 5996008 characters left out ...]" in message
    assert "in train" in trace
    assert "characters left out" in trace
    assert len(message) + len(trace) < 30_000


def test_groups_made_in_the_function_leave_no_descriptors_from_one_generation_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "Solo", TwoWorlds)
    opened = []

    @elastic.run
    def train() -> None:
        dist.new_group([0])
        opened.append(len(os.listdir("/proc/self/fd")))
        if len(opened) < 6:
            raise WorldChanged("a test", len(opened))

    train()
    assert opened[1:] == opened[1:2] * 5


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
    assert sorted(elastic.__all__) == sorted(
        ["ElasticSampler", "State", "World", "is_elastic", "long_pause", "record", "run", "steps", "world"]
    )
    assert all(getattr(elastic, name) is not None for name in elastic.__all__)
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        _ = elastic.absent


def test_the_state_may_be_said_where_the_function_takes_none() -> None:
    state = elastic.State(model=nn.Linear(2, 1), best=1.0)

    @elastic.run(state=state)
    def train(factor: float) -> float:
        state.best *= factor
        state.commit()
        return state.best

    assert train(3.0) == 3.0
    assert state._settled
    with pytest.raises(UsageError, match=r"expected state=elastic.State\(\.\.\.\), got 3"):
        elastic.run(state=3)(train)  # type: ignore[arg-type]
