"""What holds for every communication hook: bits, worlds, views, accumulation, unused parameters, bytes."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hooked import SHAPES, Given, assert_same_bits, gradients_of, means, run_hook

from resilin import distributed as dist
from resilin import futures, nn
from resilin.core.tensor import Tensor
from resilin.ddp import DistributedDataParallel as DDP
from resilin.ddp import GradBucket
from resilin.ddp.comm_hooks import DDPCommHookType, debugging_hooks, default_hooks, register_ddp_comm_hook
from resilin.ddp.comm_hooks.onebit_hook import OneBitState, onebit_hook
from resilin.ddp.comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from resilin.ddp.comm_hooks.powerSGD_hook import PowerSGDState, batched_powerSGD_hook, powerSGD_hook
from resilin.ddp.comm_hooks.quantization_hooks import quantization_perchannel_hook, quantization_pertensor_hook
from resilin.ddp.comm_hooks.topk_hook import TopKState, topk_hook
from resilin.errors import UsageError
from resilin.testing.ranks import run_ranks

NUMEL = sum(math.prod(shape) for shape in SHAPES)


def no_state() -> None:
    return None


power = partial(PowerSGDState, None, start_powerSGD_iter=2)
HOOKS: dict[str, tuple[Callable[..., Any], Callable[[], Any]]] = {
    "allreduce": (default_hooks.allreduce_hook, no_state),
    "fp16": (default_hooks.fp16_compress_hook, no_state),
    "bf16": (default_hooks.bf16_compress_hook, no_state),
    "fp16 of powersgd": (default_hooks.fp16_compress_wrapper(powerSGD_hook), power),
    "bf16 of top-k": (default_hooks.bf16_compress_wrapper(topk_hook), lambda: TopKState(None, ratio=0.1)),
    "powersgd": (powerSGD_hook, power),
    "powersgd rank 3, batched by shape": (
        powerSGD_hook,
        partial(power, matrix_approximation_rank=3, batch_tensors_with_same_shape=True),
    ),
    "powersgd without memory": (powerSGD_hook, partial(power, use_error_feedback=False, warm_start=False)),
    "batched powersgd": (batched_powerSGD_hook, power),
    "8 bits": (quantization_pertensor_hook, no_state),
    "8 bits by channel": (partial(quantization_perchannel_hook, bucket_size=64), no_state),
    "top-k": (topk_hook, lambda: TopKState(None, ratio=0.1, start_topk_iter=1)),
    "1 bit": (onebit_hook, lambda: OneBitState(None, start_onebit_iter=1)),
    "post-local SGD": (post_localSGD_hook, lambda: PostLocalSGDState(None, None, start_localSGD_iter=2)),
}


@pytest.mark.parametrize("name", HOOKS)
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_all_ranks_end_with_the_same_bits_in_any_world(name: str, world: int) -> None:
    hook, make_state = HOOKS[name]
    one = run_hook(world, hook, make_state, steps=4, bucket_cap_mb=5e-4, gradient_as_bucket_view=True)
    two = run_hook(world, hook, make_state, steps=4, bucket_cap_mb=5e-4, gradient_as_bucket_view=False)
    assert_same_bits([*one, *two])
    assert len(one[0].stats["bucket_bytes"]) > 1
    assert all(np.isfinite(array).all() for step in one[0].steps for array in step)


def later(state: Any, bucket: GradBucket) -> futures.Future[Tensor]:
    """A thread of the hook's own sets its future, when the bucket and its sum of squares are reduced."""
    flat = bucket.buffer()
    squares = (flat * flat).sum()
    works = [dist.all_reduce(each, op=dist.ReduceOp.AVG, async_op=True) for each in (flat, squares)]
    reduced = futures.collect_all([work.get_future() for work in works if work is not None])
    future: futures.Future[Tensor] = futures.Future()

    def set_later() -> None:
        futures.wait_all(reduced.wait())
        future.set_result(flat)

    threading.Thread(target=set_later).start()
    return future


def test_a_hook_may_make_its_own_future_and_set_it_from_its_own_thread() -> None:
    mine = run_hook(2, later, steps=3, bucket_cap_mb=5e-4)
    usual = run_hook(2, default_hooks.allreduce_hook, steps=3, bucket_cap_mb=5e-4)
    assert_same_bits([*mine, *usual])


