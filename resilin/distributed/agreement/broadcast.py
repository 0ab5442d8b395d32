"""One rank's tensors on all ranks: small ones packed together, and only what differed counts as written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from resilin.core.tensor import Tensor, wrap
from resilin.distributed.backends.base import Call
from resilin.distributed.group.arguments import Output
from resilin.distributed.group.coalescing_buffer import buffer_of, parts_of
from resilin.distributed.group.process_group import ProcessGroup
from resilin.distributed.wire.frames import Kind

FLAT_BYTES = 16 << 20  # tensors smaller than this travel together, so that a broadcast's latency is paid rarely

Run = Callable[[Call], None]


def broadcast(
    tensor: Any, root: int, group: ProcessGroup, carry: Callable[[Call, Run], None] = lambda call, run: run(call)
) -> None:
    """As `dist.broadcast` from rank `root` of the group. carry: makes the call; it may compare more than the tensor."""
    target = Output(tensor, "broadcast: tensor")
    backend, flat = group.backend, target.flat

    def task(call: Call) -> None:
        if root == group.rank():
            target.load()
        carry(call, lambda part: backend.broadcast(part, flat, root))
        if root != group.rank():
            target.store()

    group.run(Kind.BROADCAST, task, [tensor], async_op=False)


def broadcast_tensors(tensors: Sequence[Tensor], group: ProcessGroup, source: int = 0) -> None:
    """Overwrite `tensors` with those of rank `source`, those of one dtype and device in one call, large ones alone."""
    for pack in _packed(tensors) if group.size() > 1 else ():
        _broadcast_packed(pack, group, source)


def _packed(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Those of `tensors` with elements in lists of what travels together; the same on all ranks."""
    packs: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        if tensor._array.size:
            alone = len(packs) if tensor._array.nbytes >= FLAT_BYTES else None
            packs.setdefault((alone, tensor._array.dtype.name, str(tensor._dev)), []).append(tensor)
    return list(packs.values())


def _broadcast_packed(pack: Sequence[Tensor], group: ProcessGroup, source: int) -> None:
    """Receive aside and compare: a module that is equal already (as after each recovery) stays untouched."""
    if len(pack) == 1 and pack[0].is_contiguous():
        own = pack[0]._array.reshape(-1)
        flat = own if group.rank() == source else pack[0]._dev.xp.empty_like(own)
    else:
        flat = buffer_of([tensor._array for tensor in pack], pack[0]._dev.xp)
    broadcast(wrap(flat, pack[0]._dev), source, group)
    if group.rank() == source:
        return
    for tensor, received in zip(pack, parts_of(flat, [one._array for one in pack]), strict=True):
        if not _equal(received, tensor._array):
            tensor._array[...] = received
            tensor._bump()


def _equal(one: Any, other: Any) -> bool:
    """Whether two arrays have the same bits. No on a device, where to know it would cost more than to write."""
    return type(one) is np.ndarray and np.array_equal(_bits(one), _bits(other))


def _bits(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
