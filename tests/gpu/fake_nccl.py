"""A stand-in for `cupy.cuda.nccl` with its streams and events, between threads that act as ranks.

It behaves as NCCL does where that matters to a caller: calls only queue work on a stream; work of a group is done once
every rank of the communicator has called the same; ranks that call different things, or nothing, are waited for for
ever; `abort` ends the waiting; errors show in `check_async_error`. Buffers are addresses, as NCCL's are.
"""

from __future__ import annotations

import ctypes
import threading
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

_DTYPES = (
    *(np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64, np.float16, np.float32, np.float64),
    ml_dtypes.bfloat16,
)
_OPS = (np.add, np.multiply, np.maximum, np.minimum, np.add)
_AVG = 4


class NcclError(RuntimeError):
    """CuPy's."""


def _memory(at: int, count: int, code: int) -> np.ndarray:
    dtype = np.dtype(_DTYPES[code])
    if not count:
        return np.empty(0, dtype)
    return np.frombuffer((ctypes.c_uint8 * (count * dtype.itemsize)).from_address(at), dtype)


class Stream:
    """Work in its order; `pending` is what has been queued."""

    by_address: dict[int, Stream] = {}  # noqa: RUF012 - NCCL gets streams as numbers

    def __init__(self, non_blocking: bool = False) -> None:
        self.pending: list[Any] = []
        self.waited_for: list[Any] = []
        self.ptr = id(self)
        Stream.by_address[self.ptr] = self

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        self.waited_for.append(event)

    def synchronize(self) -> None:
        pass


Stream.null = Stream()  # type: ignore[attr-defined]


class Event:
    """Done when all that was in the stream at `record` is."""

    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None:
        self.interprocess = interprocess and disable_timing
        self._before: list[Any] = []
        self.ptr = id(self)

    def record(self, stream: Any = None) -> None:
        self._before = list((stream or Stream.null).pending)

    @property
    def done(self) -> bool:
        return all(group.done.is_set() for group in self._before)

    def synchronize(self) -> None:
        for group in self._before:
            group.done.wait(20)


class _Group:
    """What one rank queued between groupStart and groupEnd."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.done = threading.Event()


class _Communicators:
    """Those of one unique id."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.joined: dict[int, NcclCommunicator] = {}
        self.queues: dict[int, list[_Group]] = {}

    def submit(self, rank: int, size: int, group: _Group) -> None:
        with self.changed:
            self.queues.setdefault(rank, []).append(group)
            while all(self.queues.get(other) for other in range(size)):
                together = [self.queues[other][0] for other in range(size)]
                if not _run_together(together):
                    return  # as NCCL: it never ends
                for other in range(size):
                    self.queues[other].pop(0).done.set()


def _run_together(groups: list[_Group]) -> bool:
    """Do what all ranks called; False where they do not fit."""
    moves: dict[tuple[int, int], list[tuple[int, int]]] = {}
    plain = []
    for rank, group in enumerate(groups):
        plain.append([call for call in group.calls if call[0] not in ("send", "recv")])
        for kind, at, size, peer in (call for call in group.calls if call[0] == "send"):
            del kind
            moves.setdefault((rank, peer), []).append((at, size))
    for rank, group in enumerate(groups):
        for _, at, size, peer in (call for call in group.calls if call[0] == "recv"):
            sent = moves.get((peer, rank), [])
            if not sent or sent[0][1] != size:
                return False
            ctypes.memmove(at, sent.pop(0)[0], size)
    if any(moves.values()) or len({len(calls) for calls in plain}) != 1:
        return False
    return all(_collective(list(calls)) for calls in zip(*plain, strict=True))


def _collective(calls: list[tuple[Any, ...]]) -> bool:
    kinds = {(call[0], *call[3:]) for call in calls}
    if len(kinds) != 1:
        return False
    kind, count, code, *rest = kinds.pop()
    ins = [_memory(call[1], count * (len(calls) if kind == "reduce_scatter" else 1), code).copy() for call in calls]
    if kind == "broadcast":
        results = [ins[rest[0]]] * len(calls)
    elif kind == "all_gather":
        results = [np.concatenate(ins)] * len(calls)
    else:
        total = ins[0]
        for other in ins[1:]:
            total = _OPS[rest[0]](total, other)
        if rest[0] == _AVG:
            total = (total / len(calls)).astype(total.dtype)
        parts = np.split(total, len(calls)) if kind == "reduce_scatter" else [total] * len(calls)
        root = rest[1] if kind == "reduce" else None
        results = [part if root in (None, rank) else None for rank, part in enumerate(parts)]
    for call, result in zip(calls, results, strict=True):
        if result is not None:
            _memory(call[2], result.size, code)[:] = result
    return True


