"""Blocks of collectives: what becomes one call, and how faults end them. Results: `check_group/coalescing.py`."""

import contextlib
import threading

import numpy as np
import pytest

from resilin import distributed as dist
from resilin.distributed.group.arguments import Output
from resilin.distributed.group.coalescing_buffer import PACK_BYTES, Reduction, buffer_of, packs, parts_of
from resilin.distributed.wire.frames import stamped
from resilin.distributed.wire.reduce_op import _make_nccl_premul_sum as premul
from resilin.errors import CollectiveMismatch, CollectiveTimeout, GroupAborted, PeerLost, UsageError
from resilin.testing.patience import PATIENCE_S
from resilin.testing.ranks import TRANSPORTS, run_ranks


class Group:
    """What `packs` asks of a group."""

    def __init__(self, size=2, one_path=False):
        self.size = lambda: size
        self.backend = self
        self.one_path = one_path


def reductions(*arrays, op=dist.ReduceOp.SUM):
    return [Reduction(Output(array, "tensor"), op) for array in arrays]


def sizes(calls, group=None):
    return [len(pack) if isinstance(pack, list) else "call" for pack in packs(calls, group or Group())]


def test_runs_of_small_tensors_of_one_dtype_and_op_become_one_call():
    f, g, d = np.ones(3, np.float32), np.ones((2, 2), np.float32), np.ones(3)
    assert sizes(reductions(f, g)) == [2]
    assert sizes(reductions(f, d, g)) == [1, 1, 1]
    assert sizes([*reductions(f), *reductions(g, op=dist.ReduceOp.MAX)]) == [1, 1]
    assert sizes([*reductions(f), lambda later: None, *reductions(g)]) == [1, "call", 1]
    assert sizes([]) == []


def test_a_pack_is_of_limited_size():
    half = PACK_BYTES // 8
    arrays = [np.ones(half, np.float32) for _ in range(3)]
    assert sizes(reductions(*arrays)) == [2, 1]
    assert sizes(reductions(np.ones(PACK_BYTES), np.ones(1), np.ones(1))) == [1, 2]


def test_tensors_that_share_memory_keep_their_order():
    whole = np.ones(10, np.float32)
    assert sizes(reductions(whole[5:], whole[:5])) == [2]
    assert sizes(reductions(whole[:6], whole[5:])) == [1, 1]
    assert sizes(reductions(whole[8:], whole[:2], whole[1:3])) == [2, 1]
    assert sizes(reductions(whole, whole)) == [1, 1]
    assert sizes(reductions(whole[::2], whole[::3])) == [1, 1]


def test_tensors_that_lie_between_one_another_are_one_call_and_those_with_an_element_in_common_are_not():
    matrix = np.zeros((4, 6), np.float32)
    columns = [matrix[:, i] for i in range(6)]
    assert sizes(reductions(*columns)) == [6]
    assert sizes(reductions(*reversed(columns), np.zeros(3, np.float32))) == [7]
    assert sizes(reductions(columns[0], columns[2], matrix[1, 1:3])) == [2, 1]
    assert sizes(reductions(columns[0], columns[2], matrix[1, 3:5])) == [3]
    assert sizes(reductions(matrix[::2], matrix[1::2], matrix[3])) == [2, 1]
    empty = matrix[2:2]
    assert sizes(reductions(matrix, empty, empty)) == [3]


def test_more_than_two_ranks_pack_only_where_the_order_of_sums_is_one_everywhere():
    floats, integers = [np.ones(2), np.ones(3)], [np.ones(2, np.int32), np.ones(3, np.int32)]
    assert sizes(reductions(*floats), Group(3)) == [1, 1]
    assert sizes(reductions(*floats), Group(3, one_path=True)) == [2]
    assert sizes(reductions(*integers), Group(3)) == [2]
    assert sizes(reductions(*floats, op=dist.ReduceOp.MAX), Group(3)) == [2]


@pytest.mark.parametrize("shapes", [[(3,), (2, 2)], [(0,), ()], [(0,)], [(5000,), (1, 7), (3,)]])
def test_a_buffer_gives_back_what_was_put_into_it(shapes):
    arrays = [np.random.default_rng(i).standard_normal(shape) for i, shape in enumerate(shapes)]
    for part, array in zip(parts_of(buffer_of(arrays), arrays), arrays, strict=True):
        np.testing.assert_array_equal(part, array)


def test_calls_of_other_layouts_have_other_numbers():
    layouts = [[(2, 3), (4,)], [(3, 2), (4,)], [(4,), (2, 3)], [(10,)], [(5,), (5,)]]
    assert len({7, *(stamped(7, layout) for layout in layouts)}) == 1 + len(layouts)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_dead_rank_ends_the_block_of_every_survivor_and_is_named(transport):
    connected = threading.Barrier(3)  # a death while others still connect is another test's

    def step(rank):
        connected.wait(PATIENCE_S)
        if rank == 1:
            dist.default_group().vanish()
            return set()
        with pytest.raises(PeerLost) as caught:
            reduce_in_a_block()
        return set(caught.value.ranks)

    assert run_ranks(3, step, transport=transport, abort=False).results() == [{1}, set(), {1}]


