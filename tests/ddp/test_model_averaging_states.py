"""States of averagers and of optimizers that average: taken over whole, or refused and nothing is changed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from resilin import nn, optim
from resilin.core.tensor import Tensor
from resilin.ddp.model_averaging import DiLoCoOptimizer, PeriodicModelAverager, PostLocalSGDOptimizer
from resilin.errors import CollectiveMismatch, UsageError
from resilin.testing.ranks import run_ranks


def trained(made: Callable[[optim.Optimizer], Any], lr: float = 0.1, value: float = 1.0) -> Any:
    """What `made(optimizer)` gives, after three steps."""
    param = nn.Parameter(Tensor._wrap(np.full(4, value, np.float32)))
    optimizer = made(optim.SGD([param], lr=lr, momentum=0.9))
    for _ in range(3):
        optimizer.zero_grad()
        (param * param).sum().backward()
        optimizer.step()
    return optimizer


def diloco(inner: optim.Optimizer) -> DiLoCoOptimizer:
    return DiLoCoOptimizer(inner, 2)


def local_sgd(inner: optim.Optimizer) -> PostLocalSGDOptimizer:
    return PostLocalSGDOptimizer(inner, PeriodicModelAverager(2))


def changed(state: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """A copy of `state` with `value` at `path`; None: nothing there."""
    state = copy.deepcopy(state)
    at: Any = state
    for key in path[:-1]:
        at = at[key]
    if value is None:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return state


OUTER = ("outer", "optimizer", "param_groups", 0, "lr")


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (OUTER, "x", "lr must be a number, got 'x'"),
        (("param_groups", 0, "lr"), "x", "lr must be a number, got 'x'"),
        (("outer", "inner_steps"), "x", "inner_steps must be an integer of at least 0, got 'x'"),
        (("outer", "inner_steps"), -1, "inner_steps must be an integer of at least 0, got -1"),
        (("outer", "inner_steps"), None, 'the entry "outer" of the state has no inner_steps'),
        (("outer", "optimizer"), 3, "expected the dict"),
        (("outer",), 3, "with an anchor of the same parameters, got 3"),
        (("outer", "anchor"), 3, "an anchor of the same parameters, got 3"),
        (("outer", "anchor"), ["x"], r"an anchor of the same parameters, got \['x'\]"),
        (("outer", "anchor"), [Tensor._wrap(np.zeros(3, np.float32))], r"same parameters, got shapes \[\[3\]\]"),
        (
            ("outer", "anchor"),
            [Tensor._wrap(np.zeros(4, np.int64))],
            "anchor 0 must be a tensor of floating point numbers, got",
        ),
    ],
)
def test_a_state_that_diloco_refuses_changes_nothing(path: tuple[Any, ...], value: Any, said: str) -> None:
    def work(rank: int) -> None:
        bad = changed(trained(diloco, lr=0.7, value=5.0).state_dict(), path, value)
        here = trained(diloco)
        before = repr(here.state_dict())
        with pytest.raises((UsageError, TypeError), match=said):
            here.load_state_dict(bad)
        assert repr(here.state_dict()) == before
        with pytest.raises((UsageError, TypeError), match=said):
            here.check_loadable(bad)

    run_ranks(1, work).results()


@pytest.mark.parametrize(
    ("made", "path"), [(diloco, ("outer", "inner_steps")), (local_sgd, ("step",))], ids=["diloco", "local SGD"]
)
@pytest.mark.parametrize(
    "count", [np.int64(7), np.array(7), Tensor._wrap(np.array(7))], ids=["int64", "array", "tensor"]
)
def test_counts_are_taken_as_numpy_and_tensors_have_them(made: Any, path: tuple[Any, ...], count: Any) -> None:
    def work(rank: int) -> None:
        here = trained(made)
        here.load_state_dict(changed(here.state_dict(), path, count))
        got = here.inner_steps if made is diloco else here.averager.step
        assert (type(got), got) == (int, 7)

    run_ranks(1, work).results()


def test_an_anchor_of_arrays_is_taken_over() -> None:
    def work(rank: int) -> None:
        saved = trained(diloco, value=5.0).state_dict()
        here = trained(diloco)
        here.load_state_dict(changed(saved, ("outer", "anchor"), [saved["outer"]["anchor"][0].detach().numpy()]))
        assert repr(here.state_dict()["outer"]["anchor"]) == repr(saved["outer"]["anchor"])

    run_ranks(1, work).results()


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("step",), "x", "PostLocalSGDOptimizer.load_state_dict: step must be an integer of at least 0, got 'x'"),
        (("step",), 1.5, "step must be an integer of at least 0, got 1.5"),
        (("param_groups", 0, "lr"), "x", "lr must be a number, got 'x'"),
    ],
)
def test_a_state_that_local_sgd_refuses_changes_nothing(path: tuple[Any, ...], value: Any, said: str) -> None:
    def work(rank: int) -> None:
        bad = changed(trained(local_sgd, lr=0.7).state_dict(), path, value)
        here = trained(local_sgd)
        before = repr(here.state_dict())
        with pytest.raises(UsageError, match=said):
            here.load_state_dict(bad)
        assert repr(here.state_dict()) == before

    run_ranks(1, work).results()


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"step": "x"}, "PeriodicModelAverager.load_state_dict: step must be an integer of at least 0, got 'x'"),
        ({}, r"PeriodicModelAverager.load_state_dict: expected the entries \['step'\], got \[\]"),
        (3, "PeriodicModelAverager.load_state_dict: expected the entries .*, got 3"),
    ],
)
def test_a_state_that_an_averager_refuses_is_named(state: Any, said: str) -> None:
    with pytest.raises((UsageError, TypeError), match=said):
        PeriodicModelAverager(2).load_state_dict(state)


def in_a_world(ranks: int, load: Callable[[int, DiLoCoOptimizer], None], before: int = 0) -> list[str]:
    """Train with DiLoCo on each rank, load after `before` steps, and go on: what is said on each rank."""

    def work(rank: int) -> str:
        param = nn.Parameter(Tensor._wrap(np.full(4, 1.0, np.float32)))
        optimizer = DiLoCoOptimizer(optim.SGD([param], lr=0.01 * (rank + 1)), 2)
        said = ""
        for step in range(before + 4):
            if step == before:
                load(rank, optimizer)
            optimizer.zero_grad()
            (param * param).sum().backward()
            try:
                optimizer.step()
            except CollectiveMismatch as error:
                said = str(error)
                break
        return said or repr(param.tolist())

    return run_ranks(ranks, work).results()


def momentum(value: float) -> dict[str, Any]:
    """A state of DiLoCo after an outer step."""
    (state,) = run_ranks(1, lambda rank: trained(diloco, lr=0.01).state_dict()).results()
    (entry,) = state["outer"]["optimizer"]["state"].values()
    entry["momentum_buffer"] = Tensor._wrap(np.full(4, value, np.float32))
    state["outer"]["inner_steps"] = 2
    return state


def test_an_outer_state_that_one_rank_alone_has_loaded_is_named_in_the_first_step() -> None:
    state = momentum(0.5)
    state["outer"]["anchor"] = [Tensor._wrap(np.full(4, 1.0, np.float32))]

    def load(rank: int, optimizer: DiLoCoOptimizer) -> None:
        if rank == 0:
            optimizer.load_state_dict(state)

    for said in in_a_world(2, load):
        assert "the checksum of the outer optimizer's momentum_buffer of parameter 0 is" in said
        assert "absent on rank 1" in said
        assert "load the same state on all ranks, or on none" in said


@pytest.mark.parametrize("who", [{1}, {0, 1, 2}])
def test_outer_states_that_differ_are_named_in_the_next_outer_step(who: set[int]) -> None:
    states = [momentum(value) for value in (0.25, 0.5, 0.25)]

    def load(rank: int, optimizer: DiLoCoOptimizer) -> None:
        if rank in who:
            optimizer.load_state_dict(states[rank])

    words = "the outer state is" if who == {1} else "the outer optimizer's momentum_buffer of parameter 0"
    for said in in_a_world(3, load, before=2):
        assert words in said


def test_inner_steps_that_differ_where_a_state_is_loaded_are_named_in_the_next_outer_step() -> None:
    states = [momentum(0.5) for _ in range(2)]
    states[1]["outer"]["inner_steps"] = 3

    for said in in_a_world(2, lambda rank, optimizer: optimizer.load_state_dict(states[rank]), before=2):
        assert "the outer state is loaded since the last outer step, at inner step 2 on rank 0 and" in said
        assert "at inner step 3 on rank 1" in said


def test_a_state_that_all_ranks_load_alike_is_taken() -> None:
    state = momentum(0.5)
    first, *others = in_a_world(3, lambda rank, optimizer: optimizer.load_state_dict(state), before=2)
    assert first.startswith("[")
    assert others == [first] * 2