class NcclCommunicator:
    """One rank's end. Making it blocks until all ranks have."""

    def __init__(self, size: int, identity: bytes, rank: int) -> None:
        if type(identity) is not bytes:
            raise TypeError(f"Argument 'commId' has incorrect type (expected bytes, got {type(identity).__name__})")
        self._all = _ALL[identity]
        self._size, self._rank = size, rank
        self.aborted = self.destroyed = False
        self.error: str | None = None
        MADE.append(self)
        _OPEN.comm = self
        with self._all.changed:
            self._all.joined[rank] = self
            self._all.changed.notify_all()
            if not self._all.changed.wait_for(lambda: len(self._all.joined) == size or UNBLOCK.is_set(), 20):
                raise NcclError("NCCL_ERROR_SYSTEM_ERROR: a rank did not come")

    def _queue(self, stream: int, *call: Any) -> None:
        if self.aborted:
            raise NcclError("NCCL_ERROR_INVALID_USAGE: the communicator was aborted")
        depth = _OPEN.groups
        if depth is None:
            raise AssertionError("expected groupStart before")
        depth.append((self, Stream.by_address[stream], call))

    def allReduce(self, send: int, recv: int, count: int, code: int, op: int, stream: int) -> None:
        self._queue(stream, "all_reduce", send, recv, count, code, op)

    def reduce(self, send: int, recv: int, count: int, code: int, op: int, root: int, stream: int) -> None:
        self._queue(stream, "reduce", send, recv, count, code, op, root)

    def broadcast(self, send: int, recv: int, count: int, code: int, root: int, stream: int) -> None:
        self._queue(stream, "broadcast", send, recv, count, code, root)

    def reduceScatter(self, send: int, recv: int, count: int, code: int, op: int, stream: int) -> None:
        self._queue(stream, "reduce_scatter", send, recv, count, code, op)

    def allGather(self, send: int, recv: int, count: int, code: int, stream: int) -> None:
        self._queue(stream, "all_gather", send, recv, count, code)

    def send(self, at: int, count: int, code: int, peer: int, stream: int) -> None:
        assert code == 1, "the backend moves bytes"
        self._queue(stream, "send", at, count, peer)

    def recv(self, at: int, count: int, code: int, peer: int, stream: int) -> None:
        assert code == 1, "the backend moves bytes"
        self._queue(stream, "recv", at, count, peer)

    def check_async_error(self) -> None:
        if self.error:
            raise NcclError(self.error)

    def abort(self) -> None:
        self.aborted = True

    def destroy(self) -> None:
        self.destroyed = True


class _Open(threading.local):
    groups: list[Any] | None = None
    comm: NcclCommunicator | None = None  # the one that this thread made: for groups without a call


_OPEN = _Open()
_ALL: dict[tuple[int, ...], _Communicators] = {}
MADE: list[NcclCommunicator] = []
UNBLOCK = threading.Event()  # lets go of those who wait for ranks that never come, at the end of a test


def _start() -> None:
    _OPEN.groups = []


def _end() -> None:
    calls, _OPEN.groups = _OPEN.groups or [], None
    group = _Group()
    group.calls = [call for _, _, call in calls]
    for _, stream, _ in calls[:1]:
        stream.pending.append(group)
    comm = _OPEN.comm
    assert comm is not None
    comm._all.submit(comm._rank, comm._size, group)


def _unique_id() -> bytes:
    identity = np.random.default_rng().bytes(128)
    _ALL[identity] = _Communicators()
    return identity


def make_nccl() -> Any:
    """The module."""
    return SimpleNamespace(
        available=True,
        NcclCommunicator=NcclCommunicator,
        NcclError=NcclError,
        get_unique_id=_unique_id,
        groupStart=_start,
        groupEnd=_end,
    )