def reduce_in_a_block():
    arrays = [np.ones(5, np.float32) for _ in range(4)]
    with dist._coalescing_manager(async_ops=True) as block:
        for array in arrays:
            dist.all_reduce(array)
        dist.broadcast(arrays[0], 0)
    block.wait()


def test_abort_returns_a_block_and_a_wait_of_its_own_limit_says_what_it_was_for():
    done = threading.Event()

    def step(rank, end):
        if rank == 1:
            assert done.wait(PATIENCE_S)
            return ""
        try:
            with dist._coalescing_manager(async_ops=True) as block:
                dist.all_reduce(np.ones(5))
                dist.broadcast(np.ones(5), 0)
            with pytest.raises((GroupAborted, CollectiveTimeout)) as caught:
                end(block)
            with pytest.raises((GroupAborted, CollectiveTimeout)):
                dist.barrier()
            return str(caught.value)
        finally:
            done.set()

    def abort(block):
        dist.default_group().abort()
        block.wait()

    assert "abort() was called" in run_ranks(2, step, abort, abort=False).results()[0]
    done.clear()
    text = run_ranks(2, step, lambda block: block.works[0].wait(0.05), abort=False, timeout_s=2.0).results()[0]
    assert "2 collectives of one block" in text


ROWS = {
    "all_gather_coalesced": (
        lambda: dist.all_gather_coalesced([[np.zeros(3)]], [np.ones(3), np.ones(3)], async_op=True),
        lambda: dist.all_gather_coalesced(
            [[np.zeros(3), np.zeros(3)] for _ in range(2)], [np.ones(3), np.full(3, 200.0)], async_op=True
        ),
    ),
    "all_reduce_coalesced": (
        lambda: dist.all_reduce_coalesced([np.ones(50_000), None], async_op=True),
        lambda: dist.all_reduce_coalesced([np.ones(50_000), np.full(50_000, 200.0)], async_op=True),
    ),
}


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("name", ROWS)
def test_of_a_row_that_one_rank_refuses_no_call_is_made_that_another_one_might_pair_with(name, transport):
    wrong, right = ROWS[name]

    def work(rank):
        if rank == 0:
            with pytest.raises(UsageError):
                wrong()
        else:
            with pytest.raises(UsageError, match=r"all_.* #0, .* rank 0 refused its arguments: all_.*_coalesced: "):
                right().wait()
        for size in (3, 50_000):
            check = np.full(size, rank + 1.0)
            dist.all_reduce(check)
            assert (check == 3).all()
            parts = [np.zeros(size), np.zeros(size)]
            dist.all_gather(parts, np.full(size, rank + 1.0))
            assert [part[0] for part in parts] == [1, 2]

    run_ranks(2, work, transport=transport, timeout_s=2 * PATIENCE_S).results()


def large(count):
    return [np.full(50_000, 10.0 * i) for i in range(count)]


def caught_in_a_block(count):
    with dist._coalescing_manager() as block:
        for array in large(count):
            dist.all_reduce(array)
        with contextlib.suppress(UsageError):
            dist.all_reduce(None)
    block.wait()


def mixed_block(count):
    with dist._coalescing_manager(async_ops=True) as block:
        dist.all_reduce(np.ones(3))
        dist.all_reduce(np.ones(4))
        for array in large(count)[1:]:
            dist.all_reduce(array)
    block.wait()


COUNTED = {
    "all_reduce_coalesced": lambda count: dist.all_reduce_coalesced(large(count)),
    "all_reduce_coalesced async": lambda count: dist.all_reduce_coalesced(large(count), async_op=True).wait(),
    "all_gather_coalesced": lambda count: dist.all_gather_coalesced([large(count), large(count)], large(count)),
    "a block": caught_in_a_block,
    "a block that begins with a pack": mixed_block,
}


