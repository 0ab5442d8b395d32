"""Calls made in callbacks of asynchronous ones: the same order on every rank, and nobody waits for himself."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import pytest

from resilin import distributed as dist
from resilin._base.clock import SYSTEM
from resilin.distributed.group.collective_queue import CollectiveQueue
from resilin.errors import CollectiveTimeout, DistError, GroupAborted, UsageError
from resilin.testing.patience import PATIENCE_S
from resilin.testing.ranks import run_ranks

CALLS = 6


@pytest.mark.parametrize("nested_async", [False, True])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_a_call_in_a_callback_comes_before_the_calls_that_wait_for_their_turn(world: int, nested_async: bool) -> None:
    """All calls have one shape: ranks that called them in different orders would sum the wrong ones."""

    def work(rank: int) -> list[np.ndarray]:
        group = dist.default_group()

        def squared(done: dist.Future[Any]) -> np.ndarray:
            (array,) = done.value()
            second = array**2
            if nested_async:
                dist.all_reduce(second, group=group, async_op=True).get_future().wait()
            else:
                dist.all_reduce(second, group=group)
            return second

        chains = []
        for call in range(CALLS):
            array = np.full(3, float(call + rank))
            chains.append(dist.all_reduce(array, group=group, async_op=True).get_future().then(squared))
            if call == CALLS // 2:
                between = np.full(3, 1.0)
                dist.all_reduce(between, group=group)  # waits for its turn, whatever the worker thread is at
                assert between.tolist() == [world] * 3
        return [chain.wait(PATIENCE_S) for chain in chains]

    for rank_results in run_ranks(world, work).results():
        for call, array in enumerate(rank_results):
            summed = sum(call + rank for rank in range(world))
            assert array.tolist() == [world * summed**2] * 3


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("early", [0, 1])
def test_a_callback_has_its_turn_where_it_was_added_however_far_the_calls_are(transport: str, early: int) -> None:
    """One rank adds it while all calls wait for the other, the other when all are over: all have one shape."""

    def work(rank: int) -> list[float]:
        group = dist.default_group()
        arrays = [np.full(2, 10.0**call) for call in range(4)]
        last, chained, after = np.full(2, 5.0), np.full(2, 7.0), np.full(2, 11.0)
        if rank != early:
            dist.recv(np.zeros(1), early)
        works = [dist.all_reduce(array, group=group, async_op=True) for array in arrays]
        if rank != early:
            for each in works:
                each.wait(PATIENCE_S)
        first = works[0].get_future().then(lambda _: dist.all_reduce(last, group=group))
        second = first.then(lambda _: dist.all_reduce(chained, group=group, async_op=True).wait())
        if rank == early:
            dist.send(np.zeros(1), 1 - rank)
        dist.all_reduce(after, group=group)
        second.wait(PATIENCE_S)
        return [float(array[0]) for array in (*arrays, last, chained, after)]

    want = [2.0, 20.0, 200.0, 2000.0, 10.0, 14.0, 22.0]
    assert run_ranks(2, work, transport=transport).results() == [want, want]


def test_calls_in_callbacks_come_in_one_order_whenever_callbacks_are_added() -> None:
    """Seeded pauses on each rank between the calls, and before callbacks are added to the first of them."""

    def work(rank: int) -> int:
        group, pauses = dist.default_group(), random.Random(rank)
        wrong = 0
        for _ in range(60):
            arrays = [np.full(3, 10.0**call) for call in range(4)]
            works = [dist.all_reduce(array, group=group, async_op=True) for array in arrays]
            SYSTEM.sleep(pauses.random() * 0.003)
            extra = np.full(3, 5.0)
            chain = works[0].get_future().then(lambda _, extra=extra: dist.all_reduce(extra, group=group))
            for each in works:
                each.wait(PATIENCE_S)
            chain.wait(PATIENCE_S)
            wrong += [array[0] for array in (*arrays, extra)] != [3.0, 30.0, 300.0, 3000.0, 15.0]
        return wrong

    assert run_ranks(3, work).results() == [0, 0, 0]


def begun(rank: int, add: Callable[[dist.Work], Any]) -> Any:
    """What `add` makes of a call that is under way: that rank 1 makes it later is certain."""
    if rank == 1:
        dist.recv(np.zeros(1), 0)
        dist.all_reduce(np.ones(2))
        return None
    made = add(dist.all_reduce(np.ones(2), async_op=True))
    dist.send(np.zeros(1), 1)
    return made


def test_a_callback_may_wait_for_what_was_called_before_it_was_added() -> None:
    def work(rank: int) -> None:
        def add(first: dist.Work) -> dist.Future[bool]:
            second = dist.all_reduce(np.ones(2), async_op=True)
            return first.get_future().then(lambda _: second.wait())

        chain = begun(rank, add)
        if rank == 1:
            dist.all_reduce(np.ones(2))
        else:
            assert chain.wait(PATIENCE_S)

    run_ranks(2, work).results()


@pytest.mark.parametrize("waits", ["work", "future", "chain", "joined"])
def test_a_callback_that_waits_for_a_later_call_hears_at_once_what_to_do(waits: str) -> None:
    called = threading.Event()
    later: list[Any] = []

    def wait(_: Any) -> None:
        assert called.wait(PATIENCE_S)
        later[0].wait()

    def work(rank: int) -> None:
        chain = begun(rank, lambda first: first.get_future().then(wait))
        second = (
            dist.all_reduce_coalesced([np.ones(1 << 20) for _ in range(3)], async_op=True)
            if waits == "joined"
            else dist.all_reduce(np.ones(2), async_op=True)
        )
        if rank == 0:
            future = second if waits == "joined" else second.get_future()
            later.append({"work": second, "chain": future.then(lambda _: None)}.get(waits, future))
            called.set()
            with pytest.raises(UsageError, match=r"its turn before.*called after they were added"):
                chain.wait(PATIENCE_S)
        second.wait(PATIENCE_S)
        dist.barrier()

    run_ranks(2, work).results()


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), ValueError("x")], ids=repr)
def test_what_a_callback_raises_ends_no_thread_of_the_group(error: BaseException, caplog: Any) -> None:
    def fail(_: Any) -> None:
        raise error

    def work(rank: int) -> None:
        begun(rank, lambda first: first.get_future().add_done_callback(fail))
        assert dist.all_reduce(np.ones(2), async_op=True).wait(PATIENCE_S)
        dist.barrier()

    run_ranks(2, work).results()
    assert "callback of a future failed" in caplog.text


LONG = 5000


@pytest.mark.parametrize("of", ["collective", "message", "own"])
def test_chains_of_callbacks_may_be_as_long_as_one_likes(of: str) -> None:
    """Added while their first future is not done, in a callback: they all run when it is."""

    def chained(future: dist.Future[Any]) -> dist.Future[int]:
        chain = future.then(lambda _: 0)
        for _ in range(LONG):
            chain = chain.then(lambda done: done.value() + 1)
        return chain

    def work(rank: int) -> int:
        made: list[dist.Future[int]] = []
        if of == "own":
            future: dist.Future[None] = dist.Future()
            made.append(chained(future))
            future.set_result(None)
        elif of == "message":
            made.append(chained(dist.irecv(np.ones(1), 1 - rank).get_future()))
            dist.send(np.ones(1), 1 - rank)
        else:
            later: list[dist.Work] = []
            ready = threading.Event()

            def add(_: Any) -> None:
                assert ready.wait(PATIENCE_S)
                made.append(chained(later[0].get_future()))

            def under_way(first: dist.Work) -> dist.Future[None]:
                return first.get_future().then(add)

            adding = begun(rank, under_way)
            later.append(dist.all_reduce(np.ones(2), async_op=True))
            ready.set()
            if rank == 1:
                return LONG
            adding.wait(PATIENCE_S)
        found = made[0].wait(PATIENCE_S)
        dist.barrier() if of != "collective" else None
        return found

    assert run_ranks(2, work).results() == [LONG, LONG]


@pytest.mark.slow
@pytest.mark.parametrize("keeps", [True, False], ids=["futures kept", "futures let go"])
@pytest.mark.parametrize("of", ["collective", "message", "own"])
def test_a_callback_may_begin_the_next_call_and_add_itself_to_it_for_as_long_as_it_likes(of: str, keeps: bool) -> None:
    def begin(group: Any, value: np.ndarray) -> dist.Future[Any]:
        if of == "collective":
            return dist.all_reduce(value, group=group, async_op=True).get_future()
        if of == "own":
            future: dist.Future[list[np.ndarray]] = dist.Future()
            future.set_result([value * 2])
            return future
        if group.rank() == 0:
            return dist.isend(value, 1, group).get_future()
        return dist.irecv(value, 0, group).get_future()

    def work(rank: int) -> list[float]:
        group = dist.default_group()
        found: list[float] = []
        kept: list[Any] = []
        over = threading.Event()

        def again(done: dist.Future[Any]) -> None:
            found.append(float(done.value()[0][0]))
            if len(found) == LONG:
                over.set()
            else:
                kept.append(begin(group, np.full(2, float(len(found)))).then(again))
                if not keeps:
                    kept.clear()

        begin(group, np.zeros(2)).then(again)
        assert over.wait(PATIENCE_S)
        dist.barrier()
        for future in kept:
            future.wait(PATIENCE_S)
        return found

    one = range(LONG) if of == "message" else range(0, 2 * LONG, 2)
    assert run_ranks(2, work).results() == [list(one), list(one)]


@pytest.mark.parametrize("late", [0, 1])
def test_what_deep_callbacks_call_has_its_place_whichever_thread_runs_them(late: int) -> None:
    """One rank adds the first callback while its call waits for the other one, which adds it when the call is over."""
    deep = 30

    def work(rank: int) -> list[float]:
        group = dist.default_group()
        found: list[float] = []

        def summed(value: float) -> dist.Future[Any]:
            return dist.all_reduce(np.full(2, value), group=group, async_op=True).get_future()

        def noted(done: dist.Future[Any]) -> None:
            found.append(float(done.value()[0][0]))

        def deeper(depth: int, done: dist.Future[Any]) -> None:
            noted(done)
            if depth == deep:
                return
            summed(100.0 * depth).then(partial(deeper, depth + 1))
            other = summed(100.0 * depth + 1)  # behind all that the deeper ones call
            other.add_done_callback(lambda _: summed(100.0 * depth + 2).add_done_callback(noted))
            other.add_done_callback(noted)

        if rank == late:
            dist.recv(np.zeros(1), 1 - rank)
        first = dist.all_reduce(np.ones(2), async_op=True)
        if rank == late:
            first.wait(PATIENCE_S)
        chain = first.get_future().then(partial(deeper, 0))
        if rank != late:
            dist.send(np.zeros(1), 1 - rank)
        dist.all_reduce(np.full(2, -1.0))
        chain.wait(PATIENCE_S)
        dist.barrier()
        return found

    down = [200.0 * depth for depth in range(deep)]
    up = [200.0 * depth + more for depth in reversed(range(deep)) for more in (4, 2)]
    assert run_ranks(2, work).results() == [[2.0, *down, *up]] * 2


def test_a_deep_callback_that_asks_or_waits_for_one_that_it_added_finds_it_done() -> None:
    asked: list[int] = []

    def deeper(depth: int, _: dist.Future[Any]) -> int:
        mine: dist.Future[None] = dist.Future()
        mine.set_result(None)
        if depth < 30:
            following = mine.then(partial(deeper, depth + 1))
            if depth % 2:
                assert following.done()
            assert following.wait(PATIENCE_S) == depth + 1
        asked.append(depth)
        return depth

    start: dist.Future[None] = dist.Future()
    start.set_result(None)
    assert start.then(partial(deeper, 0)).wait(PATIENCE_S) == 0
    assert asked == list(range(30, -1, -1))


def test_callbacks_of_two_groups_that_wait_for_one_another_end_at_the_limit() -> None:
    def work(rank: int) -> None:
        one, two = dist.default_group(), dist.new_group([0, 1], timeout=1.0)
        assert two is not None
        ready = threading.Barrier(3)

        def crossing(other: Any) -> Callable[[Any], None]:
            def call(_: Any) -> None:
                ready.wait(PATIENCE_S)  # both are called back, and behind both a call waits for its turn
                dist.all_reduce(np.ones(2), group=other)

            return call

        if rank == 1:
            dist.recv(np.zeros(1), 0)
            with contextlib.suppress(DistError):  # what comes of them once rank 0 has given up is another test's
                for group in (one, two, one, two):
                    dist.all_reduce(np.ones(2), group=group)
            return
        works = [dist.all_reduce(np.ones(2), group=group, async_op=True) for group in (one, two)]
        chains = [work.get_future().then(crossing(other)) for work, other in zip(works, (two, one), strict=True)]
        behind = [dist.all_reduce(np.ones(2), group=group, async_op=True) for group in (one, two)]
        dist.send(np.zeros(1), 1)
        ready.wait(PATIENCE_S)
        with pytest.raises(CollectiveTimeout, match="did not finish within 1 s"):
            chains[0].wait(PATIENCE_S)
        for each in behind:
            each.exception()

    run_ranks(2, work, abort=False, timeout_s=2 * PATIENCE_S).results()


@pytest.mark.parametrize(("whose", "other"), [(0, 1), (1, 0), (1, 2), (2, 1)])
def test_groups_close_at_once_whichever_a_callback_of_another_one_waits_for(whose: int, other: int) -> None:
    def work(rank: int) -> None:
        groups = [dist.default_group(), dist.new_group([0, 1]), dist.new_group([0, 1])]
        called, raised = threading.Event(), []

        def wait_for_other(_: Any) -> None:
            called.set()
            with pytest.raises(DistError) as caught:
                dist.all_reduce(np.ones(2), group=groups[other])
            raised.append(caught.value)

        if rank == 1:
            dist.recv(np.zeros(1), 0)
            dist.all_reduce(np.ones(2), group=groups[whose])
            dist.recv(np.zeros(1), 0)  # it makes no call of the other group
            return
        first = dist.all_reduce(np.ones(2), group=groups[whose], async_op=True)
        first.get_future().then(wait_for_other)
        dist.send(np.zeros(1), 1)
        assert called.wait(PATIENCE_S)
        dist.default_group().close()  # raises where a callback does not end
        assert len(raised) == 1

    outcome = run_ranks(2, work, abort=False, timeout_s=2 * PATIENCE_S)
    assert outcome.errors.keys() <= {1}, outcome.errors


def test_the_future_of_a_work_is_completed_by_nobody_else() -> None:
    def work(rank: int) -> None:
        future = dist.all_reduce(np.ones(2), async_op=True).get_future()
        for spoil in (lambda: future.set_result([]), lambda: future.set_exception(ValueError())):
            with pytest.raises(UsageError, match="completes it; expected a Future"):
                spoil()
        assert future.wait(PATIENCE_S)[0].tolist() == [2.0, 2.0]

    run_ranks(2, work).results()


def test_a_wait_that_is_too_long_ends_nothing_and_may_be_had_again() -> None:
    def work(rank: int) -> None:
        array = np.ones(2)
        if rank == 1:
            dist.recv(np.zeros(1), 0)
        call = dist.all_reduce(array, async_op=True)
        if rank == 0:
            for wait in (call.wait, call.get_future().wait):
                with pytest.raises(CollectiveTimeout, match=r"within 0.01 s of Work.wait; it goes on"):
                    wait(0.01)
            dist.send(np.ones(1), 1)
        assert call.wait(timedelta(0)), "PyTorch's default: no limit of its own"
        assert array.tolist() == [2.0, 2.0]
        dist.barrier()

    run_ranks(2, work).results()


def test_an_abort_ends_the_waits_for_calls_behind_a_callback_that_does_not_return() -> None:
    held, ended = threading.Event(), threading.Event()

    def hold(_: Any) -> None:
        held.set()
        assert ended.wait(PATIENCE_S)

    def work(rank: int) -> None:
        stuck = begun(rank, lambda first: first.get_future().then(hold))
        if rank == 1:
            assert ended.wait(PATIENCE_S)
            return
        behind = dist.all_reduce(np.ones(2), async_op=True)
        assert held.wait(PATIENCE_S)
        dist.default_group().abort(GroupAborted("enough"))
        with pytest.raises(GroupAborted, match="enough"):
            behind.wait()
        assert not ended.is_set()
        ended.set()
        stuck.wait(PATIENCE_S)

    run_ranks(2, work, abort=False).results()


def test_callbacks_of_a_call_that_was_given_up_see_its_error_however_late_who_gave_it_up_says_so(
    monkeypatch: Any,
) -> None:
    held, ended = threading.Event(), threading.Event()
    lose = CollectiveQueue._lose

    def slow(calls: CollectiveQueue, *lost: Any) -> None:
        if not calls.worker.inside():
            ended.set()
            SYSTEM.sleep(0.2)
        lose(calls, *lost)

    monkeypatch.setattr(CollectiveQueue, "_lose", slow)

    def hold(_: Any) -> None:
        held.set()
        assert ended.wait(PATIENCE_S)

    def work(rank: int) -> None:
        begun(rank, lambda first: first.get_future().then(hold))
        if rank == 1:
            assert ended.wait(PATIENCE_S)
            return
        behind = dist.all_reduce(np.ones(2), async_op=True).get_future()
        called = behind.then(lambda done: done.exception())
        assert held.wait(PATIENCE_S)
        dist.default_group().abort(GroupAborted("enough"))
        assert isinstance(called.wait(PATIENCE_S), GroupAborted)

    run_ranks(2, work, abort=False).results()


def test_an_error_in_a_nested_call_is_the_error_of_the_chain() -> None:
    def work(rank: int) -> str:
        group = dist.default_group()
        begin = threading.Event()

        def failing(done: dist.Future[Any]) -> None:
            begin.wait(PATIENCE_S)
            group.abort()
            dist.barrier(group=group)

        chain = dist.all_reduce(np.ones(2), group=group, async_op=True).get_future().then(failing)
        begin.set()
        with pytest.raises(dist.DistBackendError) as caught:
            chain.wait(PATIENCE_S)
        return type(caught.value).__name__

    assert run_ranks(1, work).results() == ["GroupAborted"]


@pytest.mark.parametrize("transport", ["tcp", "hosts"])
@pytest.mark.parametrize("wait", ["recv", "work", "future", "chain", "all of several"])
def test_a_callback_that_waits_on_the_thread_that_reads_hears_at_once_what_to_do(transport: str, wait: str) -> None:
    """Of "hosts", ranks 0 and 2 are on two: nothing comes but what that thread takes in."""

    def work(rank: int) -> list[float] | None:
        group = dist.default_group()
        second = np.zeros(3)
        posted: list[dist.Work] = []

        def receive(done: dist.Future[Any]) -> None:
            if wait == "recv":
                dist.recv(second, 0, group=group, tag=2)
            posted.append(dist.irecv(second, 0, group=group, tag=2))
            future = posted[0].get_future()
            {
                "work": posted[0].wait,
                "future": future.wait,
                "chain": future.then(lambda _: None).wait,
                "all of several": dist.collect_all([future]).wait,
            }[wait]()

        if rank == 0:
            dist.recv(np.zeros(1), 2)  # rank 2 has its callback in place
            dist.send(np.ones(3), 2, tag=1)
            dist.recv(np.zeros(1), 2)  # it has heard: until here nothing can end its wait
            dist.send(np.full(3, 7.0), 2, tag=2)
        elif rank == 2:
            first = dist.irecv(np.zeros(3), 0, tag=1)
            chain = first.get_future().then(receive)
            dist.send(np.ones(1), 0)
            with pytest.raises(UsageError, match=r"recv from rank 0 with tag 2, .*get_future\(\).then"):
                chain.wait(PATIENCE_S)
            dist.send(np.ones(1), 0)
            if posted:
                posted[0].wait()
            else:  # it was taken back, and the group is well
                dist.recv(second, 0, tag=2)
        dist.barrier()
        return second.tolist()

    assert run_ranks(3, work, transport=transport, timeout_s=3 * PATIENCE_S).results()[2] == [7.0] * 3


def test_a_callback_on_the_thread_that_reads_may_post_a_receive_and_go_on_in_its_callback() -> None:
    def work(rank: int) -> list[float]:
        group = dist.default_group()
        first, second = np.zeros(2), np.zeros(2)
        ended: dist.Future[list[float]] = dist.Future()

        def then(_: dist.Future[Any]) -> None:
            following = dist.irecv(second, 0, group=group, tag=2)
            following.get_future().add_done_callback(lambda done: ended.set_result((first + second).tolist()))

        if rank == 0:
            dist.send(np.ones(2), 1, tag=1)
            dist.send(np.full(2, 2.0), 1, tag=2)
            dist.barrier()
            return []
        dist.irecv(first, 0, tag=1).get_future().add_done_callback(then)
        result = ended.wait(PATIENCE_S)
        dist.barrier()
        return result

    assert run_ranks(2, work, transport="tcp").results()[1] == [3.0] * 2
