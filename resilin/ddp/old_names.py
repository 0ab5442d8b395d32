"""`DistributedDataParallelCPU`, as DistributedDataParallel on the CPU was called before PyTorch 1.5."""

from __future__ import annotations

import warnings
from typing import Any

from resilin.ddp.wrapper import DistributedDataParallel


class DistributedDataParallelCPU(DistributedDataParallel):
    """DistributedDataParallel, which warns of its old name."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        warnings.warn(
            "`torch.nn.parallel.DistributedDataParallelCPU` is deprecated, please use "
            "`torch.nn.parallel.DistributedDataParallel` instead.",
            FutureWarning,
            stacklevel=2,
        )
        super().__init__(*args, **kwargs)
