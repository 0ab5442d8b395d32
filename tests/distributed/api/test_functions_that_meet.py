"""Ranks that are in different functions of the library, as in `if rank == 0: save()`: all hear which ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import resilin
from resilin import checkpoint, nn, optim, zero
from resilin import distributed as dist
from resilin.ddp import DistributedDataParallel
from resilin.errors import CollectiveMismatch
from resilin.testing.ranks import run_ranks


def _waited(path: Path) -> None:
    handle = checkpoint.save_async(path / "waited", {"w": resilin.ones(3)}, step=1)
    dist.barrier()  # from here on the ranks differ
    handle.wait()


FUNCTIONS: dict[str, Callable[[Path], Any]] = {
    "all_gather_object": lambda _: dist.all_gather_object([None, None], 1),
    "DistributedDataParallel": lambda _: DistributedDataParallel(nn.Linear(2, 2)),
    "ZeroRedundancyOptimizer": lambda _: zero.ZeroRedundancyOptimizer(nn.Linear(2, 2).parameters(), optim.SGD, lr=1.0),
    "zero.shard": lambda _: zero.shard(nn.Linear(2, 2), stage=3),
    "checkpoint.save": lambda path: checkpoint.save(path / "saved", {"w": resilin.ones(3)}, step=1),
    "checkpoint.save_async": lambda path: checkpoint.save_async(path / "saved", {"w": resilin.ones(3)}, step=1),
    "SaveHandle.wait": _waited,
    "checkpoint.load": lambda path: checkpoint.load(path / "there", {"w": resilin.ones(3)}),
}

SAID = {"checkpoint.save_async": "checkpoint.save"}  # as which it begins


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(FUNCTIONS, 2)))
def test_ranks_in_different_functions_hear_of_both(tmp_path: Path, one: str, other: str) -> None:
    checkpoint.save(tmp_path / "there", {"w": resilin.ones(3)}, step=1)
    its = SAID.get(other, other) if one != "checkpoint.save" else other

    def work(rank: int) -> None:
        mine = (one, other)[rank]
        if "SaveHandle.wait" in (one, other) and mine != "SaveHandle.wait":
            checkpoint.save_async(tmp_path / "waited", {"w": resilin.ones(3)}, step=1)
            dist.barrier()
        with pytest.raises(CollectiveMismatch, match=rf"rank 0 called {SAID.get(one, one)} #.*, rank 1 called {its} #"):
            FUNCTIONS[mine](tmp_path)
        check = np.full(3, rank + 1.0)
        dist.all_reduce(check)
        assert check.tolist() == [3.0] * 3, "the group goes on, in step"

    run_ranks(2, work, abort=False).results()
