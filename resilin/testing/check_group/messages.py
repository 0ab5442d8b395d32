"""Cases of messages between two ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import resilin.distributed as dist
from resilin.testing.check_group.cases import case


@case
def messages_between_two_ranks_keep_order_and_tags(rank: int, size: int) -> None:
    if size < 2:
        return
    if rank == 0:
        for i in range(3):
            dist.send(np.array([i]), dst=1)
        dist.send(np.array([70]), dst=1, tag=7)
        dist.send(np.arange(300_000.0), dst=1, tag=9)
        dist.send_object_list(["hello", 5], dst=1)
    elif rank == 1:
        big, box, seven = np.zeros(300_000), np.zeros(1, np.int64), np.zeros(1, np.int64)
        work = dist.irecv(big, src=0, tag=9)
        assert dist.recv(seven, src=0, tag=7) == 0
        assert seven[0] == 70
        for i in range(3):
            assert dist.recv(box) == 0
            assert box[0] == i
        assert work is not None
        assert work.wait()
        assert (big == np.arange(300_000.0)).all()
        things: list[Any] = [None, None]
        assert dist.recv_object_list(things, src=0) == 0
        assert things == ["hello", 5]
    dist.barrier()


@case
def exchanging_neighbours_do_not_deadlock(rank: int, size: int) -> None:
    if size < 2:
        return
    outgoing, incoming = np.full(200_000, rank, np.float32), np.zeros(200_000, np.float32)
    right, left = (rank + 1) % size, (rank - 1) % size
    ops = [dist.P2POp(dist.isend, outgoing, right), dist.P2POp(dist.irecv, incoming, left)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert (incoming == left).all()


@case
def operations_of_a_batch_say_what_they_are_and_are_checked(rank: int, size: int) -> None:
    array: Any = np.zeros(2, np.float32)
    op = dist.P2POp(dist.isend, array, 0, tag=3)
    assert (op.peer, op.group_peer, op.tag) == (0, 0, 3)
    assert repr(op).startswith("P2POp(isend pg=")
    assert f"group_src={rank}, group_dst=0" in repr(op)
    assert f"group_src=0, group_dst={rank}" in repr(dist.P2POp(dist.irecv, array, group_peer=0))
    assert dist.batch_isend_irecv([]) == []
    nothing: Any = 5
    for wrong in (
        lambda: dist.P2POp(dist.send, array, 0),
        lambda: dist.P2POp(dist.isend, array),
        lambda: dist.P2POp(dist.isend, array, size),
        lambda: dist.P2POp(dist.isend, array, 0, group_peer=0),
        lambda: dist.P2POp(dist.isend, [array], 0),
        lambda: dist.batch_isend_irecv(nothing),
        lambda: dist.batch_isend_irecv([nothing]),
        lambda: dist.send(array, dst=rank),
        lambda: dist.irecv(array, src=rank),
        lambda: dist.send(array),
        lambda: dist.send(array, dst=0, group_dst=0),
    ):
        with pytest.raises(ValueError, match=r"\w"):
            wrong()


@case
def receives_from_anybody_say_who_sent(rank: int, size: int) -> None:
    if size < 2:
        return
    box = np.zeros(1, np.int64)
    if rank == 1:
        dist.send(np.array([5]), group_dst=0)
        sent = dist.isend(np.array([6]), dst=0, tag=2)
        assert sent is not None
        assert sent.wait()
        assert sent.is_completed()
        dist.send_object_list(["seven"], group_dst=0)
    elif rank == 0:
        assert dist.recv(box) == 1
        assert box[0] == 5
        work = dist.irecv(box, tag=2)
        assert work is not None
        work.wait()
        assert (work.source_rank(), work._source_rank(), box[0]) == (1, 1, 6)
        assert work.exception() is None
        things: list[Any] = [None]
        assert dist.recv_object_list(things) == 1
        assert things == ["seven"]
    dist.barrier()
