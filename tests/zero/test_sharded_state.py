"""State of sharded modules: it is that of plain ones, and fits any number of ranks and any stage."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import numpy as np
import pytest
from sharded_nets import Language, State, adamw, arrays, tensor, tokens, train

from resilin import nn, optim
from resilin.checkpoint.sliced import Sliced
from resilin.core.tensor import Tensor
from resilin.errors import UsageError, UsageTypeError
from resilin.testing.ranks import run_ranks
from resilin.zero import OptimizerState, shard

Saved = tuple[State, dict[str, Any]]


def whole_state(state: dict[str, Any]) -> dict[str, Any]:
    """An optimizer's state with arrays for tensors, so that it can be compared."""
    return {
        f"{number}.{name}": value.numpy().copy() if isinstance(value, Tensor) else value
        for number, entry in state["state"].items()
        for name, value in entry.items()
    }


def assert_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert list(one) == list(other)
    for name in one:
        assert np.asarray(one[name]).shape == np.asarray(other[name]).shape, name
        assert np.array_equal(one[name], other[name]), name


def saved(net: nn.Module, world: int, stage: int) -> list[tuple[Any, Any, Any, Any]]:
    """Each rank's whole and sharded state after two steps."""

    def run(rank: int) -> tuple[Any, Any, Any, Any]:
        model = shard(copy.deepcopy(net), stage)
        optimizer = adamw(model.parameters())
        train(model, optimizer, rank % 2, range(2))
        state = OptimizerState(model, optimizer)
        return model.state_dict(), state.state_dict(), model.sharded_state_dict(), state.sharded_state_dict()

    return run_ranks(world, run).results()


def pieces_of(every: list[Any]) -> Any:
    """Trees of all ranks as one, with what a checkpoint would hand over: slices of the whole."""
    if isinstance(every[0], dict):
        return {key: pieces_of([tree[key] for tree in every]) for key in every[0]}
    if not isinstance(every[0], Sliced):
        return every[0]
    whole = np.zeros(every[0].numel(), every[0].dtype.np)
    for one in every:
        whole[one.start : one.stop] = one.tensor.numpy()
    return Sliced(every[0].shape, every[0].dtype, 0, Tensor._wrap(whole))


@pytest.mark.parametrize("stage", [2, 3])
def test_the_state_is_that_of_a_plain_module_and_optimizer(stage: int) -> None:
    net = Language(2)
    results = saved(net, 3, stage)
    plain = copy.deepcopy(net)
    optimizer = adamw(plain.parameters())
    for module_state, optimizer_state, *_ in results:
        assert list(module_state) == list(net.state_dict())
        assert module_state._metadata == net.state_dict()._metadata
        plain.load_state_dict(module_state)
        optimizer.load_state_dict(optimizer_state)
        assert_equal(whole_state(optimizer.state_dict()), whole_state(results[0][1]))
        assert_equal(arrays(plain.state_dict()), arrays(results[0][0]))
    assert not np.array_equal(plain.embed.weight.numpy(force=True), net.embed.weight.numpy(force=True))
    train(plain, optimizer, 0, range(1))  # and it goes on


@pytest.mark.parametrize(("world", "stage"), [(1, 3), (2, 2), (3, 3), (5, 2), (5, 3)])
@pytest.mark.parametrize("sliced", [True, False])
def test_it_loads_at_any_number_of_ranks_and_any_stage(world: int, stage: int, sliced: bool) -> None:
    net = Language(2)
    results = saved(net, 4, 5 - stage)
    if sliced:
        module_state, optimizer_state = (pieces_of([result[place] for result in results]) for place in (2, 3))
    else:
        module_state, optimizer_state = results[0][:2]

    def run(rank: int) -> Saved:
        model = shard(Language(2), stage)
        optimizer = adamw(model.parameters())
        state = OptimizerState(model, optimizer)
        if sliced:
            model.load_sharded_state_dict(module_state)
            state.load_sharded_state_dict(optimizer_state)
        else:
            model.load_state_dict(module_state)
            state.load_state_dict(optimizer_state)
        before = arrays(model.state_dict()), whole_state(state.state_dict())
        train(model, optimizer, rank, range(1))
        return before

    for module_arrays, optimizer_arrays in run_ranks(world, run).results():
        assert_equal(module_arrays, arrays(results[0][0]))
        assert_equal(optimizer_arrays, whole_state(results[0][1]))


def test_slices_name_each_rank_s_elements_once_and_all_of_them() -> None:
    results = saved(Language(1), 3, 3)
    for name, first in results[0][2].items():
        assert isinstance(first, Sliced)
        ends = sorted((result[2][name].start, result[2][name].stop) for result in results)
        held = [(start, stop) for start, stop in ends if stop > start]
        assert held[0][0] == 0
        assert held[-1][1] == first.numel()
        assert all(a[1] == b[0] for a, b in itertools.pairwise(held))
    assert results[0][2]["head.weight"].start == results[0][2]["embed.weight"].start  # one parameter, two names


def test_a_state_for_rank_0_alone_is_empty_elsewhere() -> None:
    net = Language(1)

    def run(rank: int) -> tuple[int, int]:
        model = shard(copy.deepcopy(net), 3)
        optimizer = adamw(model.parameters())
        train(model, optimizer, rank, range(1))
        state = OptimizerState(model, optimizer)
        whole, of_optimizer = model.state_dict(rank0_only=True), state.state_dict(rank0_only=True)
        if rank == 0:
            assert_equal(arrays(whole), arrays(model_state := model.state_dict()))
            assert model_state
        else:
            model.state_dict()
        return len(whole), len(of_optimizer)

    assert run_ranks(2, run).results() == [(len(net.state_dict()), 2), (0, 0)]


