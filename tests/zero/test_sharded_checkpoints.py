"""Checkpoints of sharded modules: written by any number of ranks, loaded by any other, at any stage and without."""

from __future__ import annotations

import copy
import hashlib
from pathlib import Path
from typing import Any

import extent
import numpy as np
import pytest
from sharded_nets import Language, adamw, train

from resilin import checkpoint, nn, optim
from resilin.core.tensor import Tensor
from resilin.ddp import DistributedDataParallel as DDP
from resilin.errors import ResilinError
from resilin.testing.ranks import run_ranks
from resilin.zero import OptimizerState, ZeroRedundancyOptimizer, shard


def digest(value: Any, into: Any = None) -> str:
    """A hash of a tree with its order, names, shapes and bytes."""
    made = into or hashlib.sha256()
    if isinstance(value, dict):
        for key, item in value.items():
            made.update(repr(key).encode())
            digest(item, made)
    elif isinstance(value, list | tuple):
        for item in value:
            digest(item, made)
    elif isinstance(value, Tensor):
        array = np.ascontiguousarray(value.numpy(force=True))
        made.update(f"{array.dtype} {array.shape}".encode() + array.tobytes())
    else:
        made.update(repr(value).encode())
    return str(made.hexdigest())


def write(path: Path, world: int, stage: int) -> str:
    """Train, save, and give the hash of the whole state."""
    net = Language(2)

    def run(rank: int) -> str:
        model = shard(copy.deepcopy(net), stage)
        optimizer = adamw(model.parameters())
        state = OptimizerState(model, optimizer)
        train(model, optimizer, rank, range(2))
        checkpoint.save(path, {"model": model, "optimizer": state})
        return digest([model.state_dict(), state.state_dict()])

    (found,) = set(run_ranks(world, run).results())
    return found


@pytest.mark.parametrize(
    ("world", "saved"),
    extent.short([(world, saved) for world in (1, 2, 3, 5) for saved in (2, 3)], of=[(1, 3), (2, 2), (3, 3), (5, 2)]),
)
def test_what_four_ranks_saved_loads_at_any_number_of_ranks_at_each_stage_and_without(
    saved: int, world: int, tmp_path: Path
) -> None:
    expected = write(tmp_path, 4, saved)

    def sharded(rank: int, stage: int) -> str:
        model = shard(Language(2), stage)
        state = OptimizerState(model, optimizer := adamw(model.parameters()))
        checkpoint.load(tmp_path, {"model": model, "optimizer": state})
        found = digest([model.state_dict(), state.state_dict()])
        train(model, optimizer, rank, range(1))
        return found

    def first_stage(rank: int) -> str:
        model = DDP(Language(2))
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optim.AdamW, lr=1e-2)
        checkpoint.load(tmp_path, {"model": model.module, "optimizer": optimizer})
        optimizer.consolidate_state_dict(to=0)
        return digest([model.module.state_dict(), optimizer.state_dict()]) if rank == 0 else expected

    def plain(rank: int) -> str:
        model: nn.Module = Language(2)
        optimizer = adamw(model.parameters())
        checkpoint.load(tmp_path, {"model": model, "optimizer": optimizer})
        return digest([model.state_dict(), optimizer.state_dict()])

    for stage in (2, 3):
        assert set(run_ranks(world, sharded, stage).results()) == {expected}
    assert set(run_ranks(world, first_stage).results()) == {expected}
    assert set(run_ranks(world, plain).results()) == {expected}


def test_what_a_plain_module_saved_loads_into_sharded_ones(tmp_path: Path) -> None:
    net = Language(2)
    optimizer = adamw(net.parameters())
    train(net, optimizer, 0, range(2))
    checkpoint.save(tmp_path, {"model": net, "optimizer": optimizer})

    def run(rank: int) -> str:
        model = shard(Language(2), 3)
        state = OptimizerState(model, adamw(model.parameters()))
        checkpoint.load(tmp_path, {"model": model, "optimizer": state})
        return digest([model.state_dict(), state.state_dict()])

    assert set(run_ranks(3, run).results()) == {digest([net.state_dict(), optimizer.state_dict()])}


def test_a_checkpoint_of_another_model_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path, 2, 3)

    def run(rank: int) -> str:
        model = shard(Language(3), 3)
        before = digest(model.state_dict())
        with pytest.raises(ResilinError) as caught:
            checkpoint.load(tmp_path, {"model": model}, strict=True)
        assert digest(model.state_dict()) == before
        return str(caught.value)

    for text in run_ranks(2, run).results():
        assert "blocks.2" in text or "optimizer" in text


def test_saving_behind_training_keeps_what_was_when_it_began(tmp_path: Path) -> None:
    net = Language(1)

    def run(rank: int) -> tuple[str, str]:
        model = shard(copy.deepcopy(net), 3)
        optimizer = adamw(model.parameters())
        train(model, optimizer, rank, range(1))
        handle = checkpoint.save_async(tmp_path, {"model": model})
        expected = digest(model.state_dict())
        train(model, optimizer, rank, range(1, 3))
        handle.wait()
        other = shard(Language(1), 2)
        checkpoint.load(tmp_path, {"model": other})
        return expected, digest(other.state_dict())

    for expected, found in run_ranks(2, run).results():
        assert expected == found
