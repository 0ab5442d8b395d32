"""Make several collectives in one go: `_coalescing_manager`, and the functions for lists of tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from resilin.distributed.agreement.refuse import propagate_errors
from resilin.distributed.api import collectives
from resilin.distributed.group import coalescing_buffer
from resilin.distributed.group.arguments import listed, one_dtype, outputs_of
from resilin.distributed.group.coalescing_buffer import CoalescingBuffer, Reduction
from resilin.distributed.group.default_group import resolve
from resilin.distributed.group.process_group import ProcessGroup
from resilin.distributed.wire import reduce_op
from resilin.distributed.wire.frames import Kind
from resilin.distributed.wire.reduce_op import PremulSum, ReduceOp
from resilin.distributed.work.future import Future
from resilin.distributed.work.work import Work
from resilin.errors import UsageError


@contextlib.contextmanager
def _coalescing_manager(group: Any = None, device: Any = None, async_ops: bool = False) -> Iterator[CoalescingBuffer]:
    """Collect this rank's collectives of `group` inside the block, and start them, in order, when it ends.

    Runs of small `all_reduce`s with one dtype and op become one call where that gives the bits of separate ones
    (see `coalescing_buffer`); all ranks must make the same calls in their blocks, of any kinds. They are done when the
    block ends; with `async_ops`, when `wait()` of what it gives returns. `isend` and `irecv` start at once and are
    waited for, too. What is needed when it returns is UsageError in a block, before anything is sent: `send`,
    `recv`, collectives of objects, `barrier()`, `monitored_barrier`. `device` changes nothing. The block is the
    calling thread's: callbacks that run meanwhile make their calls as ever. A block that ends by an error starts
    none, and the other ranks have a CollectiveMismatch; what isend and irecv have begun goes on. Behind a call that
    fails none is made. Of a tensor that a block reduces twice on one rank, it is twice on all.
    """
    pg = resolve(group, "_coalescing_manager")
    if pg is None:
        yield CoalescingBuffer()
        return
    calls = coalescing_buffer.begin(pg)
    function, verb = "_coalescing_manager", "left its block by an error"
    with propagate_errors(pg, Kind.ALL_REDUCE, async_op=True, function=function, verb=verb):
        try:
            yield calls
        finally:
            coalescing_buffer.end(pg)
    started = _start(pg, calls.calls, async_ops)
    if async_ops:
        calls.append(started)
    else:
        calls.wait()


def _start(pg: ProcessGroup, calls: Sequence[Reduction | coalescing_buffer.Launch], async_op: bool) -> Work | None:
    """Start the calls in order; a Work for all of them when `async_op`, unless there are none."""
    packs = coalescing_buffer.packs(calls, pg)
    with pg.row(len(packs)):
        works = [
            collectives.reduce_together(pg, pack, async_op) if isinstance(pack, list) else pack(async_op)
            for pack in packs
        ]
    given = [work for work in works if work is not None]
    if not given:
        return None
    outputs = [tensor for call in calls if isinstance(call, Reduction) for tensor in [call.target.tensor]]
    return coalescing_buffer.joined(f"{len(calls)} collectives of one block, {pg.title()}", given, outputs)


def all_reduce_coalesced(
    tensors: Sequence[Any], op: ReduceOp | PremulSum = ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Future[list[Any]] | None:
    """Reduce every tensor of the list in place over all ranks; small ones in one call (see `coalescing_buffer`).

    Shape:   any for each; the same list of shapes on every rank, and one dtype.
    Returns: with `async_op` a Future of the list, as in PyTorch.
    Order, Checked, Raises: as `all_reduce`; a mismatch of shapes of small tensors shows each rank's own list.
    """
    pg = resolve(group, "all_reduce_coalesced")
    if pg is None:
        return None
    with propagate_errors(pg, Kind.ALL_REDUCE, async_op):
        targets = outputs_of(tensors, "all_reduce_coalesced: tensors", load=True)
        if not targets:
            raise UsageError("all_reduce_coalesced: tensors: expected at least one tensor, got an empty list")
        one_dtype([target.flat for target in targets], "all_reduce_coalesced")
        reduce_op.check(op, targets[0].flat.dtype, "all_reduce_coalesced")
    reductions = [Reduction(target, op) for target in targets]
    around = coalescing_buffer.open_block(pg)
    if around is not None:
        for one in reductions:
            postponed: Future[list[Any]] | None = around.add(one, async_op)
        return postponed
    work = _start(pg, reductions, async_op)
    return None if work is None else work.get_future()


def all_gather_coalesced(
    output_tensor_lists: Sequence[Sequence[Any]],
    input_tensor_list: Sequence[Any],
    group: Any = None,
    async_op: bool = False,
) -> Future[list[Any]] | None:
    """`output_tensor_lists[r][i] = input_tensor_list[i] of rank r`. Shape: `input_tensor_list` equal on every rank.

    With `async_op` a Future of `output_tensor_lists`, as in PyTorch.
    """
    pg = resolve(group, "all_gather_coalesced")
    if pg is None:
        return None
    with propagate_errors(pg, Kind.ALL_GATHER, async_op):
        inputs = listed(input_tensor_list, "all_gather_coalesced: input_tensor_list")
        outputs = [
            listed(row, f"all_gather_coalesced: output_tensor_lists[{i}]")
            for i, row in enumerate(listed(output_tensor_lists, "all_gather_coalesced: output_tensor_lists"))
        ]
        if len(outputs) != pg.size() or any(len(row) != len(inputs) for row in outputs) or not inputs:
            raise UsageError(
                f"all_gather_coalesced: expected {pg.size()} output lists, one per rank, with as many tensors as there "
                f"are inputs, at least one; got lists of {[len(row) for row in outputs]} for {len(inputs)} inputs"
            )
        launches = [
            collectives.gathering(
                pg,
                [row[i] for row in outputs],
                tensor,
                f"all_gather_coalesced: tensors {i} of output_tensor_lists: rank",
                f"all_gather_coalesced: input_tensor_list[{i}]",
            )
            for i, tensor in enumerate(inputs)
        ]
    with pg.row(len(launches)):
        works = [launch(async_op) for launch in launches]
    given = [work for work in works if work is not None]
    if not given:
        return None
    if coalescing_buffer.open_block(pg) is not None:
        return given[-1]  # type: ignore[return-value]  # it refuses whatever is asked of it
    what = f"all_gather_coalesced of {len(inputs)} tensors, {pg.title()}"
    return coalescing_buffer.joined(what, given, list(output_tensor_lists)).get_future()
