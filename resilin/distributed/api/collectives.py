"""Provide the collectives, with the names and meaning of torch.distributed.

All take Tensors (or numpy arrays) on the CPU. Ranks in arguments are global ranks; `group_src`/`group_dst` are ranks in
the group. Common to all:

    Order:   each element is reduced along one path that depends only on the group's size: all ranks get equal bits.
    Checked: kind, shape, dtype, op and order are compared on every call; a mismatch is CollectiveMismatch on all ranks.
             Where a rank refuses its arguments (UsageError), or they fail as they are looked at, the others raise an
             error of the same class with its rank and reason, and the group goes on.
    Raises:  PeerLost, CollectiveTimeout, GroupAborted, what `abort(error)` gave (from Work.wait() when async_op).
    Returns: None once done, or a Work with `async_op`; None at once in a process outside `group`.

Memory that is not contiguous is staged through a contiguous copy. Outputs may lie in inputs; where peers would read
what is overwritten, the inputs are copied first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from resilin._base import ranks
from resilin.distributed.agreement.refuse import propagate_errors
from resilin.distributed.backends.base import Refused
from resilin.distributed.group.arguments import (
    Input,
    Output,
    cut,
    given,
    inputs_of,
    one_dtype,
    outputs_of,
    root_of,
    rows_of,
    same_layout,
    shaped,
)
from resilin.distributed.group.coalescing_buffer import Launch, Reduction, at_once, buffer_of, open_block, parts_of
from resilin.distributed.group.default_group import get_rank, get_world_size, is_initialized, resolve
from resilin.distributed.group.process_group import ProcessGroup
from resilin.distributed.wire import reduce_op
from resilin.distributed.wire.frames import Kind
from resilin.distributed.wire.reduce_op import Array, PremulSum, ReduceOp
from resilin.distributed.wire.shard_tree import Plan, Subtree
from resilin.distributed.work.work import Work, seconds
from resilin.errors import CollectiveMismatch, UsageError, UsageTypeError


def _run(
    group: ProcessGroup,
    kind: Kind,
    task: Callable[[Any], None],
    inputs: Sequence[Input],
    outputs: Sequence[Output],
    async_op: bool,
    timeout_s: float | None = None,
    results: Sequence[Any] | None = None,
) -> Work | None:
    """`inputs` are loaded before `task`, `outputs` stored after it.

    `results` are the tensors in the Work's future, if not those of `outputs`.
    """

    def whole(call: Any) -> None:
        for one in inputs:
            one.load()
        task(call)
        for output in outputs:
            output.store()

    tensors = [output.tensor for output in outputs] if results is None else list(results)

    def launch(later: bool) -> Work | None:
        return group.run(kind, whole, tensors, async_op=later, timeout_s=timeout_s)

    block = open_block(group)
    return launch(async_op) if block is None else block.add(launch, async_op)


def all_reduce(
    tensor: Any, op: ReduceOp | PremulSum = ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Work | None:
    """Reduce `tensor` elementwise over all ranks of `group`, in place.

    Shape: any; equal on every rank. float16 and bfloat16 are summed in float32 and rounded once.
    Cost:  one host: every element is read once per rank and written once per rank, in place in shared memory;
           hosts: a ring, 2(P-1)/P of the bytes per rank, or log2 P messages below 256 KiB.
    """
    pg = resolve(group, "all_reduce")
    if pg is None:
        return None
    with propagate_errors(pg, Kind.ALL_REDUCE, async_op):
        target = Output(tensor, "all_reduce: tensor")
        known = reduce_op.check(op, target.flat.dtype, "all_reduce")
    block = open_block(pg)
    if block is not None:
        postponed: Work | None = block.add(Reduction(target, op), async_op)
        return postponed
    backend = pg.backend

    def task(call: Any) -> None:
        terms = reduce_op.scaled(op, target.load())
        backend.all_reduce(call, terms, known)
        target.take(terms)

    return pg.run(Kind.ALL_REDUCE, task, [tensor], async_op=async_op)


def reduce_together(pg: ProcessGroup, pack: Sequence[Reduction], async_op: bool) -> Work | None:
    """The all_reduces of a pack as one call over their elements in a row."""
    flats = [call.target.flat for call in pack]
    known = reduce_op.check(pack[0].op, flats[0].dtype, "all_reduce")
    backend = pg.backend

    def task(call: Any) -> None:
        if len(pack) > 1:
            call.carry([flat.shape for flat in flats])
        terms = pack[0].terms() if len(pack) == 1 else buffer_of([one.terms() for one in pack])
        try:
            backend.all_reduce(call, terms, known)
        except CollectiveMismatch as error:
            if len(pack) == 1 or isinstance(error, Refused):
                raise
            shapes = ", ".join(str(list(flat.shape)) for flat in flats)
            raise CollectiveMismatch(f"{error}; here {len(pack)} tensors are reduced together: {shapes}") from None
        parts = [terms] if len(pack) == 1 else parts_of(terms, flats)
        for one, part in zip(pack, parts, strict=True):
            one.target.take(part)

    return pg.run(Kind.ALL_REDUCE, task, [call.target.tensor for call in pack], async_op=async_op)


def tree_all_reduce(
    parts: dict[Subtree, Any], out: Any, plan: Plan, group: Any = None, async_op: bool = False
) -> Work | None:
    """Sum all ranks' partial results into `out` along `plan`'s tree: the bits do not depend on the world size.

    `parts`: this rank's partial sums, one per subtree of `plan.subtrees(rank)`, each of the shape and dtype of `out`
    and summed along the same tree. Every node is left + right, rounded to the dtype.
    """
    pg = resolve(group, "tree_all_reduce")
    if pg is None:
        return None
    with propagate_errors(pg, Kind.TREE_ALL_REDUCE, async_op):
        if not isinstance(plan, Plan) or not isinstance(parts, dict):
            raise UsageTypeError(
                f"tree_all_reduce: expected a dict of parts and a Plan, got {parts!r:.80}, {plan!r:.80}"
            )
        if plan.world_size != pg.size() or set(parts) != set(plan.subtrees(pg.rank())):
            raise UsageError(
                f"tree_all_reduce: rank {pg.rank()} of {pg.size()} must bring {plan.subtrees(pg.rank())} of a plan for "
                f"{pg.size()} ranks; got {list(parts)!r:.200} of a plan for {plan.world_size}"
            )
        target = Output(out, "tree_all_reduce: out")
        flat = target.flat
        reduce_op.check(ReduceOp.SUM, flat.dtype, "tree_all_reduce")
        inputs = {node: Input(part, f"tree_all_reduce: parts[{node}]") for node, part in sorted(parts.items())}
        arrays = {node: part.flat for node, part in inputs.items()}
        same_layout(list(arrays.values()), flat, len(arrays), "tree_all_reduce: parts")
    backend = pg.backend

    def task(call: Any) -> None:
        if plan.runs is not None:  # all ranks' are compared: each sums as its own say
            call.carry([(run.start, run.stop) for run in plan.runs])
        backend.tree_all_reduce(call, arrays, flat, plan)

    return _run(pg, Kind.TREE_ALL_REDUCE, task, list(inputs.values()), [target], async_op)


def broadcast(
    tensor: Any, src: int | None = None, group: Any = None, async_op: bool = False, group_src: int | None = None
) -> Work | None:
    """Copy `tensor` of rank `src`, which is only read there, into `tensor` of every rank.

    Shape: any; equal on every rank.
    """
    pg = resolve(group, "broadcast")
    if pg is None:
        return None
    with propagate_errors(pg, Kind.BROADCAST, async_op):
        root = root_of(pg, src, group_src, "broadcast: src")
        inputs = [Input(tensor, "broadcast: tensor")] if root == pg.rank() else []
        outputs = [] if inputs else [Output(tensor, "broadcast: tensor")]
        flat = [*inputs, *outputs][0].flat
    backend = pg.backend

    def task(call: Any) -> None:
        backend.broadcast(call, flat, root)

    return _run(pg, Kind.BROADCAST, task, inputs, outputs, async_op, results=[tensor])


def reduce(
    tensor: Any,
    dst: int | None = None,
    op: ReduceOp | PremulSum = ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """Reduce `tensor` over all ranks into `tensor` of rank `dst`; other ranks' tensors stay as they are."""
    pg = resolve(group, "reduce")
    if pg is None:
        return None
    with propagate_errors(pg, Kind.REDUCE, async_op):
        root = root_of(pg, dst, group_dst, "reduce: dst")
        target = Output(tensor, "reduce: tensor")
        known = reduce_op.check(op, target.flat.dtype, "reduce")
    backend = pg.backend

    def task(call: Any) -> None:
        terms = reduce_op.scaled(op, target.load())
        backend.reduce(call, terms, known, root)
        if root == pg.rank():
            target.take(terms)

    return _run(pg, Kind.REDUCE, task, [], [], async_op, results=[tensor])


