"""`elastic.steps`: one loop for every strategy, with the bits of the loop by hand, and each sample counted once."""

from __future__ import annotations

import gc
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import extent
import numpy as np
import pytest
from generations import At, Change, play

import resilin
from resilin import distributed as dist
from resilin import elastic, nn, optim, zero
from resilin.core import rng
from resilin.data import DataLoader, Dataset, ElasticSampler, ShardBatches, TensorDataset
from resilin.ddp import DistributedDataParallel as DDP
from resilin.ddp import ShardSums
from resilin.elastic import control, ledger
from resilin.elastic.ledger import Entry
from resilin.elastic.worker import session
from resilin.elastic.worker.state import State
from resilin.errors import UsageError, WorldChanged
from resilin.nn import functional as F
from resilin.testing.ranks import run_ranks


@pytest.fixture(autouse=True)
def nothing_is_fetched_any_more() -> Iterator[None]:
    """A rank that died in a test has its frames, and its loader in them, in its error."""
    yield
    gc.collect()


SHARDS, SAMPLES, BATCH, EPOCHS = 4, 21, 8, 3  # steps of 8, 8 and 5 samples: the last has two empty shards
_values = np.random.default_rng(0)
X = resilin.from_numpy(_values.standard_normal((SAMPLES, 4)).astype(np.float32))
Y = resilin.from_numpy(_values.integers(0, 3, SAMPLES))
DATA = TensorDataset(X, Y)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 3))


class Way:
    """How a model is trained. stage: of zero.shard, 0 for DDP. loader: whether data comes from a DataLoader."""

    def __init__(self, stage: int = 0, shards: int | None = SHARDS, loader: bool = True) -> None:
        self.stage, self.shards, self.loader = stage, shards, loader

    def make(self, seed: int) -> State:
        resilin.manual_seed(seed)
        model: Any = network()
        if self.stage:
            model = zero.shard(model, stage=self.stage, shards=self.shards)
        sampler = ElasticSampler(SAMPLES, BATCH, self.shards, in_rounds=bool(self.stage and self.shards))
        feeding = {"loader": DataLoader(DATA, batch_sampler=sampler, prefetch_factor=2)}
        return State(
            model=model,
            optimizer=optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
            **(feeding if self.loader else {"sampler": sampler}),
            losses=[],
        )

    def source(self, state: State) -> tuple[Any, ElasticSampler]:
        return (state.loader, state.loader.batch_sampler.sampler) if self.loader else (state.sampler, state.sampler)

    def model(self, state: State) -> Any:
        return state.model if self.stage else DDP(state.model, shards=self.shards)

    def train(self, state: State, at: At) -> None:
        """The short loop."""
        model, (source, _) = self.model(state), self.source(state)
        sums = None if self.stage or not self.shards else ShardSums("loss", shards=SHARDS)
        for step in elastic.steps(source, epochs=EPOCHS):
            state.optimizer.zero_grad()
            for given in step:
                x, y = given if self.loader else (X[given.indices], Y[given.indices])
                assert np.array_equal(x.numpy(), X.numpy()[step.shard.indices])
                at("forward")
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                if sums is not None:
                    sums.add(step.shard, loss=loss * len(step.shard))
            at("reduced")
            if sums is not None:
                state.losses.append(sums.reduce()["loss"] / step.size)
            state.optimizer.step()
            at("applied")

    def by_hand(self, state: State, at: At) -> None:
        """The same as a program wrote it before."""
        model, (source, sampler) = self.model(state), self.source(state)
        sums = None if self.stage or not self.shards else ShardSums("loss", shards=SHARDS)
        while sampler.epoch < EPOCHS:
            batches = iter(source) if self.loader else None
            for plan in sampler.steps():
                state.optimizer.zero_grad()
                for shard in plan.shards:
                    with model.shard(shard) if self.shards else rng.keyed(shard.step, shard.number):
                        if len(shard):
                            x, y = next(batches) if batches is not None else (X[shard.indices], Y[shard.indices])
                            loss = F.cross_entropy(model(x), y)
                            loss.backward()
                            if sums is not None:
                                sums.add(shard, loss=loss * len(shard))
                if sums is not None:
                    state.losses.append(sums.reduce()["loss"] / plan.size)
                state.optimizer.step()
                state.commit(plan)


