"""The collectives, with the names and meaning of torch.distributed.

All take Tensors (or numpy arrays) on the CPU. Ranks in arguments are global ranks; `group_src`/`group_dst` are ranks in
the group. Common to all:

    Order:   each element is reduced along one path that depends only on the group's size: all ranks get equal bits.
    Checked: kind, shape, dtype, op and order are compared on every call; a mismatch is CollectiveMismatch on all ranks.
    Raises:  PeerLost, CollectiveTimeout, GroupAborted, what `abort(error)` gave (from Work.wait() when async_op).
    Returns: None once done, or a Work with `async_op`; None at once in a process outside `group`.

Memory that is not contiguous is staged through a contiguous copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np

from resilin.dist import reduce_op
from resilin.dist.group import ProcessGroup
from resilin.dist.mailbox import ANY
from resilin.dist.message import Kind
from resilin.dist.reduce_op import DTYPE_CODES, Array, ReduceOp
from resilin.dist.tree import Plan, Subtree
from resilin.dist.work import Work, seconds
from resilin.dist.world import get_group_rank, resolve
from resilin.errors import CollectiveTimeout, PeerLost, UsageError


def array_of(tensor: Any) -> Array:
    """The numpy array of a Tensor; numpy arrays pass. UsageError for anything else."""
    array = getattr(tensor, "_array", tensor)
    if type(array) is not np.ndarray:
        raise UsageError(f"expected a CPU tensor, got {type(tensor).__name__}")
    if array.dtype not in DTYPE_CODES:
        raise UsageError(f"collectives do not carry dtype {array.dtype}")
    return array


class _Output:
    """A tensor that a collective writes: its contiguous memory, and how it gets back into the tensor."""

    __slots__ = ("array", "flat", "tensor")

    def __init__(self, tensor: Any, load: bool = False) -> None:
        self.tensor = tensor
        self.flat = self.array = array_of(tensor)
        if not self.array.flags.writeable:
            raise UsageError("the output tensor is read-only")
        if not self.array.flags.c_contiguous:
            self.flat = self.array.copy(order="C") if load else np.empty(self.array.shape, self.array.dtype)

    def store(self) -> None:
        """Copy staged memory back and count the write."""
        if self.flat is not self.array:
            np.copyto(self.array, self.flat)
        bump = getattr(self.tensor, "_bump", None)
        if bump is not None:
            bump()


def _input(tensor: Any) -> Array:
    array = array_of(tensor)
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def _root(group: ProcessGroup, rank: int | None, group_rank: int | None, name: str) -> int:
    if group_rank is not None:
        if rank is not None:
            raise UsageError(f"give {name} or group_{name}, not both")
        if not 0 <= group_rank < group.size():
            raise UsageError(f"group_{name} {group_rank} is not in {group!r}")
        return group_rank
    if rank is None:
        raise UsageError(f"give {name} or group_{name}")
    return get_group_rank(group, rank)


def _same_layout(arrays: Sequence[Array], like: Array, count: int, what: str) -> None:
    if len(arrays) != count:
        raise UsageError(f"{what}: expected {count} tensors, one per rank, got {len(arrays)}")
    for i, array in enumerate(arrays):
        if array.dtype != like.dtype or array.size != like.size:
            raise UsageError(
                f"{what}[{i}] is {array.dtype}{list(array.shape)}, expected {like.dtype}{list(like.shape)}"
            )


def _shaped(arrays: Sequence[Array], like: Array) -> list[Array]:
    return [array.reshape(like.shape) for array in arrays]


def _run(
    group: ProcessGroup,
    kind: Kind,
    task: Callable[[Any], None],
    outputs: Sequence[_Output],
    async_op: bool,
    timeout: timedelta | float | None = None,
) -> Work | None:
    def whole(call: Any) -> None:
        task(call)
        for output in outputs:
            output.store()

    tensors = [output.tensor for output in outputs]
    return group.run(kind, whole, tensors, async_op=async_op, timeout_s=seconds(timeout))


def all_reduce(tensor: Any, op: ReduceOp = ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Work | None:
    """Reduce `tensor` elementwise over all ranks of `group`, in place.

    Shape: any; equal on every rank. float16 and bfloat16 are summed in float32 and rounded once.
    Cost:  one host: every element is read once per rank and written once per rank, in place in shared memory;
           hosts: a ring, 2(P-1)/P of the bytes per rank, or log2 P messages below 256 KiB.
    """
    pg = resolve(group)
    if pg is None:
        return None
    target = _Output(tensor, load=True)
    flat = target.flat
    op = reduce_op.check(ReduceOp(op), flat.dtype)
    backend = pg.backend

    def task(call: Any) -> None:
        backend.all_reduce(call, flat, op)
        target.store()

    return pg.run(Kind.ALL_REDUCE, task, [tensor], async_op=async_op)


def tree_all_reduce(
    parts: dict[Subtree, Any], out: Any, plan: Plan, group: Any = None, async_op: bool = False
) -> Work | None:
    """Sum all ranks' partial results into `out` along `plan`'s tree: the bits do not depend on the world size.

    `parts`: this rank's partial sums, one per subtree of `plan.subtrees(rank)`, each of the shape and dtype of `out`
    and summed along the same tree. Every node is left + right, rounded to the dtype.
    """
    pg = resolve(group)
    if pg is None:
        return None
    if plan.world_size != pg.size() or set(parts) != set(plan.subtrees(pg.rank())):
        raise UsageError(
            f"tree_all_reduce: rank {pg.rank()} of {pg.size()} must bring {plan.subtrees(pg.rank())} of a plan for "
            f"{pg.size()} ranks; got {sorted(parts)} of a plan for {plan.world_size}"
        )
    target = _Output(out)
    flat = target.flat
    reduce_op.check(ReduceOp.SUM, flat.dtype)
    arrays = {node: _input(part) for node, part in sorted(parts.items())}
    _same_layout(list(arrays.values()), flat, len(arrays), "parts")
    backend = pg.backend
    return _run(
        pg, Kind.TREE_ALL_REDUCE, lambda call: backend.tree_all_reduce(call, arrays, flat, plan), [target], async_op
    )


def broadcast(
    tensor: Any, src: int | None = None, group: Any = None, async_op: bool = False, group_src: int | None = None
) -> Work | None:
    """Copy `tensor` of rank `src` into `tensor` of every rank. Shape: any; equal on every rank."""
    pg = resolve(group)
    if pg is None:
        return None
    root = _root(pg, src, group_src, "src")
    target = _Output(tensor, load=root == pg.rank())
    backend, flat = pg.backend, target.flat
    outputs = [target] if root != pg.rank() else []
    return _run(pg, Kind.BROADCAST, lambda call: backend.broadcast(call, flat, root), outputs, async_op)


def reduce(
    tensor: Any,
    dst: int | None = None,
    op: ReduceOp = ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """Reduce `tensor` over all ranks into `tensor` of rank `dst`; other ranks' tensors stay as they are."""
    pg = resolve(group)
    if pg is None:
        return None
    root = _root(pg, dst, group_dst, "dst")
    target = _Output(tensor, load=True)
    backend, flat = pg.backend, target.flat
    op = reduce_op.check(ReduceOp(op), flat.dtype)
    outputs = [target] if root == pg.rank() else []
    return _run(pg, Kind.REDUCE, lambda call: backend.reduce(call, flat, op, root), outputs, async_op)


