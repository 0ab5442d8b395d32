"""Pieces that ranks group, freeze or update differently: tensors would be trained in part, so all ranks are told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import resilin
from resilin import nn, optim
from resilin.distributed.agreement import compare
from resilin.errors import CollectiveMismatch
from resilin.testing.ranks import run_ranks
from resilin.zero import OptimizerState, shard

STAGES = pytest.mark.parametrize("stage", [2, 3])
WHY = "make groups by name or logical_shape (numel() and shape are those of the piece)"
TAKE: list[Callable[[Any], Any]] = [
    lambda model: model(resilin.ones(4, 20)),
    lambda model: model.state_dict(),
    lambda model: model.gathered().__enter__(),
]


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 5))


class Half(nn.Module):
    """Uses `second` when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.whole = nn.Linear(20, 64), nn.Linear(64, 1), False

    def forward(self, x: Any) -> Any:
        hidden = self.first(x)
        return self.second(hidden) if self.whole else hidden


def backward(model: Any) -> None:
    model(resilin.ones(4, 20)).square().mean().backward()


def step(model: Any, optimizer: Any) -> None:
    backward(model)
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("take", TAKE)
@STAGES
def test_groups_chosen_by_the_size_of_pieces_are_named_with_the_parameter(stage: int, take: Any) -> None:
    def work(rank: int) -> None:
        model = shard(net(), stage)
        large, small = ([p for p in model.parameters() if (p.numel() >= 400) is wanted] for wanted in (True, False))
        optimizer = optim.AdamW([{"params": large, "weight_decay": 0.9}, {"params": small}], lr=0.1)
        step(model, optimizer)
        with pytest.raises(
            CollectiveMismatch,
            match=r"zero\.shard: parameter 0\.weight of AdamW is in group 0 on rank 0 and in group 1 on rank 2; ",
        ) as caught:
            take(model)
        assert WHY in str(caught.value)

    run_ranks(3, work).results()


@STAGES
def test_a_parameter_that_one_rank_gives_no_optimizer_is_named(stage: int) -> None:
    def work(rank: int) -> None:
        model = shard(net(), stage)
        pieces = list(model.parameters())
        optimizer = optim.AdamW(pieces if rank == 0 else pieces[:2], lr=0.1)
        step(model, optimizer)
        with pytest.raises(
            CollectiveMismatch, match=r"parameter 2\.weight of AdamW is in group 0 on rank 0 and absent on rank 1"
        ):
            model(resilin.ones(4, 20))

    run_ranks(2, work).results()


@STAGES
def test_groups_that_are_added_changed_or_of_another_number_are_compared_anew(stage: int) -> None:
    def work(rank: int) -> None:
        model = shard(net(), stage)
        pieces = list(model.parameters())
        optimizer = optim.AdamW(pieces[:2], lr=0.1)
        step(model, optimizer)
        optimizer.add_param_group({"params": pieces[2:] if rank == 0 else pieces[3:]})
        step(model, optimizer)
        with pytest.raises(
            CollectiveMismatch, match=r"parameter 2\.weight of AdamW is in group 1 on rank 0 and absent on rank 1"
        ):
            model(resilin.ones(4, 20))
        if rank == 1:
            optimizer.param_groups[1]["params"].insert(0, pieces[2])  # as on rank 0
        step(model, optimizer)
        step(model, optimizer)
        if rank == 1:
            optimizer.param_groups.append({**optimizer.param_groups[1], "params": [pieces[2]]})
            optimizer.param_groups[1]["params"] = [pieces[3]]
        step(model, optimizer)
        with pytest.raises(
            CollectiveMismatch, match=r"parameter 2\.weight of AdamW is in group 1 on rank 0 and in group 2 on rank 1"
        ):
            model.state_dict()

    run_ranks(2, work).results()


