"""`OptimizerState`: a state that does not fit is refused on every rank, before anything is changed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sharded_nets import Language, adamw, arrays, tensor, train

from resilin import checkpoint, nn, optim
from resilin.errors import CheckpointMismatch, UsageError
from resilin.testing.ranks import run_ranks
from resilin.zero import OptimizerState, shard

State = dict[str, Any]


def plain(kind: Callable[..., optim.Optimizer] = optim.AdamW, net: nn.Module | None = None, **options: Any) -> State:
    """The state of an undivided optimizer after a step."""
    net = Language(1) if net is None else net
    optimizer = kind(net.parameters(), **options)
    for param in net.parameters():
        param.grad = tensor(np.ones(tuple(param.shape)))
    optimizer.step()
    return optimizer.state_dict()


def changed(change: Callable[[State], Any]) -> State:
    state = copy.deepcopy(plain())
    change(state)
    return state


class Told:
    """A `Survivor` that notes whether it was told of an update."""

    keeps_twice = False

    def __init__(self) -> None:
        self.updates = 0

    def before_update(self, overwritten: bool = False) -> None:
        self.updates += 1

    def after_update(self) -> None:
        self.updates += 1


MISFITS = {
    "another kind by its options": (
        plain(optim.SGD, lr=0.1, momentum=0.9),
        r"^AdamW\.load_state_dict: the state was saved by an optimizer of another kind, as SGD is",
    ),
    "another kind of other shapes": (
        plain(optim.Adafactor),
        r"^AdamW\.load_state_dict: .* optimizer of another kind",
    ),
    "a missing name": (
        changed(lambda state: state["state"][2].pop("exp_avg_sq")),
        r"^AdamW\.load_state_dict: of parameter 2 there is step, exp_avg, and no exp_avg_sq, which AdamW needs",
    ),
    "an unexpected number": (
        changed(lambda state: state["state"].update({77: state["state"][0]})),
        r"^OptimizerState\.load_state_dict: the state has entries of the parameters \[77\], which are in no group",
    ),
    "a number as text": (
        changed(lambda state: state["state"].update({"0": state["state"].pop(0)})),
        r"^OptimizerState\.load_state_dict: the state has entries of the parameters \['0'\], which .*\{int\(key\)",
    ),
    "another shape": (
        changed(lambda state: state["state"][0].update(exp_avg=tensor(np.zeros(3)))),
        r"^OptimizerState\.load_state_dict: exp_avg of parameter 0 has shape \[3\], place here has \[5, 8\]",
    ),
    "other groups": (
        plain(net=nn.Linear(2, 2)),
        r"^AdamW\.load_state_dict: groups of \[2\] parameters in the state, \[10\] here",
    ),
}


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("misfit", MISFITS)
def test_a_state_that_does_not_fit_changes_nothing_on_any_rank(misfit: str, stage: int) -> None:
    given, words = MISFITS[misfit]

    def run(rank: int) -> None:
        model = shard(Language(1), stage)
        optimizer = adamw(model.parameters())
        train(model, optimizer, rank, range(1))
        state = OptimizerState(model, optimizer)
        before = repr(optimizer.state_dict())
        state.reconfigurable = told = Told()  # type: ignore[assignment]
        for load in (state.load_state_dict, state.load_sharded_state_dict, state.check_loadable):
            with pytest.raises(UsageError, match=words):
                load(given)
        assert told.updates == 0
        assert repr(optimizer.state_dict()) == before

    run_ranks(2, run).results()


def test_a_checkpoint_of_another_kind_of_optimizer_changes_nothing_on_any_rank(tmp_path: Path) -> None:
    def run(rank: int, kind: Callable[..., optim.Optimizer], save: bool) -> None:
        model = shard(Language(1), 3)
        optimizer = kind(model.parameters(), lr=0.01)
        train(model, optimizer, rank, range(1))
        state = {"model": model, "optimizer": OptimizerState(model, optimizer)}
        if save:
            checkpoint.save(tmp_path, state)
            return
        before = arrays(model.state_dict()), repr(optimizer.state_dict())
        with pytest.raises(CheckpointMismatch, match=r"optimizer: AdamW\.load_state_dict: .* as SGD is.*Nothing was"):
            checkpoint.load(tmp_path, state)
        after = arrays(model.state_dict()), repr(optimizer.state_dict())
        assert after[1] == before[1]
        assert all(np.array_equal(after[0][name], before[0][name]) for name in before[0])

    run_ranks(2, run, optim.SGD, True).results()
    run_ranks(2, run, optim.AdamW, False).results()


def test_what_fits_is_found_to_fit() -> None:
    def run(rank: int) -> None:
        model = shard(Language(1), 3)
        optimizer = adamw(model.parameters())
        state = OptimizerState(model, optimizer)
        state.check_loadable(plain())
        train(model, optimizer, rank, range(1))
        state.check_loadable(state.sharded_state_dict())
        state.check_loadable(state.state_dict())

    run_ranks(2, run).results()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"param_groups": [5]}, r"param_groups\[0\] must be a dict, got 5"),
        ({"param_groups": [{"params": [[0]]}]}, r'param_groups\[0\]\["params"\]\[0\] must be a parameter'),
        ({"state": [1, 2]}, r'state\["state"\] must be a dict'),
    ],
)
def test_a_tree_that_is_no_state_is_refused_by_name(change, words):
    def work(rank):
        model = shard(nn.Linear(3, 2), stage=3)
        state = OptimizerState(model, optim.AdamW(model.parameters()))
        with pytest.raises(UsageError, match=f"OptimizerState.load_state_dict: {words}"):
            state.load_state_dict({**state.state_dict(), **change})

    run_ranks(2, work).results()
