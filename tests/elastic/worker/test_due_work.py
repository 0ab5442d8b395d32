"""`State.on_commit`: what is due at a commit is done once, on all ranks, whatever happens to the world there."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import extent
import numpy as np
import pytest
from generations import At, Change, play

import resilin
from resilin import distributed as dist
from resilin import elastic, nn, optim
from resilin.core.tensor import Tensor
from resilin.ddp import DistributedDataParallel as DDP
from resilin.elastic import control
from resilin.elastic.worker import session
from resilin.elastic.worker.state import State
from resilin.errors import UsageError, WorldChanged

STEPS, EVERY = 9, 2


def make(seed: int) -> State:
    resilin.manual_seed(seed)
    model = nn.Linear(3, 2)
    sampler = elastic.ElasticSampler(6, batch_size=6, shards=4)
    return State(model=model, optimizer=optim.SGD(model.parameters(), lr=0.1), sampler=sampler, total=0)


class Job:
    """A job with two works, which count who did what; `lasting`: registered before the first generation."""

    def __init__(self, lasting: bool = False) -> None:
        self.lasting = lasting
        self.begun: dict[tuple[str, int], Counter[int]] = defaultdict(Counter)
        """By work and commit: how often each thread's rank began it."""
        self.finished: dict[tuple[str, int], list[int]] = defaultdict(list)
        """By work and commit: the worlds in which all ranks ended it, one entry for each rank."""
        self.order: list[tuple[int, str]] = []
        self._lock = threading.Lock()

    def make(self, seed: int) -> State:
        state = make(seed)
        if self.lasting:
            self.register(state, lambda _: None)
        return state

    def register(self, state: State, at: At) -> None:
        for name in ("first", "second"):
            state.on_commit(every=EVERY, do=lambda state, name=name: self.work(name, state, at))

    def work(self, name: str, state: State, at: At) -> None:
        key = name, state.step
        assert state.sampler.step == state.step == state.total
        with self._lock:
            self.begun[key][dist.get_rank()] += 1
        at(f"{name} begins")
        told = Tensor._wrap(np.array([state.step], np.int64))
        dist.all_reduce(told)  # all ranks do it together, or a mismatch is raised
        assert told.item() == state.step * dist.get_world_size()
        at(f"{name} ends")
        with self._lock:
            self.finished[key].append(dist.get_world_size())
            if dist.get_rank() == 0:
                self.order.append((state.step, name))

    def train(self, state: State, at: At) -> None:
        if not self.lasting:
            self.register(state, at)
        model = DDP(state.model, shards=4)
        while state.step < STEPS:
            for plan in state.sampler.steps():
                state.optimizer.zero_grad()
                for shard in plan.shards:
                    with model.shard(shard):
                        if len(shard):
                            model(Tensor._wrap(np.ones((len(shard), 3), np.float32))).mean().backward()
                state.optimizer.step()
                state.total += 1
                state.commit(plan)
                at("committed")

    def check(self) -> None:
        """Each due commit had each work, done by a whole world."""
        due = range(EVERY, STEPS + 1, EVERY)
        assert set(self.begun) == {(name, step) for name in ("first", "second") for step in due}
        for key, sizes in self.finished.items():
            assert any(sizes.count(size) >= size for size in sizes), f"{key}: no world has done it as a whole: {sizes}"

    def often(self) -> set[tuple[str, int]]:
        """Works that some world had to do again."""
        return {key for key, ranks in self.begun.items() if any(count > 1 for count in ranks.values())}


@pytest.mark.parametrize("lasting", [False, True])
def test_each_due_commit_has_its_works_once_and_in_order_on_all_ranks(lasting: bool) -> None:
    job = Job(lasting)
    play(job.make, job.train, 3)
    job.check()
    assert not job.often()
    assert job.order == [(step, name) for step in (2, 4, 6, 8) for name in ("first", "second")]


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_change_of_the_world_at_a_due_commit_skips_and_repeats_nothing(lasting: bool, size: int) -> None:
    job = Job(lasting)
    play(job.make, job.train, 2, [Change(4, "committed", (), size), Change(5, "committed", (), 3)])
    job.check()
    assert not job.often(), "the survivors had registered in the generation before, too"
    assert job.order == [(step, name) for step in (2, 4, 6, 8) for name in ("first", "second")]


@pytest.mark.parametrize("site", ["first begins", "first ends", "second begins", "second ends", "committed"])
@pytest.mark.parametrize("lost", [(0,), (2,), (0, 1)])
def test_a_rank_that_is_killed_at_a_due_commit_leaves_its_work_to_the_next_world(
    site: str, lost: tuple[int, ...]
) -> None:
    job = Job()
    play(job.make, job.train, 3, [Change(4, site, lost, 2)])
    job.check()
    again = {"first begins": {"first"}, "first ends": {"first"}, "second begins": {"second"}, "second ends": {"second"}}
    assert job.often() == {(name, 4) for name in again.get(site, ())}, "what all ranks had done stays done"


