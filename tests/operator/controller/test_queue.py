"""Keys of jobs are handed out once at a time, again after a while, and later and later on errors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from resilin.operator.queue import WorkQueue


def _run(story: Callable[[WorkQueue[str]], Awaitable[None]]) -> None:
    async def within() -> None:
        queue: WorkQueue[str] = WorkQueue(first_retry_s=0.01, most_retry_s=0.05)
        try:
            async with asyncio.timeout(10):
                await story(queue)
        finally:
            queue.close()

    asyncio.run(within())


def test_a_key_that_is_added_twice_comes_once():
    async def story(queue):
        queue.add("a")
        queue.add("a")
        queue.add("b")
        assert [await queue.get(), await queue.get()] == ["a", "b"]
        assert len(queue) == 0

    _run(story)


def test_a_key_that_is_added_while_it_is_worked_on_comes_again_afterwards():
    async def story(queue):
        queue.add("a")
        await queue.get()
        queue.add("a")
        assert len(queue) == 0, "nobody else gets it meanwhile"
        queue.done("a")
        assert await queue.get() == "a"

    _run(story)


def test_of_two_times_the_earlier_counts():
    async def story(queue):
        queue.add_after("a", 60.0)
        queue.add_after("a", 0.01)
        queue.add_after("a", 30.0)
        assert await queue.get() == "a"

    _run(story)


def test_errors_make_a_key_wait_twice_as_long_each_time_and_success_forgets_them():
    async def story(queue):
        waits = [queue.retry("a") for _ in range(4)]
        assert waits == [0.01, 0.02, 0.04, 0.05]
        assert queue.retry("a", at_least_s=1.5) == 1.5, "the server has said when"
        queue.succeeded("a")
        assert queue.retry("a") == 0.01
        assert await queue.get() == "a"

    _run(story)


def test_what_waits_out_an_error_is_hurried_by_what_is_urgent_alone():
    async def story(queue):
        queue.retry("a", at_least_s=60.0)
        queue.add("a")
        assert len(queue) == 0
        queue.add("a", urgent=True)
        assert await queue.get() == "a"

    _run(story)


def test_what_becomes_urgent_while_a_turn_goes_wrong_does_not_wait_out_its_error():
    async def story(queue):
        queue.add("a")
        await queue.get()
        queue.add("a", urgent=True)  # a user mends the spec
        queue.add("a")  # and something else happens
        queue.retry("a", at_least_s=60.0)
        assert len(queue) == 0, "nobody else gets it meanwhile"
        queue.done("a")
        assert await queue.get() == "a"

    _run(story)


def test_what_is_not_urgent_while_a_turn_goes_wrong_waits_out_its_error():
    async def story(queue):
        queue.add("a")
        await queue.get()
        queue.add("a")
        queue.retry("a", at_least_s=60.0)
        queue.done("a")
        assert len(queue) == 0

    _run(story)
