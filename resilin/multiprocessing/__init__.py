"""Processes that share tensors: the names of torch.multiprocessing, which are Python's own and some more.

Once this is imported, tensors that go to another process through Python's multiprocessing (as arguments of processes
that are spawned, through queues, pipes and pools) are shared with it, not copied; and so they are with forked children
after `share_memory_()`.
"""

from __future__ import annotations

from multiprocessing import (
    Array,
    AuthenticationError,
    Barrier,
    BoundedSemaphore,
    BufferTooShort,
    Condition,
    Event,
    JoinableQueue,
    Lock,
    Manager,
    Pipe,
    Pool,
    Process,
    ProcessError,
    Queue,
    RawArray,
    RawValue,
    RLock,
    Semaphore,
    SimpleQueue,
    TimeoutError,
    Value,
    active_children,
    allow_connection_pickling,
    cpu_count,
    current_process,
    freeze_support,
    get_all_start_methods,
    get_context,
    get_logger,
    get_start_method,
    log_to_stderr,
    parent_process,
    reducer,
    set_executable,
    set_forkserver_preload,
    set_start_method,
)

from resilin.multiprocessing import pool as pool
from resilin.multiprocessing import queue as queue
from resilin.multiprocessing.reductions import init_reductions
from resilin.multiprocessing.spawn import (
    ProcessContext,
    ProcessExitedException,
    ProcessRaisedException,
    SpawnContext,
    spawn,
    start_processes,
)

__all__ = [
    "Array",
    "AuthenticationError",
    "Barrier",
    "BoundedSemaphore",
    "BufferTooShort",
    "Condition",
    "Event",
    "JoinableQueue",
    "Lock",
    "Manager",
    "Pipe",
    "Pool",
    "Process",
    "ProcessContext",
    "ProcessError",
    "ProcessExitedException",
    "ProcessRaisedException",
    "Queue",
    "RLock",
    "RawArray",
    "RawValue",
    "Semaphore",
    "SimpleQueue",
    "SpawnContext",
    "TimeoutError",
    "Value",
    "active_children",
    "allow_connection_pickling",
    "cpu_count",
    "current_process",
    "freeze_support",
    "get_all_sharing_strategies",
    "get_all_start_methods",
    "get_context",
    "get_logger",
    "get_sharing_strategy",
    "get_start_method",
    "init_reductions",
    "log_to_stderr",
    "parent_process",
    "reducer",
    "set_executable",
    "set_forkserver_preload",
    "set_sharing_strategy",
    "set_start_method",
    "spawn",
    "start_processes",
]

_STRATEGIES = ("file_descriptor", "file_system")
_strategy = "file_descriptor"


def set_sharing_strategy(new_strategy: str) -> None:
    """Take the name of one of PyTorch's strategies. AssertionError for another.

    Nothing changes: memory files without a name are sent as descriptors, whichever is set. They need no cleaning up,
    and tensors of a module that shares them all have one file together.
    """
    global _strategy
    assert new_strategy in _STRATEGIES, (
        f"invalid sharing strategy {new_strategy!r}, expected one of {get_all_sharing_strategies()}"
    )
    _strategy = new_strategy


def get_sharing_strategy() -> str:
    """The name that was set last."""
    return _strategy


def get_all_sharing_strategies() -> set[str]:
    """The names that `set_sharing_strategy` takes."""
    return set(_STRATEGIES)


init_reductions()