@pytest.mark.parametrize("name", HOOKS)
@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16])
def test_all_ranks_end_with_the_same_bits_in_any_dtype(name: str, dtype: Any) -> None:
    hook, make_state = HOOKS[name]
    runs = run_hook(2, hook, make_state, dtype=dtype)
    assert_same_bits(runs)
    assert {array.dtype for array in runs[0].steps[-1]} == {np.dtype(dtype)}


@pytest.mark.parametrize("name", ["powersgd", "top-k", "1 bit", "8 bits"])
def test_buckets_of_several_dtypes_keep_theirs(name: str) -> None:
    hook, make_state = HOOKS[name]

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.narrow, self.wide = Given(), Given(dtype=np.float64)

        def forward(self, rank: int, step: int) -> Tensor:
            return self.narrow(gradients_of(step, rank)) + self.wide(gradients_of(step, rank, dtype=np.float64)).float()

    def work(rank: int) -> list[np.ndarray]:
        model = DDP(Mixed())
        model.register_comm_hook(make_state(), hook)
        for step in range(3):
            model.zero_grad()
            model(rank, step).backward()
        return [param.grad.numpy().copy() for param in model.parameters()]

    zero, one = run_ranks(2, work).results()
    assert {array.dtype.name for array in zero} == {"float32", "float64"}
    assert all(a.tobytes() == b.tobytes() for a, b in zip(zero, one, strict=True))


