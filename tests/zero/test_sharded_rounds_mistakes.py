"""Fixed shards of divided modules: what is refused, and that a step can begin again after an error."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from sharded_nets import tensor

import resilin
from resilin import nn, optim
from resilin.core.tensor import Tensor
from resilin.data import ElasticSampler
from resilin.data.elastic_sampler import Shard
from resilin.errors import CollectiveMismatch, GroupAborted, UsageError
from resilin.testing.ranks import run_ranks
from resilin.zero import ShardedModule, shard

SHARDS = 3


def net() -> nn.Module:
    resilin.manual_seed(3)
    return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def dealt(rank: int = 0, world: int = 1, shards: int = SHARDS) -> Sequence[Shard]:
    (plan,) = ElasticSampler(6, 6, shards, shuffle=False, in_rounds=True).steps(rank, world)
    return plan.shards


def x_of(part: Shard) -> Tensor:
    rows = np.asarray(part.indices)[:, None]
    return tensor(np.hstack([rows + 1.0, rows % 2 - 0.5]))


def backward(model: Any, part: Shard) -> None:
    model(x_of(part)).square().mean().backward()


def alone(fn: Callable[[ShardedModule], Any], **more: Any) -> None:
    """`fn(model)` in a world of one."""
    run_ranks(1, lambda rank: fn(shard(net(), shards=SHARDS, **more))).results()


def test_shards_must_come_in_order_and_of_the_right_number() -> None:
    def wrong(model: ShardedModule) -> None:
        parts = dealt()
        with pytest.raises(UsageError, match=r"expected shard 0 of 3 \(this rank has \[0, 1, 2\]\), got shard 1 of 3"):
            model.shard(parts[1]).__enter__()
        with pytest.raises(UsageError, match=r"got shard 0 of 4; .*give the sampler and zero\.shard the same number"):
            model.shard(dealt(shards=4)[0]).__enter__()
        with model.shard(parts[0]):
            backward(model, parts[0])
            with pytest.raises(UsageError, match="shard 1 opened inside the block of shard 0"):
                model.shard(parts[1]).__enter__()
        with pytest.raises(UsageError, match="expected shard 1 of 3"):
            model.shard(parts[0]).__enter__()

    alone(wrong)


def test_shards_that_were_not_dealt_in_rounds_are_refused_in_a_world_of_one_too() -> None:
    def wrong(model: ShardedModule) -> None:
        (plan,) = ElasticSampler(6, 6, SHARDS).steps(0, 1)
        with pytest.raises(UsageError, match=r"ElasticSampler\(\.\.\., shards=3, in_rounds=True\)"):
            model.shard(plan.shards[0]).__enter__()

    alone(wrong)


@pytest.mark.parametrize("stage", [2, 3])
def test_gradients_are_not_used_in_the_middle_of_a_step(stage: int) -> None:
    def early(model: ShardedModule) -> None:
        optimizer = optim.AdamW(model.parameters())
        parts = dealt()
        with model.shard(parts[0]):
            backward(model, parts[0])
            with pytest.raises(UsageError, match=r"AdamW\.step in the middle of a step: inside the block of shard 0"):
                optimizer.step()
        with pytest.raises(
            UsageError, match=r"AdamW\.step in the middle of a step: shard 1 is still to come; enter all"
        ):
            optimizer.step()
        with pytest.raises(UsageError, match=r"clip_grad_norm_\(\) in the middle of a step: shard 1 is still to come"):
            model.clip_grad_norm_(1.0)
        for part in parts[1:]:
            with model.shard(part):
                backward(model, part)
        model.clip_grad_norm_(1.0)
        optimizer.step()

    alone(early, stage=stage)


def test_a_forward_outside_of_a_shard_is_refused_in_training_only() -> None:
    def outside(model: ShardedModule) -> None:
        x = x_of(dealt()[0])
        with pytest.raises(UsageError, match=r"needs `with model\.shard\(shard\):` around it"):
            model(x)
        with resilin.no_grad():
            model(x)
        model.eval()
        kept = model(x)
        with pytest.raises(UsageError, match=r"no_sync\(\) has no meaning with shards"), model.no_sync():
            pass
        with pytest.raises(UsageError, match=r"backward outside of `with model\.shard\(shard\):`"):
            kept.sum().backward()

    alone(outside)


def test_a_shard_without_backward_and_one_with_two_are_refused_and_nobody_waits_for_their_rank() -> None:
    def forgets(model: ShardedModule, part: Shard) -> None:
        model(x_of(part))

    def repeats(model: ShardedModule, part: Shard) -> None:
        backward(model, part)
        backward(model, part)

    for wrong, words in (
        (forgets, "shard 1 has 2 samples, but no backward ran"),
        (repeats, "shard 1: a second backward"),
    ):

        def run(rank: int, wrong: Callable[..., None] = wrong) -> None:
            model = shard(net(), stage=2, shards=SHARDS)  # in stage 3 ranks may disagree about a gathering before
            for part in dealt(rank, 2):
                with model.shard(part):
                    (wrong if rank else backward)(model, part)

        outcome = run_ranks(2, run, abort=False)
        assert isinstance(outcome.errors[1], UsageError)
        assert words in str(outcome.errors[1])
        assert isinstance(outcome.errors[0], GroupAborted)
        assert words in str(outcome.errors[0])


def test_a_shard_that_only_repeats_is_refused_without_backward_by_what_it_is_for() -> None:
    def run(rank: int) -> None:
        model = shard(net(), stage=2, shards=SHARDS)
        for part in dealt(rank, 2):
            with model.shard(part):
                if part.counts:
                    backward(model, part)

    outcome = run_ranks(2, run, abort=False)
    words = "shard 3 has 2 samples, but no backward ran inside its block; it repeats shard 0 and counts for nothing"
    for rank, kind in enumerate((GroupAborted, UsageError)):
        assert isinstance(outcome.errors[rank], kind)
        assert words in str(outcome.errors[rank])


def test_after_an_error_inside_a_shard_the_step_begins_again() -> None:
    def gradients(model: ShardedModule) -> list[bytes]:
        for part in dealt():
            with model.shard(part):
                backward(model, part)
        return [piece.grad.numpy().tobytes() for piece in model.parameters()]

    def fails(model: ShardedModule, within: bool) -> None:
        for part in dealt():
            with model.shard(part):
                if not within:
                    backward(model, part)
                if part.number:
                    raise ValueError("in the user's code")
                if within:
                    backward(model, part)

    def retry(model: ShardedModule) -> None:
        before = model.state_dict()["1.running_mean"].numpy().tobytes()
        expected = gradients(model)
        mean = model.state_dict()["1.running_mean"].numpy().tobytes()
        assert mean != before
        for within in (True, False):
            model.module.get_submodule("1").reset_running_stats()
            with pytest.raises(ValueError, match="in the user's code"):
                fails(model, within)
            model.module.get_submodule("1").reset_running_stats()
            model.zero_grad()
            assert gradients(model) == expected
            assert model.state_dict()["1.running_mean"].numpy().tobytes() == mean

    alone(retry)


def test_a_backward_that_failed_inside_a_block_cannot_be_tried_again_there() -> None:
    def fail(grad: Tensor) -> Tensor:
        raise ValueError("in a hook")  # when the last layer has its gradient, and the first does not

    def watch(module: nn.Module, given: Any, out: Tensor) -> None:
        out.register_hook(fail)

    def twice(model: ShardedModule, part: Shard) -> None:
        with model.shard(part):
            handle = model.module.get_submodule("0").register_forward_hook(watch)
            with pytest.raises(ValueError, match="in a hook"):
                backward(model, part)
            handle.remove()
            backward(model, part)

    def run(model: ShardedModule) -> None:
        parts = dealt()
        with model.shard(parts[0]):
            backward(model, parts[0])
        with pytest.raises(UsageError, match="shard 1: an error has dropped the sums of this step; let it leave the"):
            twice(model, parts[1])

    alone(run)


def test_what_cannot_be_trained_in_fixed_shards_is_refused_when_it_is_sharded() -> None:
    outcome = run_ranks(2, lambda rank: shard(net(), shards=1), abort=False)
    assert all("zero.shard(shards=1): expected an integer of at least" in str(e) for e in outcome.errors.values())
    assert outcome.errors.keys() == {0, 1}
    with pytest.raises(UsageError, match=r"zero\.shard\(shards=2\): 1 is a SyncBatchNorm, whose statistics depend"):
        run_ranks(1, lambda rank: shard(nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2)), shards=2)).results()
    with pytest.raises(UsageError, match=r"shard\(\) needs zero\.shard\(\.\.\., shards=V\)"):
        run_ranks(1, lambda rank: shard(net()).shard(dealt()[0])).results()
    outcome = run_ranks(2, lambda rank: shard(net(), shards=2 + rank), abort=False)
    assert all(isinstance(error, CollectiveMismatch) for error in outcome.errors.values())
    assert "shards=2, rank 1 with" in str(outcome.errors[0])


def test_freezing_between_two_shards_of_a_step_is_refused() -> None:
    def run(model: ShardedModule) -> None:
        parts = dealt()
        with model.shard(parts[0]):
            backward(model, parts[0])
        dict(model.named_parameters())["0.bias"].requires_grad_(False)
        words = r"requires_grad of a parameter of unit 0 was changed between two shards"
        with pytest.raises(UsageError, match=words), model.shard(parts[1]):
            backward(model, parts[1])

    alone(run)


@pytest.mark.parametrize("offload", [False, True])
def test_modules_on_a_device_have_the_same_bits_in_every_world(offload: bool) -> None:
    """Gradients are summed where the pieces are, buffers where they are."""
    plain = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 1))

    def run(rank: int, world: int) -> list[bytes]:
        model = shard(copy.deepcopy(plain).to("sim:1"), shards=SHARDS, cpu_offload=offload)
        optimizer = optim.AdamW(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            for part in dealt(rank, world):
                with model.shard(part):
                    model(x_of(part).to("sim:1")).square().mean().backward()
            model.clip_grad_norm_(0.1)
            optimizer.step()
        return [value.to("cpu").numpy().tobytes() for value in model.state_dict().values()]

    (expected,) = run_ranks(1, run, 1, backend="cpu:gloo,sim:gloo").results()
    assert run_ranks(2, run, 2, backend="cpu:gloo,sim:gloo").results() == [expected] * 2
