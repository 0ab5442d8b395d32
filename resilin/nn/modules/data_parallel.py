"""DataParallel for one device: programs that wrap a model in it run, and load and save its states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from resilin._base import log
from resilin._base.said_once import say_once
from resilin.core.device import device
from resilin.core.tensor import Tensor
from resilin.core.trees import transform
from resilin.nn.modules.module import Module

_LOG = log.logger("nn.data_parallel")


class DataParallel(Module):
    """Calls `module` where it is. Several devices are for `ddp.DistributedDataParallel`, one process for each.

    Where several are named, it is said once that one of them computes.
    """

    def __init__(
        self, module: Module, device_ids: Sequence[Any] | None = None, output_device: Any = None, dim: int = 0
    ) -> None:
        super().__init__()
        if device_ids is not None and len(device_ids) > 1:
            say_once(
                _LOG,
                "DataParallel: the module runs on one device; DistributedDataParallel has one process for each",
                device_ids=list(device_ids),
            )
        self.dim = dim
        self.module = module
        self.device_ids = list(device_ids or ())
        self.output_device = output_device

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """What the module gives. Inputs come to a device on which it is; the CPU's modules take them where they are."""
        first = next(self.module.parameters(), None)
        if first is not None and first.device.type != "cpu":
            inputs, kwargs = transform(lambda leaf: _moved(leaf, first.device), (inputs, kwargs))
        return self.module(*inputs, **kwargs)


def _moved(leaf: Any, place: device) -> Any:
    return leaf.to(place) if isinstance(leaf, Tensor) else leaf


def data_parallel(
    module: Module,
    inputs: Any,
    device_ids: Sequence[Any] | None = None,
    output_device: Any = None,
    dim: int = 0,
    module_kwargs: dict[str, Any] | None = None,
) -> Any:
    """Call `module` with `inputs`, a value or a tuple of arguments, as `DataParallel` does."""
    given = inputs if isinstance(inputs, tuple) else () if inputs is None else (inputs,)
    return DataParallel(module, device_ids, output_device, dim)(*given, **(module_kwargs or {}))
