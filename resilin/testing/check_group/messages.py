"""Cases of messages between two ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

import resilin.dist as dist
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