def fingerprints(way: Way, train: Callable[[State, At], None], size: int, changes: list[Change]) -> set[str]:
    """The end of a job, on all its ranks."""
    ends: list[str] = []

    def all_of_it(state: State, at: At) -> None:
        train(state, at)
        ends.append(state.fingerprint())

    play(way.make, all_of_it, size, changes)
    return set(ends)


WAYS = {"ddp": Way(), "sampler alone": Way(loader=False), "stage 2": Way(2), "stage 3": Way(3)}


@pytest.mark.parametrize("name", WAYS)
def test_the_short_loop_gives_the_bits_of_the_loop_by_hand_in_any_world(name: str) -> None:
    way = WAYS[name]
    expected = fingerprints(way, way.by_hand, 1, [])
    assert len(expected) == 1
    for size in (1, 2, 3, 4):
        assert fingerprints(way, way.train, size, []) == expected, f"{size} ranks"


def test_ddp_and_zero_run_the_same_loop_to_the_same_parameters() -> None:
    ends = []
    for way in (Way(), Way(2), Way(3)):

        def train(state: State, at: At, way: Way = way) -> None:
            way.train(state, at)
            ends.append({name: value.numpy().tobytes() for name, value in state.model.state_dict().items()})

        play(way.make, train, 3)
    assert len(ends) == 9
    assert all(end == ends[0] for end in ends)


CHANGES = [
    [Change(1, "forward", (1,), 3), Change(4, "applied", (0,), 2)],
    [Change(2, "reduced", (2,), 2), Change(5, "forward", (), 4)],
    [Change(3, "forward", (1,), 2), Change(6, "reduced", (0,), 4)],
]


@pytest.mark.parametrize("changes", CHANGES)
@pytest.mark.parametrize("name", extent.short(WAYS, of=["ddp", "stage 3"]))
def test_worlds_that_change_in_the_short_loop_end_with_the_same_bits(name: str, changes: list[Change]) -> None:
    way = WAYS[name]
    assert fingerprints(way, way.train, 3, changes) == fingerprints(way, way.by_hand, 1, [])


@pytest.mark.parametrize("moment", extent.short(range(0, 80), of=range(0, 80, 13)))
def test_a_kill_at_any_moment_of_the_short_loop_ends_with_the_same_bits(moment: int) -> None:
    way = WAYS["stage 3" if moment % 2 else "ddp"]
    changes = [Change(2, f"moment {moment}", (moment % 3,), 2)]
    assert fingerprints(way, way.train, 3, changes) == fingerprints(way, way.by_hand, 1, [])


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_without_fixed_shards_each_rank_has_one_batch_in_a_step(stage: int) -> None:
    way = Way(stage, shards=None)
    given: list[tuple[int, list[int]]] = []

    def train(state: State, at: At) -> None:
        model, (loader, _) = way.model(state), way.source(state)
        for step in elastic.steps(loader, epochs=1):
            state.optimizer.zero_grad()
            batches = list_of(step, model)
            assert len(batches) == 1
            given.append((step.step, step.shards[0].indices.tolist() if step.shards[0].counts else []))
            state.optimizer.step()

    def list_of(step: Any, model: Any) -> list[Any]:
        seen = []
        for x, y in step:
            F.cross_entropy(model(x), y).backward()
            seen.append((x, y))
        return seen

    play(way.make, train, 3)
    counted = sorted(index for _, indices in given for index in indices)
    assert counted == list(range(SAMPLES)), "every sample on one rank"


def test_the_share_makes_the_mean_over_ranks_that_over_the_samples_also_where_some_have_none() -> None:
    """9 samples in steps of 8: one rank has the last one, and the others repeat it."""
    x = np.arange(9, dtype=np.float32)[:, None]

    def trained(size: int) -> set[bytes]:
        def rank_main(rank: int) -> bytes:
            net = nn.Linear(1, 1, bias=False)
            net.weight.data.fill_(0.5)
            sampler = ElasticSampler(9, 8, shuffle=False)
            sampler.bind(rank, size)
            model, optimizer = DDP(net), optim.SGD(net.parameters(), lr=0.01)
            state = State(model=net, optimizer=optimizer, sampler=sampler)
            state._capture()
            for step in elastic.steps(sampler):
                optimizer.zero_grad()
                for shard in step:
                    loss = (model(resilin.from_numpy(x[shard.indices])) ** 2).mean() * shard.share
                    loss.backward()
                optimizer.step()
            assert (state.step, sampler.epoch) == (2, 1)
            return net.weight.detach().numpy().round(5).tobytes()

        return set(run_ranks(size, rank_main, timeout_s=60).results())

    assert trained(1) == trained(2) == trained(4)


