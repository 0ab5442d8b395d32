"""Measure what each layer of a Sequential costs, on copies of the layers."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from resilin._base.clock import SYSTEM, Clock
from resilin.core.autograd import engine
from resilin.core.autograd.tape import Node
from resilin.core.device import device as device_of
from resilin.core.tensor import Tensor
from resilin.errors import UsageError
from resilin.nn.modules.container import Sequential
from resilin.nn.modules.module import Module
from resilin.pipeline.sync.microbatch import BatchValues

_US = 1_000_000


def layerwise_sandbox(module: Sequential, device: device_of) -> Iterator[Module]:
    """Yield a copy of each layer on `device`, in training mode: what happens to it leaves the layer as it is."""
    for layer in module:
        yield copy.deepcopy(layer).to(device).train()


def _begun(values: Tensor | Sequence[Any], device: Any) -> tuple[BatchValues, device_of]:
    batch = BatchValues(values)
    chosen = next(value.device for value in batch if isinstance(value, Tensor)) if device is None else device_of(device)
    return batch.map(lambda value: _detached(value, chosen)), chosen


def _detached(value: Any, device: device_of) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.detach().to(device).requires_grad_(value.requires_grad)


def _apart(batch: BatchValues) -> BatchValues:
    """Return the batch without its graph: a layer's backward ends at its own input."""
    return batch.map(lambda value: _detached(value, value.device) if isinstance(value, Tensor) else value)


def profile_times(
    module: Sequential, sample: Tensor | Sequence[Any], timeout: float, device: Any, clock: Clock = SYSTEM
) -> list[int]:
    """Return the microseconds of forward and backward that each layer took in all runs, until `timeout` seconds."""
    if any(parameter.grad is not None for parameter in module.parameters()):
        raise UsageError("some parameter already has gradient: zero_grad() before layers are timed")
    first, chosen = _begun(sample, device)
    spent = [0.0] * len(module)
    end = clock.monotonic() + timeout
    while True:
        batch = first
        for place, layer in enumerate(layerwise_sandbox(module, chosen)):
            batch = _apart(batch)
            begun = _now(clock, chosen)
            batch = batch.call(layer)
            outs = [value for value in batch if isinstance(value, Tensor) and value.requires_grad]
            if outs:
                engine.backward(outs, [out.detach() for out in outs])
            spent[place] += _now(clock, chosen) - begun
        if clock.monotonic() >= end:
            return [int(seconds * _US) for seconds in spent]


def _now(clock: Clock, device: device_of) -> float:
    device.backend.synchronize(device.index or 0)
    return clock.monotonic()


def profile_sizes(
    module: Sequential, input: Tensor | Sequence[Any], chunks: int, param_scale: float, device: Any
) -> list[int]:
    """Return the bytes that each layer takes: what the forward of a micro-batch leaves, and its parameters, scaled."""
    whole, chosen = _begun(input, device)
    samples = next(len(value) for value in whole if isinstance(value, Tensor))
    batch = whole.map(lambda value: value[:1] if isinstance(value, Tensor) else value)
    sizes = []
    for layer in layerwise_sandbox(module, chosen):
        batch = _apart(batch)
        given = {id(_base(value._array)) for value in (*batch, *layer.parameters()) if isinstance(value, Tensor)}
        batch = batch.call(layer)
        left = _left_bytes([value for value in batch if isinstance(value, Tensor)], given)
        params = sum(parameter.nbytes for parameter in layer.parameters())
        sizes.append(int(left * samples / chunks + params * param_scale))
    return sizes


def _left_bytes(outputs: Sequence[Tensor], given: set[int]) -> int:
    """Return how many bytes are kept after a forward: its results, and what the graph behind them saved; each piece of
    memory once, and none of what was there before (`given`: the ids of arrays)."""
    pieces = {id(array): array for array in map(_base, (out._array for out in outputs))}
    nodes: set[Node] = set()
    waiting = [out._node for out in outputs if out._node is not None]
    while waiting:
        node = waiting.pop()
        if node not in nodes:
            nodes.add(node)
            pieces.update((id(array), array) for array in map(_base, _saved_by(node)))
            waiting += [edge for edge in node.edges if isinstance(edge, Node)]
    return sum(int(array.nbytes) for key, array in pieces.items() if key not in given)


def _base(array: Any) -> Any:
    """Return the array whose memory `array` shows."""
    while isinstance(getattr(array, "base", None), type(array)):
        array = array.base
    return array


def _saved_by(node: Any) -> Iterator[Any]:
    context = getattr(node, "ctx", None)
    for kept in (node.saved, node.residual, None if node.y is None else node.y[0], context and context._saved):
        yield from _arrays(kept)


def _arrays(kept: Any) -> Iterator[Any]:
    if isinstance(kept, Tensor):
        yield kept._array
    elif isinstance(kept, np.ndarray) or (hasattr(kept, "nbytes") and hasattr(kept, "dtype")):
        yield kept
    elif isinstance(kept, tuple | list):
        for each in kept:
            yield from _arrays(each)
