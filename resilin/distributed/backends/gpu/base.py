"""Share what GPU backends have in common: agreement over the CPU's backend, reductions by array functions, the end."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from resilin._base.clock import Deadline
from resilin.core.backends.cupy import CupyBackend
from resilin.distributed.backends.backend_context import BackendContext
from resilin.distributed.backends.base import Call, split_mismatch
from resilin.distributed.backends.gpu.queue import GpuQueue
from resilin.distributed.wire.frames import Descriptor, Frame, device_code
from resilin.distributed.wire.reduce_op import ReduceOp

_FUNCTIONS = {
    ReduceOp.SUM: "add",
    ReduceOp.AVG: "add",
    ReduceOp.PRODUCT: "multiply",
    ReduceOp.MIN: "minimum",
    ReduceOp.MAX: "maximum",
    ReduceOp.BAND: "bitwise_and",
    ReduceOp.BOR: "bitwise_or",
    ReduceOp.BXOR: "bitwise_xor",
}
_HALVES = ("float16", "bfloat16")


class DeviceBackend:
    """Base of `nccl` and `cuda_ipc`. `device` is the GPU's array library."""

    name: str

    def __init__(self, setup: BackendContext, device: CupyBackend) -> None:
        assert setup.cpu is not None
        self._setup = setup
        self._cpu = setup.cpu
        self._rank = setup.group_rank
        self._size = setup.group_size
        self._device = device
        self._cupy = device.cupy
        self._index = device.current()
        self._queue = GpuQueue(device, self._index, f"{self.name}-{setup.group_id}")

    def attach(self, deadline: Deadline) -> None:
        """See Backend. The first collective connects."""

    def agree(self, mine: Descriptor, deadline: Deadline) -> None:
        """See Backend. Over the group's backend of the CPU."""
        self._device.choose(self._index)  # a thread begins on the first GPU
        self._cpu.agree(replace(mine, device=device_code("cuda")), deadline)

    def barrier(self, call: Call) -> None:
        """See Backend. This rank's GPU has done everything when it agrees."""
        self._device.synchronize(self._index)
        self.agree(call.describe(), call.deadline())

    def abort(self, rank: int, lost: bool) -> None:
        """See Backend."""
        self._queue.stop.set()

    def peer_left(self, rank: int) -> None:
        """See Backend. The backend of the CPU, over which every call begins, hears of it."""

    def on_fd(self, rank: int, kind: Frame, tag: int, payload: bytes, fd: int) -> None:
        """See Backend. No descriptors are shared here."""
        os.close(fd)

    def close(self) -> None:
        """See Backend."""
        self._queue.close()

    def _empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return self._cupy.empty(shape, dtype)

    def _compare_sizes(self, inputs: Sequence[Any], outputs: Sequence[Any], deadline: Deadline) -> list[list[int]]:
        """The bytes that each rank sends to each: CollectiveMismatch on all ranks unless these are what is expected."""
        mine = np.array([part.nbytes for part in (*inputs, *outputs)], np.int64).tobytes()
        parts = self._setup.peers.all_gather(mine, deadline)
        table = [np.frombuffer(part, np.int64).reshape(2, self._size).tolist() for part in parts]
        ranks = range(self._size)
        pairs = [(source, to, table[source][0][to], table[to][1][source]) for source in ranks for to in ranks]
        wrong = [pair for pair in pairs if pair[2] != pair[3]]
        if wrong:
            raise split_mismatch(wrong)
        return [sent for sent, _ in table]


def fold(xp: Any, op: ReduceOp, parts: Sequence[Any]) -> Any:
    """`op` over equal arrays in their order, in float32 for half types; a new array of their dtype."""
    dtype = parts[0].dtype
    wide = dtype.name in _HALVES and op not in (ReduceOp.MIN, ReduceOp.MAX)
    total = parts[0].astype(np.float32) if wide else parts[0].copy()
    for part in parts[1:]:
        total = getattr(xp, _FUNCTIONS[op])(total, part.astype(np.float32) if wide else part)
    if op is ReduceOp.AVG:
        total = _divided(total, len(parts))
    return total.astype(dtype)


def _divided(total: Any, count: int) -> Any:
    """As reduce_op.finish: integers are cut toward zero."""
    by = total.dtype.type(count)
    if total.dtype.kind not in "ui":
        return total / by
    return total // by + ((total < 0) & (total % by != 0)).astype(total.dtype)
