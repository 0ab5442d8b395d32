"""DataParallel for one device: programs that wrap a model in it run, and load and save its states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from resilin.nn.modules.module import Module


class DataParallel(Module):
    """Calls `module` where it is. Several devices are for `ddp.DistributedDataParallel`, one process for each.

    Raises: NotImplementedError for more than one of `device_ids`.
    """

    def __init__(
        self, module: Module, device_ids: Sequence[Any] | None = None, output_device: Any = None, dim: int = 0
    ) -> None:
        super().__init__()
        if device_ids is not None and len(device_ids) > 1:
            raise NotImplementedError(
                f"DataParallel: one device per process is supported, got device_ids={list(device_ids)}; use "
                "resilin.ddp.DistributedDataParallel with one process per device"
            )
        self.dim = dim
        self.module = module
        self.device_ids = list(device_ids or ())
        self.output_device = output_device

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """What the module gives."""
        return self.module(*inputs, **kwargs)