@STAGES
def test_the_state_of_optimizers_with_other_groups_is_refused_before_any_step(stage: int) -> None:
    def work(rank: int) -> None:
        model = shard(net(), stage)
        pieces = list(model.parameters())
        optimizer = optim.AdamW([{"params": pieces[: 1 + rank]}, {"params": pieces[1 + rank :]}])
        with pytest.raises(
            CollectiveMismatch, match=r"parameter 0\.bias of AdamW is in group 1 on rank 0 and in group 0 on rank 1"
        ):
            OptimizerState(model, optimizer).state_dict()

    run_ranks(2, work).results()


@STAGES
def test_a_piece_that_one_rank_freezes_is_named_before_anything_is_updated(stage: int) -> None:
    def work(rank: int) -> None:
        model = shard(net(), stage)
        pieces = dict(model.named_parameters())
        optimizer = optim.AdamW(model.parameters(), lr=0.1)
        step(model, optimizer)
        pieces["0.weight"].requires_grad_(rank != 0)
        before = [piece.detach().clone() for piece in pieces.values()]
        with pytest.raises(
            CollectiveMismatch, match=r"zero\.shard: requires_grad of 0\.weight is False on rank 0 and True on rank 1; "
        ):
            step(model, optimizer)
        assert all(resilin.equal(old, piece) for old, piece in zip(before, pieces.values(), strict=True))
        pieces["0.weight"].requires_grad_(False)  # on all: nothing to say
        step(model, optimizer)
        step(model, optimizer)
        model.state_dict()

    run_ranks(2, work).results()


@STAGES
def test_a_piece_that_one_rank_freezes_after_the_last_fetch_is_named_where_parameters_are_taken_away(
    stage: int,
) -> None:
    def work(rank: int) -> None:
        model = shard(net(), stage)
        optimizer = optim.AdamW(model.parameters(), lr=0.1)
        step(model, optimizer)
        dict(model.named_parameters())["2.bias"].requires_grad_(rank != 1)
        with pytest.raises(CollectiveMismatch, match=r"requires_grad of 2\.bias is True on rank 0 and False on rank 1"):
            model.state_dict()

    run_ranks(2, work).results()


@STAGES
def test_a_gradient_that_one_rank_drops_before_the_step_is_named(stage: int) -> None:
    def work(rank: int) -> None:
        model = shard(net(), stage)
        optimizer = optim.AdamW(model.parameters(), lr=0.1)
        step(model, optimizer)
        backward(model)
        if rank == 1:
            dict(model.named_parameters())["0.weight"].grad = None
        optimizer.step()
        with pytest.raises(
            CollectiveMismatch,
            match=r"gradient of 0\.weight in the step of AdamW is there on rank 0 and absent on rank 1; each rank",
        ):
            model(resilin.ones(4, 20))

    run_ranks(2, work).results()


@STAGES
def test_what_no_rank_uses_and_pieces_without_elements_may_be_left_out_of_a_step(
    stage: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchanged: list[int] = []
    found = compare._everybodys

    def everybodys(*args: Any) -> Any:
        exchanged.append(1)
        return found(*args)

    monkeypatch.setattr(compare, "_everybodys", everybodys)

    def work(rank: int) -> None:
        half = Half()
        model = shard(half, stage, find_unused_parameters=True)
        optimizer = optim.AdamW([{"params": [piece]} for piece in model.parameters()])
        for _ in range(3):
            step(model, optimizer)
        model.state_dict()
        assert not exchanged
        half.whole = True
        for _ in range(3):
            backward(model)
            for piece in model.parameters():
                piece.grad = piece.grad if piece.numel() else None
            optimizer.step()
        model.state_dict()

    run_ranks(3, work).results()
    assert exchanged, "no rank has elements of all parameters"


@STAGES
def test_parameters_of_other_modules_may_be_in_any_group(stage: int) -> None:
    def work(rank: int) -> None:
        first, second = shard(net(), stage), shard(net(), stage)
        own = [resilin.nn.Parameter(resilin.ones(2)) for _ in range(rank)]
        optimizer = optim.AdamW([{"params": [*first.parameters(), *second.parameters()]}, {"params": own}])
        step(first, optimizer)
        step(second, optimizer)
        for model in (first, second):
            model.state_dict()

    run_ranks(2, work).results()
