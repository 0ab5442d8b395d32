"""Options of hooks' states that differ between ranks: they would part without a word, so all of them are told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hooked import Given, gradients_of

from resilin import distributed as dist
from resilin import nn
from resilin.core.tensor import Tensor
from resilin.ddp import DistributedDataParallel as DDP
from resilin.ddp.comm_hooks.default_hooks import allreduce_hook, fp16_compress_hook, fp16_compress_wrapper
from resilin.ddp.comm_hooks.onebit_hook import OneBitState, onebit_hook
from resilin.ddp.comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from resilin.ddp.comm_hooks.powerSGD_hook import PowerSGDState, batched_powerSGD_hook, powerSGD_hook
from resilin.ddp.comm_hooks.topk_hook import TopKState, topk_hook
from resilin.distributed.agreement import compare
from resilin.errors import CollectiveMismatch, UsageError
from resilin.testing.ranks import run_ranks

WHY = "ranks would not end with the same gradients, so all must give the same"
POWER = {
    "matrix_approximation_rank": (2, 3),
    "start_powerSGD_iter": (2, 3),
    "min_compression_rate": (2, 3),
    "use_error_feedback": (True, False),
    "warm_start": (True, False),
    "orthogonalization_epsilon": (0, 0.01),
    "random_seed": (0, 5),
    "batch_tensors_with_same_shape": (False, True),
}
OTHERS = [
    (topk_hook, TopKState, "ratio", (0.5, 0.25)),
    (topk_hook, TopKState, "start_topk_iter", (0, 4)),
    (topk_hook, TopKState, "use_error_feedback", (True, False)),
    (onebit_hook, OneBitState, "start_onebit_iter", (1, 2)),
    (post_localSGD_hook, PostLocalSGDState, "start_localSGD_iter", (1, 2)),
    (post_localSGD_hook, PostLocalSGDState, "post_local_gradient_allreduce", (True, False)),
]


def power(**options: Any) -> PowerSGDState:
    return PowerSGDState(None, **{"matrix_approximation_rank": 2, "start_powerSGD_iter": 2, **options})


def made(kind: Any, **options: Any) -> Any:
    needed = {"subgroup": None, "start_localSGD_iter": 1} if kind is PostLocalSGDState else {}
    return power(**options) if kind is PowerSGDState else kind(None, **{**needed, **options})


def backward(model: DDP, step: int, rank: int) -> None:
    model.zero_grad()
    model(gradients_of(step, rank)).backward()


@pytest.mark.parametrize(
    ("hook", "kind", "name", "values"),
    [(powerSGD_hook, PowerSGDState, name, values) for name, values in POWER.items()]
    + [(batched_powerSGD_hook, PowerSGDState, "random_seed", (1, 2))]
    + [(fp16_compress_wrapper(powerSGD_hook), PowerSGDState, "random_seed", (1, 2))]
    + OTHERS,
)
def test_an_option_that_differs_is_named_on_all_ranks_in_the_first_step(
    hook: Any, kind: Any, name: str, values: tuple[Any, Any]
) -> None:
    def work(rank: int) -> None:
        model = DDP(Given())
        model.register_comm_hook(made(kind, **{name: values[rank == 2]}), hook)
        with pytest.raises(
            CollectiveMismatch,
            match=f"{kind.__name__}: {name} is {values[0]} on rank 0 and {values[1]} on rank 2; {WHY}",
        ):
            backward(model, 0, rank)

    run_ranks(3, work).results()


def test_states_of_other_kinds_are_named() -> None:
    def work(rank: int) -> None:
        model = DDP(Given())
        state, hook = (power(), powerSGD_hook) if rank else (TopKState(None), topk_hook)
        model.register_comm_hook(state, hook)
        with pytest.raises(CollectiveMismatch, match="state is TopKState on rank 0 and PowerSGDState on rank 1"):
            backward(model, 0, rank)

    run_ranks(2, work).results()


@pytest.mark.parametrize("world", [1, 2])
def test_equal_options_are_compared_once_and_in_a_world_of_one_not_at_all(
    world: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared_by: list[int] = []
    agree = compare.agree

    def counted(facts: compare.Facts, group: dist.ProcessGroup) -> None:
        compared_by.append(group.rank())
        agree(facts, group)

    monkeypatch.setattr(compare, "agree", counted)

    def work(rank: int) -> None:
        model = DDP(Given(), bucket_cap_mb=1e-3)  # several buckets
        of_numpy = power(random_seed=np.int64(3), min_compression_rate=2.0)
        model.register_comm_hook(of_numpy if rank else power(random_seed=3), powerSGD_hook)
        for step in range(3):
            backward(model, step, rank)

    run_ranks(world, work).results()
    assert sorted(compared_by) == ([] if world == 1 else [0, 1])


def test_a_state_that_goes_on_in_another_wrapper_is_compared_anew_with_one_that_was_loaded() -> None:
    def work(rank: int) -> None:
        def wrapped(state: Any) -> DDP:
            model = DDP(Given())
            model.register_comm_hook(state, powerSGD_hook)
            return model

        state = power()
        model = wrapped(state)
        for step in range(4):
            backward(model, step, rank)
        loaded = power()
        loaded.load_state_dict(state.state_dict(local=True))
        model = wrapped(loaded if rank else state)  # one rank was restarted, one was not
        for step in range(4, 6):
            backward(model, step, rank)
        other = power(random_seed=rank)
        other.load_state_dict(state.state_dict(local=True))
        with pytest.raises(CollectiveMismatch, match="random_seed is 0 on rank 0 and 1 on rank 1"):
            backward(wrapped(other), 6, rank)

    run_ranks(2, work).results()


GRAPHS: list[dict[str, bool]] = [{}, {"find_unused_parameters": True}, {"static_graph": True}]


def own_hook(state: Any, bucket: Any) -> Any:
    return allreduce_hook(None, bucket)


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize(
    ("hooks", "said"),
    [
        ((None, allreduce_hook), "none on rank 0 and allreduce_hook on rank"),
        ((own_hook, None), "one of the program's on rank 0 and none on rank"),
        ((fp16_compress_hook, allreduce_hook), "fp16_compress_hook on rank 0 and allreduce_hook on rank"),
    ],
)
def test_hooks_that_differ_are_named_on_all_ranks_in_the_first_step(
    hooks: tuple[Any, Any], said: str, world: int, graph: dict[str, bool]
) -> None:
    last = world - 1

    def work(rank: int) -> None:
        model = DDP(Given(), **graph)
        if (hook := hooks[rank == last]) is not None:
            model.register_comm_hook(None, hook)
        with pytest.raises(CollectiveMismatch, match=f"Parallel: the comm hook is {said} {last}; all ranks must"):
            backward(model, 0, rank)

    run_ranks(world, work).results()


def test_hooks_that_differ_are_named_where_a_rank_used_no_parameter_in_the_first_step() -> None:
    def work(rank: int) -> None:
        layer = nn.Linear(3, 3)
        model = DDP(layer, find_unused_parameters=True)
        if rank:
            model.register_comm_hook(None, allreduce_hook)
            layer.forward = lambda x: x  # type: ignore[method-assign]
        x = Tensor._wrap(np.ones((2, 3), np.float32)).requires_grad_()
        with pytest.raises(CollectiveMismatch, match="the comm hook is none on rank 0 and allreduce_hook on rank 1"):
            model(x).sum().backward()

    run_ranks(2, work).results()


@pytest.mark.parametrize("graph", GRAPHS)
def test_a_hook_of_the_program_around_another_on_one_rank_is_no_difference(graph: dict[str, bool]) -> None:
    def work(rank: int) -> None:
        model = DDP(Given(), **graph)
        model.register_comm_hook(None, own_hook if rank else allreduce_hook)
        for step in range(2):
            backward(model, step, rank)

    run_ranks(2, work).results()


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("later", [False, True])
def test_a_count_of_steps_that_differs_is_named_on_all_ranks(later: bool, graph: dict[str, bool]) -> None:
    def work(rank: int) -> None:
        model, state = DDP(Given(), **graph), power()
        model.register_comm_hook(state, powerSGD_hook)
        for step in range(3 if later else 0):
            backward(model, step, rank)
        state.iter = 10 + rank
        with pytest.raises(CollectiveMismatch, match=f"PowerSGDState: iter is 10 on rank 0 and 11 on rank 1; {WHY}"):
            backward(model, 4, rank)

    run_ranks(2, work).results()


def test_steps_that_were_counted_apart_do_not_matter_once_compression_has_begun() -> None:
    def work(rank: int) -> None:
        model, state = DDP(Given()), TopKState(None, start_topk_iter=2)
        state.iter = 7 + rank
        model.register_comm_hook(state, topk_hook)
        for step in range(2):
            backward(model, step, rank)

    run_ranks(2, work).results()


def test_a_state_of_two_models_is_told_of() -> None:
    def work(rank: int) -> None:
        state = power()
        large, small = DDP(Given()), DDP(nn.Linear(40, 30))
        for model in (large, small):
            model.register_comm_hook(state, powerSGD_hook)
        for step in range(4):
            backward(large, step, rank)
        with pytest.raises(UsageError, match="another model uses this state, too: give each its own"):
            small(nn.functional.one_hot(Tensor._wrap(np.arange(40)), 40).float()).sum().backward()

    run_ranks(1, work).results()
