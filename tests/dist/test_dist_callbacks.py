"""Calls made in callbacks of asynchronous ones: the same order on every rank, and nobody waits for himself."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from resilin import dist
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
