"""Pickles of multiprocessing that lead to a tensor's memory, where others copy its elements.

They are those of `ForkingPickler`: arguments of processes that are spawned, queues, pipes, pools.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from multiprocessing import reduction
from typing import Any

from resilin.core.device import CPU
from resilin.core.kernels.common import address_of
from resilin.core.machine import segments
from resilin.core.state import copying
from resilin.errors import ResilinError

Share = Callable[[list[Any]], None]


def register(share: Share) -> None:
    """Have multiprocessing share tensors, from now on: `share` moves their memory to where others reach it."""
    if not copying.pickles_may_share():
        reduction.ForkingPickler.register(copying.Elements, functools.partial(_reduce_elements, share))
        reduction.ForkingPickler.register(segments.Segment, _reduce_segment)
        copying.let_pickles_share()


def _reduce_elements(share: Share, elements: copying.Elements) -> Any:
    tensor = elements.tensor
    if tensor._node is not None and tensor.requires_grad:
        raise RuntimeError(
            "a tensor that was computed and requires grad cannot be sent to another process, as gradients do not cross "
            "processes: send tensor.detach()"
        )
    if tensor._dev is not CPU or not segments.available:
        return elements.__reduce_ex__(2)  # which every protocol can write
    share([tensor])
    array = tensor._array
    segment = segments.segment_of(array)
    assert segment is not None
    return _in_segment, (segment, address_of(array) - segment.address, array.shape, array.strides, array.dtype)


def _in_segment(segment: segments.Segment, *place: Any) -> Any:
    return segment.array(*place)


def _reduce_segment(segment: segments.Segment) -> Any:
    return _received, (reduction.DupFd(segment.fd), os.getpid())


def _received(descriptor: Any, sender: int) -> segments.Segment:
    try:
        fd = descriptor.detach()
    except (ConnectionError, EOFError, FileNotFoundError) as error:
        raise ResilinError(
            f"a shared tensor of process {sender} could not be received, as that process has ended ({error}): whoever "
            "sends tensors lives until they were taken"
        ) from error
    try:
        return segments.attach(fd)
    except BaseException:
        os.close(fd)
        raise
