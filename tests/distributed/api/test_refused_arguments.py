"""A rank that refuses its own arguments: the others hear of it in the same call, and the group stays usable."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from resilin import distributed as dist
from resilin.distributed.wire.reduce_op import _make_nccl_premul_sum as _premul
from resilin.distributed.wire.shard_tree import Plan
from resilin.errors import CollectiveMismatch, DistError, GroupAborted, UsageError
from resilin.testing.patience import PATIENCE_S
from resilin.testing.ranks import TRANSPORTS, run_ranks

SIZE = 3


def _ones(count: int = 3) -> Any:
    return np.ones(count, np.float32)


def _rows(count: int) -> list[Any]:
    return [_ones() for _ in range(count)]


def _at(root: int, given: Any) -> Any:
    return given if dist.get_rank() == root else None


def _finish(work: Any) -> None:
    if work is not None:
        work.wait()


Call = Callable[..., Any]
# by what is wrong: the mistaken rank, its call, that of the others, what it says, what the others say
MISTAKES: dict[str, tuple[int, Call, Call, str, str]] = {
    "scatter_list too short": (
        0, lambda **how: dist.scatter(_ones(), _rows(SIZE - 1), 0, **how), lambda **how: dist.scatter(_ones(), **how),
        "scatter_list: expected 3 tensors", "scatter",
    ),
    "scatter_list missing": (
        2, lambda **how: dist.scatter(_ones(), None, 2, **how), lambda **how: dist.scatter(_ones(), None, 2, **how),
        "scatter: scatter_list must be given", "scatter",
    ),
    "scatter_list where none belongs": (
        1, lambda **how: dist.scatter(_ones(), _rows(SIZE), 0, **how),
        lambda **how: dist.scatter(_ones(), _at(0, _rows(SIZE)), **how), "scatter: scatter_list must be given",
        "scatter",
    ),
    "scatter_list of another dtype": (
        0, lambda **how: dist.scatter(_ones(), [np.ones(3)] * SIZE, **how), lambda **how: dist.scatter(_ones(), **how),
        "float64", "scatter",
    ),
    "scatter_list no list": (
        0, lambda **how: dist.scatter(_ones(), "xyz", **how), lambda **how: dist.scatter(_ones(), **how),
        "expected a list of tensors", "scatter",
    ),
    "gather_list too long": (
        1, lambda **how: dist.gather(_ones(), _rows(SIZE + 1), 1, **how),
        lambda **how: dist.gather(_ones(), None, 1, **how),
        "gather_list: expected 3 tensors", "gather",
    ),
    "gather_list in one memory": (
        0, lambda **how: dist.gather(_ones(), [_ones()] * SIZE, **how), lambda **how: dist.gather(_ones(), **how),
        "lies in the memory of", "gather",
    ),
    "gather_list missing": (
        0, lambda **how: dist.gather(_ones(), None, **how), lambda **how: dist.gather(_ones(), **how),
        "gather: gather_list must be given", "gather",
    ),
    "output of gather_single too small": (
        0, lambda **how: dist.gather_single(_ones(), _ones(4), **how), lambda **how: dist.gather_single(_ones(), **how),
        "expected float32 with 3 x 3", "gather",
    ),
    "output of gather_single where none belongs": (
        2, lambda **how: dist.gather_single(_ones(), _ones(9), **how),
        lambda **how: dist.gather_single(_ones(), _at(0, _ones(9)), **how), "must be given on the destination",
        "gather",
    ),
    "dtype without the op": (
        1, lambda **how: dist.all_reduce(_ones(), dist.ReduceOp.BAND, **how),
        lambda **how: dist.all_reduce(np.ones(3, np.int32), dist.ReduceOp.BAND, **how), "BAND", "all_reduce",
    ),
    "no tensor to reduce": (
        0, lambda **how: dist.reduce(3.0, 1, **how), lambda **how: dist.reduce(_ones(), 1, **how),
        "expected a tensor, got float", "reduce",
    ),
    "root outside the group": (
        2, lambda **how: dist.broadcast(_ones(), SIZE, **how), lambda **how: dist.broadcast(_ones(), 0, **how),
        "src: ", "broadcast",
    ),
    "read-only output of broadcast": (
        1, lambda **how: dist.broadcast(np.broadcast_to(np.float32(1), (3,)), 0, **how),
        lambda **how: dist.broadcast(_ones(), 0, **how), "cannot be written", "broadcast",
    ),
    "tensor of all_gather unlike its list": (
        0, lambda **how: dist.all_gather(_rows(SIZE), _ones(4), **how),
        lambda **how: dist.all_gather(_rows(SIZE), _ones(), **how), "tensor_list[0] is float32[3], expected float32[4]",
        "all_gather",
    ),
    "output of all_gather_into_tensor for fewer ranks": (
        2, lambda **how: dist.all_gather_into_tensor(_ones(6), _ones(), **how),
        lambda **how: dist.all_gather_into_tensor(_ones(9), _ones(), **how), "expected float32 with 3 x 3",
        "all_gather",
    ),
    "lists of all_gather_coalesced for fewer ranks": (
        0, lambda **how: dist.all_gather_coalesced([_rows(1)] * 2, _rows(1), **how),
        lambda **how: dist.all_gather_coalesced([_rows(1) for _ in range(SIZE)], _rows(1), **how),
        "expected 3 output lists", "all_gather",
    ),
    "empty list of all_reduce_coalesced": (
        0, lambda **how: dist.all_reduce_coalesced([], **how), lambda **how: dist.all_reduce_coalesced(_rows(1), **how),
        "expected at least one tensor", "all_reduce",
    ),
    "input of reduce_scatter_tensor that does not divide": (
        1, lambda **how: dist.reduce_scatter_tensor(_ones(), _ones(8), **how),
        lambda **how: dist.reduce_scatter_tensor(_ones(), _ones(9), **how), "expected float32 with 3 x 3",
        "reduce_scatter",
    ),
    "input_list of reduce_scatter too short": (
        1, lambda **how: dist.reduce_scatter(_ones(), _rows(SIZE - 1), **how),
        lambda **how: dist.reduce_scatter(_ones(), _rows(SIZE), **how), "expected 3 tensors", "reduce_scatter",
    ),
    "lists of all_to_all of other lengths": (
        0, lambda **how: dist.all_to_all(_rows(SIZE), _rows(SIZE - 1), **how),
        lambda **how: dist.all_to_all(_rows(SIZE), _rows(SIZE), **how), "expected 3 inputs and outputs, got 2 and 3",
        "all_to_all",
    ),
    "gather_list no list": (
        1, lambda **how: dist.gather(_ones(), np.ones((3, 3), np.float32), 1, **how),
        lambda **how: dist.gather(_ones(), None, 1, **how), "gather_list: expected a list of tensors, got ndarray",
        "gather",
    ),
    "timeout of barrier": (
        0, lambda **how: dist.barrier(timeout=-1, **how), lambda **how: dist.barrier(**how), "timeout", "barrier",
    ),
    "complex factor": (
        1, lambda **how: dist.all_reduce(_ones(), _premul(2j), **how),
        lambda **how: dist.all_reduce(_ones(), _premul(2.0), **how), "expected a real number for float32, got 2j",
        "all_reduce",
    ),
    "factor beyond the dtype": (
        0, lambda **how: dist.all_reduce(_ones(), _premul(10**400), **how),
        lambda **how: dist.all_reduce(_ones(), _premul(2.0), **how), "expected a number for float32", "all_reduce",
    ),
    "group of ranks that are not there": (
        0, lambda **how: dist.new_group([0, 9]), lambda **how: dist.new_group([0, 1]), "must be distinct ranks of",
        "new_group",
    ),
    "group of a negative limit": (
        1, lambda **how: dist.new_group([0, 1], timeout=-1), lambda **how: dist.new_group([0, 1]),
        "new_group: timeout", "new_group",
    ),
    "group of bools": (
        2, lambda **how: dist.new_group([True, False]), lambda **how: dist.new_group([0, 1]), "which are integers",
        "new_group",
    ),
    "group of a description that is none": (
        2, lambda **how: dist.new_group([0, 1], group_desc=5), lambda **how: dist.new_group([0, 1]),
        "group_desc: expected a text or None, got 5", "new_group",
    ),
    "subgroups of no size": (
        2, lambda **how: dist.new_subgroups("1"), lambda **how: dist.new_subgroups(1), "group_size: expected",
        "new_group",
    ),
    "enumeration of nothing": (
        0, lambda **how: dist.new_subgroups_by_enumeration([]),
        lambda **how: dist.new_subgroups_by_enumeration([[0], [1, 2]]), "is empty", "new_group",
    ),
    "parts that are no lists": (
        1, lambda **how: dist.split_group(None, 5), lambda **how: dist.split_group(None, [[0, 1], [2]]),
        "expected lists of ranks, got 5", "new_group",
    ),
    "part in an unknown backend": (
        0, lambda **how: dist.split_group(None, [[0, 1], [2]], backend="nope"),
        lambda **how: dist.split_group(None, [[0, 1], [2]]), "nope", "new_group",
    ),
    "no plan of a tree": (
        2, lambda **how: dist.tree_all_reduce({}, _ones(), None, **how), lambda **how: dist.all_reduce(_ones(), **how),
        "expected a dict of parts and a Plan", "tree_all_reduce",
    ),
    "sizes of all_to_all_single that do not add up": (
        2, lambda **how: dist.all_to_all_single(_ones(), _ones(), None, [1, 1, 2], **how),
        lambda **how: dist.all_to_all_single(_ones(), _ones(), None, [1, 1, 1], **how), "must be 3 numbers that add up",
        "all_to_all",
    ),
}  # fmt: skip


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("async_op", [False, True])
def test_all_ranks_hear_in_the_same_call_which_of_them_refuses_its_own_arguments(
    transport: str, async_op: bool
) -> None:
    def work(rank: int) -> None:
        for what, (mistaken, wrong, right, says, kind) in MISTAKES.items():
            begin = time.monotonic()
            with pytest.raises(UsageError) as caught:
                _finish(wrong(async_op=async_op) if rank == mistaken else right(async_op=async_op))
            assert time.monotonic() - begin < PATIENCE_S, what
            said = str(caught.value)
            assert says in said, what
            if rank != mistaken:
                assert re.search(f"{kind} #[0-9]+(,| of).*rank {mistaken} refused its arguments: ", said), (what, said)
            check = np.ones(2)
            dist.all_reduce(check)
            assert (check == SIZE).all(), what

    run_ranks(SIZE, work, transport=transport, timeout_s=2 * PATIENCE_S).results()


def test_a_mistake_of_all_ranks_is_each_ones_own_error() -> None:
    def work(rank: int) -> None:
        with pytest.raises(UsageError, match="must be given on the source rank 0 and only there"):
            dist.scatter(_ones(), None if rank == 0 else _rows(SIZE))
        dist.barrier()

    run_ranks(SIZE, work).results()


def test_in_a_block_a_mistake_is_raised_at_once() -> None:
    def work(rank: int) -> None:
        with pytest.raises(UsageError, match="must be given"), dist._coalescing_manager():
            dist.scatter(_ones(), None if rank == 0 else _rows(SIZE))
        dist.barrier()

    run_ranks(SIZE, work).results()


def test_who_refuses_in_a_group_that_has_ended_raises_its_own_error() -> None:
    def work(rank: int) -> None:
        dist.barrier()
        dist.default_group().abort()
        with pytest.raises(UsageError, match="must be given"):
            dist.scatter(_ones(), None if rank == 0 else _rows(SIZE))

    run_ranks(SIZE, work).results()


OBJECTS: dict[str, tuple[int, Call, Call, str]] = {
    "all_gather_object": (
        1, lambda places: dist.all_gather_object(places, 7), lambda: dist.all_gather_object([None] * SIZE, 7),
        "expected 3 places at least, got 2",
    ),
    "gather_object": (
        2, lambda places: dist.gather_object(7, places, 2), lambda: dist.gather_object(7, None, 2),
        "expected 3 places on the destination, rank 2, and none elsewhere, got 2 places",
    ),
    "scatter_object_list": (
        1, lambda places: dist.scatter_object_list(places[2:], _at(0, [1] * SIZE)),
        lambda: dist.scatter_object_list([None], _at(0, [1] * SIZE)), "expected 1 places at least, got 0",
    ),
    "scatter_object_list from nobody": (
        2, lambda places: dist.scatter_object_list([None], src="a"),
        lambda: dist.scatter_object_list([None], _at(0, [1] * SIZE)), "src: expected a rank",
    ),
    "scatter_object_list of no list": (
        0, lambda places: dist.scatter_object_list([None], 5), lambda: dist.scatter_object_list([None]),
        "expected a list, got int",
    ),
    "gather_object into no list": (
        0, lambda places: dist.gather_object(1, (1, 2, 3)), lambda: dist.gather_object(1), "expected a list, got tuple",
    ),
    "gather_object to nobody": (
        0, lambda places: dist.gather_object(1, places, SIZE), lambda: dist.gather_object(1), "dst: ",
    ),
    "broadcast_object_list": (
        1, lambda places: dist.broadcast_object_list(tuple(places)), lambda: dist.broadcast_object_list([0, 0]),
        "expected a list, got tuple",
    ),
}  # fmt: skip


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("what", OBJECTS)
def test_a_list_of_objects_that_a_rank_refuses_stays_as_it_is_and_is_an_error_on_all_ranks(
    transport: str, what: str
) -> None:
    mistaken, wrong, right, says = OBJECTS[what]

    def work(rank: int) -> None:
        places = [None] * (SIZE - 1)
        with pytest.raises(UsageError) as caught:
            wrong(places) if rank == mistaken else right()
        assert places == [None] * (SIZE - 1)
        assert what.split()[0] in str(caught.value) or rank == mistaken
        assert says in str(caught.value)
        assert rank == mistaken or f"rank {mistaken} refused its arguments: " in str(caught.value)
        dist.barrier()

    run_ranks(SIZE, work, transport=transport, timeout_s=2 * PATIENCE_S).results()


def test_a_list_that_is_longer_than_the_group_keeps_its_other_places() -> None:
    def work(rank: int) -> None:
        places: list[Any] | None = ["before"] * (SIZE + 2) if rank == 0 else None
        dist.gather_object(rank, places)
        assert places == (None if rank else [0, 1, 2, "before", "before"])

    run_ranks(SIZE, work).results()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_mismatch_of_objects_names_the_function_that_was_called(transport: str) -> None:
    calls: dict[str, Call] = {
        "all_gather_object": lambda: dist.all_gather_object([None] * 2, 7),
        "gather_object": lambda: dist.gather_object(7, _at(0, [None] * 2)),
        "broadcast_object_list": lambda: dist.broadcast_object_list([7]),
        "scatter_object_list": lambda: dist.scatter_object_list([None], _at(0, [1, 2])),
        "all_gather": lambda: dist.all_gather([np.zeros(1, np.int64) for _ in range(2)], np.ones(1, np.int64)),
    }

    def work(rank: int) -> None:
        for one, other in ((a, b) for a in calls for b in calls if a != b):
            with pytest.raises(CollectiveMismatch) as caught:
                calls[other if rank else one]()
            said = str(caught.value)
            assert f"rank 0 called {one} #" in said
            assert f"rank 1 called {other} #" in said
            assert "layout" not in said
            dist.barrier()

    run_ranks(2, work, transport=transport, timeout_s=2 * PATIENCE_S).results()


def test_a_receive_into_no_list_of_objects_is_refused_before_a_message_is_taken() -> None:
    def work(rank: int) -> Any:
        places = [None]
        if rank == 0:
            dist.send_object_list(["word"], 1)
            return None
        with pytest.raises(UsageError, match="recv_object_list: object_list: expected a list, got NoneType"):
            dist.recv_object_list(None, 0)  # type: ignore[arg-type]
        dist.recv_object_list(places, 0)
        return places[0]

    assert run_ranks(2, work).results() == [None, "word"]


class _Ends:
    """Its pickling would end the process."""

    def __reduce__(self) -> Any:
        raise SystemExit("no more")


class _Broken:
    """Cannot be made again where it arrives."""

    def __reduce__(self) -> Any:
        return int, ("not a number",)


class _EndsThere:
    """Would end the process where it arrives."""

    def __reduce__(self) -> Any:
        return sys.exit, ("no more",)


@pytest.mark.parametrize("call", [dist.all_gather_object, dist.broadcast_object_list])
def test_an_object_that_would_end_its_rank_aborts_the_group(call: Call) -> None:
    def work(rank: int) -> None:
        dist.barrier()  # all have the group
        things = ([None] * 2, _Ends() if rank == 0 else 1) if call is dist.all_gather_object else ([_Ends()], 0)
        for _ in range(2):
            what = "no more" if rank == 0 else "rank 0 aborted the group: SystemExit: .*_object.*: no more"
            with pytest.raises(SystemExit if rank == 0 else GroupAborted, match=what):
                call(*things)

    run_ranks(2, work, abort=False).results()


WITH_A_BROKEN_ONE: dict[str, Callable[[list[Any], Any], Any]] = {
    "all_gather_object": lambda found, thing: dist.all_gather_object(found, thing),
    "gather_object": lambda found, thing: dist.gather_object(thing, _at(1, found), 1),
    "broadcast_object_list": lambda found, thing: dist.broadcast_object_list(found if thing is None else [thing], 0),
    "scatter_object_list": lambda found, thing: dist.scatter_object_list(found, thing and [0, thing], 0),
    "recv_object_list": lambda found, thing: (
        dist.recv_object_list(found, 0) if thing is None else dist.send_object_list([thing], 1)
    ),
}


@pytest.mark.parametrize(("broken", "said"), [(_Broken, "ValueError"), (_EndsThere, "SystemExit: no more")])
@pytest.mark.parametrize("name", WITH_A_BROKEN_ONE)
def test_an_object_that_cannot_be_made_again_names_its_sender_and_the_function(
    name: str, broken: Callable[[], Any], said: str
) -> None:
    def work(rank: int) -> None:
        found: list[Any] = [0] if name in ("broadcast_object_list", "recv_object_list") else [0, 0]
        if rank == 0 and name != "all_gather_object":
            WITH_A_BROKEN_ONE[name](found, broken())
        else:
            with pytest.raises(DistError, match=rf"{name}, .*: the object of rank 0 cannot be loaded here: {said}"):
                WITH_A_BROKEN_ONE[name](found, broken() if rank == 0 else None)
        assert set(found) == {0}, "as it was"
        whole: list[Any] = [None] * 2
        dist.all_gather_object(whole, rank)
        assert whole == [0, 1]

    run_ranks(2, work).results()


def test_errors_of_arguments_begin_with_the_function() -> None:
    def work(rank: int) -> None:
        wrong: list[Callable[[], Any]] = [
            lambda: dist.broadcast(_ones(), 9),
            lambda: dist.broadcast(_ones(), 0, group_src=0),
            lambda: dist.broadcast(_ones()),
            lambda: dist.reduce(_ones(), "0"),
            lambda: dist.all_gather([_ones()], _ones()),
            lambda: dist.all_gather_into_tensor(_ones(), _ones()),
            lambda: dist.reduce_scatter(_ones(), [_ones(2)] * 2),
            lambda: dist.all_to_all_single(_ones(), _ones()),
            lambda: dist.all_to_all_single(_ones(4), _ones(4), [1, 1]),
            lambda: dist.send(_ones(), rank),
            lambda: dist.recv(_ones(), 9),
            lambda: dist.irecv(_ones(), 1 - rank, tag=-1),
            lambda: dist.gather_object(1, None, 9),
            lambda: dist.send_object_list(3, 1 - rank),
            lambda: dist.get_global_rank(None, "x"),
            lambda: dist.all_reduce(_ones(), "sum"),
            lambda: dist.reduce_scatter_tensor(_ones(1), _ones(2), dist.ReduceOp.BAND),
            lambda: dist.all_reduce_coalesced([_ones()], 99),
            lambda: dist.all_gather_coalesced([[_ones(2)], [_ones(2)]], [_ones()]),
            lambda: dist.all_gather_coalesced([[None], [None]], [_ones()]),
            lambda: dist.barrier(5),
            lambda: dist.monitored_barrier("x"),
            lambda: dist.get_rank(5),
            lambda: dist.all_to_all_single(_ones(), np.float32(3)),
        ]
        names = "broadcast broadcast broadcast reduce all_gather all_gather_into_tensor reduce_scatter "
        names += "all_to_all_single all_to_all_single send recv irecv gather_object send_object_list get_global_rank "
        names += "all_reduce reduce_scatter_tensor all_reduce_coalesced all_gather_coalesced all_gather_coalesced "
        names += "barrier monitored_barrier get_rank all_to_all_single"
        for name, call in zip(names.split(), wrong, strict=True):
            with pytest.raises(UsageError, match=rf"^{name}: "):
                call()

    run_ranks(2, work).results()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("mistaken", [{0}, {2}, {1, 2}, {0, 1, 2}])
def test_a_limit_that_ranks_refuse_at_a_monitored_barrier_is_an_error_on_all(
    mistaken: set[int], transport: str
) -> None:
    def work(rank: int) -> None:
        with pytest.raises(UsageError) as caught:
            dist.monitored_barrier(timeout=-1 if rank in mistaken else PATIENCE_S)
        said = str(caught.value)
        if rank in mistaken:
            assert said.startswith("monitored_barrier: timeout: expected")
        else:
            assert f"rank {min(mistaken)} refused its arguments: monitored_barrier: timeout: expected" in said
        dist.monitored_barrier(timeout=PATIENCE_S)

    run_ranks(SIZE, work, transport=transport, timeout_s=2 * PATIENCE_S).results()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_shards_of_ranks_that_one_rank_cuts_otherwise_are_a_mismatch(transport: str) -> None:
    def work(rank: int) -> None:
        uneven = Plan(6, 3, (range(0, 1), range(1, 2), range(2, 6)))
        plans = [Plan(6, 3), uneven if rank == 1 else Plan(6, 3), uneven, Plan(6, 3)]
        for plan, whole in zip(plans, (True, False, True, True), strict=True):
            out = np.zeros(2)
            parts = {node: np.full(2, float(node.stop - node.start)) for node in plan.subtrees(rank)}
            with contextlib.nullcontext() if whole else pytest.raises(CollectiveMismatch, match="rank 1 called tree"):
                dist.tree_all_reduce(parts, out, plan)
            assert out.tolist() == ([6.0, 6.0] if whole else [0.0, 0.0])
        with pytest.raises(UsageError, match="must bring"):
            dist.tree_all_reduce({(0, 2): out, "a": out}, out, Plan(6, 3))  # type: ignore[dict-item]

    run_ranks(3, work, transport=transport, timeout_s=2 * PATIENCE_S).results()
