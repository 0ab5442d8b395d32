"""Cases of several collectives in one go."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import resilin.distributed as dist
from resilin.distributed.wire.reduce_op import DTYPES, Array, ReduceOp
from resilin.errors import CollectiveMismatch, UsageError
from resilin.testing.check_group.cases import case
from resilin.testing.rank_data import data, defined, expected, same

_SHAPES: tuple[tuple[int, ...], ...] = ((3,), (0,), (2, 5), (), (33,), (1, 4, 2), (5000,), (70001,), (8,))


def _noise(rank: int, dtype: Any = np.float32) -> list[Array]:
    random = np.random.default_rng(rank)
    return [np.asarray(random.standard_normal(shape), dtype) for shape in _SHAPES]


@case
def tensors_of_one_block_are_reduced_with_the_bits_of_separate_calls(rank: int, size: int) -> None:
    for kind in (np.float32, np.float16, np.complex64):
        for op in (ReduceOp.SUM, ReduceOp.AVG):
            alone, together, listed = (_noise(rank, kind) for _ in range(3))
            for array in alone:
                dist.all_reduce(array, op)
            with dist._coalescing_manager():
                for array in together:
                    dist.all_reduce(array, op)
            dist.all_reduce_coalesced(listed, op)
            for one, two, three in zip(alone, together, listed, strict=True):
                assert one.tobytes() == two.tobytes() == three.tobytes()


@case
def a_block_takes_any_mix_of_collectives_in_their_order(rank: int, size: int) -> None:
    count = 40
    twice, shared = np.ones(count, np.float32), np.ones(2 * count)
    box = np.array([rank])
    whole, part = np.zeros(size * count, np.int32), np.zeros(count, np.float32)
    strided = data(rank, (6, 4), np.dtype(np.float64)).T
    with dist._coalescing_manager():
        dist.all_reduce(twice)
        dist.all_reduce(twice)  # of what the call before made
        dist.all_reduce(shared[:count], ReduceOp.MAX)
        dist.all_reduce(shared[count:], ReduceOp.SUM)
        dist.broadcast(box, src=size - 1)
        dist.all_gather_into_tensor(whole, data(rank, count, whole.dtype))
        dist.reduce_scatter_tensor(part, np.repeat(np.arange(size, dtype=np.float32), count))
        dist.all_reduce(strided)
        assert (twice == 1).all()  # nothing has happened yet
    assert (twice == size**2).all()
    assert shared.tolist() == [1.0] * count + [float(size)] * count
    assert box[0] == size - 1
    same(whole, np.concatenate([data(r, count, whole.dtype) for r in range(size)]))
    assert (part == rank * size).all()
    same(strided, expected(ReduceOp.SUM, [data(r, (6, 4), strided.dtype).T for r in range(size)]))


@case
def an_asynchronous_block_is_waited_for_as_a_whole(rank: int, size: int) -> None:
    arrays = [np.full(n, rank, np.float32) for n in (4, 9000, 5, 60_000)]
    with dist._coalescing_manager(async_ops=True) as block:
        works: list[Any] = [dist.all_reduce(array, async_op=True) for array in arrays]
        with pytest.raises(UsageError, match="wait for the manager"):
            works[0].wait()
        with pytest.raises(UsageError, match="do not nest"), dist._coalescing_manager():
            pass
    block.wait()
    assert all((array == sum(range(size))).all() for array in arrays)
    assert len(block.works) == 1
    assert block.works[0].is_success()
    with dist._coalescing_manager(async_ops=True) as empty:
        pass
    empty.wait()
    future = dist.all_reduce_coalesced(arrays, ReduceOp.MAX, async_op=True)
    assert future is not None
    assert all(got is array for got, array in zip(future.wait(), arrays, strict=True))


@case
def a_block_that_ends_by_an_error_starts_nothing(rank: int, size: int) -> None:
    array = np.ones(5, np.float32)
    with contextlib.suppress(KeyError), dist._coalescing_manager():
        dist.all_reduce(array)
        raise KeyError
    assert (array == 1).all()
    dist.all_reduce(array)
    assert (array == size).all()


@case
def blocks_with_other_shapes_are_a_mismatch_on_all_ranks(rank: int, size: int) -> None:
    if size < 2:
        return
    shapes = [(2, 3), (5,), (4,)] if rank == 0 else [(3, 2), (4,), (5,)]  # as many elements in all
    arrays = [np.ones(shape, np.int32) for shape in shapes]
    with pytest.raises(CollectiveMismatch, match="3 tensors are reduced together") as caught:
        dist.all_reduce_coalesced(arrays)
    assert str(list(shapes[0])) in str(caught.value)
    assert all((array == 1).all() for array in arrays)
    dist.barrier()


@case
def lists_of_tensors_are_gathered_from_every_rank(rank: int, size: int) -> None:
    kinds: list[np.dtype[Any]] = [np.dtype(np.float32), np.dtype(np.int64), np.dtype(np.bool_)]
    inputs = [data(rank, shape, kind) for shape, kind in zip(((2, 3), (0,), (7,)), kinds, strict=True)]
    for async_op in (False, True):
        outputs = [[np.zeros_like(array) for array in inputs] for _ in range(size)]
        done = dist.all_gather_coalesced(outputs, inputs, async_op=async_op)
        assert (done is None) != async_op
        if done is not None:
            assert done.wait() == outputs
        for r, row in enumerate(outputs):
            for got, mine in zip(row, inputs, strict=True):
                same(got, data(r, mine.shape, mine.dtype))
    with pytest.raises(UsageError, match=f"expected {size} output lists"):
        dist.all_gather_coalesced([[] for _ in range(size)], inputs)


@case
def lists_of_tensors_must_hold_tensors_of_one_dtype(rank: int, size: int) -> None:
    with pytest.raises(UsageError, match="one dtype"):
        dist.all_reduce_coalesced([np.ones(1), np.ones(1, np.float32)])
    with pytest.raises(UsageError, match="empty list"):
        dist.all_reduce_coalesced([])
    not_a_list: Any = np.ones(3)
    with pytest.raises(TypeError, match="expected a list of tensors"):
        dist.all_reduce_coalesced(not_a_list)


@case
def premultiplied_sums_take_a_factor_of_each_rank(rank: int, size: int) -> None:
    for dtype in DTYPES:
        op = dist._make_nccl_premul_sum(rank + 1)
        if not defined(ReduceOp.AVG, dtype) or dtype.kind in "ui":
            with pytest.raises(UsageError, match="PREMUL_SUM needs"):
                dist.all_reduce(np.ones(3, dtype), op)
            continue
        parts = [(data(r, (size, 4), dtype) * (r + 1)).astype(dtype) for r in range(size)]
        total = expected(ReduceOp.SUM, parts)
        array = data(rank, (size, 4), dtype)
        dist.all_reduce(array, op)
        same(array, total)
        array = data(rank, (size, 4), dtype)
        dist.reduce(array, dst=0, op=op)
        same(array, total if rank == 0 else data(rank, (size, 4), dtype))
        row = np.zeros(4, dtype)
        dist.reduce_scatter_tensor(row, data(rank, (size, 4), dtype), op)
        same(row, total[rank])
        dist.reduce_scatter(row, list(data(rank, (size, 4), dtype)), op)
        same(row, total[rank])
        for shape in ((), (0,), (1, 1)):
            array = data(rank, shape, dtype)
            dist.all_reduce(array, op)
            same(array, expected(ReduceOp.SUM, [(data(r, shape, dtype) * (r + 1)).astype(dtype) for r in range(size)]))
        arrays = [data(rank, 4, dtype), data(rank, 6, dtype)]
        dist.all_reduce_coalesced(arrays, dist._make_nccl_premul_sum(0.5))
        same(arrays[1], expected(ReduceOp.SUM, [(data(r, 6, dtype) * 0.5).astype(dtype) for r in range(size)]))
    with pytest.raises(UsageError, match="needs its factor"):
        dist.all_reduce(np.ones(3), ReduceOp.PREMUL_SUM)


@case
def what_is_needed_at_once_is_refused_in_a_block_before_anything_is_sent(rank: int, size: int) -> None:
    array, box = np.ones(5, np.float32), [None] * size
    peer = (rank + 1) % size
    calls: dict[str, Callable[[], Any]] = {
        "all_gather_object": lambda: dist.all_gather_object(box, rank),
        "gather_object": lambda: dist.gather_object(rank, box if rank == 0 else None),
        "broadcast_object_list": lambda: dist.broadcast_object_list([rank], src=0),
        "scatter_object_list": lambda: dist.scatter_object_list(box, list(range(size)), src=0),
        "send_object_list": lambda: dist.send_object_list([rank], peer),
        "recv_object_list": lambda: dist.recv_object_list(box, peer),
        "send": lambda: dist.send(array, peer),
        "recv": lambda: dist.recv(array, peer),
        "barrier": dist.barrier,
        "monitored_barrier": dist.monitored_barrier,
    }
    for async_ops in (False, True):
        with dist._coalescing_manager(async_ops=async_ops) as block:
            dist.all_reduce(array)
            for name, call in calls.items():
                with pytest.raises(UsageError, match=f"^{name}, .*result is needed at once"):
                    call()
        block.wait()
    assert (array == size**2).all()  # the calls of the blocks were made all the same
    dist.all_gather_object(box, rank)
    assert box == list(range(size))


@case
def lists_in_a_block_take_their_turn(rank: int, size: int) -> None:
    array, rows = np.ones(3, np.float32), [[np.zeros(3, np.float32)] for _ in range(size)]
    with dist._coalescing_manager(async_ops=True) as block:
        dist.all_reduce(array)
        dist.all_reduce_coalesced([array])
        later: list[Any] = [dist.all_gather_coalesced(rows, [array], async_op=True)]
        later.append(dist.all_reduce_coalesced([array], async_op=True))
        later.append(dist.barrier(async_op=True))
        for one in later:
            with pytest.raises(UsageError, match="wait for the manager"):
                one.wait()
    block.wait()
    assert (array == size**3).all()
    assert all((row[0] == size**2).all() for row in rows)


@case
def messages_in_a_block_are_waited_for_with_it(rank: int, size: int) -> None:
    if size < 2:
        return
    outgoing, incoming, array = np.full(7, rank), np.zeros(7, np.int64), np.ones(3)
    with dist._coalescing_manager(async_ops=True) as block:
        dist.irecv(incoming, (rank - 1) % size)
        dist.isend(outgoing, (rank + 1) % size)
        dist.all_reduce(array)
    block.wait()
    assert (incoming == (rank - 1) % size).all()
    assert (array == size).all()
