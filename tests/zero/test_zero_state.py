"""The state of a divided optimizer: gathered, saved, and loaded in any world, by plain optimizers too."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from divided import ALL, bits, divided, flat_state, on_one, parameters, plain, shapes_for, train

from resilin import optim
from resilin.checkpoint.sliced import Sliced
from resilin.core.tensor import Tensor
from resilin.errors import UsageError
from resilin.testing.ranks import run_ranks
from resilin.zero import ZeroRedundancyOptimizer

NAMES = ["AdamW", "NAdam", "SGD", "Adafactor", "Muon", "SparseAdam"]
LATER = range(4, 7)


def whole(trees: list[dict[str, Any]]) -> dict[str, Any]:
    """One state dict from the sharded ones of all ranks: every element of every slice put in its place."""
    state: dict[int, dict[str, Any]] = {}
    for number, entry in trees[0]["state"].items():
        for name, leaf in entry.items():
            value = leaf
            if isinstance(leaf, Sliced):
                parts = [tree["state"][number][name] for tree in trees]
                full = np.empty(leaf.shape, leaf.dtype.np)
                written = np.zeros(full.size, np.int64)
                for part in parts:
                    assert (part.shape, part.dtype) == (leaf.shape, leaf.dtype)
                    full.reshape(-1)[part.start : part.stop] = part.tensor.numpy()
                    written[part.start : part.stop] += 1
                assert (written == 1).all()
                value = Tensor._wrap(full)
            state.setdefault(number, {})[name] = value
    return {"state": state, "param_groups": trees[0]["param_groups"]}


def continued(name: str, params: list[Any], optimizer: Any, state: Any) -> list[bytes]:
    """Parameters after loading `state` and the steps LATER."""
    for param, start in zip(params, _after_four(name), strict=True):
        param._array[...] = start
    optimizer.load_state_dict(state)
    train(params, optimizer, LATER)
    return bits(params)


def _after_four(name: str) -> list[Any]:
    cls, options = ALL[name]
    params = parameters(shapes_for(name))
    train(params, cls(params, **options))
    return [param.detach().numpy() for param in params]


@pytest.mark.parametrize("name", NAMES)
def test_state_is_loaded_in_any_world_and_by_the_plain_optimizer(name: str) -> None:
    want, _ = plain(name, range(7))
    _, undivided = plain(name)

    def save(rank: int) -> tuple[Any, Any]:
        params, optimizer = divided(name)
        train(params, optimizer)
        return copy.deepcopy(on_one(optimizer, rank)), optimizer.sharded_state_dict()

    saved = run_ranks(4, save).results()
    gathered = saved[0][0]
    sharded = whole([tree for _, tree in saved])
    assert flat_state(sharded) == flat_state(gathered) == flat_state(undivided)

    def load(rank: int, state: Any) -> list[bytes]:
        params, optimizer = divided(name, parameters_as_bucket_view=True)
        return continued(name, params, optimizer, state)

    for world in (1, 2, 3, 5):
        assert run_ranks(world, load, gathered).results() == [want] * world
    cls, options = ALL[name]
    params = parameters(shapes_for(name))
    assert continued(name, params, cls(params, **options), gathered) == want


def test_slices_of_one_world_are_loaded_in_another() -> None:
    want, _ = plain("AdamW", range(7))

    def save(rank: int) -> Any:
        params, optimizer = divided("AdamW")
        train(params, optimizer)
        return copy.deepcopy(optimizer.sharded_state_dict())

    tree = whole(run_ranks(3, save).results())
    covering = copy.deepcopy(tree)
    for entry in covering["state"].values():
        for name, leaf in entry.items():
            if isinstance(leaf, Tensor) and name != "step":
                entry[name] = Sliced(leaf.shape, leaf.dtype, 0, leaf.reshape(-1))

    def load(rank: int) -> list[bytes]:
        params, optimizer = divided("AdamW")
        for param, start in zip(params, _after_four("AdamW"), strict=True):
            param._array[...] = start
        optimizer.load_sharded_state_dict(covering)
        train(params, optimizer, LATER)
        return bits(params)

    assert run_ranks(2, load).results() == [want, want]


def test_the_sharded_tree_is_equal_in_structure_on_all_ranks_and_shares_memory_with_the_state() -> None:
    def work(rank: int) -> Any:
        params, optimizer = divided("AdamW")
        empty = optimizer.sharded_state_dict()
        train(params, optimizer, range(1))
        tree = optimizer.sharded_state_dict()
        own = optimizer.owned.held[0]
        leaf = tree["state"][own.number]["exp_avg"]
        assert leaf.tensor.data_ptr() == optimizer.owned.optimizer.state[own.proxy]["exp_avg"].data_ptr()
        return empty["state"], [(number, list(entry)) for number, entry in tree["state"].items()], tree["param_groups"]

    results = run_ranks(3, work).results()
    assert results[0] == results[1] == results[2]
    assert results[0][0] == {}
    assert [number for number, _ in results[0][1]] == list(range(7))


def test_the_gathered_state_is_on_one_rank_and_ends_with_the_next_step() -> None:
    def work(rank: int) -> tuple[bool, str, str]:
        params, optimizer = divided("AdamW")
        train(params, optimizer)
        with pytest.raises(UsageError) as never:
            optimizer.state_dict()
        optimizer.consolidate_state_dict(to=2)
        if rank == 2:
            kept = len(optimizer.state_dict()["state"]) == 7
        else:
            kept = not optimizer.state
            with pytest.raises(UsageError):
                optimizer.state_dict()
        train(params, optimizer, range(4, 5))
        with pytest.raises(UsageError) as late:
            optimizer.state_dict()
        return kept, str(never.value), str(late.value)

    for rank, (kept, never, late) in enumerate(run_ranks(3, work).results()):
        assert kept
        assert f"rank {rank}: the state was not gathered here since the last step" in never == late
        assert f"consolidate_state_dict(to={rank})" in late


def test_the_state_is_on_the_rank_where_it_was_gathered_last() -> None:
    def work(rank: int) -> str:
        params, optimizer = divided("AdamW")
        train(params, optimizer, range(1))
        optimizer.consolidate_state_dict(to=0)
        optimizer.consolidate_state_dict(to=1)
        if rank == 1:
            return str(sorted(optimizer.state_dict()["state"]))
        with pytest.raises(UsageError) as error:
            optimizer.state_dict()
        assert not optimizer.state
        return str(error.value)

    other, whole_one = run_ranks(2, work).results()
    assert other.startswith("ZeroRedundancyOptimizer.state_dict, rank 0: the state was not gathered here")
    assert "but on rank 1 by the last call; call consolidate_state_dict(to=0) on all ranks before this" in other
    assert whole_one == str(list(range(7)))


def test_the_gathered_state_does_not_change_with_training() -> None:
    def work(rank: int) -> bool:
        params, optimizer = divided("NAdam")
        train(params, optimizer)
        kept = on_one(optimizer, rank)
        before = flat_state(kept) if kept is not None else None
        train(params, optimizer, range(4, 6))
        return kept is None or flat_state(kept) == before

    for world in (1, 2):
        assert run_ranks(world, work).results() == [True] * world


def test_a_state_of_another_model_changes_nothing() -> None:
    other = parameters(((4, 4), (3,)))
    foreign = optim.AdamW(other)
    train(other, foreign)
    fitting_groups = copy.deepcopy(foreign.state_dict())
    fitting_groups["param_groups"][0]["params"] = list(range(7))
    want, _ = plain("AdamW")

    def work(rank: int) -> list[bytes]:
        params, optimizer = divided("AdamW")
        train(params, optimizer, range(2))
        with pytest.raises(UsageError, match=r"groups of \[2\] parameters in the state, \[7\] here"):
            optimizer.load_state_dict(foreign.state_dict())
        with pytest.raises(UsageError, match=r"of parameter 0, exp_avg has the shape \[4, 4\] .* has \[7, 5\] here"):
            optimizer.load_state_dict(fitting_groups)
        with pytest.raises(TypeError, match="expected the dict"):
            optimizer.load_state_dict([])
        train(params, optimizer, range(2, 4))
        return bits(params)

    assert run_ranks(2, work).results() == [want, want]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({7: {"step": 1.0}}, r"entries of the parameters \[7\], which are in no group of it$"),
        ({-1: {}, "more": 3}, r"entries of the parameters \[-1, 'more'\], which are in no group of it$"),
        ({"0": {}}, r"entries of the parameters \['0'\], which are in no group of it: .*as JSON has them.*int\(key\)"),
    ],
)
def test_a_state_of_parameters_that_are_in_no_group_is_refused_and_changes_nothing(change: Any, says: str) -> None:
    want, _ = plain("AdamW")

    def work(rank: int) -> list[bytes]:
        params, optimizer = divided("AdamW")
        train(params, optimizer, range(2))
        state = copy.deepcopy(optimizer.sharded_state_dict())
        state["param_groups"][0]["lr"] = 7.0
        for name, value in change.items():
            state["state"][name] = value
        for call in (optimizer.check_loadable, optimizer.load_state_dict, optimizer.load_sharded_state_dict):
            with pytest.raises(UsageError, match=rf"ZeroRedundancyOptimizer.load_state_dict: the state has {says}"):
                call(state)
        train(params, optimizer, range(2, 4))
        return bits(params)

    assert run_ranks(2, work).results() == [want, want]


def test_a_state_that_went_through_json_is_refused_as_a_whole() -> None:
    def work(rank: int) -> None:
        params, optimizer = divided("AdamW")
        train(params, optimizer, range(2))
        state = optimizer.sharded_state_dict()
        state["state"] = {str(number): entry for number, entry in state["state"].items()}
        with pytest.raises(UsageError, match=r"the parameters \['0', '1', '2', .*\{int\(key\): entry for key, "):
            optimizer.load_state_dict(state)

    run_ranks(2, work).results()


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [("lr", None, "a number, got None"), ("betas", 3, "two numbers"), ("lr", -1, "negative")],
)
def test_options_that_the_constructor_refuses_are_refused_of_a_state(option: str, value: Any, says: str) -> None:
    want, _ = plain("AdamW")

    def work(rank: int) -> list[bytes]:
        params, optimizer = divided("AdamW")
        train(params, optimizer, range(2))
        state = copy.deepcopy(optimizer.sharded_state_dict())
        state["param_groups"][0][option] = value
        with pytest.raises(UsageError, match=rf"load_state_dict: param_groups\[0\]: AdamW: {option} must .*{says}"):
            optimizer.load_sharded_state_dict(state)
        train(params, optimizer, range(2, 4))
        return bits(params)

    assert run_ranks(2, work).results() == [want, want]


def test_options_are_loaded_and_reach_the_inner_optimizer() -> None:
    def work(rank: int) -> list[float]:
        params, optimizer = divided("AdamW")
        train(params, optimizer)
        optimizer.param_groups[0]["lr"] = 0.125
        state = optimizer.sharded_state_dict()
        again = ZeroRedundancyOptimizer(parameters(), optim.AdamW)
        again.load_state_dict(whole([state]) if rank < 0 else {**state, "state": {}})
        return [again.param_groups[0]["lr"], again.owned.optimizer.param_groups[0]["lr"]]

    assert run_ranks(2, work).results() == [[0.125, 0.125]] * 2


def test_hooks_of_saving_and_loading_run() -> None:
    def work(rank: int) -> list[str]:
        params, optimizer = divided("AdamW")
        seen: list[str] = []
        optimizer.register_state_dict_pre_hook(lambda own: seen.append("saving"))
        optimizer.register_state_dict_post_hook(lambda own, state: {**state, "more": 1})
        optimizer.register_load_state_dict_pre_hook(lambda own, state: seen.append(f"loading {state['more']}"))
        optimizer.register_load_state_dict_post_hook(lambda own: seen.append("loaded"))
        train(params, optimizer, range(1))
        optimizer.load_state_dict(optimizer.state_dict())
        return seen

    assert run_ranks(1, work).results() == [["saving", "loading 1", "loaded"]]


def test_state_bytes_are_a_part_in_n_of_the_whole() -> None:
    shapes = ((96, 256), (128, 256), *(((768, 256), (768,), (256, 256), (1024, 256), (256,)) * 2))

    def work(rank: int) -> int:
        params = parameters(shapes)
        optimizer = ZeroRedundancyOptimizer(params, optim.AdamW)
        train(params, optimizer, range(1))
        return int(optimizer.stats()["own_state_bytes"])

    total = 8 * sum(int(np.prod(shape)) for shape in shapes)
    for world in (2, 3, 4):
        held = run_ranks(world, work).results()
        assert sum(held) == total
        assert max(held) <= 1.0001 * total / world
