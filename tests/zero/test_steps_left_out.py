"""Steps that a loss scaler leaves out inside `Join`: ranks without data leave them out, too, with undivided bits."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import extent
import numpy as np
import pytest

import resilin
from resilin import distributed as dist
from resilin import nn, optim
from resilin.amp import GradScaler
from resilin.core.tensor import Tensor
from resilin.ddp import DistributedDataParallel as DDP
from resilin.distributed.api.join import Join
from resilin.errors import CollectiveMismatch, GroupAborted
from resilin.nn.utils import clip_grad_norm_
from resilin.testing.ranks import run_ranks
from resilin.zero import ZeroRedundancyOptimizer

Kind = Any  # a class of optimizers


def build() -> DDP:
    """A wrapped model, the same on all ranks."""
    resilin.manual_seed(3)
    return DDP(nn.Sequential(nn.Linear(20, 37), nn.ReLU(), nn.Linear(37, 10)), bucket_cap_mb=0.002)


def loss_of(model: DDP, rank: int, step: int) -> Any:
    """A function of (rank, step)."""
    rng = np.random.default_rng([rank, step])
    x = Tensor._wrap(rng.standard_normal((8, 20)).astype(np.float32))
    return nn.functional.cross_entropy(model(x), Tensor._wrap(rng.integers(0, 10, 8)))


def train(
    rank: int, batches: int, bad: Iterable[int], kind: Kind, divided: bool, clip: bool = False
) -> tuple[list[bytes], float, float]:
    """The parameters' bytes, the scale and the rate after `batches` steps, of which those in `bad` overflow on the last
    rank."""
    model, last = build(), dist.get_world_size() - 1
    params = model.parameters()
    optimizer: Any = ZeroRedundancyOptimizer(params, kind, lr=0.01) if divided else kind(params, lr=0.01)
    schedule = optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    scaler = GradScaler(growth_interval=2)
    with Join([model, optimizer] if divided else [model]):
        for step in range(batches):
            optimizer.zero_grad()
            loss = loss_of(model, rank, step)
            scaler.scale(loss * float("inf") if step in bad and rank == last else loss).backward()
            if clip:
                scaler.unscale_(optimizer)
                clip_grad_norm_(model.parameters(), 0.05)
            before = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            if scaler.get_scale() >= before:
                schedule.step()
    found = [param.detach().numpy().tobytes() for param in model.module.parameters()]
    return found, scaler.get_scale(), schedule.get_last_lr()[0]


@pytest.mark.parametrize(
    ("batches", "clip", "kind"),
    extent.pairwise(
        [(2, 5), (2, 5, 5), (2, 3, 5), (5, 2, 5), (0, 5), (0, 1, 5)],
        [False, True],
        [optim.AdamW, optim.Adafactor],  # in flat ranges, and in whole tensors
    ),
)
def test_a_step_left_out_after_the_data_of_some_ranks_ended_leaves_the_undivided_bits(
    batches: tuple[int, ...], clip: bool, kind: Kind
) -> None:
    def work(rank: int, divided: bool) -> list[Any]:
        left_out = ((), (0,), (1,), (2,), (3,), (4,), (2, 3), (1, 3, 4), range(5))
        return [train(rank, batches[rank], bad, kind, divided, clip) for bad in left_out]

    want = run_ranks(len(batches), work, False).results()
    got = run_ranks(len(batches), work, True).results()
    for mine, others in zip(got, want, strict=True):
        assert [bits for bits, *_ in mine] == [bits for bits, *_ in others]
    assert [rank[1:] for rank in got[-1]] == [rank[1:] for rank in want[-1]]  # the last rank has had every step
    assert len({scale for _, scale, _ in got[-1]}) > 1, "steps were left out"


def test_the_optimizer_alone_leaves_out_what_its_scaler_does_on_all_ranks() -> None:
    def work(rank: int) -> list[float]:
        params = [nn.Parameter(resilin.ones(50))]
        optimizer, scaler = ZeroRedundancyOptimizer(params, optim.SGD, lr=0.125), GradScaler()
        with Join([optimizer]):
            for step in range(2 + 2 * rank):
                params[0].grad = resilin.full((50,), float("nan") if step == 3 else scaler.get_scale())
                scaler.step(optimizer)
                scaler.update()
        return sorted(set(params[0].detach().numpy().tolist()))

    assert run_ranks(3, work).results() == [[1 - 5 * 0.125]] * 3


def test_steps_that_are_left_out_by_hand_are_no_steps_inside_join_and_nothing_outside() -> None:
    def work(rank: int) -> tuple[float, int]:
        params = [nn.Parameter(resilin.ones(50))]
        optimizer = ZeroRedundancyOptimizer(params, optim.SGD, lr=0.125)
        params[0].grad = resilin.ones(50)
        with Join([optimizer]):
            for step in range(2 + 2 * rank):
                if step == 2:
                    optimizer.skip_step()
                else:
                    optimizer.step()
        before = dist.default_group().stats()["collectives"]
        optimizer.skip_step()
        after = dist.default_group().stats()["collectives"]
        return float(params[0].detach().numpy()[0]), int(after - before)

    assert run_ranks(2, work).results() == [(1 - 3 * 0.125, 0)] * 2


def test_ranks_of_which_some_step_and_some_leave_it_out_are_named_on_all() -> None:
    def work(rank: int) -> None:
        params = [nn.Parameter(resilin.ones(50))]
        optimizer, scaler = ZeroRedundancyOptimizer(params, optim.SGD, lr=0.125), GradScaler()
        with Join([optimizer]):
            for step in range(1 + 2 * rank):
                bad = step == 1 and rank == 2  # no wrapper makes gradients equal
                params[0].grad = resilin.full((50,), float("nan") if bad else scaler.get_scale())
                scaler.step(optimizer)
                scaler.update()

    errors = run_ranks(3, work, abort=False).errors
    says = "ZeroRedundancyOptimizer: inside Join rank 2 leaves out a step that rank 1 makes"
    assert {rank: (type(error), says in str(error)) for rank, error in errors.items()} == dict.fromkeys(
        range(3), (CollectiveMismatch, True)
    )


def test_an_iteration_without_a_step_says_what_to_call() -> None:
    def work(rank: int) -> None:
        model = build()
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optim.SGD, lr=0.125)
        with Join([model, optimizer]):
            for step in range(1 + 2 * rank):
                optimizer.zero_grad()
                loss_of(model, rank, step).backward()
                if step != 1:
                    optimizer.step()

    errors = run_ranks(2, work, abort=False).errors
    assert type(errors[0]) is CollectiveMismatch
    assert re.search(r"^ZeroRedundancyOptimizer: .* without step\(\).*call skip_step\(\)", str(errors[0]))
    assert isinstance(errors[1], CollectiveMismatch | GroupAborted)
