"""Bad input of a divided optimizer: what is wrong, where, and what to do, on every rank."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from divided import parameters

import resilin
from resilin import distributed as dist
from resilin import nn, optim
from resilin.errors import CollectiveMismatch, DistError, UsageError, UsageTypeError
from resilin.testing.ranks import run_ranks
from resilin.zero import ZeroRedundancyOptimizer, shard


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (object, "must be a class of resilin.optim, or one derived from optim.Optimizer, got object"),
        (optim.SGD([nn.Parameter(resilin.zeros(2))]), "must be a class"),
        ("AdamW", "got 'AdamW'"),
    ],
)
def test_what_is_no_class_of_optimizers_is_refused(given: Any, says: str) -> None:
    with pytest.raises(UsageTypeError, match=says):
        ZeroRedundancyOptimizer(parameters(), given)


def test_an_optimizer_that_needs_all_parameters_at_once_is_refused_with_the_reason() -> None:
    with pytest.raises(UsageError, match="LBFGS cannot be divided among ranks: its direction is made of dot products"):
        ZeroRedundancyOptimizer(parameters(), optim.LBFGS)


@pytest.mark.parametrize("name", ["parameters_as_bucket_view", "overlap_with_ddp", "buddies"])
def test_a_flag_that_is_no_bool_is_refused(name: str) -> None:
    for value in ("no", 2, 0.0, None, []):
        with pytest.raises(UsageTypeError, match=f"ZeroRedundancyOptimizer: {name} must be True or False, got "):
            ZeroRedundancyOptimizer(parameters(), optim.AdamW, **{name: value})


def test_a_flag_may_be_numpys_or_a_number_that_is_one() -> None:
    optimizer = ZeroRedundancyOptimizer(parameters(), optim.AdamW, None, np.int64(1), np.False_)  # type: ignore[arg-type]
    assert optimizer.parameters_as_bucket_view is True
    assert optimizer.overlap_with_ddp is False


def test_a_step_without_a_group_says_what_to_do() -> None:
    optimizer = ZeroRedundancyOptimizer(parameters(), optim.AdamW)
    with pytest.raises(UsageError, match="init_process_group"):
        optimizer.step()


def test_mistakes_in_parameters_are_those_of_any_optimizer() -> None:
    def work(rank: int) -> None:
        params = parameters()
        for wrong, kind, says in (
            ([], UsageError, "got no parameters"),
            (set(params), TypeError, "a set has no order"),
            ([*params, params[0]], UsageError, "appears twice"),
            ([resilin.zeros(2).requires_grad_() * 2], UsageError, "leaf tensors only"),
            ([nn.Parameter(resilin.zeros(3, 4).t())], UsageError, r"parameter 0 of shape \[4, 3\] is not contiguous"),
        ):
            with pytest.raises(kind, match=says):
                ZeroRedundancyOptimizer(wrong, optim.AdamW)
        with pytest.raises(UsageError, match="AdamW: lr must not be negative"):
            ZeroRedundancyOptimizer(params, optim.AdamW, lr=-1)
        with pytest.raises(TypeError, match="momentum"):
            ZeroRedundancyOptimizer(params, optim.AdamW, momentum=0.9)

    run_ranks(2, work).results()


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (
            ((7, 5), (32,)),
            r"parameter 1 \(group 0\) is of shape \[33\] and dtype float32 on cpu on rank 0 and of shape",
        ),
        (
            ((7, 5),),
            r"parameter 1 \(group 0\) is of shape \[33\] and dtype float32 on cpu on rank 0 and absent on rank 1",
        ),
    ],
)
def test_parameters_that_differ_are_named_on_all_ranks(other: Any, says: str) -> None:
    def work(rank: int) -> None:
        params = parameters(((7, 5), (33,)) if rank == 0 else other)
        with pytest.raises(CollectiveMismatch, match=says):
            ZeroRedundancyOptimizer(params, optim.AdamW)

    run_ranks(2, work).results()


def test_ranks_with_other_arguments_are_told() -> None:
    def work(rank: int) -> None:
        with pytest.raises(
            CollectiveMismatch, match=r"rank 0 was made with optimizer_class=AdamW.*rank 1 with.*=Adam$"
        ):
            ZeroRedundancyOptimizer(parameters(), [optim.AdamW, optim.Adam][rank])

    run_ranks(2, work).results()


def test_options_that_differ_are_named_with_both_sides() -> None:
    def work(rank: int) -> None:
        with pytest.raises(CollectiveMismatch, match=r"lr of group 0 is 0\.1 on rank 0 and 0\.2 on rank 1; each rank"):
            ZeroRedundancyOptimizer(parameters(), optim.SGD, lr=0.1 * (rank + 1))
        first, *rest = parameters()
        optimizer = ZeroRedundancyOptimizer([first], optim.SGD, lr=resilin.tensor(0.1))
        with pytest.raises(CollectiveMismatch, match=r"momentum of group 1 is 0\.9 on rank 0 and 0 on rank 1"):
            optimizer.add_param_group({"params": rest, "momentum": 0 if rank else 0.9})
        assert len(optimizer.param_groups) == 1

    run_ranks(2, work).results()


def test_mistakes_in_a_group_that_is_added_are_told_with_its_number() -> None:
    def work(rank: int) -> None:
        params = parameters(((8, 3), (5,), (4, 2), (7,)))
        optimizer = ZeroRedundancyOptimizer(params[:1], optim.AdamW, lr=0.1)
        optimizer.add_param_group({"params": params[1:2]})
        with pytest.raises(
            CollectiveMismatch, match=r": lr of group 2 is 0\.1 on rank 0 and 0\.2 on rank 1; each rank"
        ):
            optimizer.add_param_group({"params": params[2:], "lr": 0.1 * (rank + 1)})
        with pytest.raises(
            CollectiveMismatch, match=r": parameter 3 \(group 2\) is absent on rank 0 and of shape \[7\] .* on rank 1"
        ):
            optimizer.add_param_group({"params": params[2 : 3 + rank]})
        optimizer.add_param_group({"params": params[2:]})

    run_ranks(2, work).results()


def test_a_rank_outside_of_the_group_is_told() -> None:
    def work(rank: int) -> None:
        group = dist.new_group([0])
        if rank == 0:
            ZeroRedundancyOptimizer(parameters(), optim.SGD, process_group=group, lr=0.1)
            shard(nn.Linear(2, 2), process_group=group)
            return
        with pytest.raises(UsageError, match="ZeroRedundancyOptimizer: this rank is not in process_group"):
            ZeroRedundancyOptimizer(parameters(), optim.SGD, process_group=group, lr=0.1)
        with pytest.raises(UsageError, match=r"zero\.shard: this rank is not in process_group"):
            shard(nn.Linear(2, 2), process_group=group)

    run_ranks(2, work).results()


def test_names_of_parameters_are_told_where_there_are_any() -> None:
    def work(rank: int) -> None:
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2 + rank))
        with pytest.raises(CollectiveMismatch, match=r"parameter 2 \(group 0, 1.weight\)"):
            ZeroRedundancyOptimizer(model.named_parameters(), optim.AdamW)

    run_ranks(2, work).results()


def test_values_that_differ_are_found_in_the_first_step_before_anything_is_written() -> None:
    def work(rank: int) -> None:
        params = parameters()
        params[2]._array[1, 1, 1] += rank == 2
        before = [param.detach().numpy().copy() for param in params]
        optimizer = ZeroRedundancyOptimizer(params, optim.SGD, lr=0.1)
        for param in params:
            param.grad = param.detach() + 1
        with pytest.raises(
            CollectiveMismatch, match=r"parameter 2 of shape \[3, 4, 5\] has other values on rank 2 than"
        ):
            optimizer.step()
        assert all(np.array_equal(a, param.detach().numpy()) for a, param in zip(before, params, strict=True))

    run_ranks(3, work).results()


def test_a_parameter_that_was_converted_since_is_named() -> None:
    def work(rank: int) -> None:
        params = parameters(((64, 3),))
        optimizer = ZeroRedundancyOptimizer(params, optim.AdamW)
        params[0].data = params[0].detach().double()
        params[0].grad = params[0].detach()
        with pytest.raises(UsageError, match=r"parameter 0 had shape .* and dtype float32 .* float64"):
            optimizer.step()

    run_ranks(1, work).results()


def test_a_gradient_of_another_shape_is_named_and_no_rank_waits() -> None:
    def work(rank: int) -> None:
        params = parameters(((64, 3),))
        optimizer = ZeroRedundancyOptimizer(params, optim.AdamW)
        params[0].grad = resilin.ones(64, 3)
        optimizer.step()
        dist.barrier()
        if rank == 1:
            params[0]._grad = resilin.ones(3, 64)
        optimizer.step()

    errors = run_ranks(2, work, abort=False).errors
    says = "the gradient of parameter 0 has shape [3, 64], the parameter [64, 3]"
    assert says in str(errors[1])
    assert isinstance(errors[1], UsageError)
    assert isinstance(errors[0], DistError)
    assert says in str(errors[0])


def test_ranks_that_consolidate_on_different_ranks_are_told() -> None:
    def work(rank: int) -> None:
        optimizer = ZeroRedundancyOptimizer(parameters(), optim.AdamW)
        with pytest.raises(
            CollectiveMismatch,
            match=r"rank 0 called consolidate_state_dict\(to=0\), rank 1 called consolidate_state_dict\(to=1\)",
        ):
            optimizer.consolidate_state_dict(to=rank % 2)
        with pytest.raises(CollectiveMismatch, match=r"consolidate_state_dict\(to=0\).*sharded_state_dict\(\)"):
            optimizer.sharded_state_dict() if rank else optimizer.consolidate_state_dict()
        optimizer.consolidate_state_dict(to=2)

    run_ranks(3, work).results()


@pytest.mark.parametrize("to", [2, -1, True, 0.0, "0", None])
def test_what_is_no_rank_to_consolidate_on_is_named(to: Any) -> None:
    def work(rank: int) -> None:
        optimizer = ZeroRedundancyOptimizer(parameters(), optim.AdamW)
        with pytest.raises(UsageError, match=rf"to must be a global rank of .* which has 0, 1, got {to!r}"):
            optimizer.consolidate_state_dict(to=to)

    run_ranks(2, work).results()


def test_a_copy_is_refused_with_what_to_do() -> None:
    def work(rank: int) -> None:
        optimizer = ZeroRedundancyOptimizer(parameters(), optim.AdamW)
        with pytest.raises(UsageError, match=r"cannot be copied or pickled.*sharded_state_dict"):
            copy.deepcopy(optimizer)

    run_ranks(2, work).results()


OTHER_CALLS: dict[str, Callable[[Any], Any]] = {
    "step": lambda optimizer: optimizer.step(),
    "consolidate_state_dict(to=0)": lambda optimizer: optimizer.consolidate_state_dict(0),
    "sharded_state_dict()": lambda optimizer: optimizer.sharded_state_dict(),
    "ZeroRedundancyOptimizer(...)": lambda optimizer: ZeroRedundancyOptimizer(parameters(), optim.AdamW),
}


@pytest.mark.parametrize("other", OTHER_CALLS)
@pytest.mark.parametrize("in_place", [False, True])
def test_a_group_that_is_added_on_one_rank_only_is_named_on_all(other: str, in_place: bool) -> None:
    def work(rank: int) -> str:
        params = parameters(((8, 3), (5,)))
        optimizer = ZeroRedundancyOptimizer(params, optim.AdamW, parameters_as_bucket_view=in_place)
        for param in params:
            param.grad = resilin.ones_like(param)
        optimizer.step()
        added = {"params": parameters(((4, 2),))}
        with pytest.raises(CollectiveMismatch) as told:
            optimizer.add_param_group(added) if rank == 1 else OTHER_CALLS[other](optimizer)
        assert len(optimizer.param_groups) == 1
        return str(told.value)

    zero, one = run_ranks(2, work, abort=False).results()
    assert zero.startswith("ZeroRedundancyOptimizer")
    assert other in zero
    assert "add_param_group" in zero
    assert one.startswith("ZeroRedundancyOptimizer")
    assert "add_param_group (group 1)" in one
    assert other in one or other == "step"


def test_objects_that_the_program_gathers_are_not_taken_for_those_of_an_optimizer() -> None:
    def work(rank: int) -> None:
        def mine() -> None:
            if rank == 0:
                dist.all_gather_object([None] * 2, (1, 2, 3))
            else:
                ZeroRedundancyOptimizer(parameters(), optim.AdamW)

        said = r"rank 0 called all_gather_object .*, rank 1 called ZeroRedundancyOptimizer "
        with pytest.raises(CollectiveMismatch, match=said):
            mine()

    run_ranks(2, work, abort=False).results()


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"parameters_as_bucket_view": "x"}, "parameters_as_bucket_view must be True or False, got 'x'"),
        ({"buddies": None}, "buddies must be True or False"),
        ({"optimizer_class": optim.LBFGS}, "LBFGS cannot be divided among ranks"),
        ({"params": []}, "got no parameters"),
        ({"params": {1}}, "a set has no order"),
        ({"params": [nn.Parameter(resilin.zeros(3, 4).t())]}, r"parameter 0 of shape [4, 3] is not contiguous"),
    ],
)
def test_arguments_that_one_rank_refuses_are_told_on_all_and_the_group_lives_on(
    given: Any, says: str, world: int
) -> None:
    def work(rank: int) -> tuple[str, type]:
        last = rank == world - 1
        arguments: Any = {"params": parameters(), "optimizer_class": optim.AdamW, **(given if last else {})}
        with pytest.raises((UsageError, TypeError)) as caught:
            ZeroRedundancyOptimizer(**arguments)
        ZeroRedundancyOptimizer(parameters(), optim.AdamW)
        return str(caught.value), type(caught.value)

    *others, own = run_ranks(world, work).results()
    assert says in own[0]
    for said, kind in others:
        assert said.startswith("ZeroRedundancyOptimizer #0, group 'test'")
        assert said.endswith(f": rank {world - 1} refused its arguments: {own[0]}")
        assert kind is own[1]


def transposed() -> nn.Parameter:
    return nn.Parameter(resilin.zeros(2, 4).t())


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize(
    ("given", "says"),
    [
        (lambda params, new: {"params": params}, "some parameters appear in more than one parameter group"),
        (lambda params, new: {"params": new * 2}, "a parameter appears twice in one group"),
        (lambda params, new: {"params": 5}, "'int' object is not iterable"),
        (lambda params, new: {"params": [transposed()]}, r"parameter 2 of shape [4, 2] is not contiguous"),
        (lambda params, new: new, "param_group must be a dict, got list"),
        (lambda params, new: {"parameters": new}, "a parameter group needs a list 'params', got ['parameters']"),
    ],
)
def test_a_group_that_one_rank_refuses_is_told_on_all_and_added_on_none(given: Any, says: str, world: int) -> None:
    def work(rank: int) -> tuple[str, type]:
        last, params, new = rank == world - 1, parameters(((8, 3), (5,))), parameters(((4, 2),))
        optimizer = ZeroRedundancyOptimizer(params, optim.AdamW)
        with pytest.raises((UsageError, TypeError)) as caught:
            optimizer.add_param_group(given(params, new) if last else {"params": new})
        assert len(optimizer.param_groups) == 1
        optimizer.add_param_group({"params": new})
        for param in [*params, *new]:
            param.grad = resilin.ones_like(param)
        optimizer.step()
        return str(caught.value), type(caught.value)

    *others, own = run_ranks(world, work).results()
    assert says in own[0]
    for said, kind in others:
        assert said.startswith("ZeroRedundancyOptimizer #")
        assert said.endswith(f": rank {world - 1} refused add_param_group (group 1): {own[0]}")
        assert kind is own[1]


def test_names_that_differ_between_ranks_are_shown() -> None:
    def work(rank: int) -> None:
        net = nn.Linear(2, 2)
        given: Any = net.named_parameters() if rank else net.parameters()
        with pytest.raises(
            CollectiveMismatch,
            match=r"is parameter 0 \(group 0\) of .* on rank 0 and parameter 0 \(group 0, weight\) of .* on rank 1",
        ):
            ZeroRedundancyOptimizer(given, optim.AdamW)

    run_ranks(2, work).results()