def all_gather(tensor_list: Sequence[Any], tensor: Any, group: Any = None, async_op: bool = False) -> Work | None:
    """`tensor_list[r] = tensor of rank r` on every rank. Shape: equal on every rank."""
    pg = resolve(group)
    if pg is None:
        return None
    array = _input(tensor)
    targets = [_Output(output) for output in tensor_list]
    _same_layout([t.flat for t in targets], array, pg.size(), "tensor_list")
    flats, backend = _shaped([t.flat for t in targets], array), pg.backend
    return _run(pg, Kind.ALL_GATHER, lambda call: backend.all_gather(call, array, flats), targets, async_op)


def all_gather_into_tensor(
    output_tensor: Any, input_tensor: Any, group: Any = None, async_op: bool = False
) -> Work | None:
    """Concatenate (or stack) every rank's `input_tensor` in rank order into `output_tensor` of P times its size."""
    pg = resolve(group)
    if pg is None:
        return None
    array, target = _input(input_tensor), _Output(output_tensor)
    rows, backend = _rows(target.flat, array, pg.size(), "output_tensor"), pg.backend
    return _run(pg, Kind.ALL_GATHER, lambda call: backend.all_gather(call, array, rows), [target], async_op)


def _rows(flat: Array, like: Array, count: int, what: str) -> list[Array]:
    if flat.dtype != like.dtype or flat.size != like.size * count:
        raise UsageError(
            f"{what} is {flat.dtype} with {flat.size} elements, expected {like.dtype} with {count} x {like.size}"
        )
    return _shaped(list(flat.reshape(count, like.size)), like)


