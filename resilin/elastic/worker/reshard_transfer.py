"""Carry out a cover: slices of divided state move between all ranks at once, each flow one stream of bytes.

Round d of W-1: rank r sends what r+d is to have of it, and receives from r-d what it is to have of that (modulo W), in
chunks with their blake2b digests. A rank in the earliest round never waits for one in a later one, so none waits for
itself in a ring.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import resilin.distributed as dist
from resilin._base import fault_points
from resilin.core.tensor import Tensor
from resilin.distributed.api.reconfigurable import Lot
from resilin.distributed.wire.packing import ByteStream
from resilin.elastic.worker import transfer
from resilin.elastic.worker.reshard_plan import Give
from resilin.elastic.worker.transfer import DIGEST_BYTES, Move


def run(gives: Sequence[Give], lots: Sequence[Lot], into: Lot, rank: int, group: dist.ProcessGroup) -> int:
    """This rank's part of `gives`: out of its `lots`, all of the one version that is wanted, and `into` what it needs.

    Returns the bytes it sent or received. Raises StateError when a chunk does not match its digest; else as any
    collective.
    """
    copy_own(gives, lots, into, rank)
    moved = 0
    world_size = group.size()
    for distance in range(1, world_size):
        to, source = (rank + distance) % world_size, (rank - distance) % world_size
        going = [part for give in gives if (give.source, give.receiver) == (rank, to) for part in views(lots, give)]
        mine = [give for give in gives if (give.source, give.receiver) == (source, rank)]
        coming = [part for give in mine for part in views([into], give)]
        moved += _swap(ByteStream(going), ByteStream(coming), rank, to, source, group)
    return moved


def copy_own(gives: Sequence[Give], lots: Sequence[Lot], into: Lot, rank: int) -> None:
    """Copy what this rank gives to itself."""
    for give in gives:
        if give.source == give.receiver == rank:
            at = 0
            (target,) = views([into], give)
            for part in views(lots, give):
                target[at : at + part.size] = part
                at += part.size


def views(lots: Sequence[Lot], give: Give) -> list[NDArray[Any]]:
    """The elements that `give` names, in order, in as many runs as lots hold them in."""
    found = []
    at = give.start
    slices = [lot.slices[give.name] for lot in lots if give.name in lot.slices]
    while at < give.stop:
        one = max((one for one in slices if one.start <= at), key=lambda one: one.stop)
        stop = min(one.stop, give.stop)
        assert stop > at, f"{give} comes from what this rank said that it holds"
        found.append(one.array[at - one.start : stop - one.start])
        at = stop
    return found


def _swap(out: ByteStream, into: ByteStream, rank: int, to: int, source: int, group: dist.ProcessGroup) -> int:
    """One round: what goes and what comes advance together, a chunk at a time."""
    for start in range(0, max(out.nbytes, into.nbytes), transfer.CHUNK_BYTES):
        fault_points.reached("state")
        work = None
        if start < out.nbytes:
            move = Move(rank, to, start, min(start + transfer.CHUNK_BYTES, out.nbytes))
            work = dist.isend(Tensor._wrap(transfer.seal(out, move)), group_dst=to, group=group)
        if start < into.nbytes:
            move = Move(source, rank, start, min(start + transfer.CHUNK_BYTES, into.nbytes))
            message = np.empty(move.stop - move.start + DIGEST_BYTES, np.uint8)
            dist.recv(Tensor._wrap(message), group_src=source, group=group)
            transfer.unseal(into, move, message)
        if work is not None:
            work.wait()
    return out.nbytes + into.nbytes
