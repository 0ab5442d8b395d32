"""What hooks remember: saved, loaded, taken back with a step that is undone, pickled."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hooked import Given, gradients_of

from resilin import distributed as dist
from resilin import elastic
from resilin.ddp import DistributedDataParallel as DDP
from resilin.ddp.comm_hooks.default_hooks import (
    allreduce_hook,
    bf16_compress_hook,
    fp16_compress_hook,
    fp16_compress_wrapper,
)
from resilin.ddp.comm_hooks.onebit_hook import OneBitState, onebit_hook
from resilin.ddp.comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from resilin.ddp.comm_hooks.powerSGD_hook import PowerSGDState, batched_powerSGD_hook, powerSGD_hook
from resilin.ddp.comm_hooks.quantization_hooks import quantization_perchannel_hook, quantization_pertensor_hook
from resilin.ddp.comm_hooks.topk_hook import TopKState, topk_hook
from resilin.errors import UsageError, UsageTypeError
from resilin.testing.ranks import run_ranks

START = 2
STATES: dict[str, tuple[Callable[..., Any], Callable[[], Any]]] = {
    "powersgd": (powerSGD_hook, lambda: PowerSGDState(None, 2, START)),
    "batched": (batched_powerSGD_hook, lambda: PowerSGDState(None, 1, START)),
    "top-k": (topk_hook, lambda: TopKState(None, 0.05, START)),
    "1 bit": (onebit_hook, lambda: OneBitState(None, START)),
    "post-local": (post_localSGD_hook, lambda: PostLocalSGDState(None, None, START)),
}
Copied = Callable[[Any, Callable[[], Any]], Any]


def by_state_dict(state: Any, make: Callable[[], Any]) -> Any:
    fresh = make()
    fresh.load_state_dict(state.state_dict(local=True))
    return fresh


def by_pickle(state: Any, make: Callable[[], Any]) -> Any:
    return pickle.loads(pickle.dumps(state))


def wrapped(state: Any, hook: Callable[..., Any]) -> DDP:
    model = DDP(Given())
    model.register_comm_hook(state, hook)
    return model


def step_of(model: DDP, step: int, rank: int) -> list[np.ndarray]:
    model.zero_grad()
    model(gradients_of(step, rank)).backward()
    return [param.grad.numpy().copy() for param in model.parameters()]


def equal(first: list[np.ndarray], second: list[np.ndarray]) -> bool:
    return all(a.tobytes() == b.tobytes() for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("copied", [by_state_dict, by_pickle])
def test_a_copy_goes_on_with_the_same_bits(name: str, copied: Copied) -> None:
    hook, make = STATES[name]

    def work(rank: int) -> bool:
        state = make()
        model = wrapped(state, hook)
        for step in range(4):
            step_of(model, step, rank)
        other = wrapped(copied(state, make), hook)
        return all(equal(step_of(model, step, rank), step_of(other, step, rank)) for step in range(4, 7))

    assert run_ranks(2, work).results() == [True, True]


@pytest.mark.parametrize("name", STATES)
def test_what_all_ranks_have_in_common_is_equal_on_all(name: str) -> None:
    """It may be registered in elastic.State, which compares it."""
    hook, make = STATES[name]

    def work(rank: int) -> str:
        state = make()
        model = wrapped(state, hook)
        for step in range(4):
            step_of(model, step, rank)
        return elastic.State(hook=state).fingerprint()

    assert len(set(run_ranks(3, work).results())) == 1


@pytest.mark.parametrize("name", ["powersgd", "batched", "top-k", "1 bit"])
@pytest.mark.parametrize("undone", [True, False])
def test_residuals_of_a_step_that_is_undone_go_with_it_and_others_stay(name: str, undone: bool) -> None:
    hook, make = STATES[name]

    def work(rank: int) -> tuple[int, set[int]]:
        state = make()
        model = wrapped(state, hook)
        for step in range(4):
            step_of(model, step, rank)
        committed = state.state_dict()
        if undone:
            step_of(model, 4, rank)
        state.load_state_dict(committed)
        return state.iter, set(state.error_dict)

    assert run_ranks(2, work).results() == [(4, set() if undone else {0})] * 2


@pytest.mark.parametrize("name", STATES)
def test_a_newcomer_takes_part_with_what_is_common(name: str) -> None:
    """A world of two becomes one of three: all ranks get the same bits, and the survivors keep their residuals."""
    hook, make = STATES[name]
    states = [make() for _ in range(3)]

    def before(rank: int) -> dict[str, Any]:
        model = wrapped(states[rank], hook)
        for step in range(4):
            step_of(model, step, rank)
        saved: dict[str, Any] = states[rank].state_dict()
        return saved

    common = run_ranks(2, before).results()[1]
    for state in states:
        state.load_state_dict(common)

    def after(rank: int) -> list[list[np.ndarray]]:
        model = wrapped(states[rank], hook)
        return [step_of(model, step, rank) for step in range(4, 7)]

    seen = run_ranks(3, after).results()
    assert all(equal(mine, theirs) for other in seen[1:] for mine, theirs in zip(seen[0], other, strict=True))
    if name != "post-local":
        assert set(states[0].error_dict) == set(states[2].error_dict) == {0}


def test_a_pickled_state_has_no_process_group() -> None:
    def work(rank: int) -> tuple[Any, Any, Any]:
        group = dist.default_group()
        local = PostLocalSGDState(group, group, 0)
        model = wrapped(local, post_localSGD_hook)
        step_of(model, 0, rank)
        copy = by_pickle(local, lambda: None)
        return copy.process_group, copy.subgroup, copy.iter

    assert run_ranks(2, work).results() == [(None, None, 1)] * 2


@pytest.mark.parametrize("saved", [{}, {"iter": 1, "else": 2}, None, [1]])
def test_what_is_no_state_is_refused(saved: Any) -> None:
    with pytest.raises(UsageError, match=r"TopKState.load_state_dict: expected the entries \['iter'\], got"):
        TopKState(None).load_state_dict(saved)


def test_states_say_where_they_are() -> None:
    assert repr(TopKState(None)) == "<TopKState iter=0>"
    with pytest.raises(UsageError, match="start_localSGD_iter must be an integer of at least 0, got -1"):
        PostLocalSGDState(None, None, -1)


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("given", [None, {}, "x"])
def test_a_state_of_another_class_is_refused_when_the_hook_is_registered(name: str, given: Any) -> None:
    hook, make = STATES[name]
    expected = rf"{hook.__name__} needs a {type(make()).__name__} as its state, got {type(given).__name__}"

    def work(rank: int) -> None:
        with pytest.raises(UsageTypeError, match=f"register_comm_hook: {expected}"):
            wrapped(given, hook)
        with pytest.raises(UsageTypeError, match=r"fp16\(.*needs a "):
            wrapped(given, fp16_compress_wrapper(hook))
        with pytest.raises(UsageTypeError, match=r"needs a "):
            wrapped(given, partial(hook))
        model = wrapped(given, lambda state, bucket: hook(state, bucket))
        with pytest.raises(UsageError, match=rf"(?s){expected}.*hook <lambda>, bucket 0"):
            model(gradients_of(0, rank)).backward()

    run_ranks(1, work).results()


OF_GROUPS = [
    allreduce_hook,
    fp16_compress_hook,
    bf16_compress_hook,
    quantization_pertensor_hook,
    quantization_perchannel_hook,
]


@pytest.mark.parametrize("hook", OF_GROUPS)
def test_a_state_that_is_no_group_is_refused_when_a_hook_that_needs_one_is_registered(hook: Any) -> None:
    expected = "its state must be a ProcessGroup.*got 'x'"

    def work(rank: int) -> None:
        with pytest.raises(UsageTypeError, match=f"register_comm_hook: {hook.__name__}: {expected}"):
            wrapped("x", hook)
        with pytest.raises(UsageTypeError, match=rf"register_comm_hook: fp16\({hook.__name__}\): {expected}"):
            wrapped("x", fp16_compress_wrapper(hook))
        for group in (None, dist.default_group()):
            step_of(wrapped(group, hook), 0, rank)
        with pytest.raises(UsageError, match=rf"(?s){expected}.*hook <lambda>, bucket 0"):
            step_of(wrapped("x", lambda state, bucket: hook(state, bucket)), 0, rank)

    run_ranks(1, work).results()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"process_group": "x"}, "PowerSGDState: process_group must be a ProcessGroup, .* or None, got 'x'"),
        ({"random_seed": "a"}, "PowerSGDState: random_seed must be an integer of at least 0, got 'a'"),
        ({"random_seed": -1}, "random_seed must be an integer of at least 0, got -1"),
        ({"start_powerSGD_iter": "a"}, "start_powerSGD_iter must be an integer of at least 0, got 'a'"),
        ({"matrix_approximation_rank": True}, "matrix_approximation_rank must be an integer of at least 1, got True"),
        (
            {"min_compression_rate": None},
            "PowerSGDState: min_compression_rate must be a number of at least 0, got None",
        ),
        ({"orthogonalization_epsilon": "a"}, "orthogonalization_epsilon must be a number of at least 0, got 'a'"),
        ({"orthogonalization_epsilon": float("nan")}, "orthogonalization_epsilon must be a finite number .*, got nan"),
        ({"use_error_feedback": "no"}, "PowerSGDState: use_error_feedback must be True or False, got 'no'"),
        ({"warm_start": "no"}, "PowerSGDState: warm_start must be True or False, got 'no'"),
        ({"batch_tensors_with_same_shape": "no"}, "batch_tensors_with_same_shape must be True or False, got 'no'"),
    ],
)
def test_options_of_powersgd_are_refused_at_construction(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        PowerSGDState(**{"process_group": None, **options})


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: TopKState(None, ratio=None), "TopKState: ratio must be a number, got None"),
        (lambda: TopKState(None, ratio="a"), "TopKState: ratio must be a number, got 'a'"),
        (lambda: TopKState(None, ratio=0), "TopKState: ratio must be above 0 and at most 1, got 0"),
        (lambda: TopKState(None, start_topk_iter=1.5), r"start_topk_iter must be an integer of at least 0, got 1\.5"),
        (lambda: TopKState(None, use_error_feedback="no"), "use_error_feedback must be True or False, got 'no'"),
        (lambda: OneBitState(None, None), "OneBitState: start_onebit_iter must be an integer of at least 0, got None"),
        (lambda: PostLocalSGDState(None, None, None), "start_localSGD_iter must be an integer .*, got None"),
        (lambda: PostLocalSGDState(None, None, "4"), "start_localSGD_iter must be an integer .*, got '4'"),
        (
            lambda: PostLocalSGDState(None, None, 4, "no"),
            "post_local_gradient_allreduce must be True or False, got 'no'",
        ),
    ],
)
def test_options_of_other_states_are_refused_at_construction(make: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make()
