"""`python -m benchmarks.peers.pytorch CASE ...`: run one case on PyTorch, with gloo and its DistributedDataParallel."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
import torch.utils.data
from torch.nn.parallel import DistributedDataParallel

from benchmarks.library import Later, Library, main

dcp = Later("torch.distributed.checkpoint")


def zero(*args: Any, **kwargs: Any) -> Any:
    """Its ZeroRedundancyOptimizer."""
    return Later("torch.distributed.optim").ZeroRedundancyOptimizer(*args, **kwargs)


class Checkpoint:
    """torch.distributed.checkpoint, with its defaults; what is written behind training has a group of its own."""

    def __init__(self) -> None:
        self._group: Any = None

    @staticmethod
    def save(path: str, state: dict[str, Any]) -> None:
        """Write `state`, a dict of tensors."""
        dcp.save(state, checkpoint_id=path)

    @staticmethod
    def load(path: str, state: dict[str, Any]) -> None:
        """Fill the tensors of `state`."""
        dcp.load(state, checkpoint_id=path)

    def save_async(self, path: str, state: dict[str, Any]) -> Any:
        """Copy `state` and write it behind training; `wait()` of the result ends with it."""
        if self._group is None:
            self._group = dist.new_group(backend="gloo")
        made = dcp.async_save(state, checkpoint_id=path, process_group=self._group)
        made.wait = made.result
        return made


if __name__ == "__main__":
    main(
        Library(
            name="PyTorch",
            version=torch.__version__,
            torch=torch,
            dist=dist,
            data=torch.utils.data,
            backend="gloo",
            ddp=DistributedDataParallel,
            comm_hooks=Later("torch.distributed.algorithms.ddp_comm_hooks"),
            zero=zero,
            checkpoint=Checkpoint(),
            rpc=Later("torch.distributed.rpc"),
            pipelining=Later("torch.distributed.pipelining"),
        ),
        sys.argv[1:],
    )
