"""Updates inside backward have the bits of plain DDP with the undivided optimizer, from the first step on."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

import resilin
from resilin import nn, optim
from resilin.amp import GradScaler
from resilin.core.tensor import Tensor
from resilin.ddp import DistributedDataParallel as DDP
from resilin.ddp.comm_hooks import default_hooks, powerSGD_hook
from resilin.ddp.comm_hooks.ddp_zero_hook import hook_with_zero_step, hook_with_zero_step_interleaved
from resilin.errors import UsageError, UsageTypeError
from resilin.optim import lr_scheduler
from resilin.testing.ranks import run_ranks
from resilin.zero import ZeroRedundancyOptimizer

HOOKS = {"after": hook_with_zero_step, "interleaved": hook_with_zero_step_interleaved}
SMALL = 0.005  # MiB: several buckets


class Branches(nn.Module):
    """A model of which every other step leaves a branch out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(20, 31), nn.Linear(20, 31), nn.Linear(31, 10)
        self.turn = 0

    def forward(self, x: Tensor) -> Tensor:
        self.turn += 1
        branch = self.first if self.turn % 2 else self.second
        return self.head(branch(x).relu())


def sequential() -> nn.Module:
    """A model in which everything is used."""
    return nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 10))


def losses(model: nn.Module, rank: int, steps: int) -> Any:
    """A loss for each step, on the rank's own data."""
    for step in range(steps):
        rng = np.random.default_rng([rank, step])
        x = Tensor._wrap(rng.standard_normal((8, 20)).astype(np.float32))
        yield nn.functional.cross_entropy(model(x), Tensor._wrap(rng.integers(0, 10, 8)))


def bits(model: nn.Module) -> list[bytes]:
    return [param.detach().numpy().tobytes() for param in model.parameters()]


def undivided(rank: int, build: Any, hook: Any = None, steps: int = 4, **options: Any) -> list[bytes]:
    resilin.manual_seed(3)
    model = DDP(build(), bucket_cap_mb=SMALL, **options)
    if hook is not None:
        model.register_comm_hook(None, hook)
    optimizer = optim.AdamW(model.parameters(), lr=0.01)
    for loss in losses(model, rank, steps):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return bits(model)


def overlapped(
    rank: int,
    build: Any,
    how: str,
    shard_buckets: bool,
    hook: Any = default_hooks.allreduce_hook,
    as_view: bool = False,
    steps: int = 4,
    **options: Any,
) -> tuple[list[bytes], list[bytes]]:
    """Parameters after the first step and after the last."""
    resilin.manual_seed(3)
    model = DDP(build(), bucket_cap_mb=SMALL, **options)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optim.AdamW, overlap_with_ddp=True, parameters_as_bucket_view=as_view, lr=0.01
    )
    model.register_comm_hook(None, HOOKS[how](hook, model, optimizer, shard_buckets))
    seen = []
    for loss in losses(model, rank, steps):
        optimizer.zero_grad()
        loss.backward()
        assert optimizer.step() is None
        seen.append(bits(model))
    return seen[0], seen[-1]


@pytest.mark.parametrize("shard_buckets", [False, True])
@pytest.mark.parametrize("how", HOOKS)
def test_every_step_updates_also_the_first(how: str, shard_buckets: bool) -> None:
    for world in (1, 2, 3):
        first = run_ranks(world, undivided, sequential, steps=1).results()[0]
        last = run_ranks(world, undivided, sequential).results()[0]
        for as_view in (False, True):
            got = run_ranks(world, overlapped, sequential, how, shard_buckets, as_view=as_view).results()
            assert got == [(first, last)] * world


@pytest.mark.parametrize(
    ("build", "options"),
    [
        (Branches, {"find_unused_parameters": True}),
        (Branches, {"find_unused_parameters": True, "gradient_as_bucket_view": False}),
        (Branches, {"find_unused_parameters": True, "skip_all_reduce_unused_params": True}),
        (sequential, {"static_graph": True}),
        (sequential, {"gradient_as_bucket_view": False}),
    ],
)
@pytest.mark.parametrize("how", HOOKS)
def test_parameters_without_gradient_are_left_alone_as_without_overlap(how: str, build: Any, options: Any) -> None:
    last = run_ranks(2, undivided, build, **options).results()[0]
    assert [got for _, got in run_ranks(2, overlapped, build, how, True, **options).results()] == [last, last]


@pytest.mark.parametrize("how", HOOKS)
@pytest.mark.parametrize("name", ["fp16_compress_hook", "powerSGD"])
def test_gradients_that_a_hook_compresses_are_those_of_the_update(how: str, name: str) -> None:
    def work(rank: int, divided: bool) -> list[bytes]:
        if name == "powerSGD":
            state = powerSGD_hook.PowerSGDState(None, 1, 2)

            def hook(_: Any, bucket: Any) -> Any:
                return powerSGD_hook.powerSGD_hook(state, bucket)

        else:
            hook = default_hooks.fp16_compress_hook
        if divided:
            return overlapped(rank, sequential, how, False, hook)[1]
        return undivided(rank, sequential, hook)

    want = run_ranks(2, work, False).results()
    assert run_ranks(2, work, True).results() == want


