"""A rank dies before each collective, on each transport: every survivor names it, and nobody hangs."""

import numpy as np
import pytest

from resilin import distributed as dist
from resilin.distributed.wire import shard_tree
from resilin.errors import GroupAborted, PeerLost
from resilin.testing.faults import FaultPlan
from resilin.testing.ranks import TRANSPORTS, run_ranks

COUNT = 6000


def every_collective(rank, size):
    """One call of each, all of them twice: the fault is planned for the second."""
    array, rows = np.ones(COUNT, np.float32), np.ones((size, COUNT), np.float32)
    plan = shard_tree.plan(size, size)
    for _ in range(2):
        dist.barrier()
        dist.all_reduce(array)
        dist.broadcast(array, src=0)
        dist.reduce(array, dst=0)
        dist.all_gather_into_tensor(rows, array)
        dist.reduce_scatter_tensor(array, rows)
        dist.gather(array, list(rows) if rank == 0 else None, dst=0)
        dist.scatter(array, list(rows) if rank == 0 else None, src=0)
        dist.all_to_all_single(np.empty_like(rows), rows)
        dist.tree_all_reduce({shard_tree.Subtree(rank, rank + 1): array}, np.empty_like(array), plan)
    dist.barrier()


KINDS = (
    "barrier",
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "reduce_scatter",
    "gather",
    "scatter",
    "all_to_all",
    "tree_all_reduce",
)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_survivor_names_the_rank_that_died_before(kind, transport):
    for victim in (0, 3):
        faults = FaultPlan().kill(rank=victim, at=kind, call=1)
        outcome = run_ranks(4, every_collective, 4, transport=transport, faults=faults, abort=False, timeout_s=10.0)
        assert faults.all_fired()
        assert {rank: error.ranks for rank, error in outcome.errors.items()} == {
            rank: {victim} for rank in range(4) if rank != victim
        }
        assert all(isinstance(error, PeerLost) for error in outcome.errors.values())


def test_a_rank_that_fails_half_way_tells_the_others():
    faults = FaultPlan().fail(rank=1, at="all_reduce", error=KeyError("planned"))
    outcome = run_ranks(3, every_collective, 3, faults=faults, abort=False)
    assert isinstance(outcome.errors[1], KeyError)
    for rank in (0, 2):
        assert isinstance(outcome.errors[rank], GroupAborted)
        assert "rank 1 aborted the group: KeyError: left a collective half-way: 'planned'" in str(outcome.errors[rank])


def test_a_late_rank_is_waited_for():
    faults = FaultPlan().delay(rank=1, at="broadcast", seconds=0.05)
    run_ranks(3, every_collective, 3, faults=faults).results()
    assert faults.all_fired()