@pytest.mark.parametrize("counts", [(2, 1), (1, 3), (3, 2)])
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("name", COUNTED)
def test_ranks_that_make_other_numbers_of_calls_in_one_block_or_list_hear_of_it(name, transport, counts):
    def work(rank):
        with pytest.raises(CollectiveMismatch) as caught:
            COUNTED[name](counts[rank])
        calls = "1 call" if counts[rank] == 1 else f"{counts[rank]} calls"
        assert f"here it is the first of {calls} of one block or list" in str(caught.value)
        after = np.full(50_000, rank + 1.0)
        dist.all_reduce(after)
        assert (after == 3).all()

    run_ranks(2, work, transport=transport, timeout_s=2 * PATIENCE_S).results()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_block_that_is_empty_on_one_rank_does_not_pair_with_what_comes_next(transport):
    def work(rank):
        with pytest.raises(
            CollectiveMismatch, match=r"rank 1 called all_reduce #0 \(the first of 1 in one block or list"
        ):
            if_rank_1_in_a_block(rank)
        after = np.full(3, rank + 1.0)
        dist.all_reduce(after)
        assert (after == 3).all()

    def if_rank_1_in_a_block(rank):
        with dist._coalescing_manager():
            if rank == 1:
                dist.all_reduce(np.ones(3))
        if rank == 0:
            dist.all_reduce(np.ones(3))

    run_ranks(2, work, transport=transport, timeout_s=2 * PATIENCE_S).results()


@pytest.mark.parametrize("of", [0, 1])
def test_a_matrix_that_one_rank_has_in_columns_pairs_with_tensors_of_their_own(of):
    def work(rank):
        matrix = np.arange(24, dtype=np.float32).reshape(4, 6)
        tensors = [matrix[:, i] if rank == of else matrix[:, i].copy() for i in range(6)]
        dist.all_reduce_coalesced(tensors)
        for i, tensor in enumerate(tensors):
            assert tensor.tolist() == [2.0 * (6 * row + i) for row in range(4)]

    run_ranks(2, work).results()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("async_ops", [False, True])
@pytest.mark.parametrize("error", [UsageError, KeyError])
def test_a_block_that_an_error_ends_on_one_rank_is_an_error_on_all(error, async_ops, transport):
    def work(rank):
        with pytest.raises(error) as caught:  # noqa: PT012 - it is the block's end
            with dist._coalescing_manager(async_ops=async_ops) as block:
                dist.all_reduce(np.full(50_000, 10.0))
                if rank == 0 and error is not UsageError:
                    raise error("mine")
                dist.all_reduce(None if rank == 0 else np.full(50_000, 20.0))
            block.wait()
        said = str(caught.value)
        assert rank == 0 or "_coalescing_manager #0 of rank 0 left its block by an error: " in said
        assert (error is UsageError and "expected a tensor" in said) or "mine" in said
        check = np.full(50_000, rank + 1.0)
        dist.all_reduce(check)
        assert (check == 3).all()

    run_ranks(2, work, transport=transport, timeout_s=2 * PATIENCE_S).results()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_block_that_an_interrupt_ends_on_one_rank_aborts_the_group(transport):
    met = threading.Barrier(2)

    def work(rank):
        dist.barrier()  # all have the group
        met.wait(PATIENCE_S)  # and none is in that barrier any more
        with pytest.raises(KeyboardInterrupt if rank == 0 else GroupAborted) as caught:  # noqa: PT012 - its end
            with dist._coalescing_manager() as block:
                dist.all_reduce(np.full(50_000, 10.0))
                if rank == 0:
                    raise KeyboardInterrupt
            block.wait()
        assert rank == 0 or "rank 0 aborted the group: KeyboardInterrupt: _coalescing_manager" in str(caught.value)

    run_ranks(2, work, transport=transport, timeout_s=2 * PATIENCE_S, abort=False).results()


def test_a_callback_that_runs_while_a_block_is_open_makes_its_calls():
    def work(rank):
        group = dist.default_group()
        opened, called, seen = threading.Event(), threading.Event(), []

        def call(_):
            assert opened.wait(PATIENCE_S)
            mine = np.full(3, rank + 1.0)
            dist.all_reduce(mine, group=group)
            seen.append(mine.tolist())
            called.set()

        group._queue._busy.acquire()  # the first call does not end before the callback is in line
        future = dist.all_reduce(np.ones(3), async_op=True).get_future().then(call)
        group._queue._busy.release()
        with dist._coalescing_manager():
            held = np.ones(3)
            dist.all_reduce(held)
            opened.set()
            assert called.wait(PATIENCE_S)
        future.wait()
        assert seen == [[3.0] * 3]
        assert held.tolist() == [2.0] * 3

    run_ranks(2, work, timeout_s=2 * PATIENCE_S).results()


@pytest.mark.parametrize("async_ops", [False, True])
def test_each_rank_and_tensor_of_a_pack_has_a_factor_of_its_own(async_ops):
    def work(rank):
        first, second = np.ones(3), np.ones(4)
        with dist._coalescing_manager(async_ops=async_ops) as block:
            dist.all_reduce(first, premul(2.0 if rank == 0 else 3.0))
            dist.all_reduce(second, premul(2.0))
        block.wait()
        return first.tolist() == [5.0] * 3, second.tolist() == [4.0] * 4

    assert run_ranks(2, work).results() == [(True, True)] * 2