def all_gather(tensor_list: Sequence[Any], tensor: Any, group: Any = None, async_op: bool = False) -> Work | None:
    """`tensor_list[r] = tensor of rank r` on every rank. Shape: equal on every rank."""
    pg = resolve(group, "all_gather")
    if pg is None:
        return None
    with propagate_errors(pg, Kind.ALL_GATHER, async_op):
        launch = gathering(pg, tensor_list, tensor, "all_gather: tensor_list", "all_gather: tensor")
    return launch(async_op)


def gathering(pg: ProcessGroup, tensor_list: Sequence[Any], tensor: Any, into: str, of: str) -> Launch:
    """An all_gather whose arguments, named `into` and `of` in errors, are checked, for when it is to start."""
    source, targets = Input(tensor, of), outputs_of(tensor_list, into)
    array = source.flat
    same_layout([t.flat for t in targets], array, pg.size(), into)
    flats = shaped([t.flat for t in targets], array)
    backend = pg.backend

    def task(call: Any) -> None:
        backend.all_gather(call, array, flats)

    return lambda async_op: _run(pg, Kind.ALL_GATHER, task, [source], targets, async_op)


def all_gather_into_tensor(
    output_tensor: Any, input_tensor: Any, group: Any = None, async_op: bool = False
) -> Work | None:
    """Concatenate (or stack) every rank's `input_tensor` in rank order into `output_tensor` of P times its size."""
    pg = resolve(group, "all_gather_into_tensor")
    if pg is None:
        return None
    with propagate_errors(pg, Kind.ALL_GATHER, async_op):
        source = Input(input_tensor, "all_gather_into_tensor: input_tensor")
        target = Output(output_tensor, "all_gather_into_tensor: output_tensor")
        rows = rows_of(target.flat, source.flat, pg.size(), "all_gather_into_tensor: output_tensor")
    backend = pg.backend

    def task(call: Any) -> None:
        backend.all_gather(call, source.flat, rows)

    return _run(pg, Kind.ALL_GATHER, task, [source], [target], async_op)


