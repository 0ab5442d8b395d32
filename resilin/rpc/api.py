"""Call functions of other workers, and refer to values that lie there."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from resilin._base import log, trace
from resilin._base.clock import Deadline
from resilin.distributed.work.future import Future, wait_all
from resilin.errors import DistStoreError, RpcError, RpcTimeout
from resilin.rpc import current
from resilin.rpc.agent.agent import Agent
from resilin.rpc.constants import DEFAULT_SHUTDOWN_TIMEOUT, UNSET_RPC_TIMEOUT
from resilin.rpc.group import gather
from resilin.rpc.group.gather import gatherings
from resilin.rpc.references.rref import RRef, handle
from resilin.rpc.timeouts import seconds as seconds_of
from resilin.rpc.tracing import spans
from resilin.rpc.worker_info import WorkerInfo

__all__ = [
    "RRef",
    "get_rpc_timeout",
    "get_worker_info",
    "remote",
    "rpc_async",
    "rpc_sync",
    "shutdown",
    "stats",
]

_LOG = log.logger("rpc.api")
_ignore_rref_leak = True
"""Whether `shutdown` is silent about values that others still refer to."""
_LET_GO_S = 60.0  # how long owners may take to hear at shutdown of the references that are let go
_thread_local_var = threading.local()


def rpc_sync(
    to: str | int | WorkerInfo,
    func: Any,
    args: Any = None,
    kwargs: Any = None,
    timeout: float = UNSET_RPC_TIMEOUT,
) -> Any:
    """Run `func(*args, **kwargs)` at worker `to` and return what it returns. Any thread.

    to: a worker's name, id or WorkerInfo. func: found at `to` by its module and qualified name. timeout: seconds; 0 is
    without end; without it that of the options holds.
    Raises: what `func` raised there, with the traceback in its text; RpcTimeout; PeerLost; RpcError for an unknown
    worker or function.
    """
    agent: Agent = current.require()
    if trace.recorder is None:
        return agent.call(to, func, args, kwargs, timeout)
    with spans.called("rpc_sync", func, agent.get_worker_info(), agent.get_worker_info(to)):
        return agent.call(to, func, args, kwargs, timeout)


def rpc_async(
    to: str | int | WorkerInfo,
    func: Any,
    args: Any = None,
    kwargs: Any = None,
    timeout: float = UNSET_RPC_TIMEOUT,
) -> Future[Any]:
    """Run `func(*args, **kwargs)` at worker `to`; return a Future of what it returns at once. See `rpc_sync`.

    The Future's `wait` raises what `rpc_sync` does. Arguments are those of the moment of the call: what is written to
    them later does not show there.
    """
    agent: Agent = current.require()
    future: Future[Any]
    if trace.recorder is None:
        future = agent.call_async(to, func, args, kwargs, timeout)
    else:
        workers = agent.get_worker_info(), agent.get_worker_info(to)
        future = spans.begun("rpc_async", func, *workers, lambda: agent.call_async(to, func, args, kwargs, timeout))
    collected = getattr(_thread_local_var, "future_list", None)
    if collected is not None:
        collected.append(future)
    return future


def remote(
    to: str | int | WorkerInfo,
    func: Any,
    args: Any = None,
    kwargs: Any = None,
    timeout: float = UNSET_RPC_TIMEOUT,
    *,
    recreate: bool = False,
) -> RRef[Any]:
    """Run `func(*args, **kwargs)` at worker `to`, where its result stays; return an RRef of it at once.

    What goes wrong shows at the next use of the RRef. See `rpc_sync`.

    recreate: when the owner is gone, the next use of this RRef here (`to_here`, a proxy, passing it on) has `func` make
    the value again: at the process that has come under the owner's name, else at the worker of the lowest id that is
    reached, else here. `owner()` changes. What was done to the value since it was made is lost. The arguments, which
    are kept as long as the RRef, are taken as they are then. A call by a proxy that was under way when the owner died
    fails, as it may have run; `to_here` goes on. All others who hold the reference get OwnerLost: pass it on anew.
    """
    agent: Agent = current.require()
    if trace.recorder is None:
        return handle(agent.rrefs, agent.remote(to, func, args, kwargs, timeout, recreate))
    with spans.called("rpc_remote", func, agent.get_worker_info(), agent.get_worker_info(to)):
        return handle(agent.rrefs, agent.remote(to, func, args, kwargs, timeout, recreate))


def get_worker_info(worker_name: str | None = None) -> WorkerInfo:
    """Return the worker called `worker_name`; this one without it. RpcError where there is none."""
    found: WorkerInfo = current.require().get_worker_info(worker_name)
    return found


def get_rpc_timeout() -> float:
    """Return the seconds that a call may take which names no timeout; 0 is without end."""
    seconds: float = current.require().timeout_s
    return seconds


def _set_rpc_timeout(rpcTimeoutSeconds: float) -> None:
    """Change the seconds that calls may take which name no timeout, from now on."""
    current.require().timeout_s = seconds_of(rpcTimeoutSeconds, "rpc_timeout")


def stats() -> dict[str, Any]:
    """Return what calls have cost, by function: those made by this worker, and those it has run."""
    found: dict[str, Any] = current.require().stats.shown()
    return found


def _is_current_rpc_agent_set() -> bool:
    """Return whether this process is between `init_rpc` and `shutdown`."""
    return current.agent is not None


def _get_current_rpc_agent() -> Any:
    """Return this worker's agent. RpcError where there is none."""
    return current.require()


