"""Tensors in memory that several processes read and write: `share` moves them there.

A tensor's memory is that of all tensors over it: they move together. Arrays that were taken of it (`numpy()`), and what
a graph has saved, stay where they are.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import sys
import threading
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from resilin.core.device import CPU
from resilin.core.kernels.common import address_of
from resilin.core.machine import segments
from resilin.core.tensor import Tensor, wrap

_ALIGN = 64  # of what is moved together, as in arenas
_ARRAY: Any = Tensor.__dict__["_array"]  # the slot, which uninitialized tensors hide
_SLOT: Any = Tensor.__dict__["_grad_slot"]
_moving = threading.Lock()
if hasattr(os, "register_at_fork"):  # a child has either memory, and no lock that nobody will give back
    os.register_at_fork(before=_moving.acquire, after_in_parent=_moving.release, after_in_child=_moving.release)


class _Region(NamedTuple):
    """Bytes that move together, and where they lie in the segment."""

    begin: int
    end: int
    offset: int


def is_shared(tensor: Tensor) -> bool:
    """Whether other processes see writes to `tensor`, once they have it; always of tensors on a GPU."""
    return tensor._dev.type == "cuda" or segments.segment_of(tensor._array) is not None


def share(tensors: Iterable[Tensor]) -> None:
    """Move the memory of `tensors` into one segment, with all tensors over it. What is shared, or on a GPU, stays.

    Nobody may write to them meanwhile. Raises: RuntimeError where the system has no files in memory, MemoryError.
    """
    from resilin.core.state import shared_pickles

    shared_pickles.register(share)
    with _moving:
        waiting = [tensor for tensor in tensors if tensor._dev is CPU and not is_shared(tensor)]
        if not waiting:
            return
        if not segments.available:
            raise RuntimeError("share_memory_: this system has no memfd_create, by which processes share memory")
        alone = all(_is_alone(tensor) for tensor in waiting)
        regions = _laid_out([_owned(tensor) for tensor in waiting])
        segment = segments.create(regions[-1].offset + regions[-1].end - regions[-1].begin)
        for region in regions:
            ctypes.memmove(segment.address + region.offset, region.begin, region.end - region.begin)
        for tensor in waiting if alone else _all_tensors():
            _move(tensor, regions, segment)


def _owned(tensor: Tensor) -> tuple[int, int]:
    """The bytes that belong to a tensor: those of the array that has them, or of the tensor that it is a view of."""
    owner = tensor._array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    if not owner.flags.owndata:
        owner = tensor._array if tensor._view is None else tensor._view.base._array
    return _bounds(owner)


def _bounds(array: Any) -> tuple[int, int]:
    low, high = np.lib.array_utils.byte_bounds(array)
    return (low, high) if array.size else (address_of(array), address_of(array))


def _laid_out(pieces: list[tuple[int, int]]) -> list[_Region]:
    """The pieces in order, those that overlap as one, one behind the other."""
    regions: list[_Region] = []
    for begin, end in sorted(pieces):
        if regions and begin < regions[-1].end:
            regions[-1] = regions[-1]._replace(end=max(end, regions[-1].end))
            continue
        offset = 0
        if regions:
            last = regions[-1]
            offset = -(-(last.offset + last.end - last.begin) // _ALIGN) * _ALIGN
        regions.append(_Region(begin, end, offset))
    return regions


def _move(tensor: Tensor, regions: Sequence[_Region], segment: segments.Segment) -> None:
    for slot in (_ARRAY, _SLOT):
        array = slot.__get__(tensor)
        if not isinstance(array, np.ndarray) or segments.segment_of(array) is not None:
            continue
        begin, end = _bounds(array)
        for region in regions:
            if region.begin <= begin and end <= region.end:
                offset = region.offset + address_of(array) - region.begin
                slot.__set__(tensor, segment.array(offset, array.shape, array.strides, array.dtype))
                break


def _all_tensors() -> list[Tensor]:
    """Every tensor of the CPU that is alive."""
    found = []
    for thing in gc.get_objects():
        if issubclass(type(thing), Tensor):
            try:
                where = thing._dev
            except AttributeError:  # one that another thread is making
                continue
            if where is CPU:
                found.append(thing)
    return found


def _references(array: Any) -> int:
    return sys.getrefcount(array)


@functools.cache
def _references_when_alone() -> int:
    lone = wrap(np.empty(2), CPU)
    return _references(lone._array)


def _is_alone(tensor: Tensor) -> bool:
    """Whether nobody else refers to its memory: then there is nobody to look for."""
    return bool(tensor._array.flags.owndata) and _references(tensor._array) == _references_when_alone()