all_gather_single = all_gather_into_tensor  # PyTorch's newer name


def reduce_scatter(
    output: Any,
    input_list: Sequence[Any],
    op: ReduceOp | PremulSum = ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
) -> Work | None:
    """`output = op over ranks of input_list[this rank]`. Shape: all tensors equal, on every rank."""
    pg = resolve(group, "reduce_scatter")
    if pg is None:
        return None
    with propagate_errors(pg, Kind.REDUCE_SCATTER, async_op):
        target = Output(output, "reduce_scatter: output")
        inputs = inputs_of(input_list, "reduce_scatter: input_list")
        arrays = [one.flat for one in inputs]
        same_layout(arrays, target.flat, pg.size(), "reduce_scatter: input_list")
        known, parts = reduce_op.check(op, target.flat.dtype, "reduce_scatter"), shaped(arrays, target.flat)
    return _reduce_scatter(pg, target, inputs, parts, op, known, async_op)


def reduce_scatter_tensor(
    output: Any, input: Any, op: ReduceOp | PremulSum = ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Work | None:
    """Reduce and scatter the P inputs concatenated (or stacked) in one tensor of P times the output's size."""
    pg = resolve(group, "reduce_scatter_tensor")
    if pg is None:
        return None
    with propagate_errors(pg, Kind.REDUCE_SCATTER, async_op):
        target = Output(output, "reduce_scatter_tensor: output")
        whole = Input(input, "reduce_scatter_tensor: input")
        known = reduce_op.check(op, target.flat.dtype, "reduce_scatter_tensor")
        parts = rows_of(whole.flat, target.flat, pg.size(), "reduce_scatter_tensor: input")
    return _reduce_scatter(pg, target, [whole], parts, op, known, async_op)


def _reduce_scatter(
    pg: ProcessGroup,
    target: Output,
    inputs: list[Input],
    parts: list[Array],
    op: ReduceOp | PremulSum,
    known: ReduceOp,
    async_op: bool,
) -> Work | None:
    backend, flat = pg.backend, target.flat

    def task(call: Any) -> None:
        backend.reduce_scatter(call, [reduce_op.scaled(op, part) for part in parts], flat, known)

    return _run(pg, Kind.REDUCE_SCATTER, task, inputs, [target], async_op)


reduce_scatter_single = reduce_scatter_tensor  # PyTorch's newer name


def gather_single(
    input_tensor: Any,
    output_tensor: Any = None,
    dst: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """Gather into one tensor of P times the size, concatenated or stacked in rank order, on `dst` (default 0)."""
    pg = resolve(group, "gather_single")
    if pg is None:
        return None
    with propagate_errors(pg, Kind.GATHER, async_op):
        root = 0 if dst is None and group_dst is None else root_of(pg, dst, group_dst, "gather_single: dst")
        source = Input(input_tensor, "gather_single: input_tensor")
        if (output_tensor is None) == (root == pg.rank()):
            raise UsageError(
                f"gather_single: output_tensor must be given on the destination rank {root} and only there"
            )
        targets = [] if output_tensor is None else [Output(output_tensor, "gather_single: output_tensor")]
        rows = [rows_of(target.flat, source.flat, pg.size(), "gather_single: output_tensor") for target in targets]
    return _gather(pg, source, rows[0] if rows else None, root, targets, async_op)


def gather(
    tensor: Any,
    gather_list: Sequence[Any] | None = None,
    dst: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """`gather_list[r] = tensor of rank r` on rank `dst` (default 0); elsewhere gather_list must be None."""
    pg = resolve(group, "gather")
    if pg is None:
        return None
    with propagate_errors(pg, Kind.GATHER, async_op):
        root = 0 if dst is None and group_dst is None else root_of(pg, dst, group_dst, "gather: dst")
        source = Input(tensor, "gather: tensor")
        if given(gather_list, "gather: gather_list") != (root == pg.rank()):
            raise UsageError(f"gather: gather_list must be given on the destination rank {root} and only there")
        targets, flats = outputs_of(gather_list or [], "gather: gather_list"), None
        if targets:
            same_layout([t.flat for t in targets], source.flat, pg.size(), "gather: gather_list")
            flats = shaped([t.flat for t in targets], source.flat)
    return _gather(pg, source, flats, root, targets, async_op)


def _gather(
    pg: ProcessGroup, source: Input, flats: list[Array] | None, root: int, targets: list[Output], async_op: bool
) -> Work | None:
    backend = pg.backend

    def task(call: Any) -> None:
        backend.gather(call, source.flat, flats, root)

    return _run(pg, Kind.GATHER, task, [source], targets, async_op)


def scatter(
    tensor: Any,
    scatter_list: Sequence[Any] | None = None,
    src: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """`tensor = scatter_list[this rank]` of rank `src` (default 0); elsewhere scatter_list must be None."""
    pg = resolve(group, "scatter")
    if pg is None:
        return None
    with propagate_errors(pg, Kind.SCATTER, async_op):
        root = 0 if src is None and group_src is None else root_of(pg, src, group_src, "scatter: src")
        target = Output(tensor, "scatter: tensor")
        flat, inputs, parts = target.flat, list[Input](), None
        if given(scatter_list, "scatter: scatter_list") != (root == pg.rank()):
            raise UsageError(f"scatter: scatter_list must be given on the source rank {root} and only there")
        if scatter_list:
            inputs = inputs_of(scatter_list, "scatter: scatter_list")
            same_layout([one.flat for one in inputs], flat, pg.size(), "scatter: scatter_list")
            parts = shaped([one.flat for one in inputs], flat)
    backend = pg.backend
    return _run(pg, Kind.SCATTER, lambda call: backend.scatter(call, parts, flat, root), inputs, [target], async_op)


def all_to_all(
    output_tensor_list: Sequence[Any], input_tensor_list: Sequence[Any], group: Any = None, async_op: bool = False
) -> Work | None:
    """`output_tensor_list[r] = input_tensor_list[this rank] of rank r`; sizes may differ from pair to pair.

    All tensors have one dtype, on every rank.
    """
    pg = resolve(group, "all_to_all")
    if pg is None:
        return None
    with propagate_errors(pg, Kind.ALL_TO_ALL, async_op):
        inputs = inputs_of(input_tensor_list, "all_to_all: input_tensor_list")
        parts = [one.flat.reshape(-1) for one in inputs]
        targets = outputs_of(output_tensor_list, "all_to_all: output_tensor_list")
        flats = [t.flat.reshape(-1) for t in targets]
        if len(inputs) != pg.size() or len(flats) != pg.size():
            raise UsageError(f"all_to_all: expected {pg.size()} inputs and outputs, got {len(inputs)} and {len(flats)}")
        one_dtype([*parts, *flats], "all_to_all")
    backend = pg.backend
    return _run(pg, Kind.ALL_TO_ALL, lambda call: backend.all_to_all(call, parts, flats), inputs, targets, async_op)


def all_to_all_single(
    output: Any,
    input: Any,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Any = None,
    async_op: bool = False,
) -> Work | None:
    """Exchange the parts of tensors cut along the first dimension: evenly, or by the given sizes (in rows).

    Rows of `input` have one shape, on every rank.
    """
    pg = resolve(group, "all_to_all_single")
    if pg is None:
        return None
    with propagate_errors(pg, Kind.ALL_TO_ALL, async_op):
        target, whole = Output(output, "all_to_all_single: output"), Input(input, "all_to_all_single: input")
        inputs = cut(whole.flat, input_split_sizes, pg.size(), "all_to_all_single: input")
        outputs = cut(target.flat, output_split_sizes, pg.size(), "all_to_all_single: output")
        one_dtype([whole.flat, target.flat], "all_to_all_single")
    backend = pg.backend

    def task(call: Any) -> None:
        backend.all_to_all(call, inputs, outputs)

    return _run(pg, Kind.ALL_TO_ALL, task, [whole], [target], async_op)


def barrier(
    group: Any = None, async_op: bool = False, device_ids: Any = None, timeout: timedelta | float | None = None
) -> Work | None:
    """Return when every rank of `group` has called it. In a `_coalescing_manager` block with `async_op` only."""
    pg = resolve(group, "barrier") if async_op else at_once(group, "barrier")
    if pg is None:
        return None
    with propagate_errors(pg, Kind.BARRIER, async_op):
        limit = None if timeout is None else seconds(timeout, "barrier: timeout")
    backend = pg.backend
    return _run(pg, Kind.BARRIER, backend.barrier, [], [], async_op, limit)


def _place_in(group: Any) -> tuple[int, int]:
    return (get_rank(group), get_world_size(group)) if group is not None or is_initialized() else (0, 1)


def _sum_in_place(tensor: Any, group: Any) -> None:
    all_reduce(tensor, group=at_once(group, "SyncBatchNorm"))


ranks.register(_place_in, _sum_in_place)  # for modules below dist: nn.SyncBatchNorm
