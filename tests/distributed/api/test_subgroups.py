"""Groups made of the ranks of another one."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from resilin import distributed as dist
from resilin._base.clock import SYSTEM
from resilin.distributed.api import subgroups
from resilin.errors import (
    CollectiveMismatch,
    CollectiveTimeout,
    DistError,
    GroupAborted,
    PeerLost,
    UsageError,
    UsageTypeError,
)
from resilin.testing.patience import PATIENCE_S
from resilin.testing.ranks import run_ranks


def _total(group: Any) -> float:
    array = np.full(10, float(dist.get_rank()), np.float32)
    dist.all_reduce(array, group=group)
    return float(array[0])


def _ranks(group: Any) -> list[int]:
    return dist.get_process_group_ranks(group)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_runs_of_equal_size_cut_a_group(transport: str) -> None:
    def rank_main(rank: int) -> None:
        mine, every = dist.new_subgroups(2)
        assert _ranks(mine) == [rank // 2 * 2, rank // 2 * 2 + 1]
        assert [found is mine for found in every] == [rank < 2, rank >= 2]
        assert _total(mine) == (1 if rank < 2 else 5)
        halves, _ = dist.new_subgroups(1, group=mine)
        assert _ranks(halves) == [rank]
        for found in every:
            dist.destroy_process_group(found)

    run_ranks(4, rank_main, transport=transport).results()


def test_without_a_size_hosts_cut_a_group() -> None:
    def rank_main(rank: int) -> list[int]:
        return _ranks(dist.new_subgroups()[0])

    assert run_ranks(4, rank_main, transport="hosts").results() == [[0, 1], [0, 1], [2, 3], [2, 3]]

    def uneven(_rank: int) -> None:
        with pytest.raises(UsageError, match=r"\[2, 1\] ranks: give group_size"):
            dist.new_subgroups()

    run_ranks(3, uneven, transport="hosts").results()


def test_subgroups_by_enumeration_may_leave_ranks_out() -> None:
    def rank_main(rank: int) -> Any:
        mine, every = dist.new_subgroups_by_enumeration([[2, 0], [3]])
        if rank == 1:
            assert mine is dist.GroupMember.NON_GROUP_MEMBER
            assert every == [mine, mine]
            return None
        return _ranks(mine), _total(mine)

    assert run_ranks(4, rank_main).results() == [([2, 0], 2.0), None, ([2, 0], 2.0), ([3], 3.0)]


def test_a_split_counts_ranks_in_the_parent() -> None:
    def rank_main(rank: int) -> Any:
        odd = dist.new_group([1, 2, 3])
        if rank == 0:
            return None
        part = dist.split_group(odd, [[0, 2]])
        return None if part is None else (_ranks(part), _total(part))

    assert run_ranks(4, rank_main).results() == [None, ([1, 3], 4.0), None, ([1, 3], 4.0)]


def test_wrong_parts_are_refused_before_any_work() -> None:
    def rank_main(_rank: int) -> None:
        for call, said in (
            (lambda: dist.new_subgroups(0), "group_size: expected a positive number"),
            (lambda: dist.new_subgroups(3), "divides the 4 ranks"),
            (lambda: dist.new_subgroups(2, backend="nccl"), "backend 'nccl' is not available"),
            (lambda: dist.new_subgroups_by_enumeration([]), "is empty"),
            (lambda: dist.new_subgroups_by_enumeration([[0, 1], [1, 2]]), "must be distinct ranks"),
            (lambda: dist.new_subgroups_by_enumeration([[0], []]), "must be distinct ranks"),
            (lambda: dist.split_group(None, None), "split_ranks is empty"),
            (lambda: dist.split_group(None, [[0, 7]]), "must be distinct ranks"),
            (lambda: dist.shrink_group([]), "is empty"),
            (lambda: dist.shrink_group([9]), "must be distinct ranks"),
            (lambda: dist.shrink_group([0, 1, 2, 3]), "excluded itself"),
            (lambda: dist.shrink_group([0], shrink_flags=7), "SHRINK_DEFAULT or SHRINK_ABORT"),
        ):
            with pytest.raises(UsageError, match=said):
                call()
        wrong: Any
        for wrong in ((1,), 1):
            with pytest.raises(UsageTypeError, match="expected a list of ranks"):
                dist.shrink_group(wrong)
        for wrong in ([1.0], [[1]]):
            with pytest.raises(UsageTypeError, match="integers"):
                dist.shrink_group(wrong)

    run_ranks(4, rank_main).results()


def test_the_default_group_shrinks_to_those_that_stay_and_counts_them_anew() -> None:
    def rank_main(rank: int) -> Any:
        before = dist.default_group()
        part = dist.new_group([0, 2])
        if rank == 1:
            return None
        made = dist.shrink_group([1, 3]) if rank != 3 else None
        if made is None:
            return None
        assert dist.default_group() is made
        for gone in (before, part):
            with pytest.raises(dist.DistError, match=r"closed|takes its place"):
                dist.barrier(gone)
        return dist.get_rank(), dist.get_world_size(), _ranks(made), _total(None)

    assert run_ranks(4, rank_main, abort=False).results() == [(0, 2, [0, 1], 1.0), None, (1, 2, [0, 1], 1.0), None]


def test_a_subgroup_shrinks_and_keeps_the_ranks_of_the_world() -> None:
    def rank_main(rank: int) -> Any:
        part = dist.new_group([1, 2, 3])
        if rank in (0, 2):
            return None
        made = dist.shrink_group([1], part)  # rank 2 of the world is rank 1 of the part
        assert dist.get_world_size() == 4
        return _ranks(made), _total(made)

    assert run_ranks(4, rank_main).results() == [None, ([1, 3], 4.0), None, ([1, 3], 4.0)]


def test_a_subgroup_of_a_subgroup_that_shrank_is_closed_with_the_default_group() -> None:
    def rank_main(rank: int) -> None:
        inner = dist.split_group(dist.new_group([0, 1, 2]), [[0, 1, 2]])
        made = dist.shrink_group([2], inner) if rank != 2 else None
        if made is None:
            return
        dist.default_group().close_subgroups()
        with pytest.raises(dist.DistError, match="closed"):
            dist.barrier(made)

    run_ranks(3, rank_main, abort=False).results()


def test_a_group_that_lost_a_rank_shrinks_to_the_others() -> None:
    def rank_main(rank: int) -> Any:
        if rank == 2:
            dist.default_group().vanish()
            return None
        with pytest.raises(PeerLost):
            dist.barrier()
        dist.shrink_group([2])
        return dist.get_rank(), _total(None)

    assert run_ranks(4, rank_main, abort=False).results() == [(0, 3.0), (1, 3.0), None, (2, 3.0)]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_ranks_lost_while_a_group_shrinks_are_those_of_the_group_that_was_given(transport: str) -> None:
    """Rank 2 of five is rank 1 of the four that stay: who follows `error.ranks` must not evict a survivor."""
    made, gone, told = threading.Barrier(5), threading.Event(), threading.Barrier(3)

    def rank_main(rank: int) -> Any:
        world = dist.default_group()
        made.wait(PATIENCE_S)
        if rank in (0, 2):
            world.vanish()
            if rank == 2:
                world.listener.close()
                gone.set()
            return None
        assert gone.wait(PATIENCE_S)
        with pytest.raises(PeerLost):
            dist.barrier()
        with pytest.raises(PeerLost) as caught:
            dist.shrink_group([0])
        assert caught.value.ranks == {2}
        assert f"rank {rank} of 5: rank 2 (there rank 1) did not take part" in str(caught.value)
        told.wait(PATIENCE_S)
        dist.shrink_group([0, *caught.value.ranks])
        return dist.get_rank(), _total(None)

    assert run_ranks(5, rank_main, transport=transport, abort=False).results() == [
        None,
        (0, 3.0),
        None,
        (1, 3.0),
        (2, 3.0),
    ]


@pytest.mark.parametrize(
    ("make", "of_world", "absent"),
    [
        (lambda part: dist.new_group([3, 2, 1], timeout=0.3, sort_ranks=False), True, ([2], [2])),
        (lambda part: dist.split_group(part, [[2, 1, 0]], timeout=0.3), False, ([1], [2])),
        (lambda part: dist.new_subgroups_by_enumeration([[0], [3, 2, 1]], timeout=0.3), True, ([2], [2])),
        (
            lambda part: dist.new_group([1, 2, 3], timeout=0.3, use_local_synchronization=True, group_desc="again"),
            False,
            ([2], [2]),
        ),
    ],
)
def test_ranks_missing_from_a_group_that_is_made_are_those_of_the_group_it_is_made_of(
    make: Any, of_world: bool, absent: tuple[list[int], list[int]]
) -> None:
    def rank_main(rank: int) -> Any:
        part = dist.new_group([1, 2, 3])
        if rank == 2 or (rank == 0 and not of_world):  # the first is rank 1 of the part
            return None
        with pytest.raises(CollectiveTimeout) as caught:
            make(part)
        return sorted(caught.value.ranks), sorted(caught.value.world_ranks)

    assert run_ranks(4, rank_main, abort=False).results() == [absent if of_world else None, absent, None, absent]


def test_groups_made_of_one_that_a_late_rank_has_ended_name_that_rank() -> None:
    done = threading.Event()

    def rank_main(rank: int) -> Any:
        world = dist.default_group()
        part = dist.new_group([1, 2, 3])
        if rank in (0, 2):
            assert done.wait(PATIENCE_S)
            return None
        for given, parts in ((world, [[1, 3], [0, 2]]), (part, [[0, 2], [1]])):
            with pytest.raises(CollectiveTimeout):
                dist.barrier(given, timeout=0.3)
            with pytest.raises(CollectiveTimeout) as caught:
                dist.split_group(given, parts)
            late = ([0, 2], [0, 2]) if given is world else ([1], [2])
            assert (sorted(caught.value.ranks), sorted(caught.value.world_ranks)) == late
        with pytest.raises(CollectiveTimeout) as caught:
            dist.new_group([1, 3])
        assert caught.value.ranks == {0, 2}
        told.wait(PATIENCE_S)
        done.set()
        return None

    told = threading.Barrier(2)
    run_ranks(4, rank_main, abort=False).results()


def test_a_rank_that_alone_meets_without_the_others_is_told_what_all_must_give() -> None:
    def rank_main(rank: int) -> None:
        with pytest.raises(CollectiveTimeout) as caught:
            dist.new_group([0, 1], timeout=0.3, use_local_synchronization=rank == 1)
        assert rank == 0 or "use_local_synchronization=True is to be given on every" in caught.value.__notes__[0]

    run_ranks(2, rank_main, abort=False).results()


def test_shrinking_refuses_while_a_collective_runs_and_changes_nothing() -> None:
    arrived = threading.Barrier(3)

    def rank_main(rank: int) -> None:
        part = dist.new_group([0, 1])
        array = np.ones(5)
        if rank == 2:
            arrived.wait(PATIENCE_S)
            dist.all_reduce(array)
            return
        work = dist.all_reduce(array, async_op=True)
        with pytest.raises(UsageError, match=r"a collective .* still runs.*SHRINK_ABORT"):
            dist.shrink_group([2])
        arrived.wait(PATIENCE_S)
        assert work is not None
        assert work.wait()
        assert array[0] == 3
        assert _total(part) == 1
        dist.shrink_group([2])
        assert _total(None) == 1

    run_ranks(3, rank_main).results()


def test_a_subgroup_of_a_group_that_shrank_says_so() -> None:
    def rank_main(rank: int) -> None:
        part = dist.new_group([0, 1])
        if rank < 2:
            dist.shrink_group([2])
            with pytest.raises(DistError, match=r"is closed: group 'test', of which it was made, was shrunk"):
                _total(part)
            part = dist.new_group([0, 1])
            dist.destroy_process_group(part)
            with pytest.raises(DistError, match=r"is closed: destroy_process_group\(\) was called"):
                _total(part)

    run_ranks(3, rank_main).results()


def test_shrinking_may_abort_what_still_runs() -> None:
    def rank_main(rank: int) -> Any:
        if rank == 2:  # never comes
            return None
        work = dist.all_reduce(np.ones(5, np.float32), async_op=True)
        dist.shrink_group([2], shrink_flags=dist.SHRINK_ABORT)
        assert work is not None
        with pytest.raises(GroupAborted, match="shrinks"):
            work.wait()
        return _total(None)

    assert run_ranks(3, rank_main, abort=False).results() == [1.0, 1.0, None]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_an_abort_ends_what_waits_in_groups_made_of_the_one_that_is_aborted(transport: str) -> None:
    made = threading.Barrier(3)  # an abort before that would end new_group, too

    def rank_main(rank: int) -> None:
        part = dist.new_group([0, 1])
        made.wait(PATIENCE_S)
        if rank == 0:
            with pytest.raises(GroupAborted, match="asked to"):
                dist.recv(np.ones(5), src=1, group=part)
        elif rank == 1:  # never sends
            dist.default_group().abort(GroupAborted("asked to"))
            with pytest.raises(GroupAborted, match="asked to"):
                _total(part)

    run_ranks(3, rank_main, transport=transport, abort=False).results()


@pytest.mark.parametrize("transport", ["shm", "tcp", "hosts"])
def test_groups_that_ranks_make_in_another_order_are_refused_on_all_of_them(transport: str) -> None:
    def rank_main(rank: int) -> None:
        pairs = [[0, 1], [0, 2]] if rank == 0 else [[0, 2], [0, 1]]
        for number, pair in enumerate(pairs):
            said = rf"new_group #{number} of ranks \[0, 1\].*new_group #{number} of ranks \[0, 2\]"
            swapped = rf"new_group #{number} of ranks \[0, 2\].*new_group #{number} of ranks \[0, 1\]"
            with pytest.raises(CollectiveMismatch, match=swapped if number else said):
                dist.new_group(pair)
        with pytest.raises(CollectiveMismatch, match=r"here \[.*of several groups"):
            dist.new_subgroups_by_enumeration([[0], [1, 2]] if rank else [[0, 1], [2]])
        with pytest.raises(CollectiveMismatch, match=r"rank 0 called all_reduce #3 .* rank 1 called new_group #3 of"):
            dist.new_group([1, 2]) if rank else dist.all_reduce(np.ones(1))
        mine = dist.new_group([2, 1])  # and the group goes on
        if rank:
            assert _total(mine) == 3

    run_ranks(3, rank_main, transport=transport).results()


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), MemoryError("of 8 GB"), KeyboardInterrupt()])
def test_an_error_of_one_rank_in_the_making_of_a_group_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    usual: Any = subgroups.connect

    def failing(*given: Any, **named: Any) -> Any:
        if dist.get_rank() == 2:
            raise error
        return usual(*given, **named)

    monkeypatch.setattr(subgroups, "connect", failing)
    kind = GroupAborted if isinstance(error, KeyboardInterrupt) else type(error)

    def work(rank: int) -> float:
        began = SYSTEM.monotonic()
        with pytest.raises(kind if rank != 2 else type(error)) as caught:
            dist.new_group(timeout=4 * PATIENCE_S)
        assert (f"rank 2 aborted the group: {type(error).__name__}" in str(caught.value)) == (rank != 2)
        return SYSTEM.monotonic() - began

    assert max(run_ranks(3, work, abort=False).results()) < PATIENCE_S
