"""Cases of what moves without being changed, of overlapping memory, and of the shard tree."""

from __future__ import annotations

import numpy as np
import pytest

import resilin.distributed as dist
from resilin.distributed.wire import shard_tree
from resilin.distributed.wire.reduce_op import Array, ReduceOp
from resilin.errors import UsageError
from resilin.testing.check_group.cases import SIZES, case
from resilin.testing.rank_data import data, expected, same


@case
def broadcast_copies_the_root(rank: int, size: int) -> None:
    for count in SIZES:
        for root in range(size):
            array = data(rank, count, np.dtype(np.int32))
            dist.broadcast(array, src=root)
            same(array, data(root, count, np.dtype(np.int32)))


@case
def all_gather_fills_lists_and_tensors(rank: int, size: int) -> None:
    dtype = np.dtype(np.int64)
    for count in SIZES:
        outputs = [np.zeros(count, dtype) for _ in range(size)]
        dist.all_gather(outputs, data(rank, count, dtype))
        whole = np.zeros(size * count, dtype)
        dist.all_gather_into_tensor(whole, data(rank, count, dtype))
        for r in range(size):
            same(outputs[r], data(r, count, dtype))
            same(whole[r * count : (r + 1) * count], data(r, count, dtype))


@case
def gather_and_scatter_use_the_root(rank: int, size: int) -> None:
    dtype = np.dtype(np.float32)
    for count in SIZES:
        for root in {0, size - 1}:
            lists = [np.zeros(count, dtype) for _ in range(size)] if rank == root else None
            dist.gather(data(rank, count, dtype), lists, dst=root)
            for r, got in enumerate(lists or ()):
                same(got, data(r, count, dtype))
            parts = [data(10 + r, count, dtype) for r in range(size)] if rank == root else None
            output = np.zeros(count, dtype)
            dist.scatter(output, parts, src=root)
            same(output, data(10 + rank, count, dtype))


@case
def the_newer_names_move_whole_tensors(rank: int, size: int) -> None:
    dtype = np.dtype(np.float32)
    whole, part = np.zeros((size, 3), dtype), np.zeros(3, dtype)
    dist.all_gather_single(whole, data(rank, 3, dtype))
    same(whole, np.stack([data(r, 3, dtype) for r in range(size)]))
    dist.reduce_scatter_single(part, whole)
    same(part, whole[rank] * size)
    for root in {0, size - 1}:
        rows = np.zeros(size * 3, dtype) if rank == root else None
        dist.gather_single(data(rank, 3, dtype), rows, dst=root)
        if rows is not None:
            same(rows, whole.reshape(-1))
    with pytest.raises(UsageError, match="only there"):
        dist.gather_single(part, None if rank == 0 else whole)


@case
def lists_may_be_empty_where_nothing_is_received(rank: int, size: int) -> None:
    output = np.zeros(1)
    dist.scatter(output, [np.array([float(r)]) for r in range(size)] if rank == 0 else [], src=0)
    assert output[0] == rank
    boxes = [np.zeros(1) for _ in range(size)] if rank == 0 else []
    dist.gather(output, boxes, group_dst=0)
    assert [box[0] for box in boxes] == (list(range(size)) if rank == 0 else [])


@case
def all_to_all_exchanges_even_and_uneven_parts(rank: int, size: int) -> None:
    dtype = np.dtype(np.float32)
    for count in (0, 1, 40, 9000):
        rows = np.zeros((size * count, 2), dtype)
        dist.all_to_all_single(rows, np.full((size * count, 2), rank, dtype))
        same(rows, np.repeat(np.arange(size), count * 2).reshape(-1, 2).astype(dtype))
    sends = [rank + r for r in range(size)]
    receives = [r + rank for r in range(size)]
    output = np.zeros(sum(receives), dtype)
    dist.all_to_all_single(output, np.full(sum(sends), rank, dtype), receives, sends)
    same(output, np.repeat(np.arange(size), receives).astype(dtype))
    outputs = [np.zeros(r + rank, dtype) for r in range(size)]
    dist.all_to_all(outputs, [np.full(rank + r, rank, dtype) for r in range(size)])
    for r in range(size):
        same(outputs[r], np.full(r + rank, r, dtype))


@case
def tensors_may_overlap_as_outputs_and_inputs(rank: int, size: int) -> None:
    dtype = np.dtype(np.float32)
    after = (rank + 1) % size
    for count in (7, 70_001):

        def own(r: int, n: int = count) -> Array:
            return data(r, (size, n), dtype)

        def mine_of(r: int, n: int = count) -> Array:
            return np.stack([data(s, (size, n), dtype)[r] for s in range(size)])

        whole = own(rank)
        dist.all_to_all(list(whole), list(whole))
        same(whole, mine_of(rank))
        whole = own(rank)
        dist.all_to_all_single(whole, whole)
        same(whole, mine_of(rank))
        for place in (rank, after):
            whole = own(rank)
            dist.reduce_scatter(whole[place], list(whole))
            same(whole[place], expected(ReduceOp.SUM, list(mine_of(rank))))
            whole = own(rank)
            dist.all_gather(list(whole), whole[place])
            same(whole, np.stack([own(r)[(r + place - rank) % size] for r in range(size)]))
            whole = own(rank)
            dist.gather(whole[place], list(whole) if rank == 0 else None, dst=0)
            same(whole, np.stack([own(r)[(r + place - rank) % size] for r in range(size)]) if rank == 0 else own(rank))
            whole = own(rank)
            dist.scatter(whole[place], list(whole) if rank == 0 else None, src=0)
            same(whole[place], own(0)[rank])
        memory = np.append(own(rank), np.float32(0))
        shifted = memory[1 : count + 1]
        dist.reduce_scatter_tensor(shifted, memory[:-1])
        same(shifted, expected(ReduceOp.SUM, list(mine_of(rank))))


@case
def a_sum_along_the_tree_may_overlap_its_parts(rank: int, size: int) -> None:
    plan = shard_tree.plan(size, size)
    for count in (7, 70_001):
        for shift in (0, 1):
            memory = np.zeros(count + 1, np.float32)
            part, out = memory[:count], memory[shift : count + shift]
            part[...] = data(rank, count, part.dtype)
            dist.tree_all_reduce(dict.fromkeys(plan.subtrees(rank), part), out, plan)
            same(out, expected(ReduceOp.SUM, [data(r, count, part.dtype) for r in range(size)]))


@case
def the_shard_tree_gives_the_same_bits_as_one_process(rank: int, size: int) -> None:
    for shards in (1, 2, 3, 5, 8, 9):
        for count, kind in ((3, np.float32), (3000, np.float32), (50, np.float16)):
            values = [np.random.default_rng([shards, s]).standard_normal(count).astype(kind) for s in range(shards)]

            def total(node: shard_tree.Subtree, values: list[Array] = values) -> Array:
                children = node.children()
                return values[node.start] if children is None else total(children[0]) + total(children[1])

            plan = shard_tree.plan(shards, size)
            out = np.zeros(count, kind)
            dist.tree_all_reduce({node: total(node) for node in plan.subtrees(rank)}, out, plan)
            same(out, total(shard_tree.Subtree(0, shards)))
