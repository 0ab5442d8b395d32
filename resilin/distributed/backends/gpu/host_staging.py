"""Run collectives of a device's tensors by a backend of the host: copied there before, and back after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from resilin._base.clock import Deadline
from resilin.core.backends import ArrayBackend as Device
from resilin.distributed.backends.base import Backend, Call
from resilin.distributed.wire.frames import Descriptor, Frame
from resilin.distributed.wire.reduce_op import Array, ReduceOp
from resilin.distributed.wire.shard_tree import Plan, Subtree


class StagedBackend:
    """`inner` of rank `rank` for arrays of `device`. Waits for what computes the inputs; `inner` belongs to somebody
    else. What a rank sends is copied to the host once, what it receives from there once."""

    def __init__(self, inner: Backend, device: Device, rank: int) -> None:
        self.name = f"{inner.name}, staged"
        self._inner = inner
        self._device = device
        self._rank = rank

    def _out(self, array: Any) -> Array:
        """A contiguous copy in the host's memory."""
        return np.asarray(self._device.to_host(array), order="C").view(np.ndarray)

    def _outs(self, arrays: Sequence[Any] | None) -> list[Array] | None:
        return None if arrays is None else [self._out(array) for array in arrays]

    def _back(self, arrays: Sequence[Any] | None, copies: Sequence[Array] | None) -> None:
        for array, copied in zip(arrays or (), copies or (), strict=True):
            array[...] = self._device.from_host(copied, self._device.current())

    def attach(self, deadline: Deadline) -> None:
        """See Backend. `inner` is attached."""

    def agree(self, mine: Descriptor, deadline: Deadline) -> None:
        """See Backend."""
        self._inner.agree(mine, deadline)

    def barrier(self, call: Call) -> None:
        """See Backend."""
        self._inner.barrier(call)

    def all_reduce(self, call: Call, array: Any, op: ReduceOp) -> None:
        """See Backend."""
        copied = self._out(array)
        self._inner.all_reduce(call, copied, op)
        self._back([array], [copied])

    def reduce(self, call: Call, array: Any, op: ReduceOp, root: int) -> None:
        """See Backend."""
        copied = self._out(array)
        self._inner.reduce(call, copied, op, root)
        if root == self._rank:
            self._back([array], [copied])

    def broadcast(self, call: Call, array: Any, root: int) -> None:
        """See Backend."""
        sends = root == self._rank
        copied = self._out(array) if sends else _like(array)
        self._inner.broadcast(call, copied, root)
        if not sends:
            self._back([array], [copied])

    def all_gather(self, call: Call, array: Any, outputs: Sequence[Any]) -> None:
        """See Backend."""
        copies = [_like(output) for output in outputs]
        self._inner.all_gather(call, self._out(array), copies)
        self._back(outputs, copies)

    def reduce_scatter(self, call: Call, inputs: Sequence[Any], output: Any, op: ReduceOp) -> None:
        """See Backend."""
        copied = _like(output)
        self._inner.reduce_scatter(call, [self._out(part) for part in inputs], copied, op)
        self._back([output], [copied])

    def gather(self, call: Call, array: Any, outputs: Sequence[Any] | None, root: int) -> None:
        """See Backend."""
        copies = None if outputs is None else [_like(output) for output in outputs]
        self._inner.gather(call, self._out(array), copies, root)
        self._back(outputs, copies)

    def scatter(self, call: Call, inputs: Sequence[Any] | None, output: Any, root: int) -> None:
        """See Backend."""
        copied = _like(output)
        self._inner.scatter(call, self._outs(inputs), copied, root)
        self._back([output], [copied])

    def all_to_all(self, call: Call, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """See Backend."""
        copies = [_like(output) for output in outputs]
        self._inner.all_to_all(call, [self._out(part) for part in inputs], copies)
        self._back(outputs, copies)

    def tree_all_reduce(self, call: Call, parts: dict[Subtree, Any], output: Any, plan: Plan) -> None:
        """See Backend."""
        copied = _like(output)
        self._inner.tree_all_reduce(call, {node: self._out(part) for node, part in parts.items()}, copied, plan)
        self._back([output], [copied])

    def abort(self, rank: int, lost: bool) -> None:
        """See Backend. `inner` is aborted by its owner."""

    def peer_left(self, rank: int) -> None:
        """See Backend. As abort."""

    def on_fd(self, rank: int, kind: Frame, tag: int, payload: bytes, fd: int) -> None:
        """See Backend."""
        self._inner.on_fd(rank, kind, tag, payload, fd)

    def close(self) -> None:
        """See Backend. As abort."""


def _like(array: Any) -> Array:
    return np.empty(array.shape, array.dtype)
