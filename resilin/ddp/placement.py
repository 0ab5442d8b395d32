"""On which devices a module that is wrapped lies, and where its inputs and outputs go: PyTorch's rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from resilin.core.device import CPU, device
from resilin.core.tensor import Tensor
from resilin.ddp import inputs
from resilin.errors import UsageError, UsageTypeError
from resilin.nn import Module

_NAME = "DistributedDataParallel"


@dataclass(frozen=True)
class Placement:
    """Where one rank's module lies."""

    devices: tuple[device, ...]
    """All devices of its parameters and buffers, those of the first ones first: of one type."""
    places: tuple[int, ...]
    """For each parameter and buffer, in their order, which one of `devices` it is on."""
    inputs_to: device | None = None
    """Where inputs are moved to; None: they are passed as they are."""
    outputs_to: device | None = None
    """Where outputs are moved to."""

    @property
    def first(self) -> device:
        """That of the first parameter."""
        return self.devices[0]

    @property
    def several(self) -> bool:
        """Whether the module is spread over several devices."""
        return len(self.devices) > 1

    @property
    def device_ids(self) -> list[int] | None:
        """As PyTorch says it: the number of the device to which inputs are moved, or None."""
        return None if self.inputs_to is None else [_number(self.inputs_to)]

    @property
    def output_device(self) -> int | None:
        """As PyTorch says it: the number of the device to which outputs are moved, or None."""
        return None if self.outputs_to is None else _number(self.outputs_to)

    def describe(self) -> str:
        """What all ranks must have alike: the type of the devices, and of several, which tensor is on which."""
        return f"{self.first.type}{list(self.places)}" if self.several else self.first.type

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a forward where the module expects them."""
        if self.inputs_to is None:
            return args, kwargs
        return inputs.moved(args, self.inputs_to), inputs.moved(kwargs, self.inputs_to)

    def leave(self, output: Any) -> Any:
        """What a forward gave, where the caller expects it."""
        return output if self.outputs_to in (None, self.inputs_to) else inputs.moved(output, self.outputs_to)


def of(module: Module, device_ids: Any, output_device: Any) -> Placement:
    """The placement of `module`, which has a parameter. UsageError where the arguments do not fit it."""
    ids = _listed(device_ids)
    if len(ids) > 1:
        raise UsageError(
            f"{_NAME}: device_ids must be None or contain a single element, got {ids}: each process computes on one "
            "device; start one process for each"
        )
    named = [*module.named_parameters(), *module.named_buffers()]
    placement = _found(named)
    if not ids and output_device is None:
        return placement
    if not ids or placement.first is CPU or placement.several:
        raise UsageError(
            f"{_NAME}: device_ids and output_device must be None unless the module is on one device that is not the "
            f"CPU, and device_ids names it; got device_ids {device_ids!r}, output_device {output_device!r}, and "
            f"parameters on {_spelled(placement.devices)}"
        )
    own = _device("device_ids[0]", ids[0], placement.first)
    if own is not placement.first:
        name = named[0][0]
        raise UsageError(
            f"{_NAME}: device_ids is [{ids[0]!r}], but {name} is on {placement.first}: inputs would not meet the "
            f"parameters; move the module by .to({str(own)!r}) before wrapping it, or give device_ids="
            f"[{_number(placement.first)}]"
        )
    out = own if output_device is None else _device("output_device", output_device, placement.first)
    return Placement(placement.devices, placement.places, own, out)


def _found(named: Sequence[tuple[str, Tensor]]) -> Placement:
    """Where the tensors lie. UsageError for devices of several types, and those without memory."""
    devices: dict[device, int] = {}
    first: dict[str, tuple[str, device]] = {}  # by type of device: a tensor that is there
    for name, tensor in named:
        devices.setdefault(tensor.device, len(devices))
        first.setdefault(tensor.device.type, (name, tensor.device))
    if len(first) > 1:
        sides = " and ".join(f"{name} on {where}" for name, where in first.values())
        raise UsageError(
            f"{_NAME}: the module's parameters and buffers must be on devices of the same type, found {sides}; move it "
            f"as a whole, as by .to({str(named[0][1].device)!r})"
        )
    name, own = named[0][0], named[0][1].device
    if not own.backend.elements:
        raise UsageError(
            f"{_NAME}: {name} is on {own}, where tensors have no elements; give the module memory "
            "by .to_empty(device=...) and load or initialize its parameters before wrapping it"
        )
    return Placement(tuple(devices), tuple(devices[tensor.device] for _, tensor in named))


def _listed(device_ids: Any) -> list[Any]:
    if device_ids is None:
        return []
    if not isinstance(device_ids, Sequence) or isinstance(device_ids, str):
        raise UsageTypeError(f"{_NAME}: device_ids must be a list of one device or None, got {device_ids!r:.80}")
    return list(device_ids)


def _device(argument: str, given: Any, like: device) -> device:
    """The device that `given` means: a number is one of the type of `like`."""
    if isinstance(given, Integral) and not isinstance(given, bool) and int(given) >= 0:
        given = f"{like.type}:{int(given)}"
    if not isinstance(given, str | device):
        raise UsageTypeError(f"{_NAME}: {argument} must be the number of a device or a device, got {given!r:.80}")
    try:
        found = device(given).home
    except RuntimeError as error:
        raise UsageError(f"{_NAME}: {argument}: {error}") from None
    if found is CPU:
        raise UsageError(f"{_NAME}: {argument} must be a device that is not the CPU, got {found}")
    return found


def _number(of: device) -> int:
    return 0 if of.index is None else of.index


def _spelled(devices: Sequence[device]) -> str:
    return ", ".join(map(str, devices))
