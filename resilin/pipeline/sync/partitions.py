"""Cut a Sequential into the partitions of a pipeline by the devices of its layers, and refuse what has none."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

from resilin.core.device import CPU
from resilin.core.device import device as device_of
from resilin.errors import UsageError, UsageTypeError
from resilin.nn.modules.container import Sequential
from resilin.nn.modules.module import Module
from resilin.nn.modules.normalization_sync import SyncBatchNorm


class PipeSequential(Sequential):
    """Call its modules one after the other, with several values between them: a tuple that one returns is the arguments
    of the next. Anything else, also a list, is one argument."""

    def forward(self, *inputs: Any) -> Any:
        """See the class."""
        found: Any = inputs
        for module in self:
            found = module(*found) if isinstance(found, tuple) else module(found)
        return found


class WithDevice(Module):
    """Say where a layer of a pipeline runs, which has no parameters to tell it, and move it there."""

    def __init__(self, module: Module, device: Any) -> None:
        super().__init__()
        self._module = module
        self._device = device_of(device)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the layer."""
        return self._module(*args, **kwargs)

    @property
    def module(self) -> Module:
        """The layer."""
        return self._module

    @property
    def device(self) -> device_of:
        """Where it runs."""
        return self._device


class Partition(NamedTuple):
    """A partition of a pipeline: layers of one device."""

    layers: list[Module]
    device: device_of

    def sequential(self) -> PipeSequential:
        """Return the layers as one module on its device; a plain Sequential among them gives its own layers."""
        layers = [layer.to(self.device) for layer in self.layers]
        return PipeSequential(*chain.from_iterable(_opened(layer) for layer in layers))


def _opened(layer: Module) -> list[Module]:
    plain = isinstance(layer, Sequential) and type(layer).forward in (Sequential.forward, PipeSequential.forward)
    return list(layer) if plain else [layer]


def verify_module(module: Any) -> None:
    """Refuse what is no Sequential of distinct modules."""
    if not isinstance(module, Sequential):
        raise UsageTypeError(f"module must be nn.Sequential to be partitioned, got {type(module).__name__}")
    if len(list(module.named_children())) != len(module):
        raise UsageError(
            "module with duplicate children is not supported: each layer of the Sequential must be a module of its "
            "own; layers may share parameters"
        )


def split(module: Sequential) -> list[Partition]:
    """Return the partitions of `module`: neighbours on one device together, on the CPU each child by itself.

    Moves nothing. UsageError where a child is on several devices, partitions on different devices share a parameter, or
    partitions are on several GPUs: one process computes on one.
    """
    partitions: list[Partition] = []
    for child in module.children():
        said = isinstance(child, WithDevice)
        partition = Partition([child.module], child.device.home) if said else Partition([child], _device(child))
        if partitions and partitions[-1].device == partition.device and partition.device.type != "cpu":
            partitions[-1].layers.append(*partition.layers)
        else:
            partitions.append(partition)
    _refuse_gpus(partitions)
    _refuse_shared(partitions)
    return partitions


def _device(module: Module) -> device_of:
    """Return where the parameters of `module` are; where it has none its buffers, else the CPU."""
    found = [parameter.device for parameter in module.parameters()] or [buffer.device for buffer in module.buffers()]
    if len(set(found)) > 1:
        raise UsageError(
            f"nn.Module: {module}, should have all parameters on a single device, please use .to() to place the module "
            f"on a single device: found {', '.join(sorted(map(str, set(found))))}"
        )
    return found[0] if found else CPU


def _refuse_gpus(partitions: Sequence[Partition]) -> None:
    gpus = sorted({str(partition.device) for partition in partitions if partition.device.type == "cuda"})
    if len(gpus) > 1:
        raise UsageError(
            f"Pipe: one process computes on one GPU, and the partitions are on {', '.join(gpus)}: run a process for "
            "each of them, with resilin.distributed.pipelining (docs/pipeline-sync.md)"
        )


def _refuse_shared(partitions: Sequence[Partition]) -> None:
    places: dict[int, tuple[int, device_of]] = {}
    for j, partition in enumerate(partitions):
        for layer in partition.layers:
            for parameter in layer.parameters():
                first, device = places.setdefault(id(parameter), (j, partition.device))
                if device != partition.device:
                    raise UsageError(
                        "module with duplicate parameters on distinct devices is not supported: partitions "
                        f"{first} ({device}) and {j} ({partition.device}) share one of shape {tuple(parameter.shape)}"
                    )


def must_alternate(partitions: Sequence[Module], devices: Sequence[device_of]) -> bool:
    """Return whether partitions must not compute at the same time: they share parameters or buffers, whose gradients
    are summed in one order, use collectives, whose order must be that of the other ranks, or launch work on a GPU."""
    if any(device.type == "cuda" for device in devices):
        return True
    held = [{id(tensor) for tensor in (*partition.parameters(), *partition.buffers())} for partition in partitions]
    if sum(map(len, held)) > len(set().union(*held)):
        return True
    return any(isinstance(module, SyncBatchNorm) for partition in partitions for module in partition.modules())