@contextlib.contextmanager
def _wait_all() -> Iterator[None]:
    """Wait, at the end of the block, for all futures that `rpc_async` has returned in it to this thread."""
    _thread_local_var.future_list = []
    try:
        yield
    finally:
        try:
            wait_all(_thread_local_var.future_list)
        finally:
            del _thread_local_var.future_list


def _all_gather(
    obj: Any, worker_names: Iterable[str] | None = None, timeout: float = UNSET_RPC_TIMEOUT
) -> dict[str, Any]:
    """Return what every worker of `worker_names` (None: all) has given, by name; all of them call it."""
    if timeout != UNSET_RPC_TIMEOUT:
        timeout = seconds_of(timeout, "timeout")
    return gatherings.gather(current.require(), obj, worker_names, timeout)


def _barrier(worker_names: Iterable[str]) -> None:
    """Return when all workers of `worker_names` have called it. What goes wrong is logged."""
    try:
        _all_gather(None, set(worker_names))
    except RuntimeError as error:
        log.event(_LOG, logging.ERROR, "a barrier of RPC workers failed", exc_info=error)


def _wait_all_workers(timeout: float = DEFAULT_SHUTDOWN_TIMEOUT) -> None:
    """Return when all workers have called it, and no call is under way between any of them."""
    gather.quiesce(current.require(), Deadline(timeout or None))


def _delete_all_user_and_unforked_owner_rrefs(timeout: float = _LET_GO_S) -> None:
    """Let go of every reference to values of other workers; they raise at their next use."""
    current.require().rrefs.delete_all(timeout)


def shutdown(graceful: bool = True, timeout: float = DEFAULT_SHUTDOWN_TIMEOUT) -> None:
    """End RPC in this process.

    graceful: wait until all workers have called it and all calls between them are done (of a dynamic group: tell the
    others, and leave). Otherwise calls that are under way fail. timeout: seconds for this; 0 is without end.
    """
    agent: Agent = current.require()
    deadline = Deadline(seconds_of(timeout, "timeout") or None)
    leaks = ""
    try:
        if graceful and isinstance(agent, Agent):
            if agent.membership.is_static:
                gather.quiesce(agent, deadline)
                _let_go(deadline)
                gather.barrier(agent, deadline)
                leaks = _leaks(agent)
                if not _ignore_rref_leak:
                    gather.barrier(agent, deadline)  # the references of one that has ended are no leaks
            else:
                _leave(agent, deadline)
            agent.wait_idle(deadline.left())
    finally:
        _finalize_shutdown(agent, leaks)


def _let_go(deadline: Deadline) -> None:
    left = deadline.left()
    if left is None or left > _LET_GO_S:
        _delete_all_user_and_unforked_owner_rrefs()
    else:
        _delete_all_user_and_unforked_owner_rrefs(left)


def _leave(agent: Agent, deadline: Deadline) -> None:
    try:
        agent.wait_idle(deadline.left())
        _let_go(deadline)
    except BaseException:
        with contextlib.suppress(RpcTimeout, DistStoreError):  # what went wrong before is raised
            agent.leave(Deadline(0.0))
        raise
    agent.leave(deadline)


def _leaks(agent: Any) -> str:
    return agent.rrefs.leaks() if isinstance(agent, Agent) and not _ignore_rref_leak else ""


def _finalize_shutdown(agent: Any, leaks: str) -> None:
    try:
        leaks = leaks or _leaks(agent)
        if leaks:
            raise RpcError(leaks)
    finally:
        current.agent = None
        with contextlib.ExitStack() as rest:
            for done in current.at_end:
                rest.callback(done)
            current.at_end.clear()
            rest.callback(agent.close)
