"""`python -m benchmarks.peers.pytorch CASE ...`: run one case on PyTorch, with gloo and its DistributedDataParallel."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
import torch.utils.data
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from benchmarks.library import Library, main

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
            zero=ZeroRedundancyOptimizer,
        ),
        sys.argv[1:],
    )