def reduce_scatter(
    output: Any, input_list: Sequence[Any], op: ReduceOp = ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Work | None:
    """`output = op over ranks of input_list[this rank]`. Shape: all tensors equal, on every rank."""
    pg = resolve(group)
    if pg is None:
        return None
    target = _Output(output)
    backend, flat = pg.backend, target.flat
    op = reduce_op.check(ReduceOp(op), flat.dtype)
    inputs = [_input(tensor) for tensor in input_list]
    _same_layout(inputs, flat, pg.size(), "input_list")
    shaped = _shaped(inputs, flat)
    return _run(
        pg, Kind.REDUCE_SCATTER, lambda call: backend.reduce_scatter(call, shaped, flat, op), [target], async_op
    )


def reduce_scatter_tensor(
    output: Any, input: Any, op: ReduceOp = ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Work | None:
    """As reduce_scatter, with the P inputs concatenated (or stacked) in one tensor of P times the output's size."""
    pg = resolve(group)
    if pg is None:
        return None
    target, whole = _Output(output), _input(input)
    backend, flat = pg.backend, target.flat
    op = reduce_op.check(ReduceOp(op), flat.dtype)
    rows = _rows(whole, flat, pg.size(), "input")
    return _run(pg, Kind.REDUCE_SCATTER, lambda call: backend.reduce_scatter(call, rows, flat, op), [target], async_op)


def gather(
    tensor: Any,
    gather_list: Sequence[Any] | None = None,
    dst: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """`gather_list[r] = tensor of rank r` on rank `dst` (default 0); elsewhere gather_list must be None."""
    pg = resolve(group)
    if pg is None:
        return None
    root = 0 if dst is None and group_dst is None else _root(pg, dst, group_dst, "dst")
    array = _input(tensor)
    if (gather_list is None) == (root == pg.rank()):
        raise UsageError(f"gather: gather_list must be given on the destination rank {root} and only there")
    targets = [_Output(output) for output in gather_list or ()]
    flats = None
    if gather_list is not None:
        _same_layout([t.flat for t in targets], array, pg.size(), "gather_list")
        flats = _shaped([t.flat for t in targets], array)
    backend = pg.backend
    return _run(pg, Kind.GATHER, lambda call: backend.gather(call, array, flats, root), targets, async_op)


def scatter(
    tensor: Any,
    scatter_list: Sequence[Any] | None = None,
    src: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """`tensor = scatter_list[this rank]` of rank `src` (default 0); elsewhere scatter_list must be None."""
    pg = resolve(group)
    if pg is None:
        return None
    root = 0 if src is None and group_src is None else _root(pg, src, group_src, "src")
    target = _Output(tensor)
    backend, flat = pg.backend, target.flat
    if not scatter_list:
        scatter_list = None
    if (scatter_list is None) == (root == pg.rank()):
        raise UsageError(f"scatter: scatter_list must be given on the source rank {root} and only there")
    inputs = None
    if scatter_list is not None:
        inputs = [_input(tensor) for tensor in scatter_list]
        _same_layout(inputs, flat, pg.size(), "scatter_list")
        inputs = _shaped(inputs, flat)
    return _run(pg, Kind.SCATTER, lambda call: backend.scatter(call, inputs, flat, root), [target], async_op)


def all_to_all(
    output_tensor_list: Sequence[Any], input_tensor_list: Sequence[Any], group: Any = None, async_op: bool = False
) -> Work | None:
    """`output_tensor_list[r] = input_tensor_list[this rank] of rank r`; sizes may differ from pair to pair."""
    pg = resolve(group)
    if pg is None:
        return None
    inputs = [_input(tensor) for tensor in input_tensor_list]
    targets = [_Output(output) for output in output_tensor_list]
    if len(inputs) != pg.size() or len(targets) != pg.size():
        raise UsageError(f"all_to_all: expected {pg.size()} inputs and outputs, got {len(inputs)} and {len(targets)}")
    backend, flats = pg.backend, [t.flat.reshape(-1) for t in targets]
    flat_inputs = [array.reshape(-1) for array in inputs]
    return _run(pg, Kind.ALL_TO_ALL, lambda call: backend.all_to_all(call, flat_inputs, flats), targets, async_op)


def all_to_all_single(
    output: Any,
    input: Any,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Any = None,
    async_op: bool = False,
) -> Work | None:
    """As all_to_all, on tensors cut along the first dimension: evenly, or by the given sizes (in rows)."""
    pg = resolve(group)
    if pg is None:
        return None
    target, whole = _Output(output), _input(input)
    inputs = _cut(whole, input_split_sizes, pg.size(), "input")
    outputs = _cut(target.flat, output_split_sizes, pg.size(), "output")
    backend = pg.backend
    return _run(pg, Kind.ALL_TO_ALL, lambda call: backend.all_to_all(call, inputs, outputs), [target], async_op)


def _cut(array: Array, sizes: Sequence[int] | None, count: int, what: str) -> list[Array]:
    rows = array.shape[0] if array.ndim else 0
    if not sizes:
        if rows % count:
            raise UsageError(f"{what} has {rows} rows, which do not divide over {count} ranks; give {what}_split_sizes")
        sizes = [rows // count] * count
    if len(sizes) != count or sum(sizes) != rows:
        raise UsageError(f"{what}_split_sizes {list(sizes)} must be {count} numbers that add up to {rows} rows")
    starts = [sum(sizes[:i]) for i in range(count + 1)]
    return [array[starts[i] : starts[i + 1]].reshape(-1) for i in range(count)]


def barrier(
    group: Any = None, async_op: bool = False, device_ids: Any = None, timeout: timedelta | float | None = None
) -> Work | None:
    """Return when every rank of `group` has called it."""
    pg = resolve(group)
    if pg is None:
        return None
    backend = pg.backend
    return _run(pg, Kind.BARRIER, backend.barrier, [], async_op, timeout)


def monitored_barrier(
    group: Any = None, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
) -> None:
    """A barrier in which rank 0 hears from every rank by itself: its error names the missing ranks.

    With `wait_all_ranks` all of them, else the first in rank order. The group is aborted on a miss.
    """
    pg = resolve(group)
    if pg is None:
        return
    limit = pg.timeout_s if timeout is None else seconds(timeout)
    token = np.zeros(1, np.uint8)
    if pg.rank() != 0:
        pg.send(token, 0, _BARRIER_TAG, limit)
        pg.receive(token, 0, _BARRIER_TAG).wait(limit)
        return
    works = {rank: pg.receive(np.zeros(1, np.uint8), rank, _BARRIER_TAG) for rank in range(1, pg.size())}
    missing: list[int] = []
    lost: BaseException | None = None
    for rank, work in works.items():
        try:
            work.wait(limit)
        except (CollectiveTimeout, PeerLost) as error:
            missing.append(rank)
            lost = error
            limit = 0.0 if isinstance(error, CollectiveTimeout) else limit
            if not wait_all_ranks:
                break
    if missing:
        names = ", ".join(f"rank {rank}" for rank in missing)
        miss = CollectiveTimeout(f"monitored_barrier, {pg.title()}: {names} did not come: {lost}", missing)
        pg.abort(miss)
        raise miss
    for rank in works:
        pg.send(token, rank, _BARRIER_TAG, limit)


_BARRIER_TAG = -1


def send(tensor: Any, dst: int | None = None, group: Any = None, tag: int = 0, group_dst: int | None = None) -> None:
    """Send `tensor` to rank `dst`; returns when the tensor may be changed again."""
    pg = resolve(group)
    if pg is not None:
        pg.send(_input(tensor), _peer(pg, dst, group_dst, "dst"), tag)


def isend(
    tensor: Any, dst: int | None = None, group: Any = None, tag: int = 0, group_dst: int | None = None
) -> Work | None:
    """As send. Peers always read, so the bytes leave at once: the Work is complete when this returns."""
    pg = resolve(group)
    if pg is None:
        return None
    to = _peer(pg, dst, group_dst, "dst")
    work = Work(f"isend to rank {to} with tag {tag}, {pg.title()}")
    pg.send(_input(tensor), to, tag)
    work._future.set_result([tensor])
    return work


def recv(tensor: Any, src: int | None = None, group: Any = None, tag: int = 0, group_src: int | None = None) -> int:
    """Receive into `tensor` from rank `src` (None: from whoever sends first). Returns the sender's global rank."""
    pg = resolve(group)
    if pg is None:
        return -1
    work = _post(pg, tensor, src, tag, group_src)
    work.wait(pg.timeout_s)
    return pg.ranks[work.source_rank()]


def irecv(
    tensor: Any, src: int | None = None, group: Any = None, tag: int = 0, group_src: int | None = None
) -> Work | None:
    """As recv; wait for the Work before using `tensor`."""
    pg = resolve(group)
    return None if pg is None else _post(pg, tensor, src, tag, group_src)


def _post(pg: ProcessGroup, tensor: Any, src: int | None, tag: int, group_src: int | None) -> Work:
    source = ANY if src is None and group_src is None else _peer(pg, src, group_src, "src")
    target = _Output(tensor)
    return pg.receive(target.flat, source, tag, target.store)


def _peer(pg: ProcessGroup, rank: int | None, group_rank: int | None, name: str) -> int:
    peer = _root(pg, rank, group_rank, name)
    if peer == pg.rank():
        raise UsageError(f"{name} is this rank itself: a rank cannot send to itself")
    return peer


class P2POp:
    """One `isend` or `irecv` for `batch_isend_irecv`."""

    def __init__(
        self,
        op: Callable[..., Any],
        tensor: Any,
        peer: int | None = None,
        group: Any = None,
        tag: int = 0,
        group_peer: int | None = None,
    ) -> None:
        if op not in (isend, irecv):
            raise UsageError("P2POp takes resilin.dist.isend or resilin.dist.irecv")
        self.op, self.tensor, self.peer, self.group, self.tag, self.group_peer = (
            op,
            tensor,
            peer,
            group,
            tag,
            group_peer,
        )


def batch_isend_irecv(p2p_op_list: Sequence[P2POp]) -> list[Work]:
    """Start all operations; receives are posted before anything is sent."""
    works: dict[int, Work | None] = {}
    for wanted in (irecv, isend):
        for i, p2p in enumerate(p2p_op_list):
            if p2p.op is wanted:
                works[i] = p2p.op(p2p.tensor, p2p.peer, p2p.group, p2p.tag, p2p.group_peer)
    return [work for _, work in sorted(works.items()) if work is not None]
