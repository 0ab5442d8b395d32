"""Cases of groups, asynchronous work and barriers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest

import resilin.distributed as dist
from resilin.errors import UsageError
from resilin.testing.check_group.cases import case


@case
def async_work_runs_in_call_order(rank: int, size: int) -> None:
    array = np.ones(3000, np.float32)
    works = [dist.all_reduce(array, async_op=True) for _ in range(5)]
    dist.all_reduce(array)  # waits for its turn behind the five
    assert (array == float(size) ** 6).all()
    for work in works:
        assert work, "programs ask for None by `if work:`"
        assert work.wait()
        assert work.is_success()
        assert work.get_future().value()[0] is array


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


@case
def a_work_holds_the_tensors_that_its_call_wrote(rank: int, size: int) -> None:
    array, outputs, whole = np.ones(3), [np.zeros(3) for _ in range(size)], np.zeros(3 * size)
    for work, tensors in (
        (dist.broadcast(array, 0, async_op=True), [array]),
        (dist.reduce(array, 0, async_op=True), [array]),
        (dist.all_gather(outputs, array, async_op=True), outputs),
        (dist.all_gather_into_tensor(whole, array, async_op=True), [whole]),
        (dist.barrier(async_op=True), []),
    ):
        assert work is not None
        assert work.wait(timedelta(seconds=20))
        found = work.result()
        assert len(found) == len(tensors)
        assert all(got is tensor for got, tensor in zip(found, tensors, strict=True))
        assert work.get_future().then(lambda done: len(done.value())).wait() == len(tensors)
        work.synchronize()
        with pytest.raises(UsageError, match="receives only"):
            work.source_rank()


@case
def outside_a_group_nothing_happens(rank: int, size: int) -> None:
    outside: Any = dist.GroupMember.NON_GROUP_MEMBER
    array, things = np.ones(1), [1]
    assert dist.get_rank(outside) == dist.get_world_size(outside) == -1
    assert dist.get_process_group_ranks(outside) == []
    assert dist.recv(array, 0, group=outside) == dist.recv_object_list(things, 0, group=outside) == -1
    for done in (
        dist.all_reduce(array, group=outside, async_op=True),
        dist.all_reduce_coalesced([array], group=outside),
        dist.all_gather_coalesced([[array]], [array], group=outside),
        dist.gather_single(array, group=outside),
        dist.isend(array, 0, group=outside),
        dist.irecv(array, 0, group=outside),
        dist.barrier(outside),
    ):
        assert done is None
    dist.monitored_barrier(outside)
    dist.send_object_list(things, 0, group=outside)
    with dist._coalescing_manager(outside):
        dist.all_reduce(array, group=outside)
    assert (array[0], things) == (1.0, [1])
    with pytest.raises(UsageError, match="not in the group"):
        dist.get_backend(outside)
    with pytest.raises(UsageError, match="not in the group"):
        dist.get_backend_config(outside)


@case
def groups_know_their_ranks_in_the_order_given(rank: int, size: int) -> None:
    backwards = list(reversed(range(size)))
    before = dist.get_pg_count()
    plain, turned = dist.new_group(backwards), dist.new_group(backwards, sort_ranks=False, group_desc="turned")
    assert dist.get_pg_count() == before + 2
    assert (dist.get_rank(plain), dist.get_rank(turned)) == (rank, size - 1 - rank)
    assert dist.get_process_group_ranks(turned) == backwards
    assert dist.get_group_rank(turned, 0) == size - 1
    assert dist.get_global_rank(turned, 0) == size - 1
    assert "turned" in dist._get_process_group_name(turned) == turned.group_name
    assert (turned.group_desc, plain.group_desc) == ("turned", "undefined")
    gathered = np.zeros(size, np.int64)
    dist.all_gather_into_tensor(gathered, np.array([rank]), group=turned)
    assert gathered.tolist() == backwards
    with pytest.raises(ValueError, match="is not in"):
        dist.get_group_rank(turned, size)
    with pytest.raises(ValueError, match="is not in"):
        dist.get_global_rank(turned, size)
    if rank == 0:
        alone = dist.new_group([0], use_local_synchronization=True, timeout=timedelta(seconds=9))
        dist.all_reduce(gathered, group=alone)
        assert gathered.tolist() == backwards
        dist.destroy_process_group(alone)
    else:  # who is left out need not call it
        assert dist.new_group([0], use_local_synchronization=True) is dist.GroupMember.NON_GROUP_MEMBER
    for made in (plain, turned):
        dist.destroy_process_group(made)
    assert dist.get_pg_count() == before


@case
def facts_of_the_default_group(rank: int, size: int) -> None:
    world = dist.GroupMember.WORLD
    assert world is dist.default_group()
    assert dist.get_rank(world) == rank
    assert dist.get_process_group_ranks() == list(range(size))
    assert dist.is_backend_available(dist.get_backend())
    assert "cpu:" in dist.get_backend_config()
    assert dist.is_available()
    assert dist.is_initialized()
    dist.set_timeout(timedelta(seconds=19))
    dist.barrier(timeout=timedelta(seconds=10), device_ids=[0])
    dist.monitored_barrier(timeout=timedelta(seconds=10), wait_all_ranks=True)
