"""Make a version of a state dict: a snapshot that nobody writes, whatever becomes of its tensors."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from resilin.core import trees
from resilin.core.tensor import Tensor
from resilin.errors import RpcError
from resilin.rpc.agent.agent import Agent


@dataclass(frozen=True)
class Version:
    """What was published at one time."""

    epoch: str
    """The process that has published it: numbers of another one say nothing about it."""
    number: int
    state: Any
    checksum: int | None


def snapshot(agent: Agent, state: Any) -> Any:
    """Return `state` as it is now, in memory that nobody writes: what a worker that it is sent to would receive.

    Tensors of devices are brought to the host. Raises what the parts of `state` raise that cannot be sent.
    """
    leaves, tree = trees.flatten(state)
    flat = [leaf.detach().cpu() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    me = agent.me.id
    flags, data, parts, _ = agent.serializer.dump(trees.unflatten(flat, tree), agent.peers.calls[me])
    own = [part if isinstance(part, bytes) else bytearray(part) for part in parts]  # a part may be a tensor's own bytes
    found, _ = agent.serializer.load(flags, data, own, me)
    return found


def tensors_of(state: Any) -> list[Tensor]:
    """Return the tensors of a state dict, in an order that all workers agree on."""
    return [leaf for leaf in trees.flatten(state)[0] if isinstance(leaf, Tensor)]


def bytes_of(tensor: Tensor) -> Any:
    """Return the bytes of a tensor of the host as an array: its own memory where that is contiguous."""
    return np.ascontiguousarray(tensor._array).reshape(-1).view(np.uint8)


def checksum_of(tensors: Sequence[Tensor]) -> int:
    """Return the CRC-32 of all bytes of `tensors`."""
    found = 0
    for tensor in tensors:
        found = zlib.crc32(bytes_of(tensor).data, found)
    return found


def protect(state: Any) -> Any:
    """Have tensors of `state` refuse writes: all of this worker that ask for the version share them."""
    for tensor in tensors_of(state):
        array = tensor._array
        while isinstance(array, np.ndarray):  # a view of what may be written could be unlocked again
            array.flags.writeable = False
            array = array.base
        if isinstance(array, bytearray | memoryview):  # as could what is over bytes that may be written
            tensor._array = _over(memoryview(array).toreadonly(), tensor._array)
    return state


def _over(memory: memoryview, array: Any) -> Any:
    """Return `array` over `memory`, in which it lies."""
    whole = np.frombuffer(memory, np.uint8)
    first, start = (each.__array_interface__["data"][0] for each in (array, whole))
    return np.ndarray(array.shape, array.dtype, whole, first - start, array.strides)


def check(version: Version, name: str, source: str) -> None:
    """Raise RpcError where the bytes that have come are not those that were published."""
    if version.checksum is not None:
        found = checksum_of(tensors_of(version.state))
        if found != version.checksum:
            raise RpcError(
                f"version {version.number} of {name!r} came from worker {source!r} with checksum {found:08x} instead "
                f"of {version.checksum:08x}: it is dropped, the version before stays. Memory or a network is at fault"
            )
