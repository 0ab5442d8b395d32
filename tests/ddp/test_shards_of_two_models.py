"""Fixed-shard mode: two wrapped models trained at once, where a rank's last shard may be empty."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import extent
import numpy as np
import pytest

import resilin
from resilin import nn, optim
from resilin.core.tensor import Tensor
from resilin.data import ElasticSampler
from resilin.data.elastic_sampler import Shard
from resilin.ddp import DistributedDataParallel as DDP
from resilin.errors import GroupAborted, UsageError
from resilin.nn import functional as F
from resilin.testing.ranks import run_ranks

WIDTH, CLASSES = 8, 3


def body() -> nn.Module:
    return nn.Sequential(nn.Linear(4, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.3), nn.Linear(WIDTH, WIDTH))


def head() -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(WIDTH), nn.Dropout(0.3), nn.Linear(WIDTH, CLASSES))


def data(samples: int) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((samples, 4)).astype(np.float32)
    return Tensor._wrap(x), Tensor._wrap(rng.integers(0, CLASSES, samples))


class Both(nn.Module):
    """Two wrapped models inside one that is not."""

    def __init__(self, shards: int, cap_mb: float) -> None:
        super().__init__()
        resilin.manual_seed(7)
        self.body = DDP(body(), shards=shards, bucket_cap_mb=cap_mb)
        self.head = DDP(head(), shards=shards, bucket_cap_mb=cap_mb)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def one_feeds_the_other(model: Both, shard: Shard, x: Tensor, y: Tensor) -> None:
    with model.body.shard(shard), model.head.shard(shard):
        if len(shard):
            F.cross_entropy(model(x), y).backward()


def entered_the_other_way(model: Both, shard: Shard, x: Tensor, y: Tensor) -> None:
    with model.head.shard(shard), model.body.shard(shard):
        if len(shard):
            F.cross_entropy(model(x), y).backward()


def a_backward_for_each(model: Both, shard: Shard, x: Tensor, y: Tensor) -> None:
    with model.body.shard(shard), model.head.shard(shard):
        if len(shard):
            hidden = model.body(x)
            hidden.square().mean().backward()
            F.cross_entropy(model.head(hidden.detach()), y).backward()


def the_last_inside_the_first(model: Both, shard: Shard, x: Tensor, y: Tensor) -> None:
    with model.body.shard(shard):
        hidden = model.body(x) if len(shard) else None
        with model.head.shard(shard):
            if hidden is not None:
                F.cross_entropy(model.head(hidden), y).backward()


def train(rank: int, world: int, shards: int, last: int, cap_mb: float, compute: Any) -> str:
    """Two epochs of a full step and one of `last` samples."""
    model = Both(shards, cap_mb)
    optimizer = optim.AdamW(model.parameters(), lr=0.05)
    sampler = ElasticSampler(2 * shards + last, 2 * shards, shards, seed=1)
    x, y = data(sampler.length)
    while sampler.epoch < 2:
        for plan in sampler.steps(rank, world):
            optimizer.zero_grad()
            for shard in plan.shards:
                compute(model, shard, x[shard.indices], y[shard.indices])
            optimizer.step()
            sampler.advance(plan)
    return hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values())).hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cut", "cap_mb", "compute"),
    extent.pairwise(
        [(4, 6), (5, 4), (7, 9)],  # shards, and samples of the last batch
        [25, 1e-5],  # one bucket, many
        [one_feeds_the_other, entered_the_other_way, a_backward_for_each, the_last_inside_the_first],
    ),
)
def test_the_bits_are_those_of_one_rank_where_last_shards_are_empty(
    cut: tuple[int, int], cap_mb: float, compute: Any
) -> None:
    shards, last = cut
    results = set()
    for world in (1, 2, 3, 4):
        resilin.manual_seed(5)
        results.update(run_ranks(world, train, world, shards, last, cap_mb, compute).results())
    assert len(results) == 1


def test_a_block_opened_in_another_after_its_backward_is_refused_on_every_rank() -> None:
    """Without samples there is no backward, and the inner one would be summed first."""

    def run(rank: int) -> None:
        model = Both(2, 25)
        x, y = data(6)
        for plan in ElasticSampler(6, 4, 2, shuffle=False).steps(rank, 2):
            (shard,) = plan.shards
            with model.body.shard(shard):
                if len(shard):
                    hidden = model.body(x[shard.indices])
                    hidden.square().mean().backward()
                with model.head.shard(shard):
                    if len(shard):
                        F.cross_entropy(model.head(hidden.detach()), y[shard.indices]).backward()

    outcome = run_ranks(2, run, abort=False)
    assert {type(error) for error in outcome.errors.values()} <= {UsageError, GroupAborted}
    words = r"rank [01], shard [01]: its block was opened inside that of another module, after the backward there"
    assert all(re.search(words, str(outcome.errors[rank])) for rank in (0, 1))


def test_after_an_error_inside_both_blocks_the_step_starts_again() -> None:
    def step(rank: int, fails: bool) -> list[bytes]:
        model = Both(2, 25)
        x, y = data(4)
        (plan,) = ElasticSampler(4, 4, 2, shuffle=False).steps(0, 1)

        def fail() -> None:
            with model.body.shard(plan.shards[0]), model.head.shard(plan.shards[0]):
                raise ValueError("in the user's code")

        if fails:
            with pytest.raises(ValueError, match="in the user's code"):
                fail()
        for shard in plan.shards:
            one_feeds_the_other(model, shard, x[shard.indices], y[shard.indices])
        return [param.grad.numpy().tobytes() for param in model.parameters()]

    assert run_ranks(1, step, True).results() == run_ranks(1, step, False).results()
