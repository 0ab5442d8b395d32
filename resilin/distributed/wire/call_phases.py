"""Announce where a call has got to, to whoever plans faults (`resilin.testing.faults`). Nobody listens elsewhere.

    start      a call begins: a collective by the name of its kind, "send", "recv", "connect", "reconfigure", "close"
    arrived    this rank has entered a barrier in shared memory
    agreed     all ranks have made the same call
    data       a piece of data has been sent, received, copied or reduced; before `agreed`: of the agreement
    moved      this rank's part is done: a message is on its way, or only the last barrier is left
    end        the call has done its work and is about to return

Where nobody listens an announcement is a look at one global. Native code announces, too (native/phases.hpp). What a
listener raises comes out of the call, and a listener that waits keeps the call where it is.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from resilin.distributed.wire import loader

Listener = Callable[[str, str, Any], None]  # (phase, what: "" in the middle of a call, group if it is known)

heard = False
"""Whether anybody listens to any thread: look at this before `reached`."""

_listeners = 0  # guarded by _lock
_lock = threading.Lock()
_thread = threading.local()


def reached(phase: str, what: str = "", group: Any = None) -> None:
    """This thread's call has come to `phase`."""
    listener: Listener | None = getattr(_thread, "listener", None)
    if listener is not None:
        listener(phase, what, group)


@contextlib.contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Tell `listener` what this thread does, and what it gives to worker threads of groups."""
    before = getattr(_thread, "listener", None)
    _count(1)
    _thread.listener = listener
    try:
        yield
    finally:
        _thread.listener = before
        _count(-1)


def _count(change: int) -> None:
    global _listeners, heard
    with _lock:
        _listeners += change
        heard = _listeners > 0
        if loader.native is not None:
            loader.native.hear_phases(reached if heard else None)


def carried(task: Callable[[], None]) -> Callable[[], None]:
    """`task` for another thread, where whoever listens to this one goes on listening."""
    listener: Listener | None = getattr(_thread, "listener", None) if heard else None
    if listener is None:
        return task

    def run() -> None:
        with listening(listener):
            task()

    return run