# ---- alone: errors, break, return


def alone(length: int = 8, batch: int = 4, shards: int | None = 2) -> tuple[State, ElasticSampler]:
    net = nn.Linear(2, 1)
    sampler = ElasticSampler(length, batch, shards, shuffle=False)
    return State(model=net, optimizer=optim.SGD(net.parameters(), lr=0.1), sampler=sampler), sampler


def compute(model: Any, step: Any) -> None:
    for shard in step:
        model(resilin.ones(len(shard), 2)).mean().backward()


def test_a_step_is_committed_when_the_next_is_asked_for_or_by_the_program() -> None:
    state, sampler = alone()
    seen = []

    @elastic.run
    def train(state: State) -> None:
        model = DDP(state.model, shards=2)
        for step in elastic.steps(sampler, epochs=2):
            seen.append((step.step, state.step, step.ends_epoch))
            state.optimizer.zero_grad()
            compute(model, step)
            state.optimizer.step()
            if step.step == 1:
                state.commit(step)
                assert state.step == 2

    train(state)
    assert seen == [(0, 0, False), (1, 1, True), (2, 2, False), (3, 3, True)]
    assert (state.step, sampler.epoch) == (4, 2)


@pytest.mark.parametrize("update", [True, False])
def test_a_step_that_is_left_after_its_update_counts_and_one_left_before_does_not(update: bool) -> None:
    for leave in ("break", "return"):
        state, sampler = alone()

        @elastic.run
        def train(state: State, leave: str = leave, sampler: ElasticSampler = sampler) -> None:
            model = DDP(state.model, shards=2)
            for step in elastic.steps(sampler, epochs=9):
                state.optimizer.zero_grad()
                compute(model, step)
                if update or step.step < 2:
                    state.optimizer.step()
                if step.step == 2:
                    if leave == "return":
                        return
                    break

        train(state)
        assert state.step == sampler.step == 2 + update, leave


@pytest.mark.parametrize("shards", [SHARDS, None])
@pytest.mark.parametrize("stage", [0, 2, 3])
@pytest.mark.parametrize("size", [1, 3])
def test_a_break_after_the_update_of_divided_state_counts_the_step_too(
    stage: int, size: int, shards: int | None
) -> None:
    way, ends = Way(stage, shards), []

    def train(state: State, at: At) -> None:
        model, (loader, sampler) = way.model(state), way.source(state)
        for update in (True, False):
            for step in elastic.steps(loader, epochs=EPOCHS):
                state.optimizer.zero_grad()
                for x, y in step:
                    F.cross_entropy(model(x), y).backward()
                if update:
                    state.optimizer.step()
                if step.step == 4 or not update:
                    break
            state._commit_left()  # as the function's return does
        ends.append((state.step, sampler.step))

    play(way.make, train, size)
    assert ends == [(5, 5)] * size, "but a step without its update does not"


def test_a_second_loop_begins_behind_the_step_that_the_first_was_left_in() -> None:
    state, sampler = alone(shards=None)
    order: list[int] = []
    state._capture()
    for _ in range(3):
        for step in elastic.steps(sampler, epochs=9):
            state.optimizer.zero_grad()
            compute(state.model, step)  # a world of one without fixed shards needs no wrapper
            state.optimizer.step()
            order.append(step.step)
            break
    assert order == [0, 1, 2]