def test_buffers_are_saved_and_loaded_with_the_parameters() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))

    def run(rank: int) -> State:
        model = shard(copy.deepcopy(net), 3)
        model(tensor(np.arange(6).reshape(2, 3))).sum().backward()
        other = shard(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), 2)
        other.load_state_dict(model.state_dict())
        return arrays(other.state_dict())

    for state in run_ranks(2, run).results():
        assert list(state) == list(net.state_dict())
        assert state["1.num_batches_tracked"] == 1
        assert state["1.running_mean"].any()
        assert np.array_equal(state["0.weight"], net[0].weight.numpy(force=True))


@pytest.mark.parametrize("stage", [2, 3])
def test_a_state_of_another_model_is_refused_as_a_whole(stage: int) -> None:
    net = Language(1)

    def run(rank: int) -> tuple[str, str, bool]:
        model = shard(copy.deepcopy(net), stage)
        before = arrays(model.state_dict())
        wrong = dict(net.state_dict())
        wrong["extra"] = wrong.pop("norm.bias")
        wrong["place"] = tensor(np.zeros((2, 2)))
        with pytest.raises(UsageError) as caught:
            model.load_state_dict(wrong)
        optimizer = adamw(model.parameters())
        train(model, optimizer, rank, range(1))
        state = OptimizerState(model, optimizer)
        given = state.state_dict()
        given["state"][0]["exp_avg"] = tensor(np.zeros(3))
        with pytest.raises(UsageError) as refused:
            state.load_state_dict(given)
        del wrong["extra"], wrong["place"]
        keys = model.load_state_dict(wrong, strict=False)
        assert (keys.missing_keys, keys.unexpected_keys) == (["place", "norm.bias"], [])
        return str(caught.value), str(refused.value), bool(before)

    for caught, refused, _ in run_ranks(2, run).results():
        assert 'Missing key(s) in state_dict: "norm.bias"' in caught
        assert 'Unexpected key(s) in state_dict: "extra"' in caught
        assert "size mismatch for place: copying a param with shape (2, 2)" in caught
        assert "exp_avg of parameter 0 has shape [3], place here has [5, 8]" in refused


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("writeback", [True, False])
def test_all_parameters_are_here_inside_gathered_and_what_is_written_is_kept_if_wanted(
    stage: int, writeback: bool
) -> None:
    net = Language(1)

    def run(rank: int) -> tuple[bool, State, State]:
        model = shard(copy.deepcopy(net), stage)
        inner: Any = model.module
        with model.gathered(writeback=writeback) as module:
            assert module is inner
            inside = arrays(module.state_dict())
            for param in module.parameters():
                param.detach().add_(1.0)
        with pytest.raises(UsageError, match=r"'norm.weight' of shape .* was read outside of forward and backward"):
            inner.norm.weight.sum()
        optimizer = adamw(model.parameters())
        after = arrays(model.state_dict())
        train(model, optimizer, rank, range(1))
        return True, inside, after

    for _, inside, after in run_ranks(2, run).results():
        assert_equal(inside, arrays(net.state_dict()))
        assert_equal(after, {name: array + writeback for name, array in inside.items()})


def test_gathered_shows_what_the_last_step_made() -> None:
    net = Language(1)

    def run(rank: int) -> None:
        for stage in (2, 3):
            model = shard(copy.deepcopy(net), stage)
            train(model, adamw(model.parameters()), rank, range(2))
            with model.gathered(writeback=False):
                seen = arrays(model.module.state_dict())
            assert_equal(seen, arrays(model.state_dict()))
            with pytest.raises(UsageError, match="leave the block first"), model.gathered():
                model(tokens(0, rank))
            with pytest.raises(UsageError, match="not inside forward"), model.gathered(), model.gathered():
                pass

    run_ranks(2, run).results()


def test_slices_that_do_not_cover_what_is_here_are_refused_before_anything_is_loaded() -> None:
    def run(rank: int) -> None:
        model = shard(nn.Linear(3, 4), 3)
        before = arrays(model.state_dict())
        tree = {name: value.clone() + 1 for name, value in model.state_dict().items()}
        tree["bias"] = Sliced((4,), tree["bias"].dtype, 3, tensor([1.0]))
        with pytest.raises(UsageError, match=r"bias: elements \[0, 4\) are needed here, \[3, 4\) are given"):
            model.load_sharded_state_dict(tree)
        assert_equal(arrays(model.state_dict()), before)

    run_ranks(1, run).results()


def test_the_state_of_an_optimizer_of_other_tensors_is_refused() -> None:
    def run(rank: int) -> None:
        model = shard(nn.Linear(2, 2), 3)
        with pytest.raises(UsageError, match="no piece of the model"):
            OptimizerState(model, optim.SGD([tensor(np.ones(2))], lr=0.1))
        with pytest.raises(UsageTypeError, match=r"expected what zero.shard returned"):
            OptimizerState(nn.Linear(2, 2), optim.SGD(model.parameters(), lr=0.1))  # type: ignore[arg-type]
        with pytest.raises(UsageTypeError, match="state_dict"):
            OptimizerState(model, optim.SGD(model.parameters(), lr=0.1)).load_state_dict({})

    run_ranks(1, run).results()
