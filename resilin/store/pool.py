"""An executor for handlers that may block for the life of a connection: grows at once, daemon threads, idle ones are
reused.

`concurrent.futures.ThreadPoolExecutor` joins its threads at interpreter exit, so an owner that died without closing its
server would hang the process.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


class DaemonPool(Executor):
    """Runs every call at once: in an idle thread if there is one, else in a new one. `shutdown` ends the idle threads,
    the others as they finish."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._idle = 0  # guarded by _lock; threads that wait for a call nobody has promised them yet
        self._threads = 0  # guarded by _lock
        self._closed = False  # guarded by _lock

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Run `fn(*args, **kwargs)` in a thread of the pool."""
        future: Future[_T] = Future()

        def call() -> None:
            _fulfil(future, fn, args, kwargs)

        with self._lock:
            if self._closed:
                raise RuntimeError(f"{self._name}: submit after shutdown")
            if self._idle:
                self._idle -= 1
            else:
                self._threads += 1
                threading.Thread(target=self._run, name=f"resilin-{self._name}", daemon=True).start()
        self._calls.put(call)
        return future

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call
            with self._lock:
                if self._closed:
                    break
                self._idle += 1
        with self._lock:
            self._threads -= 1

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Refuse new calls and let the threads end. Never blocks: who owns the calls ends them first."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, 0
        for _ in range(idle):
            self._calls.put(None)


def _fulfil(future: Future[Any], fn: Callable[..., Any], args: Any, kwargs: Any) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = fn(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001 - handed to whoever waits for the future
        future.set_exception(error)
    else:
        future.set_result(result)
