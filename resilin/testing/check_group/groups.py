"""Cases of groups, asynchronous work and barriers."""

from __future__ import annotations

import numpy as np
import pytest

import resilin.dist as dist
from resilin.errors import UsageError
from resilin.testing.check_group.cases import case


@case
def async_work_runs_in_call_order(rank: int, size: int) -> None:
    array = np.ones(3000, np.float32)
    works = [dist.all_reduce(array, async_op=True) for _ in range(5)]
    dist.all_reduce(array)  # waits for its turn behind the five
    assert (array == float(size) ** 6).all()
    for work in works:
        assert work is not None
        assert work.wait()
        assert work.is_success()
        assert work.get_future().value()[0] is array
        with pytest.raises(UsageError, match="truth value"):
            bool(work)


@case
def subgroups_work_beside_the_world(rank: int, size: int) -> None:
    if size < 2:
        return
    evens = dist.new_group(list(range(0, size, 2)))
    rest = dist.new_group(list(range(1, size)))
    array = np.ones(5000, np.float32)
    dist.all_reduce(array, group=evens)
    members = len(range(0, size, 2)) if rank % 2 == 0 else 1
    assert (array == members).all()
    box = np.array([rank])
    dist.broadcast(box, src=size - 1, group=rest)
    assert box[0] == (size - 1 if rank else 0)
    assert dist.get_rank(rest) == rank - 1
    dist.barrier()
    for group in (evens, rest):
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)


@case
def monitored_barrier_passes_when_all_come(rank: int, size: int) -> None:
    dist.monitored_barrier(timeout=10.0)
