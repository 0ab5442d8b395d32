"""Make the calls of an agent's loop that may block: one after the other, off the loop, each awaited.

Inline      the call cannot block: it is made at once, and a coroutine that awaits it never suspends (`finish`)
Threaded    by one thread, which starts with the first call
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol, TypeVar

from resilin._base.threads import OwnedThread

_T = TypeVar("_T")


class Caller(Protocol):
    """Makes calls for a loop."""

    async def __call__(self, call: Callable[[], _T]) -> _T:
        """What `call()` returns or raises."""
        ...

    def close(self) -> None:
        """No further call is made."""


class Inline:
    """For calls that cannot block."""

    async def __call__(self, call: Callable[[], _T]) -> _T:
        """See `Caller`. Never suspends."""
        return call()

    def close(self) -> None:
        """Nothing to end."""


class Threaded:
    """For calls that may block. Its thread ends with `close()`, after the call that it is in."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: OwnedThread | None = None
        self._waiting = 0  # calls that have not returned yet

    async def __call__(self, call: Callable[[], _T]) -> _T:
        """See `Caller`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()

        def make() -> None:
            try:
                then = partial(self._settle, future, call(), None)
            except Exception as error:  # noqa: BLE001 - goes to whoever awaits the call
                then = partial(self._settle, future, None, error)
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits
                loop.call_soon_threadsafe(then)

        if self._thread is None:
            self._thread = OwnedThread("rendezvous", self._run)
        self._waiting += 1
        self._calls.put(make)
        return await future

    def close(self) -> None:
        """See `Caller`. Does not wait for a thread in a call that takes a while to give up: it ends after it."""
        self._calls.put(None)
        if self._thread is not None and not self._waiting:
            self._thread.join()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

    def _settle(self, future: asyncio.Future[Any], value: Any, error: Exception | None) -> None:
        self._waiting -= 1
        if future.done():  # whoever waited was cancelled
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)


def finish(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that awaits nothing but `Inline` calls; it is over when this returns."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError(f"{work} waits for something, though its calls cannot block")
