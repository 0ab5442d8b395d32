"""Sampler, prefetching loader and ledger lose and repeat no sample, whatever happens to the world."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import extent
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import resilin
from resilin.data import DataLoader, Dataset, ElasticSampler, ShardBatches
from resilin.elastic import ledger
from resilin.elastic.ledger import Entry


class Numbers(Dataset):
    """Sample i is the number i."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> np.int64:
        return np.int64(index)


@dataclass(frozen=True)
class Stretch:
    """One generation: `commits` steps in a world of `size`, then an end."""

    size: int
    commits: int
    end: str = "commit"
    """commit: between two steps. fetched: amid a step. applied: one rank has committed a step that dies with it.
    stopped: all end, and a job with batches of another size goes on from the last commit."""
    batch_size: int = 0
    """After "stopped": samples per step from then on; 0: as before."""


@dataclass
class Job:
    """Ranks of one job, played one after the other; what they committed, and what they wrote down."""

    options: dict[str, Any]
    loading: dict[str, Any]
    epochs: int
    committed: Counter[tuple[int, int]] = field(default_factory=Counter)
    """(epoch, sample) to how often it counted."""
    entries: list[Entry] = field(default_factory=list)
    generation: int = 0
    saved: dict[str, Any] | None = None

    def play(self, stretches: list[Stretch]) -> None:
        for stretch in [*stretches, Stretch(2, 10**9)]:
            self.generation += 1
            self.stretch(stretch)
            if stretch.end == "stopped" and stretch.batch_size:
                self.options = {**self.options, "batch_size": stretch.batch_size}

    def stretch(self, stretch: Stretch) -> None:
        samplers = [ElasticSampler(**self.options) for _ in range(stretch.size)]
        for rank, sampler in enumerate(samplers):
            sampler.bind(rank, stretch.size)
            if self.saved is not None:
                sampler.load_state_dict(self.saved)
        first = samplers[0]
        done, data = 0, Numbers(first.length)
        loaders = [DataLoader(data, batch_sampler=ShardBatches(each), **self.loading) for each in samplers]
        while first.epoch < self.epochs:
            batches = [iter(loader) for loader in loaders]
            left = [len(loader) for loader in loaders]
            for plans in zip(*[each.steps() for each in samplers], strict=True):
                if done == stretch.commits and stretch.end in ("commit", "stopped"):
                    return
                samples = []
                for rank, plan in enumerate(plans):
                    for shard in plan.shards:
                        if len(shard):
                            got = next(batches[rank]).tolist()
                            left[rank] -= 1
                            assert got == shard.indices.tolist()
                            samples += got
                if done == stretch.commits:
                    if stretch.end == "applied":
                        self.write(first, plans[-1], stretch.size - 1)
                    return
                self.committed.update((plans[0].epoch, sample) for sample in samples)
                for rank, (sampler, plan) in enumerate(zip(samplers, plans, strict=True)):
                    self.write(sampler, plan, rank)
                    sampler.advance(plan)
                self.saved = first.state_dict()
                done += 1
                if plans[0].ends_epoch:
                    assert left == [0] * stretch.size, "the loaders had a batch for every shard, and no more"
                    assert all(next(each, None) is None for each in batches)

    def write(self, sampler: ElasticSampler, plan: Any, rank: int) -> None:
        line = Entry(
            plan.epoch, plan.step, plan.position, plan.size, self.generation, rank,
            samples=sampler.samples_per_epoch, length=sampler.length, seed=sampler.seed if sampler.shuffle else None,
        )  # fmt: skip
        self.entries.append(line)


def check(job: Job) -> None:
    """Every sample of every epoch counted once, but for those that `drop_last` leaves out; the ledger says so, too."""
    assert set(job.committed.values()) == {1}
    length = job.options["length"]
    for epoch in range(job.epochs):
        count = sum(1 for seen, _ in job.committed if seen == epoch)
        used = ElasticSampler(**job.options).samples_per_epoch
        assert count == used
        assert used == length or job.options["drop_last"]
    verdict = ledger.verify(job.entries)
    assert verdict.ok, str(verdict)
    assert sum(verdict.epochs.values()) == sum(job.committed.values())


STORY = [
    Stretch(3, 1, "fetched"),
    Stretch(2, 1, "applied"),
    Stretch(5, 3, "commit"),
    Stretch(1, 0, "fetched"),
    Stretch(4, 2, "stopped"),
]
LOADING = {
    "in process": {},
    "ahead, by a thread": {"prefetch_factor": 3},
    "worker threads": {"num_workers": 2, "worker_method": "thread", "prefetch_factor": 4},
    "a worker process": {"num_workers": 1, "prefetch_factor": 5},
}