def test_gradients_accumulate_without_a_step_in_no_sync_and_schedulers_follow() -> None:
    def work(rank: int, divided: bool) -> list[bytes]:
        resilin.manual_seed(3)
        model = DDP(sequential(), bucket_cap_mb=SMALL)
        if divided:
            optimizer: Any = ZeroRedundancyOptimizer(model.parameters(), optim.AdamW, overlap_with_ddp=True, lr=0.01)
            model.register_comm_hook(
                None, hook_with_zero_step_interleaved(default_hooks.allreduce_hook, model, optimizer)
            )
        else:
            optimizer = optim.AdamW(model.parameters(), lr=0.01)
        schedule = lr_scheduler.StepLR(optimizer, 1, 0.5)
        for number, (x, y) in enumerate(batches(rank)):
            last = number % 2 == 1
            with contextlib.nullcontext() if last else model.no_sync():
                nn.functional.cross_entropy(model(x), y).backward()
            if last:
                if not divided:
                    optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        return bits(model)

    def batches(rank: int) -> Any:
        for step in range(4):
            rng = np.random.default_rng([rank, step])
            yield Tensor._wrap(rng.standard_normal((8, 20)).astype(np.float32)), Tensor._wrap(rng.integers(0, 10, 8))

    want = run_ranks(2, work, False).results()
    assert run_ranks(2, work, True).results() == want


def test_buckets_are_divided_among_all_ranks_when_asked_to() -> None:
    def work(rank: int, shard_buckets: bool) -> list[int]:
        model = DDP(sequential(), bucket_cap_mb=SMALL)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optim.AdamW, overlap_with_ddp=True)
        hook_with_zero_step(default_hooks.allreduce_hook, model, optimizer, shard_buckets)
        return sorted({each.number for each in optimizer.owned.held})

    whole, cut = (run_ranks(2, work, flag).results() for flag in (False, True))
    assert whole == [[0, 1, 2], [2, 3, 4, 5]]
    assert all({0, 1} & set(own) and {2, 3, 4, 5} & set(own) for own in cut)


def test_what_cannot_overlap_is_refused() -> None:
    def work(rank: int) -> None:
        model = DDP(sequential())
        hook, params = default_hooks.allreduce_hook, list(model.parameters())
        with pytest.raises(UsageError, match="overlap_with_ddp=False"):
            hook_with_zero_step(hook, model, ZeroRedundancyOptimizer(params, optim.AdamW))
        more = ZeroRedundancyOptimizer([*params, nn.Parameter(resilin.zeros(3))], optim.AdamW, overlap_with_ddp=True)
        with pytest.raises(UsageError, match=r"parameters \[6\] of the optimizer are not among those"):
            hook_with_zero_step(hook, model, more)
        with pytest.raises(UsageTypeError, match=r"expected a ZeroRedundancyOptimizer\(.*, got AdamW"):
            hook_with_zero_step(hook, model, optim.AdamW(params))
        with pytest.raises(UsageTypeError, match="expected a DistributedDataParallel, got Sequential"):
            hook_with_zero_step(hook, model.module, more)
        ours = ZeroRedundancyOptimizer(params, optim.AdamW, overlap_with_ddp=True)
        with pytest.raises(UsageError, match=r"step_interleaved: expected a function .*, got NoneType"):
            hook_with_zero_step_interleaved(None, model, ours)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=r"no hook updates it inside backward.* register hook_with_zero_step"):
            ours.step()
        with pytest.raises(UsageError, match="Join has no meaning with overlap_with_ddp=True"):
            ours.join_hook()
        model.register_comm_hook(None, hook_with_zero_step(hook, model, ours))
        next(losses(model, rank, 1)).backward()
        with pytest.raises(UsageError, match="before the first step"):
            hook_with_zero_step(hook, model, ours, shard_buckets=True)

    run_ranks(1, work).results()


def test_an_update_outside_of_a_backward_is_refused_on_all_ranks() -> None:
    def work(rank: int) -> None:
        model = DDP(Branches(), find_unused_parameters=True)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optim.AdamW, overlap_with_ddp=True)
        model.register_comm_hook(None, hook_with_zero_step(default_hooks.allreduce_hook, model, optimizer))
        with model.join():
            for loss in losses(model, rank, 1 + rank):
                loss.backward()

    errors = run_ranks(2, work, abort=False).errors
    assert set(errors) == {0, 1}
    assert "updates parameters at the end of a backward, and none runs" in str(errors[0])


@pytest.mark.parametrize("ask", ["unscale_", "step"])
@pytest.mark.parametrize("how", HOOKS)
def test_a_loss_scaler_is_refused_because_the_update_was_before_it(how: str, ask: str) -> None:
    def work(rank: int) -> None:
        model = DDP(sequential())
        zero = ZeroRedundancyOptimizer(model.parameters(), optim.SGD, overlap_with_ddp=True, lr=0.01)
        model.register_comm_hook(None, HOOKS[how](default_hooks.allreduce_hook, model, zero))
        scaler = GradScaler(init_scale=8)
        scaler.scale(next(losses(model, rank, 1))).backward()
        with pytest.raises(UsageError, match=r"updated inside backward, .* Make it with overlap_with_ddp=False"):
            getattr(scaler, ask)(zero)
        assert GradScaler(enabled=False).step(zero) is None

    run_ranks(2, work).results()
