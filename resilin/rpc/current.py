"""Hold the one agent of this process."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from resilin.errors import RpcError

agent: Any = None
"""The agent, between `init_rpc` and `shutdown`."""
at_end: list[Callable[[], None]] = []
"""Called when it has ended, the last first."""
_of_parent: list[Any] = []  # kept, so that nothing of it is taken apart in a forked child: it is the parent's


def require() -> Any:
    """Return the agent. RpcError when there is none."""
    if agent is None:
        if _of_parent:
            raise RpcError(
                "RPC has not been initialized in this process, which was forked from a worker: threads and connections "
                "stay with that. Call resilin.distributed.rpc.init_rpc here, under a name of its own."
            )
        raise RpcError("RPC has not been initialized. Call resilin.distributed.rpc.init_rpc first.")
    return agent


def _leave_to_parent() -> None:
    """Let a forked child have no agent: its threads are not there, and its rings are shared with the parent."""
    global agent
    if agent is not None:
        _of_parent.extend((agent, *at_end))
        agent = None
        at_end.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