def test_a_change_of_the_world_at_the_loops_commit_calls_the_function_again_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Worlds(session.Solo):
        def next_world(self, after: int, returned: bool = False) -> control.World:
            return replace(super().next_world(0), number=after + 1)

        def committed(self, step: int, may_leave: Any = None) -> None:
            if step in (1, 3, 6):
                raise WorldChanged("a new world waits for this boundary", 0)

    monkeypatch.setattr(session, "Solo", Worlds)
    state, sampler = alone()
    steps: list[tuple[int, int]] = []
    done: list[int] = []

    @elastic.run(state=state)
    def train(epochs: int) -> str:
        model = DDP(state.model, shards=2)
        state.on_commit(every=3, do=lambda state: done.append(state.step))
        for step in elastic.steps(sampler, epochs=epochs):
            steps.append((elastic.world().generation, step.step))
            state.optimizer.zero_grad()
            compute(model, step)
            state.optimizer.step()
            if step.step == 5:
                break
        return "the end"

    assert train(9) == "the end"
    assert steps[:6] == [(1, 0), (2, 1), (2, 2), (3, 3), (3, 4), (3, 5)]
    assert steps[6:] == [(4, step) for step in range(6, 18)], "what ends training belongs in the state"
    assert done == [3, 6, 9, 12, 15, 18]


def test_an_error_in_the_body_leaves_no_block_open_and_commits_nothing() -> None:
    state, sampler = alone()

    @elastic.run
    def train(state: State) -> None:
        model = DDP(state.model, shards=2)
        before = resilin.get_rng_state()

        def fail() -> None:
            for step in elastic.steps(sampler):
                for shard in step:
                    if shard.number == 1:
                        raise ValueError("mine")
                    model(resilin.ones(len(shard), 2)).mean().backward()

        with pytest.raises(ValueError, match="mine"):
            fail()
        assert resilin.get_rng_state().equal(before), "draws are the program's again"
        assert state.step == sampler.step == 0
        for step in elastic.steps(sampler):  # the step begins again with its first shard
            state.optimizer.zero_grad()
            compute(model, step)
            state.optimizer.step()
        assert state.step == 2

    train(state)


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_a_break_out_of_a_steps_shards_is_refused_on_all_ranks_by_what_comes_next(stage: int) -> None:
    way = Way(stage, loader=False)

    def rank_main(rank: int) -> None:
        state = way.make(0)
        sampler = state.sampler
        sampler.bind(rank, dist.get_world_size())
        model = way.model(state)
        state._capture()
        for step in elastic.steps(sampler):
            state.optimizer.zero_grad()
            for shard in step:
                F.cross_entropy(model(X[shard.indices]), Y[shard.indices]).backward()
                if rank == 1:
                    break
            state.optimizer.step()

    outcome = run_ranks(2, rank_main, timeout_s=60)
    assert set(outcome.errors) == {0, 1}
    words = r"SGD.step in the middle of a step: step 0, which began at .*test_feed.py:\d+, has had shards \[.*\] only"
    assert isinstance(outcome.errors[1], UsageError)
    for error in outcome.errors.values():
        assert re.search(words, str(error)), str(error)


def test_a_step_whose_shards_were_not_iterated_over_is_refused() -> None:
    state, sampler = alone()

    @elastic.run
    def train(state: State) -> None:
        model = DDP(state.model, shards=2)
        assert model.shards == 2
        for _ in elastic.steps(sampler):
            pass

    with pytest.raises(UsageError, match=r"step 0 was not computed to its end .*`for x, y in step:`"):
        train(state)


def test_the_shards_of_a_step_are_given_once() -> None:
    state, sampler = alone(shards=None)
    step = next(elastic.steps(sampler))
    assert len(list(step)) == 1
    with pytest.raises(UsageError, match="step 0: its shards are given once"):
        iter(step)
    assert state.step == 0


def test_what_does_not_fit_together_is_refused_with_what_to_do() -> None:
    state, sampler = alone(shards=2)

    def first(*args: Any, **kwargs: Any) -> Any:
        return list(next(elastic.steps(*args, **kwargs)))

    with pytest.raises(UsageError, match=r"no module of the State computes in shards; .*shards=2\)"):
        first(sampler)
    with pytest.raises(UsageError, match=r"expected an ElasticSampler, or a loader over one .*, got DataLoader"):
        first(DataLoader(DATA))
    with pytest.raises(UsageError, match="a State must hold the sampler"):
        first(ElasticSampler(4, 2))
    with pytest.raises(UsageError, match="in_order=True"):
        elastic.steps(DataLoader(DATA, batch_sampler=sampler, in_order=False))
    with pytest.raises(UsageError, match="it comes as batch_sampler="):
        DataLoader(DATA, sampler=sampler)
    with pytest.raises(UsageError, match="the loader 'data' keeps its place in the data to itself"):
        State(data=DataLoader(DATA, batch_size=4))

    @elastic.run
    def train(state: State) -> None:
        model = DDP(state.model, shards=2)
        assert model.shards == 2
        with pytest.raises(UsageError, match=r"fixed shards \(2\), but the sampler was made without; .*shards=2"):
            first(state.sampler)

    train(alone(shards=None)[0])
    assert state.step == 0


