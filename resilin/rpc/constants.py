"""Name the defaults of remote calls, as PyTorch does."""

from __future__ import annotations

from datetime import timedelta

DEFAULT_RPC_TIMEOUT_SEC: float = 60.0
DEFAULT_INIT_METHOD: str = "env://"
DEFAULT_SHUTDOWN_TIMEOUT: float = 0.0
"""Seconds; 0 is without end, as in every call."""
DEFAULT_NUM_WORKER_THREADS: int = 16
DEFAULT_PROCESS_GROUP_TIMEOUT: timedelta = timedelta(milliseconds=2**31 - 1)
UNSET_RPC_TIMEOUT: float = -1.0
"""Of a call that names no timeout: the one that `_set_rpc_timeout` or the options gave holds."""
MEET_S = 300.0
"""How long workers wait for one another, where calls have no limit."""
