"""Calls made in callbacks of asynchronous ones: the same order on every rank, and nobody waits for himself."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from resilin import dist
from resilin.errors import UsageError
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
