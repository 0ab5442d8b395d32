"""What a communication hook is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import resilin.distributed as dist
from resilin.core.device import CPU
from resilin.core.tensor import Tensor, wrap
from resilin.ddp.flat_buffer import Flat
from resilin.ddp.traffic import Traffic
from resilin.distributed.work.future import Future
from resilin.distributed.work.work import Work
from resilin.errors import UsageError

_LATER_S = 1.0  # a collective ends by itself, and says which rank was missing: leave it the time to do so
Hook = Callable[[Any, "GradBucket"], Future[Tensor]]


class GradBucket:
    """One bucket of gradients that are ready on this rank, as torch.distributed.GradBucket.

    A hook reduces `buffer()` over the ranks and returns a future of the flat result, already averaged. In `traffic` it
    may count what it sends; hooks of resilin do.
    """

    def __init__(self, flat: Flat, params: Sequence[Tensor], last: bool, traffic: Traffic | None = None) -> None:
        self.traffic = traffic or Traffic()
        self._flat = flat
        self._params = params
        self._last = last
        self._buffer = flat.tensor

    def index(self) -> int:
        """Number of the bucket: the order in which buckets are reduced."""
        return self._flat.spec.index

    def buffer(self) -> Tensor:
        """The flat, contiguous 1-d tensor of all gradients, one behind the other in the order of `gradients()`."""
        return self._buffer

    def gradients(self) -> list[Tensor]:
        """The gradients, as views of `buffer()` in the parameters' shapes."""
        array = self._buffer._array
        place = self._buffer._dev
        return [
            wrap(array[slot.start : slot.stop].reshape(self._params[slot.param]._array.shape), place)
            for slot in self._flat.spec.slots
        ]

    def parameters(self) -> list[Tensor]:
        """The parameters, in the order of `gradients()`."""
        return [self._params[slot.param] for slot in self._flat.spec.slots]

    def is_last(self) -> bool:
        """Whether this is the last bucket of the backward."""
        return self._last

    def set_buffer(self, buffer: Tensor) -> None:
        """Replace what `buffer()` returns; the hook's result need not lie in it."""
        if not isinstance(buffer, Tensor):
            raise UsageError(f"GradBucket.set_buffer: expected a Tensor, got {type(buffer).__name__}")
        if buffer.numel() != self._flat.spec.numel:
            raise UsageError(f"GradBucket.set_buffer: expected {self._flat.spec.numel} elements, got {buffer.numel()}")
        self._buffer = buffer

    def on_host(self) -> GradBucket:
        """This bucket with a copy of `buffer()` in the host's memory in its place, also counted in `traffic`."""
        place, array = self._buffer._dev, self._buffer._array
        made = GradBucket(self._flat, self._params, self._last, self.traffic)
        made._buffer = wrap(place.backend.to_host(array))
        self.traffic.copied(array.nbytes)
        return made

    def __repr__(self) -> str:
        return f"<GradBucket {self.index()} {self._flat.spec.nbytes} bytes, {len(self._flat.spec.slots)} gradients>"


def checked_future(returned: Any) -> Future[Any]:
    """What a hook returned. UsageError when it is no Future."""
    if isinstance(returned, Future):
        return returned
    hint = "; call get_future() of the Work" if isinstance(returned, Work) else ""
    raise UsageError(f"it must return a Future of the reduced tensor, got {type(returned).__name__}{hint}")


def limit_s(group: dist.ProcessGroup) -> float:
    """How long to wait for the future of a hook, in seconds."""
    return group.timeout_s + _LATER_S


def take_result(result: Any, bucket: Tensor, traffic: Traffic | None = None) -> None:
    """Bring a hook's result into the bucket, a flat tensor. UsageError when it has another shape or no numbers of its
    kind, or lies on another device; from the host's memory it is copied to the bucket's, which `traffic` counts.

    Floating types are converted into one another, as PyTorch does.
    """
    if isinstance(result, list | tuple) and len(result) == 1:
        result = result[0]
    if not isinstance(result, Tensor):
        raise UsageError(f"its future must give a Tensor, got {type(result).__name__}")
    array, target, place = result._array, bucket._array, bucket._dev
    if array is target:
        return
    if array.shape != target.shape:
        raise UsageError(
            f"the bucket has the shape {list(target.shape)}, the result {list(array.shape)}: return the reduced "
            "gradients, flat and in the order of buffer()"
        )
    if not (result.is_floating_point() and bucket.is_floating_point()) and array.dtype != target.dtype:
        raise UsageError(f"the bucket is of {target.dtype.name}, the result of {array.dtype.name}")
    if result._dev is not place and result._dev is not CPU:
        raise UsageError(f"the bucket is on {place}, the result on {result._dev}: return it on {place}, or on the CPU")
    if place is CPU:
        with np.errstate(over="ignore"):
            np.copyto(target, array, casting="unsafe")
        return
    index = place.index or 0
    place.backend.choose(index)  # this may be the group's worker thread, which computes on no device yet
    if result._dev is CPU:
        if traffic is not None:
            traffic.copied(array.nbytes)
        array = place.backend.from_host(array, index)
    target[...] = array.astype(target.dtype)
