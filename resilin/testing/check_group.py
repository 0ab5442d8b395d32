"""What every way of moving bytes must do: one suite for shared memory, sockets, threads and processes.

A case is a function of (rank, size) that calls `resilin.dist` on the default group and asserts. `GroupConformance` runs
each case through the `run` fixture, which a test class provides:

    class TestSharedMemory(GroupConformance):
        @pytest.fixture
        def run(self):
            return lambda size, case: run_ranks(size, case, size, transport="shm", abort=False).results()

`CASES` names them all, for runners that start real processes once and call them in a row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import resilin.dist as dist
from resilin.core.tensor import Tensor
from resilin.dist import tree
from resilin.dist.reduce_op import DTYPES, Array, ReduceOp
from resilin.errors import CollectiveMismatch, DistError, UsageError
from resilin.testing.rank_data import data, defined, expected, same

Case = Callable[[int, int], None]
CASES: dict[str, Case] = {}
SIZES = (0, 1, 31, 33, 4097, 70001)  # around the inline limit and one above the ring's threshold


def case(fn: Case) -> Case:
    """Register a case under its name."""
    CASES[fn.__name__] = fn
    return fn


@case
def all_reduce_gives_the_documented_result_for_every_op_and_dtype(rank: int, size: int) -> None:
    for dtype in DTYPES:
        for op in ReduceOp:
            if not defined(op, dtype):
                with pytest.raises(UsageError):
                    dist.all_reduce(data(rank, 3, dtype), op)
                continue
            for count in (33, 4097):
                array = data(rank, count, dtype)
                dist.all_reduce(array, op)
                same(array, expected(op, [data(r, count, dtype) for r in range(size)]))


@case
def all_reduce_takes_any_size_and_layout(rank: int, size: int) -> None:
    float32 = np.dtype(np.float32)
    for count in (*SIZES, 400_000):
        array = data(rank, count, float32)
        dist.all_reduce(array)
        same(array, expected(ReduceOp.SUM, [data(r, count, float32) for r in range(size)]))
    strided = data(rank, (200, 90), float32).T[::2]
    dist.all_reduce(strided)
    same(strided, expected(ReduceOp.SUM, [data(r, (200, 90), float32).T[::2] for r in range(size)]))
    scalar = np.array(float(rank))
    dist.all_reduce(scalar, ReduceOp.MAX)
    assert scalar == size - 1
    foreign = np.frombuffer(bytearray(80_000), np.float64)  # not in an arena: staged
    foreign += rank
    dist.all_reduce(foreign)
    assert (foreign == sum(range(size))).all()


@case
def all_reduce_gives_equal_bits_on_all_ranks(rank: int, size: int) -> None:
    for count in (100, 5000, 300_000):
        array = np.random.default_rng(rank).standard_normal(count).astype(np.float32)
        dist.all_reduce(array, ReduceOp.AVG)
        digests: list[Any] = [None] * size
        dist.all_gather_object(digests, hashlib.sha256(array.tobytes()).hexdigest())
        assert len(set(digests)) == 1


@case
def arguments_of_a_wrong_type_are_refused_before_any_work(rank: int, size: int) -> None:
    array: Any = np.ones(3, np.float32)
    text: Any = "0"
    sum_: Any = "sum"
    for call, said in (
        (lambda: dist.all_reduce(array, op=sum_), "expected a ReduceOp, as in op=ReduceOp.SUM, got 'sum'"),
        (lambda: dist.broadcast(array, group_src=text), "group_src: expected a rank in"),
        (lambda: dist.broadcast(array, src=text), "global rank '0' is not in"),
        (lambda: dist.all_reduce(array, group=5), "group: expected a ProcessGroup"),
        (lambda: dist.new_group([text]), "must be distinct ranks"),
    ):
        with pytest.raises(UsageError, match=said):
            call()


@case
def nan_wins_min_and_max(rank: int, size: int) -> None:
    for count in (8, 5000):
        array = np.full(count, float(rank), np.float32)
        array[rank % count] = np.nan
        dist.all_reduce(array, ReduceOp.MAX)
        assert np.isnan(array[: min(size, count)]).all()
        assert (array[size:] == size - 1).all()


@case
def tensors_count_the_write(rank: int, size: int) -> None:
    tensor = Tensor._wrap(np.ones(5, np.float32))
    before = tensor._version
    dist.all_reduce(tensor)
    assert tensor._array.tolist() == [size] * 5
    assert tensor._version == before + 1


@case
def broadcast_copies_the_root(rank: int, size: int) -> None:
    for count in SIZES:
        for root in range(size):
            array = data(rank, count, np.dtype(np.int32))
            dist.broadcast(array, src=root)
            same(array, data(root, count, np.dtype(np.int32)))


@case
def reduce_changes_the_root_only(rank: int, size: int) -> None:
    dtype = np.dtype(np.float64)
    for count in SIZES:
        for root in {0, size - 1}:
            array = data(rank, count, dtype)
            dist.reduce(array, dst=root)
            everybody = [data(r, count, dtype) for r in range(size)]
            same(array, expected(ReduceOp.SUM, everybody) if rank == root else everybody[rank])


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
def reduce_scatter_gives_each_rank_its_part(rank: int, size: int) -> None:
    dtype = np.dtype(np.float32)
    for count in SIZES:
        output = np.zeros(count, dtype)
        dist.reduce_scatter_tensor(output, data(rank, size * count, dtype))
        everybody = [data(r, size * count, dtype).reshape(size, count)[rank] for r in range(size)]
        same(output, expected(ReduceOp.SUM, everybody))
        dist.reduce_scatter(output, list(data(rank, (size, count), dtype)), ReduceOp.AVG)
        same(output, expected(ReduceOp.AVG, everybody))


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
    plan = tree.plan(size, size)
    for count in (7, 70_001):
        for shift in (0, 1):
            memory = np.zeros(count + 1, np.float32)
            part, out = memory[:count], memory[shift : count + shift]
            part[...] = data(rank, count, part.dtype)
            dist.tree_all_reduce(dict.fromkeys(plan.subtrees(rank), part), out, plan)
            same(out, expected(ReduceOp.SUM, [data(r, count, part.dtype) for r in range(size)]))


@case
def all_to_all_names_split_sizes_that_do_not_fit(rank: int, size: int) -> None:
    if size < 2:
        return
    more = 1 if rank == 0 else 0  # rank 0 expects one element too many from everybody else
    sizes = [5 if r == rank else 5 + more for r in range(size)]
    outputs = [np.zeros(n, np.float32) for n in sizes]
    inputs = [np.ones(5, np.float32) for _ in range(size)]
    if rank == 0:
        with pytest.raises(CollectiveMismatch, match="rank 1 sends 20 bytes, this rank expects 24"):
            dist.all_to_all(outputs, inputs)
    else:
        dist.all_to_all(outputs, inputs)
    dist.barrier()


@case
def objects_travel(rank: int, size: int) -> None:
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * 3000 * rank})
    assert [len(thing["text"]) for thing in gathered] == [3000 * r for r in range(size)]
    box: list[Any] = ["first", {"second": 2}] if rank == 0 else [None, None]
    dist.broadcast_object_list(box, src=0)
    assert box == ["first", {"second": 2}]
    rootlist: list[Any] | None = [None] * size if rank == size - 1 else None
    dist.gather_object((rank, "y"), rootlist, dst=size - 1)
    assert rootlist is None or rootlist == [(r, "y") for r in range(size)]
    out: list[Any] = [None]
    dist.scatter_object_list(out, [f"for {r}" for r in range(size)] if rank == 0 else None, src=0)
    assert out == [f"for {rank}"]


class _Unpicklable:
    def __reduce__(self) -> Any:
        raise ZeroDivisionError("this object does not travel")


@case
def an_object_that_cannot_be_pickled_is_an_error_on_all_ranks_at_once(rank: int, size: int) -> None:
    last = size - 1
    thing: Any = _Unpicklable() if rank == last else "fine"
    one = [None]
    calls: list[Callable[[], Any]] = [
        lambda: dist.all_gather_object([None] * size, thing),
        lambda: dist.gather_object(thing, [None] * size if rank == 0 else None, dst=0),
        lambda: dist.broadcast_object_list([thing], src=last),
        lambda: dist.scatter_object_list(one, [thing] * size if rank == last else None, src=last),
        lambda: dist.scatter_object_list(one, [1] * (size + 1) if rank == last else None, src=last),
    ]
    if size > 1 and rank in (0, last):
        calls.append(lambda: dist.send_object_list([thing], 0) if rank == last else dist.recv_object_list(one, last))
    for i, call in enumerate(calls):
        with pytest.raises(UsageError if rank == last else DistError) as caught:
            call()
        asked = f"needs {size} objects, got {size + 1}" if i == 4 else "expected an object that pickle can write"
        assert (asked if rank == last else f"rank {last} could not send any") in str(caught.value)
    box: list[Any] = [None] * size
    dist.all_gather_object(box, rank)
    assert box == list(range(size))


@case
def messages_between_two_ranks_keep_order_and_tags(rank: int, size: int) -> None:
    if size < 2:
        return
    if rank == 0:
        for i in range(3):
            dist.send(np.array([i]), dst=1)
        dist.send(np.array([70]), dst=1, tag=7)
        dist.send(np.arange(300_000.0), dst=1, tag=9)
        dist.send_object_list(["hello", 5], dst=1)
    elif rank == 1:
        big, box, seven = np.zeros(300_000), np.zeros(1, np.int64), np.zeros(1, np.int64)
        work = dist.irecv(big, src=0, tag=9)
        assert dist.recv(seven, src=0, tag=7) == 0
        assert seven[0] == 70
        for i in range(3):
            assert dist.recv(box) == 0
            assert box[0] == i
        assert work is not None
        assert work.wait()
        assert (big == np.arange(300_000.0)).all()
        things: list[Any] = [None, None]
        assert dist.recv_object_list(things, src=0) == 0
        assert things == ["hello", 5]
    dist.barrier()


@case
def exchanging_neighbours_do_not_deadlock(rank: int, size: int) -> None:
    if size < 2:
        return
    outgoing, incoming = np.full(200_000, rank, np.float32), np.zeros(200_000, np.float32)
    right, left = (rank + 1) % size, (rank - 1) % size
    ops = [dist.P2POp(dist.isend, outgoing, right), dist.P2POp(dist.irecv, incoming, left)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert (incoming == left).all()


@case
def async_work_runs_in_call_order(rank: int, size: int) -> None:
    array = np.ones(3000, np.float32)
    works = [dist.all_reduce(array, async_op=True) for _ in range(5)]
    dist.all_reduce(array)  # waits for its turn behind the five
    assert (array == float(size) ** 6).all()
    for work in works:
        assert work is not None
        assert work.wait()
        assert work.is_success()
        assert work.get_future().value()[0] is array
        with pytest.raises(UsageError, match="truth value"):
            bool(work)


@case
def subgroups_work_beside_the_world(rank: int, size: int) -> None:
    if size < 2:
        return
    evens = dist.new_group(list(range(0, size, 2)))
    rest = dist.new_group(list(range(1, size)))
    array = np.ones(5000, np.float32)
    dist.all_reduce(array, group=evens)
    members = len(range(0, size, 2)) if rank % 2 == 0 else 1
    assert (array == members).all()
    box = np.array([rank])
    dist.broadcast(box, src=size - 1, group=rest)
    assert box[0] == (size - 1 if rank else 0)
    assert dist.get_rank(rest) == rank - 1
    dist.barrier()
    for group in (evens, rest):
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)


@case
def a_mismatch_raises_on_all_ranks_shows_both_sides_and_leaves_the_group_usable(rank: int, size: int) -> None:
    if size < 2:
        return
    last = rank == size - 1

    def refused(call: Callable[[], Any], *words: str) -> None:
        with pytest.raises(CollectiveMismatch) as caught:
            call()
        for word in words:
            assert word in str(caught.value)

    for count in (10, 10_000):
        ours = np.ones(count, np.float32)
        refused(lambda n=count: dist.all_reduce(np.ones(n + last, np.float32)), f"[{count}]", f"[{count + 1}]")  # type: ignore[misc]
        kind = np.float64 if last else np.float32
        refused(lambda n=count, k=kind: dist.all_reduce(np.ones(n, k)), "float32", "float64")  # type: ignore[misc]
        refused(lambda o=ours: dist.all_reduce(o, ReduceOp.MAX if last else ReduceOp.SUM), "SUM", "MAX")  # type: ignore[misc]
        refused(lambda o=ours: dist.broadcast(o, 0) if last else dist.all_reduce(o), "broadcast", "all_reduce")  # type: ignore[misc]
        refused(lambda o=ours: dist.broadcast(o, 1 if last else 0), "root 0", "root 1")  # type: ignore[misc]
        pair = np.zeros((size * count, 2), kind)
        refused(lambda p=pair: dist.all_to_all_single(p, p), "float32[*, 2]", "float64[*, 2]")  # type: ignore[misc]
        refused(lambda p=pair: dist.all_to_all([*p[:size]], [*p[:size]]), "float32[*]", "float64[*]")  # type: ignore[misc]
        rows = np.zeros((size * count, 2) if last else size * count * 2, np.float32)
        refused(lambda r=rows: dist.all_to_all_single(r, r), "float32[*]", "float32[*, 2]")  # type: ignore[misc]
        assert (ours == 1).all()
        dist.all_reduce(ours)
        assert (ours == size).all()


@case
def the_shard_tree_gives_the_same_bits_as_one_process(rank: int, size: int) -> None:
    for shards in (1, 2, 3, 5, 8, 9):
        for count, kind in ((3, np.float32), (3000, np.float32), (50, np.float16)):
            values = [np.random.default_rng([shards, s]).standard_normal(count).astype(kind) for s in range(shards)]

            def total(node: tree.Subtree, values: list[Array] = values) -> Array:
                children = node.children()
                return values[node.start] if children is None else total(children[0]) + total(children[1])

            plan = tree.plan(shards, size)
            out = np.zeros(count, kind)
            dist.tree_all_reduce({node: total(node) for node in plan.subtrees(rank)}, out, plan)
            same(out, total(tree.Subtree(0, shards)))


@case
def monitored_barrier_passes_when_all_come(rank: int, size: int) -> None:
    dist.monitored_barrier(timeout=10.0)


class GroupConformance:
    """Subclass it in a test file and provide the fixture `run(size, case)`, which runs a case on `size` ranks."""

    sizes: tuple[int, ...] = (1, 2, 3)

    @pytest.mark.parametrize("name", list(CASES))
    def test_case(self, run: Callable[[int, Case], Any], name: str) -> None:
        """Every rank passes the case, at every size."""
        for size in self.sizes:
            run(size, CASES[name])