def test_a_loader_is_registered_for_its_sampler() -> None:
    loader = DataLoader(DATA, batch_sampler=ElasticSampler(SAMPLES, BATCH))
    assert isinstance(loader.batch_sampler, ShardBatches)
    state = State(loader=loader, sampler=loader.batch_sampler.sampler)
    assert state.loader is loader
    state.commit(next(state.sampler.steps()))
    saved = state.state_dict()
    assert saved["objects"]["loader"]["position"] == BATCH
    fresh = DataLoader(DATA, batch_sampler=ElasticSampler(SAMPLES, BATCH))
    other = State(loader=fresh, sampler=fresh.batch_sampler.sampler)
    other.load_state_dict(saved)
    assert fresh.batch_sampler.sampler.position == BATCH
    assert repr(state.loader) == repr(loader)


@pytest.mark.parametrize("where", ["shard", "step", "commit"])
def test_a_change_of_the_world_ends_what_was_fetched_ahead_before_the_function_is_called_again(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Worlds(session.Solo):
        def next_world(self, after: int, returned: bool = False) -> control.World:
            return replace(super().next_world(0), number=after + 1)

        def committed(self, step: int, may_leave: Any = None) -> None:
            change("commit", step)

    def change(here: str, step: int) -> None:
        if (here, step) == (where, 2) and elastic.world().generation == 1:
            raise WorldChanged("a test", 1)

    monkeypatch.setattr(session, "Solo", Worlds)
    way, left = Way(), []
    state = way.make(0)

    @elastic.run(state=state)
    def train() -> None:
        left.append(fetching())
        model = DDP(state.model, shards=SHARDS)
        for step in elastic.steps(state.loader, epochs=EPOCHS):
            state.optimizer.zero_grad()
            for x, y in step:
                change("shard", step.step)
                F.cross_entropy(model(x), y).backward()
            change("step", step.step)
            state.optimizer.step()

    before = fetching()
    gc.disable()
    try:
        train()
        assert left == [before, before], "without the help of the garbage collector"
        assert fetching() == before
    finally:
        gc.enable()
    assert state.step == 9


def fetching() -> int:
    """Threads of loaders."""
    return sum(thread.name.startswith("resilin-data-prefetch") for thread in threading.enumerate())


class Failing(Dataset[Any]):
    """Sample 5 cannot be read, the first time."""

    def __init__(self) -> None:
        self.failed = False

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        if index == 5 and not self.failed:
            self.failed = True
            raise OSError("sample 5")
        return np.float32(index)


@pytest.mark.parametrize("loading", [{}, {"prefetch_factor": 2}])
def test_an_error_of_the_data_set_comes_out_of_the_loop_and_the_step_can_be_begun_again(loading: Any) -> None:
    loader = DataLoader(Failing(), batch_sampler=ElasticSampler(8, 4, shuffle=False), **loading)
    state, seen = State(loader=loader), []

    def some() -> Iterator[None]:
        for step in elastic.steps(loader):
            for x in step:
                seen.append(x.tolist())
                yield

    with pytest.raises(OSError, match="sample 5"):
        list(some())
    assert state.step == 1
    list(some())
    assert seen == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert state.step == 2


def test_prefetched_batches_that_meet_a_change_of_the_world_count_once() -> None:
    """The ledger of a job whose loader is two batches ahead when the world changes, between and amid steps."""
    way, entries = Way(), []

    class Book:
        def append(self, entry: Entry) -> None:
            entries.append(entry)

    def make(seed: int) -> State:
        state = way.make(seed)
        state._use_ledger(Book())  # type: ignore[arg-type]  # what it needs of one
        return state

    changes = [Change(1, "forward", (1,), 3), Change(3, "forward", (), 2), Change(5, "reduced", (0,), 4)]
    play(make, way.train, 3, changes)
    verdict = ledger.verify(entries)
    assert verdict.ok, str(verdict)
    assert dict(verdict.epochs) == dict.fromkeys(range(EPOCHS), SAMPLES)