@pytest.mark.parametrize("moment", extent.short(range(0, 60), of=range(0, 60, 7)))
def test_a_kill_at_any_moment_skips_no_work(moment: int) -> None:
    """In the collectives of the step and of the work, in the barrier, and anywhere in the commit."""
    job = Job(lasting=moment % 2 == 0)
    play(job.make, job.train, 3, [Change(3, f"moment {moment}", (moment % 3,), 3)])
    job.check()


def test_a_job_that_goes_on_from_a_saved_commit_does_not_do_its_work_again() -> None:
    job = Job()
    play(job.make, job.train, 2, [Change(4, "committed", (), 3, restart=True)])
    job.check()
    assert not job.often()
    assert [step for step, name in job.order if name == "first"] == [2, 4, 6, 8], "and counting goes on"


# ---- alone


def alone() -> State:
    return State(model=nn.Linear(2, 1), best=0.0)


class Worlds(session.Solo):
    """Worlds of one, the next at each commit whose number is in `at`."""

    at: tuple[int, ...] = ()

    def next_world(self, after: int, returned: bool = False) -> control.World:
        return replace(super().next_world(0), number=after + 1)

    def committed(self, step: int, may_leave: Any = None) -> None:
        if step in self.at:
            raise WorldChanged("a new world waits for this boundary", 0)


def test_the_new_world_that_waits_at_the_commit_comes_after_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "Solo", Worlds)
    monkeypatch.setattr(Worlds, "at", (2, 3, 4))
    seen: list[tuple[int, int]] = []

    @elastic.run
    def train(state: State) -> int:
        state.on_commit(every=2, do=lambda state: seen.append((elastic.world().generation, state.step)))
        while state.step < 6:
            state.commit()
        return elastic.world().generation

    state = alone()
    assert train(state) == 4
    assert seen == [(1, 2), (3, 4), (4, 6)]
    state.commit()
    state.commit()
    assert len(seen) == 3, "what the function registered ends with it"


def test_works_of_different_periods_follow_the_jobs_count_in_the_order_of_registration() -> None:
    state, seen = alone(), []
    state.on_commit(every=3, do=lambda state: seen.append(("a", state.step)))
    state.on_commit(every=2, do=lambda state: seen.append(("b", state.step)))
    state.on_commit(every=2, do=lambda state: seen.append(("c", state.step)))
    for _ in range(6):
        state.commit()
    assert seen == [("b", 2), ("c", 2), ("a", 3), ("b", 4), ("c", 4), ("a", 6), ("b", 6), ("c", 6)]


def test_an_error_of_the_work_says_whose_it_is_and_the_step_stays_committed() -> None:
    def save(state: State) -> None:
        raise OSError(28, "No space left on device")

    @elastic.run
    def train(state: State) -> None:
        state.on_commit(every=2, do=save)
        state.commit()
        state.best = 1.0
        state.commit()

    state = alone()
    with pytest.raises(OSError, match="No space left") as caught:
        train(state)
    (note,) = caught.value.__notes__
    assert note.startswith("raised by State.on_commit(every=2, do=")
    assert note.endswith("save) at commit 2; the step itself is committed")
    assert (state.step, state.best) == (2, 1.0)


def test_a_work_that_a_change_of_the_world_interrupts_is_due_again_in_the_next_world() -> None:
    begun: Counter[int] = Counter()
    job = Job()

    def train(state: State, at: At) -> None:
        def work(state: State) -> None:
            begun[state.step] += dist.get_rank() == 0
            at("work")

        state.on_commit(every=4, do=work)
        job.train(state, at)

    play(job.make, train, 2, [Change(4, "work", (), 2)])  # WorldChanged out of the work, on all ranks
    job.check()
    assert begun == {4: 2, 8: 1}


def test_a_commit_inside_of_the_work_is_refused() -> None:
    state = alone()
    state.on_commit(every=1, do=lambda state: state.commit())
    with pytest.raises(UsageError, match=r"State.commit inside of State.on_commit\(every=1, .*at commit 1"):
        state.commit()


@pytest.mark.parametrize(("every", "do"), [(0, print), (-1, print), (1.5, print), (True, print), (3, None)])
def test_arguments_without_a_meaning_are_refused(every: Any, do: Any) -> None:
    with pytest.raises(UsageError, match="expected every=N commits"):
        alone().on_commit(every=every, do=do)