@pytest.mark.parametrize("name", HOOKS)
def test_gradients_of_no_sync_are_reduced_with_the_next_ones(name: str) -> None:
    hook, make_state = HOOKS[name]

    def accumulated(rank: int) -> list[np.ndarray]:
        model = DDP(Given())
        model.register_comm_hook(make_state(), hook)
        for step in range(0, 6, 2):
            model.zero_grad()
            with model.no_sync():
                model(gradients_of(step, rank)).backward()
            model(gradients_of(step + 1, rank)).backward()
        return [param.grad.numpy().copy() for param in model.parameters()]

    def sums(step: int, rank: int, *_: Any) -> list[np.ndarray]:
        return [a + b for a, b in zip(gradients_of(2 * step, rank), gradients_of(2 * step + 1, rank), strict=True)]

    at_once = run_hook(2, hook, make_state, given=sums)
    for result in run_ranks(2, accumulated).results():
        for got, expected in zip(result, at_once[0].steps[-1], strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", HOOKS)
def test_unused_parameters_count_as_zero(name: str) -> None:
    hook, make_state = HOOKS[name]

    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.always, self.sometimes = Given(((6, 8),)), Given(((9, 7), (5,)))

        def forward(self, rank: int, step: int) -> Tensor:
            out = self.always(gradients_of(step, rank, ((6, 8),)))
            return out + self.sometimes(gradients_of(step, rank, ((9, 7), (5,)))) if rank == 0 else out

    def work(rank: int) -> list[np.ndarray]:
        model = DDP(Half(), find_unused_parameters=True, bucket_cap_mb=1e-4)
        model.register_comm_hook(make_state(), hook)
        for step in range(3):
            model.zero_grad()
            model(rank, step).backward()
        return [param.grad.numpy().copy() for param in model.parameters()]

    zero, one = run_ranks(2, work).results()
    assert all(a.tobytes() == b.tobytes() for a, b in zip(zero, one, strict=True))
    assert np.any(one[1])


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize(
    ("name", "payload", "gathers"),
    [
        ("allreduce", 4 * NUMEL, False),
        ("fp16", 2 * NUMEL, False),
        ("bf16", 2 * NUMEL, False),
        ("8 bits", NUMEL + 8, True),
        ("8 bits by channel", math.ceil(NUMEL / 64) * (64 + 8), True),
        ("top-k", math.ceil(0.1 * NUMEL) * 8, True),
        ("1 bit", math.ceil(NUMEL / 8) + 8 * len(SHAPES), True),
        ("powersgd", 4 * (50 + 27 + 30 + 14 + 1), False),
        ("powersgd rank 3, batched by shape", 4 * (3 * 50 + 3 * 27 + 30 + 14 + 1), False),
        ("fp16 of powersgd", 2 * (50 + 27 + 30 + 14 + 1), False),
        ("batched powersgd", 4 * 2 * math.ceil(math.sqrt(NUMEL)), False),
    ],
)
def test_a_step_carries_as_many_bytes_as_the_formula_says(name: str, payload: int, gathers: bool, world: int) -> None:
    hook, make_state = HOOKS[name]

    def carried(steps: int) -> dict[str, int]:
        found: dict[str, int] = run_hook(world, hook, make_state, steps=steps)[0].stats["traffic"]
        return found

    before, after = carried(3), carried(5)
    assert after["payload_bytes"] - before["payload_bytes"] == 2 * payload
    wire = (world - 1) * payload if gathers else 2 * (world - 1) * payload / world
    assert after["wire_bytes"] - before["wire_bytes"] == pytest.approx(2 * wire, abs=4)


def test_plain_averaging_is_counted_too() -> None:
    def work(rank: int) -> dict[str, int]:
        model = DDP(Given())
        model(gradients_of(0, rank)).backward()
        traffic: dict[str, int] = model.stats()["traffic"]
        return traffic

    expected = {"payload_bytes": 4 * NUMEL, "wire_bytes": 4 * NUMEL, "collectives": 1, "copied_bytes": 0, "copies": 0}
    assert run_ranks(2, work).results() == [expected] * 2


def test_noop_leaves_each_rank_its_gradients_and_sends_nothing() -> None:
    for rank, ran in enumerate(run_hook(2, debugging_hooks.noop_hook)):
        for step, got in enumerate(ran.steps):
            assert all(np.array_equal(a, b) for a, b in zip(got, gradients_of(step, rank), strict=True))
        assert ran.stats["traffic"]["payload_bytes"] == 0


@pytest.mark.parametrize("allreduce", [True, False])
def test_post_local_sgd_averages_over_all_ranks_first_and_over_the_host_later(allreduce: bool) -> None:
    def work(rank: int) -> list[list[np.ndarray]]:
        model = DDP(Given())
        state = PostLocalSGDState(None, None, start_localSGD_iter=2, post_local_gradient_allreduce=allreduce)
        model.register_comm_hook(state, post_localSGD_hook)
        seen = []
        for step in range(4):
            model.zero_grad()
            model(gradients_of(step, rank)).backward()
            seen.append([param.grad.numpy().copy() for param in model.parameters()])
        assert state.iter == 4
        return seen

    for rank, seen in enumerate(run_ranks(4, work, transport="hosts").results()):
        for step, got in enumerate(seen):
            host = [rank // 2 * 2, rank // 2 * 2 + 1] if allreduce else [rank]
            among = range(4) if step < 2 else host
            expected = [np.mean(every, axis=0) for every in zip(*(gradients_of(step, r) for r in among), strict=True)]
            for a, b in zip(got, expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", DDPCommHookType)
def test_hooks_are_registered_by_type(kind: DDPCommHookType) -> None:
    def work(rank: int) -> list[np.ndarray]:
        model = DDP(Given())
        register_ddp_comm_hook(kind, model, model.process_group)
        model(gradients_of(0, rank)).backward()
        return [param.grad.numpy().copy() for param in model.parameters()]

    def failing(rank: int) -> None:
        with pytest.raises(UsageError, match="expected a DDPCommHookType, got 'POWER_SGD'"):
            register_ddp_comm_hook("POWER_SGD", None)  # type: ignore[arg-type]

    averaged = run_ranks(2, work).results()
    if kind not in (DDPCommHookType.NOOP, DDPCommHookType.TOP_K):
        for got, expected in zip(averaged[0], means(2, 0), strict=True):
            np.testing.assert_allclose(got, expected, rtol=0.02, atol=0.03)
    run_ranks(1, failing).results()


def test_a_hook_of_the_user_may_chain_collectives_in_callbacks() -> None:
    """The sum of squares, by a second all-reduce that is only known once the first is done; many buckets in flight."""

    def hook(group: Any, bucket: Any) -> Any:
        first = dist.all_reduce(bucket.buffer(), group=group, async_op=True).get_future()

        def second(done: Any) -> Tensor:
            squares = done.value()[0] ** 2
            dist.all_reduce(squares, group=group)
            return squares

        return first.then(second)

    def work(rank: int) -> list[np.ndarray]:
        model = DDP(Given(), bucket_cap_mb=1e-5)
        model.register_comm_hook(model.process_group, hook)
        for step in range(3):
            model.zero_grad()
            model(gradients_of(step, rank)).backward()
        return [param.grad.numpy().copy() for param in model.parameters()]

    for result in run_ranks(3, work).results():
        for got, mean in zip(result, means(3, 2), strict=True):
            np.testing.assert_allclose(got, 3 * (3 * mean) ** 2, rtol=1e-4, atol=1e-5)
