"""Provide the `nccl` backend: NCCL through CuPy, one communicator for each group, one GPU for each rank.

Ranks agree on every call over the backend of the CPU before NCCL is called, so a mismatch is an error on all of them,
never a hang inside NCCL. A call returns when the GPU has done the work; a rank that waits looks at the abort flag, the
clock and NCCL's own errors. NCCL's order of summation is fixed for a number of ranks and a size, and gives all ranks
equal bits; float16 and bfloat16 are added as such.

What NCCL has no operation for is computed from an all_gather, in rank order: BAND, BOR, BXOR, products of complex
numbers, and reductions of bool, int16 and uint16. What ran on a GPU: docs/gpu.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any

from resilin._base import host, json_text
from resilin._base.clock import Deadline, spell
from resilin.core import device as devices
from resilin.core.backends.cupy import CupyBackend
from resilin.core.kernels.common import address_of
from resilin.distributed.backends.backend_context import BackendContext
from resilin.distributed.backends.base import Aborted, Call, clobbers, join
from resilin.distributed.backends.gpu.base import DeviceBackend, fold
from resilin.distributed.wire import schedules
from resilin.distributed.wire.reduce_op import ReduceOp
from resilin.distributed.wire.shard_tree import Plan, Subtree
from resilin.errors import CollectiveTimeout, DistBackendError

# NCCL's numbers, which its header promises never to change: dtype -> (ncclDataType_t, elements of it per element)
_DTYPES = {
    "int8": (0, 1),
    "uint8": (1, 1),
    "int32": (2, 1),
    "uint32": (3, 1),
    "int64": (4, 1),
    "uint64": (5, 1),
    "float16": (6, 1),
    "float32": (7, 1),
    "float64": (8, 1),
    "bfloat16": (9, 1),
    "complex64": (7, 2),
    "complex128": (8, 2),
}
_BYTE = 1  # ncclUint8: what is only moved
_OPS = {ReduceOp.SUM: 0, ReduceOp.PRODUCT: 1, ReduceOp.MAX: 2, ReduceOp.MIN: 3, ReduceOp.AVG: 4}
_NEWS_S = 0.25  # an error inside NCCL waits this long for the group to say who died


def make(setup: BackendContext, options: Any) -> NcclBackend:
    """The backend of one group. DistBackendError when CuPy or NCCL is missing."""
    try:
        device = devices.backend_of("cuda")
    except RuntimeError as error:
        raise DistBackendError(f"backend 'nccl' cannot be used: {error}") from error
    assert isinstance(device, CupyBackend)
    library = device.nccl()
    if not library.available:
        raise DistBackendError(
            "backend 'nccl': CuPy finds no NCCL library: pip install nvidia-nccl-cu12 (-cu13 for CUDA 13), or use "
            "'cuda:gloo', which copies tensors to the host and back"
        )
    return NcclBackend(setup, device, library)


class NcclBackend(DeviceBackend):
    """One rank's end. `library` is `CupyBackend.nccl()`."""

    name = "nccl"

    def __init__(self, setup: BackendContext, device: CupyBackend, library: Any) -> None:
        super().__init__(setup, device)
        self._nccl = library
        self._comm: Any = None

    # --- the communicator ---

    def _connect(self, deadline: Deadline) -> None:
        """Make the communicator, with the first call: all ranks have just agreed on that."""
        if self._comm is not None:
            return
        cards = [json_text.parse(card) for card in self._setup.peers.all_gather(self._card(), deadline)]
        identity = bytes.fromhex(cards[0]["id"])
        check_gpus([card["gpu"] for card in cards])

        def connect(stream: Any) -> None:
            comm = self._nccl.NcclCommunicator(self._size, identity, self._rank)
            if self._queue.stop.is_set():  # nobody waits for it any more
                comm.abort()
            else:
                self._comm = comm

        self._run("connecting", connect, deadline)

    def _card(self) -> bytes:
        """What the others must know of this rank; of rank 0 NCCL's identity of the communicator."""
        try:
            identity = self._nccl.get_unique_id().hex() if self._rank == 0 else ""
            gpu = f"{host.host_id()} {self._cupy.cuda.runtime.deviceGetPCIBusId(self._index)}"
        except (self._nccl.NcclError, self._cupy.cuda.runtime.CUDARuntimeError) as error:
            raise DistBackendError(f"nccl, connecting: {error}") from error
        return json.dumps({"id": identity, "gpu": gpu}).encode()

    def _call(self, call: Call, work: Callable[[Any, int], None], what: str) -> None:
        """`work(comm, stream)` as one NCCL group, done when the GPU has done it."""
        deadline = call.deadline()
        self._connect(deadline)

        def launch(stream: Any) -> None:
            with self._group():
                work(self._comm, stream.ptr)

        self._run(what, launch, deadline)

    @contextmanager
    def _group(self) -> Any:
        """Calls in it start together: sends and receives cannot wait for one another."""
        self._nccl.groupStart()
        try:
            yield
        finally:
            self._nccl.groupEnd()

    def _run(self, what: str, work: Callable[[Any], None], deadline: Deadline) -> None:
        try:
            if self._queue.run(work, deadline, self._check):
                return
        except Aborted:
            self._break()
            raise
        except Exception as error:
            ended = self._queue.stop.wait(_NEWS_S)  # a peer that died looks like this to NCCL: the group knows who
            self._break()
            if ended:
                raise Aborted from error
            raise DistBackendError(f"nccl, {what}: {error}") from error
        self._break()
        raise CollectiveTimeout(
            f"NCCL did not finish {what} within {spell(deadline.seconds)}, though all ranks had called it"
        )

    def _check(self) -> None:
        if self._comm is not None:
            self._comm.check_async_error()

    def _break(self) -> None:
        """End what NCCL does now, here: its kernels return, and a thread that is inside NCCL does."""
        comm, self._comm = self._comm, None
        self._queue.stop.set()
        if comm is not None:
            comm.abort()

    def close(self) -> None:
        """See Backend."""
        stopped = self._queue.stop.is_set()
        super().close()
        comm, self._comm = self._comm, None
        if comm is not None:
            comm.abort() if stopped else comm.destroy()

    # --- collectives ---

    def all_reduce(self, call: Call, array: Any, op: ReduceOp) -> None:
        """See Backend."""
        self.agree(call.describe(array, op), call.deadline())
        if not _native(array, op):
            array[...] = fold(self._cupy, op, self._gathered(call, array))
            return
        at, (code, per) = address_of(array), _DTYPES[array.dtype.name]
        self._call(
            call,
            lambda comm, stream: comm.allReduce(at, at, array.size * per, code, _OPS[op], stream),
            "all_reduce",
        )

    def reduce(self, call: Call, array: Any, op: ReduceOp, root: int) -> None:
        """See Backend."""
        self.agree(call.describe(array, op, root), call.deadline())
        if not _native(array, op):
            total = fold(self._cupy, op, self._gathered(call, array))
            if self._rank == root:
                array[...] = total
            return
        at, (code, per) = address_of(array), _DTYPES[array.dtype.name]
        self._call(
            call,
            lambda comm, stream: comm.reduce(at, at, array.size * per, code, _OPS[op], root, stream),
            "reduce",
        )

    def broadcast(self, call: Call, array: Any, root: int) -> None:
        """See Backend."""
        self.agree(call.describe(array, None, root), call.deadline())
        at = address_of(array)
        self._call(call, lambda comm, stream: comm.broadcast(at, at, array.nbytes, _BYTE, root, stream), "broadcast")

    def all_gather(self, call: Call, array: Any, outputs: Sequence[Any]) -> None:
        """See Backend. One allGather where the outputs lie in a row, else a broadcast from every rank."""
        self.agree(call.describe(array), call.deadline())
        if clobbers([array], outputs, 0, outputs[self._rank]):
            array = array.copy()
        self._all_gather(call, array, outputs)

    def _all_gather(self, call: Call, array: Any, outputs: Sequence[Any]) -> None:
        at, to = address_of(array), [address_of(output) for output in outputs]
        if _in_a_row(outputs):
            self._call(call, lambda comm, stream: comm.allGather(at, to[0], array.nbytes, _BYTE, stream), "all_gather")
            return

        def each(comm: Any, stream: int) -> None:
            for root, target in enumerate(to):
                comm.broadcast(at if root == self._rank else target, target, array.nbytes, _BYTE, root, stream)

        self._call(call, each, "all_gather")

    def _gathered(self, call: Call, array: Any) -> list[Any]:
        """Every rank's array."""
        rows = list(self._empty((self._size, array.size), array.dtype))
        self._all_gather(call, array, rows)
        return [row.reshape(array.shape) for row in rows]

    def reduce_scatter(self, call: Call, inputs: Sequence[Any], output: Any, op: ReduceOp) -> None:
        """See Backend. Inputs that do not lie in a row are copied into one."""
        self.agree(call.describe(output, op), call.deadline())
        if _native(output, op):
            whole = inputs[0] if _in_a_row(inputs) else self._cupy.concatenate([part.reshape(-1) for part in inputs])
            into = output.copy() if clobbers(inputs, [output], self._rank, output) else output
            at, (code, per) = address_of(whole), _DTYPES[output.dtype.name]
            self._call(
                call,
                lambda comm, stream: comm.reduceScatter(
                    at, address_of(into), output.size * per, code, _OPS[op], stream
                ),
                "reduce_scatter",
            )
            if into is not output:
                output[...] = into
            return
        parts = [self._empty(output.shape, output.dtype) for _ in inputs]
        ranks = range(self._size)
        self._move(call, list(zip(ranks, inputs, strict=True)), list(zip(ranks, parts, strict=True)), "reduce_scatter")
        output[...] = fold(self._cupy, op, parts)

    def gather(self, call: Call, array: Any, outputs: Sequence[Any] | None, root: int) -> None:
        """See Backend."""
        self.agree(call.describe(array, None, root), call.deadline())
        if outputs is not None and clobbers([array], outputs, 0, outputs[self._rank]):
            array = array.copy()
        self._move(call, [(root, array)], list(enumerate(outputs or ())), "gather")

    def scatter(self, call: Call, inputs: Sequence[Any] | None, output: Any, root: int) -> None:
        """See Backend."""
        self.agree(call.describe(output, None, root), call.deadline())
        if inputs is not None and clobbers(inputs, [output], self._rank, output):
            inputs = [part.copy() for part in inputs]
        self._move(call, list(enumerate(inputs or ())), [(root, output)], "scatter")

    def all_to_all(self, call: Call, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """See Backend. Ranks tell one another the sizes over the group's messages first."""
        deadline = call.deadline()
        self.agree(call.describe_parts(inputs), deadline)
        self._compare_sizes(inputs, outputs, deadline)
        if clobbers(inputs, outputs, self._rank, outputs[self._rank]):
            inputs = [part.copy() for part in inputs]
        self._move(call, list(enumerate(inputs)), list(enumerate(outputs)), "all_to_all")

    def tree_all_reduce(self, call: Call, parts: dict[Subtree, Any], output: Any, plan: Plan) -> None:
        """See Backend. Every rank sends its parts of slice s to rank s, which joins them; then slices are gathered."""
        self.agree(call.describe(output, ReduceOp.SUM, shards=plan.shards), call.deadline())
        cut, me, ranks = schedules.bounds(output.size, self._size), self._rank, range(self._size)
        flats = [part.reshape(-1) for _, part in sorted(parts.items())]
        length = cut[me + 1] - cut[me]
        blocks = [self._empty((len(plan.subtrees(rank)), length), output.dtype) for rank in ranks]
        packed = [self._stacked([flat[cut[to] : cut[to + 1]] for flat in flats], output) for to in ranks]
        self._move(call, list(enumerate(packed)), list(enumerate(blocks)), "tree_all_reduce")
        slices = {node: row for rank in ranks for node, row in zip(plan.subtrees(rank), blocks[rank], strict=True)}
        flat, mine = self._empty((output.size,), output.dtype), join(slices, plan)
        targets = [(rank, flat[cut[rank] : cut[rank + 1]]) for rank in ranks]
        self._move(call, [(rank, mine) for rank in ranks], targets, "tree_all_reduce")
        output[...] = flat.reshape(output.shape)

    def _stacked(self, rows: list[Any], like: Any) -> Any:
        return self._cupy.concatenate(rows) if rows else self._empty((0,), like.dtype)

    def _move(
        self, call: Call, sends: Sequence[tuple[int, Any]], receives: Sequence[tuple[int, Any]], what: str
    ) -> None:
        """Send arrays to ranks and receive others, all at once; both sides know the sizes. To itself, a rank copies."""
        sources = dict(receives)
        for rank, array in sends:
            if rank == self._rank and rank in sources and array.nbytes == sources[rank].nbytes:
                sources[rank].reshape(-1)[...] = array.reshape(-1)
        out = [(rank, address_of(a), a.nbytes) for rank, a in sends if rank != self._rank and a.nbytes]
        into = [(rank, address_of(a), a.nbytes) for rank, a in receives if rank != self._rank and a.nbytes]

        def each(comm: Any, stream: int) -> None:
            for rank, at, size in out:
                comm.send(at, size, _BYTE, rank, stream)
            for rank, at, size in into:
                comm.recv(at, size, _BYTE, rank, stream)

        self._call(call, each, what)


def check_gpus(gpus: Sequence[str]) -> None:
    """DistBackendError, on all ranks, unless each rank has a GPU of its own; by host and PCI address."""
    shared = {gpu: [rank for rank, other in enumerate(gpus) if other == gpu] for gpu in gpus}
    for gpu, ranks in shared.items():
        if len(ranks) > 1:
            names = " and ".join(f"rank {rank}" for rank in ranks)
            raise DistBackendError(
                f"backend 'nccl' needs a GPU for each rank, but {names} compute on one ({gpu}): call "
                "cuda.set_device(local_rank) before the first tensor, or use 'cuda:cuda_ipc', for which ranks may share"
            )


def _native(array: Any, op: ReduceOp) -> bool:
    """Whether NCCL has this reduction of this dtype."""
    if array.dtype.kind == "c" and op is ReduceOp.PRODUCT:
        return False
    return op in _OPS and array.dtype.name in _DTYPES


def _in_a_row(arrays: Sequence[Any]) -> bool:
    """Whether the arrays follow one another in memory, without gaps."""
    at = address_of(arrays[0])
    return all(address_of(array) == at + i * arrays[0].nbytes for i, array in enumerate(arrays))
