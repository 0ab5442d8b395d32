"""What the first backward that reduces teaches: in which order gradients become ready, and how often each comes."""

from __future__ import annotations

import numpy as np

import resilin.distributed as dist
from resilin.core.tensor import Tensor
from resilin.distributed.agreement import compare
from resilin.distributed.agreement.compare import Facts


class FirstBackward:
    """Listens to one rank's first backward; `agree` makes what it heard that of all ranks."""

    def __init__(self, count: int) -> None:
        self.order: list[int] = []
        self.times = [0] * count

    def on_ready(self, number: int) -> None:
        """A gradient of parameter `number` is there; with reentrant checkpoints it may not be the only one."""
        if not self.times[number]:
            self.order.append(number)
        self.times[number] += 1

    def missing(self) -> list[int]:
        """The parameters without a gradient."""
        return [number for number, times in enumerate(self.times) if not times]

    def agree(self, group: dist.ProcessGroup, lead: int, static: bool, facts: Facts) -> tuple[list[int], list[bool]]:
        """(The order that rank `lead` saw, which parameters any rank used). A collective, which compares `facts`.

        What `lead` did not use comes last, in the reverse order of registration. Without `static` all used all. A rank
        that had no backward takes over how often gradients came on `lead`.
        """
        order = [*self.order, *reversed(self.missing())]
        used = np.array([bool(times) for times in self.times] if static else [True] * len(self.times))
        if group.size() > 1:
            both = np.array([order, self.times], np.int32)
            compare.broadcast(Tensor._wrap(both), lead, facts, group)
            order = both[0].tolist()
            if not self.order:
                self.times = both[1].tolist()
            if static:
                counted = used.astype(np.uint8)
                dist.all_reduce(Tensor._wrap(counted), op=dist.ReduceOp.MAX, group=group)
                used = counted.astype(bool)
        return order, used.tolist()