@pytest.mark.parametrize(
    ("loading", "drop_last"),
    extent.short(
        [(loading, drop_last) for loading in LOADING for drop_last in (False, True)],
        of=lambda loading, drop_last: drop_last == ("worker" in loading),
    ),
)
def test_whatever_fetches_ahead_nothing_is_lost_or_repeated(loading: str, drop_last: bool) -> None:
    options = {"length": 31, "batch_size": 8, "shards": 6, "seed": 5, "drop_last": drop_last}
    job = Job(options, LOADING[loading], epochs=3)
    job.play(STORY)
    check(job)


@pytest.mark.parametrize("commits", range(3, 8))
@pytest.mark.parametrize("end", ["commit", "fetched", "applied", "stopped"])
def test_the_world_may_change_at_just_before_and_just_after_the_end_of_an_epoch(commits: int, end: str) -> None:
    job = Job({"length": 21, "batch_size": 5, "shards": 4, "drop_last": False}, {}, epochs=2)  # 5 steps an epoch
    job.play([Stretch(3, commits, end), Stretch(2, 0, end), Stretch(4, 1, end)])
    check(job)


stretches = st.builds(
    Stretch,
    size=st.integers(1, 6),
    commits=st.integers(0, 6),
    end=st.sampled_from(["commit", "fetched", "applied", "stopped"]),
)


@settings(max_examples=extent.examples(150), deadline=None)
@given(
    length=st.integers(1, 40),
    batch_size=st.integers(1, 50),
    shards=st.integers(6, 9),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    ahead=st.booleans(),
    epochs=st.integers(1, 3),
    story=st.lists(stretches, max_size=6),
)
def test_any_history_counts_every_sample_once(
    length: int, batch_size: int, shards: int, shuffle: bool, drop_last: bool, ahead: bool, epochs: int,
    story: list[Stretch],
) -> None:  # fmt: skip
    drop_last = drop_last and batch_size <= length
    options = {"length": length, "batch_size": batch_size, "shards": shards, "shuffle": shuffle, "drop_last": drop_last}
    job = Job(options, {"prefetch_factor": 2} if ahead else {}, epochs)
    job.play(story)
    check(job)


@settings(max_examples=extent.examples(100), deadline=None)
@given(
    length=st.integers(4, 40),
    sizes=st.lists(st.tuples(st.integers(1, 12), st.integers(0, 5)), min_size=1, max_size=5),
    wasted=st.integers(0, 3),
)
def test_a_job_started_anew_with_batches_of_another_size_counts_every_sample_once(
    length: int, sizes: list[tuple[int, int]], wasted: int
) -> None:
    """Also when the job before had gone `wasted` steps beyond what it saved last."""
    job = Job({"length": length, "batch_size": 5, "shards": 6, "drop_last": False}, {}, epochs=3)
    for batch_size, commits in sizes:
        job.generation += 1
        job.stretch(Stretch(2, commits))
        beyond = ElasticSampler(**job.options)
        if job.saved is not None:
            beyond.load_state_dict(job.saved)
        for _ in range(wasted if beyond.epoch < job.epochs else 0):
            plan = next(beyond.steps())
            job.write(beyond, plan, 0)
            beyond.advance(plan)
        job.options = {**job.options, "batch_size": batch_size}
    job.play([])
    assert set(job.committed.values()) == {1}
    assert len(job.committed) == 3 * length
    verdict = ledger.verify(job.entries)
    finished = job.entries[-1].generation == job.generation  # else the last job found nothing to do
    assert verdict.ok or (wasted and not finished), str(verdict)


def test_the_loaders_workers_draw_nothing_from_the_global_generator_and_follow_the_position() -> None:
    sampler = ElasticSampler(20, 4, 2, seed=1)
    before = resilin.get_rng_state().tolist()
    batches = ShardBatches(sampler)
    seeds = [batches.base_seed()]
    list(DataLoader(Numbers(20), batch_sampler=batches, prefetch_factor=2))
    assert resilin.get_rng_state().tolist() == before
    sampler.advance(next(sampler.steps()))
    seeds.append(batches.base_seed())
    sampler.load_state_dict(ElasticSampler(20, 4, 2, seed=2).state_dict())
    assert len({*seeds, batches.base_seed()}) == 3
    assert batches.base_seed() == ShardBatches(ElasticSampler(20, 2, 1, seed=2)).base_seed()
