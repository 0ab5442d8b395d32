"""Whether tensors are equal on all ranks, by a checksum of each: nothing of them moves."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from resilin.core.tensor import Tensor
from resilin.distributed.backends.base import Call
from resilin.distributed.group.process_group import ProcessGroup
from resilin.distributed.wire.frames import Kind


def checksum(tensor: Tensor) -> int:
    """A number of 32 bits that differs where the elements do."""
    data = np.ascontiguousarray(tensor.detach().cpu()._array).reshape(-1).view(np.uint8)
    return zlib.crc32(data.data)


def first_that_differs(tensors: Sequence[Tensor], group: ProcessGroup) -> tuple[int, int] | None:
    """The lowest rank whose `tensors` differ from rank 0's, and the place of the first one; None where none does.

    A collective; the same on all ranks.
    """
    mine = np.array([checksum(tensor) for tensor in tensors], np.int64)
    everybody = np.empty((group.size(), len(mine)), np.int64)
    backend = group.backend

    def task(call: Call) -> None:
        backend.all_gather(call, mine, list(everybody))

    group.run(Kind.ALL_GATHER, task)
    differs = np.argwhere(everybody != everybody[0])
    return (int(differs[0][0]), int(differs[0][1])) if len(differs) else None
