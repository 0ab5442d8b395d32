"""Divided modules in fixed shards: in every world and history the bits are those of one worker with all of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from itertools import count, product
from pathlib import Path

import extent
import numpy as np
import pytest
from generations import At, Change, play
from hypothesis import given, settings
from hypothesis import strategies as st

import resilin
from resilin import checkpoint, nn, optim, zero
from resilin import distributed as dist
from resilin.core.tensor import Tensor
from resilin.data import ElasticSampler
from resilin.ddp import DistributedDataParallel, ShardSums
from resilin.elastic.worker.state import State
from resilin.errors import UsageError
from resilin.nn import functional as F

SHARDS, SAMPLES, BATCH, STEPS, CLASSES = 6, 29, 13, 5, 3  # batches of 13, 13 and 3: one shard of three samples, then
STAGES = (2, 3)


def make(seed: int, stage: int = 3) -> State:
    resilin.manual_seed(seed)
    net = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, CLASSES))
    model = zero.shard(net, stage, shards=SHARDS) if stage else net
    optimizer = optim.AdamW(model.parameters(), lr=0.05)
    return State(
        model=model,
        optimizer=optimizer,
        scheduler=optim.lr_scheduler.StepLR(optimizer, 2, 0.5),
        sampler=ElasticSampler(SAMPLES, BATCH, SHARDS, seed=3, in_rounds=stage > 0),
        history=[],
    )


def train(state: State, at: At, until: int = STEPS) -> None:
    divided = isinstance(state.model, zero.ShardedModule)
    model = state.model if divided else DistributedDataParallel(state.model, shards=SHARDS)
    sums = ShardSums("loss", shards=SHARDS)
    rng = np.random.default_rng(1)
    x = Tensor._wrap(rng.standard_normal((SAMPLES, 6)).astype(np.float32))
    labels = Tensor._wrap(rng.integers(0, CLASSES, SAMPLES))
    while state.step < until:
        for plan in state.sampler.steps():
            state.optimizer.zero_grad()
            for shard in plan.shards:
                with model.shard(shard):
                    if len(shard):
                        loss = F.cross_entropy(model(x[shard.indices]), labels[shard.indices])
                        at("forward")
                        loss.backward()
                        sums.add(shard, loss=loss * len(shard))
                at("between")
            state.history.append(sums.reduce()["loss"])
            at("reduced")
            state.optimizer.step()
            at("applied")
            state.scheduler.step()
            state.history.append(resilin.rand(1).item())  # drawn outside of shards, alike on all ranks
            state.commit(plan)
            at("committed")
            if state.step == until:
                return


@cache
def undisturbed() -> str:
    """One worker with the module in DistributedDataParallel, and the plain optimizer."""
    (one,) = play(partial(make, stage=0), train, 1)
    return one


def results(stage: int, size: int, *changes: Change) -> set[str]:
    return set(play(partial(make, stage=stage), train, size, changes))


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("size", range(1, SHARDS + 1))
def test_in_every_world_the_bits_are_those_of_one_worker_with_the_whole_module(size: int, stage: int) -> None:
    assert results(stage, size) == {undisturbed()}


SITES = ["forward", "between", "reduced", "applied", "committed"]


@pytest.mark.parametrize(
    ("site", "stage"),
    extent.short(product(SITES, STAGES), of=lambda site, stage: STAGES[SITES.index(site) % len(STAGES)] == stage),
)
def test_whoever_is_lost_of_whatever_world_and_whatever_comes_after(
    site: str, stage: int, turns: Callable[..., int]
) -> None:
    for size in (2, 4):
        for lost, after in list(product((0, size - 1), (size - 1, size + 1)))[:: turns(short=3, full=1)]:
            change = Change(2, site, (lost,), after)
            assert results(stage, size, change) == {undisturbed()}, (size, change)


@pytest.mark.parametrize("stage", STAGES)
def test_a_rank_may_die_at_every_announced_moment_of_a_step(stage: int, turns: Callable[..., int]) -> None:
    """Between the rounds, and in every gathering, exchange and message."""
    for number in count(stage, turns(short=47, full=7) if stage == 3 else turns(short=23, full=3)):
        began: list[int] = []

        def counting(state: State, at: At, began: list[int] = began) -> None:
            began.append(dist.get_world_size())
            train(state, at)

        changes = [Change(STEPS - 2, f"moment {number}", (1,), 2)]
        assert set(play(partial(make, stage=stage), counting, 3, changes)) == {undisturbed()}, changes
        if 2 not in began:  # the rank did not die: there is no such moment
            break
    assert number > 60, "announcements of a step"


sites = st.sampled_from(["forward", "between", "reduced", "applied", "committed", ""])  # "": a commit, without a loss
events = st.tuples(st.integers(0, 4), sites, st.integers(0, 5), st.integers(-1, 2))


@settings(max_examples=extent.examples(8), deadline=None)
@given(stage=st.sampled_from(STAGES), first=st.integers(1, SHARDS), history=st.lists(events, max_size=4))
def test_any_sequence_of_changes_ends_with_the_same_bits(
    stage: int, first: int, history: list[tuple[int, str, int, int]]
) -> None:
    changes, size = [], first
    for step, site, rank, more in history:
        if size == 1 and (site or more < 0):  # nobody would be left
            continue
        size = min(size + more, SHARDS)
        changes.append(Change(step, site or "committed", (rank,) if site else (), size))
    assert results(stage, first, *changes) == {undisturbed()}


@pytest.mark.parametrize(("before", "after", "size"), [(0, 3, 4), (0, 2, 1), (3, 0, 3), (2, 3, 2)])
def test_a_checkpoint_goes_on_with_other_divisions(tmp_path: Path, before: int, after: int, size: int) -> None:
    """Also of a whole module, whose shards are dealt out in runs."""

    def until_saved(state: State, at: At) -> None:
        train(state, at, until=3)
        checkpoint.save(tmp_path / "saved", {"state": state})

    def from_saved(state: State, at: At) -> None:
        if state.step == 0:
            checkpoint.load(tmp_path / "saved", {"state": state})
        train(state, at)

    play(partial(make, stage=before), until_saved, 2)
    assert set(play(partial(make, stage=after), from_saved, size)) == {undisturbed()}


def test_gradients_of_steps_that_were_committed_before_are_refused() -> None:
    def trained(state: State, at: At) -> None:
        x = Tensor._wrap(np.ones((SAMPLES, 6), np.float32))
        for plan in state.sampler.steps():
            for shard in plan.shards:
                with state.model.shard(shard):
                    state.model(x[shard.indices]).square().mean().backward()
            state.optimizer.step()
            state.commit(plan)

    with pytest.raises(
        UsageError, match=r"the gradients still hold steps \[0\] of the sampler, committed before step 1"
    ):
        play(make, trained, 2)


def test_a_world_that_is_larger_than_the_number_of_shards_is_refused() -> None:
    """`elastic-run` makes none: the number is known from the sampler, if that has the module's."""

    def entered(state: State, at: At) -> None:
        state.model.shard(next(state.sampler.steps()).shards[0]).__enter__()

    with pytest.raises(
        UsageError, match=rf"zero\.shard\(shards={SHARDS}\): expected an integer of at least the world size"
    ):
        play(make, entered, SHARDS + 1)
