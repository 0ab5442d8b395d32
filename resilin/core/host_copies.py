"""Tensors' elements in the host's memory, and back on their devices, in few copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilin.core.device import device
from resilin.core.kernels.contiguous import ascontiguousarray
from resilin.core.tensor import Tensor

Array = NDArray[Any]

PACKED_BYTES = 1 << 20  # tensors up to this size come together: a copy from a device takes longer to begin than this


def on_host(tensor: Tensor) -> Array:
    """The tensor's array: itself on the CPU, else a contiguous copy in the host's memory."""
    array: Array = tensor._array
    if tensor._dev.type == "cpu":
        return array
    copied: Array = ascontiguousarray(tensor._dev.backend.to_host(array))
    return copied.reshape(array.shape)


def copies(tensors: Sequence[Tensor]) -> list[Array]:
    """A copy of each tensor in the host's memory, in its shape. Small ones of one device and dtype come in one copy."""
    found: list[Any] = [None] * len(tensors)
    packs: dict[tuple[device, str], list[int]] = {}
    for number, tensor in enumerate(tensors):
        array = tensor._array
        if tensor._dev.type == "cpu":
            found[number] = array.copy()
        elif array.nbytes > PACKED_BYTES:
            found[number] = on_host(tensor)
        else:
            packs.setdefault((tensor._dev, array.dtype.name), []).append(number)
    for (place, _), numbers in packs.items():
        arrays = [tensors[number]._array for number in numbers]
        row = place.backend.to_host(place.xp.concatenate([array.reshape(-1) for array in arrays]))
        stops = np.cumsum([array.size for array in arrays])
        for number, array, stop in zip(numbers, arrays, stops, strict=True):
            found[number] = row[stop - array.size : stop].reshape(array.shape).copy()
    return found


def write(tensor: Tensor, array: Array) -> None:
    """Set the tensor's elements to those of an array in the host's memory. The write is not counted."""
    place = tensor._dev
    tensor._array[...] = array if place.type == "cpu" else place.backend.from_host(array, place.index or 0)
